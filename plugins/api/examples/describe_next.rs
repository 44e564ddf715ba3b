//! A host with the imagined next version of the ABI.

#[path = "describe.rs"]
mod describe;

fn main() -> std::process::ExitCode {
    describe::main()
}
