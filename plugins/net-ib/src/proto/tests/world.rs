//! A network between a sender and a receiver that does everything that RC queue pairs and TCP may do, one
//! move at a time, and an oracle that knows what must never happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::proto::imm::Imm;
use crate::proto::rail::Spec;
use crate::proto::rails::Fault;
use crate::proto::rx::Rx;
use crate::proto::tx::Tx;
use crate::proto::wire::{Entry, Message};
use crate::proto::{Action, Epoch, Path, Rules, Time, Why, Write};

pub const SENDER: usize = 0;
pub const RECEIVER: usize = 1;

/// A queue pair at one end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Qp {
    connected: bool,
    /// The driver was asked to fence.
    closing: bool,
}

/// The packets that one queue pair sends to its peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct RailQp {
    /// Posted or on the wire, not landed.
    flying: VecDeque<Packet>,
    /// Landed; the sender's completion is to come.
    acks: VecDeque<Packet>,
    /// Landed; the receiver's completion is to come.
    landed: VecDeque<Packet>,
    /// The queue pair that sends has broken: nothing completes any more, what is flying may still land.
    broken: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Packet {
    wr: u64,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Data { slot: u64, offset: u64, len: u64, imm: u32 },
    Control(Message),
}

/// One step of the world. The first four kinds are the network's progress, the rest are faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// The oldest flying packet of a rail lands, or is refused by the other end.
    Land(u8, Epoch, usize),
    /// The receiving end of a rail polls a completion.
    Poll(u8, Epoch, usize),
    /// The sending end of a rail polls a completion.
    Ack(u8, Epoch, usize),
    /// A message of the control channel arrives at this end.
    ControlChannel(usize),
    /// The driver of an end has fenced; completions that it did not poll are lost if the flag says so.
    Fenced(u8, usize, bool),
    /// Everything of a rail that still flies is dropped for good.
    Drop(u8, Epoch, usize),
    /// A queue pair reports a completion error.
    Break(u8, Epoch, usize),
    /// A completion is delivered a second time.
    Double(u8, Epoch, usize),
    /// A port of an end goes down (false) or comes back.
    Port(u8, usize, bool),
}

/// A sender, a receiver and the network between them, all of which a test moves step by step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub tx: Tx,
    pub rx: Rx,
    pub now: Time,
    qps: BTreeMap<(u8, Epoch, usize), Qp>,
    rail_qps: BTreeMap<(u8, Epoch, usize), RailQp>,
    control: [VecDeque<Message>; 2],
    /// Ports that are up, per end and rail.
    pub ports: [Vec<bool>; 2],
    /// Rails on which packets of a direction vanish silently, per end that sends.
    pub mute: [Vec<bool>; 2],
    /// The control channel loses everything.
    pub control_lost: bool,
    /// Messages to be sent: groups of sizes; a group is one receive.
    pub plan: Vec<Vec<u64>>,
    posted: usize,
    sent: usize,
    /// Slot of each message that was begun, with its size.
    begun: BTreeMap<u64, u64>,
    pub sent_over: BTreeSet<u64>,
    pub received: usize,
    receives: VecDeque<(u64, usize)>,
    /// The bytes in the receiver's memory: slot, offset -> length.
    memory: BTreeMap<(u64, u64), u64>,
    /// Slots that the host got back.
    returned: BTreeSet<u64>,
    in_flight: usize,
}

impl World {
    pub fn new(rails: &[Spec], rules: &Rules, plan: Vec<Vec<u64>>, in_flight: usize) -> Self {
        let count = rails.len();
        Self {
            tx: Tx::new(rails, rules.clone(), 0),
            rx: Rx::new(rails, rules.clone(), 0),
            now: 0,
            qps: BTreeMap::new(),
            rail_qps: BTreeMap::new(),
            control: [VecDeque::new(), VecDeque::new()],
            ports: [vec![true; count], vec![true; count]],
            mute: [vec![false; count], vec![false; count]],
            control_lost: false,
            plan,
            posted: 0,
            sent: 0,
            begun: BTreeMap::new(),
            sent_over: BTreeSet::new(),
            received: 0,
            receives: VecDeque::new(),
            memory: BTreeMap::new(),
            returned: BTreeSet::new(),
            in_flight,
        }
    }

