//! Classes of operations (docs/priorities.md): best-effort ones give way to more urgent ones of their
//! process, for a limited number of looks, and all results are right whatever ranks think of their classes.
//!
//! `HAWSER_TEST_PREEMPTIONS=1000` has so many urgent operations in each setting.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_plan::{Call, CallOptions, Class, Collective};
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::classes::{self, Counts, MOST_HELD, Working};
use hawser_runtime::{Comm, Config, Stream, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::RankBuffers;
use hawser_tests::process::{Ended, Process};
use hawser_tests::urgent::{beside, of_class};
use hawser_tests::world::{all_reduce, call, in_threads, on_host, on_hosts, plain};

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// Holds are counted for the whole process: one test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rounds(default: u32) -> u32 {
    std::env::var("HAWSER_TEST_PREEMPTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Does the work, and says what best-effort operations did meanwhile.
fn counted(work: impl FnOnce()) -> Counts {
    let before = classes::counts();
    work();
    let after = classes::counts();
    Counts {
        preempted: after.preempted - before.preempted,
        held: after.held - before.held,
        forced: after.forced - before.forced,
    }
}

/// Does the work while something urgent moves all the time.
fn under_pressure(work: impl FnOnce()) -> Counts {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = Working::begin(Class::Urgent).expect("it holds back");
        let is_over = &is_over;
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                working.moved();
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        let counts = counted(work);
        is_over.store(true, Ordering::Relaxed);
        counts
    })
}

/// An all-reduce with options of the call, whose result is checked.
fn with_class(comm: &Comm, class: Option<Class>, count: usize) {
    let case = plain(Collective::AllReduce, comm.ranks(), count);
    let buffers = RankBuffers::new(&case, comm.rank(), false, 0);
    let call: Call = call(&case, comm.rank(), buffers.addresses(&case, comm.rank()));
    let options = class.map(|class| Box::new(CallOptions { class: Some(class), ..CallOptions::default() }));
    comm.collective_with(call, options, Stream(0)).unwrap();
    assert_eq!(buffers.fault(&case, comm.rank()), None);
}

#[test]
fn results_are_right_with_random_preemptions() {
    if !on_host() {
        return;
    }
    let (_turn, _deadline) = (turn(), Deadline::start());
    let counts = counted(|| in_threads(2, |comm| beside(comm, rounds(1000)).unwrap()));
    println!("{counts:?}");
    assert!(counts.preempted > 0 && counts.held <= counts.preempted * u64::from(MOST_HELD), "{counts:?}");
}

#[test]
fn results_are_right_with_random_preemptions_between_hosts() {
    if !on_host() {
        return;
    }
    let (_turn, _deadline) = (turn(), Deadline::start());
    let counts = counted(|| on_hosts("aab", &Config::default(), |comm| beside(comm, rounds(200)).unwrap()));
    println!("{counts:?}");
    assert!(counts.preempted > 0 && counts.held <= counts.preempted * u64::from(MOST_HELD), "{counts:?}");
}

#[test]
fn results_are_right_with_random_preemptions_in_processes() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for hosts in [1, 2] {
        let (id, ranks, step) = (unique_id().unwrap(), 2, format!("beside={}", rounds(100)));
        let begin = |rank: u32| {
            let host = format!("host {}", rank % hosts);
            Process::rank(RANK, &id, (rank, ranks), &[&step, "destroy"], &[("NCCL_HOSTID", &host)])
        };
        let ranks: Vec<Process> = (0..ranks).map(begin).collect();
        ranks.into_iter().map(Process::end).for_each(|rank| rank.expect_success());
    }
}

/// Whatever is urgent for ever, every look after so many goes on: counted, since clocks prove nothing.
#[test]
fn a_best_effort_operation_goes_on_at_every_look_after_the_bound() {
    if !on_host() {
        return;
    }
    let (_turn, _deadline) = (turn(), Deadline::start());
    for hosts in ["aa", "ab"] {
        let config = Config { class: Some(Class::BestEffort), ..Config::default() };
        on_hosts(hosts, &config, |_| {});
        let counts = under_pressure(|| {
            on_hosts(hosts, &config, |comm| (0..4).for_each(|_| all_reduce(comm, 200_000).unwrap()))
        });
        let (held, bound) = (counts.held, u64::from(MOST_HELD));
        assert!(counts.forced > 0 && held <= bound * counts.preempted, "{counts:?}");
        assert!(held >= bound * counts.forced, "{counts:?}: nobody goes on before the bound");
    }
}

