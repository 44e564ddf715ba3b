//! A helper program of `search::probe`: `probe doctor --probe KIND PATH`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [doctor, probe, kind, path] = &arguments[..] else { return ExitCode::FAILURE };
    if (doctor.as_str(), probe.as_str()) != ("doctor", "--probe") {
        return ExitCode::FAILURE;
    }
    match hawser_compat::search::probe::helper(kind, Path::new(path), std::io::stdout()) {
        Ok(is_there) => ExitCode::from(u8::from(!is_there)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
