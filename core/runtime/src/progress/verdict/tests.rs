use super::*;
use crate::progress::operation::{Awaited, OneMessage};
use crate::progress::stall::{NetRequest, Stall};

const COMM: u64 = 0xa;
const OTHER: u64 = 0xb;

fn all_reduce(count: u64) -> What {
    What::Collective { collective: 0, dtype: 7, op: 0, count, root: 0 }
}

fn broadcast(root: u32) -> What {
    What::Collective { collective: 2, dtype: 7, op: 0, count: 64, root }
}

fn messages(of: &[(u32, bool)]) -> What {
    let one = |(peer, is_send): &(u32, bool)| OneMessage { peer: *peer, is_send: *is_send, bytes: 1 << 20 };
    What::Messages { total: of.len() as u32, first: of.iter().map(one).collect() }
}

fn operation(number: u64, what: What, stage: Stage) -> Operation {
    let sequence = (number & !MESSAGES) + 1;
    Operation { sequence, number, what, stage, age_ms: 65_000, predicted_ns: 0, tag: 0 }
}

fn waits(number: u64, peer: u32) -> Waits {
    Waits { number, peer, awaited: Awaited::Data, block: 0, step: 1, since_ms: 64_000 }
}

/// A rank of four, which has called these operations.
fn comm(comm_id: u64, rank: u32, operations: Vec<Operation>, waits_for: Option<(u64, u32)>) -> CommReport {
    let collectives = operations.iter().filter(|operation| operation.what.is_collective());
    CommReport {
        comm_id,
        name: if comm_id == COMM { "world".into() } else { "tp".into() },
        rank,
        ranks: 4,
        world: rank,
        is_exact: true,
        taken_ms: 70_000,
        collectives: collectives.map(|operation| operation.number + 1).max().unwrap_or(0),
        queued: None,
        waits: waits_for.into_iter().map(|(number, peer)| waits(number, peer)).collect(),
        operations,
        stalls: Vec::new(),
    }
}

fn process(rank: u32, comms: Vec<CommReport>) -> ProcessReport {
    let state =
        ProcessState { letter: 'S', tracer: 0, swapped_kib: 0, main_thread: "in clock_nanosleep(2)".into() };
    let (machine, host, pid) = ([1; 16], "alpha".into(), 100 + rank);
    ProcessReport {
        machine,
        host,
        pid,
        state: Some(state),
        comms,
        joining: Vec::new(),
        neighbours: Vec::new(),
        losses: Vec::new(),
        figures: Vec::new(),
    }
}

/// The evidence of four ranks on one host.
fn evidence(reports: Vec<ProcessReport>) -> Evidence {
    let member = |rank| (rank, Member { host: "alpha".into(), pid: 100 + rank });
    Evidence { comm_id: COMM, members: (0..4).map(member).collect(), gone: Vec::new(), reports }
}

/// All ranks are in all-reduce 3; each waits for the next one.
fn all_in_one() -> Vec<CommReport> {
    let of = |rank: u32| {
        let operations =
            vec![operation(2, all_reduce(8), Stage::Done), operation(3, all_reduce(64), Stage::Submitted)];
        comm(COMM, rank, operations, Some((3, (rank + 3) % 4)))
    };
    (0..4).map(of).collect()
}

fn each_alone(comms: Vec<CommReport>) -> Vec<ProcessReport> {
    comms.into_iter().map(|comm| process(comm.rank, vec![comm])).collect()
}

#[track_caller]
fn check(evidence: &Evidence, cause: Cause, guilty: &[u32], parts: &[&str]) {
    let verdict = verdict(evidence);
    assert_eq!((verdict.cause, &verdict.guilty[..]), (cause, guilty), "{}", verdict.text());
    let text = verdict.text();
    parts.iter().for_each(|part| assert!(text.contains(part), "no '{part}' in:\n{text}"));
    assert_eq!(verdict.rows.len(), 4);
    let json = serde_json::to_string(&verdict).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
}

#[test]
fn a_rank_that_has_not_called_is_named() {
    let mut comms = all_in_one();
    comms[2].operations.pop();
    (comms[2].collectives, comms[2].waits) = (3, Vec::new());
    let parts = [
        "rank 2 (host alpha, process 102) has not called what the others wait for",
        "its last was operation 2, all_reduce(8 x float, sum)",
        "its main thread is in clock_nanosleep(2)",
        "rank 0 has waited in operation 3, all_reduce(64 x float, sum) for 65.0 s",
    ];
    check(&evidence(each_alone(comms)), Cause::NotCalled, &[2], &parts);
}

