//! Long puts to ranks of other hosts go over the net plugin, here the tests' own, which is as awkward as the
//! contract allows: their order, what becomes of them after faults, and that no other way carries them.

use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_runtime::rma::{Put, RmaOp, Window};
use hawser_runtime::{Comm, Config, Error, ErrorKind, Result, Stream, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::net;
use hawser_tests::process::Process;
use hawser_tests::puts::{FIRST, signal, wait};
use hawser_tests::world::{on_host, on_hosts};

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
/// Bytes of a put that is long by default.
const LONG: usize = 65_536;
/// Bytes of a window.
const BYTES: usize = 6 << 20;
/// Puts of a rank to another one in a round.
const PUTS: u64 = 8;
/// The window that is put from; those with lower numbers are put into.
const SOURCE: u64 = 2;

/// One test at a time: the net's figures and faults are those of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers that are the same for the same seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// The puts of a rank to another one in a round: window, offset, length, and the place that each comes from.
fn draw((round, from, to): (u64, u32, u32), ranks: u32) -> Vec<(u64, usize, usize, usize)> {
    let mut draws = Draws(round << 32 | u64::from(from) << 16 | u64::from(to));
    let share = BYTES / ranks as usize;
    let one = |_| {
        let kinds = [100, LONG - 1, LONG + 2, 70_001, share / 2, share];
        let most = kinds[draws.below(kinds.len())];
        let bytes = (most - draws.below(most.min(3))).min(share);
        let at = share * from as usize + draws.below(share - bytes + 1);
        (draws.below(2) as u64, at, bytes, draws.below(BYTES - bytes + 1))
    };
    (0..PUTS).map(one).collect()
}

/// The windows of a rank.
struct Memory(Vec<Vec<u8>>);

impl Memory {
    fn byte(rank: u32, at: usize) -> u8 {
        (at * 7 + at / 251 + rank as usize * 31 + 1) as u8
    }

    fn new(comm: &Comm) -> Self {
        let source = (0..BYTES).map(|at| Self::byte(comm.rank(), at)).collect();
        let memory = Self(vec![vec![0; BYTES], vec![0; BYTES], source]);
        for (number, part) in (0..).zip(&memory.0) {
            let window = Window { addr: part.as_ptr() as u64, bytes: BYTES as u64, is_symmetric: true };
            comm.expose(number, window).unwrap();
        }
        memory
    }

    fn put(&self, comm: &Comm, to: u32, put: (u64, usize, usize, usize)) -> Result<()> {
        let (window, offset, bytes, at) = put;
        let from = self.0[SOURCE as usize].as_ptr() as u64 + at as u64;
        let put = Put { from, bytes: bytes as u64, window, offset: offset as u64 };
        comm.one_sided(RmaOp::Signal { peer: to, put: Some(put), signal: FIRST }, Stream(0))
    }

    fn hide(comm: &Comm) {
        (0..=SOURCE).for_each(|number| comm.hide(number));
    }
}

/// Puts of any length to any place, also to the same one, of two windows: what was put last is there when as
/// many signals have come.
#[test]
fn puts_and_signals_keep_their_order() {
    if !on_host() {
        return;
    }
    let (_alone, _deadline) = (alone(), Deadline::start());
    for (hosts, rounds) in [("ab", 0..12), ("abc", 12..20), ("aabb", 20..24)] {
        let (before, ranks) = (net::bytes_carried(), hosts.len() as u32);
        on_hosts(hosts, &Config::default(), |comm| {
            let memory = Memory::new(comm);
            let mut model = [vec![0; BYTES], vec![0; BYTES]];
            for round in rounds.clone() {
                for to in 0..ranks {
                    let puts = draw((round, comm.rank(), to), ranks);
                    puts.into_iter().for_each(|put| memory.put(comm, to, put).unwrap());
                }
                wait(comm, 0..ranks, PUTS, FIRST).unwrap();
                for from in 0..ranks {
                    for (window, offset, bytes, at) in draw((round, from, comm.rank()), ranks) {
                        let part = &mut model[window as usize][offset..offset + bytes];
                        part.iter_mut().zip(at..).for_each(|(byte, at)| *byte = Memory::byte(from, at));
                    }
                }
                assert!(model[..] == memory.0[..2], "round {round}, rank {}", comm.rank());
                (0..ranks).for_each(|to| signal(comm, to, FIRST).unwrap());
                wait(comm, 0..ranks, 1, FIRST).unwrap();
            }
            Memory::hide(comm);
        });
        // Nothing else crosses the net.
        let host = |rank: u32| hosts.as_bytes()[rank as usize];
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        let far = pairs.filter(|(from, to)| host(*from) != host(*to));
        let puts =
            far.flat_map(|(from, to)| rounds.clone().flat_map(move |round| draw((round, from, to), ranks)));
        let long: usize = puts.map(|(_, _, bytes, _)| bytes).filter(|bytes| *bytes >= LONG).sum();
        assert_eq!(net::bytes_carried() - before, long as u64, "{hosts}");
    }
}

/// Rank 0 puts 40 pieces to rank 1, which waits for the signal, until both have failed: their errors. `then`
/// runs on each rank in a thread of its own.
fn failures(then: impl Fn(&Comm) + Sync) -> [Option<Error>; 2] {
    let (id, ended) = (unique_id().unwrap(), Barrier::new(2));
    let run = |rank: u32| {
        let config = Config { host: Some(rank.to_string()), ..Config::default() };
        let comm = Comm::init(&[id], 2, rank, rank, config).unwrap();
        let memory = Memory::new(&comm);
        let other = comm.clone();
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                then(&other);
            });
            let outcome = match rank {
                0 => (0..40).try_for_each(|_| memory.put(&comm, 1, (0, 0, BYTES, 0))),
                _ => wait(&comm, std::iter::once(0), 40, FIRST),
            };
            outcome.err()
        });
        ended.wait();
        // One of them may have aborted already.
        let _ = comm.abort();
        // What is in flight goes nowhere from here on.
        drop(memory);
        failed
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|rank| scope.spawn(move || run(rank)));
        threads.map(|thread| thread.join().unwrap())
    })
}

