//! C tuners of every ABI version behind our trait.

#[path = "cc/mod.rs"]
mod cc;

use std::sync::{Arc, Mutex};

use cc::CPlugin;
use hawser_compat::tuner::from_library;
use hawser_plugin::tuner::{
    Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, TunerConfig, TunerContext,
};
use hawser_plugin::{ErrorKind, Log, Tuner};

const INIT_FAILS: i32 = 1;
const INIT_STRANGE: i32 = 2;
const TUNE_FAILS: i32 = 3;
const TUNE_NONSENSE: i32 = 4;
const TUNE_NOTHING: i32 = 5;
const FINALIZE_FAILS: i32 = 6;
const CHUNK_FAILS: i32 = 7;

type Lines = Arc<Mutex<Vec<String>>>;

/// The lines of all plugins: they go to the log that any test set last, so every log keeps its own lines and
/// these.
static ALL: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn listening() -> (Log, Lines) {
    let lines = Lines::default();
    let keep = lines.clone();
    let sink = move |_, _, line: &str| {
        keep.lock().unwrap().push(line.to_owned());
        ALL.lock().unwrap().push(line.to_owned());
    };
    (Log::new(sink), lines)
}

fn config() -> TunerConfig {
    TunerConfig::new(77, 16, 2, listening().0)
}

fn load(plugin: &CPlugin) -> Arc<dyn Tuner> {
    from_library(&plugin.library).unwrap().unwrap().plugin
}

fn open(plugin: &CPlugin) -> Box<dyn TunerContext> {
    load(plugin).open(&config()).unwrap()
}

fn candidates() -> Vec<Candidate<'static>> {
    let decision =
        |algorithm, protocol| Decision::new(algorithm, Executor::Interpreter, protocol).with_channels(12);
    let candidate = |algorithm, protocol, us| Candidate::predicted(decision(algorithm, protocol), us);
    vec![
        candidate(Algorithm::RING, Protocol::Simple, 10.5),
        candidate(Algorithm::TREE, Protocol::Ll, 5.0),
        candidate(Algorithm::NVLS_TREE, Protocol::Simple, 8.0),
        Candidate::refused(decision(Algorithm::COLLNET_CHAIN, Protocol::Simple), "no such network"),
        candidate(Algorithm::ONE_SHOT, Protocol::Ll, 2.0),
    ]
}

