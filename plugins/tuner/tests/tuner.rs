//! The tuner, asked as a host asks it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hawser_plugin::tuner::{
    Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, TunerConfig, TunerContext,
};
use hawser_plugin::{Error, ErrorKind, Level, Log, Tuner};
use hawser_tuner::RuleTuner;
use hawser_tuner::files::{Absent, RuleFile};

type Lines = Arc<Mutex<Vec<(Level, String)>>>;

fn listening() -> (Log, Lines) {
    let lines = Lines::default();
    let keep = lines.clone();
    (Log::new(move |level, _, line| keep.lock().unwrap().push((level, line.to_owned()))), lines)
}

type Opened = (Result<Box<dyn TunerContext>, Error>, Lines);

/// A tuner with these files, by name and text.
fn open_all(files: &[(&str, &str)], ranks: u32, nodes: u32) -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let write = |(name, text): &(&str, &str)| {
        let path: PathBuf = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        RuleFile::named(path)
    };
    open_files(files.iter().map(write).collect(), ranks, nodes)
}

fn open_files(files: Vec<RuleFile>, ranks: u32, nodes: u32) -> Opened {
    let (log, lines) = listening();
    (RuleTuner::new(files).open(&TunerConfig::new(1, ranks, nodes, log)), lines)
}

fn open(csv: &str, ranks: u32, nodes: u32) -> Opened {
    open_all(&[("rules.csv", csv)], ranks, nodes)
}

/// The candidate that is ordered for a question, of ring/simple, tree/ll, pat/simple (impossible) and
/// one_shot/ll, and the channels.
fn ask(context: &dyn TunerContext, question: &Question) -> (Option<usize>, Option<u32>) {
    let decision = |algorithm, protocol| Decision::new(algorithm, Executor::Interpreter, protocol);
    let mut list = [
        Candidate::predicted(decision(Algorithm::RING, Protocol::Simple), 10.0),
        Candidate::predicted(decision(Algorithm::TREE, Protocol::Ll), 5.0),
        Candidate::refused(decision(Algorithm::PAT, Protocol::Simple), "many ranks"),
        Candidate::predicted(decision(Algorithm::ONE_SHOT, Protocol::Ll), 2.0),
    ];
    let before = list;
    let answer = context.tune(question, &mut list).unwrap();
    assert_eq!(list, before, "rules order, they do not change times");
    (answer.order, answer.channels)
}

const RING: Option<usize> = Some(0);
const TREE: Option<usize> = Some(1);
const ONE_SHOT: Option<usize> = Some(3);

#[test]
fn the_first_fitting_line_counts() {
    let rules = "allreduce,0,100,ring,simple,4,-1,-1\n\
                 allreduce,50,1000,tree,ll,-1,-1,-1\n\
                 allreduce,2000,3000,tree,ll,8,-1,-1,2,1\n\
                 allgather,0,-1,one_shot,ll,3,-1,-1\n";
    let (context, _) = open(rules, 8, 1);
    let context = context.unwrap();
    let question = |function, bytes| Question::new(function, bytes);
    let asked = |function, bytes| ask(&*context, &question(function, bytes));
    assert_eq!(asked(Function::AllReduce, 0), (RING, Some(4)));
    assert_eq!(asked(Function::AllReduce, 100), (RING, Some(4)));
    assert_eq!(asked(Function::AllReduce, 101), (TREE, None));
    assert_eq!(asked(Function::AllReduce, 1001), (None, None));
    assert_eq!(asked(Function::Reduce, 50), (None, None));
    assert_eq!(asked(Function::AllGather, u64::MAX), (ONE_SHOT, Some(3)));
    for (pipelined, registered, expected) in [(2, true, TREE), (1, true, None), (2, false, None)] {
        let mut question = question(Function::AllReduce, 2000);
        (question.pipelined, question.registered) = (pipelined, registered);
        assert_eq!(ask(&*context, &question).0, expected, "{pipelined} {registered}");
    }
}

