//! Every block of code that the pages show is run, compiled or read by a test. What needs machines or
//! programs that CI has not is in [`RUN_BY`] with the file that runs it elsewhere: a new command that nobody
//! runs fails here.

use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_tests::pages::{blocks, pages, read, repository};
use hawser_tests::skip::skipped;

/// The commands that are not `hawser`'s (these are judged by the test `documents`), by how they begin: the
/// file that runs the same, and a part of it that says so.
const RUN_BY: [(&str, &str, &str); 56] = [
    ("make run", "tests/tests/blocks.rs", "fn make_run_runs_the_main_job"),
    ("make test", ".ci/run", "make test"),
    ("make lib", ".ci/run", "make lib"),
    ("make lab", ".ci/run", "scripts/lab.sh"),
    ("make setup", ".ci/run", "make setup"),
    ("python3 -m venv hawser", "tests/gpu/wheel.py", "venv.create"),
    ("hawser/bin/pip", "tests/gpu/wheel.py", "\"pip\", \"uninstall\""),
    ("sudo apt-get install ./hawser", "tests/packages/check.py", "\"--install\""),
    ("tar xf hawser", "tests/packages/check.py", "extractall"),
    ("make -C examples/cuda", "tests/gpu/demos.py", "examples/cuda"),
    ("cargo build -p hawser-oracle", ".ci/run", "make test"),
    ("cargo build -p hawser-net-ib --example lab_end", "plugins/net-ib/tests/lab.rs", "examples/lab_end"),
    ("cargo build -p hawser-example-tuner", "tests/tests/examples.rs", "fn the_plugins_are_taken"),
    ("cargo build --manifest-path examples/rust", "tests/tests/examples.rs", "examples/rust/Cargo.toml"),
    ("cargo build --release", "tests/tests/templates.rs", "fn instances_build"),
    ("cargo test -p hawser-tests --test third_party", "tests/tests/third_party.rs", "HAWSER_TEST_"),
    ("cargo test", ".ci/run", "make test"),
    ("cargo run -p hawser-twin --bin hawser-sim", ".github/workflows/ci.yml", "hawser-sim --minutes"),
    ("cargo generate", "tests/tests/templates.rs", "examples/templates"),
    ("cd my-tuner", "tests/tests/templates.rs", "fn instances_build"),
    ("pytest tests/gpu", "tests/gpu/pytest.ini", "[pytest]"),
    ("python3 tests/lab/lab.py", "plugins/net-ib/tests/lab.rs", "lab.py"),
    ("cc -O2 -DWITH_CUDA", "tests/gpu/native.py", "WITH_CUDA"),
    ("cc -O2 examples/partitioned/", "tests/tests/examples.rs", "partitioned/pipeline.c"),
    ("cc -O2", "tests/tests/examples.rs", "c/all_reduce.c"),
    ("./pipeline", "tests/tests/examples.rs", "partitioned/pipeline.c"),
    ("nvcc -std=c++17 -O2 -arch=native examples/partitioned/", "tests/gpu/native.py", "tensor_parallel"),
    ("./tensor_parallel", "tests/gpu/native.py", "tensor_parallel"),
    ("torchrun --nproc_per_node=2 examples/partitioned/", "tests/gpu/native.py", "tensor_parallel"),
    ("./all_reduce", "tests/tests/examples.rs", "c/all_reduce.c"),
    ("examples/rust/target/debug/all-reduce", "tests/tests/examples.rs", "debug/all-reduce"),
    ("examples/cuda/", "tests/gpu/demos.py", "registration_mem_alloc"),
    ("examples/live_rules/run.sh", "tests/tests/examples.rs", "examples/live_rules/run.sh"),
    ("examples/msccl/run.sh", "tests/tests/examples.rs", "examples/msccl/run.sh"),
    ("examples/deploy/torchrun/run.sh", "tests/tests/roll_outs.rs", "torchrun/run.sh"),
    ("sbatch examples/deploy/slurm/train.sbatch", "tests/tests/roll_outs.rs", "train.sbatch"),
    ("[ \"$SLURM_JOB_PARTITION\"", "tests/tests/roll_outs.rs", "SLURM_JOB_PARTITION"),
    ("kubectl", ".github/workflows/docs.yml", "yamllint"),
    ("python examples/deploy/ray/train.py", "tests/tests/roll_outs.rs", "ray/train.py"),
    ("python examples/pytorch/", "tests/tests/examples.rs", "examples/pytorch"),
    // What follows starts programs of the reader's, or on hosts of the reader's.
    ("torchrun --nproc_per_node=8 train.py", "tests/gpu/pytorch.py", "torchrun"),
    ("torchrun --nproc-per-node 8 train.py", "tests/gpu/pytorch.py", "torchrun"),
    ("torchrun --nproc-per-node 8 --no-python hawser", "cli/tests/perf.rs", "fn under_torchrun"),
    ("torchrun --nnodes", "cli/tests/perf.rs", "fn under_torchrun"),
    ("torchrun --nproc-per-node=2 bench/pytorch_overlap.py", "bench/pytorch_overlap.py", "torchrun"),
    ("mpirun", "cli/tests/perf.rs", "OMPI_COMM_WORLD"),
    ("srun", "cli/tests/perf.rs", "SLURM_"),
    ("python train.py", "tests/gpu/pytorch.py", "LD_PRELOAD"),
    ("./program", "tests/tests/explain.rs", "HAWSER_EXPLAIN"),
    ("...", "tests/tests/explain.rs", "HAWSER_EXPLAIN"),
    ("ncclras", "tests/tests/third_party.rs", "fn ncclras_reads_a_job"),
    ("echo verbose status", "tests/tests/ras.rs", "status\\n"),
    ("echo \"$UCC_TL_UCP_TUNE\"", "cli/src/rules/ucc.rs", "#[test]"),
    ("printf ", "tests/tests/ras.rs", "monitor"),
    ("export PATH=", "tests/tests/blocks.rs", "fn hawser()"),
    ("export ", "plugins/profiler/tests/metrics.rs", "metrics"),
];