#[test]
fn calls_that_differ_are_named_with_both_sides() {
    let cases: [(What, &str); 4] = [
        (broadcast(0), "another collective"),
        (all_reduce(65), "another count"),
        (What::Collective { collective: 0, dtype: 6, op: 0, count: 64, root: 0 }, "another type"),
        (What::Collective { collective: 0, dtype: 7, op: 2, count: 64, root: 0 }, "another reduction"),
    ];
    for (what, difference) in cases {
        let mut comms = all_in_one();
        comms[3].operations[1].what = what;
        let parts = ["rank 3 (host alpha, process 103)", difference, "where rank 0 called all_reduce(64"];
        check(&evidence(each_alone(comms)), Cause::Mismatch, &[3], &parts);
    }
    let mut comms = all_in_one();
    comms.iter_mut().for_each(|comm| comm.operations[1].what = broadcast(0));
    comms[1].operations[1].what = broadcast(1);
    check(&evidence(each_alone(comms)), Cause::Mismatch, &[1], &["another root"]);
}

#[test]
fn stopped_held_and_silent_processes_are_named() {
    let mut comms = all_in_one();
    comms.remove(1);
    let mut seen = evidence(each_alone(comms));
    check(&seen, Cause::Silent, &[1], &["rank 1 (host alpha, process 101) does not answer"]);
    let state = |letter, tracer| ProcessState {
        letter,
        tracer,
        swapped_kib: if letter == 'D' { 40 << 10 } else { 0 },
        main_thread: String::new(),
    };
    for (letter, cause) in
        [('T', Cause::Stopped), ('t', Cause::Debugger), ('D', Cause::Uninterruptible), ('Z', Cause::Gone)]
    {
        seen.reports[0].neighbours = vec![(1, state(letter, 77))];
        check(&seen, cause, &[1], &["process 101"]);
    }
    // What is said of ranks of another communicator says nothing about it.
    seen.reports[0].comms.insert(0, comm(OTHER, 0, Vec::new(), None));
    check(&seen, Cause::Silent, &[1], &[]);
}

#[test]
fn ranks_that_have_gone_come_first() {
    let mut seen = evidence(each_alone(all_in_one().drain(1..).collect()));
    let gone = |rank, end, how: &str| Gone { rank, end, how: how.into() };
    seen.gone = vec![gone(0, HowGone::Died, "it has died (its process ended)")];
    check(&seen, Cause::Gone, &[0], &["rank 0 (host alpha, process 100): it has died"]);
    // Those that failed because of it, or later, are not to blame.
    let failed = |rank, because_of| gone(rank, HowGone::Failed(because_of), "it has failed (a wait ended)");
    seen.gone = vec![failed(1, Some(0)), failed(2, None), gone(0, HowGone::Died, "it has died")];
    check(&seen, Cause::Gone, &[0], &["it has died"]);
    seen.gone = vec![failed(1, Some(2)), failed(2, None)];
    check(&seen, Cause::Gone, &[2], &["it has failed"]);
    // One that left in peace is to blame only where somebody waits for it.
    seen.gone = vec![failed(1, Some(3)), failed(2, Some(3)), gone(3, HowGone::Left, "it has aborted it")];
    check(&seen, Cause::Gone, &[3], &["it has aborted it"]);

    let out = |rank| gone(rank, HowGone::OutOfReach, "it was found out of reach");
    seen.gone = vec![failed(1, Some(3)), failed(2, Some(3)), out(3)];
    check(&seen, Cause::Gone, &[3], &["out of reach"]);
    seen.gone = vec![out(0)];
    check(&seen, Cause::Gone, &[0], &["out of reach", "rank 1 has waited"]);
    seen.gone = vec![gone(0, HowGone::Left, "it has left")];
    check(&seen, Cause::Gone, &[0], &["it has left", "rank 1 has waited"]);
    seen.reports[2].comms[0].operations.pop();
    seen.reports[2].comms[0].collectives = 3;
    seen.reports[2].comms[0].waits.clear();
    check(&seen, Cause::NotCalled, &[3], &["has not called"]);
}

#[test]
fn a_group_that_is_not_ended_is_named() {
    let mut comms = all_in_one();
    comms[1].operations.pop();
    (comms[1].collectives, comms[1].waits, comms[1].queued) = (3, Vec::new(), Some((2, 9_000)));
    check(&evidence(each_alone(comms)), Cause::GroupOpen, &[1], &["queued 2 calls in a group for 9.0 s"]);
}