/// The time of each candidate; -1 if it is impossible.
fn times(candidates: &[Candidate<'_>]) -> Vec<f32> {
    candidates.iter().map(|candidate| if candidate.is_possible() { candidate.us } else { -1.0 }).collect()
}

fn question() -> Question {
    let mut question = Question::new(Function::AllGather, 5_000_000_000);
    (question.pipelined, question.registered) = (4, true);
    question
}

#[test]
fn every_version_sees_what_it_is_asked_and_is_heard() {
    for version in 2..=6 {
        let plugin = CPlugin::build("tuner", version, &[]);
        let found = from_library(&plugin.library).unwrap().unwrap();
        assert_eq!(found.symbol, format!("ncclTunerPlugin_v{version}"));
        assert_eq!(found.plugin.name(), "recorder");
        let mut config = config();
        config.domains = (3, 4, 8);
        let context = found.plugin.open(&config).unwrap();
        let mut list = candidates();
        let answer = context.tune(&question(), &mut list).unwrap();
        assert_eq!((answer.order, answer.channels), (Some(1), Some(3)), "v{version}");
        let ring = if version == 2 { 10.5 } else { -1.0 };
        assert_eq!(times(&list), [ring, 5.0, 8.0, -1.0, 2.0], "v{version}: an order is no time");
        drop(context);
        assert_eq!(plugin.recorded(), expected(version), "v{version}");
    }
}

/// The calls of the test above, in the plugin's words.
fn expected(version: u32) -> Vec<String> {
    let id = if version >= 5 { 77 } else { 0 };
    let mut init = format!("init id={id} ranks=16 nodes=2");
    if version >= 5 {
        init += " domains=3,4,8 constants=6.6,20.9,282,36.7,31.67,10,80";
    }
    let mut lines = vec![init];
    if version >= 5 {
        lines.push("kept 8,1.5".into());
    }
    if version == 2 {
        lines.push("tune 0x10 function=2 bytes=5000000000 collnet=0 nvls=1 operations=4 in=-1,-1,0".into());
    } else {
        let registered = if version >= 4 { 1 } else { -1 };
        lines.push(format!(
            "tune 0x10 function=2 bytes=5000000000 operations=4 table=7x3 registered={registered} channels=0"
        ));
        lines.push("cells 0/0=5 1/2=10.5 5/2=8".into());
    }
    lines.push("finalize 0x10".into());
    lines
}

#[test]
fn version_6_sets_the_chunk_size() {
    let plugin = CPlugin::build("tuner", 6, &[]);
    let context = open(&plugin);
    plugin.recorded();
    let [ring, .., own] = candidates()[..] else { panic!() };
    assert_eq!(context.chunk_bytes(&question(), &ring).unwrap(), Some(65536));
    assert_eq!(context.chunk_bytes(&question(), &own).unwrap(), None, "no name for it in C");
    let line = "chunk 0x10 function=2 bytes=5000000000 choice=1/2 channels=12 in=1073741824";
    assert_eq!(plugin.recorded(), [line]);
    plugin.set("fault", TUNE_NOTHING);
    assert_eq!(context.chunk_bytes(&question(), &ring).unwrap(), None);
    plugin.set("fault", CHUNK_FAILS);
    let error = context.chunk_bytes(&question(), &ring).unwrap_err();
    assert!(error.text.contains("getChunkSize of tuner recorder failed with 9"), "{error}");

    for (version, macros) in [(6, &["NO_CHUNK"][..]), (5, &[])] {
        let plugin = CPlugin::build("tuner", version, macros);
        assert_eq!(open(&plugin).chunk_bytes(&question(), &ring).unwrap(), None);
    }
}

#[test]
fn a_tuner_that_does_nothing_changes_nothing() {
    for version in 2..=6 {
        let plugin = CPlugin::build("tuner", version, &[]);
        plugin.set("fault", TUNE_NOTHING);
        let mut list = candidates();
        let answer = open(&plugin).tune(&question(), &mut list).unwrap();
        assert_eq!((times(&list), answer.channels), (times(&candidates()), None), "v{version}");
    }
}

#[test]
fn an_error_changes_nothing_and_carries_the_number() {
    for version in 2..=6 {
        let plugin = CPlugin::build("tuner", version, &[]);
        plugin.set("fault", TUNE_FAILS);
        let mut list = candidates();
        let error = open(&plugin).tune(&question(), &mut list).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidUsage);
        assert!(error.text.contains("getCollInfo of tuner recorder failed with 5"), "{error}");
        assert_eq!(times(&list), times(&candidates()), "v{version}");
    }
}

#[test]
fn nonsense_is_ignored_and_said_once() {
    for version in 2..=6 {
        let plugin = CPlugin::build("tuner", version, &[]);
        plugin.set("fault", TUNE_NONSENSE);
        let (log, lines) = listening();
        let context = load(&plugin).open(&TunerConfig::new(1, 16, 2, log)).unwrap();
        for _ in 0..3 {
            let mut list = candidates();
            let answer = context.tune(&question(), &mut list).unwrap();
            assert_eq!((times(&list), answer.channels), (times(&candidates()), None), "v{version}");
        }
        let said = lines.lock().unwrap().iter().filter(|line| line.contains("is no time")).count();
        // Version 2 names an impossible pair, which is within its rights.
        assert_eq!(said, usize::from(version > 2), "v{version}: {lines:?}");
    }
}

