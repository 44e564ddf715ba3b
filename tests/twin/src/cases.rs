//! Worlds in which bugs were found, cut down and written out, since seeds draw other worlds when the drawing
//! changes.

use hawser_net_sim::Conditions;
use hawser_types::{Collective, DataType, ReduceOp};

use crate::world::{
    Act, Death, Drawn, From, How, Leave, Manner, Message, OnError, Pause, Step, Then, Victims, World,
};

/// The names of the cases, and what was wrong.
pub const CASES: [(&str, &str); 14] = [
    ("sent-to-one-who-left", "a destroy waited for data to be taken by a rank that had aborted"),
    ("split-beside-a-broken-net", "a split waited for ranks that had learned of this rank's failure"),
    ("rules-beside-a-destroy", "a change of rules waited for a rank that was about to leave"),
    (
        "rules-beside-a-goodbye",
        "a change of rules waited for a rank that waited for others to take what it had sent",
    ),
    ("failure-in-a-child", "a failure in a child made ranks of the same process blame rank 0 of the parent"),
    (
        "rules-beside-a-stopped-rank",
        "a rank that got tired of connecting to one that was stopped was held for gone",
    ),
    (
        "buffer-of-one-who-aborted",
        "copy engines read the buffer of a rank that had aborted, and the result counted as right",
    ),
    (
        "abort-amid-a-change-of-rules",
        "a split waited for a rank whose communicator had failed, and that told nobody",
    ),
    (
        "growth-of-one-who-comes-late",
        "a rank that was stopped in a growth blamed those that had given it up, not the new rank that died",
    ),
    (
        "revoked-after-a-death",
        "a rank that revoked a communicator since another one had died was blamed for what others waited for",
    ),
    (
        "death-on-the-way-over",
        "the check itself held a split of those that are there for wrong where a rank had died before it",
    ),
    (
        "goodbye-beside-a-dead-device",
        "a destroy waited 10 s to fill receives of a rank that stayed, over a connection that was gone there",
    ),
    (
        "goodbyes-beside-a-dead-device",
        "a destroy waited 10 s to fill receives of a rank that had destroyed its communicator as well",
    ),
    (
        "written-after-a-goodbye",
        "a destroy waited 10 s for a rank that wrote data to it between two empty messages, and sent neither",
    ),
];

/// The world of a case.
pub fn world(name: &str) -> Option<World> {
    Some(match name {
        "sent-to-one-who-left" => {
            let leave = Leave { who: 0, after: 0, how: How::Abort };
            let steps = vec![Step::Collective(broadcast(1))];
            of("ab", Conditions::default(), vec![act(steps, Some(leave)), act(Vec::new(), None)])
        }
        "split-beside-a-broken-net" => {
            let message = Message { from: 0, to: 2, bytes: 100 };
            let steps = vec![Step::Group(Vec::new(), vec![message]), Step::Split(vec![0], Vec::new())];
            of("aab", Conditions { refusals: 100, ..Conditions::default() }, vec![act(steps, None)])
        }
        "rules-beside-a-destroy" => {
            let leave = Leave { who: 1, after: 3, how: How::Destroy };
            let steps = vec![Step::Nap(0, 50_000), Step::Rules(0, 5), Step::Collective(broadcast(1))];
            of("ab", Conditions::default(), vec![act(steps, Some(leave))])
        }
        "failure-in-a-child" => {
            let message = Message { from: 1, to: 0, bytes: 100 };
            let split = Step::Split(vec![0, 1, 1], vec![broadcast(1)]);
            let steps = vec![split, Step::Group(Vec::new(), vec![message])];
            of("aab", Conditions { refusals: 100, ..Conditions::default() }, vec![act(steps, None)])
        }
        "rules-beside-a-stopped-rank" => {
            let gather = Drawn { collective: Collective::AllGather, count: 3_409, ..broadcast(0) };
            let first = Act { then: Then::Grow, ..act(vec![Step::Collective(broadcast(0))], None) };
            let second = act(vec![Step::Rules(2, 43), Step::Stop(0, 1_402, 2_097, gather)], None);
            of("aaaa", Conditions::default(), vec![first, second, act(Vec::new(), None)])
        }
        "death-on-the-way-over" => {
            let stop = Step::Stop(0, 1_663, 235, Drawn { collective: Collective::Scatter, ..broadcast(0) });
            let first = Act { then: Then::Regroup, ..act(vec![stop, Step::Nap(1, 2_388)], None) };
            let victims = Victims::Hosts(vec!["c".to_owned()]);
            let (from, manner) = (From::Begin, Manner::Process);
            let death = Some(Death { act: 0, from, after: 45_276, victims, manner });
            World { death, ..of("ac", Conditions::default(), vec![first, act(Vec::new(), None)]) }
        }
        "revoked-after-a-death" => {
            let split = Step::Split(vec![0, -1, 0], vec![Drawn { count: 9_000, ..broadcast(1) }; 40]);
            let steps = vec![Step::Collective(broadcast(0)), split, Step::Nap(1, 500_000)];
            let first = act([steps, vec![Step::Collective(broadcast(2))]].concat(), None);
            let (from, victims) = (From::Begin, Victims::Rank(2));
            let death = Some(Death { act: 0, from, after: 250, victims, manner: Manner::Process });
            World { is_apart: true, death, ..of("aaa", Conditions::default(), vec![first]) }
        }
        "growth-of-one-who-comes-late" => {
            let first = Act { then: Then::Grow, ..act(vec![Step::Collective(broadcast(0))], None) };
            let (from, victims) = (From::GoingOver, Victims::Joiner);
            let death = Some(Death { act: 0, from, after: 40_000, victims, manner: Manner::Process });
            let pause = Some(Pause { act: 0, who: 2, after: 22, time: 800 });
            let acts = vec![first, act(Vec::new(), None)];
            World { is_apart: true, death, pause, ..of("aaaa", Conditions::default(), acts) }
        }
        _ => return parting(name).or_else(|| abort(name)),
    })
}

