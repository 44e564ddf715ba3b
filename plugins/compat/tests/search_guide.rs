//! The C plugin of the guide compiles with our header, is found and works.

#[path = "search/library.rs"]
mod library;

use std::path::Path;

use hawser_compat::search::{Finder, Request};
use hawser_plugin::tuner::{
    Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, TunerConfig,
};
use library::{Folder, log};

#[test]
fn the_guides_tuner_in_c_is_calm() {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let guide = std::fs::read_to_string(plugins.parent().unwrap().join("docs/plugin-guide.md")).unwrap();
    let source = guide.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = Folder::new();
    let include = plugins.join("api/include");
    folder.compile("libnccl-tuner-calm.so", source, &["-Wextra", "-I", include.to_str().unwrap()]);

    let (log, lines) = log();
    let mut tuners = Finder::new().tuners(&Request::new(Some("calm"), Some(&folder.0), &log)).candidates;
    assert_eq!(tuners.len(), 1, "{:?}", lines.lock().unwrap());
    let tuner = tuners.remove(0);
    assert_eq!((tuner.plugin.name(), tuner.interface.as_str()), ("calm", "ncclTunerPlugin_v6"));
    let context = tuner.plugin.open(&TunerConfig::new(1, 8, 2, log)).unwrap();
    assert!(lines.lock().unwrap().iter().any(|line| line == "Info calm: 8 ranks on 2 hosts"));

    let decision = |protocol| Decision::new(Algorithm::RING, Executor::Interpreter, protocol);
    let ring = |protocol, us| Candidate::predicted(decision(protocol), us);
    let refused = Candidate::refused(decision(Protocol::Ll128), "not NVLink");
    let before = [refused, ring(Protocol::Ll, 9.0), ring(Protocol::Simple, 5.0)];
    let mut small = before;
    let answer = context.tune(&Question::new(Function::AllReduce, 100), &mut small).unwrap();
    assert_eq!((answer.order, answer.channels, small), (Some(1), Some(1), before));
    let mut large = before;
    let answer = context.tune(&Question::new(Function::AllReduce, 1 << 20), &mut large).unwrap();
    assert_eq!((answer.order, answer.channels, large), (None, None, before));
}
