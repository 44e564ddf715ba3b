//! The stand-in for the CUDA driver (`libcuda.c`), for tests: it counts which calls are made, in which state.

use std::io::{Write, stderr};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use hawser_base::log::last_error;
use libloading::os::unix::{Library, RTLD_NOW};

/// Runs `body`, which is the test `test` of `module` (`module_path!()`), in a process of its own that finds
/// the stand-in as `libcuda.so.1`.
pub fn with_fake_driver(module: &str, test: &str, env: &[(&str, &str)], body: fn()) {
    if is_fake() {
        body();
        // A destructor that fails warns, and warnings are kept.
        assert_eq!(last_error(), "");
        return;
    }
    let output =
        this_test(module, test).env("LD_LIBRARY_PATH", fake_driver()).envs(env.iter().copied()).output();
    assert_passed(&output.expect("starting this test again"));
}

/// As [`with_fake_driver`], for a test that launches kernels. Where none are built in it says so, and is
/// skipped.
pub fn with_fake_kernels(module: &str, test: &str, env: &[(&str, &str)], body: fn()) {
    if !hawser_kernels::FATBINS.is_empty() {
        return with_fake_driver(module, test, env, body);
    }
    // Straight to standard error, which no harness captures.
    let _ = writeln!(stderr(), "skipped: {test}: no kernels are built in; HAWSER_CUDA_ARCHS=90 builds them");
}

/// Runs a test in two processes, each of which is a rank: this one, and another that runs the same test with
/// more variables. For the body of [`with_fake_driver`].
///
/// `identity` makes here what both have to know; `as_rank` gets it, with 0 here and with 1 there.
pub fn in_two_processes(
    (module, test): (&str, &str),
    env: &[(&str, &str)],
    identity: impl FnOnce() -> Vec<u8>,
    as_rank: impl FnOnce(&[u8], u32),
) {
    let file = |process: u32| std::env::temp_dir().join(format!("hawser-test-identity-{process}"));
    if let Ok(identity) = std::fs::read(file(std::os::unix::process::parent_id())) {
        return as_rank(&identity, 1);
    }
    let (identity, file) = (identity(), file(std::process::id()));
    std::fs::write(&file, &identity).expect("a file for the other process");
    let mut other = this_test(module, test);
    other.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let other = other.spawn().expect("starting this test again");
    as_rank(&identity, 0);
    std::fs::remove_file(file).expect("removing the file of this test");
    assert_passed(&other.wait_with_output().expect("the other process ends"));
}

/// A command that runs one test of this executable.
pub fn this_test(module: &str, test: &str) -> Command {
    let module = module.split_once("::").expect("a module in a crate").1;
    let mut command = Command::new(std::env::current_exe().expect("path of this test"));
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture"]);
    command
}

/// Panics unless one test ran, and passed.
pub fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Compiles the stand-in beside the test executable, once per process; its folder.
pub fn fake_driver() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let exe = std::env::current_exe().expect("path of this test");
        let folder = exe.parent().expect("a folder").join("fake-cuda");
        std::fs::create_dir_all(&folder).expect("a folder for the stand-in");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/fake/libcuda.c");
        let unfinished = folder.join(format!("unfinished-{}", std::process::id()));
        let status =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&unfinished).arg(source).status();
        assert!(status.expect("a C compiler: apt-get install gcc").success());
        std::fs::rename(&unfinished, folder.join("libcuda.so.1")).expect("renaming within a folder");
        folder
    })
}

/// The driver library that this process finds.
pub fn driver_library() -> Option<Library> {
    // SAFETY: a CUDA driver or the stand-in, which may both be loaded at any time.
    unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }.ok()
}

/// True if that is the stand-in.
pub fn is_fake() -> bool {
    // SAFETY: only its presence is asked for.
    driver_library().is_some_and(|library| unsafe { library.get::<*mut ()>(b"fake_live") }.is_ok())
}

/// Asks the stand-in.
pub fn fake(question: &str) -> i32 {
    let library = driver_library().expect("the stand-in");
    // SAFETY: the questions of libcuda.c take nothing and give an int.
    unsafe { library.get::<unsafe extern "C" fn() -> i32>(question.as_bytes()).expect(question)() }
}

/// Tells the stand-in that some stream is being captured.
pub fn set_capturing(on: i32) {
    tell("fake_set_capturing", on);
}

/// Tells the stand-in that whatever waits for a stream is late. It is over with the question `fake_pass`.
pub fn set_busy(on: i32) {
    tell("fake_set_busy", on);
}

fn tell(what: &str, value: i32) {
    let library = driver_library().expect("the stand-in");
    // SAFETY: libcuda.c declares what is told so.
    unsafe { library.get::<unsafe extern "C" fn(i32) -> i32>(what.as_bytes()).expect(what)(value) };
}
