//! The build script's modules, run with a shell script in nvcc's place.

#[path = "../build/compile.rs"]
mod compile;
#[path = "../build/nvcc.rs"]
mod nvcc;

use nvcc::{Nvcc, Surroundings, find};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Makes `path` a link to the stand-in. A link, because a file just written may still be open in a
/// child that another test forks, and then cannot be run.
fn fake_at(path: PathBuf) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvcc.sh"), &path).unwrap();
    path
}

fn nothing_around(root: &Path) -> Surroundings {
    Surroundings {
        nvcc: None,
        homes: Vec::new(),
        path: OsString::new(),
        start: root.join("project/kernels"),
        usual: root.join("usual"),
    }
}

#[test]
fn search_order_is_nvcc_homes_path_venv_usual() {
    let root = TempDir::new().unwrap();
    let root = root.path();
    let mut around = nothing_around(root);
    let text = find(&around).unwrap_err();
    for part in ["NVCC is not set", "CUDA_HOME", "not in PATH", "usual", "make setup"] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    let usual = fake_at(root.join("usual/bin/nvcc"));
    assert_eq!(find(&around), Ok(usual));
    let in_venv = ".venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc";
    let venv = fake_at(root.join("project").join(in_venv));
    assert_eq!(find(&around), Ok(venv));
    let path = fake_at(root.join("path/nvcc"));
    around.path = root.join("path").into();
    assert_eq!(find(&around), Ok(path));
    let home = fake_at(root.join("home/bin/nvcc"));
    around.homes = vec![root.join("gone"), root.join("home")];
    assert_eq!(find(&around), Ok(home));
    let own = fake_at(root.join("own-nvcc"));
    around.nvcc = Some(own.clone());
    assert_eq!(find(&around), Ok(own));
    around.nvcc = Some(root.join("missing"));
    assert!(find(&around).unwrap_err().contains("missing does not exist"));
}

#[test]
fn a_missing_host_compiler_is_named_with_its_remedy() {
    let root = TempDir::new().unwrap();
    let fake = fake_at(root.path().join("nvcc"));
    let text = Nvcc::probe(fake, "no-such-compiler").err().unwrap();
    assert!(text.contains("no-such-compiler") && text.contains("apt-get install g++"), "{text}");
}

fn fake_nvcc(root: &Path) -> Nvcc {
    let path = root.join("nvcc");
    Nvcc::probe(if path.exists() { path } else { fake_at(path) }, "true").unwrap()
}

#[test]
fn default_archs_are_those_the_compiler_knows() {
    let root = TempDir::new().unwrap();
    let nvcc = fake_nvcc(root.path());
    assert_eq!((nvcc.version.as_str(), nvcc.compress_mode), ("nvcc 12.6", false));
    let archs = nvcc.archs(None).unwrap();
    assert_eq!(archs.dropped, ["100"]);
    let expected =
        ["75,code=sm_75", "80,code=sm_80", "90,code=sm_90", "90,code=compute_90", "75,code=compute_75"];
    assert_eq!(archs.targets, expected.map(|tail| format!("arch=compute_{tail}")));
}

#[test]
fn chosen_archs_are_checked() {
    let root = TempDir::new().unwrap();
    let nvcc = fake_nvcc(root.path());
    let one = nvcc.archs(Some("90")).unwrap().targets;
    assert_eq!(one, ["arch=compute_90,code=sm_90", "arch=compute_90,code=compute_90"]);
    let two = nvcc.archs(Some("sm_90a, 80")).unwrap().targets;
    assert_eq!(two[..2], ["arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a"]);
    assert_eq!(nvcc.archs(Some(" ")).unwrap().targets.len(), 5);
    assert!(nvcc.archs(Some("60")).err().unwrap().contains("does not know sm_60"));
    assert!(nvcc.archs(Some("hopper")).err().unwrap().contains("\"hopper\""));
}

