//! Takes folders of XML and JSON and prints what the library and the second judge say of every file, of the
//! programs that would run, of mutants, and how programs ran on the host device.
//!
//! ```text
//! cargo run --release -p hawser-tests --bin corpus -- [FOLDER…] [--mutants N] [--run-one-of N] [--seed S]
//!     [--generated] [--longest BYTES] [--keep FOLDER]
//! ```
//!
//! `--generated` adds the built-in algorithms, exported for 2 to 9 ranks. Ends with 1 if the library takes
//! what the judge calls wrong, or a program runs wrong.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use hawser_tests::judge::corpus::{self, Options, Source};
use hawser_tests::judge::runs;
use hawser_tests::programs;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, file] = args.as_slice()
        && word == runs::WORD
    {
        runs::run_here(Path::new(file));
        return ExitCode::SUCCESS;
    }
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let number = |name: &str, other: u64| value(name).and_then(|text| text.parse().ok()).unwrap_or(other);
    let temporary = std::env::temp_dir().join(format!("hawser-corpus-{}", std::process::id()));
    let folder = value("--keep").map_or(temporary, PathBuf::from);
    std::fs::create_dir_all(&folder).expect("the folder for files that are run");
    let mut sources = Vec::new();
    if args.iter().any(|arg| arg == "--generated") {
        let generated = programs::exported(2..=9);
        sources.extend(generated.into_iter().map(|(name, text)| named("generated", name, text)));
    }
    let with_value = ["--mutants", "--run-one-of", "--seed", "--longest", "--keep"];
    for (at, arg) in args.iter().enumerate() {
        let is_value = at > 0 && with_value.contains(&args[at - 1].as_str());
        if arg.starts_with("--") || is_value {
            continue;
        }
        match corpus::below(Path::new(arg)) {
            Ok(found) => sources.extend(found),
            Err(error) => {
                eprintln!("{arg}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let options = Options {
        mutants: number("--mutants", 20) as usize,
        run_one_of: number("--run-one-of", 50) as usize,
        seed: number("--seed", 1),
        binary: std::env::current_exe().expect("this program"),
        longest: number("--longest", 200_000) as usize,
        folder: folder.clone(),
    };
    let begin = Instant::now();
    let table = corpus::examine(&sources, &options, |line| println!("{line}"));
    println!("\nseed {}, {:.0} s\n{table}", options.seed, begin.elapsed().as_secs_f64());
    // Files that went wrong stay in it, and so does the folder.
    let _ = std::fs::remove_dir(&folder);
    if table.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn named(folder: &str, name: String, text: String) -> Source {
    Source { name: format!("{folder}/{name}"), text }
}