/// The blocks that are not for a shell, by page and language: the file with the test, and a part of it.
const READ_BY: [(&str, &str, &str, &str); 11] = [
    ("examples/partitioned/README.md", "c", "tests/tests/examples.rs", "partitioned/pipeline.c"),
    ("docs/partitioned.md", "c", "tests/tests/blocks.rs", "fn c_of_the_pages_compiles"),
    ("docs/partitioned.md", "cuda", "tests/gpu/native.py", "tensor_parallel"),
    ("docs/plugin-guide.md", "rust", "plugins/testkit/src/lib.rs", "docs/plugin-guide.md"),
    ("docs/plugin-guide.md", "c", "plugins/compat/tests/search_guide.rs", "docs/plugin-guide.md"),
    ("docs/plugin-guide.md", "toml", "tests/tests/templates.rs", "Cargo.toml.liquid"),
    ("docs/rules.md", "toml", "tests/tests/blocks.rs", "fn rules_of_the_pages_are_right"),
    ("docs/priorities.md", "toml", "tests/tests/blocks.rs", "fn rules_of_the_pages_are_right"),
    ("docs/simulate.md", "toml", "tests/tests/blocks.rs", "fn the_cluster_of_the_pages_is_simulated"),
    ("docs/programs.md", "c", "tests/tests/blocks.rs", "fn c_of_the_pages_compiles"),
    ("docs/zero-copy.md", "c", "tests/tests/blocks.rs", "fn c_of_the_pages_compiles"),
];

/// Programs whose commands the test `documents` judges.
const OWN: [&str; 1] = ["hawser"];

/// True if a file of the repository has this part.
fn has(file: &str, part: &str) -> bool {
    std::fs::read_to_string(repository().join(file)).is_ok_and(|text| text.contains(part))
}

