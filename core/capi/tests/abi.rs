//! The shared object as loaders and C programs see it.

mod built;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use built::{library, sources};
use elf::ElfBytes;
use elf::abi::{
    DF_1_NODELETE, DF_SYMBOLIC, DT_FLAGS, DT_FLAGS_1, DT_NEEDED, DT_SONAME, DT_SYMBOLIC, SHN_UNDEF,
    STB_GLOBAL, STB_WEAK, STT_FUNC,
};
use elf::endian::NativeEndian;

#[test]
fn exports_are_nccls_names_and_nothing_else() {
    let bytes = fs::read(library()).unwrap();
    let elf = ElfBytes::<NativeEndian>::minimal_parse(&bytes).unwrap();
    let (symbols, names) = elf.dynamic_symbol_table().unwrap().unwrap();
    let mut exported = BTreeSet::new();
    for symbol in symbols.iter().filter(|s| s.st_shndx != SHN_UNDEF) {
        let name = names.get(symbol.st_name as usize).unwrap();
        assert_eq!(symbol.st_symtype(), STT_FUNC, "{name} is no function");
        exported.insert(name.to_owned());
    }
    let listed = fs::read_to_string(sources().join("exports.txt")).unwrap();
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    assert_eq!(listed.len(), 209);
    let missing: Vec<_> = listed.difference(&exported).collect();
    let foreign: Vec<_> = exported.difference(&listed).collect();
    assert!(missing.is_empty() && foreign.is_empty(), "missing: {missing:?}, foreign: {foreign:?}");
    assert!(elf.symbol_version_table().unwrap().is_none_or(|table| {
        // NCCL's names carry no version; 1 is the global one without a name.
        symbols
            .iter()
            .enumerate()
            .filter(|(_, s)| s.st_shndx != SHN_UNDEF)
            .all(|(i, _)| table.get_definition(i).unwrap().is_none())
    }));
}

#[test]
fn every_name_has_its_twin() {
    let listed = fs::read_to_string(sources().join("exports.txt")).unwrap();
    let names: BTreeSet<&str> = listed.lines().collect();
    let alone: Vec<_> =
        names.iter().filter(|n| n.starts_with("nccl") && !names.contains(format!("p{n}").as_str())).collect();
    assert_eq!(alone, [&"ncclResetDebugInitInternal"]);
}

/// As in NVIDIA's library: `ncclX` is weak, `pncclX` strong, both are one function.
#[test]
#[cfg(weak_names)]
fn names_are_weak_and_twins_strong_at_one_address() {
    let bytes = fs::read(library()).unwrap();
    let elf = ElfBytes::<NativeEndian>::minimal_parse(&bytes).unwrap();
    let (symbols, names) = elf.dynamic_symbol_table().unwrap().unwrap();
    let exported = symbols.iter().filter(|s| s.st_shndx != SHN_UNDEF);
    let places: BTreeMap<&str, (u8, u64)> =
        exported.map(|s| (names.get(s.st_name as usize).unwrap(), (s.st_bind(), s.st_value))).collect();
    let mut twins = 0;
    for (name, (bind, address)) in places.iter().filter(|(name, _)| name.starts_with("nccl")) {
        let Some((twin_bind, twin_address)) = places.get(format!("p{name}").as_str()) else { continue };
        assert_eq!((*bind, *twin_bind), (STB_WEAK, STB_GLOBAL), "{name}");
        assert_eq!(address, twin_address, "{name}");
        twins += 1;
    }
    assert_eq!(twins, 96);
}

#[test]
fn the_library_has_its_soname_and_needs_little() {
    let bytes = fs::read(library()).unwrap();
    let elf = ElfBytes::<NativeEndian>::minimal_parse(&bytes).unwrap();
    let (_, names) = elf.dynamic_symbol_table().unwrap().unwrap();
    let entries: Vec<_> = elf.dynamic().unwrap().unwrap().iter().collect();
    let texts = |tag| -> Vec<&str> {
        entries.iter().filter(|e| e.d_tag == tag).map(|e| names.get(e.d_val() as usize).unwrap()).collect()
    };
    let flag = |tag, bit| entries.iter().any(|e| e.d_tag == tag && e.d_val() & bit as u64 != 0);
    assert_eq!(texts(DT_SONAME), ["libnccl.so.2"]);
    for needed in texts(DT_NEEDED) {
        let usual =
            ["libc.so", "libgcc_s.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux"];
        assert!(usual.iter().any(|name| needed.starts_with(name)), "needs {needed}");
    }
    assert!(flag(DT_FLAGS_1, DF_1_NODELETE), "dlclose would unmap running threads");
    assert!(
        flag(DT_FLAGS, DF_SYMBOLIC) || entries.iter().any(|e| e.d_tag == DT_SYMBOLIC),
        "calls inside the library could go through an interposer"
    );
}

#[test]
fn a_c_program_links_and_passes_structs_by_value() {
    let Some(place) = Place::new("byvalue") else { return };
    let program = place.program("byvalue");
    place.run(Command::new(program), "byvalue: ok");
}

#[test]
fn four_ranks_in_c_threads_and_in_groups_of_one_thread() {
    let Some(place) = Place::new("allreduce") else { return };
    let program = place.program("allreduce");
    place.run(Command::new(program), "allreduce: ok");
}

#[test]
fn parts_of_different_lengths_and_what_ran() {
    let Some(place) = Place::new("vector") else { return };
    let program = place.program("vector");
    place.run(Command::new(program), "vector: ok");
}

#[test]
fn buffers_are_filled_and_used_in_partitions() {
    let Some(place) = Place::new("partitioned") else { return };
    let program = place.program("partitioned");
    place.run(Command::new(program), "partitioned: ok");
}

