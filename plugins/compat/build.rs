//! Compiles the C part: a variadic function cannot be defined in stable Rust.

fn main() {
    println!("cargo:rerun-if-changed=csrc/logger.c");
    cc::Build::new().file("csrc/logger.c").compile("hawser_compat_c");
}
