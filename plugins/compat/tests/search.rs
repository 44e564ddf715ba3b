//! The search for plugins, with libraries that are made for each test.

#[path = "search/library.rs"]
mod library;

use std::fs;
use std::sync::Arc;

use hawser_compat::search::{Finder, Kind, NetCandidate, Origin, Plugins, Request};
use hawser_plugin::builtin::{BuiltIn, Component};
use hawser_plugin::inventory;
use hawser_plugin::net::{Net, NetConfig, NetContext};
use hawser_plugin::{Error, Result};
use library::{Folder, example, log};

/// The built-in net of this program.
struct Last;

impl Net for Last {
    fn name(&self) -> &str {
        "last"
    }

    fn open(&self, _config: &NetConfig) -> Result<Box<dyn NetContext>> {
        Err(Error::unsupported("everything"))
    }
}

inventory::submit! { BuiltIn { name: "last", priority: 7, make: || Component::Net(Arc::new(Last)) } }
inventory::submit! { BuiltIn { name: "bug", priority: 1, make: || panic!("a bug") } }

fn names(nets: &Plugins<NetCandidate>) -> Vec<&str> {
    nets.candidates.iter().map(|candidate| candidate.net.plugin.name()).collect()
}

#[test]
fn a_list_gives_all_its_nets_and_then_the_built_in_ones() {
    let folder = Folder::new();
    folder.build("libnccl-net-one.so", &["NET=one", "COLLNET=together"]);
    folder.build("libtwo.so", &["NET=two", "GIN"]);
    let (log, lines) = log();
    let finder = Finder::new();
    let value = format!("one,{},nowhere,libtwo.so,one", folder.path("libnccl-net-one.so").display());
    let nets = finder.nets(&Request::new(Some(&value), Some(&folder.0), &log));
    assert_eq!(names(&nets), ["one", "two", "last"]);
    let [one, two, last] = &nets.candidates[..] else { panic!() };
    assert_eq!(one.net.interface, "ncclNetPlugin_v8");
    assert_eq!(one.net.origin, Origin::Library(folder.path("libnccl-net-one.so")));
    assert!(one.net.demanded && two.net.demanded && !last.net.demanded);
    assert_eq!(last.net.origin, Origin::BuiltIn);
    let collnet = one.collnet.as_ref().unwrap();
    assert_eq!((collnet.plugin.name(), collnet.interface.as_str()), ("together", "ncclCollNetPlugin_v8"));
    assert!(two.collnet.is_none() && last.collnet.is_none() && !nets.none);

    let [failed] = &nets.failed[..] else { panic!("{:?}", nets.failed) };
    assert!(failed.starts_with("not found (tried nowhere, libnccl-net-nowhere.so, "), "{failed}");
    let lines = lines.lock().unwrap().clone();
    let with = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        with("Warn net plugin nowhere (of NCCL_NET_PLUGIN) cannot be used: not found"),
        1,
        "{lines:?}"
    );
    assert_eq!(
        with("libtwo.so: net two by ncclNetPlugin_v8; not used: ncclGinPlugin_v13 is not supported"),
        1
    );
    assert_eq!(with("built-in plugin bug panicked"), 1);
}

#[test]
fn answers_are_remembered_and_logged_once() {
    let folder = Folder::new();
    folder.build("libnccl-net-one.so", &["NET=one"]);
    let (log, lines) = log();
    let finder = Finder::new();
    let request = Request::new(Some("one,two"), Some(&folder.0), &log);
    let first = finder.nets(&request);
    let count = lines.lock().unwrap().len();
    folder.build("libnccl-net-two.so", &["NET=two"]);
    let second = finder.nets(&request);
    assert_eq!((names(&first), names(&second)), (vec!["one", "last"], vec!["one", "last"]));
    assert!(Arc::ptr_eq(&first.candidates[0].net.plugin, &second.candidates[0].net.plugin));
    assert!(Arc::ptr_eq(&first.candidates[1].net.plugin, &second.candidates[1].net.plugin));
    assert_eq!(
        (second.failed.len(), lines.lock().unwrap().len()),
        (1, count),
        "what failed is not tried again"
    );
    assert_eq!(names(&Finder::new().nets(&request)), ["one", "two", "last"]);
}

#[test]
fn without_a_name_the_default_library_is_taken_quietly() {
    let (log, lines) = log();
    let folder = Folder::new();
    let nets = Finder::new().nets(&Request::new(None, Some(&folder.0), &log));
    assert_eq!((names(&nets), nets.failed.len()), (vec!["last"], 0));
    let text = lines.lock().unwrap().join("\n");
    assert!(text.contains("Info no external net plugin: libnccl-net.so is nowhere"), "{text}");
    assert!(!text.contains("Warn net plugin"), "{text}");

    folder.build("libnccl-net.so", &["NET=default"]);
    let nets = Finder::new().nets(&Request::new(Some(" ,"), Some(&folder.0), &log));
    assert_eq!(names(&nets), ["default", "last"]);
    assert!(!nets.candidates[0].net.demanded);
    let nets = Finder::new().nets(&Request::new(Some("NONE"), Some(&folder.0), &log));
    assert_eq!((names(&nets), nets.none), (vec!["last"], true));
}