#[test]
fn a_net_that_breaks_in_the_midst_ends_both() {
    if !on_host() {
        return;
    }
    let (_alone, _deadline) = (alone(), Deadline::start());
    net::break_after(5);
    let errors = failures(|_| {});
    net::break_after(u64::MAX);
    for (error, peer) in errors.into_iter().zip(["rank 1", "rank 0"]) {
        let error = error.expect("a failure");
        assert!(error.text.contains("rank") && error.text.contains(peer), "{error}");
    }
}

/// The net hangs in the midst of a put: an abort ends it, and who waits for its signal.
#[test]
fn abort_ends_a_put_in_the_midst() {
    if !on_host() {
        return;
    }
    let (_alone, _deadline) = (alone(), Deadline::start());
    for rank in 0..2 {
        net::stall_after(5);
        let mut errors = failures(|comm| {
            if comm.rank() == rank {
                comm.abort().unwrap();
            }
        });
        net::stall_after(u64::MAX);
        let error = errors[rank as usize].take().expect("a failure");
        assert_eq!(error.kind, ErrorKind::Aborted, "{error}");
        let error = errors[1 - rank as usize].take().expect("a failure");
        assert!(error.text.contains(&format!("rank {rank}")), "{error}");
    }
}

/// The same while a window goes: nothing is written into it from then on, and the put fails.
#[test]
fn a_window_may_go_in_the_midst_of_a_put() {
    if !on_host() {
        return;
    }
    let (_alone, _deadline) = (alone(), Deadline::start());
    for rank in 0..2 {
        net::stall_after(5);
        let errors = failures(|comm| {
            if comm.rank() == rank {
                Memory::hide(comm);
            }
        });
        net::stall_after(u64::MAX);
        for error in errors {
            let error = error.expect("a failure");
            assert!(error.text.contains("rank"), "{error}");
        }
    }
}

/// Ranks in threads of one process, whose net is the tests' own, that put until one fails.
fn looped(step: &str, settings: &[(&str, &str)]) -> String {
    let all: Vec<_> = [("NCCL_NET", "test")].into_iter().chain(settings.iter().copied()).collect();
    Process::hosts(RANK, "ab", &[step, "?put-loop"], &all).end().output
}

/// The same fault passes as a wrong result without checksums, so that it is a real one.
#[test]
fn a_changed_bit_of_a_put_is_noticed() {
    if !on_host() {
        return;
    }
    let output = looped("flip", &[]);
    assert!(output.contains("wrong result"), "{output}");
    let output = looped("flip", &[("HAWSER_CHECKSUM", "1")]);
    let parts = ["changed on the way", " failed receiving from rank ", "through test"];
    assert!(parts.iter().all(|part| output.contains(part)) && !output.contains("wrong result"), "{output}");
}

#[test]
fn a_deadline_ends_a_put_over_a_net_that_hangs() {
    if !on_host() {
        return;
    }
    let output = looped("stall", &[("HAWSER_OP_TIMEOUT", "1")]);
    assert!(output.contains("deadline of 1s passed while rank "), "{output}");
}