    pub fn is_over(&self) -> bool {
        let messages: usize = self.plan.iter().map(Vec::len).sum();
        self.received == self.plan.len() && self.sent_over.len() == messages
    }

    pub fn faults(&self) -> [Option<&Fault>; 2] {
        [self.tx.rails.fault.as_ref(), self.rx.rails.fault.as_ref()]
    }

    /// Moves by which the network makes progress now.
    pub fn progress(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (&(rail, epoch, from), rail_qp) in &self.rail_qps {
            let muted = self.mute[from][usize::from(rail)] || self.mute_back(rail, from);
            let dark = !self.ports[0][usize::from(rail)] || !self.ports[1][usize::from(rail)];
            if !rail_qp.flying.is_empty() && !muted && !dark {
                moves.push(Move::Land(rail, epoch, from));
            }
            if !rail_qp.landed.is_empty() && self.is_open(rail, epoch, 1 - from) {
                moves.push(Move::Poll(rail, epoch, from));
            }
            if !rail_qp.acks.is_empty()
                && !rail_qp.broken
                && !muted
                && !dark
                && self.is_open(rail, epoch, from)
            {
                moves.push(Move::Ack(rail, epoch, from));
            }
        }
        for end in 0..2 {
            if !self.control[end].is_empty() {
                moves.push(Move::ControlChannel(end));
            }
        }
        for (&(rail, _, end), qp) in &self.qps {
            if qp.closing {
                moves.push(Move::Fenced(rail, end, false));
            }
        }
        moves
    }

    /// A direction that is cut one way still lets the other one land, but no acknowledgement comes back.
    fn mute_back(&self, rail: u8, from: usize) -> bool {
        self.mute[1 - from][usize::from(rail)] && self.mute[from][usize::from(rail)]
    }

    /// Faults that may happen now.
    pub fn faults_now(&self, may_double: bool) -> Vec<Move> {
        let mut moves = Vec::new();
        for (&(rail, epoch, from), rail_qp) in &self.rail_qps {
            if self.is_open(rail, epoch, from) && !rail_qp.broken && self.is_connected(rail, epoch, from) {
                moves.push(Move::Break(rail, epoch, from));
            }
            if may_double && rail_qp.landed.front().is_some() && self.is_open(rail, epoch, 1 - from) {
                moves.push(Move::Double(rail, epoch, from));
            }
        }
        for (&(rail, _, end), qp) in &self.qps {
            if qp.closing {
                moves.push(Move::Fenced(rail, end, true));
            }
        }
        moves
    }

    /// The moves by which packets vanish that still fly after their sender is fenced.
    pub fn drops(&self) -> Vec<Move> {
        let dead = |&(&(rail, epoch, from), rail_qp): &(&(u8, Epoch, usize), &RailQp)| {
            !rail_qp.flying.is_empty() && (rail_qp.broken || !self.is_open(rail, epoch, from))
        };
        self.rail_qps
            .iter()
            .filter(dead)
            .map(|(&(rail, epoch, from), _)| Move::Drop(rail, epoch, from))
            .collect()
    }

    /// Tells whether the packet that lands next on a rail is a chunk.
    pub fn carries_data(&self, rail: u8, epoch: Epoch) -> bool {
        let next = self.rail_qps.get(&(rail, epoch, SENDER)).and_then(|rail_qp| rail_qp.flying.front());
        next.is_some_and(|packet| matches!(packet.what, What::Data { .. }))
    }

    fn is_open(&self, rail: u8, epoch: Epoch, end: usize) -> bool {
        self.qps.contains_key(&(rail, epoch, end))
    }

    fn is_connected(&self, rail: u8, epoch: Epoch, end: usize) -> bool {
        self.qps.get(&(rail, epoch, end)).is_some_and(|qp| qp.connected)
    }

