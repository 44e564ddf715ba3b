use std::sync::{Arc, Mutex};

use super::*;
use crate::schema::parse;
use hawser_plugin::Level;
use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::Executor::{CopyEngine, Fused, Interpreter};
use hawser_plugin::tuner::{Protocol, Reduction, Status};

fn job() -> Job {
    Job { ranks: 8, hosts: 2, per_host: (4, 4), name: "tp_0".to_owned(), programs: vec!["mine".to_owned()] }
}

fn engine(text: &str) -> Engine {
    Engine::new(&parse("r.toml", text).unwrap(), "r.toml", &job(), Log::silent())
}

/// Times that a cost model may give.
fn candidates() -> [Candidate<'static>; 6] {
    let candidate = |way, us| Candidate::predicted(decision(way), us);
    [
        candidate((Algorithm::RING, Interpreter, Protocol::Ll), 12.0),
        candidate(RING, 10.0),
        candidate(TREE, 5.0),
        Candidate::refused(decision((Algorithm::ALL_PAIRS, Interpreter, Protocol::Ll)), "many ranks"),
        candidate(PAIRS, 9.0),
        candidate(FUSED, 2.0),
    ]
}

fn decision((algorithm, executor, protocol): Way) -> Decision {
    Decision::new(algorithm, executor, protocol).with_channels(2)
}

fn question(bytes: u64) -> Question {
    let mut question = Question::new(Function::AllReduce, bytes);
    (question.data_type, question.op) = (Some(DataType::Float32), Some(Reduction::Sum));
    question
}

/// The way that is taken, and the number of channels.
fn asked(engine: &Engine, question: &Question) -> (Option<Way>, Option<u32>) {
    let mut list = candidates();
    let answer = engine.tune(question, &mut list).unwrap();
    assert_eq!(list, candidates(), "rules order, they do not change times");
    (answer.order.map(|place| way(&list[place])), answer.channels)
}

/// The three words of a candidate.
fn way(candidate: &Candidate<'_>) -> Way {
    let Decision { algorithm, executor, protocol, .. } = candidate.decision;
    (algorithm, executor, protocol)
}

type Way = (Algorithm, Executor, Protocol);

const RING: Way = (Algorithm::RING, Interpreter, Protocol::Simple);
const TREE: Way = (Algorithm::TREE, Interpreter, Protocol::Ll);
const PAIRS: Way = (Algorithm::ALL_PAIRS, Interpreter, Protocol::Simple);
const FUSED: Way = (Algorithm::ALL_PAIRS, Fused, Protocol::Ll128);

#[test]
fn a_call_that_names_its_rule_is_decided_by_no_other() {
    let text = "[[rule]]\nuse = { algorithm = \"ring\" }\n\
                [[rule]]\nname = \"mine\"\nmatch = { bytes = \"1K..1M\" }\nuse = { algorithm = \"tree\" }";
    let engine = engine(text);
    let ask = |bytes, rule: Option<&str>| {
        let mut question = question(bytes);
        question.rule = rule.map(rule_id);
        asked(&engine, &question).0
    };
    assert_eq!([ask(4096, None), ask(4096, Some("mine"))], [Some(RING), Some(TREE)]);
    // Its conditions still count, and a name that is not there is nobody's.
    assert_eq!([ask(64, Some("mine")), ask(4096, Some("Mine")), ask(4096, Some(""))], [None; 3]);
}

#[test]
fn the_cheapest_of_what_an_action_means_is_taken() {
    for (action, taken) in [
        ("algorithm = \"ring\"", RING),
        ("algorithm = \"ring\", protocol = \"ll\"", (Algorithm::RING, Interpreter, Protocol::Ll)),
        ("algorithm = \"all_pairs\"", FUSED),
        ("algorithm = \"all_pairs\", protocol = \"simple\"", PAIRS),
        ("protocol = \"symll128\"", FUSED),
        ("executor = \"fused\"", FUSED),
        ("executor = \"fused\", protocol = \"ll128\"", FUSED),
        ("algorithm = \"sym_all_pairs\"", FUSED),
        ("algorithm = \"all_pairs\", executor = \"interpreter\"", PAIRS),
        ("executor = \"interpreter\"", TREE),
        ("executor = \"sm\"", FUSED),
        ("executor = \"sm\", protocol = \"ll\"", TREE),
        ("executor = \"sm\", protocol = \"symll128\"", FUSED),
        ("protocol = \"ll\"", TREE),
    ] {
        let engine = engine(&format!("[[rule]]\nuse = {{ {action} }}"));
        assert_eq!(asked(&engine, &question(1)), (Some(taken), None), "{action}");
    }
    // What comes out anyway may be a program of the user, whatever it costs.
    let engine = engine("[[rule]]\nuse = { channels = 3 }");
    assert_eq!(asked(&engine, &question(1)), (None, Some(3)));
    let why = engine.why(&question(1), &candidates()).unwrap();
    assert!(why.contains("any channels 3: for what is chosen anyway"), "{why}");
}

