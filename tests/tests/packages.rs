//! Installing, uninstalling and packing, with stand-ins for what is built (`tests/packages/check.py`), and
//! the use of what was installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_tests::skip::skipped;

#[test]
fn packages_are_whole_and_equal_when_made_twice() {
    let folder = std::env::temp_dir().join(format!("hawser-packages-{}", std::process::id()));
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/check.py");
    let output = match Command::new("python3").arg(check).arg(&folder).output() {
        Ok(output) => output,
        Err(error) => return skipped(format!("python3: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    if let Some(reason) = text.strip_prefix("skipped: ") {
        return skipped(reason.trim());
    }
    assert!(text.ends_with("all right\n"), "{text}");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}

/// A folder with what cargo has built, under the names that a release has; what stands for the plugins is the
/// library, since nothing opens them here.
fn built(folder: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let cargos = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let built = folder.join("built");
    std::fs::create_dir_all(&built).expect("a folder of our own");
    let plugins = ["net-hawser-socket", "net-hawser-ib", "tuner-hawser", "profiler-hawser"];
    let plugins = plugins.map(|name| ("libnccl.so", format!("libnccl-{name}.so")));
    let programs = [("libnccl.so", "libnccl.so.2".to_owned()), ("hawser", "hawser".to_owned())];
    for (from, to) in programs.into_iter().chain(plugins) {
        let from = cargos.join(from);
        assert!(from.is_file(), "no {}: run cargo build --workspace", from.display());
        std::os::unix::fs::symlink(from, built.join(to)).expect("a link");
    }
    built
}

/// The output of a command, which must succeed.
fn told(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// True if a program can be started; else the test says so and is left out.
fn is_there(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        skipped(format!("there is no {program}"));
    }
    is_there
}

/// Runs the program of `tests/packages/installed.c` on the host device.
fn is_right(program: &Path, prefix: &Path) {
    let mut command = Command::new(program);
    command.env("HAWSER_DEVICE", "host").env("LD_LIBRARY_PATH", prefix.join("lib"));
    let text = told(&mut command);
    assert!(
        text.contains("all_reduce") && text.ends_with("all right, with plugins that end in 0\n"),
        "{text}"
    );
}

/// A program finds headers and library by pkg-config and by CMake, also where the folder was moved to another
/// place, as that of a tarball is.
#[test]
fn a_program_uses_what_is_installed() {
    if !["cc", "install", "pkg-config"].into_iter().all(is_there) {
        return;
    }
    let folder = std::env::temp_dir().join(format!("hawser-installed-{}", std::process::id()));
    let (first, prefix) = (folder.join("first"), folder.join("prefix"));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = tests.parent().expect("tests lies in the repository");
    let mut install = Command::new(repository.join("packaging/install.sh"));
    told(install.arg("install").arg(built(&folder)).arg(&first));
    std::fs::rename(&first, &prefix).expect("a move");

    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "hawser"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = told(&mut flags);
    let (source, examples) = (tests.join("packages/installed.c"), repository.join("examples/c"));
    let program = folder.join("by-pkg-config");
    let mut compile = Command::new("cc");
    compile
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-I")
        .arg(&examples);
    told(compile.args(flags.split_whitespace()));
    is_right(&program, &prefix);

    if is_there("cmake") {
        let tree = folder.join("cmake");
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(tests.join("packages")).arg("-B").arg(&tree);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        told(configure.arg(format!("-DEXAMPLES={}", examples.display())));
        told(Command::new("cmake").arg("--build").arg(&tree));
        is_right(&tree.join("installed"), &prefix);
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}
