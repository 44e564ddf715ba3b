//! A plugin library with one component of each kind. The tests of the ABI load it.

#[path = "../../testkit/src/loopback.rs"]
mod loopback;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hawser_plugin::collnet::{
    CollNet, CollNetComm, CollNetContext, CollNetListener, CollNetSegment, DataType, ReduceOp,
};
use hawser_plugin::env::{Env, EnvContext};
use hawser_plugin::learner::{Learner, Measured, Proposal};
use hawser_plugin::net::{HANDLE_BYTES, Handle, NetProperties, Region, Registration, Request};
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, Profiler, ProfilerConfig, ProfilerContext, StateArgs,
};
use hawser_plugin::tuner::{
    Agreement, Answer, Candidate, Question, SettingsFile, Tuner, TunerConfig, TunerContext,
};
use hawser_plugin::{Error, ErrorKind, Log, Result, Subsys};

hawser_plugin::export_plugin! {
    net: loopback::Loopback::default(),
    collnet: Alone,
    tuner: Halver(String::new()),
    profiler: Counter::default(),
    env: Fixed,
}

/// A collnet of one rank: what it reduces is what it sent.
struct Alone;

impl CollNet for Alone {
    fn name(&self) -> &str {
        "alone"
    }

    fn open(&self, comm_id: u64, log: &Log) -> Result<Box<dyn CollNetContext>> {
        log.info(Subsys::NET, format!("alone in {comm_id}"));
        Ok(Box::new(Alone))
    }
}

impl CollNetContext for Alone {
    fn devices(&self) -> Result<u32> {
        Ok(1)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        Ok(NetProperties::new("alone", device))
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn CollNetListener>)> {
        Ok(([device as u8; HANDLE_BYTES], Box::new(Alone)))
    }

    fn supports(&self, dtype: DataType, op: ReduceOp) -> Result<bool> {
        Ok(dtype == DataType::Uint8 && op == ReduceOp::Sum)
    }
}

impl CollNetListener for Alone {
    fn connect(self: Box<Self>, handles: &[Handle], rank: u32) -> Result<Box<dyn CollNetComm>> {
        if handles.len() != 1 || rank != 0 {
            return Err(Error::new(ErrorKind::InvalidUsage, format!("{} ranks, one is all", handles.len())));
        }
        Ok(self)
    }
}

impl CollNetComm for Alone {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        Ok(Registration(region.addr ^ region.bytes as u64))
    }

    fn deregister(&mut self, _registration: Registration) -> Result<()> {
        Ok(())
    }

    unsafe fn iall_reduce(
        &mut self,
        send: (u64, Registration),
        recv: (u64, Registration),
        count: usize,
        dtype: DataType,
        _op: ReduceOp,
    ) -> Result<Option<Request>> {
        let bytes = count * dtype.size();
        // SAFETY: our caller keeps both buffers valid.
        unsafe { std::ptr::copy(send.0 as *const u8, recv.0 as *mut u8, bytes) };
        Ok(Some(Request(bytes as u64)))
    }

    unsafe fn iall_gather(
        &mut self,
        _send: (u64, Registration),
        recv: &[CollNetSegment],
        bytes_per_rank: usize,
        window: (usize, usize),
    ) -> Result<Option<Request>> {
        let sum: usize = recv.iter().map(|segment| segment.bytes).sum();
        Ok(Some(Request((sum + bytes_per_rank + window.0 + window.1) as u64)))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        Ok(Some(request.0 as usize))
    }
}

/// Halves all times, orders the last candidate that is held back, and leaves out what takes 99 µs. For 13
/// bytes it panics, to show what happens then. Holds the name of its communicator.
struct Halver(String);

impl Tuner for Halver {
    fn name(&self) -> &str {
        "halver"
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        if config.ranks == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a communicator without ranks"));
        }
        config.log.stress(format!("{} ranks", config.ranks));
        Ok(Box::new(Halver(format!("{} {}", config.name, config.programs.join("+")))))
    }

    fn open_with(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<Box<dyn TunerContext>> {
        let names: Vec<String> = files.iter().map(|file| format!("{}={}", file.name, file.text)).collect();
        if names.is_empty() {
            return Err(Error::new(ErrorKind::InvalidUsage, "no files"));
        }
        Ok(Box::new(Halver(format!("{} {}", config.name, names.join("+")))))
    }

    fn learner(&self, config: &TunerConfig) -> Result<Option<Box<dyn Learner>>> {
        Ok((config.ranks > 2).then(|| Box::new(Teller(Vec::new())) as Box<dyn Learner>))
    }
}