/// Compiles `root/cuda` with `jobs` processes; the second value is the number of compilations so far.
fn compile(root: &Path, jobs: usize) -> (Result<Vec<String>, String>, usize) {
    compile_into(root, &root.join("out"), jobs)
}

fn compile_into(root: &Path, out: &Path, jobs: usize) -> (Result<Vec<String>, String>, usize) {
    let nvcc = fake_nvcc(root);
    let archs = nvcc.archs(Some("90")).unwrap();
    fs::create_dir_all(out).unwrap();
    let job = compile::Job {
        nvcc: &nvcc,
        archs: &archs.targets,
        sources: &root.join("cuda"),
        out,
        cache: Some(root.join("cache")),
        jobs,
    };
    let result = job.run();
    let log = fs::read_to_string(root.join("log")).unwrap_or_default();
    (result, log.lines().count())
}

#[test]
fn units_are_compiled_once_until_a_source_changes() {
    let root = TempDir::new().unwrap();
    let root = root.path();
    fs::create_dir_all(root.join("cuda/parts")).unwrap();
    for (name, text) in
        [("b.cu", "b"), ("a.cu", "#include \"parts/x.cuh\"\n"), ("parts/x.cuh", "x"), ("notes.md", "n")]
    {
        fs::write(root.join("cuda").join(name), text).unwrap();
    }
    let names = Ok(vec!["a".to_string(), "b".to_string()]);
    assert_eq!(compile(root, 4), (names.clone(), 2));
    let arguments = fs::read_to_string(root.join("out/b.fatbin")).unwrap();
    for part in ["-fatbin", "-ccbin=true", "code=sm_90", "code=compute_90", "--threads 2"] {
        assert!(arguments.contains(part), "{part:?} is missing in: {arguments}");
    }
    assert_eq!(compile(root, 1), (names.clone(), 2), "nothing changed");
    fs::remove_file(root.join("out/a.fatbin")).unwrap();
    assert_eq!(compile(root, 1), (names.clone(), 2), "taken from the cache");
    assert!(root.join("out/a.fatbin").is_file());
    fs::write(root.join("cuda/notes.md"), "m").unwrap();
    assert_eq!(compile(root, 1), (names.clone(), 2), "not a source");
    fs::write(root.join("cuda/parts/x.cuh"), "y").unwrap();
    assert_eq!(compile(root, 1), (names, 3), "a header of one unit changed");
}

#[test]
fn two_builds_at_once_share_the_work() {
    let root = TempDir::new().unwrap();
    let root = root.path();
    fs::create_dir_all(root.join("cuda")).unwrap();
    (0..8).for_each(|n| fs::write(root.join(format!("cuda/{n}.cu")), n.to_string()).unwrap());
    fake_nvcc(root);
    std::thread::scope(|scope| {
        for out in ["debug", "release"].map(|name| root.join(name)) {
            scope.spawn(move || {
                compile_into(root, &out, 2).0.unwrap();
                assert!((0..8).all(|n| out.join(format!("{n}.fatbin")).is_file()));
            });
        }
    });
    assert_eq!(compile(root, 1).1, 8, "each unit once");
}

#[test]
fn the_first_failure_carries_the_compilers_words() {
    let root = TempDir::new().unwrap();
    let root = root.path();
    fs::create_dir_all(root.join("cuda")).unwrap();
    fs::write(root.join("cuda/a.cu"), "fine").unwrap();
    fs::write(root.join("cuda/b.cu"), "broken").unwrap();
    let text = compile(root, 2).0.unwrap_err();
    assert!(text.contains("b.cu") && text.contains("line 1: broken"), "{text}");
}

#[test]
fn the_cache_lies_in_the_target_folder() {
    let cache = Some(PathBuf::from("/t/target/kernel-cache"));
    for folder in ["target/debug", "target/x86_64-unknown-linux-gnu/release"] {
        let out = Path::new("/t").join(folder).join("build/hawser-kernels-1/out");
        assert_eq!(compile::cache_dir(&out, "x86_64-unknown-linux-gnu"), cache);
    }
}
