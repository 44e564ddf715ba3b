//! The work of ranks in the tests of hangs, and a hang as a test stages it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::progress::reader;
use hawser_runtime::progress::verdict::{Cause, Verdict};
use hawser_runtime::rules_update::client;
use hawser_runtime::{Comm, Error, Result, Stream, group, unique_id};

use crate::deadline::LIMIT;
use crate::oracle::{Buffer, Case};
use crate::process::Process;
use crate::world;

/// Bytes of a message that no staging holds.
const BIG: usize = 32 << 20;

/// Carries out a step of a rank in a hang; None if the step is none of these.
pub fn step(comm: &Comm, step: &str) -> Option<Result<()>> {
    let (name, argument) = step.split_once('=').unwrap_or((step, ""));
    Some(match name {
        "call" => call(comm, argument),
        "big-send" => message(comm, true, argument),
        "big-recv" => message(comm, false, argument),
        "queued" => queued(comm, argument),
        "child" => child(comm, argument),
        "unmapped" => unmapped(comm, argument),
        "two" => two(comm, argument),
        "paced" => paced(comm, argument),
        "locked" => locked(),
        "spin" => loop {
            std::hint::spin_loop();
        },
        "read" => std::io::stdin()
            .read_line(&mut String::new())
            .map(drop)
            .map_err(|error| Error::system("read", error)),
        _ => return None,
    })
}

/// Waits for a lock that another thread, which computes, never gives back: as a Python program does whose
/// other thread keeps the interpreter.
fn locked() -> ! {
    static LOCK: Mutex<()> = Mutex::new(());
    let (tell, told) = std::sync::mpsc::channel();
    let busy = move || {
        let _held = LOCK.lock();
        let _ = tell.send(());
        loop {
            std::hint::spin_loop();
        }
    };
    std::thread::Builder::new().name("busy".into()).spawn(busy).expect("a thread");
    let _ = told.recv();
    loop {
        drop(LOCK.lock());
    }
}

/// `COLLECTIVE/COUNT[/TYPE[/REDUCTION[/ROOT]]]`.
fn call(comm: &Comm, text: &str) -> Result<()> {
    let bad = || Error::invalid_argument(format!("no call {text}"));
    let mut parts = text.split('/');
    let collective = parts.next().and_then(Collective::from_name).ok_or_else(bad)?;
    let count = parts.next().unwrap_or("1000").parse().map_err(|_| bad())?;
    let by_name = |name: &str| DataType::ALL.into_iter().find(|dtype| dtype.name() == name);
    let dtype = parts.next().map_or(Some(DataType::Float32), by_name).ok_or_else(bad)?;
    let by_name = |name: &str| ReduceOp::ALL.into_iter().find(|op| op.name() == name);
    let op = parts.next().map_or(Some(ReduceOp::Sum), by_name).ok_or_else(bad)?;
    let root = parts.next().unwrap_or("0").parse().map_err(|_| bad())?;
    world::run(comm, Case { collective, dtype, op, ranks: comm.ranks(), root, count }, false, 0)
}

/// All-reduces until one fails, with so many milliseconds between them.
fn paced(comm: &Comm, pause: &str) -> Result<()> {
    let pause = pause.parse().map_err(|_| Error::invalid_argument("milliseconds"))?;
    loop {
        world::all_reduce(comm, 5_000)?;
        std::thread::sleep(Duration::from_millis(pause));
    }
}

/// An all-reduce, or a message to the rank itself (`message`), whose buffer ends where no memory is.
fn unmapped(comm: &Comm, what: &str) -> Result<()> {
    // The first page is nobody's, nor is the end of what a user may have.
    let (first, last) = (64, (1 << 47) - 4096);
    if what == "message" {
        return comm.send(last, 64, comm.rank(), Stream(0));
    }
    let mut case = world::plain(Collective::AllReduce, comm.ranks(), 16);
    case.root = 0;
    let buffer = Buffer::new(64, 0);
    comm.collective(world::call(&case, comm.rank(), (buffer.addr(), first)), Stream(0))
}

/// Two all-reduces of 16 elements in a group, of which the second (`unmapped`) has a buffer where no memory
/// is.
fn two(comm: &Comm, second: &str) -> Result<()> {
    group::start()?;
    let case = world::plain(Collective::AllReduce, comm.ranks(), 16);
    let added = world::issue(comm, case, false, 0).and_then(|first| {
        let second = match second {
            "unmapped" => unmapped(comm, "").map(|()| None),
            _ => world::issue(comm, case, false, 0).map(Some),
        };
        second.map(|second| (first, second))
    });
    // Buffers live until the group is over.
    let ended = group::end();
    let (first, second) = added?;
    ended?;
    match std::iter::once(first).chain(second).find_map(|issued| issued.fault()) {
        Some(fault) => Err(Error::internal(fault)),
        None => Ok(()),
    }
}

