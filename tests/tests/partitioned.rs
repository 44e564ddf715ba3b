//! Partitioned collectives: results in every order of marks, what is not ready is not sent, bad input, and
//! ends in the middle of a round.

use std::sync::atomic::{AtomicU32, Ordering};

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::partitioned::{Partitioned, Shape};
use hawser_runtime::{Comm, ErrorKind, Stream, group};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::{Case, RankBuffers};
use hawser_tests::partitions::{Rank, lengths, shuffled};
use hawser_tests::soak::Random;
use hawser_tests::world::{all_reduce, call, in_threads, on_host, on_hosts, plain};

const STREAM: Stream = Stream(0);

#[test]
fn every_collective_is_right_in_every_order_of_marks() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for ranks in [1, 2, 3, 5] {
        in_threads(ranks, |comm| {
            // What all ranks have alike, and what each draws by itself.
            let (mut same, mut own) = (Random(0x5eed), Random(77 + u64::from(comm.rank())));
            for collective in Collective::ALL {
                let has_in_place = collective != Collective::AllToAll;
                for in_place in [false, true].into_iter().filter(|in_place| has_in_place || !in_place) {
                    let case = random_case(collective, ranks, &mut same);
                    rounds(comm, case, in_place, &mut same, &mut own);
                }
            }
        });
    }
}

fn random_case(collective: Collective, ranks: u32, same: &mut Random) -> Case {
    let dtype = [DataType::Float32, DataType::Float16, DataType::Int64, DataType::Uint8];
    let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg, ReduceOp::PreMulSum];
    let pick = same.below(4) as usize;
    let (dtype, op) = if collective.reduces() {
        (dtype[pick], op[same.below(4) as usize])
    } else {
        (dtype[pick], ReduceOp::Sum)
    };
    let root = same.below(u64::from(ranks)) as u32;
    let root = if collective.rooted() { root } else { 0 };
    Case { collective, dtype, op, ranks, root, count: 1 + same.below(20_000) as usize }
}

fn rounds(comm: &Comm, case: Case, in_place: bool, same: &mut Random, own: &mut Random) {
    let partitions = 1 + same.below(7) as u32;
    let counts = lengths(case.count as u64, partitions, same);
    let order = if same.below(2) == 0 { Vec::new() } else { shuffled(partitions, same) };
    let mut rank = Rank::new(comm, case, in_place, &counts, &order).unwrap();
    for _ in 0..3 {
        rank.round(own).unwrap();
    }
}

#[test]
fn several_hosts_carry_partitions() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    on_hosts("aab", &hawser_runtime::Config::default(), |comm| {
        let (mut same, mut own) = (Random(9), Random(5 + u64::from(comm.rank())));
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllToAll] {
            rounds(comm, plain(collective, 3, 70_000), false, &mut same, &mut own);
        }
    });
}

#[test]
fn partitions_arrive_while_others_are_not_ready_and_the_parent_works() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        let case = plain(Collective::AllReduce, 2, 1_000);
        let mut rank = Rank::new(comm, case, false, &[500, 500], &[1, 0]).unwrap();
        rank.partitioned().start(STREAM).unwrap();
        rank.fill(1);
        rank.partitioned().ready(1, STREAM).unwrap();
        rank.partitioned().wait(1, STREAM).unwrap();
        assert!(!rank.partitioned().has_arrived(0).unwrap());
        all_reduce(comm, 100).unwrap();
        rank.fill(0);
        rank.partitioned().ready(0, STREAM).unwrap();
        rank.partitioned().finish(STREAM).unwrap();
    });
}

#[test]
fn a_kernel_counts_a_partition_up_before_it_is_ready() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        let case = plain(Collective::AllReduce, 2, 600);
        let buffers = RankBuffers::new(&case, comm.rank(), false, 0);
        let call = call(&case, comm.rank(), buffers.addresses(&case, comm.rank()));
        let shape = Shape { arrivals: 3, ..shape_of(call, &[200, 400]) };
        let partitioned = Partitioned::init(comm, shape).unwrap();
        for _ in 0..2 {
            partitioned.start(STREAM).unwrap();
            let words = partitioned.words();
            assert_eq!(words.arrivals, 3);
            for partition in [1u64, 0] {
                // SAFETY: the words of two partitions, which live as long as the collective.
                let word = unsafe { AtomicU32::from_ptr((words.ready + 4 * partition) as *mut u32) };
                std::thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| word.fetch_add(1, Ordering::Release));
                    }
                });
            }
            partitioned.finish(STREAM).unwrap();
            assert_eq!(buffers.fault(&case, comm.rank()), None);
        }
    });
}

