//! Programs that others wrote and that call the library: vLLM's wrapper of NCCL. `HAWSER_TEST_...` names the
//! file, and a test whose variable is not set is skipped; which versions were tried, and where they come
//! from: `docs/plugins-tested.md`.

use std::path::Path;

use hawser_tests::process::Process;
use hawser_tests::skip::skipped;
use hawser_tests::world::on_host;

const RANKS: u32 = 3;

#[test]
fn vllms_wrapper_gets_right_results_and_suspends() {
    if !on_host() {
        return;
    }
    let Some(wrapper) = std::env::var("HAWSER_TEST_VLLM_NCCL").ok().filter(|path| !path.is_empty()) else {
        return skipped("HAWSER_TEST_VLLM_NCCL is not set; docs/plugins-tested.md says which file it names");
    };
    let test = std::env::current_exe().expect("this test");
    let library = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("libnccl.so");
    assert!(library.is_file(), "no libnccl.so: run cargo build -p hawser-capi");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("readers/vllm.py");
    let id = std::env::temp_dir().join(format!("hawser-vllm-{}", std::process::id()));
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let start = |rank: u32| {
        let words = [text(&script), wrapper.clone(), text(&library), text(&id)];
        let numbers = [rank, RANKS].map(|number| number.to_string());
        Process::start("python3", &[&words[..], &numbers].concat(), &[])
    };
    let ended: Vec<_> = (0..RANKS).map(start).collect();
    let ended: Vec<_> = ended.into_iter().map(Process::end).collect();
    std::fs::remove_file(&id).expect("rank 0 has written the unique id");
    for ended in ended {
        assert!(ended.status.success() && ended.output.contains("right"), "{}", ended.output);
    }
}
