//! Linker options of `libnccl.so.2`.

use std::path::{Path, PathBuf};
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
    match linker() {
        Linker::Rustc => {
            // Functions of equal code are kept once: 30 kB.
            println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
            export_weak_names("");
        }
        // Zig takes one list of names, the last, and no option for equal code.
        Linker::Zig => export_weak_names("  local: *;\n"),
        Linker::Other => {}
    }
}

/// Makes `ncclX` a weak name of `pncclX` (see `macros.rs`). Rustc's list of exported names, which lacks names
/// that are made in assembly, is followed by this one, where `others` says what becomes of all other names.
fn export_weak_names(others: &str) {
    let names = fs::read_to_string(EXPORTS).expect("the list of exported names is in the repository");
    let folder = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let list = PathBuf::from(folder).join("exports.map");
    let entries: String = names.lines().map(|name| format!("    {name};\n")).collect();
    fs::write(&list, format!("{{\n  global:\n{entries}{others}}};\n")).expect("OUT_DIR can be written");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", list.display());
    println!("cargo::rustc-cfg=weak_names");
}

/// The linkers that this file knows.
enum Linker {
    /// Rustc's own, a build of LLD.
    Rustc,
    /// Zig's, by a wrapper of cargo-zigbuild: releases, which run with older versions of glibc.
    Zig,
    /// All others.
    Other,
}

/// The linker of this build: rustc's own, if rustc brings one along and nobody has asked for another one.
fn linker() -> Linker {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let other = ["linker", "fuse-ld", "link-self-contained"].iter().any(|word| flags.contains(word));
    if !is("CARGO_CFG_TARGET_OS", "linux") || !is("CARGO_CFG_TARGET_ENV", "gnu") || other {
        return Linker::Other;
    }
    match env::var_os("RUSTC_LINKER") {
        Some(path) => match Path::new(&path).file_name().and_then(|name| name.to_str()) {
            Some(name) if name.starts_with("zigcc") => Linker::Zig,
            _ => Linker::Other,
        },
        None if is("CARGO_CFG_TARGET_ARCH", "x86_64")
            && is("HOST", &env::var("TARGET").unwrap_or_default()) =>
        {
            Linker::Rustc
        }
        None => Linker::Other,
    }
}