#[test]
fn what_is_late_on_one_rank_is_learned_to_go_last() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let all_ranks = std::sync::Barrier::new(3);
    in_threads(3, |comm| {
        let case = plain(Collective::AllReduce, 3, 900);
        let mut rank = Rank::new(comm, case, false, &[300, 300, 300], &[]).unwrap();
        // The first partition is the last that rank 1 has; its others are ready at once.
        let all = |rank: &mut Rank, partitions: &[u32]| {
            for partition in partitions {
                rank.fill(*partition as usize);
                rank.partitioned().ready(*partition, STREAM).unwrap();
            }
        };
        // Its round begins before those of the others, and its first partition is ready after all of theirs.
        if comm.rank() == 1 {
            rank.partitioned().start(STREAM).unwrap();
            all_ranks.wait();
            all(&mut rank, &[2, 1]);
            all_ranks.wait();
            std::thread::sleep(std::time::Duration::from_millis(1));
            all(&mut rank, &[0]);
        } else {
            all_ranks.wait();
            rank.partitioned().start(STREAM).unwrap();
            all(&mut rank, &[0, 2, 1]);
            all_ranks.wait();
        }
        let error = rank.partitioned().learn().unwrap_err();
        assert!(error.text.contains("not finished"), "{error}");
        rank.partitioned().finish(STREAM).unwrap();
        let learned = rank.partitioned().learn().unwrap();
        assert_eq!(learned[2], 0, "{learned:?}");
        // In the next round the others arrive while it is not ready anywhere.
        rank.partitioned().start(STREAM).unwrap();
        all(&mut rank, &[1, 2]);
        rank.partitioned().wait(1, STREAM).unwrap();
        rank.partitioned().wait(2, STREAM).unwrap();
        assert!(!rank.partitioned().has_arrived(0).unwrap());
        all(&mut rank, &[0]);
        rank.partitioned().finish(STREAM).unwrap();
    });
}

#[test]
fn ranks_that_ask_for_different_things_are_named_on_all() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(3, |comm| {
        let buffer = [0f32; 100];
        let case = plain(Collective::AllReduce, 3, 100);
        let call = call(&case, comm.rank(), (buffer.as_ptr() as u64, buffer.as_ptr() as u64));
        let counts: &[u64] = if comm.rank() == 2 { &[60, 40] } else { &[50, 50] };
        let error = Partitioned::init(comm, shape_of(call, counts)).err().unwrap();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(
            error.text.contains("rank 2 asks for all_reduce") && error.text.contains("[60, 40]"),
            "{error}"
        );
        // A fault of one rank is told to all.
        let counts: &[u64] = if comm.rank() == 1 { &[50, 49] } else { &[50, 50] };
        let error = Partitioned::init(comm, shape_of(call, counts)).err().unwrap();
        assert!(comm.rank() == 1 || error.text.contains("on rank 1"), "{error}");
        assert!(error.text.contains("99 elements"), "{error}");
        all_reduce(comm, 10).unwrap();
    });
}

#[test]
fn calls_that_do_not_fit_a_round_are_refused() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(1, |comm| {
        let buffer = [0f32; 100];
        let case = plain(Collective::AllReduce, 1, 100);
        let call = call(&case, 0, (buffer.as_ptr() as u64, buffer.as_ptr() as u64));
        let partitioned = Partitioned::init(comm, shape_of(call, &[50, 50])).unwrap();
        let usage = |outcome: hawser_runtime::Result<()>, text: &str| {
            let error = outcome.unwrap_err();
            assert!(error.kind == ErrorKind::InvalidUsage && error.text.contains(text), "{error}");
        };
        usage(partitioned.ready(0, STREAM), "no round has begun");
        usage(partitioned.wait(0, STREAM), "no round has begun");
        usage(partitioned.finish(STREAM), "no round has begun");
        group::start().unwrap();
        usage(partitioned.start(STREAM), "in a group");
        usage(group::end(), "in a group");
        partitioned.start(STREAM).unwrap();
        usage(partitioned.start(STREAM), "not finished");
        let error = partitioned.ready(2, STREAM).unwrap_err();
        assert!(error.kind == ErrorKind::InvalidArgument && error.text.contains("0..1"), "{error}");
        partitioned.ready(0, STREAM).unwrap();
        usage(partitioned.ready(0, STREAM), "ready already");
        partitioned.ready(1, STREAM).unwrap();
        partitioned.finish(STREAM).unwrap();
        usage(partitioned.wait(0, STREAM), "no round has begun");
    });
}

#[test]
fn aborting_a_round_ends_the_wait_of_another_thread() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(1, |comm| {
        let buffer = [0f32; 10];
        let case = plain(Collective::AllReduce, 1, 10);
        let call = call(&case, 0, (buffer.as_ptr() as u64, buffer.as_ptr() as u64));
        let partitioned = Partitioned::init(comm, shape_of(call, &[10])).unwrap();
        partitioned.start(STREAM).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| partitioned.wait(0, STREAM));
            partitioned.abort_round();
            let error = waiting.join().unwrap().unwrap_err();
            assert!(error.text.contains("abort"), "{error}");
        });
        all_reduce(comm, 10).unwrap();
    });
}

#[test]
fn dropping_one_in_a_round_ends_the_waits_of_all() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |comm| {
        let buffer = [0f32; 100];
        let case = plain(Collective::AllReduce, 2, 100);
        let call = call(&case, comm.rank(), (buffer.as_ptr() as u64, buffer.as_ptr() as u64));
        let partitioned = Partitioned::init(comm, shape_of(call, &[50, 50])).unwrap();
        partitioned.start(STREAM).unwrap();
        if comm.rank() == 0 {
            // Its second partition never becomes ready.
            partitioned.ready(0, STREAM).unwrap();
            partitioned.wait(0, STREAM).unwrap();
            return;
        }
        partitioned.ready(0, STREAM).unwrap();
        partitioned.ready(1, STREAM).unwrap();
        let error = partitioned.finish(STREAM).unwrap_err();
        assert!(error.text.contains("rank 0"), "{error}");
        assert!(partitioned.start(STREAM).is_err());
    });
}

fn shape_of(call: hawser_plan::Call, counts: &[u64]) -> Shape {
    Shape { call, counts: counts.to_vec(), order: Vec::new(), arrivals: 1, options: None }
}