/// The world of a case in which ranks part, beside a device of the network that dies or while data come.
fn parting(name: &str) -> Option<World> {
    let (one, nap) = (Step::Collective(broadcast(0)), Step::Nap);
    let leave = |who| Some(Leave { who, after: 1, how: How::Destroy });
    let dead = Conditions { seed: 11, nic_deaths: 40, within: 2, ..Conditions::default() };
    let slow = Conditions { latency_us: 100, queue: 1, ..Conditions::default() };
    let (conditions, steps, leave) = match name {
        "goodbye-beside-a-dead-device" => (dead, vec![one, nap(1, 8_000_000), nap(1, 8_000_000)], leave(0)),
        "goodbyes-beside-a-dead-device" => (dead, vec![one, nap(1, 1_000)], None),
        "written-after-a-goodbye" => (slow, vec![one.clone(), nap(0, 1_340), one], leave(1)),
        _ => return None,
    };
    Some(of("ab", conditions, vec![act(steps, leave)]))
}

/// The world of a case in which a rank aborts, or leaves, amid what others do.
fn abort(name: &str) -> Option<World> {
    Some(match name {
        "buffer-of-one-who-aborted" => {
            let steps = vec![
                Step::Often(Drawn { collective: Collective::ReduceScatter, count: 132, ..broadcast(0) }, 39),
                Step::Rules(1, 85),
                Step::Split(vec![0, 1, 1, 1, 2], vec![broadcast(0)]),
                Step::Collective(Drawn {
                    collective: Collective::Gather,
                    dtype: DataType::Float64,
                    count: 549,
                    in_place: true,
                    shift: 2,
                    ..broadcast(1)
                }),
            ];
            let leave = Leave { who: 0, after: 3, how: How::AbortDuring(1_060) };
            let first = Act { then: Then::Grow, ..act(Vec::new(), None) };
            let second = act(steps, Some(leave));
            World { sm_free: true, ..of("aaab", Conditions::default(), vec![first, second]) }
        }
        "rules-beside-a-goodbye" => {
            let leave = Leave { who: 1, after: 3, how: How::Destroy };
            let (first, last) = (Collective::AllGather, Collective::Reduce);
            let often = |collective, root| Step::Often(Drawn { collective, ..broadcast(root) }, 18);
            let steps = vec![often(first, 0), Step::Rules(2, 14), often(last, 2)];
            World { is_apart: true, ..of("abab", Conditions::default(), vec![act(steps, Some(leave))]) }
        }
        "abort-amid-a-change-of-rules" => {
            let leave = Leave { who: 2, after: 1, how: How::Abort };
            let split = Step::Split(vec![1, -1, 0, 0], vec![broadcast(1)]);
            let steps = vec![Step::Nap(2, 1_791), Step::Rules(0, 61), split];
            let acts = vec![act(steps, Some(leave)), act(Vec::new(), None)];
            let conditions = Conditions { latency_us: 39, ..Conditions::default() };
            World { on_error: OnError::Nothing, ..of("daab", conditions, acts) }
        }
        _ => return None,
    })
}

fn act(steps: Vec<Step>, leave: Option<Leave>) -> Act {
    Act { steps, leave, then: Then::Fresh }
}

fn of(hosts: &str, conditions: Conditions, acts: Vec<Act>) -> World {
    World {
        seed: 0,
        hosts: hosts.to_owned(),
        conditions,
        sm_free: false,
        max_ctas: None,
        on_error: OnError::Revoke,
        acts,
        is_apart: false,
        death: None,
        pause: None,
        parts: 0,
    }
}

fn broadcast(root: u32) -> Drawn {
    Drawn {
        collective: Collective::Broadcast,
        dtype: DataType::Int32,
        op: ReduceOp::Sum,
        root,
        count: 50,
        in_place: false,
        shift: 0,
    }
}
