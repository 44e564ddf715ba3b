//! Linker options of `libnccl.so.2`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which programs record the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Calls inside the library never go through an interposer's symbols.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads and thread-local destructors outlive dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