#[test]
fn lines_are_for_some_communicators() {
    let rules = "allreduce,0,-1,ring,simple,1,2,16\n\
                 allreduce,0,-1,tree,ll,2,-1,8\n\
                 allreduce,0,-1,one_shot,ll,3,1,-1\n";
    for (ranks, nodes, channels) in [(16, 2, Some(1)), (8, 4, Some(2)), (4, 1, Some(3)), (16, 4, None)] {
        let (context, lines) = open(rules, ranks, nodes);
        let answer = ask(&*context.unwrap(), &Question::new(Function::AllReduce, 1)).1;
        assert_eq!(answer, channels, "{ranks} ranks on {nodes} hosts");
        let count = usize::from(channels.is_some());
        let lines = lines.lock().unwrap();
        assert!(
            lines[0].0 == Level::Info && lines[0].1.starts_with(&format!("rules: {count} of 3 rules in ")),
            "{lines:?}"
        );
        assert!(lines[0].1.ends_with(&format!("count for {ranks} ranks on {nodes} hosts")), "{lines:?}");
    }
}

#[test]
fn an_impossible_line_is_said_once_and_the_next_stands_in() {
    let rules = "allreduce,0,10,pat,simple,4,-1,-1\n\
                 allreduce,0,-1,ring,simple,4,-1,-1\n\
                 reduce,0,-1,nvls,ll,4,-1,-1\n";
    let (context, lines) = open(rules, 8, 1);
    let context = context.unwrap();
    for function in [Function::AllReduce, Function::Reduce, Function::AllReduce] {
        let taken = function == Function::AllReduce;
        let expected = if taken { (RING, Some(4)) } else { (None, None) };
        assert_eq!(ask(&*context, &Question::new(function, 1)), expected);
    }
    let lines = lines.lock().unwrap();
    let warnings: Vec<&String> =
        lines.iter().filter(|line| line.0 == Level::Warn).map(|line| &line.1).collect();
    assert_eq!(warnings.len(), 2, "{lines:?}");
    assert!(warnings[0].contains("rules.csv:1:1 (all_reduce, bytes ..=10 -> pat/simple"), "{warnings:?}");
}

#[test]
fn files_count_in_their_order_and_forms_mix() {
    let toml = "[[rule]]\nmatch.bytes = \"..1K\"\nuse = { algorithm = \"one_shot\", channels = 9 }\n";
    let csv = "allreduce,0,-1,tree,ll,2,-1,-1\n";
    let (context, lines) = open_all(&[("a.toml", toml), ("b.csv", csv)], 8, 1);
    let context = context.unwrap();
    let asked = |bytes| ask(&*context, &Question::new(Function::AllReduce, bytes)).1;
    assert_eq!((asked(1023), asked(1024)), (Some(9), Some(2)));
    assert!(lines.lock().unwrap()[0].1.contains("a.toml, "), "{lines:?}");
    let (context, _) = open_all(&[("b.csv", csv), ("a.toml", toml)], 8, 1);
    assert_eq!(ask(&*context.unwrap(), &Question::new(Function::AllReduce, 7)).1, Some(2));
}

#[test]
fn a_file_that_is_not_there_is_wrong_odd_or_fine() {
    let file = |absent| vec![RuleFile { absent, ..RuleFile::named(Path::new("/nonexistent/rules.csv")) }];
    let error = open_files(file(Absent::Wrong), 8, 1).0.err().unwrap();
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    assert!(error.text.contains("/nonexistent/rules.csv") && error.text.contains("no such file"), "{error}");
    for (absent, level) in [(Absent::Odd, Level::Warn), (Absent::Fine, Level::Info)] {
        let (context, lines) = open_files(file(absent), 8, 1);
        let asked = ask(&*context.unwrap(), &Question::new(Function::AllReduce, 1));
        assert_eq!(asked, (None, None));
        let lines = lines.lock().unwrap();
        assert!(
            lines[0].0 == level && lines[0].1.contains("changed") | lines[0].1.contains("changes"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_broken_file_is_refused_with_all_its_faults() {
    let (context, _) = open("allreduce,0,1,rng,ll,1,1,1\nallreduce,0,1,ring,ll,1,1,1\nreduce,0\n", 8, 1);
    let error = context.err().unwrap();
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    for part in ["2 things are wrong", "rules.csv:1:1: algorithm \"rng\"", "rules.csv:3:1: 2 fields"] {
        assert!(error.text.contains(part), "{error}");
    }
    let (context, _) = open_all(&[("a.toml", "[[rule]]\nuse = { algorithm = \"rng\" }")], 8, 1);
    let error = context.err().unwrap();
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    for part in ["1 thing is wrong", "a.toml:2:21: algorithm \"rng\"", "hawser rules check"] {
        assert!(error.text.contains(part), "{error}");
    }
}