/// A command without the variables before it.
fn without_variables(command: &str) -> &str {
    let mut rest = command;
    while let Some((word, behind)) = rest.split_once(' ') {
        let name = word.split('=').next().unwrap_or_default();
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || "0123456789_".contains(c));
        if !is_name || !word.contains('=') || word.matches('"').count() % 2 == 1 {
            break;
        }
        rest = behind.trim_start();
    }
    rest
}

/// The text about a command that nobody runs; None if somebody does.
fn unclaimed(command: &str) -> Option<String> {
    let command = without_variables(command);
    // Of `a && b` both count.
    if let Some((first, rest)) = command.split_once(" && ").filter(|(first, _)| !first.starts_with('[')) {
        return unclaimed(first).or_else(|| unclaimed(rest));
    }
    let program = command.split(' ').next()?.rsplit('/').next()?;
    if OWN.contains(&program) {
        return None;
    }
    match RUN_BY.iter().find(|(start, ..)| command.starts_with(start)) {
        None => Some(format!("nobody runs `{command}`: name who does in RUN_BY")),
        Some((_, file, part)) if !has(file, part) => Some(format!("`{command}`: {file} has no {part:?}")),
        Some(_) => None,
    }
}

#[test]
fn somebody_runs_every_block() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let (name, text) = read(&page);
        for block in blocks(&text) {
            count += 1;
            let mut problem = |text: String| wrong.push(format!("{name}: {text}"));
            if block.language.is_empty() {
                problem(format!("a block without a language begins with {:?}", block.lines.first()));
            } else if block.is_shell() {
                block.commands().iter().filter_map(|command| unclaimed(command)).for_each(&mut problem);
            } else if block.language != "text" {
                let known = READ_BY.iter().find(|(page, word, ..)| *page == name && *word == block.language);
                if !known.is_some_and(|(.., file, part)| has(file, part)) {
                    problem(format!("nobody reads its blocks of {}", block.language));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} blocks were found");
}

#[test]
fn what_nobody_runs_is_found() {
    assert_eq!(without_variables("A=1 B_2=\"x\" make y"), "make y");
    assert_eq!(without_variables("make run ARGS=\"-b 8\""), "make run ARGS=\"-b 8\"");
    assert_eq!(unclaimed("A=1 target/release/hawser top"), None);
    assert!(
        unclaimed("frobnicate --all").is_some_and(|text| text.contains("nobody runs `frobnicate --all`"))
    );
    assert!(unclaimed("make lib && frobnicate").is_some());
}

/// The tool that cargo has built, on the host device and without this process's settings of the library.
fn hawser() -> Command {
    let test = std::env::current_exe().expect("this test");
    let tool = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("hawser");
    assert!(tool.is_file(), "no hawser: run cargo build -p hawser-cli");
    let mut command = Command::new(tool);
    command.env_remove("HAWSER_RULES").env("HAWSER_DEVICE", "host");
    command
}

/// The outputs of a command, which must succeed.
fn told(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hawser-blocks-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder of our own");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.0.join(name), text).expect("a file");
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The texts of the blocks that a page has in a language.
fn texts(page: &str, language: &str) -> Vec<String> {
    let (_, text) = read(&repository().join(page));
    blocks(&text).iter().filter(|block| block.language == language).map(|block| block.text()).collect()
}

#[test]
fn make_run_runs_the_main_job() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).expect("Makefile");
    assert!(makefile.contains("release/hawser perf all_reduce $(ARGS)"), "{makefile}");
    let mut count = 0;
    for page in pages() {
        for block in blocks(&read(&page).1).iter().filter(|block| block.is_shell()) {
            for command in block.commands().iter().filter(|command| command.starts_with("make run ARGS=")) {
                let words = shlex::split(command.trim_start_matches("make run ARGS=")).expect("words");
                // A debug build is slow with large sizes; columns and checks are the same.
                let words = words[0].split(' ').map(|word| if word == "16M" { "256K" } else { word });
                let told = told(hawser().args(["perf", "all_reduce"]).args(words));
                assert!(told.contains("# Out of bounds values : 0 OK"), "{command}: {told}");
                count += 1;
            }
        }
    }
    assert!(count >= 2, "only {count} were found");
}

