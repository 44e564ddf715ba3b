//! The tuner, asked as a host asks it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use hawser_plugin::tuner::{Algorithm, Candidate, Function, Protocol, Question, TunerConfig, TunerContext};
use hawser_plugin::{Error, ErrorKind, Level, Log, Tuner};
use hawser_tuner::CsvTuner;

type Lines = Arc<Mutex<Vec<(Level, String)>>>;

fn listening() -> (Log, Lines) {
    let lines = Lines::default();
    let keep = lines.clone();
    (Log::new(move |level, _, line| keep.lock().unwrap().push((level, line.to_owned()))), lines)
}

fn open(rules: &str, ranks: u32, nodes: u32) -> (Result<Box<dyn TunerContext>, Error>, Lines) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.csv");
    std::fs::write(&file, rules).unwrap();
    open_file(&file, ranks, nodes)
}

fn open_file(file: &Path, ranks: u32, nodes: u32) -> (Result<Box<dyn TunerContext>, Error>, Lines) {
    let (log, lines) = listening();
    (CsvTuner::new(file).open(&TunerConfig::new(1, ranks, nodes, log)), lines)
}

/// Times of ring/simple, tree/ll, pat/simple (impossible) and one_shot/ll after a question, and the channels.
fn ask(context: &dyn TunerContext, question: &Question) -> (Vec<f32>, Option<u32>) {
    let candidate = |algorithm, protocol, us| Candidate { algorithm, protocol, us };
    let mut list = [
        candidate(Algorithm::RING, Protocol::Simple, 10.0),
        candidate(Algorithm::TREE, Protocol::Ll, 5.0),
        candidate(Algorithm::PAT, Protocol::Simple, -1.0),
        candidate(Algorithm::ONE_SHOT, Protocol::Ll, 2.0),
    ];
    let answer = context.tune(question, &mut list).unwrap();
    (list.iter().map(|candidate| candidate.us).collect(), answer.channels)
}

const UNTOUCHED: ([f32; 4], Option<u32>) = ([10.0, 5.0, -1.0, 2.0], None);

#[test]
fn the_first_fitting_rule_counts() {
    let rules = "allreduce,0,100,ring,simple,4,-1,-1\n\
                 allreduce,50,1000,tree,ll,-1,-1,-1\n\
                 allreduce,2000,3000,tree,ll,8,-1,-1,2,1\n\
                 allgather,0,-1,one_shot,ll,3,-1,-1\n";
    let (context, _) = open(rules, 8, 1);
    let context = context.unwrap();
    let question = |function, bytes| Question::new(function, bytes);
    let times = |function, bytes| ask(&*context, &question(function, bytes));
    let (ring, tree, one_shot) = ([0.0, 5.0, -1.0, 2.0], [10.0, 0.0, -1.0, 2.0], [10.0, 5.0, -1.0, 0.0]);
    assert_eq!(times(Function::AllReduce, 0), (ring.into(), Some(4)));
    assert_eq!(times(Function::AllReduce, 100), (ring.into(), Some(4)));
    assert_eq!(times(Function::AllReduce, 101), (tree.into(), None));
    assert_eq!(times(Function::AllReduce, 1001), (UNTOUCHED.0.into(), None));
    assert_eq!(times(Function::Reduce, 50), (UNTOUCHED.0.into(), None));
    assert_eq!(times(Function::AllGather, u64::MAX), (one_shot.into(), Some(3)));
    for (pipelined, registered, expected) in
        [(2, true, tree), (1, true, UNTOUCHED.0), (2, false, UNTOUCHED.0)]
    {
        let mut question = question(Function::AllReduce, 2000);
        (question.pipelined, question.registered) = (pipelined, registered);
        assert_eq!(ask(&*context, &question).0, expected, "{pipelined} {registered}");
    }
}

