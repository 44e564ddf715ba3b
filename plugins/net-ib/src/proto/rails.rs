//! All rails of one end: what sender and receiver have in common. See the rules of [`proto`](super).

use super::rail::{Phase, Posted, Rail, Spec, Work};
use super::wire::{Message, State};
use super::{Action, Epoch, Path, Rules, Time, Why};

/// The role of an end in its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

impl Role {
    /// For log lines.
    pub fn describe(self, peer: std::net::IpAddr) -> String {
        match self {
            Self::Sender => format!("sender to {peer}"),
            Self::Receiver => format!("receiver from {peer}"),
        }
    }
}

/// The reason why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// No rail was up for as long as the rules allow.
    NoRail,
    /// A rail failed, and the rules do not allow to go on without.
    Rail(u8),
    /// The peer said nonsense.
    Protocol(&'static str),
    /// The peer has failed, and says why.
    Peer(String),
    /// The peer has closed its end with work unfinished.
    Left,
    /// The process of the peer is gone.
    Gone,
}

/// The part of the state machine that both ends have: all rails, and what is to be done with them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rails {
    /// The rules that the connection follows.
    pub rules: Rules,
    /// The role of this end.
    pub role: Role,
    /// All rails of the connection, by number.
    pub all: Vec<Rail>,
    /// The control channel works.
    pub control: bool,
    /// The reason why the connection failed, once it has.
    pub fault: Option<Fault>,
    /// A state is to be sent as soon as a path is there.
    pub say: bool,
    pub out: Vec<ActionBox>,
    said_at: Time,
    /// Since when nothing arrives: a rail has failed, and neither has data moved since, nor a rail stayed up.
    dark_since: Option<Time>,
    next_wr: u64,
    turn: usize,
}

/// An action that waits for the driver. Drivers take them at once, so they are no part of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActionBox(pub Action);

impl std::hash::Hash for ActionBox {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl Rails {
    pub fn new(role: Role, specs: &[Spec], rules: Rules, now: Time) -> Self {
        Self {
            rules,
            role,
            all: specs.iter().map(|&spec| Rail::new(spec, now)).collect(),
            control: true,
            fault: None,
            say: false,
            out: Vec::new(),
            said_at: now,
            dark_since: Some(now),
            next_wr: 1,
            turn: 0,
        }
    }

    /// Tells whether any rail is up.
    pub fn any_up(&self) -> bool {
        self.all.iter().any(Rail::is_up)
    }

    /// The epoch of a rail is no good any more.
    pub fn fail(&mut self, rail: u8, epoch: Epoch, why: Why, now: Time) {
        let Some(known) = self.all.get_mut(usize::from(rail)).filter(|known| known.epoch == epoch) else {
            return;
        };
        if matches!(known.phase, Phase::Down | Phase::Fencing) {
            return;
        }
        let was_up = known.is_up();
        known.lose(why, &self.rules, now);
        self.act(Action::Fence { rail, epoch });
        if was_up {
            self.act(Action::Note { rail, epoch, up: false, why });
            if !self.rules.failover {
                self.fault.get_or_insert(Fault::Rail(rail));
            }
        }
        self.dark_since.get_or_insert(now);
    }

    /// Data has moved: rails that come up and fail with the first of it do not count as progress.
    pub fn progress(&mut self) {
        self.dark_since = None;
    }

    /// The driver has fenced; returns what was under way. Ignored if nobody asked.
    pub fn fenced(&mut self, rail: u8, epoch: Epoch, now: Time) -> Vec<Work> {
        let Some(known) = self.all.get_mut(usize::from(rail)) else { return Vec::new() };
        if known.phase != Phase::Fencing || known.epoch != epoch {
            return Vec::new();
        }
        known.fenced = known.epoch.max(known.peer_fenced);
        known.epoch = known.fenced;
        known.enter(Phase::Down, now);
        self.say = true;
        known.clear()
    }

    /// The local port of a rail became usable, or not.
    pub fn usable(&mut self, rail: u8, usable: bool, why: Why, now: Time) {
        let Some(known) = self.all.get_mut(usize::from(rail)) else { return };
        known.usable = usable;
        let epoch = known.epoch;
        if usable {
            known.hurry(&self.rules, now);
        } else {
            self.fail(rail, epoch, why, now);
        }
    }

