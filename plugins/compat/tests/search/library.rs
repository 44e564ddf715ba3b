//! Libraries for the tests of the search.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use hawser_plugin::Log;

/// A folder with libraries, gone with its owner.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("search-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Compiles `plugin.c` with macros.
    #[allow(dead_code)] // not every test that has this module
    pub fn build(&self, name: &str, macros: &[&str]) -> PathBuf {
        let macros: Vec<String> = macros.iter().map(|name| format!("-D{name}")).collect();
        let macros: Vec<&str> = macros.iter().map(String::as_str).collect();
        self.compile(name, include_str!("plugin.c"), &macros)
    }

    /// Compiles a source.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = self.path(&format!("{name}.c"));
        std::fs::write(&file, source).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let output = Command::new(&compiler)
            .args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"])
            .args(options)
            .arg(&file)
            .arg("-o")
            .arg(self.path(name))
            .output()
            .unwrap_or_else(|e| panic!("{compiler} does not run ({e}): install a C compiler or set CC"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The file that cargo built of an example of this package.
#[allow(dead_code)] // as above
pub fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let path = program.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built: run cargo build --examples before cargo test --test",
        path.display()
    );
    path
}

/// A log that can be read: level and text.
pub fn log() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    (Log::new(move |level, _, text| keep.lock().unwrap().push(format!("{level:?} {text}"))), lines)
}