#[test]
fn orders_of_two_communicators_that_differ_are_a_circle() {
    let open = |comm_id, rank, number| {
        let operations = vec![operation(number, all_reduce(4), Stage::Submitted)];
        comm(comm_id, rank, operations, Some((number, (rank + 1) % 4)))
    };
    let idle = |comm_id, rank| comm(comm_id, rank, Vec::new(), None);
    // Ranks 0 to 2 are in `world`, rank 3 is in `tp`, where it waits for rank 0.
    let mut reports: Vec<ProcessReport> =
        (0..3).map(|rank| process(rank, vec![open(COMM, rank, 0), idle(OTHER, rank)])).collect();
    reports.push(process(3, vec![idle(COMM, 3), open(OTHER, 3, 0)]));
    let parts = ["2 communicators in different orders", "communicator tp", "communicator world"];
    check(&evidence(reports), Cause::OtherOrder, &[0, 3], &parts);
}

#[test]
fn messages_that_wait_for_each_other_are_a_circle_and_a_missing_one_is_not() {
    let sends = |rank: u32, peer: u32| {
        let operations = vec![operation(MESSAGES, messages(&[(peer, true)]), Stage::Submitted)];
        comm(COMM, rank, operations, Some((MESSAGES, peer)))
    };
    let idle = |rank| comm(COMM, rank, Vec::new(), None);
    let crossed = evidence(each_alone(vec![sends(0, 1), sends(1, 0), idle(2), idle(3)]));
    check(&crossed, Cause::MessagesCross, &[0, 1], &["wait for each other's messages", "send to 1"]);
    let missing = evidence(each_alone(vec![sends(0, 1), idle(1), idle(2), idle(3)]));
    check(&missing, Cause::NotCalled, &[1], &["it has called nothing yet"]);
}

#[test]
fn a_kernel_that_waits_for_nobody_is_named() {
    let mut comms = all_in_one();
    comms.iter_mut().for_each(|comm| comm.is_exact = false);
    comms[0].waits = vec![waits(3, 2)];
    comms[2].waits.clear();
    let parts = ["rank 2", "its kernel waits for no rank"];
    check(&evidence(each_alone(comms)), Cause::KernelSilent, &[2], &parts);
}

#[test]
fn of_a_silent_kernel_the_operation_is_named_that_the_others_wait_in() {
    // On no rank anybody has seen that operation 2 is over; the kernels of others say that they are in 3.
    let mut comms = all_in_one();
    for comm in &mut comms {
        (comm.is_exact, comm.operations[0].stage) = (false, Stage::Submitted);
        comm.waits = vec![waits(3, 2)];
    }
    comms[2].waits.clear();
    let parts = ["rank 2", "has submitted operation 3,", "rank 0 has waited in operation 3"];
    check(&evidence(each_alone(comms.clone())), Cause::KernelSilent, &[2], &parts);
    // Where the others wait in the one before, that is it.
    comms.iter_mut().filter(|comm| comm.rank != 2).for_each(|comm| comm.waits = vec![waits(2, 2)]);
    check(&evidence(each_alone(comms.clone())), Cause::KernelSilent, &[2], &["has submitted operation 2,"]);
    // Nobody says anything: the oldest that is not known to be over.
    comms.iter_mut().for_each(|comm| comm.waits.clear());
    check(&evidence(each_alone(comms)), Cause::KernelSilent, &[0], &["has submitted operation 2,"]);
    // The first rank may be the guilty one.
    let mut comms = all_in_one();
    for comm in &mut comms {
        (comm.is_exact, comm.operations[0].stage) = (false, Stage::Submitted);
        comm.waits = vec![waits(3, 0)];
    }
    comms[0].waits.clear();
    let parts = ["rank 0", "has submitted operation 3,", "rank 1 has waited in operation 3"];
    check(&evidence(each_alone(comms)), Cause::KernelSilent, &[0], &parts);
}

#[test]
fn a_rank_that_still_plans_is_named() {
    let mut comms = all_in_one();
    comms[2].waits.clear();
    comms[2].operations[1].stage = Stage::Called;
    check(&evidence(each_alone(comms)), Cause::NotSubmitted, &[2], &["makes its connections"]);
}

