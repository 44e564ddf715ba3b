//! Bad input to every command: each case says what is wrong and what to do, and does not end with 0.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command line with `DIR` for the folder of the test, settings beside `HAWSER_DEVICE=host`, and parts of
/// the error: the cause and the remedy.
type Case = (&'static str, &'static [(&'static str, &'static str)], [&'static str; 2]);

/// The words of clap where the remedy is to look at the help.
const HELP: &str = "try '--help'";

/// GPUs are asked for where there are none.
const NO_GPU: &[(&str, &str)] = &[("HAWSER_DEVICE", "cuda"), ("CUDA_VISIBLE_DEVICES", "-1")];

const COMMAND_LINE: &[Case] = &[
    ("prf", &[], ["unrecognized subcommand 'prf'", "'perf'"]),
    ("--verison", &[], ["unexpected argument '--verison'", "'--version'"]),
    ("perf", &[], ["<COLLECTIVE>", HELP]),
    ("perf allreduce", &[], ["invalid value 'allreduce'", "known are all_reduce"]),
    ("perf all_reduce -b 12X", &[], ["\"12X\" is not a size", "sizes look like 8, 64K"]),
    ("perf all_reduce -b -1", &[], ["unexpected argument '-1'", HELP]),
    ("perf all_reduce -b 99999999999G", &[], ["99999999999G is too large", HELP]),
    ("perf all_reduce -d floaty", &[], ["invalid value 'floaty'", "known are int8"]),
    ("perf all_reduce -o summ", &[], ["invalid value 'summ'", "known are sum"]),
    ("perf broadcast -r one", &[], ["invalid value 'one'", "a root is a rank or all"]),
    ("perf all_reduce -t 0", &[], ["0 is not in 1..=16384", HELP]),
    ("perf all_reduce -t 17000", &[], ["17000 is not in 1..=16384", HELP]),
    ("perf all_reduce -z 3", &[], ["3 is not in 0..=2", HELP]),
    ("perf all_reduce --stpes 3", &[], ["unexpected argument '--stpes'", HELP]),
    ("perf all_reduce --where --library x", &[], ["cannot be used with", HELP]),
    ("perf overlap all_reduce --rounds 0", &[], ["0 is not in 1..=100", HELP]),
    ("perf overlap all_reduce -t 2 -p 2", &[], ["cannot be used with", HELP]),
    ("plan", &[], ["Usage: hawser plan <COMMAND>", "Examples:"]),
    ("plan show", &[], ["<PROGRAM>", HELP]),
    ("plan show ring_all_reduce --ranks 0", &[], ["0 is not in 1..=16384", HELP]),
    ("plan export ring_all_reduce", &[], ["<--msccl|--plan>", HELP]),
    ("plan export ring_all_reduce --msccl --protocol LL64", &[], ["'LL64'", "possible values: LL, LL128"]),
    ("plan export ring_all_reduce --plan --json", &[], ["--out <OUT>", HELP]),
    ("explain", &[], ["<COLLECTIVE>", HELP]),
    ("explain all_reduce --bytes 4K..1K", &[], ["4K..1K is empty", "write the smaller size first"]),
    ("explain all_reduce --device gpu", &[], ["invalid value 'gpu'", "known are host, h200 and cuda:NN"]),
    ("explain all_reduce --link sli", &[], ["invalid value 'sli'", "known are nvlink"]),
    ("rules", &[], ["Usage: hawser rules <COMMAND>", "Examples:"]),
    ("rules check", &[], ["<FILES>", HELP]),
    ("rules apply", &[], ["<FILES>", HELP]),
    ("rules apply --none --pid x", &[], ["invalid value 'x'", HELP]),
    ("rules list --pid 1 --job a", &[], ["cannot be used with", HELP]),
    ("rules explain DIR/good.toml", &[], ["--collective <COLLECTIVE>", HELP]),
    ("measure -g 1", &[], ["1 is not in 2..=16384", HELP]),
    ("measure -f 1", &[], ["1 is not in 2..", HELP]),
    ("tune sendrecv", &[], ["sendrecv is no collective that rules are asked about", "known are all_reduce"]),
    ("tune --gain 100", &[], ["it must be between 0 and 90", HELP]),
    ("tune -N 2", &[], ["2 is not in 3..=100", HELP]),
    ("doctor --probe net", &[], ["2 values required", HELP]),
    ("exec", &[], ["<CMD>", HELP]),
    ("adapt demo --seconds 0", &[], ["0 is not in 1..=3600", HELP]),
    ("completions tcsh", &[], ["'tcsh'", "possible values: bash"]),
];

const MEANING: &[Case] = &[
    ("perf all_reduce -b 2 -e 1", &[], ["-b 2 is larger than -e 1", "swap them"]),
    ("perf all_reduce -b 0 -e 8 -f 2", &[], ["-b 0 never grows by a factor", "start at a larger size"]),
    ("perf all_reduce -b 8 -e 64 -i 0", &[], ["-i 0 never reaches -e", "give -i a size"]),
    ("perf all_reduce -n 0", &[], ["-n, -m, -N and -T", "must be at least 1"]),
    ("perf all_reduce -b 8 -e 8 -G 1", &[], ["graphs need CUDA", "-G cannot be used on the host device"]),
    ("perf broadcast -t 2 -b 8 -e 8 -r 9", &[], ["-r 9 is not a rank", "the job has 2 ranks"]),
    ("perf hypercube -t 3 -b 8 -e 8", &[], ["hypercube needs a power of two of ranks", "take 2 or 4"]),
    ("perf hypercube -m 2 -t 2", &[], ["cannot share a group", "use -m 1"]),
    ("perf all_reduce -t 1024 -g 17", &[], ["more than 16384 ranks", "lower -t, -g"]),
    (
        "perf all_reduce -b 8 -e 8 -J DIR/no/x.json",
        &[],
        ["there is no folder DIR/no", "make it with mkdir -p"],
    ),
    ("perf all_reduce -b 8 -e 8 -J DIR", &[], ["it is a folder", "name a file in it"]),
    (
        "perf all_reduce --library DIR/no.so",
        &[],
        ["no.so: cannot open shared object file", "give the path of a libnccl.so.2"],
    ),
    ("perf all_reduce --library x --hosts 2", &[], ["--hosts is for the linked library", "NCCL_HOSTID"]),
    ("perf all_reduce --library x --explain", &[], ["--explain cannot see", "leave one of them out"]),
    ("perf all_reduce -b 8 -e 8", &[("RANK", "x"), ("WORLD_SIZE", "2")], ["RANK=x", "is not a number"]),
    ("perf all_reduce -b 8 -e 8", &[("RANK", "2"), ("WORLD_SIZE", "2")], ["do not fit", "must be less"]),
    ("perf all_reduce -b 8 -e 8", &[("NCCL_ALGO", "rng")], ["unknown word \"rng\"", "write some of Ring"]),
    (
        "perf all_reduce -b 8 -e 8",
        &[("NCCL_PROTO", "LL9")],
        ["unknown word \"LL9\"", "write some of interpreter/LL"],
    ),
    (
        "perf all_reduce -b 8 -e 8",
        &[("NCCL_ALGO", "allredux:ring")],
        ["unknown function \"allredux\"", "write Broadcast"],
    ),
    ("perf all_reduce -b 8 -e 8", &[("NCCL_PASS_SM", "7")], ["NCCL_PASS_SM=7", "it must be 0, 1 or 2"]),
    (
        "perf all_reduce -b 8 -e 8",
        &[("HAWSER_RULES", "/no.toml")],
        ["/no.toml cannot be used", "hawser rules check /no.toml"],
    ),
    (
        "perf all_reduce -b 8 -e 8",
        &[("HAWSER_LINKS", "/no.toml")],
        ["HAWSER_LINKS=/no.toml", "unset HAWSER_LINKS"],
    ),
    ("perf overlap all_reduce -t 1", &[], ["overlap needs at least 2 ranks", "-t 1 has nobody"]),
    ("plan show nothing", &[], ["nothing is neither a file nor a built-in program", "hawser plan list"]),
    ("plan show ring_broadcast --root 9", &[], ["--root 9 is not one of 4 ranks", "0 to 3"]),
    (
        "plan show oneshot_all_reduce --ranks 99",
        &[],
        ["for 1 to 9 ranks, not for 99", "take another algorithm"],
    ),
    ("plan show ring_all_reduce --svg DIR/no/x.svg", &[], ["there is no folder", "mkdir -p"]),
    ("plan show ring_all_reduce -o DIR/x.png", &[], ["x.png", "ends in .svg or .html"]),
    ("plan export ring_all_reduce --plan -o DIR/no/x.plan", &[], ["there is no folder", "mkdir -p"]),
    ("plan verify DIR/bad.plan", &[], ["bad.plan:1:1: \"not\"", "where \"hawser-plan\" should come"]),
    ("plan verify DIR/bad.xml", &[], ["bad.xml:1", "syntax"]),
    ("plan import DIR/good.plan -o DIR/x.txt", &[], ["x.txt", "ends in .xml or .plan"]),
    (
        "plan export ring_all_reduce --msccl --min-bytes 9 --max-bytes 1",
        &[],
        ["no call would fit", "--max-bytes"],
    ),
    ("explain sendrecv", &[], ["sendrecv has no algorithm to choose", "known are all_reduce"]),
    ("explain all_reduce --ranks 3 --hosts 2", &[], ["3 ranks are not spread evenly", "a multiple of"]),
    ("explain all_reduce --device host --link pcie", &[], ["the host device has", "--link host only"]),
    ("explain all_reduce --links DIR/no.toml", &[], ["cannot read", "hawser measure"]),
    ("explain all_reduce --rules DIR/bad.toml", &[], ["bad.toml:2:21", "did you mean \"ring\"?"]),
    ("rules check DIR/bad.toml", &[], ["bad.toml:2:21: error", "did you mean \"ring\"?"]),
    ("rules check DIR/no.toml", &[], ["no.toml: error: there is no such file", "no.toml"]),
    ("rules fmt DIR/some.csv", &[], ["some.csv is CSV", "hawser rules import turns it into TOML"]),
    ("rules fmt --check DIR/ugly.toml", &[], ["is not laid out", "hawser rules fmt"]),
    ("rules explain DIR/good.toml --collective x --bytes 8", &[], ["x is no collective", "known are"]),
    ("rules apply DIR/good.toml", &[], ["whose rules?", "Give --pid or --job"]),
    ("rules apply DIR/good.toml --job none", &[], ["there is no such communicator", "hawser rules list"]),
    ("rules apply DIR/good.toml --pid 4294967295", &[], ["asking process 4294967295", "is it there"]),
    ("rules import DIR/no.csv", &[], ["cannot read DIR/no.csv", "No such file"]),
    ("rules import DIR/some.csv -o DIR/some.csv", &[], ["cannot make DIR/some.csv", "is not replaced"]),
    ("perf all_reduce -b 8 -e 8", NO_GPU, ["there is no device", "HAWSER_DEVICE=host"]),
    ("perf all_reduce -b 8 -e 8 -g 2", NO_GPU, ["there is no device", "HAWSER_DEVICE=host"]),
    ("measure", NO_GPU, ["there is no GPU here", "HAWSER_DEVICE=host"]),
    ("tune", NO_GPU, ["there is no GPU here", "HAWSER_DEVICE=host"]),
    ("doctor", NO_GPU, ["no GPU", "HAWSER_DEVICE=host"]),
    ("measure -b 1M -e 1K", &[], ["-b 1048576 is larger than -e 1024", "swap them"]),
    ("measure -o DIR/no/links.toml", &[], ["there is no folder", "mkdir -p"]),
    ("tune -b 1M -e 1K", &[], ["-b 1048576 is larger than -e 1024", "swap them"]),
    ("tune -o DIR/good.toml", &[], ["is there already", "--force"]),
    ("tune --check DIR/no.toml", &[], ["cannot read DIR/no.toml", "No such file"]),
    ("doctor", &[("NCCL_ALGO", "rng")], ["unknown word \"rng\"", "mend the value"]),
    ("doctor --probe nett x", &[], ["the kind is one of", "net, tuner, profiler, env"]),
    ("doctor --probe net DIR/good.toml", &[], ["refused dlopen failed", "file too short"]),
    ("exec --library DIR/no.so -- true", &[], ["there is no library at DIR/no.so", "--library"]),
    ("exec --library DIR/good.toml -- true", &[], ["is no shared library", "--library"]),
    ("man DIR/good.toml", &[], ["cannot make DIR/good.toml", "File exists"]),
    ("top --every 0", &[], ["--every 0 is no time between looks", "write seconds from 0.05 to 3600"]),
    ("top --pid 4294967295", &[], ["4294967295 has no journals", "is it there, on this host, of this user"]),
    ("top --files DIR/good.toml", &[], ["good.toml holds no journals", "HAWSER_PROGRESS_DIR"]),
    ("trace hang --pid 4294967295", &[], ["4294967295 has no journals", "is it there, on this host"]),
    ("trace hang --files DIR/good.toml", &[], ["good.toml holds no journals", "HAWSER_PROGRESS_DIR"]),
    ("trace merge DIR/no.json -o DIR/job.json", &[], ["reading DIR/no.json", "No such file"]),
    ("trace merge DIR/good.toml -o DIR/job.json", &[], ["no trace in Chrome's format", "line 1 column 2"]),
    ("trace merge DIR/good.toml -o DIR/good.toml", &[], ["good.toml would be overwritten", "another name"]),
    ("trace view DIR/good.toml -o DIR/no/job.html", &[], ["there is no folder DIR/no", "mkdir -p"]),
    ("adapt demo -o DIR/no/demo.html", &[], ["there is no folder DIR/no", "mkdir -p"]),
    ("lint DIR/no.xml", &[], ["no.xml:1:1: error: cannot be read", "No such file"]),
    ("lint DIR/bad.xml", &[], ["bad.xml:1:1: error: the text is no XML", "never closed"]),
    ("perf all_reduce --simulate DIR/no.toml", &[], ["cannot read DIR/no.toml", "name a cluster file"]),
    ("perf all_reduce --simulate toasters", &[], ["cannot read toasters", "write \"2 hosts of hgx-h200\""]),
    ("explain all_reduce --cluster DIR/bad.toml", &[], ["unknown field `rule`", "expected one of `cluster`"]),
    ("tune --programs DIR/no -o DIR/x.toml", &[], ["cannot read DIR/no", "No such file"]),
];

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Folder {
    let folder = Folder(std::env::temp_dir().join(format!("hawser-bad-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("folder");
    std::fs::DirBuilder::new().mode(0o700).create(folder.0.join("run")).expect("folder");
    for (name, text) in [
        ("good.toml", "[[rule]]\nuse = { algorithm = \"ring\" }\n"),
        ("ugly.toml", "[[rule]]\nuse={algorithm=\"ring\"}\n"),
        ("bad.toml", "[[rule]]\nuse = { algorithm = \"rng\" }\n"),
        ("some.csv", "allreduce,0,-1,tree,ll,2,1,-1\n"),
        ("bad.plan", "not a plan\n"),
        ("bad.xml", "<algo name='x'>"),
    ] {
        std::fs::write(folder.0.join(name), text).expect("write");
    }
    let run =
        hawser(&folder.0, "plan export ring_all_reduce --plan -o DIR/good.plan", &[]).output().expect("run");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    folder
}

fn hawser(folder: &Path, line: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        let prefixes = ["NCCL_", "HAWSER_", "MSCCL_", "SLURM_", "OMPI_", "PMI"];
        if name.to_str().is_some_and(|name| prefixes.iter().any(|p| name.starts_with(p))) {
            command.env_remove(name);
        }
    }
    let name = folder.to_str().expect("UTF-8");
    command.args(line.split_whitespace().map(|word| word.replace("DIR", name))).current_dir(folder);
    command.env_remove("RANK").env_remove("WORLD_SIZE").env_remove("MASTER_ADDR");
    command.env("HAWSER_DEVICE", "host").env("HAWSER_RUNTIME_DIR", "none").env("HAWSER_INIT_TIMEOUT", "60");
    command.env("HAWSER_RUNTIME_DIR", folder.join("run")).env("XDG_CACHE_HOME", folder);
    command.envs(settings.iter().copied());
    command
}

#[test]
fn bad_input_gets_a_cause_and_a_remedy() {
    let folder = folder();
    let name = folder.0.to_str().expect("UTF-8");
    let mut wrong = Vec::new();
    for (line, settings, [cause, remedy]) in COMMAND_LINE.iter().chain(MEANING) {
        let output = hawser(&folder.0, line, settings).output().expect("run");
        let text =
            String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).replace(name, "DIR");
        let is_told = text.contains(cause) && text.contains(remedy) && !text.contains("panicked");
        if output.status.success() || output.status.code().is_none() || !is_told {
            wrong.push(format!("hawser {line} {settings:?}: {}\n{text}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{} of the cases:\n{}", wrong.len(), wrong.join("\n---\n"));
    // Usage is told apart from what failed.
    for (line, settings, _) in COMMAND_LINE {
        let output = hawser(&folder.0, line, settings).output().expect("run");
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
}
