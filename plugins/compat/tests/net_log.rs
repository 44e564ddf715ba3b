//! The log lines of net plugins, in both directions. C callbacks have one sink per process, so these tests
//! have a process of their own and take turns.

#[path = "net_support/loopback.rs"]
mod loopback;
mod net_support;

use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_compat::logger;
use hawser_compat::net::export::{self, Export, State};
use hawser_plugin::net::NetConfig;
use hawser_plugin::{Level, Log, Subsys};
use loopback::Loopback;
use net_support::*;

/// Held by the test whose log is the sink.
static TURN: Mutex<()> = Mutex::new(());

/// A line as a log got it.
type Line = (Level, Subsys, String);

/// A log and the lines that it got.
fn keeping_log() -> (Log, Arc<Mutex<Vec<Line>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    let log =
        Log::new(move |level, subsys, line| keep.lock().unwrap().push((level, subsys, line.to_owned())));
    (log, lines)
}

#[test]
fn lines_of_an_imported_plugin_and_about_it_reach_the_log() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (log, lines) = keeping_log();
    let plugin = Queue::new(9);
    plugin.set(Knob::Properties, 2);
    let context = plugin.load().unwrap().plugin.open(&NetConfig::new(0, log)).unwrap();
    context.properties(0).unwrap();
    context.properties(0).unwrap();
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 2, "replaced once, said once: {lines:?}");
    assert_eq!(lines[0], (Level::Info, Subsys::NET, "init of version 9".to_owned()));
    assert_eq!(lines[1].0, Level::Info);
    let text = &lines[1].2;
    assert!(text.contains("net plugin 'Queue' (ncclNetPlugin_v9 of "), "{text}");
    for replaced in ["device 0", "speed -5 -> 0", "maxRecvs 1000 -> 8", "maxP2pBytes 0 -> 1073741824"] {
        assert!(text.contains(replaced), "{replaced} is not in: {text}");
    }
}

#[test]
fn errors_of_an_exported_plugin_reach_the_hosts_logger() {
    struct Broken;
    impl Export for Broken {
        fn state() -> &'static State {
            static STATE: State = State::new(c"Broken", || {
                let broken = AtomicBool::new(true);
                Arc::new(Loopback { name: "Other", broken, ..Loopback::default() })
            });
            &STATE
        }
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (log, lines) = keeping_log();
    let (table, mut context) = (export::v12::<Broken>(c"Broken"), null_mut());
    let host = logger::for_plugins(&log);
    // SAFETY: NCCL's way to call it.
    let code = unsafe { table.init.unwrap()(&raw mut context, 1, null_mut(), Some(host), None) };
    assert_eq!(code, 2);
    let lines = lines.lock().unwrap();
    let name = "net plugin 'Other' is 'Broken' to NCCL_NET: export it by its name";
    assert_eq!(lines[0], (Level::Info, Subsys::INIT, name.to_owned()));
    assert_eq!(lines[1], (Level::Warn, Subsys::ALL, "Broken: init: no network today".to_owned()));
    assert_eq!(lines.len(), 2);
}