/// Asks the processes of this host why nothing moves, and writes each verdict of the first that answers as a
/// line of JSON.
pub fn print_verdicts() -> Result<()> {
    let mut last = Error::invalid_usage("no process of this host has a communicator");
    for pid in reader::processes() {
        match client::hang(pid) {
            Ok(verdicts) => {
                let json = |verdict: &Verdict| serde_json::to_string(verdict);
                for json in verdicts.iter().map(json) {
                    println!("{}", json.map_err(|error| Error::internal(error.to_string()))?);
                }
                return Ok(());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// All ranks in this thread, and all their calls in groups: one in which all call the same, then one in which
/// the last rank calls another count. Gives the error of that.
pub fn together(ranks: u32) -> Result<()> {
    let comms = Comm::init_all(&(0..ranks).collect::<Vec<_>>())?;
    for last in [1000, 999] {
        group::start()?;
        let count = |comm: &Comm| if comm.rank() + 1 == ranks { last } else { 1000 };
        let issue = |comm: &Comm| {
            let case = world::plain(Collective::AllReduce, ranks, count(comm));
            world::issue(comm, case, false, 0)
        };
        let issued = comms.iter().map(issue).collect::<Result<Vec<_>>>()?;
        group::end()?;
        if let Some(fault) = issued.iter().find_map(world::Issued::fault) {
            return Err(Error::internal(fault));
        }
        println!("all right");
    }
    Ok(())
}

/// A message that is too long to be buffered.
fn message(comm: &Comm, send: bool, peer: &str) -> Result<()> {
    let peer = peer.parse().map_err(|_| Error::invalid_argument("peer"))?;
    let buffer = Buffer::new(BIG, 0);
    match send {
        true => comm.send(buffer.addr(), BIG as u64, peer, Stream(0)),
        false => comm.recv(buffer.addr(), BIG as u64, peer, Stream(0)),
    }
}

/// So many calls in a group that is never ended.
fn queued(comm: &Comm, count: &str) -> Result<()> {
    let count: u32 = count.parse().map_err(|_| Error::invalid_argument("count"))?;
    group::start()?;
    let case = world::plain(Collective::AllReduce, comm.ranks(), 100);
    let _calls: Vec<_> = (0..count).map(|_| world::issue(comm, case, false, 0)).collect::<Result<_>>()?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Makes a second communicator of all ranks and calls an all-reduce on it: `first`: there and then on the
/// first one, `second`: the other way round, `late`: not at all.
fn child(comm: &Comm, order: &str) -> Result<()> {
    let child = comm.split(0, comm.rank().cast_signed(), None)?;
    let child = child.ok_or_else(|| Error::internal("no child"))?;
    match order {
        "first" => world::all_reduce(&child, 5_000).and_then(|()| world::all_reduce(comm, 5_000)),
        "second" => world::all_reduce(comm, 5_000).and_then(|()| world::all_reduce(&child, 5_000)),
        _ => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
    }
}

/// A job that hangs.
pub struct Hang {
    ranks: Vec<Process>,
}

impl Hang {
    /// Starts a rank for each list of steps, with words between blanks; `hosts` "hosts" take them in turns.
    pub fn start(binary: &str, hosts: usize, steps: &[&str], settings: &[(&str, &str)]) -> Self {
        let id = unique_id().expect("a unique id");
        let ranks = steps.len() as u32;
        let begin = |(rank, steps): (u32, &&str)| {
            let host = format!("host {}", rank as usize % hosts);
            let mut settings = settings.to_vec();
            if hosts > 1 {
                settings.push(("NCCL_HOSTID", &host));
            }
            let words: Vec<&str> = std::iter::once("mark").chain(steps.split(' ')).collect();
            Process::rank(binary, &id, (rank, ranks), &words, &settings)
        };
        let mut ranks: Vec<Process> = (0..).zip(steps).map(begin).collect();
        ranks.iter_mut().for_each(|rank| rank.wait_for("mark"));
        Self { ranks }
    }

    /// The process of a rank.
    pub fn rank(&mut self, rank: usize) -> &mut Process {
        &mut self.ranks[rank]
    }

    /// Asks the process of a rank, as [`expect`].
    ///
    /// # Panics
    /// As [`expect`].
    #[track_caller]
    pub fn expect(&mut self, asked: usize, cause: Cause, guilty: &[u32], parts: &[&str]) -> Verdict {
        expect(self.ranks[asked].id(), cause, guilty, parts)
    }
}

/// Asks a process until its verdict on some communicator is the one that is expected.
///
/// # Panics
/// It is another one for too long.
#[track_caller]
pub fn expect(pid: u32, cause: Cause, guilty: &[u32], parts: &[&str]) -> Verdict {
    let is_it = |verdict: &Verdict| {
        let text = verdict.text();
        (verdict.cause, &verdict.guilty[..]) == (cause, guilty)
            && parts.iter().all(|part| text.contains(part))
    };
    expect_by(pid, &is_it, &format!("{cause:?} on {guilty:?} with {parts:?}"))
}

/// The same for a verdict that blames one of these ranks, whichever, and for which `is_it` holds.
///
/// # Panics
/// It is another one for too long.
#[track_caller]
pub fn expect_any(pid: u32, guilty: &[u32], is_it: &dyn Fn(&Verdict) -> bool) -> Verdict {
    let blames = |verdict: &Verdict| verdict.guilty.len() == 1 && guilty.contains(&verdict.guilty[0]);
    expect_by(pid, &|verdict| blames(verdict) && is_it(verdict), &format!("on one of {guilty:?}"))
}

#[track_caller]
fn expect_by(pid: u32, is_it: &dyn Fn(&Verdict) -> bool, wanted: &str) -> Verdict {
    let until = Instant::now() + LIMIT;
    loop {
        let verdicts = client::hang(pid);
        let found = verdicts.as_ref().ok().and_then(|verdicts| verdicts.iter().find(|v| is_it(v)));
        if let Some(found) = found {
            return found.clone();
        }
        if Instant::now() >= until {
            let texts = verdicts.map(|verdicts| verdicts.iter().map(Verdict::text).collect::<String>());
            panic!("no verdict {wanted}, but:\n{texts:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
