//! The verifier catches a planted fault of every class, and names it.

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Algorithm, Collective};
use hawser_program::build::{
    copy, copy_send, input, output, recv, recv_copy_send, recv_reduce_copy, reduce, scratch, send,
};
use hawser_program::verify::{Fault, verify};
use hawser_program::{Channel, Op, Program, RankProgram, Shape, Step};

const DEPTH: u32 = 4;

fn shape(collective: Collective, ranks: u32, per_block: u32, scratch: u32) -> Shape {
    Shape { name: "planted".into(), collective, ranks, root: 0, per_block, scratch }
}

fn ring(ranks: u32) -> Program {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, ranks, 0);
    algo::program(&key).unwrap()
}

fn fault(program: &Program) -> Fault {
    verify(program, DEPTH, false).expect_err("the fault must be found")
}

fn steps(program: &mut Program, rank: usize) -> &mut Vec<Step> {
    &mut program.ranks[rank].channels[0].steps
}

#[test]
fn wrong_contribution() {
    let mut program = ring(4);
    // Rank 2 adds its chunk 0 where chunk 3 belongs.
    let step = steps(&mut program, 2).iter_mut().find(|step| step.finish).unwrap();
    assert_eq!(step.src, Some(input(3)));
    step.src = Some(input(0));
    let found = fault(&program);
    assert!(
        matches!(found, Fault::WrongContribution { chunk: 3, source: 2, source_chunk: 0, .. }),
        "{found}"
    );
    assert!(found.to_string().contains("input chunk 0 of rank 2"), "{found}");
}

#[test]
fn double_count() {
    let mut program = ring(3);
    // Rank 1 folds its own contribution into what it sends: once before and once in the ring.
    let ring_step = &mut steps(&mut program, 1)[1];
    assert_eq!(ring_step.op, Op::RecvReduceSend);
    let doubled = recv_reduce_copy(ring_step.recv.clone(), ring_step.src.unwrap(), 1, scratch(0));
    let (src, to) = (ring_step.src.unwrap(), ring_step.send.clone());
    program.shape.scratch = 1;
    let list = steps(&mut program, 1);
    list.splice(1..2, [doubled, reduce(src, scratch(0)), send(scratch(0), to)]);
    let found = fault(&program);
    assert!(matches!(found, Fault::DoubleCount { source: 1, count: 2, .. }), "{found}");
}

#[test]
fn missing_contribution() {
    let mut program = ring(4);
    let ring_step = &mut steps(&mut program, 1)[1];
    *ring_step = Step { op: Op::RecvCopySend, src: None, order: 0, ..ring_step.clone() };
    let found = fault(&program);
    assert!(matches!(found, Fault::Missing { source: 1, .. }), "{found}");
}

#[test]
fn missing_output() {
    let mut program = ring(2);
    program.shape.scratch = 1;
    steps(&mut program, 1).last_mut().unwrap().dst = Some(scratch(0));
    assert!(
        matches!(fault(&program), Fault::Missing { rank: 1, chunk: 1, source: 0 }),
        "{}",
        fault(&program)
    );
}

#[test]
fn undefined_read() {
    let mut program = ring(3);
    program.shape.scratch = 2;
    steps(&mut program, 2)[0].src = Some(scratch(1));
    let found = fault(&program);
    assert!(
        matches!(found, Fault::UndefinedRead { at, reference } if at.rank == 2 && reference == scratch(1))
    );
    assert!(found.to_string().contains("rank 2 channel 0 step 0 reads scratch chunk 1"), "{found}");
}

#[test]
fn out_of_bounds() {
    let mut program = ring(3);
    steps(&mut program, 1)[0].src = Some(input(3));
    let found = fault(&program);
    assert!(matches!(found, Fault::OutOfBounds { at, chunks: 3, .. } if at.rank == 1), "{found}");
}

