//! The built program, as a user runs it, on the host device.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `hawser` on the host device with a clean environment.
fn hawser(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["NCCL_", "HAWSER_", "OMPI_", "PMI", "SLURM_", "MASTER_"].iter().any(|p| name.starts_with(p)) {
            command.env_remove(name);
        }
    }
    command.env_remove("RANK").env_remove("WORLD_SIZE").env_remove("TORCHELASTIC_RUN_ID");
    command.env("HAWSER_DEVICE", "host").env("HAWSER_INIT_TIMEOUT", "60");
    command.args(args.split_whitespace());
    command
}

fn run(args: &str) -> Output {
    hawser(args).output().unwrap_or_else(|e| panic!("{args}: {e}"))
}

/// Standard output of a run that must succeed.
fn text(args: &str) -> String {
    checked(args, run(args))
}

fn checked(what: &str, output: Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{out}\n{error}", output.status);
    out
}

/// Cells of the table's rows.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect()
}

/// A table of `count` rows without a wrong element.
fn assert_right(text: &str, count: usize) {
    let rows = rows(text);
    assert_eq!(rows.len(), count, "{text}");
    for row in &rows {
        assert_eq!(row.len(), 13, "{row:?}");
        assert_eq!(row[8], "0", "{row:?}");
        assert!(row[12] == "0" || row[12] == "N/A", "{row:?}");
    }
    assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
    assert!(text.contains("# Avg bus bandwidth    : "), "{text}");
}

/// The `libnccl.so` that Cargo built for this test: it lies beside the test's executable.
fn library() -> String {
    let path = std::env::current_exe().expect("this test").with_file_name("libnccl.so");
    assert!(path.is_file(), "{} is missing: run cargo build -p hawser-capi", path.display());
    path.into_os_string().into_string().expect("UTF-8")
}

/// `tests/NAME.c` as a shared object; None, with a line that says so, without a compiler.
fn shared_object(source: &str, options: &[&str]) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let object = scratch(&format!("{source}.so"));
    let code = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{source}.c"));
    let mut command = Command::new(&compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&object, &code])
        .args(options);
    let Ok(built) = command.arg("-ldl").output() else {
        let _ = writeln!(std::io::stderr(), "skipped: no C compiler ({compiler}); install gcc or set CC");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(object)
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hawser-cli-test-{}-{name}", std::process::id()))
}

#[test]
fn all_reduce_with_default_ranks() {
    let text = text("perf all_reduce -b 8 -e 1K -f 2 -n 2");
    assert_right(&text, 8);
    assert!(text.contains("nThread 4 nGpus 1"), "{text}");
    assert_eq!(text.lines().filter(|l| l.contains("Rank")).count(), 4, "{text}");
    assert_eq!(rows(&text)[0][..5], ["8", "2", "float", "sum", "-1"]);
}

#[test]
fn every_operation_with_threads() {
    let text = text("perf all -b 4K -e 36K -i 16001 -n 1 -t 2 -r all");
    // Three sizes; broadcast, reduce, gather and scatter have two roots.
    assert_right(&text, (6 + 4 * 2) * 3);
}

#[test]
fn every_type_and_reduction() {
    assert_right(&text("perf reduce_scatter -b 20K -e 20K -n 1 -w 0 -t 3 -d all -o all"), 12 * 6);
}

#[test]
fn several_communicators_per_thread() {
    assert_right(&text("perf alltoall -b 64 -e 64K -f 32 -n 2 -t 1 -g 3"), 3);
    assert_right(&text("perf all_gather -b 64K -e 64K -n 2 -m 3 -t 2 -g 2 -u 1"), 1);
    assert_right(&text("perf hypercube -b 64K -e 64K -n 2 -t 2 -g 2"), 1);
}

#[test]
fn one_rank() {
    assert_right(&text("perf all -b 1K -e 1K -n 1 -t 1"), 10);
}

#[test]
fn processes_of_its_own() {
    let text = text("perf all_reduce -b 1K -e 1M -f 32 -n 2 -p 3");
    assert_right(&text, 3);
    assert_eq!(text.lines().filter(|l| l.contains("Rank")).count(), 3, "{text}");
    let both = self::text("perf broadcast -b 1K -e 1K -n 2 -p 2 -t 2 -r 3");
    assert_right(&both, 1);
}