/// As NVIDIA's example of a tuner does.
#[test]
fn impossible_lines_of_csv_files_are_passed_over() {
    let file = crate::files::RuleFile::named("r.csv");
    let rules =
        file.parse("allreduce,0,9,all_pairs,ll,1,-1,-1\nallreduce,0,9,ring,simple,2,-1,-1\n").unwrap();
    let engine = Engine::new(&rules, "r.csv", &job(), Log::silent());
    assert_eq!(asked(&engine, &question(1)), (Some(RING), Some(2)));
}

#[test]
fn the_first_possible_of_a_chain_wins_and_later_rules_stand_in() {
    let nothing = "use = [{ algorithm = \"pat\" }, { algorithm = \"all_pairs\", protocol = \"ll\" }]";
    let chain =
        "use = [{ algorithm = \"nvls\", channels = 1 }, { algorithm = \"tree\", channels = 2 }, \"default\"]";
    let tree = engine(&format!("[[rule]]\n{nothing}\n[[rule]]\n{chain}"));
    assert_eq!(asked(&tree, &question(1)), (Some(TREE), Some(2)));
    assert_eq!(asked(&engine(&format!("[[rule]]\n{nothing}")), &question(1)), (None, None));
    let stopped = format!("[[rule]]\nuse = [{{ algorithm = \"pat\" }}, \"default\"]\n[[rule]]\n{chain}");
    assert_eq!(asked(&engine(&stopped), &question(1)), (None, None), "the default ends it");
}

#[test]
fn programs_are_taken_by_their_names_in_their_authors_protocol() {
    let program = |protocol| Decision::new(Algorithm::program(0), Interpreter, protocol);
    let mut list = candidates().to_vec();
    list.extend([
        Candidate::refused(program(Protocol::Ll128), "not NVLink"),
        Candidate::predicted(program(Protocol::Simple), 70.0),
        Candidate::predicted(program(Protocol::Ll), 60.0),
    ]);
    let taken = |rules: &str| engine(rules).tune(&question(1), &mut list.clone()).unwrap().order;
    assert_eq!(taken("[[rule]]\nuse = { program = \"mine\" }"), Some(7), "the first that is possible");
    assert_eq!(taken("[[rule]]\nuse = { program = \"mine\", protocol = \"ll\" }"), Some(8));
    assert_eq!(taken("[[rule]]\nuse = [{ program = \"yours\" }, { algorithm = \"tree\" }]"), Some(2));
    let why = engine("[[rule]]\nuse = { program = \"yours\" }").why(&question(1), &list).unwrap();
    assert!(why.contains("program yours: there is no such program"), "{why}");
}

#[test]
fn what_nobody_measured_has_to_be_named() {
    let mut list = candidates().to_vec();
    let knomial = decision((Algorithm::KNOMIAL, Interpreter, Protocol::Simple));
    list.push(Candidate { decision: knomial, us: 1.5, status: Status::Unmeasured });
    let why = |rules: &str| engine(rules).why(&question(1), &list).unwrap();
    let named = why("[[rule]]\nuse = { algorithm = \"knomial\" }");
    assert!(
        named.contains("takes knomial/interpreter/simple channels 2, 1.5 µs predicted, never measured"),
        "{named}"
    );
    let careful = why("[[rule]]\nnever_worse = true\nuse = { algorithm = \"knomial\" }");
    assert!(careful.contains("passed over"), "{careful}");
    assert!(why("[[rule]]\nuse = { protocol = \"simple\" }").contains("takes all_pairs/interpreter/simple"));
}