    /// The driver made a queue pair; `blob` tells the peer where it is.
    pub fn made(&mut self, rail: u8, epoch: Epoch, blob: Vec<u8>, now: Time) {
        if !self.is_in(rail, epoch, Phase::Making) {
            return;
        }
        let (phase, message) = match self.role {
            Role::Sender => (Phase::Offered, Message::Offer { rail, epoch, blob }),
            Role::Receiver => (Phase::Ready, Message::Answer { rail, epoch, blob }),
        };
        self.all[usize::from(rail)].enter(phase, now);
        self.spread(&message, now);
    }

    /// Sender: the driver connected the queue pair.
    pub fn connected(&mut self, rail: u8, epoch: Epoch, now: Time) {
        if self.is_in(rail, epoch, Phase::Connecting) {
            self.all[usize::from(rail)].enter(Phase::Probing(0), now);
            self.send(Path::Rail(rail, epoch), Message::Probe { rail, epoch, number: 0 }, now);
        }
    }

    /// The peer has closed its end: its queue pairs are gone, so nothing here will complete.
    pub fn retire(&mut self, now: Time) {
        self.rules.failover = true;
        for rail in 0..self.all.len() {
            self.usable(rail as u8, false, Why::Closed, now);
        }
    }

    /// Offers, answers, probes and echoes.
    pub fn on_setup(&mut self, path: Path, message: Message, now: Time) {
        match (message, self.role) {
            (Message::Offer { rail, epoch, blob }, Role::Receiver) => self.on_offer(rail, epoch, blob, now),
            (Message::Answer { rail, epoch, blob }, Role::Sender)
                if self.is_in(rail, epoch, Phase::Offered) =>
            {
                self.all[usize::from(rail)].enter(Phase::Connecting, now);
                self.act(Action::Connect { rail, epoch, peer: blob });
            }
            (Message::Probe { rail, epoch, number }, Role::Receiver)
                if path == Path::Rail(rail, epoch) && self.is_in(rail, epoch, Phase::Ready) =>
            {
                self.all[usize::from(rail)].probed = Some(number);
                self.advance(rail, now);
            }
            (Message::Echo { rail, epoch, number }, Role::Sender)
                if path == Path::Rail(rail, epoch) && self.is_in(rail, epoch, Phase::Probing(number)) =>
            {
                self.all[usize::from(rail)].probed = Some(number);
                self.advance(rail, now);
            }
            _ => {}
        }
    }

    /// The next step of probing, when the last one came and nothing of this end waits for its
    /// acknowledgement: a rail that carries data one way and loses acknowledgements does not come up.
    fn advance(&mut self, rail: u8, now: Time) {
        let known = &mut self.all[usize::from(rail)];
        let (epoch, path) = (known.epoch, Path::Rail(rail, known.epoch));
        let Some(number) = known.probed.take_if(|_| known.posted.is_empty()) else { return };
        let is_last = number + 1 >= self.rules.probes;
        match self.role {
            Role::Sender if is_last => self.raise(rail, now),
            Role::Sender => {
                let number = number + 1;
                known.phase = Phase::Probing(number);
                self.send(path, Message::Probe { rail, epoch, number }, now);
            }
            Role::Receiver => {
                if is_last {
                    self.raise(rail, now);
                }
                self.send(path, Message::Echo { rail, epoch, number }, now);
            }
        }
    }

    fn on_offer(&mut self, rail: u8, epoch: Epoch, blob: Vec<u8>, now: Time) {
        let Some(known) = self.all.get_mut(usize::from(rail)) else {
            self.fault.get_or_insert(Fault::Protocol("it offered a rail that does not exist"));
            return;
        };
        if epoch <= known.fenced {
            self.say = true;
            return;
        }
        if epoch > known.epoch {
            // The port may not be usable yet: the sender does not offer again before it has given this epoch
            // up.
            known.offer = Some((epoch, blob));
            self.answer(rail, now);
        }
    }

    /// Receiver: takes up the offer that came last, if it can.
    fn answer(&mut self, rail: u8, now: Time) {
        let known = &mut self.all[usize::from(rail)];
        if known.phase != Phase::Down || !known.usable {
            return;
        }
        let newest = known.fenced.max(known.epoch);
        if let Some((epoch, blob)) = known.offer.take().filter(|offer| offer.0 > newest) {
            known.epoch = epoch;
            known.enter(Phase::Making, now);
            self.act(Action::Make { rail, epoch, peer: Some(blob) });
        }
    }