#[test]
fn a_failing_init_is_an_error_with_its_number() {
    for version in 2..=6 {
        let plugin = CPlugin::build("tuner", version, &[]);
        for (fault, kind, code) in
            [(INIT_FAILS, ErrorKind::System, "with 2"), (INIT_STRANGE, ErrorKind::Internal, "with 8")]
        {
            plugin.set("fault", fault);
            let error = load(&plugin).open(&config()).err().unwrap();
            assert_eq!(error.kind, kind);
            assert!(
                error.text.contains("init of tuner recorder failed") && error.text.contains(code),
                "{error}"
            );
        }
        let lines = plugin.recorded();
        assert!(
            lines.len() == 2 && lines.iter().all(|line| line.starts_with("init")),
            "no finalize: {lines:?}"
        );
    }
}

#[test]
fn a_failing_finalize_is_logged() {
    let plugin = CPlugin::build("tuner", 6, &[]);
    plugin.set("fault", FINALIZE_FAILS);
    let (log, lines) = listening();
    drop(load(&plugin).open(&TunerConfig::new(1, 16, 2, log)).unwrap());
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("finalize of tuner recorder failed with 3")), "{lines:?}");
}

#[test]
fn an_incomplete_table_is_refused_by_the_missing_name() {
    for version in 2..=6 {
        let last = if version >= 5 { "finalize" } else { "destroy" };
        for (hole, name) in [("NO_INIT", "init"), ("NO_TUNE", "getCollInfo"), ("NO_FINALIZE", last)] {
            let plugin = CPlugin::build("tuner", version, &[hole]);
            let error = from_library(&plugin.library).unwrap().err().unwrap();
            assert!(error.contains(&format!("its {name} is NULL")), "{error}");
            assert!(
                error.contains(&format!("ncclTunerPlugin_v{version} of {}", plugin.library.path().display())),
                "{error}"
            );
        }
        let plugin = CPlugin::build("tuner", version, &["NO_NAME"]);
        assert_eq!(load(&plugin).name(), "unnamed");
    }
}

#[test]
fn the_newest_table_counts_and_the_others_do_not() {
    let plugin = CPlugin::build("tuner", 5, &["SECOND=3"]);
    assert_eq!(from_library(&plugin.library).unwrap().unwrap().symbol, "ncclTunerPlugin_v5");
    let plugin = CPlugin::build("tuner", 3, &["SECOND=6"]);
    let error = from_library(&plugin.library).unwrap().err().unwrap();
    assert!(error.contains("ncclTunerPlugin_v6") && error.contains("init is NULL"), "{error}");
    let none = CPlugin::build("env", 1, &[]);
    assert!(from_library(&none.library).is_none());
}

#[test]
fn plugins_of_one_version_do_not_mix() {
    for version in 2..=6 {
        let plugins = [(); 2].map(|()| CPlugin::build("tuner", version, &[]));
        let tuners = plugins.each_ref().map(load);
        // Two communicators on the first, one on the second; all alive at once.
        let contexts = [&tuners[0], &tuners[1], &tuners[0]].map(|tuner| tuner.open(&config()).unwrap());
        plugins[0].set("fault", TUNE_NOTHING);
        let orders =
            contexts.each_ref().map(|context| context.tune(&question(), &mut candidates()).unwrap().order);
        assert_eq!(orders, [None, Some(1), None], "v{version}");
        drop(contexts);
        let finalized = plugins.each_ref().map(|plugin| {
            let lines = plugin.recorded();
            lines.into_iter().filter(|line| line.starts_with("finalize")).collect::<Vec<_>>()
        });
        assert_eq!(finalized, [vec!["finalize 0x10", "finalize 0x11"], vec!["finalize 0x10"]], "v{version}");
    }
}

#[test]
fn a_context_outlives_everything_it_was_made_from() {
    let plugin = CPlugin::build("tuner", 6, &[]);
    let context = load(&plugin).open(&TunerConfig::new(1, 4321, 2, listening().0)).unwrap();
    let line = "tuner of version 6 for 4321 ranks";
    assert!(ALL.lock().unwrap().iter().any(|said| said == line), "{ALL:?}");
    drop(plugin); // the test's own reference to the library
    let mut list = candidates();
    assert_eq!(context.tune(&question(), &mut list).unwrap().channels, Some(3));
}
