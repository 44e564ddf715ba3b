//! One end of a connection: drives its state machine with what its queue pairs and its control channel say.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_plugin::host::NetProfiler;
use hawser_plugin::{Error, Level, Log, Result, Subsys};
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::config::Settings;
use crate::control_channel::{ControlChannel, End};
use crate::handshake::Block;
use crate::machine::Machine;
use crate::pairs::pairs;
use crate::port::Port;
use crate::profile::Event;
use crate::proto::rail::Spec;
use crate::proto::rails::{Fault, Role};
use crate::proto::wire::Message;
use crate::proto::{Action, Epoch, Path, Rules, Time, Why, Write};
use crate::rail_qp::{RailQp, Seen, queue_depth};
use crate::stats::RailCounters;
use crate::verbs::{Cq, Span, Wc};

/// The control channel is looked at this often while all is well.
const CONTROL_PERIOD: Duration = Duration::from_micros(500);
/// Rails that are not up when the first one is get this long.
const LATE: Duration = Duration::from_millis(500);

/// Memory of a message that is being sent.
pub(crate) struct Job {
    /// The address of the message.
    pub addr: u64,
    /// Keys per port of this end.
    pub lkeys: Vec<u32>,
    /// The address of the receive at the peer.
    pub to: u64,
    /// Keys per port of the peer.
    pub rkeys: Vec<u32>,
    /// The message fills its receive.
    pub full: bool,
    /// The host's event that holds those of the chunks; 0 = none.
    pub profile: u64,
}

/// A chunk that was posted.
struct Flight {
    wr: u64,
    at: Time,
    _event: Option<Event>,
}

/// The parts that a connection is made of.
pub(crate) struct Parts {
    /// The ports of this end.
    pub ports: Vec<Arc<Port>>,
    /// The tier of each port; ports of a higher tier are spare ones.
    pub tiers: Vec<u8>,
    /// The TCP connection to the peer.
    pub control: ControlChannel,
    /// The peer's description of itself.
    pub peer: Block,
    /// The settings of the plugin.
    pub settings: Settings,
    /// The traffic class of all packets.
    pub traffic_class: u8,
    /// The host's profiler, if it has one.
    pub profiler: Option<NetProfiler>,
    /// The host's log.
    pub log: Log,
}

/// One end of a connection: its state machine, queue pairs and control channel.
pub(crate) struct Conn<M> {
    /// The state machine of this end.
    pub machine: M,
    rail_qps: Vec<RailQp>,
    /// One per port, made when it is needed: a dead device has none.
    queues: Vec<Option<Box<dyn Cq>>>,
    /// Ports that do not reach memory of this connection.
    barred: Vec<bool>,
    ports: Vec<Arc<Port>>,
    generations: Vec<u64>,
    addresses: Vec<Option<[u8; 16]>>,
    names: Vec<String>,
    counters: Vec<Arc<RailCounters>>,
    /// Chunks under way on each rail.
    flights: Vec<VecDeque<Flight>>,
    profiler: Option<NetProfiler>,
    control: ControlChannel,
    control_at: Instant,
    settings: Settings,
    class: u8,
    log: Log,
    name: String,
    clock: Clock,
    up_at: Option<Instant>,
    /// The memory of messages that are being sent, by slot.
    pub jobs: FxHashMap<u64, Job>,
    error: Option<Error>,
    is_closed: bool,
    seen: Vec<Wc>,
}

impl<M: Machine> Conn<M> {
    /// A connection whose rails are not set up yet; `make` makes its state machine.
    pub fn new(parts: Parts, role: Role, make: impl FnOnce(&[Spec], Rules) -> M) -> Self {
        let Parts { ports, tiers, control, peer, settings, traffic_class: class, profiler, log } = parts;
        let mine = ports.len();
        // The sender's choice counts at both ends.
        let pairs: Vec<(usize, usize)> = match role {
            Role::Sender => pairs(mine, peer.ports.len(), settings.pairing, usize::from(settings.qps)),
            Role::Receiver => {
                let swapped = pairs(peer.ports.len(), mine, peer.pairing, usize::from(peer.qps));
                swapped.into_iter().map(|(remote, local)| (local, remote)).collect()
            }
        };
        let spec = |&(local, remote): &(usize, usize)| Spec {
            weight: ports[local].speed_mbps.min(peer.ports[remote].speed_mbps).max(1),
            tier: tiers[local].max(peer.ports[remote].tier),
            usable: ports[local].state().is_usable(),
        };
        let specs: Vec<Spec> = pairs.iter().map(spec).collect();
        let rail = |&(l, r): &(usize, usize)| format!("{}–{}", ports[l].name, peer.ports[r].name);
        let names: Vec<String> = pairs.iter().map(rail).collect();
        let name = role.describe(control.peer.ip());
        Self {
            machine: make(&specs, rules(&settings, &peer)),
            rail_qps: pairs.into_iter().map(|(local, remote)| RailQp::new(local, remote)).collect(),
            generations: ports.iter().map(|port| port.generation()).collect(),
            addresses: ports.iter().map(|port| address(port)).collect(),
            counters: names.iter().map(|rail| RailCounters::new(&name, rail)).collect(),
            flights: names.iter().map(|_| VecDeque::new()).collect(),
            profiler,
            name,
            queues: ports.iter().map(|_| None).collect(),
            barred: vec![false; ports.len()],
            ports,
            names,
            control,
            control_at: Instant::now(),
            clock: Clock::new(settings.silence / 4),
            settings,
            class,
            log,
            up_at: None,
            jobs: FxHashMap::default(),
            error: None,
            is_closed: false,
            seen: Vec::new(),
        }
    }