#[test]
fn priority_counts_before_order() {
    let rule =
        |priority, name| format!("[[rule]]\npriority = {priority}\nuse = {{ algorithm = \"{name}\" }}\n");
    assert_eq!(asked(&engine(&(rule(0, "ring") + &rule(0, "tree"))), &question(1)).0, Some(RING));
    assert_eq!(asked(&engine(&(rule(0, "ring") + &rule(1, "tree"))), &question(1)).0, Some(TREE));
    assert_eq!(asked(&engine(&(rule(-1, "ring") + &rule(0, "tree"))), &question(1)).0, Some(TREE));
}

#[test]
fn what_looks_worse_is_passed_over_if_that_is_wanted() {
    let rules = |tree: &str| {
        format!(
            "never_worse = {tree}\n[[rule]]\n\
             use = [{{ algorithm = \"tree\" }}, {{ algorithm = \"all_pairs\" }}]"
        )
    };
    assert_eq!(asked(&engine(&rules("false")), &question(1)).0, Some(TREE));
    assert_eq!(asked(&engine(&rules("true")), &question(1)).0, Some(FUSED));
    let engine = engine("[[rule]]\nnever_worse = true\nuse = { algorithm = \"tree\" }");
    let mut close = candidates();
    close[5].us = 4.6;
    let order = engine.tune(&question(1), &mut close).unwrap().order;
    assert_eq!(order, Some(2), "5.0 is within a tenth of 4.6");
}

#[test]
fn conditions_are_obeyed() {
    let takes = |when: &str, question: &Question| {
        asked(&engine(&format!("[[rule]]\nmatch = {{ {when} }}\nuse = {{ algorithm = \"ring\" }}")), question)
            .0
            .is_some()
    };
    for (when, holds) in [
        ("bytes = \"..100\"", true),
        ("bytes = \"..99\"", false),
        ("bytes = [5, \"99..\"]", true),
        ("collective = \"all_gather\"", false),
        ("collective = [\"all_gather\", \"all_reduce\"]", true),
        ("ranks = 8, hosts = 2, ranks_per_host = 4", true),
        ("ranks = \"9..\"", false),
        ("hosts = 1", false),
        ("ranks_per_host = \"5..\"", false),
        ("communicator = \"tp*\"", true),
        ("communicator = [\"dp*\", \"pp*\"]", false),
        ("data_type = \"float\", op = [\"sum\", \"max\"]", true),
        ("data_type = \"half\"", false),
        ("op = \"max\"", false),
        ("registered = false, operations = 1", true),
        ("registered = true", false),
        ("operations = 2", false),
        ("in_graph = false", false),
    ] {
        assert_eq!(takes(when, &question(99)), holds, "{when}");
    }
    let mut graph = question(99);
    graph.in_graph = Some(false);
    assert!(takes("in_graph = false", &graph) && !takes("in_graph = true", &graph));
}

#[test]
fn uneven_hosts_fit_if_all_of_them_do() {
    let rules =
        |range| parse("r", &format!("[[rule]]\nmatch.ranks_per_host = {range}\nuse = \"default\"")).unwrap();
    let job = Job { per_host: (3, 4), ..job() };
    assert_eq!(rules("4")[0].when.fits_job(&job), Err("ranks_per_host"));
    assert_eq!(rules("\"3..=4\"")[0].when.fits_job(&job), Ok(()));
}

#[test]
fn what_cannot_be_is_said_once_per_rule() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    let log = Log::new(move |level, _, text| keep.lock().unwrap().push((level, text.to_owned())));
    let text = "[[rule]]\nname = \"a\"\nmatch.collective = \"all_reduce\"\nuse = { algorithm = \"pat\" }\n\
                [[rule]]\nmatch.in_graph = true\nuse = { algorithm = \"ring\" }\n\
                [[rule]]\nnever_worse = true\nuse = { algorithm = \"ring\" }";
    let engine = Engine::new(&parse("r.toml", text).unwrap(), "r.toml", &job(), log);
    for bytes in [1, 2, 3] {
        assert_eq!(asked(&engine, &question(bytes)).0, None);
    }
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|(level, _)| *level == Level::Warn));
    assert!(lines[0].1.contains(
        "rule \"a\" (r.toml:1:1) (all_reduce -> pat) asks for what is impossible for allreduce of 1"
    ));
    assert!(
        lines[1].1.contains("r.toml:5:1")
            && lines[1].1.contains("in_graph, which this library does not tell")
    );
}

