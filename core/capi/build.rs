//! Linker options of `libnccl.so.2`.

use std::path::PathBuf;
use std::{env, fs};

/// The names that the library exports, one a line.
const EXPORTS: &str = "../../tests/abi/exports.txt";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={EXPORTS}");
    println!("cargo::rustc-check-cfg=cfg(weak_names)");
    // The name under which programs record the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Calls inside the library never go through an interposer's symbols.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads and thread-local destructors outlive dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if links_with_lld() {
        // Functions of equal code are kept once: 30 kB.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
        export_weak_names();
    }
}

/// Makes `ncclX` a weak name of `pncclX` (see `macros.rs`). Rustc's list of exported names, which lacks names
/// that are made in assembly, is followed by this one.
fn export_weak_names() {
    let names = fs::read_to_string(EXPORTS).expect("the list of exported names is in the repository");
    let folder = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let list = PathBuf::from(folder).join("exports.map");
    let entries: String = names.lines().map(|name| format!("    {name};\n")).collect();
    fs::write(&list, format!("{{\n  global:\n{entries}}};\n")).expect("OUT_DIR can be written");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", list.display());
    println!("cargo::rustc-cfg=weak_names");
}

/// Whether rustc brings its own linker along, and nobody has asked for another one.
fn links_with_lld() -> bool {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let other = ["linker", "fuse-ld", "link-self-contained"].iter().any(|word| flags.contains(word));
    is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && is("HOST", &env::var("TARGET").unwrap_or_default())
        && env::var_os("RUSTC_LINKER").is_none()
        && !other
}
