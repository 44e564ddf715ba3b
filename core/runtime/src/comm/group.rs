//! Groups: what is called between start and end is launched together at the outermost end.
//!
//! A group belongs to a thread. It may hold calls on several communicators and the creation of
//! communicators, which then run side by side. An error of any call is returned again by the end,
//! and nothing is launched.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;

use hawser_base::error::{Error, Result};
use hawser_base::log;
use hawser_device::Stream;
use hawser_plan::{Call, Collective};
use smallvec::SmallVec;

use crate::call_check;
use crate::comm::{Busy, Comm};
use crate::comm_state::CommState;
use crate::executor::Launches;
use crate::progress::journal::call_ms;
use crate::resolve::{Item, resolve};
use crate::submit::submit;

/// The creation of a communicator.
pub(crate) struct Job {
    /// Jobs of one owner run in the order of their calls: the parent of a split, else the new communicator.
    pub owner: Comm,
    /// True if somebody waits for it.
    pub blocking: bool,
    /// The function that does the work. The guard keeps the owner busy and is dropped when the owner is not
    /// needed any more.
    pub work: Work,
}

/// See [`Job::work`].
pub(crate) type Work = Box<dyn FnOnce(Option<Busy>) -> Result<()> + Send>;

/// The most calls for which a kept list has room.
const MOST_KEPT_ITEMS: usize = 64;
/// The most lists that a thread keeps.
const MOST_KEPT_LISTS: usize = 16;

/// The group of a thread.
struct Group {
    depth: u32,
    /// Nested groups that were closed.
    closed: u32,
    queued: Queued,
}

/// The content of a group.
struct Queued {
    error: Option<Error>,
    jobs: Vec<Job>,
    comms: Vec<Calls>,
    /// The time of the first call, in milliseconds of the journals' clock.
    since_ms: u64,
    /// Communicators of which a collective could not be queued; kept where ranks compare their calls.
    refused: Vec<Comm>,
}

/// The calls of a group on one communicator.
struct Calls {
    comm: Comm,
    comm_state: Arc<CommState>,
    items: Vec<Item>,
}

thread_local! {
    /// Without a destructor, since destructors of static objects may still call.
    static GROUP: RefCell<ManuallyDrop<Group>> = const { RefCell::new(ManuallyDrop::new(Group::NONE)) };

    /// The empty lists of earlier groups, freed with the thread: a group that closes later allocates its own.
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { items: Vec::new(), comms: Vec::new() }) };
}

/// Empty lists, so that usual groups allocate nothing.
struct Kept {
    items: Vec<Vec<Item>>,
    comms: Vec<Calls>,
}

impl Group {
    const NONE: Self = Self { depth: 0, closed: 0, queued: Queued::NONE };
}