/// The processes of a run that is killed do not outlive it.
#[test]
fn a_run_that_is_killed_leaves_no_processes() {
    let mut run = hawser("perf all_reduce -b 1K -e 1K -n 1000000000 -p 3");
    let mut run = run.stdout(std::process::Stdio::null()).spawn().expect("the tool starts");
    let children = |parent: u32| -> Vec<u32> {
        let tasks = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        tasks.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let until = |is_so: &dyn Fn() -> bool| {
        (0..6_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            is_so()
        })
    };
    let parent = run.id();
    assert!(until(&|| children(parent).len() >= 2), "no processes of its own");
    let started = children(parent);
    run.kill().expect("a process of this test");
    run.wait().expect("a process of this test");
    // One that has ended and that nobody has waited for yet is a zombie.
    let runs = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    assert!(until(&|| !started.iter().any(runs)), "{started:?} outlive their parent");
}

#[test]
fn under_a_launcher() {
    let job = format!("test-{}", std::process::id());
    let children: Vec<_> = (0..2)
        .map(|rank| {
            hawser("perf sendrecv -b 1K -e 1K -n 2")
                .envs([
                    ("OMPI_COMM_WORLD_SIZE", "2"),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                    ("PMIX_NAMESPACE", &job),
                ])
                .env("OMPI_COMM_WORLD_RANK", rank.to_string())
                .env("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("start")
        })
        .collect();
    let texts: Vec<String> = children
        .into_iter()
        .map(|c| checked("under a launcher", c.wait_with_output().expect("wait")))
        .collect();
    assert_right(&texts[0], 1);
    assert_eq!(texts[1], "");
}

/// Two processes as torchrun starts them, with these settings; what each writes to its outputs.
fn under_torchrun(local_processes: &str, settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("address").port();
    drop(listener);
    let start = |rank: u32| {
        let mut command = hawser("perf all_reduce -b 1K -e 1K -n 2");
        command
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", local_processes)])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("TORCHELASTIC_RUN_ID", "none")])
            .env("MASTER_PORT", (port - 1).to_string())
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .envs(settings.iter().copied())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command.spawn().expect("start")
    };
    let children: Vec<_> = (0..2).map(start).collect();
    let end = |child: std::process::Child| {
        let output = child.wait_with_output().expect("wait");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (checked("under torchrun", output), error)
    };
    children.into_iter().map(end).collect()
}

#[test]
fn processes_under_torchrun_know_each_other_by_a_file_or_a_key_or_say_so() {
    let warning = "guesses the job's name";
    let key = scratch("key");
    std::fs::write(&key, "a key for this test").expect("write");
    let key_file = [("HAWSER_COMM_ID_KEY_FILE", key.to_str().expect("UTF-8"))];
    for (local_processes, settings, is_warned) in
        [("2", &[][..], false), ("1", &key_file, false), ("1", &[], true)]
    {
        let outputs = under_torchrun(local_processes, settings);
        assert_right(&outputs[0].0, 1);
        assert_eq!(outputs[0].1.contains(warning), is_warned, "{}", outputs[0].1);
        assert!(!outputs[1].1.contains(warning), "{}", outputs[1].1);
    }
    std::fs::remove_file(&key).expect("remove");
    let missing = hawser("perf all_reduce -b 1K -e 1K")
        .envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")])
        .envs(key_file)
        .output()
        .expect("start");
    let error = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && error.contains("HAWSER_COMM_ID_KEY_FILE="), "{error}");
}

#[test]
fn json_and_explanations() {
    let file = scratch("out.json");
    let text = text(&format!("perf all_reduce -b 1K -e 1K -n 2 -t 2 --explain -J {}", file.display()));
    assert!(text.contains("#   ") && text.contains("Ring"), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("file")).expect("JSON");
    std::fs::remove_file(&file).expect("remove");
    let row = &json["results"][0];
    assert_eq!((row["size"].as_u64(), row["type"].as_str()), (Some(1024), Some("float")));
    assert_eq!(row["out_of_place"]["nwrong"].as_u64(), Some(0));
    assert_eq!(json["config"]["ranks"].as_u64(), Some(2));
    assert_eq!(json["out_of_bounds"]["okay"].as_bool(), Some(true));
}

