//! The linking of the library: its name, and that it stays loaded, because Rust's thread-local data does not
//! survive dlclose.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-soname,libnccl-net-hawser-socket.so", "-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
