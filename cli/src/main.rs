//! The program `hawser`; see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_cli::main()
}