#[test]
fn a_loaded_library_runs_everything() {
    let library = library();
    let text = text(&format!("perf all -b 4K -e 36K -i 16001 -n 2 -t 2 -r all --library {library}"));
    assert_right(&text, (6 + 4 * 2) * 3);
    assert!(text.contains("# library: /") && text.contains("libnccl.so, version 2."), "{text}");
    let sums = format!(
        "perf reduce_scatter,all_reduce -b 4K -e 4K -n 1 -w 0 -t 3 -d all -o all --library {library}"
    );
    assert_right(&self::text(&sums), 2 * 12 * 6);
}

#[test]
fn a_loaded_library_with_several_communicators_per_thread() {
    let library = library();
    assert_right(&text(&format!("perf all -b 64 -e 64K -f 32 -n 2 -t 1 -g 4 --library {library}")), 10 * 3);
    let several = format!(
        "perf all_gather,reduce -b 64K -e 64K -n 2 -m 3 -t 2 -g 2 -u 1 -o mulsum --library {library}"
    );
    assert_right(&text(&several), 2);
}

#[test]
fn a_loaded_library_in_several_processes() {
    let library = library();
    let file = scratch("loaded.json");
    let command = format!(
        "perf all_reduce,sendrecv,alltoall -b 1K -e 1M -f 32 -n 2 -p 2 -t 2 --library {library} -J {}",
        file.display()
    );
    assert_right(&text(&command), 3 * 3);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("file")).expect("JSON");
    std::fs::remove_file(&file).expect("remove");
    let config = &json["config"];
    assert_eq!(config["ranks"].as_u64(), Some(4));
    assert!(config["library"]["path"].as_str().expect("a path").ends_with("libnccl.so"), "{config}");
    assert!(config["library"]["version"].as_str().expect("a version").starts_with("2."), "{config}");
    assert!(config["init_ms"].as_f64().expect("a time") > 0.0, "{config}");
    let names: Vec<_> =
        json["results"].as_array().expect("rows").iter().map(|row| row["collective"].as_str()).collect();
    assert_eq!([names[0], names[3], names[6]], [Some("all_reduce"), Some("sendrecv"), Some("alltoall")]);
}

#[test]
fn one_half_and_a_limit_of_time() {
    let file = scratch("half.json");
    let command = format!(
        "perf all_reduce -b 1K -e 1K -n 5000000 -t 2 --point-ms 20 --skip-in-place -J {}",
        file.display()
    );
    let text = text(&command);
    assert_eq!(rows(&text)[0][9..], ["-", "-", "-", "-"]);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("file")).expect("JSON");
    std::fs::remove_file(&file).expect("remove");
    let row = &json["results"][0];
    assert!(row["in_place"].is_null(), "{row}");
    let operations = row["out_of_place"]["operations"].as_u64().expect("a number");
    assert!((1..5_000_000).contains(&operations), "{operations}");
}

#[test]
fn a_library_of_an_older_nccl_gets_messages_instead() {
    let Some(old) = shared_object("old", &[]) else { return };
    let target = ("OLD_NCCL_TARGET", library());
    let perf = |options: &str| {
        let command = format!("perf {options} --library {}", old.display());
        hawser(&command).env(target.0, &target.1).output().expect("run")
    };
    let right = perf("all -b 4K -e 36K -i 16001 -n 2 -t 3 -r all");
    let grouped = perf("alltoall,gather,scatter -b 64K -e 64K -n 2 -m 2 -t 1 -g 3 -r 1");
    let refused = perf("all_reduce -b 64 -e 64 -t 2 -o mulsum");
    std::fs::remove_file(&old).expect("remove");
    let right = checked("old", right);
    assert!(right.contains("version 2.7.8") && right.contains("hypercube is left out"), "{right}");
    assert_right(&right, (5 + 4 * 3) * 3);
    assert_right(&checked("old, grouped", grouped), 3);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("ncclRedOpCreatePreMulSum"), "{error}");
}

#[test]
fn a_library_that_is_none_is_refused() {
    let missing = refused("/nonexistent/libnccl.so.2");
    assert!(missing.contains("/nonexistent/libnccl.so.2: cannot open shared object file"), "{missing}");
    // The program's own C library is a library, but another one.
    let other = refused("libc.so.6");
    assert!(other.contains("no function ncclGetVersion"), "{other}");
}