    /// The ports of this end.
    pub fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// A port does not reach memory of this connection: it goes on without.
    pub fn bar(&mut self, at: usize, errno: i32) {
        if std::mem::replace(&mut self.barred[at], true) {
            return;
        }
        let reason = std::io::Error::from_raw_os_error(errno);
        let text = format!("{} cannot register memory ({reason}) and is left out", self.ports[at].name);
        self.log.warn(format!("IB: {}: {text}", self.name));
        let now = self.now();
        for rail in 0..self.rail_qps.len() {
            if self.rail_qps[rail].local == at {
                self.machine.rails().usable(rail as u8, false, verbs(errno), now);
            }
        }
        self.act();
    }

    /// The time as the state machine counts it.
    pub fn now(&mut self) -> Time {
        self.clock.read(Instant::now()).as_micros() as Time
    }

    /// True if data may flow: all rails are up, or one is and the others are late.
    pub fn is_up(&mut self) -> bool {
        let all = &self.machine.rails().all;
        if !all.iter().any(|rail| rail.is_up()) {
            return false;
        }
        let ready = all.iter().all(|rail| rail.is_up() || !rail.usable);
        let since = *self.up_at.get_or_insert_with(Instant::now);
        ready || since.elapsed() > LATE
    }

    /// # Errors
    /// Why the connection failed.
    pub fn check(&self) -> Result<()> {
        self.error.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Moves everything that can be moved.
    ///
    /// # Errors
    /// Why the connection failed.
    pub fn progress(&mut self) -> Result<()> {
        self.check()?;
        if self.is_closed {
            return Ok(());
        }
        self.look_at_ports();
        self.look_at_control();
        self.connect();
        self.poll();
        self.fence();
        let now = self.now();
        self.machine.tick(now);
        self.act();
        if let Some(fault) = self.machine.rails().fault.clone() {
            return Err(self.fail(&fault));
        }
        Ok(())
    }

    fn look_at_ports(&mut self) {
        for at in 0..self.ports.len() {
            let generation = self.ports[at].generation();
            if std::mem::replace(&mut self.generations[at], generation) == generation {
                continue;
            }
            let state = self.ports[at].state();
            let is_usable = state.is_usable() && !self.barred[at];
            let address = address(&self.ports[at]);
            let moved = std::mem::replace(&mut self.addresses[at], address) != address;
            let now = self.now();
            for rail in 0..self.rail_qps.len() {
                if self.rail_qps[rail].local == at {
                    let why = if state.fatal { Why::Device } else { Why::Port };
                    let port = if is_usable { "usable" } else { "not usable" };
                    self.trace(
                        rail,
                        &format!("has a port that is {port}{}", if moved { ", elsewhere" } else { "" }),
                    );
                    let rails = self.machine.rails();
                    if moved || !is_usable {
                        rails.usable(rail as u8, false, why, now);
                    }
                    rails.usable(rail as u8, is_usable, why, now);
                }
            }
        }
    }

    fn look_at_control(&mut self) {
        let calm = self.machine.rails().all.iter().all(|rail| rail.is_up());
        if calm && self.control_at.elapsed() < CONTROL_PERIOD {
            return;
        }
        self.control_at = Instant::now();
        let now = self.now();
        match self.control.turn() {
            Ok(messages) => {
                for message in messages {
                    self.machine.message(Path::ControlChannel, message, now);
                }
            }
            Err(text) => drop(self.machine.rails().fault.get_or_insert(Fault::Protocol(text))),
        }
        let Some(end) = self.control.end() else { return };
        let left = self.machine.has_peer_left();
        let rails = self.machine.rails();
        if end == End::Closed && !left {
            rails.fault.get_or_insert(Fault::Gone);
        } else if std::mem::replace(&mut rails.control, false) && !left {
            let text = "the control channel is lost; rails are set up again over other rails only";
            self.log.info(Subsys::NET, format!("IB: {}: {text}", self.name));
        }
    }

    fn poll(&mut self) {
        let now = self.now();
        for at in 0..self.queues.len() {
            let Some(queue) = &mut self.queues[at] else { continue };
            let mut seen = std::mem::take(&mut self.seen);
            seen.clear();
            if queue.poll(&mut seen).is_err() {
                for rail in 0..self.rail_qps.len() {
                    if self.rail_qps[rail].local == at {
                        self.machine.rails().usable(rail as u8, false, Why::Device, now);
                    }
                }
            }
            for wc in &seen {
                let fits = |rail_qp: &RailQp| rail_qp.local == at && rail_qp.has_pair(wc.qp);
                if let Some(rail) = self.rail_qps.iter().position(fits) {
                    self.take(rail, wc, now);
                }
            }
            self.seen = seen;
        }
    }

    fn take(&mut self, rail: usize, wc: &Wc, now: Time) {
        let rail_qp = &mut self.rail_qps[rail];
        let (epoch, stopping) = (rail_qp.epoch(), rail_qp.is_stopping());
        let number = rail as u8;
        match rail_qp.seen(wc) {
            Seen::Arrived { imm, bytes } => self.machine.arrived(number, epoch, imm, bytes, now),
            Seen::Control(bytes) => match Message::decode(&bytes) {
                Ok(message) => self.machine.message(Path::Rail(number, epoch), message, now),
                Err(text) => drop(self.machine.rails().fault.get_or_insert(Fault::Protocol(text))),
            },
            Seen::Sent(wr) => {
                self.landed(rail, wr, now);
                self.machine.completed(number, epoch, wr, now);
            }
            Seen::Failed(status) if !stopping => {
                self.machine.rails().fail(number, epoch, Why::Completion(status.min(63) as u8), now);
            }
            Seen::Failed(_) | Seen::Nothing => {}
        }
    }

    /// A queue pair completes in order: chunks up to this work request are over.
    fn landed(&mut self, rail: usize, wr: u64, now: Time) {
        while let Some(flight) = self.flights[rail].pop_front_if(|flight| flight.wr <= wr) {
            self.counters[rail].took(now.saturating_sub(flight.at));
        }
    }

    /// Takes the pairs that were connected meanwhile.
    fn connect(&mut self) {
        for rail in 0..self.rail_qps.len() {
            let Some(outcome) = self.rail_qps[rail].connected() else { continue };
            let (epoch, now, number) = (self.rail_qps[rail].epoch(), self.now(), rail as u8);
            self.trace(rail, &format!("is connected, epoch {epoch}: {}", outcome.is_ok()));
            let rails = self.machine.rails();
            match outcome {
                Ok(Some(answer)) => rails.made(number, epoch, answer, now),
                Ok(None) => rails.connected(number, epoch, now),
                Err(errno) => rails.fail(number, epoch, verbs(errno), now),
            }
        }
    }

    fn fence(&mut self) {
        for rail in 0..self.rail_qps.len() {
            if let Some(took) = self.rail_qps[rail].is_fenced() {
                let (epoch, now) = (self.rail_qps[rail].epoch(), self.now());
                self.trace(rail, &format!("is fenced after {took:.1?}"));
                self.flights[rail].clear();
                self.machine.fenced(rail as u8, epoch, now);
            }
        }
    }

    /// Does what the machine wants.
    pub fn act(&mut self) {
        loop {
            let actions = self.machine.rails().take();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.perform(action);
            }
        }
    }