    pub fn step(&mut self, step: Move) {
        match step {
            Move::Land(rail, epoch, from) => self.land(rail, epoch, from),
            Move::Poll(rail, epoch, from) => {
                let packet = self.rail_qp(rail, epoch, from).landed.pop_front().unwrap();
                self.arrive(rail, epoch, from, packet);
            }
            Move::Double(rail, epoch, from) => {
                let packet = self.rail_qp(rail, epoch, from).landed.front().cloned().unwrap();
                self.arrive(rail, epoch, from, packet);
            }
            Move::Ack(rail, epoch, from) => {
                let packet = self.rail_qp(rail, epoch, from).acks.pop_front().unwrap();
                match from {
                    SENDER => self.tx.completed(rail, epoch, packet.wr, self.now),
                    _ => self.rx.completed(rail, epoch, packet.wr, self.now),
                }
            }
            Move::ControlChannel(end) => {
                let message = self.control[end].pop_front().unwrap();
                self.tell(end, Path::ControlChannel, message);
            }
            Move::Fenced(rail, end, lossy) => self.fence(rail, end, lossy),
            Move::Drop(rail, epoch, from) => self.rail_qp(rail, epoch, from).flying.clear(),
            Move::Break(rail, epoch, from) => {
                self.rail_qp(rail, epoch, from).broken = true;
                self.fail(from, rail, epoch, Why::Completion(12));
            }
            Move::Port(rail, end, up) => self.port(rail, end, up),
        }
        self.turn();
    }

    /// The oldest packet reaches the other end: its memory changes if its queue pair is of this epoch.
    fn land(&mut self, rail: u8, epoch: Epoch, from: usize) {
        let taken = self.is_connected(rail, epoch, 1 - from);
        let packet = self.rail_qp(rail, epoch, from).flying.pop_front().unwrap();
        if !taken {
            // Nobody acknowledges: the sender's retries run out.
            self.rail_qp(rail, epoch, from).flying.clear();
            if self.is_open(rail, epoch, from) && !self.rail_qp(rail, epoch, from).broken {
                self.rail_qp(rail, epoch, from).broken = true;
                self.fail(from, rail, epoch, Why::Completion(12));
            }
            return;
        }
        if let What::Data { slot, offset, len, .. } = packet.what {
            assert!(
                !self.returned.contains(&slot),
                "a late write landed in slot {slot}, which the host has back"
            );
            self.memory.insert((slot, offset), len);
        }
        let rail_qp = self.rail_qp(rail, epoch, from);
        rail_qp.acks.push_back(packet.clone());
        rail_qp.landed.push_back(packet);
    }

    fn arrive(&mut self, rail: u8, epoch: Epoch, from: usize, packet: Packet) {
        match packet.what {
            What::Data { len, imm, .. } => self.rx.arrived(rail, epoch, imm, len, self.now),
            What::Control(message) => self.tell(1 - from, Path::Rail(rail, epoch), message),
        }
    }

    fn tell(&mut self, end: usize, path: Path, message: Message) {
        // Through the bytes, as on the wire.
        let message = Message::decode(&message.encode()).unwrap();
        match end {
            SENDER => self.tx.message(path, message, self.now),
            _ => self.rx.message(path, message, self.now),
        }
    }

    fn fail(&mut self, end: usize, rail: u8, epoch: Epoch, why: Why) {
        let rails = if end == SENDER { &mut self.tx.rails } else { &mut self.rx.rails };
        rails.fail(rail, epoch, why, self.now);
    }

    fn port(&mut self, rail: u8, end: usize, up: bool) {
        self.ports[end][usize::from(rail)] = up;
        let rails = if end == SENDER { &mut self.tx.rails } else { &mut self.rx.rails };
        rails.usable(rail, up, Why::Port, self.now);
    }

    /// The queue pair is gone: nothing lands through it any more, nothing is read for it.
    fn fence(&mut self, rail: u8, end: usize, lossy: bool) {
        let closing = self.qps.iter().find(|((r, _, e), qp)| *r == rail && *e == end && qp.closing);
        let (_, epoch, _) = *closing.unwrap().0;
        while !lossy && !self.rail_qp(rail, epoch, 1 - end).landed.is_empty() {
            let packet = self.rail_qp(rail, epoch, 1 - end).landed.pop_front().unwrap();
            self.arrive(rail, epoch, 1 - end, packet);
        }
        self.qps.remove(&(rail, epoch, end));
        self.rail_qp(rail, epoch, 1 - end).landed.clear();
        self.rail_qp(rail, epoch, end).acks.clear();
        match end {
            SENDER => self.tx.fenced(rail, epoch, self.now),
            _ => self.rx.fenced(rail, epoch, self.now),
        }
    }