#[test]
fn rules_are_for_some_communicators() {
    let rules = "allreduce,0,-1,ring,simple,1,2,16\n\
                 allreduce,0,-1,tree,ll,2,-1,8\n\
                 allreduce,0,-1,one_shot,ll,3,1,-1\n";
    for (ranks, nodes, channels) in [(16, 2, Some(1)), (8, 4, Some(2)), (4, 1, Some(3)), (16, 4, None)] {
        let (context, lines) = open(rules, ranks, nodes);
        let answer = ask(&*context.unwrap(), &Question::new(Function::AllReduce, 1)).1;
        assert_eq!(answer, channels, "{ranks} ranks on {nodes} hosts");
        let count = usize::from(channels.is_some());
        let line = format!("{count} of them for {ranks} ranks on {nodes} hosts");
        let lines = lines.lock().unwrap();
        assert!(lines[0].0 == Level::Info && lines[0].1.contains(&line), "{lines:?}");
    }
}

#[test]
fn the_impossible_is_said_once_and_left() {
    let rules = "allreduce,0,10,pat,simple,4,-1,-1\n\
                 allreduce,0,-1,ring,simple,4,-1,-1\n\
                 reduce,0,-1,nvls,ll,4,-1,-1\n";
    let (context, lines) = open(rules, 8, 1);
    let context = context.unwrap();
    for function in [Function::AllReduce, Function::Reduce, Function::AllReduce] {
        let (times, channels) = ask(&*context, &Question::new(function, 1));
        assert_eq!((times, channels), (UNTOUCHED.0.into(), None), "the later rule does not stand in");
    }
    let lines = lines.lock().unwrap();
    let warnings: Vec<&String> =
        lines.iter().filter(|line| line.0 == Level::Warn).map(|line| &line.1).collect();
    assert_eq!(warnings.len(), 2, "{lines:?}");
    assert!(warnings[0].contains("line 1 (allreduce,0,10,pat,simple,4,-1,-1,-1,-1)"), "{warnings:?}");
}

#[test]
fn without_a_file_nothing_happens() {
    let folder = tempfile::tempdir().unwrap();
    let (context, lines) = open_file(&folder.path().join("none.csv"), 8, 1);
    let (times, channels) = ask(&*context.unwrap(), &Question::new(Function::AllReduce, 1));
    assert_eq!((times, channels), (UNTOUCHED.0.into(), None));
    let lines = lines.lock().unwrap();
    assert!(lines[0].0 == Level::Warn && lines[0].1.contains("NCCL_TUNER_CONFIG_FILE"), "{lines:?}");
}

#[test]
fn a_file_with_bad_lines_is_refused_with_all_of_them() {
    let bad = "allreduce,0,1,rng,ll,1,1,1\n";
    let (context, _) = open(&format!("{bad}allreduce,0,1,ring,ll,1,1,1\nreduce,0\n"), 8, 1);
    let error = context.err().unwrap();
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    for part in ["2 lines are wrong", "rules.csv:1: algorithm \"rng\"", "rules.csv:3: 2 fields"] {
        assert!(error.text.contains(part), "{error}");
    }
    let (context, _) = open(&bad.repeat(50), 8, 1);
    let text = context.err().unwrap().text;
    assert!(text.contains("rules.csv:20:") && !text.contains("rules.csv:21:"), "{text}");
    assert!(text.ends_with("and 30 more"), "{text}");
}

#[test]
fn what_is_no_rule_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = open_file(folder.path(), 8, 1).0.err().unwrap();
    assert!(error.text.contains("no regular file"), "{error}");
    let file = folder.path().join("latin");
    std::fs::write(&file, b"# caf\xe9\n").unwrap();
    let error = open_file(&file, 8, 1).0.err().unwrap();
    assert!(error.text.contains("is not UTF-8"), "{error}");
    let file = folder.path().join("huge");
    std::fs::File::create(&file).unwrap().set_len((16 << 20) + 1).unwrap();
    let error = open_file(&file, 8, 1).0.err().unwrap();
    assert!(error.text.contains("larger than 16 MiB"), "{error}");
    let error = open_file(&file.join("below"), 8, 1).0.err().unwrap();
    assert_eq!(error.kind, ErrorKind::System);
}