    fn raise(&mut self, rail: u8, now: Time) {
        let known = &mut self.all[usize::from(rail)];
        known.enter(Phase::Up, now);
        let (epoch, why) = (known.epoch, known.why);
        self.act(Action::Note { rail, epoch, up: true, why });
    }

    /// Takes the common part of the peer's state.
    pub fn on_state(&mut self, state: &State, now: Time) {
        if state.fenced.len() != self.all.len() {
            self.fault.get_or_insert(Fault::Protocol("its state is of another number of rails"));
            return;
        }
        for rail in 0..self.all.len() {
            let (fenced, heard) = (state.fenced[rail], state.heard[rail]);
            let known = &mut self.all[rail];
            if self.role == Role::Sender && fenced > known.epoch || heard > known.fenced {
                self.fault.get_or_insert(Fault::Protocol("its state is from the future"));
                return;
            }
            if fenced > known.peer_fenced {
                known.peer_fenced = fenced;
                self.say = true;
            }
            known.peer_heard = known.peer_heard.max(heard);
            self.say |= known.peer_heard < known.fenced && known.phase == Phase::Down && heard < known.fenced;
            if known.phase == Phase::Down {
                if known.fenced < known.peer_fenced {
                    known.fenced = known.peer_fenced;
                    known.epoch = known.epoch.max(known.fenced);
                    self.say = true;
                }
            } else if known.peer_fenced >= known.epoch {
                let (epoch, why) = (known.epoch, Why::Peer(state.why[rail]));
                self.fail(rail as u8, epoch, why, now);
            }
        }
        self.say |= state.want;
    }

    /// The common part of this end's state.
    pub fn state(&self) -> State {
        State {
            fenced: self.all.iter().map(|rail| rail.fenced).collect(),
            heard: self.all.iter().map(|rail| rail.peer_fenced).collect(),
            why: self.all.iter().map(|rail| rail.why.code()).collect(),
            want: false,
            frontier: None,
            receipt: None,
        }
    }

    /// The paths on which a state is to be sent now; empty if on none.
    pub fn state_paths(&mut self, wants: bool, now: Time) -> Vec<Path> {
        let unheard = |rail: &Rail| {
            rail.peer_heard < rail.fenced || (rail.phase == Phase::Down && rail.peer_fenced < rail.epoch)
        };
        let again = now.saturating_sub(self.said_at) >= self.rules.repeat;
        let due = self.say || again && (wants || self.all.iter().any(unheard));
        if !due {
            return Vec::new();
        }
        let paths = self.paths();
        if !paths.is_empty() {
            (self.say, self.said_at) = (false, now);
        }
        paths
    }

    /// The control channel, and one rail that is up: a different one each time.
    fn paths(&mut self) -> Vec<Path> {
        let mut paths = Vec::new();
        if self.control {
            paths.push(Path::ControlChannel);
        }
        let count = self.all.len();
        let room = self.rules.control_window + 8;
        let next = (0..count).map(|i| (self.turn + i) % count).find(|&rail| {
            let rail = &self.all[rail];
            rail.is_up() && rail.controls < room
        });
        if let Some(rail) = next {
            self.turn = rail + 1;
            paths.push(Path::Rail(rail as u8, self.all[rail].epoch));
        }
        paths
    }

    fn spread(&mut self, message: &Message, now: Time) {
        for path in self.paths() {
            self.send(path, message.clone(), now);
        }
    }

    /// The rail that is best for a short message.
    pub fn control_path(&self) -> Option<Path> {
        let room = |rail: &(usize, &Rail)| rail.1.is_up() && rail.1.controls < self.rules.control_window;
        let best = self.all.iter().enumerate().filter(room).min_by_key(|(_, rail)| rail.bytes / rail.weight);
        best.map(|(number, rail)| Path::Rail(number as u8, rail.epoch))
    }

    /// Sends a control message on a path.
    pub fn send(&mut self, path: Path, message: Message, now: Time) {
        let mut wr = 0;
        if let Path::Rail(rail, _) = path {
            wr = self.post(rail, Work::Control, 64, now);
        }
        self.act(Action::Send { path, wr, message });
    }