#[test]
fn a_rank_without_the_buffer_is_out_of_bounds() {
    let program = Program {
        shape: shape(Collective::Broadcast, 2, 1, 0),
        ranks: vec![
            RankProgram::single(vec![copy(input(0), output(0))]),
            RankProgram::single(vec![copy(input(0), output(0))]),
        ],
    };
    assert!(matches!(fault(&program), Fault::OutOfBounds { at, chunks: 0, .. } if at.rank == 1));
}

/// Both ranks send `chunks` chunks before they take any.
fn send_first(chunks: u32) -> Program {
    let rank = |me: u32| {
        let peer = 1 - me;
        let mut steps = vec![send(input(0), vec![peer]).repeat(chunks, 1)];
        steps.push(recv(peer, output(peer * chunks)).repeat(chunks, 1));
        steps.push(copy(input(0), output(me * chunks)).repeat(chunks, 1));
        RankProgram::single(steps)
    };
    Program { shape: shape(Collective::AllGather, 2, chunks, 0), ranks: vec![rank(0), rank(1)] }
}

#[test]
fn deadlock_at_the_split_size() {
    for chunks in 1..=DEPTH {
        assert_eq!(verify(&send_first(chunks), DEPTH, false).unwrap().min_depth, chunks);
    }
    // It runs with more slots, so it is no deadlock.
    let found = fault(&send_first(DEPTH + 3));
    assert_eq!(found, Fault::TooDeep { depth: DEPTH, needed: DEPTH + 3 });
    assert!(found.to_string().contains(&format!("needs FIFOs of {} slots", DEPTH + 3)), "{found}");
    assert!(verify(&send_first(DEPTH + 1), DEPTH + 1, false).is_ok());
}

#[test]
fn deadlock_of_receivers_and_of_dependencies() {
    let mut program = ring(3);
    steps(&mut program, 0).remove(0);
    assert!(fault(&program).to_string().contains("waits for a slot from rank"), "{}", fault(&program));
    let both = vec![
        Channel { steps: vec![copy(input(0), output(0)).after(1, 0)] },
        Channel { steps: vec![copy(input(1), output(1)).after(0, 0)] },
    ];
    let program = Program {
        shape: shape(Collective::Broadcast, 1, 2, 0),
        ranks: vec![RankProgram { channels: both, lanes: Vec::new(), runs: Vec::new() }],
    };
    assert!(fault(&program).to_string().contains("rank 0 channel 0 step 0 waits for channel 1 step 0"));
}

/// Rank 0 fills scratch in channel 0 and sends it from channel 1.
fn two_channels(ordered: bool) -> Program {
    let mut forward = send(scratch(0), vec![1]);
    if ordered {
        forward = forward.after(0, 1);
    }
    let root = vec![
        Channel { steps: vec![copy(input(0), output(0)), copy(output(0), scratch(0))] },
        Channel { steps: vec![forward] },
    ];
    let other = vec![Channel::default(), Channel { steps: vec![recv(0, output(0))] }];
    let ranks = vec![
        RankProgram { channels: root, lanes: Vec::new(), runs: Vec::new() },
        RankProgram { channels: other, lanes: Vec::new(), runs: Vec::new() },
    ];
    Program { shape: shape(Collective::Broadcast, 2, 1, 1), ranks }
}

#[test]
fn race_between_channels() {
    assert!(verify(&two_channels(true), DEPTH, false).is_ok());
    let found = fault(&two_channels(false));
    let Fault::Race { at, other, reference } = &found else { panic!("{found}") };
    assert_eq!((at.rank, other.rank, *reference), (0, 0, scratch(0)));
    assert_ne!(at.channel, other.channel);
}

#[test]
fn race_of_two_writers() {
    let mut program = two_channels(true);
    program.ranks[0].channels[1].steps.push(copy(input(0), output(0)));
    program.ranks[0].channels[1].steps[0].after.clear();
    program.ranks[0].channels[1].steps[0].src = Some(input(0));
    assert!(matches!(fault(&program), Fault::Race { .. }));
}

