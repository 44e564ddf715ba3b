//! Libraries that break the process that loads them.

#[path = "search/library.rs"]
mod library;

use std::path::Path;
use std::time::Duration;

use hawser_compat::search::probe::{Failed, Probe, probe};
use hawser_compat::search::{Finder, Kind, Request};
use library::{Folder, example, log};

/// Through a fork, and through a helper program.
fn both_ways(deadline: Duration, check: impl Fn(&Probe<'_>)) {
    let program = example("probe");
    check(&Probe { program: None, deadline });
    check(&Probe { program: Some(&program), deadline });
}

const LONG: Duration = Duration::from_secs(120);

#[test]
fn good_libraries_pass() {
    let folder = Folder::new();
    let good = folder.build("libgood.so", &["NET=good", "TUNER=good", "ENV=good"]);
    both_ways(LONG, |how| {
        for kind in [Kind::Net, Kind::Tuner, Kind::Env, Kind::Profiler] {
            assert_eq!(probe(&good, kind, how), Ok(()), "{kind:?}");
        }
        let rust = example("librust_plugin.so");
        assert_eq!(probe(&rust, Kind::Net, how), Ok(()), "errors of a plugin are no crash");
        let Err(Failed::NotOpened(why)) = probe(&folder.path("libgone.so"), Kind::Net, how) else { panic!() };
        assert!(why.contains("No such file"), "{why}");
    });
}

#[test]
fn a_helper_that_helps_nobody_is_no_verdict() {
    let folder = Folder::new();
    let path = folder.build("libbad.so", &["NET=bad", "ON_LOAD=crash()"]);
    for program in ["/bin/false", "/bin/true", "/nowhere/helper"] {
        let how = Probe { program: Some(Path::new(program)), deadline: LONG };
        assert_eq!(probe(&path, Kind::Net, &how), Ok(()), "{program}");
    }
}

#[test]
fn crashes_are_named() {
    let folder = Folder::new();
    let cases = [
        ("a", "NET=x", "ON_LOAD=crash()", Kind::Net, "in step 'loading': the process was killed by SIGSEGV"),
        ("b", "NET=x", "IN_INIT=abort()", Kind::Net, "in step 'init': the process was killed by SIGABRT"),
        ("c", "TUNER=x", "IN_INIT=_exit(3)", Kind::Tuner, "in step 'init': the process ended with code 3"),
        ("d", "ENV=x", "IN_INIT=_exit(0)", Kind::Env, "in step 'init': the process ended"),
    ];
    for (name, kind_macro, fault, kind, text) in cases {
        let path = folder.build(&format!("lib{name}.so"), &[kind_macro, fault]);
        both_ways(LONG, |how| {
            let Err(Failed::Crashed(why)) = probe(&path, kind, how) else { panic!("{name}: no crash") };
            assert!(why.starts_with(&path.display().to_string()) && why.contains(text), "{name}: {why}");
        });
    }
}

#[test]
fn a_library_that_never_returns_is_given_up() {
    let folder = Folder::new();
    let path = folder.build("libhang.so", &["NET=hang", "IN_INIT=for(;;)pause()"]);
    both_ways(Duration::from_millis(1500), |how| {
        let Err(Failed::Crashed(why)) = probe(&path, Kind::Net, how) else { panic!("no end") };
        assert!(why.contains("it was not through after 1.5 s"), "{why}");
    });
}

#[test]
fn the_search_leaves_out_what_crashes() {
    let folder = Folder::new();
    let bad = folder.build("libbad.so", &["NET=bad", "ON_LOAD=crash()"]);
    let good = folder.build("libgood.so", &["NET=good"]);
    let (log, lines) = log();
    let value = format!("{},{},nothing", bad.display(), good.display());
    let mut request = Request::new(Some(&value), None, &log);
    request.probe = Some(Probe { program: None, deadline: LONG });
    let nets = Finder::new().nets(&request);
    let names: Vec<&str> = nets.candidates.iter().map(|c| c.net.plugin.name()).collect();
    assert_eq!(names, ["good"]);
    assert!(nets.failed[0].contains("was killed by SIGSEGV") && nets.failed[1].starts_with("not found"));
    assert!(lines.lock().unwrap()[0].starts_with("Warn net plugin "), "a demanded plugin is a warning");
}
