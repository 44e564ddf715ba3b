//! Compiles the C test plugins with `cc`, opens them and talks to their recorder (`c/record.h`).

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use hawser_compat::library::Library;

/// A plugin in a file of its own, so that each test has its own statics.
pub struct CPlugin {
    pub library: Arc<Library>,
}

impl CPlugin {
    /// Compiles `tests/c/{source}.c` for an ABI version with further macros, and opens it.
    pub fn build(source: &str, version: u32, macros: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{source}_v{version}_{number}.so");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let output = Command::new(&compiler)
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
            .arg(format!("-DVERSION={version}"))
            .args(macros.iter().map(|name| format!("-D{name}")))
            .arg(folder.join(format!("{source}.c")))
            .arg("-o")
            .arg(&path)
            .output()
            .unwrap_or_else(|e| panic!("{compiler} does not run ({e}): install a C compiler or set CC"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let library = Library::open(&path).unwrap();
        Self { library }
    }

    /// The lines that the plugin wrote down since the last call, a line per call of the host.
    pub fn recorded(&self) -> Vec<String> {
        let text = self.library.data("recorded").unwrap().cast_mut().cast::<c_char>();
        let length = self.library.data("recorded_bytes").unwrap().cast_mut().cast::<c_int>();
        // SAFETY: the recorder keeps its text terminated, and no test asks while the plugin runs.
        unsafe {
            let lines = CStr::from_ptr(text).to_string_lossy().lines().map(str::to_owned).collect();
            (*text, *length) = (0, 0);
            lines
        }
    }

    /// One of the plugin's exported `int` variables.
    pub fn int(&self, name: &str) -> &AtomicI32 {
        let variable = self.library.data(name).unwrap_or_else(|| panic!("no variable {name}"));
        // SAFETY: an `int` of the library, which lives as long as `self`.
        unsafe { AtomicI32::from_ptr(variable.cast_mut().cast()) }
    }

    /// Sets one of them.
    pub fn set(&self, name: &str, value: c_int) {
        self.int(name).store(value, Ordering::SeqCst);
    }
}
