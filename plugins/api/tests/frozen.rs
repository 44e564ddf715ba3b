//! The surface of the ABI is what it was: a list of all types that cross, with a digest of their layouts.
//!
//! A difference is right only if the rules in `hawser_plugin::abi` allow it: a method or a field at the end.
//! Then write the list anew with `HAWSER_BLESS=1 cargo test -p hawser-plugin --test frozen`.
#![cfg(not(feature = "next"))]

use std::collections::BTreeSet;
use std::path::Path;

use abi_stable::StableAbi;
use abi_stable::std_types::utypeid::UTypeId;
use abi_stable::type_layout::TypeLayout;
use hawser_plugin::abi::raw::RawManifest_Ref;

#[test]
fn nothing_that_crosses_has_changed() {
    let mut lines = BTreeSet::new();
    collect(<RawManifest_Ref as StableAbi>::LAYOUT, &mut Vec::new(), &mut lines);
    let ours = lines.into_iter().collect::<String>();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frozen.txt");
    if std::env::var_os("HAWSER_BLESS").is_some() {
        std::fs::write(&file, &ours).unwrap();
    }
    let frozen = std::fs::read_to_string(&file).unwrap();
    let changed: Vec<&str> =
        ours.lines().filter(|line| !frozen.lines().any(|other| other == *line)).collect();
    let missing: Vec<&str> =
        frozen.lines().filter(|line| !ours.lines().any(|other| other == *line)).collect();
    assert!(changed.is_empty() && missing.is_empty(), "new or changed: {changed:?}, before: {missing:?}");
    assert!(frozen.lines().count() > 30, "the walk through the types finds them all");
}

/// Walks through all types; those of this crate get a line.
fn collect(layout: &'static TypeLayout, seen: &mut Vec<UTypeId>, lines: &mut BTreeSet<String>) {
    if seen.contains(&layout.get_utypeid()) {
        return;
    }
    seen.push(layout.get_utypeid());
    if layout.package() == "hawser-plugin" {
        let digest = digest(&stable_text(layout));
        lines.insert(format!("{} bytes {} layout {digest:016x}\n", layout.full_type(), layout.size()));
    }
    layout.shared_vars().type_layouts().iter().for_each(|inner| collect(inner(), seen, lines));
}

/// The description without what may change freely: lines and versions.
fn stable_text(layout: &TypeLayout) -> String {
    let text = layout.to_string();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("line:"));
    lines.map(|line| line.split(" version:").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// The FNV-1a hash of a text.
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
