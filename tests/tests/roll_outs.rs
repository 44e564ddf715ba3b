//! The scripts of `examples/deploy`, with stand-ins for the launchers: which library they name, that they can
//! be switched off, and what they say where the library is missing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hawser_tests::pages::{blocks, read, repository};
use hawser_tests::skip::skipped;

/// A host with launchers that print what they were given, and a library, or none.
struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Self {
        let host = Self(std::env::temp_dir().join(format!("hawser-roll-out-{name}-{}", std::process::id())));
        std::fs::create_dir_all(host.0.join("bin")).expect("a folder of our own");
        std::fs::create_dir_all(host.0.join("opt/lib")).expect("a folder of our own");
        let launcher = "#!/bin/sh\necho \"preload=${LD_PRELOAD:-none} timeout=$HAWSER_OP_TIMEOUT: $*\"\n";
        host.program("torchrun", launcher);
        // srun runs a task here; of several words `env` is the one that a task of the training begins with.
        host.program(
            "srun",
            "#!/bin/sh\nshift\ncase $1 in env) echo \"task: $*\" ;; *) exec \"$@\" ;; esac\n",
        );
        host.program("scontrol", "#!/bin/sh\necho head\n");
        host
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.0.join("bin").join(name);
        std::fs::write(&path, text).expect("a program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our own");
    }

    fn library(&self) -> PathBuf {
        let path = self.0.join("opt/lib/libnccl.so.2");
        // The loader looks at each file in LD_PRELOAD; one that is none gets a line on standard error.
        std::fs::write(&path, "").expect("a file");
        path
    }

    fn run(&self, script: &str, words: &[&str], switch: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(repository().join(script));
        command.args(words).env("PATH", format!("{}:{path}", self.0.join("bin").display()));
        command.env("HAWSER_PREFIX", self.0.join("opt")).env("HAWSER", switch);
        command.env("SLURM_JOB_NODELIST", "a,b").env_remove("LD_PRELOAD").env_remove("HAWSER_OP_TIMEOUT");
        command.output().expect("the script starts")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn torchrun_gets_the_library_or_not() {
    let host = Host::new("torchrun");
    let script = "examples/deploy/torchrun/run.sh";
    let words = ["2", "head.example", "train.py", "--epochs", "3"];
    let missing = host.run(script, &words, "on");
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && said.contains("lib/libnccl.so.2 is missing on"), "{said}");
    let library = host.library();
    let on = text(&host.run(script, &words, "on"));
    assert!(on.starts_with(&format!("preload={} timeout=600: --nnodes=2 ", library.display())), "{on}");
    assert!(on.ends_with("--rdzv-endpoint=head.example:29400 train.py --epochs 3\n"), "{on}");
    let off = text(&host.run(script, &words, "off"));
    assert!(off.starts_with("preload=none timeout=600: --nnodes=2 "), "{off}");
}

#[test]
fn slurm_gives_it_to_each_task_or_not() {
    if Command::new("bash").arg("--version").output().is_err() {
        return skipped("there is no bash");
    }
    let host = Host::new("slurm");
    let script = "examples/deploy/slurm/train.sbatch";
    // It is no program: sbatch hands it to the shell that its first line names.
    let run = |switch: &str| {
        let file = repository().join(script);
        host.program("train", &std::fs::read_to_string(file).expect("the script"));
        host.run(host.0.join("bin/train").to_str().expect("UTF-8"), &[], switch)
    };
    let library = host.library();
    let on = text(&run("on"));
    assert!(on.starts_with(&format!("task: env LD_PRELOAD={} bash -c ", library.display())), "{on}");
    assert!(on.contains("RANK=$SLURM_PROCID") && on.contains("python train.py"), "{on}");
    let off = text(&run("off"));
    assert!(off.starts_with("task: env bash -c "), "{off}");
}

#[test]
fn the_prologue_of_a_partition_names_the_library_there_alone() {
    let page = read(&repository().join("examples/deploy/slurm/README.md")).1;
    let commands: Vec<String> = blocks(&page).iter().flat_map(|block| block.commands()).collect();
    let line = commands.iter().find(|line| line.starts_with("[ \"$SLURM_JOB_PARTITION\"")).expect("a line");
    let said = |partition: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("SLURM_JOB_PARTITION", partition);
        text(&shell.output().expect("sh"))
    };
    assert_eq!(said("canary"), "export LD_PRELOAD=/opt/hawser/lib/libnccl.so.2\n");
    assert_eq!(said("night"), "");
}

/// Manifests and programs that need a cluster are at least what their readers can parse, and name the
/// library.
#[test]
fn manifests_and_programs_are_whole() {
    let python = std::env::var("HAWSER_PYTHON").unwrap_or_else(|_| "python3".into());
    let program = repository().join("examples/deploy/ray/train.py");
    let check = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
    match Command::new(&python).args(["-c", check]).arg(&program).output() {
        Err(error) => return skipped(format!("{python}: {error}")),
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
    let files = ["ray/train.py", "kubernetes/mpijob.yaml", "kubernetes/pytorchjob.yaml"];
    for file in files {
        let text = std::fs::read_to_string(Path::new("../examples/deploy").join(file)).expect("a file");
        assert!(
            text.contains("/opt/hawser/lib/libnccl.so.2") || text.contains("/opt/hawser/bin/hawser"),
            "{file}"
        );
    }
}
