//! Groups: what is called between start and end is launched together at the outermost end.
//!
//! A group belongs to a thread. It may hold calls on several communicators and the creation of
//! communicators, which then run side by side. An error of any call is returned again by the end,
//! and nothing is launched.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;

use hawser_plan::Call;
use hawser_plan::p2p::Message;

use crate::comm::{Busy, Collectives, Comm, CommState, GroupSpans, Ready};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::exec::{self, Launch};

/// The creation of a communicator.
pub(crate) struct Job {
    /// Jobs of one owner run in the order of their calls: the parent of a split, else the new communicator.
    pub owner: Comm,
    /// Whether somebody waits for it.
    pub blocking: bool,
    /// What it does. The guard keeps the owner busy and is dropped when the owner is not needed any more.
    pub work: Work,
}

/// See [`Job::work`].
pub(crate) type Work = Box<dyn FnOnce(Option<Busy>) -> Result<()> + Send>;

/// One call of a group.
pub enum Item {
    /// A collective; the number that it has already, if any.
    Call(Call, Stream, Option<u64>),
    /// A send or a receive, and how many nested groups had been closed before it.
    Message(Message, Stream, u32),
}

struct Group {
    depth: u32,
    /// Nested groups that were closed.
    closed: u32,
    error: Option<Error>,
    jobs: Vec<Job>,
    comms: Vec<(Comm, Vec<Item>)>,
}

thread_local! {
    /// Without a destructor, since destructors of static objects may still call.
    static GROUP: RefCell<ManuallyDrop<Group>> = const { RefCell::new(ManuallyDrop::new(Group::NONE)) };
}

impl Group {
    const NONE: Self = Self { depth: 0, closed: 0, error: None, jobs: Vec::new(), comms: Vec::new() };
}

/// Opens a group, or one level more.
pub fn start() -> Result<()> {
    GROUP.with_borrow_mut(|g| g.depth += 1);
    Ok(())
}

/// Levels that are open on this thread.
pub fn depth() -> u32 {
    GROUP.with_borrow(|g| g.depth)
}

/// How many nested groups were closed in the open group.
pub(crate) fn nested() -> u32 {
    GROUP.with_borrow(|g| g.closed)
}

/// Closes a level; the outermost one creates communicators, then launches everything.
///
/// Blocking: returns when GPU work is on its streams; on the host device when it is over.
pub fn end() -> Result<()> {
    match close()? {
        Some(group) => finish(group),
        None => Ok(()),
    }
}

/// Closes the outermost level without launching anything; an estimate in microseconds for its operations.
pub fn simulate_end() -> Result<f32> {
    let Some(group) = close()? else { return Ok(0.0) };
    if let Some(error) = group.error {
        return Err(error);
    }
    let mut longest = 0f32;
    for (comm, items) in &group.comms {
        let mut total = 0f32;
        for item in items {
            if let Item::Call(call, ..) = item
                && call.count > 0
            {
                total += comm.explain(call)?.predicted_us;
            }
        }
        longest = longest.max(total);
    }
    Ok(longest)
}

/// Adds a call of `comm`; without an open group it runs at once.
pub fn add(comm: &Comm, item: Result<Item>) -> Result<()> {
    let alone = depth() == 0;
    if alone {
        start()?;
    }
    let outcome = GROUP.with_borrow_mut(|g| match item {
        Ok(item) => {
            match g.comms.iter_mut().find(|(c, _)| c.id() == comm.id()) {
                Some((_, items)) => items.push(item),
                None => g.comms.push((comm.clone(), vec![item])),
            }
            Ok(())
        }
        Err(error) => {
            g.error.get_or_insert_with(|| error.clone());
            Err(error)
        }
    });
    if alone { end() } else { outcome }
}

/// Records an error of a call of the open group, if there is one, so that its end returns it.
pub fn record(error: &Error) {
    GROUP.with_borrow_mut(|g| {
        if g.depth > 0 {
            g.error.get_or_insert_with(|| error.clone());
        }
    });
}

/// Creates a communicator: now, at the end of the open group, or in the background.
pub(crate) fn create(job: Job) -> Result<()> {
    if depth() > 0 {
        GROUP.with_borrow_mut(|g| g.jobs.push(job));
        return Ok(());
    }
    if job.blocking { (job.work)(None) } else { run_jobs(vec![job]) }
}

/// Takes the group out of the thread when the outermost level closes.
fn close() -> Result<Option<Group>> {
    GROUP.with_borrow_mut(|g| match g.depth {
        0 => Err(Error::invalid_usage("ncclGroupEnd without ncclGroupStart")),
        1 => Ok(Some(std::mem::replace(&mut **g, Group::NONE))),
        _ => {
            g.depth -= 1;
            g.closed += 1;
            Ok(None)
        }
    })
}

