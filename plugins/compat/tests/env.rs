//! C env plugins of every ABI version behind our trait.

#[path = "cc/mod.rs"]
mod cc;

use std::sync::{Arc, Mutex};

use cc::CPlugin;
use hawser_compat::env::from_library;
use hawser_plugin::{Env, ErrorKind, Log};

const INIT_FAILS: i32 = 1;
const NCCL: (u8, u8, u8) = (2, 30, 7);

/// The lines of all plugins, whichever test set the log last.
static ALL: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log() -> Log {
    Log::new(|_, _, line| ALL.lock().unwrap().push(line.to_owned()))
}

fn load(plugin: &CPlugin) -> Arc<dyn Env> {
    from_library(&plugin.library).unwrap().unwrap().plugin
}

#[test]
fn answers_are_copies_and_null_is_not_set() {
    for version in 1..=2 {
        let plugin = CPlugin::build("env", version, &[]);
        let found = from_library(&plugin.library).unwrap().unwrap();
        assert_eq!(found.symbol, format!("ncclEnvPlugin_v{version}"));
        assert_eq!(found.plugin.name(), "recorder");
        let env = found.plugin.open(NCCL, &log()).unwrap();
        let answers = ["NCCL_ALGO", "UNSET", "NCCL_PROTO", "STRANGE", "a\0b"].map(|name| env.value(name));
        drop(env);
        let text = |text: &str| Some(text.to_owned());
        let expected =
            [text("value of NCCL_ALGO"), None, text("value of NCCL_PROTO"), text("a\u{fffd}"), None];
        assert_eq!(answers, expected, "v{version}");
        let calls = [
            "init 2.30.7 suffix=''",
            "get NCCL_ALGO",
            "get UNSET",
            "get NCCL_PROTO",
            "get STRANGE",
            "finalize",
        ];
        assert_eq!(plugin.recorded(), calls, "v{version}");
    }
    assert!(ALL.lock().unwrap().iter().any(|line| line == "env of version 2"));
}

#[test]
fn a_plugin_is_ready_once_at_a_time() {
    let plugin = CPlugin::build("env", 1, &[]);
    let env = load(&plugin);
    plugin.set("fault", INIT_FAILS);
    let error = env.open(NCCL, &log()).err().unwrap();
    assert!(error.text.contains("init of env plugin recorder failed with 8"), "{error}");
    plugin.set("fault", 0);
    let first = env.open(NCCL, &log()).unwrap();
    assert_eq!(env.open(NCCL, &log()).err().unwrap().kind, ErrorKind::InvalidUsage);
    drop(first);
    let again = env.open(NCCL, &log()).unwrap();
    drop(env);
    assert_eq!(again.value("X").as_deref(), Some("value of X"));
}

#[test]
fn an_incomplete_table_is_refused_by_the_missing_name() {
    for version in 1..=2 {
        for (hole, name) in [("NO_INIT", "init"), ("NO_FINALIZE", "finalize"), ("NO_GET", "getEnv")] {
            let plugin = CPlugin::build("env", version, &[hole]);
            let error = from_library(&plugin.library).unwrap().err().unwrap();
            assert!(error.contains(&format!("its {name} is NULL")), "{error}");
        }
        let plugin = CPlugin::build("env", version, &["NO_NAME"]);
        assert_eq!(load(&plugin).name(), "unnamed");
    }
}

#[test]
fn plugins_of_one_version_do_not_mix() {
    let plugins = [(); 2].map(|()| CPlugin::build("env", 2, &[]));
    let envs = plugins.each_ref().map(|plugin| load(plugin).open(NCCL, &log()).unwrap());
    assert_eq!(envs[1].value("B").as_deref(), Some("value of B"));
    assert_eq!(envs[0].value("A").as_deref(), Some("value of A"));
    drop(envs);
    for (plugin, name) in plugins.iter().zip(["A", "B"]) {
        assert_eq!(plugin.recorded(), ["init 2.30.7 suffix=''", &format!("get {name}"), "finalize"]);
    }
}