#[test]
fn a_tool_may_override_and_forward() {
    let Some(place) = Place::new("interpose") else { return };
    let tool = place.compile("interpose", "libtool.so", &["-shared", "-fPIC"]);
    let mut program = Command::new(place.program("interposed"));
    program.env("LD_PRELOAD", tool);
    place.run(program, "interposed: ok");
}

#[test]
fn calls_are_ranges_where_a_tool_asks_for_them() {
    let Some(place) = Place::new("ranges") else { return };
    let program = place.program("allreduce");
    place.compile("nvtx", "libnvToolsExt.so.1", &["-shared", "-fPIC"]);
    let heard = place.folder.join("heard");
    let run = |settings: &[(&str, &str)]| {
        let mut ranks = Command::new(&program);
        ranks.env("LD_LIBRARY_PATH", &place.folder).env("HEARD", &heard).env_remove("NVTX_INJECTION64_PATH");
        place.run(ranks.envs(settings.iter().copied()), "allreduce: ok");
    };
    let tool = ("NVTX_INJECTION64_PATH", "/no/tool");
    run(&[]);
    run(&[tool, ("NCCL_NVTX_DISABLE", "1")]);
    assert!(!heard.exists(), "ranges without a tool, or though they are off");
    run(&[tool]);
    let text = fs::read_to_string(&heard).unwrap();
    let (begins, ends): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("begin"));
    for name in ["ncclCommInitRank", "ncclAllReduce", "ncclGroupStart", "ncclGroupEnd", "ncclCommDestroy"] {
        assert!(begins.contains(&format!("begin NCCL {name} 0").as_str()), "{name}: {text}");
    }
    // No call is made within another one, and each range ends in its thread.
    assert!(begins.iter().all(|line| line.ends_with(" 0")), "{text}");
    assert!(ends.iter().all(|line| *line == "end NCCL - 0"), "{text}");
    assert_eq!(begins.len(), ends.len());
}

#[test]
fn the_library_opens_closes_and_opens_again() {
    let Some(place) = Place::new("dlopen") else { return };
    let mut program = Command::new(place.compile("dlopen", "dlopen", &["-ldl"]));
    program.arg(place.folder.join("libnccl.so.2")).arg(sources().join("exports.txt"));
    place.run(program, "dlopen: ok");
}

#[test]
fn a_preloaded_library_wins() {
    let Some(place) = Place::new("preload") else { return };
    // Linked against a stand-in with other answers, as a program with a copy of NVIDIA's library in its
    // RPATH.
    let other = place.folder.join("other");
    fs::create_dir_all(&other).unwrap();
    let source = other.join("other.c");
    fs::write(&source, "int ncclGetVersion(int *v) { *v = 1; return 0; }\n").unwrap();
    place.cc(&[
        path(&source),
        "-shared",
        "-fPIC",
        "-Wl,-soname,libnccl.so.2",
        "-o",
        path(&other.join("libnccl.so")),
    ]);
    fs::copy(other.join("libnccl.so"), other.join("libnccl.so.2")).unwrap();
    let asks = other.join("asks.c");
    fs::write(
        &asks,
        "#include <stdio.h>\nint ncclGetVersion(int *);\nint main(void) { int v = 0; \
        ncclGetVersion(&v); printf(\"%d\\n\", v); return 0; }\n",
    )
    .unwrap();
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", path(&other));
    let program = place.folder.join("asks");
    place.cc(&[path(&asks), "-L", path(&other), "-lnccl", &rpath, "-o", path(&program)]);
    place.run(Command::new(&program), "1\n");
    let mut preloaded = Command::new(&program);
    preloaded.env("LD_PRELOAD", place.folder.join("libnccl.so.2"));
    place.run(preloaded, "23203\n");
}

/// A folder with the library under its installed names, and a C compiler.
struct Place {
    folder: PathBuf,
    compiler: String,
}

impl Place {
    /// None, with a line that says so, where there is no C compiler.
    fn new(name: &str) -> Option<Self> {
        let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            let _ = writeln!(std::io::stderr(), "skipped: no C compiler ({compiler}); install gcc or set CC");
            return None;
        }
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("abi-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::copy(library(), folder.join("libnccl.so.2")).unwrap();
        fs::copy(library(), folder.join("libnccl.so")).unwrap();
        Some(Self { folder, compiler })
    }

    /// `tests/abi/NAME.c`, linked with `-lnccl`.
    fn program(&self, name: &str) -> PathBuf {
        let library = format!("-L{}", path(&self.folder));
        let rpath = format!("-Wl,-rpath,{}", path(&self.folder));
        self.compile(name, name, &[&library, "-lnccl", &rpath, "-lpthread", "-ldl"])
    }

    fn compile(&self, source: &str, output: &str, options: &[&str]) -> PathBuf {
        let source = sources().join(format!("{source}.c"));
        let output = self.folder.join(output);
        let mut arguments = vec!["-O2", "-Wall", "-Wextra", "-Werror", path(&source), "-o", path(&output)];
        arguments.extend(options);
        self.cc(&arguments);
        output
    }

    fn cc(&self, arguments: &[&str]) {
        let result = Command::new(&self.compiler).args(arguments).output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    }

    /// Runs a program on the host device and wants `line` from it.
    fn run(&self, mut program: impl std::borrow::BorrowMut<Command>, line: &str) {
        let program = program.borrow_mut();
        let result = program.env("HAWSER_DEVICE", "host").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
        assert!(result.status.success() && out.contains(line), "{:?}\n{out}\n{err}", result.status);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