fn finish(mut group: Group) -> Result<()> {
    if let Some(error) = group.error {
        return Err(error);
    }
    if launch_now(&mut group)? {
        return Ok(());
    }
    run_jobs(group.jobs)?;
    // All ranks launch communicators in one order, whatever the order of the first calls: those on one stream would
    // otherwise wait for each other.
    let with_live = |(comm, items): (Comm, Vec<Item>)| Ok((comm.state()?, comm, items));
    let mut comms = group.comms.into_iter().map(with_live).collect::<Result<Vec<_>>>()?;
    comms.sort_by_key(|(comm_state, ..)| comm_state.comm_id);
    // Everything is planned before anything is launched: an error leaves nothing half done.
    let (mut here, mut background) = (Vec::new(), Vec::new());
    for (comm_state, comm, items) in comms {
        let planned = plan(&comm_state, items)?;
        if comm.is_blocking() || !comm.is_host() {
            here.extend(planned);
        } else {
            background.push((comm, comm_state, planned));
        }
    }
    for (comm, comm_state, mut planned) in background {
        // A failure stays with the communicator, where `Comm::async_error` finds it.
        comm.in_background(&comm_state, move || drop(exec::run(&mut planned)))?;
    }
    exec::run(&mut here)
}

/// Launches all at once, if every communicator can. False: it needs the long way.
fn launch_now(group: &mut Group) -> Result<bool> {
    if !group.jobs.is_empty() || group.comms.is_empty() {
        return Ok(false);
    }
    let mut all: Vec<(Arc<CommState>, Ready, &[Item])> = Vec::with_capacity(group.comms.len());
    for (comm, items) in &mut group.comms {
        let comm_state = comm.state()?;
        let Some(ready) = comm_state.ready(items)? else { return Ok(false) };
        all.push((comm_state, ready, items));
    }
    all.sort_by_key(|(comm_state, ..)| comm_state.comm_id);
    all.into_iter().try_for_each(|(comm_state, ready, items)| comm_state.put_now(ready, items))?;
    Ok(true)
}