#[test]
fn what_was_sent_and_did_not_come_is_a_circle_of_one_operation() {
    let parts = ["what was sent did not come", "rank 0 waits for data of rank 3 (block 0, step 1)"];
    check(&evidence(each_alone(all_in_one())), Cause::Lost, &[0, 3, 2, 1], &parts);
}

#[test]
fn nothing_open_blames_nobody() {
    let mut comms = all_in_one();
    for comm in &mut comms {
        comm.operations.iter_mut().for_each(|operation| operation.stage = Stage::Done);
        comm.waits.clear();
    }
    check(&evidence(each_alone(comms)), Cause::NothingOpen, &[], &["4 collectives are over"]);
}

#[test]
fn no_evidence_is_no_crash() {
    assert_eq!(verdict(&Evidence::default()).cause, Cause::NothingOpen);
}

#[test]
fn on_gpus_what_a_kernel_says_counts() {
    // Nobody has seen that operation 2 is over: it is open on all ranks, and 3 is what they wait in.
    let mut comms = all_in_one();
    for comm in &mut comms {
        comm.is_exact = false;
        comm.operations[0].stage = Stage::Submitted;
        comm.waits = vec![waits(3, 1)];
    }
    comms[1].operations.pop();
    (comms[1].collectives, comms[1].waits) = (3, Vec::new());
    let parts = ["rank 1 (host alpha", "its last was operation 2", "rank 0 has waited in operation 3"];
    check(&evidence(each_alone(comms)), Cause::NotCalled, &[1], &parts);
}

#[test]
fn a_graph_that_was_not_replayed_is_told_as_such() {
    // Rank 1 is through with all that it called, and rank 0 waits in an operation that both have called.
    let mut comms = all_in_one();
    comms.iter_mut().for_each(|comm| comm.is_exact = false);
    comms[0].waits = vec![waits(3, 1)];
    comms[1].operations.iter_mut().for_each(|operation| operation.stage = Stage::Done);
    comms[1].waits.clear();
    check(&evidence(each_alone(comms)), Cause::NotCalled, &[1], &["a graph with it was not replayed there"]);
}

#[test]
fn a_rank_that_has_done_its_part_is_not_said_to_have_called_nothing() {
    // On the host device: rank 1 has ended what the others are still in, and has called nothing since.
    let mut comms = all_in_one();
    comms[0].waits = vec![waits(3, 1)];
    comms[1].operations.iter_mut().for_each(|operation| operation.stage = Stage::Done);
    comms[1].waits.clear();
    let parts =
        ["rank 1 (host alpha", "is through with what others wait in", "rank 0 has waited in operation 3"];
    check(&evidence(each_alone(comms.clone())), Cause::Lost, &[1], &parts);
    let told = verdict(&evidence(each_alone(comms))).sentence;
    assert!(!told.contains("graph") && !told.contains("has not called"), "{told}");
}

/// A loss that was noticed before so many milliseconds.
fn lost(report: &mut ProcessReport, age_ms: u64) {
    let text =
        "Socket: sender to 10.0.1.7: lost data socket 1 of eth1 (no answer from the peer's host)".into();
    report.losses.push(Loss { age_ms, text });
}

#[test]
fn a_rail_that_was_lost_is_the_reason_where_nothing_comes() {
    let mut reports = each_alone(all_in_one());
    lost(&mut reports[2], 64_500);
    let found = verdict(&evidence(reports.clone()));
    assert_eq!((found.cause, &found.guilty[..]), (Cause::RailDown, &[2][..]), "{}", found.text());
    for part in ["a net has lost a rail", "rank 2 (host alpha, process 102) says since 64.5 s", "of eth1"] {
        assert!(found.sentence.contains(part), "{}", found.sentence);
    }
    // One that came long before is no reason.
    reports[2].losses[0].age_ms = 65_000 + 31_000;
    assert_eq!(verdict(&evidence(reports)).cause, Cause::Lost);
}

#[test]
fn of_both_ends_of_a_rail_the_one_is_named_that_knows_by_itself() {
    let mut reports = each_alone(all_in_one());
    let loss = |text: &str, age_ms| Loss { age_ms, text: format!("IB: rail rxe1 is stopped: {text}") };
    for rank in [0, 1] {
        reports[rank].losses = vec![loss("the peer says: its port went down", 64_400)];
    }
    for rank in [2, 3] {
        reports[rank].losses = (0..3).map(|n| loss("its port went down", 64_500 + n)).collect();
    }
    let parts = ["the net of rank 2", "the net of rank 3", "and 3 more such losses"];
    check(&evidence(reports.clone()), Cause::RailDown, &[2, 3], &parts);
    // Where nobody knows more, what was heard counts.
    (2..4).for_each(|rank| reports[rank].losses.clear());
    check(&evidence(reports), Cause::RailDown, &[0, 1], &["the peer says"]);
}