    fn rail_qp(&mut self, rail: u8, epoch: Epoch, from: usize) -> &mut RailQp {
        self.rail_qps.entry((rail, epoch, from)).or_default()
    }

    /// The host and the drivers do what there is to do.
    pub fn turn(&mut self) {
        loop {
            self.host();
            self.tx.tick(self.now);
            self.rx.tick(self.now);
            let actions = [self.tx.rails.take(), self.rx.rails.take()];
            if actions.iter().all(Vec::is_empty) {
                break;
            }
            for (end, actions) in actions.into_iter().enumerate() {
                actions.into_iter().for_each(|action| self.act(end, action));
            }
        }
        self.rail_qps.retain(|&(rail, epoch, from), rail_qp| {
            let idle = rail_qp.flying.is_empty() && rail_qp.landed.is_empty() && rail_qp.acks.is_empty();
            !idle || self.qps.contains_key(&(rail, epoch, from))
        });
    }

    fn act(&mut self, end: usize, action: Action) {
        match action {
            Action::Make { rail, epoch, peer } => {
                let known = self.qps.keys().any(|&(r, _, e)| r == rail && e == end);
                assert!(!known, "a queue pair is made before the last one was fenced");
                self.qps.insert((rail, epoch, end), Qp { connected: peer.is_some(), closing: false });
                let rails = if end == SENDER { &mut self.tx.rails } else { &mut self.rx.rails };
                rails.made(rail, epoch, vec![rail], self.now);
            }
            Action::Connect { rail, epoch, .. } => {
                if let Some(qp) = self.qps.get_mut(&(rail, epoch, end)) {
                    qp.connected = true;
                }
                self.tx.rails.connected(rail, epoch, self.now);
            }
            Action::Fence { rail, epoch } => {
                let qp = self.qps.entry((rail, epoch, end)).or_default();
                assert!(!qp.closing, "a queue pair is fenced twice");
                qp.closing = true;
            }
            Action::Write(Write { rail, epoch, wr, slot, offset, len, imm }) => {
                assert!(self.is_connected(rail, epoch, end));
                let what = What::Data { slot, offset, len, imm };
                self.rail_qp(rail, epoch, end).flying.push_back(Packet { wr, what });
            }
            Action::Send { path: Path::Rail(rail, epoch), wr, message } => {
                assert!(self.is_connected(rail, epoch, end));
                self.rail_qp(rail, epoch, end).flying.push_back(Packet { wr, what: What::Control(message) });
            }
            Action::Send { path: Path::ControlChannel, message, .. } => {
                if !self.control_lost {
                    self.control[1 - end].push_back(message);
                }
            }
            Action::Note { .. } => {}
        }
    }

    /// Posts, sends and tests as a host does.
    fn host(&mut self) {
        while self.posted < self.plan.len() && self.posted - self.received < self.in_flight {
            let entries = self.plan[self.posted].iter().enumerate().map(|(tag, &bytes)| Entry {
                tag: tag as i32,
                addr: 0,
                bytes,
                keys: vec![0],
            });
            let Some(number) = self.rx.post(entries.collect(), self.now) else { break };
            self.receives.push_back((number, self.posted));
            self.posted += 1;
        }
        let order: Vec<(usize, u64)> =
            self.plan.iter().flat_map(|group| group.iter().copied().enumerate().rev()).collect();
        while let Some(&(tag, bytes)) = order.get(self.sent) {
            if self.begun.len() - self.sent_over.len() >= self.in_flight * 8 {
                break;
            }
            let Some(target) = self.tx.begin(tag as i32, bytes, self.now) else { break };
            assert!(self.begun.insert(target.slot, bytes).is_none());
            self.sent += 1;
        }
        self.test_sends();
        self.test_receives();
    }