impl Queued {
    const NONE: Self =
        Self { error: None, jobs: Vec::new(), comms: Vec::new(), since_ms: 0, refused: Vec::new() };
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

/// The number of nested groups that were closed in the open group.
pub(crate) fn nested() -> u32 {
    GROUP.with_borrow(|g| g.closed)
}

/// Closes a level; the outermost one creates communicators, then launches everything.
///
/// Blocking: returns when GPU work is on its streams; on the host device when it is over.
pub fn end() -> Result<()> {
    let Some(mut queued) = close()? else { return Ok(()) };
    let outcome = finish(&mut queued);
    keep_lists(queued.comms);
    outcome
}

/// Closes the outermost level without launching anything; an estimate in microseconds for its operations.
pub fn simulate_end() -> Result<f32> {
    let Some(queued) = close()? else { return Ok(0.0) };
    queued.unqueue();
    if let Some(error) = queued.error {
        return Err(error);
    }
    let mut longest = 0f32;
    for Calls { comm, items, .. } in &queued.comms {
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

/// Adds an operation of `comm` to the open group. Without one it is a group of its own, which runs at once;
/// so is a collective of a communicator of one rank, which waits for nobody (as in NCCL).
pub fn add(comm: &Comm, operation: Result<(Arc<CommState>, Item)>) -> Result<()> {
    match operation {
        Err(error) => {
            record(&error);
            Err(error)
        }
        Ok((comm_state, item)) if depth() == 0 || is_alone(&comm_state, &item) => {
            let items = [item];
            let part = Part { comm, comm_state: &comm_state, items: &items };
            launch(std::iter::once(part)).inspect_err(record)
        }
        Ok((comm_state, item)) => {
            GROUP.with_borrow_mut(|g| g.add(comm, comm_state, item));
            Ok(())
        }
    }
}

impl Group {
    fn add(&mut self, comm: &Comm, comm_state: Arc<CommState>, item: Item) {
        let Queued { comms, since_ms, .. } = &mut self.queued;
        if comms.is_empty() {
            *since_ms = call_ms();
        }
        comm_state.journal.queue(*since_ms);
        // Calls on one communicator mostly follow each other.
        if let Some(calls) = comms.iter_mut().rev().find(|calls| calls.comm.id() == comm.id()) {
            return calls.items.push(item);
        }
        let take = |kept: &RefCell<Kept>| {
            let mut kept = kept.borrow_mut();
            if comms.capacity() == 0 {
                *comms = std::mem::take(&mut kept.comms);
            }
            kept.items.pop()
        };
        let mut items = KEPT.try_with(take).ok().flatten().unwrap_or_default();
        items.push(item);
        comms.push(Calls { comm: comm.clone(), comm_state, items });
    }
}

/// Keeps the lists of a group that is over for the next one of this thread.
fn keep_lists(mut comms: Vec<Calls>) {
    for Calls { comm, comm_state, mut items } in comms.drain(..) {
        items.clear();
        // Nothing is borrowed here: the end of a communicator may run anything.
        drop((comm, comm_state));
        let keep = |kept: &RefCell<Kept>| {
            let kept = &mut kept.borrow_mut().items;
            if items.capacity() <= MOST_KEPT_ITEMS && kept.len() < MOST_KEPT_LISTS {
                kept.push(items);
            }
        };
        // Without the thread's lists this one is freed.
        let _ = KEPT.try_with(keep);
    }
    if comms.capacity() <= MOST_KEPT_LISTS {
        let _ = KEPT.try_with(|kept| kept.borrow_mut().comms = comms);
    }
}

fn is_alone(comm_state: &CommState, item: &Item) -> bool {
    matches!(item, Item::Call(call, ..) if comm_state.is_alone(call))
}

/// Records an error of a call of the open group, if there is one, so that its end returns it.
pub fn record(error: &Error) {
    GROUP.with_borrow_mut(|g| {
        if g.depth > 0 {
            g.queued.error.get_or_insert_with(|| error.clone());
        }
    });
}

/// Creates a communicator: now, at the end of the open group, or in the background.
pub(crate) fn create(job: Job) -> Result<()> {
    if depth() > 0 {
        GROUP.with_borrow_mut(|g| g.queued.jobs.push(job));
        return Ok(());
    }
    if job.blocking { (job.work)(None) } else { run_jobs(vec![job]) }
}

/// Takes the calls out of the thread when the outermost level closes.
fn close() -> Result<Option<Queued>> {
    GROUP.with_borrow_mut(|g| match g.depth {
        0 => Err(Error::invalid_usage("ncclGroupEnd without ncclGroupStart")),
        1 => {
            (g.depth, g.closed) = (0, 0);
            Ok(Some(std::mem::replace(&mut g.queued, Queued::NONE)))
        }
        _ => {
            g.depth -= 1;
            g.closed += 1;
            Ok(None)
        }
    })
}

impl Queued {
    /// Notes in the journals that the calls do not wait for the end of their group any more.
    fn unqueue(&self) {
        for Calls { comm_state, items, .. } in &self.comms {
            comm_state.journal.unqueue(items.len() as u64);
        }
    }
}

fn finish(queued: &mut Queued) -> Result<()> {
    queued.unqueue();
    let prepared = prepare(queued);
    if let Err(error) = &prepared
        && call_check::compares()
    {
        tell_failure(queued, error);
    }
    prepared?;
    // All ranks launch communicators in one order, whatever the order of the first calls: those on one stream
    // would otherwise wait for each other.
    queued.comms.sort_by_key(|calls| calls.comm_state.comm_id);
    launch(queued.comms.iter().map(|Calls { comm, comm_state, items }| Part { comm, comm_state, items }))
}

/// Does what comes before the launches of a group.
fn prepare(queued: &mut Queued) -> Result<()> {
    if let Some(error) = queued.error.take() {
        return Err(error);
    }
    if !queued.jobs.is_empty() {
        run_jobs(std::mem::take(&mut queued.jobs))?;
    }
    // One of them may have failed or ended since its call.
    queued.comms.iter().try_for_each(|calls| calls.comm.check_ready())
}

/// Notes that a collective of a communicator failed before it could be queued: where ranks compare their
/// calls, the others wait for it. They are told at the end of the open group, or now.
pub(crate) fn refused(comm: &Comm, error: &Error) {
    if !call_check::compares() {
        return;
    }
    if depth() > 0 {
        return GROUP.with_borrow_mut(|g| g.queued.refused.push(comm.clone()));
    }
    if let Ok(comm_state) = comm.state() {
        call_check::tell_failure(&comm_state, error);
    }
}

/// Tells the other ranks of every communicator that has collectives in a group that the group has failed. In
/// a thread each, for the reason of [`resolve_side_by_side`].
fn tell_failure(queued: &mut Queued, error: &Error) {
    let has_collectives = |calls: &&Calls| calls.items.iter().any(|item| matches!(item, Item::Call(..)));
    let called = queued.comms.iter().filter(has_collectives).map(|calls| calls.comm.clone());
    let mut comms: Vec<Comm> = queued.refused.drain(..).chain(called).collect();
    comms.sort_by_key(Comm::id);
    comms.dedup_by_key(|comm| comm.id());
    thread::scope(|scope| {
        for comm_state in comms.iter().filter_map(|comm| comm.state().ok()) {
            let tell = move || call_check::tell_failure(&comm_state, error);
            // Without a thread the others wait until their deadline.
            if let Err(error) = thread::Builder::new().name("hawser-check".into()).spawn_scoped(scope, tell) {
                log::warn(&format!("starting a thread that tells of a failed call: {error}"));
            }
        }
    });
}

/// The part of a group that belongs to one communicator.
struct Part<'a> {
    comm: &'a Comm,
    comm_state: &'a Arc<CommState>,
    items: &'a [Item],
}

/// Resolves everything, then submits it: an error on the way leaves nothing half done.
fn launch<'a>(parts: impl ExactSizeIterator<Item = Part<'a>>) -> Result<()> {
    let (mut here, mut background) = (Launches::new(), Vec::new());
    if parts.len() > 1 && call_check::compares() {
        return submit(&mut resolve_side_by_side(&parts.collect::<Vec<_>>())?);
    }
    here.reserve(parts.len());
    let now = call_ms();
    let mut taken = Taken::new();
    for Part { comm, comm_state, items } in parts {
        refuse_shared_stream(comm_state, items, &mut taken)?;
        comm_state.journal.launch_at(now);
        let _spans = enter(comm_state, items);
        let is_host = comm_state.device.kernels().is_none();
        if comm.is_blocking() || !is_host {
            resolve(comm_state, items, &mut here)?;
        } else {
            let mut launches = Launches::new();
            resolve(comm_state, items, &mut launches)?;
            background.push((comm, comm_state, launches));
        }
    }
    for (comm, comm_state, mut launches) in background {
        // A failure stays with the communicator, where `Comm::async_error` finds it.
        comm.in_background(comm_state, move || drop(submit(&mut launches)))?;
    }
    submit(&mut here)
}

/// The streams of the ranks of a group that share GPUs: communicator, GPU, stream and rank.
type Taken = SmallVec<[(u64, u32, Stream, u32); 8]>;

/// Refuses a collective in which every rank waits for every other one where two ranks share a stream of one
/// GPU: the second would begin when the first is over, which waits for the second.
fn refuse_shared_stream(comm_state: &CommState, items: &[Item], taken: &mut Taken) -> Result<()> {
    let waits_for_all = |call: &Call| {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        call.count > 0 && matches!(call.collective, AllReduce | AllGather | ReduceScatter | AllToAll)
    };
    let stream = items.iter().find_map(|item| match item {
        Item::Call(call, _, stream) if waits_for_all(call) => Some(*stream),
        _ => None,
    });
    let Some(stream) = stream.filter(|_| comm_state.device.kernels().is_some()) else { return Ok(()) };
    let (id, ordinal) = (comm_state.comm_id, comm_state.device.caps().ordinal);
    match taken.iter().find(|of| (of.0, of.1, of.2) == (id, ordinal, stream)) {
        Some((.., other)) => {
            let rank = comm_state.rank;
            let text = format!(
                "ranks {other} and {rank} share device {ordinal} and call on one stream of it, \
                                where rank {rank} would begin when rank {other} is over"
            );
            let remedy = "give each rank that shares a GPU a stream of its own (not the default stream)";
            Err(Error::invalid_usage(text).remedy(remedy))
        }
        None => {
            taken.push((id, ordinal, stream, comm_state.rank));
            Ok(())
        }
    }
}

/// Marks what the log says as about a part of a group.
fn enter(comm_state: &CommState, items: &[Item]) -> impl Sized + use<> {
    log::enter_operation(comm_state.comm_id, &comm_state.name, comm_state.rank, items.len())
}

/// Resolves the parts of a group in a thread each, since ranks wait for each other in the comparison of
/// calls, and several may be in this thread.
fn resolve_side_by_side(parts: &[Part<'_>]) -> Result<Launches> {
    let one = |Part { comm_state, items, .. }: &Part<'_>| {
        comm_state.journal.launch_at(call_ms());
        let _spans = enter(comm_state, items);
        let mut launches = Launches::new();
        resolve(comm_state, items, &mut launches).map(|()| launches)
    };
    let outcomes: Vec<Result<Launches>> = thread::scope(|scope| {
        let one = &one;
        let begin =
            |part| thread::Builder::new().name("hawser-check".into()).spawn_scoped(scope, move || one(part));
        let threads: Vec<_> = parts.iter().map(begin).collect();
        let end = |thread: std::io::Result<thread::ScopedJoinHandle<'_, Result<Launches>>>| {
            let thread =
                thread.map_err(|error| Error::system("starting a thread that compares calls", error))?;
            thread.join().unwrap_or_else(|_| Err(Error::internal("a panic while calls were compared")))
        };
        threads.into_iter().map(end).collect()
    });
    let mut all = Launches::new();
    for launches in outcomes {
        all.extend(launches?);
    }
    Ok(all)
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
