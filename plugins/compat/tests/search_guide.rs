//! The C plugin of the guide compiles with our header, is found and works.

#[path = "search/library.rs"]
mod library;

use std::path::Path;

use hawser_compat::search::{Finder, Request};
use hawser_plugin::tuner::{Algorithm, Candidate, Function, Protocol, Question, TunerConfig};
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

    let ring = |protocol, us| Candidate { algorithm: Algorithm::RING, protocol, us };
    let before = [ring(Protocol::Ll, 9.0), ring(Protocol::Simple, 5.0), ring(Protocol::Ll128, -1.0)];
    let mut small = before;
    let answer = context.tune(&Question::new(Function::AllReduce, 100), &mut small).unwrap();
    assert_eq!((answer.channels, small.map(|c| c.us)), (Some(1), [0.0, 5.0, -1.0]));
    let mut large = before;
    let answer = context.tune(&Question::new(Function::AllReduce, 1 << 20), &mut large).unwrap();
    assert_eq!((answer.channels, large), (None, before));
}
