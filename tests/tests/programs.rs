//! Programs that users bring (`MSCCL_XML_FILES`, `MSCCL_ALGO_DIR`) run: right results for every type and
//! reduction, in place and out of place, for counts that do not divide; calls that do not fit go the usual
//! way; ranks compare files.
//!
//! Settings are read once per process, so every file gets a process: this program again, with the test
//! `child` only.

#[path = "../../core/plan/tests/plans/mod.rs"]
mod plans;

use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_msccl::{Window, read_mscclpp, to_xml};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::imported::{self, Imported};
use hawser_plan::{Algorithm, Collective, DataType, Protocol, ReduceOp};
use hawser_program::text::to_text;
use hawser_runtime::{Comm, Config, Stream, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::{Case, RankBuffers};
use hawser_tests::process::Process;
use hawser_tests::world::{call, on_host, on_hosts};

/// Tells the child which file it has.
const CHILD: &str = "HAWSER_TEST_PROGRAM";

#[test]
fn files_of_this_repository() {
    for (_, path) in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/plan/tests/msccl"), "valid") {
        check(&path);
    }
}

/// Files of other people's generators, from the folder that a variable names.
#[test]
fn files_from_elsewhere() {
    let Some(folder) = std::env::var_os("HAWSER_MSCCL_DIR") else { return };
    for (_, path) in files(Path::new(&folder), "") {
        if imported::read(&std::fs::read_to_string(&path).unwrap()).is_ok() {
            check(&path);
        }
    }
}

