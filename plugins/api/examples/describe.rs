//! Says what a plugin library holds: `cargo run -p hawser-plugin --example describe -- LIBRARY...`

use std::path::Path;
use std::process::ExitCode;

use hawser_plugin::Component;

/// The program.
pub fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for library in std::env::args_os().skip(1) {
        match hawser_plugin::abi::load(Path::new(&library)) {
            Ok(found) => {
                println!("{} {}, built with hawser-plugin {}", found.name, found.version, found.interface);
                found.components.iter().for_each(|component| println!("  {}", describe(component)));
                if found.unknown > 0 {
                    println!("  {} of kinds that this host does not know", found.unknown);
                }
            }
            Err(error) => {
                eprintln!("{error}\n{}", error.detail);
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn describe(component: &Component) -> String {
    match component {
        Component::Net(net) => format!("net {}", net.name()),
        Component::CollNet(net) => format!("collnet {}", net.name()),
        Component::Tuner(tuner) => format!("tuner {}", tuner.name()),
        Component::Profiler(profiler) => format!("profiler {}", profiler.name()),
        Component::Env(env) => format!("env {}", env.name()),
        _ => "a kind without description".to_owned(),
    }
}