#[test]
fn configuration_call_rule_and_function_each_say_the_class() {
    if !on_host() {
        return;
    }
    let (_turn, _deadline) = (turn(), Deadline::start());
    // What presses may be kept from running for a while, where others want the processors.
    let is_held_of = |tries: u32, work: &(dyn Fn(&Comm) + Sync)| {
        (0..tries).any(|_| under_pressure(|| in_threads(2, work)).held > 0)
    };
    let is_held = |work: &(dyn Fn(&Comm) + Sync)| is_held_of(100, work);
    let is_never_held = |work: &(dyn Fn(&Comm) + Sync)| !is_held_of(2, work);
    let best_effort = Some(Class::BestEffort);
    assert!(is_never_held(&|comm| with_class(comm, None, 5000)), "nobody said anything");
    assert!(is_held(&|comm| with_class(comm, best_effort, 5000)), "the call");
    assert!(is_never_held(&|comm| with_class(comm, Some(Class::Urgent), 5000)));
    let of_comm = |comm: &Comm, class| {
        let child = of_class(comm, Class::BestEffort).unwrap();
        with_class(&child, class, 5000);
        child.destroy().unwrap();
    };
    assert!(is_held(&|comm| of_comm(comm, None)), "the configuration");
    assert!(is_never_held(&|comm| of_comm(comm, Some(Class::Normal))), "the call counts more");
    let by_function = |comm: &Comm| {
        comm.set_class(Class::BestEffort).unwrap();
        with_class(comm, None, 5000);
    };
    assert!(is_held(&by_function), "the function");
    let text = "[[rule]]\nmatch.bytes = \"1K..\"\nuse = { class = \"best_effort\" }\n";
    let by_rule = |comm: &Comm| {
        let file = SettingsFile { name: "classes.toml".to_owned(), text: text.to_owned() };
        if comm.rank() == 0 {
            comm.change_rules(&[file]).unwrap();
        }
        // The rules count from some call on.
        (0..30).for_each(|_| with_class(comm, None, 5000));
        let last = comm.last_decision().unwrap().expect("a collective");
        assert!(last.text.contains("class: best_effort, by a tuner"), "{}", last.text);
        assert!(last.text.contains("classes.toml"), "{}", last.text);
    };
    assert!(is_held(&by_rule), "a rule");
}

/// A process per rank with the class that the environment gives each.
fn with_settings(classes: &[&str], steps: &[&str], others: &[(&str, &str)]) -> Vec<Ended> {
    let (id, ranks) = (unique_id().unwrap(), classes.len() as u32);
    let begin = |(rank, class): (u32, &&str)| {
        let mut settings =
            vec![("HAWSER_CLASS", *class), ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL")];
        settings.extend(others);
        Process::rank(RANK, &id, (rank, ranks), steps, &settings)
    };
    let ranks: Vec<Process> = (0..).zip(classes).map(begin).collect();
    ranks.into_iter().map(Process::end).collect()
}

#[test]
fn the_setting_says_the_class_and_logs_say_it() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    for class in ["urgent", "Best_Effort"] {
        for rank in with_settings(&[class; 2], &["all_reduce", "destroy"], &[]) {
            rank.expect_success();
            assert!(rank.output.contains(&format!(", {}", class.to_lowercase())), "{}", rank.output);
        }
    }
    for rank in with_settings(&["normal"; 2], &["all_reduce", "destroy"], &[]) {
        assert!(!rank.output.contains(", normal"), "the usual class is not worth a word: {}", rank.output);
    }
    let wrong = with_settings(&["high"; 1], &["all_reduce"], &[]);
    wrong[0].expect_error("InvalidUsage", &["HAWSER_CLASS", "urgent, normal or best_effort"]);
}

/// Ranks that differ get right results; where calls are compared they are told.
#[test]
fn classes_that_differ_are_harmless_and_told_where_calls_are_compared() {
    if !on_host() {
        return;
    }
    let (_turn, _deadline) = (turn(), Deadline::start());
    let count = AtomicU32::new(0);
    let counts = under_pressure(|| {
        on_hosts("aab", &Config::default(), |comm| {
            for round in 0..12 {
                let class = Class::ALL[(comm.rank() as usize + round) % 3];
                with_class(comm, Some(class), 300_000);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    assert!(count.into_inner() == 36 && counts.held > 0, "{counts:?}");
    for rank in with_settings(&["urgent", "urgent", "normal"], &["small", "destroy"], &[]) {
        rank.expect_success();
    }
    let compared = [("NCCL_CHECK_MODE", "DEBUG_GLOBAL")];
    for rank in with_settings(&["urgent", "urgent", "normal"], &["?all_reduce", "destroy"], &compared) {
        rank.expect_error("InvalidUsage", &["rank 2 called", "of another class than rank 0"]);
    }
}