#[test]
fn a_message_orders_channels_like_a_dependency() {
    // Rank 0 reads its input in channel 0 and overwrites it in channel 1, in place, but only after
    // the answer of rank 1 to what channel 0 sent.
    let zero =
        vec![Channel { steps: vec![send(input(0), vec![1])] }, Channel { steps: vec![recv(1, output(0))] }];
    let one = vec![
        Channel { steps: vec![recv_reduce_copy(vec![0], input(0), 1, output(0)).finish()] },
        Channel { steps: vec![send(output(0), vec![0]).after(0, 0)] },
    ];
    let ranks = vec![
        RankProgram { channels: zero, lanes: Vec::new(), runs: Vec::new() },
        RankProgram { channels: one, lanes: Vec::new(), runs: Vec::new() },
    ];
    let mut program = Program { shape: shape(Collective::AllReduce, 2, 1, 0), ranks };
    verify(&program, DEPTH, true).unwrap();
    program.ranks[1].channels[1].steps[0].after.clear();
    assert!(matches!(verify(&program, DEPTH, true), Err(Fault::Race { .. })));
}

#[test]
fn unbalanced_fifo() {
    let mut program = ring(2);
    steps(&mut program, 0).push(send(output(0), vec![1]));
    let found = fault(&program);
    assert_eq!(found, Fault::UnbalancedFifo { lane: 0, from: 0, to: 1, slots: 1 });
}

#[test]
fn bad_steps() {
    let cases = [
        (Step { send: vec![], ..send(input(0), vec![1]) }, "operands or peers"),
        (send(input(0), vec![0]), "itself"),
        (send(input(0), vec![7]), "rank 7"),
        (send(input(0), vec![1, 1]), "twice"),
        (Step { dst: None, ..recv(1, output(0)) }, "operands or peers"),
        (recv_reduce_copy(vec![1], input(0), 2, output(0)), "order 2"),
        (send(input(0), vec![1]).repeat(0, 0), "zero times"),
        (send(input(0), vec![1]).after(0, 0), "not a step of another channel"),
        (Step::new(Op::Native(3)), "native"),
        (send(input(0), (1..10).collect()), "at most 8"),
    ];
    for (step, text) in cases {
        let mut program = ring(2);
        program.ranks[0].channels[0].steps.push(step);
        let found = fault(&program);
        assert!(matches!(found, Fault::BadStep { .. }) && found.to_string().contains(text), "{found}");
    }
    let mut program = ring(2);
    program.ranks.pop();
    assert!(matches!(fault(&program), Fault::BadShape(_)));
    let mut program = ring(2);
    program.ranks[1].channels.push(Channel::default());
    assert!(matches!(fault(&program), Fault::BadShape(_)));
    let mut program = ring(2);
    program.shape.scratch = u32::MAX;
    assert!(fault(&program).to_string().contains("the verifier takes"));
    let mut program = ring(2);
    steps(&mut program, 0)[0].times = u32::MAX;
    assert!(fault(&program).to_string().contains("the verifier takes"));
}

#[test]
fn not_finished_and_finished_twice() {
    let mut program = ring(3);
    steps(&mut program, 1).iter_mut().for_each(|step| step.finish = false);
    assert!(matches!(fault(&program), Fault::NotFinished { .. }));
    let mut program = ring(3);
    steps(&mut program, 1)[1].finish = true;
    assert!(matches!(fault(&program), Fault::FinishedTwice { .. }));
}

#[test]
fn an_input_overwritten_in_place_is_found() {
    // Right out of place; in place rank 0 reads its input after the result took its place.
    let zero = vec![recv_reduce_copy(vec![1], input(0), 1, output(0)).finish(), send(input(0), vec![1])];
    let one = vec![send(input(0), vec![0]), recv_reduce_copy(vec![0], input(0), 1, output(0)).finish()];
    let ranks = vec![RankProgram::single(zero), RankProgram::single(one)];
    let program = Program { shape: shape(Collective::AllReduce, 2, 1, 0), ranks };
    verify(&program, DEPTH, false).unwrap();
    assert!(matches!(verify(&program, DEPTH, true), Err(Fault::OverwrittenInput { at, .. }) if at.rank == 0));
}