#[test]
fn chunks_are_those_of_the_action_that_means_the_choice() {
    let engine = engine(
        "[[rule]]\nuse = [{ algorithm = \"tree\", chunk = \"4K\" }, \
         { algorithm = \"ring\", chunk = \"8K\" }]",
    );
    let chunk = |at: usize| engine.chunk_bytes(&question(1), &candidates()[at]).unwrap();
    assert_eq!((chunk(1), chunk(2), chunk(4)), (Some(8192), Some(4096), None));
}

#[test]
fn trials_and_what_is_learned_have_the_channels_and_chunk_of_the_users_rules() {
    let users = "[[rule]]\nuse = [{ algorithm = \"tree\", channels = 2, chunk = \"4K\" }, \
                 { algorithm = \"ring\", channels = 3 }]";
    let learned = "[[rule]]\nname = \"learned\"\npriority = 9\nuse = { algorithm = \"ring\" }";
    let rules = [parse("adaptive mode", learned).unwrap(), parse("r.toml", users).unwrap()].concat();
    let engine = Engine::new(&rules, "r.toml", &job(), Log::silent());
    let engine = engine.adaptive(Some(Adaptive { period: 10 }), &[]);
    assert_eq!(asked(&engine, &question(1)), (Some(RING), Some(3)));
    let mut met = std::collections::BTreeMap::new();
    for trial in 0..16 {
        let mut question = question(1);
        question.trial = Some(trial);
        let (taken, channels) = asked(&engine, &question);
        let chosen = candidates().into_iter().find(|c| Some(way(c)) == taken).unwrap();
        let chunk = engine.chunk_bytes(&question, &chosen).unwrap();
        met.insert(chosen.decision.algorithm.0, (channels, chunk));
    }
    assert_eq!(met.remove(&Algorithm::TREE.0), Some((Some(2), Some(4096))));
    assert_eq!(met.into_values().collect::<Vec<_>>(), [(None, None)], "the fused one");
}

#[test]
fn equal_rules_agree_wherever_they_stand() {
    let digest = |text: &str| engine(text).agreement().unwrap().digest;
    let rule = "[[rule]]\nuse = { algorithm = \"tree\" }\n";
    let named = "# comment\n\n[[rule]]\nuse = [{ algorithm = \"Tree\" }]\n";
    assert_eq!(digest(rule), digest(named));
    let other_job = format!("{rule}[[rule]]\nmatch.ranks = 9\nuse = {{ algorithm = \"ring\" }}");
    assert_eq!(digest(rule), digest(&other_job), "rules that do not count are not compared");
    let others = [
        String::new(),
        rule.replace("tree", "ring"),
        format!("never_worse = true\n{rule}"),
        format!("{rule}priority = 2"),
        // A call may ask for it.
        format!("{rule}name = \"x\""),
        format!("{rule}match.bytes = \"..4K\""),
        rule.replace("\"tree\"", "\"tree\", chunk = \"4K\""),
        format!("{rule}{rule}"),
    ];
    for other in &others {
        assert_ne!(digest(rule), digest(other), "{other}");
    }
}

#[test]
fn why_names_the_rule_and_what_came_before() {
    let engine = engine(
        "[[rule]]\nmatch.bytes = 7\nuse = { algorithm = \"ring\" }\n\
         [[rule]]\nname = \"pat\"\nuse = { algorithm = \"pat\" }\n\
         [[rule]]\nname = \"it\"\nuse = [{ algorithm = \"nvls\" }, { algorithm = \"tree\" }]",
    );
    let why = engine.why(&question(1), &candidates()).unwrap();
    let lines: Vec<&str> = why.lines().collect();
    assert_eq!(
        lines,
        [
            "rule \"it\" (r.toml:7:1)",
            "rule \"pat\" (r.toml:4:1): pat: impossible here",
            "rule \"it\" (r.toml:7:1): nvls: impossible here",
            "rule \"it\" (r.toml:7:1): tree: takes tree/interpreter/ll channels 2, 5.0 µs predicted",
            "3 of 3 rules in r.toml counted here; 1 before it are for other calls"
        ]
    );
    assert_eq!(self::engine("").why(&question(1), &candidates()), Ok(String::new()));
    let other = self::engine("[[rule]]\nmatch.bytes = 7\nuse = \"default\"").why(&question(1), &candidates());
    assert_eq!(other.as_deref(), Ok("no rule decided (1 of 1 rules in r.toml)"));
}