/// Proposes what it was told. It panics when it hears of nothing, to show what happens then.
struct Teller(Vec<String>);

impl Learner for Teller {
    fn rebase(&mut self, files: &[SettingsFile], now: Duration) {
        self.0.push(format!("{files:?} {now:?}"));
    }

    fn measured(&mut self, measured: &Measured, now: Duration) {
        self.0.push(format!("{measured:?} {now:?}"));
    }

    fn stressed(&mut self, what: &str, now: Duration) {
        assert_ne!(what, "", "something has happened");
        self.0.push(format!("{what} {now:?}"));
    }

    fn propose(&mut self, _: Duration) -> Option<Proposal> {
        let text = self.0.pop()?;
        Some(Proposal { why: "told".into(), files: vec![SettingsFile { name: "a".into(), text }] })
    }

    fn settled(&mut self, outcome: std::result::Result<u64, String>, now: Duration) {
        self.0.push(format!("{outcome:?} {now:?}"));
    }
}

impl TunerContext for Halver {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        assert_ne!(question.bytes, 13, "an unlucky size");
        candidates.iter_mut().filter(|c| c.us == 99.0).for_each(Candidate::leave_out);
        candidates.iter_mut().for_each(|c| c.estimate(c.us / 2.0));
        let held = candidates.iter().rposition(Candidate::is_held_back);
        Ok(held.map_or_else(Answer::default, Answer::ordered).with_channels(question.pipelined))
    }

    fn chunk_bytes(&self, question: &Question, chosen: &Candidate<'_>) -> Result<Option<u64>> {
        let channels = chosen.decision.channels;
        Ok((channels > 1).then(|| question.bytes / u64::from(channels)))
    }

    fn agreement(&self) -> Option<Agreement> {
        Some(Agreement { digest: u64::MAX - 1, source: format!("halves of {}", self.0) })
    }

    fn wants_every_collective(&self) -> bool {
        true
    }

    fn wants_in_graph(&self) -> bool {
        true
    }

    fn trial(&self, operation: u64) -> Option<u32> {
        operation.is_multiple_of(2).then_some(operation as u32)
    }

    fn wants_times(&self) -> bool {
        true
    }

    fn why(&self, question: &Question, candidates: &[Candidate<'_>]) -> Result<String> {
        if question.bytes == 1 {
            return Ok(format!("{candidates:?}"));
        }
        let Question { data_type, op, in_graph, trial, rule, .. } = question;
        Ok(format!("{data_type:?} {op:?} {in_graph:?} {trial:?} {rule:?} {}", candidates.len()))
    }
}

/// Numbers events. It panics in the state 99, to show what happens then.
#[derive(Default)]
struct Counter(AtomicU64);

impl Profiler for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        let name = config.comm_name.as_deref().unwrap_or("no name");
        config.log.info(Subsys::PROFILE, format!("{name}: rank {} of {}", config.rank, config.ranks));
        Ok(Box::new(Self::default()))
    }
}

impl ProfilerContext for Counter {
    fn mask(&self) -> EventMask {
        EventMask(EventMask::COLL.0 | EventMask::GROUP.0)
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        let wanted = self.mask().contains(event.what.kind());
        wanted.then(|| EventHandle(self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn stop(&self, _event: EventHandle) {}

    fn record(&self, _event: EventHandle, state: EventState, _args: StateArgs) {
        assert_ne!(state.0, 99, "an unlucky state");
    }
}

/// One setting.
struct Fixed;

impl Env for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn open(&self, version: (u8, u8, u8), log: &Log) -> Result<Box<dyn EnvContext>> {
        log.info(Subsys::ENV, format!("for NCCL {version:?}"));
        Ok(Box::new(Fixed))
    }
}

impl EnvContext for Fixed {
    fn value(&self, name: &str) -> Option<String> {
        (name == "NCCL_DEBUG").then(|| "INFO".to_owned())
    }
}