#[test]
fn a_failing_call_names_itself_and_its_rank() {
    let folder = scratch("failing");
    std::fs::create_dir_all(&folder).expect("folder");
    let nccl = folder.join("libnccl.so.2");
    std::os::unix::fs::symlink(library(), &nccl).expect("link");
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let text = shared_object("failing", &[nccl.to_str().expect("UTF-8"), &rpath]).map(|object| {
        let text = refused(object.to_str().expect("UTF-8"));
        std::fs::remove_file(&object).expect("remove");
        text
    });
    std::fs::remove_dir_all(&folder).expect("remove");
    let Some(text) = text else { return };
    let wanted = "rank 1: ncclAllReduce failed: ";
    assert!(text.contains(wanted) && text.contains("(ncclResult_t 5): out of luck"), "{text}");
}

/// Returns what a run with `library` says, which must fail.
fn refused(library: &str) -> String {
    let output = run(&format!("perf all_reduce -b 8 -e 8 -t 2 --library {library}"));
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn bad_input_is_refused_with_a_remedy() {
    for (args, word) in [
        ("perf all_reduce -b 2 -e 1", "-b"),
        ("perf all_reduce -G 1", "CUDA"),
        ("perf broadcast -r 9", "-r 9"),
        ("perf hypercube -t 3", "power of two"),
        ("perf allreduce", "all_reduce"),
        ("perf all_reduce -b 8 -e 8 -J /nonexistent/x.json", "/nonexistent"),
        ("plan show nothing", "plan list"),
        ("explain sendrecv", "known are"),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(word), "{args}: {error}");
    }
}

#[test]
fn plans_are_shown_verified_and_drawn() {
    let svg = scratch("ring.svg");
    let shown = text(&format!("plan show ring_all_reduce --ranks 3 --svg {}", svg.display()));
    assert!(shown.contains("right: "), "{shown}");
    assert!(std::fs::read_to_string(&svg).expect("drawing").contains("<svg"));
    std::fs::remove_file(&svg).expect("remove");

    let file = scratch("ring.plan");
    std::fs::write(&file, &shown).expect("write");
    assert!(text(&format!("plan verify {}", file.display())).contains("right: "));
    std::fs::write(&file, "not a plan").expect("write");
    let output = run(&format!("plan verify {}", file.display()));
    assert!(!output.status.success());
    std::fs::remove_file(&file).expect("remove");
    assert!(text("plan list").contains("tree_broadcast"));
}

#[test]
fn choices_are_explained() {
    let table = text("explain all_reduce --ranks 8 --bytes 1K..64K --device h200");
    assert_eq!(table.lines().filter(|line| line.contains(" KiB  ")).count(), 7, "{table}");
    assert!(text("explain gather --bytes 1M --device host").contains("decided"));
}

#[test]
fn the_doctor_finds_typing_errors() {
    let mut doctor = hawser("doctor");
    doctor.env("NCCL_P2P_DISABEL", "1").env("HAWSER_SOCKET_CHUNK", "many").env("NCCL_PASS_SM", "3");
    let output = doctor.output().expect("run");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in ["GPUs", "Kernels", "Network", "/dev/shm", "did you mean NCCL_P2P_DISABLE?"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for wrong in ["HAWSER_SOCKET_CHUNK=many is ignored", "NCCL_PASS_SM=3 means nothing"] {
        assert!(text.contains(wrong), "{wrong}: {text}");
    }
}

#[test]
fn what_a_file_sets_reaches_built_in_plugins() {
    let file = scratch("nccl.conf");
    std::fs::write(&file, "NCCL_SOCKET_IFNAME=lo\nHAWSER_SOCKET_CHUNK=many\nNCCL_SOCKET_NTHREADS=3\n")
        .unwrap();
    let mut perf = hawser("perf sendrecv -b 64K -e 64K -n 1 -w 0 -t 2 --hosts 2");
    perf.env("NCCL_CONF_FILE", &file).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "NET");
    // The environment comes first.
    let text = checked("perf", perf.env("NCCL_SOCKET_NTHREADS", "2").output().expect("run"));
    let _ = std::fs::remove_file(file);
    assert!(text.contains("2 threads, 2 data sockets per connection, on lo ("), "{text}");
    assert!(text.contains("HAWSER_SOCKET_CHUNK=many is ignored"), "{text}");
}
