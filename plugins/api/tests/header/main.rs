//! `include/hawser_plugin.h`, the tables for authors who write C: made from the description in `model` and
//! the files beside it. The layouts are facts about NCCL 2.30.
//!
//! `HAWSER_BLESS=1 cargo test -p hawser-plugin --test header` writes the file anew.

mod model;
mod net;
mod others;
mod render;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use model::Item;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/hawser_plugin.h")
}

fn items() -> Vec<&'static Item> {
    model::COMMON.iter().chain(net::NET).chain(net::COLLNET).chain(others::ITEMS).collect()
}

#[test]
fn the_file_is_what_the_description_says() {
    let text = render::header(&items());
    if std::env::var_os("HAWSER_BLESS").is_some() {
        std::fs::write(file(), &text).unwrap();
    }
    let there = std::fs::read_to_string(file()).unwrap();
    let differs = there.lines().zip(text.lines()).find(|(there, made)| there != made);
    assert!(there == text, "run with HAWSER_BLESS=1 and look at the difference: {differs:?}");
}

/// Compiles a source that includes the header; None if the compiler is content, else what it says.
fn compile(compiler: &str, language: &[&str], header: &Path, rest: &str) -> Option<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kind = if language[0].contains("++") { "cc" } else { "c" };
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("header-{}-{}.{kind}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let source = folder.join(name);
    std::fs::write(&source, format!("#include \"{}\"\n{rest}\n", header.display())).unwrap();
    let output = Command::new(compiler)
        .args(language)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
        .arg(&source)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} does not run ({error}): install it"));
    std::fs::remove_file(&source).unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A tuner as an author writes it.
const TUNER: &str = r#"
static int init(void **ctx, uint64_t id, size_t ranks, size_t nodes, hawser_logger_t log,
                const hawser_nvl_domains_t *domains, hawser_tuner_constants_t *constants)
{
    (void)id, (void)nodes, (void)domains, (void)constants;
    log(HAWSER_LOG_INFO, HAWSER_SUBSYS_TUNING, __FILE__, __LINE__, "%zu ranks", ranks);
    *ctx = 0;
    return HAWSER_SUCCESS;
}
static int tune(void *ctx, int func, size_t bytes, int ops, float **cost, int algos, int protos, int registered,
                int *channels)
{
    float *table = (float *)cost;
    (void)ctx, (void)func, (void)bytes, (void)ops, (void)registered, (void)channels;
    if (algos > HAWSER_ALGO_RING && protos > HAWSER_PROTO_SIMPLE)
        table[HAWSER_ALGO_RING * protos + HAWSER_PROTO_SIMPLE] = 0.0f;
    return HAWSER_SUCCESS;
}
static int finalize(void *ctx)
{
    (void)ctx;
    return HAWSER_SUCCESS;
}
const hawser_tuner_v6_t ncclTunerPlugin_v6 = {"mine", init, tune, finalize, 0};
"#;

#[test]
fn c_and_cpp_take_it_with_its_layouts() {
    let offsets = render::offsets(&items());
    assert!(offsets.contains("offsetof(hawser_event_ce_coll_t, ceSeqNum) == 76"));
    for (compiler, standard) in
        [("cc", "-std=c11"), ("cc", "-std=gnu17"), ("c++", "-std=c++11"), ("c++", "-std=c++17")]
    {
        for source in [TUNER, &offsets] {
            assert_eq!(compile(compiler, &[standard], &file(), source), None, "{standard}");
        }
    }
}

#[test]
fn a_wrong_layout_is_noticed() {
    let text = render::header(&items());
    let wrong = text.replacen("    int regIsGlobal;", "    long regIsGlobal;", 1);
    assert_ne!(text, wrong);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wrong-{}.h", std::process::id()));
    std::fs::write(&path, wrong).unwrap();
    for (compiler, standard) in [("cc", "-std=c11"), ("c++", "-std=c++11")] {
        let error = compile(compiler, &[standard], &path, "").expect("it compiles");
        assert!(error.contains("hawser_net_properties_t"), "{error}");
        let moved =
            render::offsets(&items()).replace("(hawser_event_t, rank) == 16", "(hawser_event_t, rank) == 20");
        let error = compile(compiler, &[standard], &file(), &moved).expect("it compiles");
        assert!(error.contains("hawser_event_t.rank"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn tables_have_the_sizes_that_nccl_gives_them() {
    let size = |name: &str| {
        items().iter().find_map(|item| match item {
            Item::Struct(s) if s.name == name => Some(s.size),
            _ => None,
        })
    };
    let sizes = [
        ("hawser_net_v12_t", 176),
        ("hawser_collnet_v12_t", 152),
        ("hawser_tuner_v6_t", 40),
        ("hawser_profiler_v6_t", 48),
        ("hawser_env_v2_t", 32),
        ("hawser_net_properties_t", 128),
        ("hawser_net_attributes_t", 44),
        ("hawser_tuner_constants_t", 1152),
        ("hawser_event_t", 112),
    ];
    sizes.iter().for_each(|(name, bytes)| assert_eq!(size(name), Some(*bytes), "{name}"));
}
