//! The suites fail on plugins that are wrong: each fault is found by the case that is there for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hawser_plugin::net::{
    Connector, Handle, Listener, Net, NetConfig, NetContext, NetProperties, Receiver, Region, Registration,
    Request, Segment, Sender,
};
use hawser_plugin::tuner::{Answer, Candidate, Question, Status, Tuner, TunerConfig, TunerContext};
use hawser_plugin::{ErrorKind, Result};
use hawser_plugin_testkit::conformance::{Options, net, tuner};
use hawser_plugin_testkit::loopback::Loopback;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    NameChanges,
    NoLatency,
    AnyDevice,
    Corrupts,
    LongSize,
    IgnoresTags,
    LosesShort,
    Silent,
    TakesAnyHandle,
    TakesAnyMemory,
    Panics,
    Blocks,
}

/// The loopback net with a fault.
#[derive(Clone)]
struct Faulty(Fault);

impl Net for Faulty {
    fn name(&self) -> &str {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        match self.0 {
            Fault::NameChanges if ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => "even",
            _ => "faulty",
        }
    }
    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        Ok(Box::new(FaultyContext(self.0, Loopback::default().open(config)?)))
    }
}

struct FaultyContext(Fault, Box<dyn NetContext>);

impl NetContext for FaultyContext {
    fn devices(&self) -> Result<u32> {
        self.1.devices()
    }
    fn properties(&self, device: u32) -> Result<NetProperties> {
        let device = if self.0 == Fault::AnyDevice { 0 } else { device };
        let mut properties = self.1.properties(device)?;
        if self.0 == Fault::NoLatency {
            properties.latency_us = f32::NAN;
        }
        Ok(properties)
    }
    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        let (handle, listener) = self.1.listen(device)?;
        Ok((handle, Box::new(FaultyListener(self.0, listener))))
    }
    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        match self.1.connect(device, handle) {
            Err(error) if self.0 == Fault::TakesAnyHandle && error.kind == ErrorKind::InvalidArgument => {
                let (handle, _listener) = self.1.listen(device)?;
                self.1.connect(device, &handle)?;
                let (own, listener) = self.1.listen(device)?;
                std::mem::forget(listener);
                self.1.connect(device, &own)
            }
            other => Ok(Box::new(FaultyConnector(self.0, other?))),
        }
    }
}

struct FaultyListener(Fault, Box<dyn Listener>);

impl Listener for FaultyListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let receiver = self.1.accept()?;
        Ok(receiver.map(|inner| Box::new(FaultyReceiver(self.0, inner)) as Box<dyn Receiver>))
    }
}

struct FaultyConnector(Fault, Box<dyn Connector>);

impl Connector for FaultyConnector {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let sender = self.1.poll()?;
        Ok(sender.map(|inner| Box::new(FaultySender(self.0, inner)) as Box<dyn Sender>))
    }
}

struct FaultySender(Fault, Box<dyn Sender>);

impl Sender for FaultySender {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        let kind = hawser_plugin::net::MemoryKinds::HOST;
        let region = if self.0 == Fault::TakesAnyMemory { Region { kind, ..*region } } else { *region };
        // SAFETY: as our caller promised.
        unsafe { self.1.register(&region) }
    }
    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.1.deregister(registration)
    }
    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        let mut segment = *segment;
        match self.0 {
            Fault::Corrupts if segment.bytes > 70_000 => {
                let last = (segment.addr + segment.bytes as u64 - 1) as *mut u8;
                // SAFETY: inside the segment.
                unsafe { last.write(last.read() ^ 1) };
            }
            Fault::Panics if segment.bytes == 513 => panic!("513 bytes"),
            Fault::Blocks if segment.bytes == 513 => loop {
                std::thread::park();
            },
            Fault::LosesShort if segment.bytes == 1 => segment.bytes = 0,
            _ => {}
        }
        // SAFETY: as our caller promised.
        match unsafe { self.1.isend(&segment) } {
            Err(error) if self.0 == Fault::Silent && error.kind == ErrorKind::Remote => Ok(None),
            other => other,
        }
    }
    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        match self.1.test(request) {
            Err(error) if self.0 == Fault::Silent && error.kind == ErrorKind::Remote => Ok(None),
            other => other,
        }
    }
}

struct FaultyReceiver(Fault, Box<dyn Receiver>);