/// Collectives in call order, then all messages of a phase together; all on the first of their streams. As NCCL promises, the others
/// join before the first launch and go on after the last: a group is as if it were on each of them.
fn plan(comm_state: &Arc<CommState>, items: Vec<Item>) -> Result<Vec<Launch>> {
    let mut streams = Vec::new();
    for item in &items {
        let (Item::Call(_, stream, _) | Item::Message(_, stream, _)) = item;
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
    let Some((first, others)) = streams.split_first() else { return Ok(Vec::new()) };
    // Before anything has a number.
    if !others.is_empty() {
        one_capture(comm_state, &streams)?;
    }
    let spans = Arc::new(GroupSpans::start(&comm_state.profiling, &*comm_state.device, *first)?);
    let mut calls = Collectives::new(comm_state, &spans);
    for item in &items {
        if let Item::Call(call, _, number) = item {
            calls.add(call, *first, *number)?;
        }
    }
    let mut launches = calls.finish()?;
    for messages in phases(&items) {
        launches.extend(comm_state.plan_messages(&messages, *first, &spans)?);
    }
    if let [first, ..] = &mut launches[..] {
        first.after = others.to_vec();
    }
    if let [.., last] = &mut launches[..] {
        last.before = others.to_vec();
    }
    Ok(launches)
}

/// Streams of a group that are not all captured into one graph, or none of them, cannot be joined.
fn one_capture(comm_state: &CommState, streams: &[Stream]) -> Result<()> {
    let capture = |stream: Stream| comm_state.device.stream_state(stream).map(|state| state.capture);
    let first = capture(streams[0])?;
    for stream in &streams[1..] {
        if capture(*stream)? != first {
            let text =
                "the streams of a communicator in a group must all be captured into the same graph, or none";
            let remedy = "close the group before the capture begins or ends";
            return Err(Error::invalid_usage(text).remedy(remedy));
        }
    }
    Ok(())
}

/// Whether all messages of a group run side by side.
pub(crate) fn is_one_phase(items: &[Item]) -> bool {
    let nested = |item: &Item| if let Item::Message(.., nested) = item { Some(*nested) } else { None };
    let first = items.iter().find_map(nested);
    items.iter().all(|item| nested(item).is_none_or(|nested| Some(nested) == first))
        || phases(items).nth(1).is_none()
}

/// The messages of a group that run side by side: in most groups all. Where what a nested group receives is sent on by a later
/// one, the later one waits: programs put steps of an algorithm into groups of their own, and these into one for several
/// devices of a thread. Only a nested group that sends and receives is such a step: where ranks swap or shift a buffer in
/// place, be it in one nested group or in two, a send that waits for the receive would wait for ever.
pub(crate) fn phases(items: &[Item]) -> impl Iterator<Item = Vec<Message>> {
    let mut left = items.iter().filter_map(|item| match item {
        Item::Message(message, _, nested) => Some((*message, *nested)),
        Item::Call(..) => None,
    });
    let mut next = left.next();
    std::iter::from_fn(move || {
        let (mut messages, mut received) = (Vec::new(), Received::default());
        while let Some((message, nested)) = next.filter(|(message, nested)| !received.feeds(message, *nested))
        {
            received.add(&message, nested);
            messages.push(message);
            next = left.next();
        }
        (!messages.is_empty()).then_some(messages)
    })
}

/// What the messages of a phase receive, and where.
#[derive(Default)]
struct Received {
    /// Nested groups that send.
    senders: Vec<u32>,
    /// From the lowest address to the end of the highest.
    hull: (u64, u64),
    /// First address, end, nested group.
    ranges: Vec<(u64, u64, u32)>,
}

impl Received {
    fn add(&mut self, message: &Message, nested: u32) {
        if message.send {
            if self.senders.last() != Some(&nested) {
                self.senders.push(nested);
            }
            return;
        }
        let (from, to) = (message.addr, message.addr.saturating_add(message.bytes));
        let (low, high) = if self.ranges.is_empty() { (from, to) } else { self.hull };
        self.hull = (low.min(from), high.max(to));
        self.ranges.push((from, to, nested));
    }

    /// Whether a message sends what another nested group, one that sends too, receives here.
    fn feeds(&self, message: &Message, nested: u32) -> bool {
        let (from, to) = (message.addr, message.addr.saturating_add(message.bytes));
        let meets = |low: u64, high: u64| from < high && low < to;
        let is_step = |other: u32| other != nested && self.senders.contains(&other);
        message.send
            && message.bytes > 0
            && meets(self.hull.0, self.hull.1)
            && self.ranges.iter().any(|&(low, high, other)| meets(low, high) && is_step(other))
    }
}

/// Jobs that run one after the other.
struct Chain {
    owner: u64,
    blocking: bool,
    work: Vec<(Work, Option<Busy>)>,
}

/// Runs the creation of communicators side by side; waits for the blocking ones.
fn run_jobs(jobs: Vec<Job>) -> Result<()> {
    let mut chains: Vec<Chain> = Vec::new();
    for Job { owner, blocking, work } in jobs {
        let busy = if blocking { None } else { owner.busy()? };
        let owner = owner.id();
        match chains.iter_mut().find(|chain| chain.owner == owner) {
            Some(chain) => {
                chain.blocking |= blocking;
                chain.work.push((work, busy));
            }
            None => chains.push(Chain { owner, blocking, work: vec![(work, busy)] }),
        }
    }
    let mut waiting = Vec::new();
    for Chain { blocking, work, .. } in chains {
        // All of a chain run, also after a failure: the other ranks wait for this one in each.
        let run = move || {
            let outcomes: Vec<Result<()>> = work.into_iter().map(|(work, busy)| work(busy)).collect();
            outcomes.into_iter().collect::<Result<()>>()
        };
        let thread = thread::Builder::new().name("hawser-init".into()).spawn(run);
        let thread = thread.map_err(|e| Error::system("starting an init thread", e))?;
        if blocking {
            waiting.push(thread);
        }
    }
    let mut outcome = Ok(());
    for thread in waiting {
        let ended = thread.join().unwrap_or_else(|_| Err(Error::internal("a panic during bring-up")));
        outcome = outcome.and(ended);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the phases of messages: (sends, address, bytes, nested group).
    fn lengths(messages: &[(bool, u64, u64, u32)]) -> Vec<usize> {
        let item = |&(send, addr, bytes, nested): &(bool, u64, u64, u32)| {
            Item::Message(Message { peer: 1, send, addr, bytes }, Stream(0), nested)
        };
        let items: Vec<Item> = messages.iter().map(item).collect();
        phases(&items).map(|phase| phase.len()).collect()
    }

    #[test]
    fn what_is_sent_on_waits_for_what_is_received() {
        assert_eq!(lengths(&[]), [0; 0]);
        let exchange = |nested| [(true, 100, 50, nested), (false, 300, 50, nested)];
        assert_eq!(lengths(&[exchange(0), exchange(1), exchange(2)].concat()), [6], "nothing is sent on");
        // A hypercube: what one step received is sent by the next, with what was there before.
        let step = |nested, bytes| [(true, 0, bytes, nested), (false, bytes, bytes, nested)];
        assert_eq!(lengths(&[step(0, 8), step(1, 16), step(2, 32)].concat()), [2, 2, 2]);
        assert_eq!(lengths(&[step(0, 8), step(0, 16), step(0, 32)].concat()), [6], "one group has no steps");
        // Ranges that only touch, or are empty, are different ones; what was sent may be received into.
        let first = [(true, 900, 50, 0), (false, 100, 50, 0)];
        let with = |more: &[(bool, u64, u64, u32)]| lengths(&[&first[..], more].concat());
        assert_eq!(with(&[(true, 150, 50, 1), (true, 50, 50, 1)]), [4]);
        assert_eq!(with(&[(true, 120, 0, 1)]), [3]);
        assert_eq!(with(&[(false, 900, 50, 1)]), [3]);
        assert_eq!(with(&[(false, 0, 50, 0), (true, 149, 1, 1), (true, 0, 1, 1)]), [3, 2]);
        // A shift in place: all ranks would wait for each other.
        assert_eq!(lengths(&[(false, 100, 50, 0), (true, 100, 50, 1)]), [2]);
        assert_eq!(lengths(&[(true, 100, 50, 0), (false, 100, 50, 0)]), [2]);
    }
}