#[test]
fn rules_of_the_pages_are_right() {
    let folder = Folder::new("rules");
    let mut all = texts("docs/rules.md", "toml");
    all.extend(texts("docs/priorities.md", "toml"));
    assert!(all.len() >= 6, "{all:?}");
    for (at, text) in all.iter().enumerate() {
        let file = folder.write(&format!("rules-{at}.toml"), text);
        told(hawser().args(["rules", "check"]).arg(file));
    }
}

#[test]
fn the_cluster_of_the_pages_is_simulated() {
    let folder = Folder::new("cluster");
    let clusters = texts("docs/simulate.md", "toml").into_iter().filter(|text| text.contains("[[hosts]]"));
    for text in clusters {
        // As many hosts take minutes in a debug build.
        let text =
            text.replace("count = 64", "count = 2").replace("hosts_per_leaf = 32", "hosts_per_leaf = 1");
        let file = folder.write("cluster.toml", &text);
        let told = told(
            hawser().args(["perf", "all_reduce", "-b", "1K", "-e", "4K", "-f", "2", "--simulate"]).arg(file),
        );
        assert!(told.contains("simulated on") && told.contains("8 × 200 Gb/s"), "{told}");
    }
}

/// The part of NCCL's header that the C of the pages uses; the header is not part of this repository.
const NCCL: &str = "#include <stddef.h>
typedef struct comm *ncclComm_t;
typedef struct window *ncclWindow_t;
typedef struct stream *cudaStream_t;
typedef enum { ncclSuccess } ncclResult_t;
typedef enum { ncclFloat = 7, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum } ncclRedOp_t;
typedef struct config ncclCollConfig_t;
enum { NCCL_WIN_COLL_SYMMETRIC = 1 };
ncclResult_t ncclMemAlloc(void **address, size_t bytes);
ncclResult_t ncclMemFree(void *address);
ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int);
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
#include \"hawser.h\"
";

/// The code that the reader of the page about collectives in parts has around its lines.
const KERNELS: &str = "static void gemm(int part, cudaStream_t stream) { (void)part, (void)stream; }
static void next(int part, cudaStream_t stream) { (void)part, (void)stream; }
void all(ncclComm_t comm, cudaStream_t compute, cudaStream_t consume, void *partial, void *mine,
         size_t elements) {
";

#[test]
fn c_of_the_pages_compiles() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        return skipped(format!("there is no C compiler ({compiler})"));
    }
    let library = std::env::current_exe().expect("this test");
    let library = library.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    assert!(library.join("libnccl.so").is_file(), "no libnccl.so: run cargo build -p hawser-capi");
    let folder = Folder::new("c");
    let page = |name: &str| texts(name, "c").concat();
    let around = "void all(ncclComm_t comm, cudaStream_t stream, size_t bytes, size_t count) {\n";
    let sources = [
        ("programs.c", format!("{NCCL}{}", page("docs/programs.md"))),
        ("windows.c", format!("{NCCL}{around}{}}}\n", page("docs/zero-copy.md"))),
        ("partitioned.c", format!("{NCCL}{KERNELS}{}}}\n", page("docs/partitioned.md"))),
    ];
    for (name, text) in sources {
        let mut compile = Command::new(&compiler);
        compile.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,--no-undefined", "-o"]);
        compile.arg(folder.0.join("out.so")).arg(folder.write(name, &text));
        compile.arg("-I").arg(repository().join("core/capi/include"));
        told(compile.arg("-L").arg(library).arg("-l:libnccl.so"));
    }
}