/// Built-in programs that were written as XML and as `.plan`.
#[test]
fn exported_programs() {
    let folder = folder("exported");
    for collective in Collective::ALL {
        for &algorithm in algo::algorithms(collective) {
            let root = if collective.rooted() { 1 } else { 0 };
            let program = algo::program(&ProgramKey::new(collective, algorithm, 5, root)).unwrap();
            let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
            let name = algo::name(collective, algorithm);
            let xml = folder.join(format!("{name}.xml"));
            std::fs::write(&xml, to_xml(&program, &window).unwrap()).unwrap();
            check(&xml);
        }
        let program =
            algo::program(&ProgramKey::new(collective, algo::algorithms(collective)[0], 3, 0)).unwrap();
        let plan = folder.join(format!("{}.plan", collective.name()));
        std::fs::write(&plan, to_text(&program)).unwrap();
        check(&plan);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// MSCCL++'s plans, as the tool imports them; what the library says to the JSON itself names the tool.
#[test]
fn imported_plans() {
    let folder = folder("plans");
    for (name, text) in plans::all() {
        let imported = read_mscclpp(&text).unwrap().imported;
        // Those of no collective run by a call of their own, below.
        if imported.program.shape.collective == Collective::SendRecv {
            continue;
        }
        let window = Window { protocol: imported.protocol, bytes: (0, u64::MAX) };
        let xml = folder.join(format!("{name}.xml"));
        std::fs::write(&xml, to_xml(&imported.program, &window).unwrap()).unwrap();
        check(&xml);
    }
    let error = imported::read(&plans::named("ring_2")).unwrap_err().to_string();
    assert!(error.contains("hawser plan import FILE.json"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Ranks of one process, a letter for the host of each, do the steps with right results; returns the log.
fn hosts(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> String {
    let log = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL,INIT"), ("HAWSER_EXPLAIN", "1")];
    let settings: Vec<_> = log.iter().chain(settings).copied().collect();
    let ended = Process::hosts(env!("CARGO_BIN_EXE_hawser-test-rank"), hosts, steps, &settings).end();
    ended.expect_success();
    ended.output
}

/// Slots that cross a network belong to channels that share lanes, too.
#[test]
fn programs_run_between_hosts() {
    if !on_host() {
        return;
    }
    let folder = folder("hosts");
    let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
    for algorithm in [Algorithm::AllPairs, Algorithm::Tree, Algorithm::HalvingDoubling] {
        let program = algo::program(&ProgramKey::new(Collective::AllReduce, algorithm, 4, 0)).unwrap();
        let path = folder.join("program.xml");
        std::fs::write(&path, to_xml(&program, &window).unwrap()).unwrap();
        let name = format!(": {}/host/Simple x ", algo::name(Collective::AllReduce, algorithm));
        for of in ["aabb", "abab", "abcd"] {
            let output = hosts(
                of,
                &["all_reduce", "small", "destroy"],
                &[("MSCCL_XML_FILES", path.to_str().unwrap()), ("NCCL_ALGO", "allreduce:MSCCL")],
            );
            assert!(output.contains(&name), "{of}: {output}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Programs that the cost model does not take by itself run by name.
#[test]
fn algorithms_that_nobody_measured_run_by_name() {
    if !on_host() {
        return;
    }
    for (list, names) in [
        (
            "allreduce:RecursiveDoubling;alltoall:bruck;reduce:knomial",
            ["RecursiveDoubling", "Bruck", "Knomial"],
        ),
        ("allgather:pat;reducescatter:pat;broadcast:knomial", ["PAT", "PAT", "Knomial"]),
        ("allreduce:halvingdoubling;alltoall:pairwise", ["HalvingDoubling", "Pairwise", "Pairwise"]),
    ] {
        for of in ["aaaaa", "aabb", "aaabbbccc"] {
            let output = hosts(of, &["small", "destroy"], &[("NCCL_ALGO", list)]);
            for name in names {
                assert!(
                    output.contains(&format!("float: {name}/host/Simple x ")),
                    "{name} on {of}: {output}"
                );
            }
        }
    }
}

#[test]
fn a_window_is_kept_and_what_lies_outside_goes_the_usual_way() {
    if !on_host() {
        return;
    }
    let folder = folder("window");
    let program = algo::program(&ProgramKey::new(Collective::AllReduce, Algorithm::Pat, 2, 0));
    assert!(program.is_err());
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::HalvingDoubling, 2, 0);
    let window = Window { protocol: Protocol::Ll, bytes: (8_000, 20_000) };
    let xml =
        to_xml(&algo::program(&key).unwrap(), &window).unwrap().replace("halvingdoubling_all_reduce", "mine");
    std::fs::write(folder.join("mine.xml"), xml).unwrap();
    std::fs::write(folder.join("broken.xml"), "<algo name=\"x\" ngpus=\"2\">").unwrap();
    let folder_name = folder.to_str().unwrap();
    let run = |steps: &[&str], more: &[(&str, &str)]| {
        hosts("aa", steps, &[&[("MSCCL_ALGO_DIR", folder_name)], more].concat())
    };
    // 20,000 bytes fit, and trees take longer.
    let inside = run(&["all_reduce", "destroy"], &[("NCCL_ALGO", "tree,mine")]);
    assert!(inside.contains("all_reduce 5000 x float: mine/host/Simple"), "{inside}");
    assert!(inside.contains("blocks of 1 threads is predicted fastest"), "{inside}");
    assert!(inside.contains("broken.xml:1:") && inside.contains("left out"), "{inside}");
    // With a name of its own in NCCL_ALGO, and without.
    let named = run(&["all_reduce", "destroy"], &[("NCCL_ALGO", "MINE")]);
    assert!(named.contains("mine/host/Simple"), "{named}");
    let ring = run(&["all_reduce", "destroy"], &[("NCCL_ALGO", "ring")]);
    assert!(ring.contains("Ring/host/Simple") && ring.contains("left out by NCCL_ALGO"), "{ring}");
    let text = std::fs::read_to_string(folder.join("mine.xml")).unwrap();
    std::fs::write(folder.join("mine.xml"), text.replace("maxBytes=\"20000\"", "maxBytes=\"19999\""))
        .unwrap();
    let outside = run(&["all_reduce", "destroy"], &[]);
    assert!(!outside.contains("mine/"), "{outside}");
    assert!(outside.contains("made for 8000 bytes to 19999 bytes"), "{outside}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn ranks_with_different_files_are_told() {
    if !on_host() {
        return;
    }
    let folder = folder("differ");
    let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 2, 0);
    let xml = to_xml(&algo::program(&key).unwrap(), &window).unwrap();
    let broken = xml.replacen("type=\"r\"", "type=\"rcs\"", 1);
    let other = xml.replacen("minBytes=\"0\"", "minBytes=\"4\"", 1);
    let cases = [
        (
            &other,
            vec![
                "number 1 of rank 0 is ring_all_reduce",
                "0.xml, of rank 1 ring_all_reduce",
                "1.xml",
                "same files",
            ],
        ),
        (&broken, vec!["rank 1: ", "1.xml:6:7: mismatch: ", "hawser plan verify"]),
    ];
    for (text, parts) in cases {
        let id = unique_id().unwrap();
        let paths = [folder.join("0.xml"), folder.join("1.xml")];
        std::fs::write(&paths[0], &xml).unwrap();
        std::fs::write(&paths[1], text).unwrap();
        let start = |rank: u32| {
            let settings = [("MSCCL_XML_FILES", paths[rank as usize].to_str().unwrap())];
            Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), &id, (rank, 2), &["all_reduce"], &settings)
        };
        let processes = [0, 1].map(start);
        processes.into_iter().for_each(|process| process.end().expect_error("InvalidUsage", &parts));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Each rank sends its input to the next one; from host to host half of it goes by way of the others.
const ALL_TO_NEXT: &str = include_str!("msccl/alltonext.xml");

/// Programs of no collective run by a call of their own, on one host and on two: MSCCL's `custom`, and plans
/// of MSCCL++ by way of the file that `hawser plan import` writes.
#[test]
fn custom_programs_run_by_their_name() {
    if !on_host() {
        return;
    }
    let folder = folder("custom");
    let imported = |name: &str| {
        let import = read_mscclpp(&plans::named(name)).unwrap().imported;
        to_xml(&import.program, &Window { protocol: import.protocol, bytes: import.bytes }).unwrap()
    };
    let programs = [ALL_TO_NEXT.to_owned(), imported("next_4"), imported("rotate_4")];
    for (name, text) in ["alltonext", "next", "rotate"].into_iter().zip(programs) {
        let path = folder.join(format!("{name}.xml"));
        std::fs::write(&path, text).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["custom_child", "--exact", "--nocapture"]).env(CHILD, &path);
        // Settings about other algorithms do not count for a program that a call names.
        child.env("MSCCL_XML_FILES", &path).env("HAWSER_DEVICE", "host").env("NCCL_ALGO", "ring");
        let ended = child.output().unwrap();
        let output =
            [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(ended.status.success() && output.contains("1 passed"), "{name}: {output}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Byte `at` of the input of a rank.
fn sent(rank: u32, at: usize) -> u8 {
    (at as u32 * 7 + rank * 61 + 3) as u8
}

/// The bytes that the program leaves in the output of a rank; what it does not write is 0xa5.
fn moved(name: &str, rank: u32, length: usize) -> Vec<u8> {
    let last = (rank + 3) % 4;
    let third = length / 3;
    let byte = |at| match (name, at / third.max(1)) {
        ("alltonext", _) if rank == 0 => 0xa5,
        ("alltonext" | "next", _) => sent(last, at),
        (_, 0) => sent(last, at + third),
        (_, 1) => 0xa5,
        _ => sent(last, at - 2 * third),
    };
    (0..length).map(byte).collect()
}

#[test]
fn custom_child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let _deadline = Deadline::start();
    let name = Path::new(&path).file_stem().unwrap().to_str().unwrap();
    // Whole chunks of 16 bytes where the three of a program change their places.
    let counts = if name == "rotate" { [48, 96, 480, 96_000] } else { [1, 2, 129, 100_003] };
    for hosts in ["aaaa", "aabb"] {
        on_hosts(hosts, &Config { net: Some("Socket".into()), ..Config::default() }, |comm| {
            for (dtype, count) in
                counts.into_iter().flat_map(|n| [(DataType::Float32, n), (DataType::Int8, n)])
            {
                let length = count * dtype.size();
                let input: Vec<u8> = (0..length).map(|at| sent(comm.rank(), at)).collect();
                let (before, output) = (input.clone(), vec![0xa5_u8; length]);
                let buffers = (input.as_ptr() as u64, output.as_ptr() as u64);
                group::start().unwrap();
                comm.custom(&name.to_uppercase(), buffers, (count as u64, dtype), Stream(0)).unwrap();
                group::end().unwrap();
                let wanted = moved(name, comm.rank(), length);
                assert!(output == wanted, "{name}, rank {} of {hosts}: {count} x {dtype:?}", comm.rank());
                assert!(input == before, "{name} changed the input of rank {}", comm.rank());
                let last = comm.last_decision().unwrap().expect("a decision");
                assert_eq!((last.algorithm.as_str(), last.collective.as_str()), (name, "sendrecv"));
            }
            let call = |name: &str, buffers| comm.custom(name, buffers, (8, DataType::Int8), Stream(0));
            let unknown = call("other", (0x1000, 0x2000)).unwrap_err().to_string();
            assert!(unknown.contains(name) && unknown.contains("MSCCL_XML_FILES"), "{unknown}");
            let overlap = call(name, (0x1000, 0x1007)).unwrap_err().to_string();
            assert!(overlap.contains("overlap"), "{overlap}");
            if name == "rotate" {
                let uneven = call(name, (0x1000, 0x2000)).unwrap_err().to_string();
                assert!(uneven.contains("8 bytes are not 3 chunks of whole 16 bytes"), "{uneven}");
            }
        });
    }
}

/// Runs the file that a parent names, in every way.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let _deadline = Deadline::start();
    let program = imported::read(&std::fs::read_to_string(path).unwrap()).unwrap();
    let Imported { program, .. } = program;
    let (ranks, root, collective) = (program.shape.ranks, program.shape.root, program.shape.collective);
    let comms = Comm::init_all(&(0..ranks).collect::<Vec<u32>>()).unwrap();
    let large = program.shape.per_block * ranks > 64;
    for dtype in DataType::ALL {
        let ops: &[ReduceOp] = if collective.reduces() { &ReduceOp::ALL } else { &[ReduceOp::Sum] };
        for &op in ops {
            for count in
                [1, 129, 1027].into_iter().filter(|&count| !large || count == 1027 || dtype.size() == 4)
            {
                let case = Case { collective, dtype, op, ranks, root, count };
                run(&comms, &case, false, count % 2);
                if collective != Collective::AllToAll {
                    run(&comms, &case, true, 0);
                }
            }
        }
    }
    // Several tiles of several instances.
    let case = Case { collective, dtype: DataType::Float32, op: ReduceOp::Sum, ranks, root, count: 100_003 };
    run(&comms, &case, collective != Collective::AllToAll, 1);
}

fn run(comms: &[Comm], case: &Case, in_place: bool, shift: usize) {
    let buffers: Vec<RankBuffers> =
        (0..case.ranks).map(|rank| RankBuffers::new(case, rank, in_place, shift)).collect();
    group::start().unwrap();
    for ((rank, comm), buffers) in (0..case.ranks).zip(comms).zip(&buffers) {
        comm.collective(call(case, rank, buffers.addresses(case, rank)), Stream(0)).unwrap();
    }
    group::end().unwrap();
    for (rank, buffers) in (0..case.ranks).zip(&buffers) {
        assert_eq!(buffers.fault(case, rank), None, "{case:?} in place {in_place}");
    }
}

/// Runs calls in a process of its own that has a file: its program is what runs them.
fn check(path: &Path) {
    if !on_host() {
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let name = imported::head(&text).unwrap().name;
    let folder = folder("rule");
    let rules = folder.join(format!("{name}.toml"));
    std::fs::write(&rules, format!("[[rule]]\nuse = {{ program = \"{name}\" }}\n")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["child", "--exact", "--nocapture"]).env(CHILD, path).env("MSCCL_XML_FILES", path);
    child
        .env("HAWSER_RULES", &rules)
        .env("HAWSER_DEVICE", "host")
        .env("NCCL_DEBUG", "INFO")
        .env("NCCL_DEBUG_SUBSYS", "COLL,INIT");
    let ended = child.output().unwrap();
    let output =
        [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let last = output.lines().rev().take(20).collect::<Vec<_>>().join("\n");
    assert!(ended.status.success(), "{}: {last}", path.display());
    let operations: Vec<&str> = output.lines().filter(|line| line.contains(" op ")).collect();
    assert!(!operations.is_empty(), "{}: {last}", path.display());
    let by_it = |line: &&&str| line.contains(&format!(": {name}/host/Simple x "));
    let ran = operations.iter().filter(by_it).count();
    assert_eq!(ran, operations.len(), "{}: {last}", path.display());
}

/// XML files of a folder whose names begin so, by name.
fn files(folder: &Path, begin: &str) -> Vec<(String, PathBuf)> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "xml"));
    paths.sort();
    let named = |path: PathBuf| (path.file_stem().unwrap().to_string_lossy().into_owned(), path);
    paths.into_iter().map(named).filter(|(name, _)| name.starts_with(begin)).collect()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hawser-programs-test-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
