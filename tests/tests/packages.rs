//! Installing, uninstalling and packing, tried with stand-ins for what is built (`tests/packages/check.py`).

use std::path::Path;
use std::process::Command;

use hawser_tests::skip::skipped;

#[test]
fn packages_are_whole_and_equal_when_made_twice() {
    let folder = std::env::temp_dir().join(format!("hawser-packages-{}", std::process::id()));
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/check.py");
    let output = match Command::new("python3").arg(check).arg(&folder).output() {
        Ok(output) => output,
        Err(error) => return skipped(format!("python3: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    if let Some(reason) = text.strip_prefix("skipped: ") {
        return skipped(reason.trim());
    }
    assert!(text.ends_with("all right\n"), "{text}");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}
