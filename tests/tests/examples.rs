//! The programs of `examples/`, as a reader runs them: on the host device, or with PyTorch's Gloo.

use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_tests::skip::skipped;

/// A path in the repository.
fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository").join(path)
}

/// The folder of the libraries that cargo has built.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let folder = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").to_path_buf();
    assert!(folder.join("libnccl.so").is_file(), "no libnccl.so: run cargo build -p hawser-capi");
    folder
}

/// `program` without this process's settings of the library, on the host device.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| ["NCCL_", "HAWSER_", "MSCCL_"].iter().any(|p| name.starts_with(p)))
        {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_DEVICE", "host").env("HAWSER_INIT_TIMEOUT", "60").env("HAWSER_OP_TIMEOUT", "60");
    command
}

/// The standard output of a command, which must succeed.
fn text(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{error}", output.status);
    text
}

/// The Python that the PyTorch examples run with.
fn python() -> String {
    std::env::var("HAWSER_PYTHON").unwrap_or_else(|_| "python3".into())
}

#[test]
fn the_pytorch_examples_run_on_gloo() {
    let folder = std::env::temp_dir().join(format!("hawser-examples-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the plot");
    let mut command = command(python());
    command.arg(in_repository("tests/examples/gloo.py")).arg(in_repository("examples/pytorch"));
    command.current_dir(&folder);
    if Command::new(python()).arg("--version").output().is_err() {
        return skipped(format!("there is no {}", python()));
    }
    let text = text(&mut command);
    if let Some(reason) = text.strip_prefix("skipped: ") {
        return skipped(reason.trim());
    }
    assert_eq!(text.matches("all right").count(), 5, "{text}");
    assert_eq!(text.matches("served by Gloo of PyTorch").count(), 5, "{text}");
    let plot = std::fs::read_to_string(folder.join("plot.svg")).expect("the benchmark draws a plot");
    assert!(plot.contains("<title>all_reduce, 2 ranks on the CPU</title>"), "{plot}");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}

#[test]
fn the_c_example_sums_on_the_host_device() {
    let Some(text) = compiled("c/all_reduce.c") else { return };
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("served by Hawser, with the interface of NCCL 2."), "{text}");
    assert_eq!(lines[1..5].iter().filter(|line| line.ends_with(" has 6, 10, 14, ...")).count(), 4, "{text}");
    assert_eq!(lines.last(), Some(&"all right"), "{text}");
}

#[test]
fn products_are_added_up_part_by_part() {
    let Some(text) = compiled("partitioned/pipeline.c") else { return };
    assert_eq!(text.matches(" has the sum of 4 products, part by part").count(), 4, "{text}");
    assert_eq!(text.lines().last(), Some("all right"), "{text}");
}

/// The output of an example in C, compiled here and run on the host device; None without a compiler.
fn compiled(source: &str) -> Option<String> {
    let library = built();
    let name = source.replace(['/', '.'], "-");
    let program = library.join(format!("example-{name}-{}", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        skipped(format!("there is no C compiler ({compiler})"));
        return None;
    }
    let mut compile = Command::new(compiler);
    compile.args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]).arg(&program);
    compile.arg(in_repository("examples").join(source)).arg("-I").arg(in_repository("core/capi/include"));
    compile.arg("-L").arg(&library).args(["-l:libnccl.so", "-ldl", "-lpthread"]);
    text(&mut compile);
    // The library is recorded under the name libnccl.so.2, which `make test` makes.
    let folder = library_folder(&library);
    let text = text(command(&program).env("LD_LIBRARY_PATH", &folder));
    std::fs::remove_file(&program).expect("just compiled");
    Some(text)
}

/// A folder in which `libnccl.so.2` leads to the library that cargo has built.
fn library_folder(built: &Path) -> PathBuf {
    let folder = built.join("examples-libnccl");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let link = folder.join("libnccl.so.2");
    if !link.exists() {
        // Another test may be quicker.
        std::os::unix::fs::symlink(built.join("libnccl.so"), &link)
            .unwrap_or_else(|e| assert!(link.exists(), "{e}"));
    }
    folder
}

/// The tool that cargo has built, for scripts of examples.
fn script(path: &str) -> Command {
    let tool = built().join("hawser");
    assert!(tool.is_file(), "no hawser: run cargo build -p hawser-cli");
    let mut command = command(in_repository(path));
    command.env("HAWSER", tool);
    command
}

#[test]
fn an_algorithm_of_ones_own_is_proved_drawn_and_run() {
    let folder = std::env::temp_dir().join(format!("hawser-msccl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for what is written");
    let text = text(script("examples/msccl/run.sh").arg(&folder));
    assert!(text.contains("in place      right: 8 steps"), "{text}");
    assert_eq!(text.matches("decided: line with host/Simple").count(), 3, "{text}");
    assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
    assert!(std::fs::read_to_string(folder.join("line.svg")).expect("a picture").contains("<svg"));
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}

#[test]
fn rules_of_a_running_job_change_twice() {
    let text = text(&mut script("examples/live_rules/run.sh"));
    assert_eq!(text.matches(", on all ranks").count(), 2, "{text}");
    // A line for each rank.
    let ranks = text.lines().filter(|line| line.contains("  example  ") && line.contains("  world  "));
    assert_eq!(ranks.count(), 4, "{text}");
}

#[test]
fn the_rust_example_sums_on_the_host_device() {
    let target = built().join("examples-rust");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // The crates that it needs are the workspace's too, so they are there unless Cargo.lock has newer ones.
    build.args(["build", "--quiet", "--offline", "--locked", "--manifest-path"]);
    build.arg(in_repository("examples/rust/Cargo.toml")).arg("--target-dir").arg(&target);
    let output = build.output().expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("--offline") {
        return skipped(format!("crates are missing: {}", error.lines().next().unwrap_or_default()));
    }
    assert!(output.status.success(), "{error}");
    let mut program = command(target.join("debug/all-reduce"));
    let text = text(program.env("LD_LIBRARY_PATH", built()));
    assert!(text.starts_with("libnccl.so has the interface of NCCL 2."), "{text}");
    assert_eq!(text.matches(" has 6, 10, 14, ...").count(), 4, "{text}");
    assert!(text.ends_with("all right\n"), "{text}");
}

#[test]
fn the_plugins_are_taken() {
    let tool = built().join("hawser");
    let log = |variable: &str, name: &str| {
        let library = built().join(name);
        assert!(
            library.is_file(),
            "no {name}: run cargo build -p hawser-example-tuner -p hawser-example-profiler"
        );
        let mut perf = command(&tool);
        perf.args(["perf", "all_reduce", "-t", "2", "-b", "1K", "-e", "64K", "-f", "8"])
            .env(variable, library);
        text(perf.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "TUNING,PROFILE"))
    };
    let tuned = log("NCCL_TUNER_PLUGIN", "libhawser_example_tuner.so");
    assert_eq!(tuned.matches("one_ring: reductions of 2 ranks go by ring").count(), 2, "{tuned}");
    let counted = log("NCCL_PROFILER_PLUGIN", "libhawser_example_profiler.so");
    for rank in ["rank 0 of 2: AllReduce ", "rank 1 of 2: AllReduce "] {
        assert_eq!(counted.matches(rank).count(), 1, "{counted}");
    }
}