    fn test_sends(&mut self) {
        let open = self.begun.iter().filter(|(slot, _)| !self.sent_over.contains(slot));
        for (slot, bytes) in open.map(|(&slot, &bytes)| (slot, bytes)).collect::<Vec<_>>() {
            let Some(sent) = self.tx.finish(slot) else { continue };
            assert_eq!(sent, bytes);
            for (&(rail, epoch, from), rail_qp) in &self.rail_qps {
                let is_of = |packet: &Packet| matches!(packet.what, What::Data { slot: s, .. } if s == slot);
                let reads = from == SENDER && self.is_open(rail, epoch, SENDER);
                let busy = rail_qp.flying.iter().chain(&rail_qp.acks).any(is_of);
                assert!(!reads || !busy, "slot {slot} is over and rail {rail} may still read it");
            }
            self.sent_over.insert(slot);
        }
    }

    fn test_receives(&mut self) {
        while let Some(&(number, at)) = self.receives.front() {
            let Some(sizes) = self.rx.finish(number).expect("a receive is known until it is over") else {
                break;
            };
            assert_eq!(sizes, self.plan[at]);
            let first: u64 = self.plan[..at].iter().map(|group| group.len() as u64).sum();
            for (i, &bytes) in sizes.iter().enumerate() {
                let slot = first + i as u64;
                let mut reach = 0;
                for (&(_, offset), &len) in self.memory.range((slot, 0)..(slot + 1, 0)) {
                    assert!(offset <= reach, "slot {slot} has a hole before {offset}");
                    reach = reach.max(offset + len);
                }
                assert_eq!(reach, bytes, "slot {slot} is not complete");
                assert_eq!(self.begun.get(&slot), Some(&bytes));
                self.returned.insert(slot);
            }
            self.receives.pop_front();
            self.received += 1;
        }
    }

    /// The clock moves to the next moment at which something can happen. False: there is none.
    pub fn wait(&mut self) -> bool {
        let timers = self.tx.rails.timers().into_iter().chain(self.rx.rails.timers());
        let Some(next) = timers.filter(|&at| at > self.now).min() else { return false };
        self.now = next;
        self.turn();
        true
    }

    /// Time goes by although nothing waits for it.
    pub fn pass(&mut self, time: Time) {
        self.now += time;
        self.turn();
    }

    /// Without faults until nothing moves but the clock.
    pub fn drain(&mut self) {
        while let Some(&step) = self.progress().first() {
            self.step(step);
        }
    }

    /// For messages of failed tests.
    pub fn summary(&self) -> String {
        let rails = |rails: &crate::proto::rails::Rails| {
            let one = |r: &crate::proto::rail::Rail| {
                let (p, e, f, pf, ph) = (r.phase, r.epoch, r.fenced, r.peer_fenced, r.peer_heard);
                let (posted, unproved) = (r.posted.len(), r.written.wrapping_sub(r.taken));
                format!(
                    "{p:?} e{e} f{f} pf{pf} ph{ph} posted{posted} unproved{unproved} usable{} {:?} since{} \
                     retry{}",
                    r.usable, r.why, r.since, r.retry_at
                )
            };
            rails.all.iter().map(one).collect::<Vec<_>>().join("; ")
        };
        format!(
            "now {} posted {} sent {} over {} received {} of {:?}\n tx {}\n rx {}\n qps {:?}\n \
                 rail_qps {:?} ports {:?} control {:?} faults {:?}",
            self.now,
            self.posted,
            self.sent,
            self.sent_over.len(),
            self.received,
            self.plan.len(),
            rails(&self.tx.rails),
            rails(&self.rx.rails),
            self.qps,
            self.rail_qps,
            self.ports,
            self.control,
            self.faults()
        )
    }

    /// Checks that the last immediate of a slot can be read back; keeps `Imm` honest in long runs.
    pub fn check_numbers(&self) {
        for &slot in &self.returned {
            let imm = Imm { slot, chunk: 0, count: 1, full: false };
            assert_eq!(Imm::unpack(imm.pack()).whole(slot), slot);
        }
    }
}