#[test]
fn different_orders_are_not_bitwise_equal() {
    let rank = |me: u32| {
        let peers: Vec<u32> = (0..3).filter(|&peer| peer != me).collect();
        RankProgram::single(vec![
            send(input(0), peers.clone()),
            recv_reduce_copy(peers, input(0), 0, output(0)).finish(),
        ])
    };
    let program = Program { shape: shape(Collective::AllReduce, 3, 1, 0), ranks: (0..3).map(rank).collect() };
    let verdict = verify(&program, DEPTH, false).unwrap();
    assert!(!verdict.bitwise_equal);
    assert_eq!(verdict.steps, 6);
}

#[test]
fn chains_of_copies_need_no_more_than_one_slot() {
    let ranks = vec![
        RankProgram::single(vec![copy_send(input(0), output(0), vec![1])]),
        RankProgram::single(vec![recv_copy_send(0, output(0), vec![2])]),
        RankProgram::single(vec![recv(1, output(0))]),
    ];
    let program = Program { shape: shape(Collective::Broadcast, 3, 1, 0), ranks };
    assert_eq!(verify(&program, DEPTH, true).unwrap().min_depth, 1);
}

#[test]
fn two_channels_on_one_fifo() {
    let both = |step: fn(u32) -> Step| {
        let channels = vec![Channel { steps: vec![step(0)] }, Channel { steps: vec![step(1)] }];
        RankProgram { channels, lanes: vec![0, 0], runs: Vec::new() }
    };
    let root = both(|chunk| copy_send(input(chunk), output(chunk), vec![1]));
    let other = both(|chunk| recv(0, output(chunk)));
    let mut program = Program { shape: shape(Collective::Broadcast, 2, 2, 0), ranks: vec![root, other] };
    let found = fault(&program);
    let shared = Fault::SharedLane { rank: 0, peer: 1, lane: 0, channels: [0, 1] };
    assert_eq!(found, shared);
    assert!(found.to_string().contains("both talk to rank 1 on lane 0"), "{found}");
    program.ranks.iter_mut().for_each(|rank| rank.lanes = vec![3, 1]);
    assert!(verify(&program, DEPTH, false).is_ok());
}

/// An all-to-all of two hosts with two ranks each, whose channel 1 moves runs of two chunks.
fn relay() -> Program {
    let key = ProgramKey::new(Collective::AllToAll, Algorithm::RailRelay, 4, 0);
    let program = algo::program(&ProgramKey { per_host: 2, ..key }).unwrap();
    verify(&program, DEPTH, false).unwrap();
    program
}

#[test]
fn runs_that_do_not_fit() {
    let says = |change: &dyn Fn(&mut Program), words: &str| {
        let mut program = relay();
        change(&mut program);
        let found = fault(&program).to_string();
        assert!(found.contains(words), "no {words}: {found}");
    };
    says(&|program| program.ranks[0].runs = vec![1], "names 1 runs for 3 channels");
    for run in [0, 3] {
        says(&|program| program.ranks[0].runs = vec![1, run, 1], "does not cut every buffer evenly");
    }
    says(&|program| program.shape.per_block = 2, "blocks that are cut into 2 chunks");
    let waits = |program: &mut Program| {
        let step = &mut program.ranks[0].channels[0].steps[0];
        *step = step.clone().after(1, 0);
    };
    says(&waits, "waits for channel 1, which moves runs");
    says(&|program| program.ranks[0].channels[1].steps[1].dst = Some(output(2)), "out of bounds");
    let one = |program: &mut Program| {
        program.ranks[0].runs.clear();
        program.ranks[0].channels[1].steps[0].src = Some(scratch(2));
    };
    says(&one, "takes a run of 2 chunks, rank 0 sends 1");
    // Each chunk of a run counts.
    says(&|program| program.ranks[0].channels[1].steps[0].times = 1 << 24, "executed steps");
}