/// As [`candidates`] of a move where copy engines are there: what one kind of executor could run is held
/// back.
fn moves(is_held: fn(Executor) -> bool) -> Vec<Candidate<'static>> {
    let list = [
        (Algorithm::RING, Interpreter, Protocol::Simple, 10.0),
        (Algorithm::RING, Interpreter, Protocol::Ll, 6.0),
        (Algorithm::TREE, Interpreter, Protocol::Simple, 5.0),
        (Algorithm::RING, CopyEngine, Protocol::Simple, 20.0),
        (Algorithm::ALL_PAIRS, CopyEngine, Protocol::Simple, 15.0),
        (Algorithm::ALL_PAIRS, Fused, Protocol::Ll, 7.0),
    ];
    let candidate = |(algorithm, executor, protocol, us)| {
        let held = Status::HeldBack { why: "a setting", is_measured: true };
        let status = if is_held(executor) { held } else { Status::Predicted };
        Candidate { decision: Decision::new(algorithm, executor, protocol), us, status }
    };
    list.map(candidate).to_vec()
}

#[test]
fn an_executor_is_kept_and_without_one_the_settings_are() {
    let copied: fn(Executor) -> bool = |executor| executor == CopyEngine;
    let kernels: fn(Executor) -> bool = |executor| executor != CopyEngine;
    for (action, without, with_pass_sm) in [
        ("algorithm = \"ring\"", Some(1), Some(3)),
        ("algorithm = \"tree\"", Some(2), None),
        ("algorithm = \"ring\", executor = \"dma\"", Some(3), Some(3)),
        ("executor = \"dma\"", Some(4), Some(4)),
        ("executor = \"copy_engine\"", Some(4), Some(4)),
        ("algorithm = \"dma_ring\"", Some(3), Some(3)),
        ("executor = \"sm\"", Some(2), Some(2)),
        ("executor = \"interpreter\"", Some(2), Some(2)),
        ("executor = \"fused\"", Some(5), Some(5)),
        ("executor = \"host\"", None, None),
        ("algorithm = \"ring\", executor = \"sm\", protocol = \"simple\"", Some(0), Some(0)),
        ("protocol = \"simple\"", Some(2), Some(4)),
        // The old names of fused kernels ask for no executor: they take what the settings leave.
        ("protocol = \"symll\"", Some(5), None),
        ("executor = \"auto\", channels = 1", None, None),
    ] {
        let engine = engine(&format!("[[rule]]\nuse = {{ {action} }}"));
        for (held, expected) in [(copied, without), (kernels, with_pass_sm)] {
            let question = Question::new(Function::AllGather, 1 << 20);
            assert_eq!(engine.tune(&question, &mut moves(held)).unwrap().order, expected, "{action}");
        }
        let wants = action.contains("dma") || action.contains("copy_engine");
        assert_eq!(engine.wants_copy_engines(), wants, "{action}");
    }
    let careful = engine("[[rule]]\nnever_worse = true\nuse = { executor = \"dma\" }");
    let answer = careful.tune(&Question::new(Function::AllGather, 1 << 20), &mut moves(copied));
    assert_eq!(answer, Ok(Answer::default()), "15 µs are more than 5");
}

#[test]
fn what_was_never_measured_comes_last_also_where_it_is_held_back() {
    let mut list = moves(|_| true);
    list[1].status = Status::HeldBack { why: "a setting", is_measured: false };
    list[2].status = list[1].status;
    let engine = engine("[[rule]]\nuse = { executor = \"interpreter\" }");
    let answer = engine.tune(&Question::new(Function::AllGather, 1 << 20), &mut list).unwrap();
    assert_eq!(answer.order, Some(0));
}