#[test]
fn a_rail_that_was_lost_is_told_beside_other_reasons() {
    let mut comms = all_in_one();
    comms[1].operations.pop();
    comms[1].collectives = 3;
    comms[1].waits.clear();
    let mut reports = each_alone(comms);
    lost(&mut reports[0], 1_000);
    let found = verdict(&evidence(reports));
    assert_eq!((found.cause, &found.guilty[..]), (Cause::NotCalled, &[1][..]), "{}", found.text());
    assert!(found.sentence.contains("beside that, the net of rank 0") && found.sentence.contains("eth1"));
    // Where a host does not answer, its peers may know why.
    let mut reports = each_alone(all_in_one());
    reports.remove(3);
    lost(&mut reports[2], 64_500);
    let found = verdict(&evidence(reports));
    assert_eq!((found.cause, &found.guilty[..]), (Cause::Silent, &[3][..]), "{}", found.text());
    assert!(found.sentence.contains("beside that, the net of rank 2"), "{}", found.sentence);
}

/// A request of a rank to its net that has been open for five seconds.
fn stall(request: NetRequest, peer: Option<u32>) -> Stall {
    Stall { net: "IB".into(), peer, request, count: 3, age_ms: 5_000 }
}

#[test]
fn a_net_that_ends_no_sends_is_the_reason_where_nothing_comes() {
    // Rank 0 waits for 3, which waits for 2, and so on.
    let mut comms = all_in_one();
    comms[2].stalls = vec![stall(NetRequest::Send, Some(3))];
    let parts = [
        "rank 2 (host alpha, process 102): its net IB has ended none of 3 sends to rank 3 for 5.0 s",
        "rank 0 has waited in operation 3",
        "NCCL_DEBUG_SUBSYS=NET",
    ];
    check(&evidence(each_alone(comms.clone())), Cause::NetSilent, &[2], &parts);
    // A send that goes elsewhere is not what rank 3 waits for; a young one may be on its way.
    comms[2].stalls = vec![stall(NetRequest::Send, Some(0))];
    check(&evidence(each_alone(comms.clone())), Cause::Lost, &[0, 3, 2, 1], &[]);
    comms[2].stalls = vec![Stall { age_ms: 100, ..stall(NetRequest::Send, Some(3)) }];
    check(&evidence(each_alone(comms.clone())), Cause::Lost, &[0, 3, 2, 1], &[]);
    // Where the receiver has no room, the way leads on.
    comms[2].stalls = vec![stall(NetRequest::Send, Some(3))];
    comms[3].stalls = vec![stall(NetRequest::NoRoom, Some(2))];
    comms[1].stalls = vec![stall(NetRequest::Connect, Some(2))];
    let parts = ["rank 1", "has been connecting to rank 2"];
    check(&evidence(each_alone(comms.clone())), Cause::NetSilent, &[1], &parts);
    // A rail that was lost meanwhile says more.
    let mut reports = each_alone(comms);
    lost(&mut reports[1], 64_500);
    check(&evidence(reports), Cause::RailDown, &[1], &["has been connecting to rank 2", "of eth1"]);
}

#[test]
fn a_rank_that_is_through_may_have_sent_nothing() {
    // The root of a broadcast has left its data to a net that does not send them, and calls nothing more.
    let of = |rank: u32| {
        let stage = if rank == 0 { Stage::Done } else { Stage::Submitted };
        let wait = (rank > 0).then_some((0, 0));
        comm(COMM, rank, vec![operation(0, broadcast(0), stage)], wait)
    };
    let mut comms: Vec<CommReport> = (0..4).map(of).collect();
    comms[0].stalls = vec![stall(NetRequest::Call, None)];
    let parts = ["rank 0", "its net IB has not come back from a call for 5.0 s"];
    check(&evidence(each_alone(comms.clone())), Cause::NetSilent, &[0], &parts);
    // The end that receives may be the silent one.
    comms[0].stalls.clear();
    comms[1].stalls = vec![stall(NetRequest::Accept, Some(0))];
    let parts = ["rank 1", "has not accepted the connection of rank 0"];
    check(&evidence(each_alone(comms)), Cause::NetSilent, &[1], &parts);
}