    fn trace(&self, rail: usize, text: &str) {
        let text = format!("IB: {}: rail {} {text}", self.name, self.names[rail]);
        self.log.line(Level::Trace, Subsys::NET, &text);
    }

    fn perform(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Make { rail, epoch, peer } => {
                let what = if peer.is_some() { "answers" } else { "is offered" };
                self.trace(usize::from(rail), &format!("{what}, epoch {epoch}"));
                let local = self.rail_qps[usize::from(rail)].local;
                let rail_qps = self.rail_qps.iter().filter(|rail_qp| rail_qp.local == local).count();
                let (rail_qp, settings) = (&mut self.rail_qps[usize::from(rail)], &self.settings);
                let port = &self.ports[local];
                let queue = match &mut self.queues[local] {
                    Some(queue) => Ok(queue),
                    none => port.device.queue(queue_depth(rail_qps)).map(|queue| none.insert(queue)),
                };
                let made = queue.and_then(|queue| rail_qp.make(epoch, port, &mut **queue, settings));
                let outcome = made.and_then(|blob| match peer {
                    Some(peer) => {
                        rail_qp.connect(&peer, port, settings, self.class, Some(blob)).map(|()| None)
                    }
                    None => Ok(Some(blob)),
                });
                match outcome {
                    Ok(Some(blob)) => self.machine.rails().made(rail, epoch, blob, now),
                    Ok(None) => {}
                    Err(errno) => self.machine.rails().fail(rail, epoch, verbs(errno), now),
                }
            }
            Action::Connect { rail, epoch, peer } => {
                self.trace(usize::from(rail), &format!("is answered, epoch {epoch}"));
                let rail_qp = &mut self.rail_qps[usize::from(rail)];
                let port = &self.ports[rail_qp.local];
                if let Err(errno) = rail_qp.connect(&peer, port, &self.settings, self.class, None) {
                    self.machine.rails().fail(rail, epoch, verbs(errno), now);
                }
            }
            Action::Fence { rail, .. } => self.rail_qps[usize::from(rail)].stop(),
            Action::Write(write) => self.write(&write, now),
            Action::Send { path: Path::ControlChannel, message, .. } => self.control.send(&message),
            Action::Send { path: Path::Rail(rail, epoch), wr, message } => {
                if let Err(errno) = self.rail_qps[usize::from(rail)].send(wr, &message.encode()) {
                    self.machine.rails().fail(rail, epoch, verbs(errno), now);
                }
            }
            Action::Note { rail, epoch, up, why } => self.note(rail, epoch, up, why),
        }
    }

    fn write(&mut self, write: &Write, now: Time) {
        let rail_qp = &mut self.rail_qps[usize::from(write.rail)];
        let Some(job) = self.jobs.get(&write.slot) else { return };
        let port = &self.ports[rail_qp.local];
        let adaptive = self.settings.adaptive_routing.unwrap_or(!port.state().info.ethernet);
        let split = adaptive && job.full && write.len > self.settings.ar_threshold;
        let lkey = job.lkeys[rail_qp.local];
        let rkey = job.rkeys.get(rail_qp.remote).copied().unwrap_or(0);
        let span = Span { addr: job.addr + write.offset, len: write.len as u32, lkey };
        let rail = usize::from(write.rail);
        self.counters[rail].wrote(write.len);
        let start = |profiler: &NetProfiler| {
            let place = (rail_qp.local, rail_qp.pair_number());
            Event::start(*profiler, job.profile, place, write.wr, write.len)
        };
        let event = self.profiler.as_ref().filter(|_| job.profile != 0).and_then(start);
        self.flights[rail].push_back(Flight { wr: write.wr, at: now, _event: event });
        // SAFETY: the host leaves the memory alone until its request is over, which is when no rail reads it
        // (rule 4 of `proto`), or until the connection has failed or is closed, which destroys the queue
        // pairs.
        let posted =
            unsafe { rail_qp.write(write.wr, span, (job.to + write.offset, rkey), write.imm, split) };
        if let Err(errno) = posted {
            self.machine.rails().fail(write.rail, write.epoch, verbs(errno), now);
        }
    }

    fn note(&mut self, rail: u8, epoch: Epoch, up: bool, why: Why) {
        let rails = &self.names[usize::from(rail)];
        let text = match (up, epoch) {
            (true, 1) => format!("rail {rails} is up"),
            (true, _) => format!("rail {rails} is back"),
            (false, _) => format!("rail {rails} is stopped: {why}"),
        };
        self.counters[usize::from(rail)].changed(up);
        let text = format!("IB: {}: {text}", self.name);
        if up {
            return self.log.info(Subsys::NET, text);
        }
        self.log.stress(text);
        self.log.count("IB", local_port(rails), "losses", 1);
    }

    /// Adds to the counters what the machine counted.
    pub fn count(&mut self) {
        let rails = &self.machine.rails().all;
        for ((rail, counters), name) in rails.iter().zip(&self.counters).zip(&self.names) {
            match counters.lost(rail.lost) {
                0 => {}
                new => self.log.count("IB", local_port(name), "resent_chunks", new),
            }
        }
    }

    /// The connection is of no use any more: the host's memory is its own again.
    fn fail(&mut self, fault: &Fault) -> Error {
        self.destroy();
        let text = self.describe(fault);
        if !matches!(fault, Fault::Peer(_) | Fault::Left | Fault::Gone) {
            self.control.send(&Message::Fail(text.clone()));
            let _ = self.control.turn();
        }
        let error = Error::remote(text).context(&self.name);
        self.log.info(Subsys::NET, format!("IB: {error}"));
        self.error = Some(error.clone());
        error
    }

    /// The host breaks the connection with this sentence.
    pub fn break_off(&mut self, error: Error) -> Error {
        self.destroy();
        self.control.send(&Message::Fail(error.text.clone()));
        let _ = self.control.turn();
        self.error = Some(error.clone());
        error
    }

    fn describe(&mut self, fault: &Fault) -> String {
        let names = &self.names;
        let rails = self.machine.rails();
        match fault {
            Fault::NoRail => {
                let reasons = names.iter().zip(&rails.all).filter(|(_, rail)| !rail.is_up());
                let reasons: Vec<String> =
                    reasons.map(|(name, rail)| format!("{name}: {}", rail.why)).collect();
                format!(
                    "no rail was up for {} s ({}); look at cables, switches and `ibv_devinfo` of both hosts, \
                     or raise HAWSER_IB_DEADLINE",
                    self.settings.deadline.as_secs(),
                    reasons.join("; ")
                )
            }
            Fault::Rail(rail) => format!(
                "rail {} failed ({}), and failover is off (NCCL_ENABLE_FAULT_TOLERANCE)",
                names[usize::from(*rail)],
                rails.all[usize::from(*rail)].why
            ),
            Fault::Protocol(text) => format!("the peer speaks nonsense: {text}"),
            Fault::Peer(text) => format!("the peer has failed: {text}"),
            Fault::Left => "the peer has closed the connection with requests unfinished".into(),
            Fault::Gone => "the process of the peer is gone".into(),
        }
    }

    /// The host drops its end: nothing of its memory is touched after this.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.destroy();
        self.sum_up();
        if self.error.is_none() {
            if let Some(words) = self.machine.last_words() {
                self.control.send(&words);
            }
            self.control.send(&Message::Bye);
        }
        let _ = self.control.turn();
    }

    /// True if there is no queue pair on a port, so that nothing is on its way through it.
    pub fn is_quiet(&self, port: usize) -> bool {
        self.rail_qps.iter().all(|rail_qp| rail_qp.local != port || rail_qp.is_empty())
    }

    /// Nothing of the host's memory is touched after this.
    fn destroy(&mut self) {
        self.rail_qps.iter_mut().for_each(RailQp::destroy);
        self.flights.iter_mut().for_each(VecDeque::clear);
    }

    /// One line per rail that has sent anything.
    fn sum_up(&mut self) {
        self.count();
        for rail in self.counters.iter().map(|counters| counters.read()).filter(|rail| rail.chunks > 0) {
            self.log.info(Subsys::NET, format!("IB: {}: rail {}: {rail}", self.name, rail.rail));
        }
    }

    /// Tells whether a closed end has said all that it has to say.
    pub fn is_finished(&mut self) -> bool {
        self.control.finish()
    }

    /// Tells whether somebody waits for this end, or it is not settled.
    pub fn is_busy(&mut self) -> bool {
        self.machine.is_busy()
            || self.machine.rails().all.iter().any(|rail| !rail.is_up() || !rail.posted.is_empty())
    }
}

/// The rules of the state machine, from the settings of both ends.
fn rules(settings: &Settings, peer: &Block) -> Rules {
    Rules {
        silence: settings.silence.as_micros() as Time,
        deadline: settings.deadline.as_micros() as Time,
        most_chunk: settings.chunk,
        strikes: settings.flaps,
        recovery: settings.recovery,
        failover: settings.failover && peer.failover,
        ..Rules::default()
    }
}

fn address(port: &Port) -> Option<[u8; 16]> {
    port.state().gid.map(|(_, gid)| gid.bytes)
}

fn verbs(errno: i32) -> Why {
    Why::Verbs(errno.clamp(0, 127) as u8)
}

/// The error for a call of the verbs library that failed.
pub(crate) fn system(what: String, errno: i32) -> Error {
    Error::system(what, std::io::Error::from_raw_os_error(errno))
}
/// The name of the local port of a rail, which is called `LOCAL–REMOTE`.
fn local_port(rail: &str) -> &str {
    rail.split('–').next().unwrap_or(rail)
}
