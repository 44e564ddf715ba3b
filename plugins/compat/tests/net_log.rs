//! What a C net plugin logs. Its callback has one sink per process, so this test has a process of its own.

mod net_support;

use std::sync::{Arc, Mutex};

use hawser_plugin::net::NetConfig;
use hawser_plugin::{Level, Log, Subsys};
use net_support::*;

#[test]
fn lines_of_the_plugin_and_about_it_reach_the_log() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    let log =
        Log::new(move |level, subsys, line| keep.lock().unwrap().push((level, subsys, line.to_owned())));
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