impl Receiver for FaultyReceiver {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: as our caller promised.
        unsafe { self.1.register(region) }
    }
    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.1.deregister(registration)
    }
    unsafe fn irecv(&mut self, segments: &[Segment], optional: bool) -> Result<Option<Request>> {
        let mut segments = segments.to_vec();
        if self.0 == Fault::IgnoresTags {
            let mut tags: Vec<i32> = segments.iter().map(|segment| segment.tag).collect();
            tags.reverse();
            segments.iter_mut().zip(tags).for_each(|(segment, tag)| segment.tag = tag);
        }
        // SAFETY: as our caller promised.
        unsafe { self.1.irecv(&segments, optional) }
    }
    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let done = match self.1.test(request, sizes) {
            Err(error) if self.0 == Fault::Silent && error.kind == ErrorKind::Remote => Ok(false),
            other => other,
        }?;
        if done && self.0 == Fault::LongSize {
            sizes.iter_mut().for_each(|size| *size += 1);
        }
        Ok(done)
    }
}

/// Runs one case, which has to fail, and others, which have to pass.
fn found(fault: Fault, by: &str, not_by: &[&str]) {
    let options = Options::default().deadline(Duration::from_millis(500));
    let plugin = || Arc::new(Faulty(fault));
    net::one(by, plugin(), &options.clone().known_failures(&[by]));
    not_by.iter().for_each(|case| net::one(case, plugin(), &Options::default()));
}

#[test]
fn each_fault_of_a_net_is_found() {
    found(Fault::NameChanges, "name_is_constant", &["properties_are_sane"]);
    found(Fault::NoLatency, "properties_are_sane", &["order_is_kept"]);
    found(Fault::AnyDevice, "devices_are_checked", &["properties_are_sane"]);
    found(Fault::Corrupts, "messages_of_all_sizes", &["many_requests_in_flight"]);
    found(Fault::LongSize, "receives_may_be_longer", &["optional_completion"]);
    found(Fault::IgnoresTags, "grouped_receives", &["order_is_kept"]);
    found(Fault::LosesShort, "messages_of_all_sizes", &["sends_may_come_first"]);
    found(Fault::Silent, "a_lost_sender_is_an_error", &["closing_early"]);
    found(Fault::Silent, "a_lost_receiver_is_an_error", &["order_is_kept"]);
    found(Fault::TakesAnyHandle, "garbage_handles", &["listeners_may_be_dropped"]);
    found(Fault::TakesAnyMemory, "other_memory_is_refused", &["registrations_come_and_go"]);
    found(Fault::Panics, "messages_of_all_sizes", &["many_requests_in_flight"]);
    found(Fault::Blocks, "messages_of_all_sizes", &["many_requests_in_flight"]);
}

/// A tuner with opinions that differ from day to day, or that revive what is impossible.
#[derive(Clone, Copy)]
enum BadTuner {
    Moody,
    Reviver,
    Stubborn,
    NotThere,
    NotANumber,
}

impl Tuner for BadTuner {
    fn name(&self) -> &str {
        "bad"
    }
    fn open(&self, _: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        Ok(Box::new(*self))
    }
}

impl TunerContext for BadTuner {
    fn tune(&self, _: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        static ASKED: AtomicUsize = AtomicUsize::new(1);
        let Some(last) = candidates.last_mut() else { return Ok(Answer::default()) };
        match self {
            Self::Moody => last.us = ASKED.fetch_add(1, Ordering::Relaxed) as f32,
            Self::Reviver => candidates.iter_mut().for_each(|candidate| candidate.status = Status::Predicted),
            Self::Stubborn => {
                let refused = candidates.iter().position(|candidate| !candidate.is_possible());
                return Ok(refused.map_or_else(Answer::default, Answer::ordered));
            }
            Self::NotThere => return Ok(Answer::ordered(candidates.len())),
            Self::NotANumber => last.us = f32::NAN,
        }
        Ok(Answer::default())
    }
}

#[test]
fn each_fault_of_a_tuner_is_found() {
    let found = |bad: BadTuner, by: &str| {
        tuner::one(by, Arc::new(bad), &Options::default().known_failures(&[by]));
    };
    found(BadTuner::Moody, "ranks_agree");
    found(BadTuner::Moody, "many_threads_ask");
    found(BadTuner::Reviver, "impossible_stays_impossible");
    found(BadTuner::Stubborn, "impossible_stays_impossible");
    found(BadTuner::NotThere, "every_question_is_answered");
    found(BadTuner::NotANumber, "every_question_is_answered");
}