    /// Books a work request and returns its number.
    pub fn post(&mut self, rail: u8, work: Work, bytes: u64, now: Time) -> u64 {
        let wr = self.next_wr;
        self.next_wr += 1;
        self.all[usize::from(rail)].post(Posted { wr, work, bytes, at: now });
        wr
    }

    /// A completion without error.
    pub fn completed(&mut self, rail: u8, epoch: Epoch, wr: u64, now: Time) -> Vec<Work> {
        let works = match self.all.get_mut(usize::from(rail)) {
            Some(known) if known.epoch == epoch && known.phase != Phase::Down => known.complete(wr, now),
            _ => return Vec::new(),
        };
        self.advance(rail, now);
        works
    }

    /// Looks at the clock. `busy`: somebody waits for this connection.
    pub fn tick(&mut self, busy: bool, now: Time) {
        for rail in 0..self.all.len() {
            let known = &self.all[rail];
            let age = now.saturating_sub(known.since);
            let late = age >= self.rules.attempt;
            let why = match known.phase {
                Phase::Making | Phase::Offered | Phase::Connecting if late => Some(Why::NoAnswer),
                Phase::Probing(_) | Phase::Ready if late => Some(Why::NoProbe),
                Phase::Up if !known.posted.is_empty() => {
                    (now.saturating_sub(known.moved) >= self.rules.silence).then_some(Why::Silence)
                }
                _ => None,
            };
            if let Some(why) = why {
                self.fail(rail as u8, self.all[rail].epoch, why, now);
            }
            match self.role {
                Role::Sender => self.begin(rail, now),
                Role::Receiver => self.answer(rail as u8, now),
            }
        }
        self.judge(busy, now);
    }

    /// Decides whether to give up.
    fn judge(&mut self, busy: bool, now: Time) {
        let Rules { silence, deadline, .. } = self.rules;
        // A rail on which data is lost does not live for so long.
        let steady = silence.saturating_mul(2).min(deadline / 2);
        let is_steady = |rail: &Rail| rail.is_up() && now.saturating_sub(rail.since) >= steady;
        if !busy {
            // The wait is counted from when somebody waits.
            self.dark_since = self.dark_since.map(|_| now);
        } else if self.all.iter().any(is_steady) {
            self.dark_since = None;
        } else if deadline > 0 {
            let waited = now.saturating_sub(*self.dark_since.get_or_insert(now));
            // Twice, where a rail is up whenever another one fails.
            if waited >= if self.any_up() { deadline.saturating_mul(2) } else { deadline } {
                self.fault.get_or_insert(Fault::NoRail);
            }
        }
    }

    /// Sender: the next epoch of a rail, if it is time.
    fn begin(&mut self, rail: usize, now: Time) {
        let dark = !self.any_up();
        let reachable = self.control || !dark;
        let known = &mut self.all[rail];
        let may = self.rules.recovery || !known.has_failed();
        let ready = may && known.phase == Phase::Down && known.usable && known.peer_fenced >= known.epoch;
        if ready && reachable && now >= known.due(dark, &self.rules) {
            known.epoch += 1;
            known.enter(Phase::Making, now);
            let epoch = known.epoch;
            self.act(Action::Make { rail: rail as u8, epoch, peer: None });
        }
    }

    /// The times at which `tick` has something to do if nothing else happens; for simulated clocks.
    #[cfg(test)]
    pub fn timers(&self) -> Vec<Time> {
        let mut timers = vec![self.said_at + self.rules.repeat];
        for rail in &self.all {
            match rail.phase {
                Phase::Down => timers.push(rail.due(!self.any_up(), &self.rules)),
                Phase::Up if rail.posted.is_empty() => {}
                Phase::Up => timers.push(rail.moved + self.rules.silence),
                Phase::Fencing => {}
                _ => timers.push(rail.since + self.rules.attempt),
            }
        }
        timers.extend(self.dark_since.map(|since| since + self.rules.deadline));
        timers
    }

    fn is_in(&self, rail: u8, epoch: Epoch, phase: Phase) -> bool {
        self.all.get(usize::from(rail)).is_some_and(|known| known.epoch == epoch && known.phase == phase)
    }

    /// Asks the driver for an action.
    pub fn act(&mut self, action: Action) {
        self.out.push(ActionBox(action));
    }

    /// Takes the actions that the driver has not seen.
    pub fn take(&mut self) -> Vec<Action> {
        self.out.drain(..).map(|boxed| boxed.0).collect()
    }
}
