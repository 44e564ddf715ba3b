//! Linker options of `libnccl.so.2`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which programs record the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Calls inside the library never go through an interposer's symbols.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads and thread-local destructors outlive dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if links_with_lld() {
        // Functions of equal code are kept once: 30 kB.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--icf=all");
    }
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