#[test]
fn tuners_are_also_looked_for_in_net_libraries() {
    let folder = Folder::new();
    folder.build("libnccl-net-both.so", &["NET=both", "TUNER=inside"]);
    folder.build("libnccl-tuner-own.so", &["TUNER=own"]);
    let (log, lines) = log();
    let finder = Finder::new();
    let tuners = |value: Option<&str>| {
        let found = finder.tuners(&Request::new(value, Some(&folder.0), &log));
        let names: Vec<String> = found.candidates.iter().map(|t| t.plugin.name().to_owned()).collect();
        (names, found.failed.len())
    };
    assert_eq!(tuners(None), (vec![], 0), "there is no net library yet");
    finder.nets(&Request::new(Some("both"), Some(&folder.0), &log));
    assert_eq!(tuners(None), (vec!["inside".to_owned()], 0));
    assert_eq!(tuners(Some("none")), (vec![], 0));
    assert_eq!(tuners(Some("own")), (vec!["own".to_owned()], 0));
    let all = tuners(Some("own,libnccl-net-both.so"));
    assert_eq!(all, (vec!["own".to_owned(), "inside".to_owned()], 0), "lists work for tuners too");
    assert_eq!(tuners(Some("lost")), (vec!["inside".to_owned()], 1), "as in NCCL");
    let text = lines.lock().unwrap().join("\n");
    assert!(
        text.contains("Warn tuner plugin lost (of NCCL_TUNER_PLUGIN) cannot be used: not found"),
        "{text}"
    );
    assert!(finder.profilers(&Request::new(None, Some(&folder.0), &log)).candidates.is_empty());
}

#[test]
fn a_library_is_read_once_for_all_kinds() {
    let folder = Folder::new();
    let path = folder.build("libeverything.so", &["NET=net", "TUNER=tuner", "ENV=env"]);
    let (log, _) = log();
    let finder = Finder::new();
    let link = folder.path("link.so");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let by = |path: &std::path::Path| {
        let value = path.display().to_string();
        let request = Request::new(Some(&value), None, &log);
        let envs = finder.envs(&request);
        (finder.tuners(&request).candidates.remove(0), envs.candidates.into_iter().next().unwrap())
    };
    let ((tuner, env), (same_tuner, same_env)) = (by(&path), by(&link));
    assert_eq!((tuner.plugin.name(), env.plugin.name()), ("tuner", "env"));
    assert!(Arc::ptr_eq(&tuner.plugin, &same_tuner.plugin) && Arc::ptr_eq(&env.plugin, &same_env.plugin));
}

#[test]
fn rust_plugins_come_first_and_tables_fill_the_gaps() {
    let (log, lines) = log();
    let finder = Finder::new();
    let value = example("librust_plugin.so").display().to_string();
    let nets = finder.nets(&Request::new(Some(&value), None, &log));
    assert_eq!(names(&nets), ["loopback", "empty", "last"]);
    assert_eq!(nets.candidates[1].net.interface, "Rust 1.0.0");
    let tuners = finder.tuners(&Request::new(Some(&value), None, &log));
    assert!(tuners.candidates[0].interface.starts_with("ncclTunerPlugin_v"));
    assert!(lines.lock().unwrap()[0].contains("net loopback by Rust 1.0.0; net empty by Rust 1.0.0; tuner "));
    let context = nets.candidates[0].net.plugin.open(&NetConfig::new(1, log)).unwrap();
    assert_eq!(context.devices(), Ok(1));
}

#[test]
fn refusals_say_why() {
    let folder = Folder::new();
    let (log, lines) = log();
    folder.build("libplain.so", &[]);
    folder.build("libundefined.so", &["NET=x", "UNDEFINED"]);
    folder.build("libbroken.so", &["BROKEN_TUNER", "NET=x"]);
    folder.build("libold.so", &["OLD_NET"]);
    fs::write(folder.path("libtext.so"), "this is a text and nothing else").unwrap();
    let mut elf = fs::read(folder.path("libplain.so")).unwrap();
    elf[18] = 0x77;
    fs::write(folder.path("libforeign.so"), &elf).unwrap();
    let finder = Finder::new();
    let why = |kind: Kind, name: &str| {
        let request = Request::new(Some(name), Some(&folder.0), &log);
        let failed = match kind {
            Kind::Net => finder.nets(&request).failed,
            _ => finder.tuners(&request).failed,
        };
        failed.into_iter().next().unwrap_or_default()
    };
    let expect = |kind: Kind, name: &str, text: &str| {
        let why = why(kind, name);
        assert!(why.contains(text), "{name}: {why}");
    };
    expect(Kind::Net, "libplain.so", "is no plugin: it has no symbol of a net plugin");
    expect(Kind::Net, "libm.so.6", "libm.so.6 is no plugin");
    expect(Kind::Net, "STATIC_PLUGIN", "STATIC_PLUGIN is no plugin");
    expect(Kind::Net, "libundefined.so", "undefined symbol: nowhere_to_be_found");
    expect(
        Kind::Tuner,
        "libbroken.so",
        "holds no usable tuner plugin: net x by ncclNetPlugin_v8; not used: ncclTunerPlugin_v4",
    );
    expect(Kind::Net, "libold.so", "not used: ncclNetPlugin_v4 is not supported");
    expect(Kind::Net, "libtext.so", "libtext.so is no shared library");
    expect(Kind::Net, "libforeign.so", "is built for ELF machine ");
    expect(Kind::Net, &folder.path("libgone.so").display().to_string(), "not found");
    let warnings = lines.lock().unwrap().iter().filter(|line| line.starts_with("Warn net plugin")).count();
    assert_eq!(warnings, 8);
}
