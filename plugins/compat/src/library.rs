//! A shared library that may hold plugins.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

/// An opened library. Whoever uses something of it holds an `Arc`; it is closed when the last one lets go.
pub struct Library {
    handle: Handle,
    path: PathBuf,
}

impl Library {
    /// Opens a file or a name that the dynamic loader searches, with `RTLD_NOW | RTLD_LOCAL`.
    ///
    /// # Errors
    /// What dlerror says.
    pub fn open(path: &Path) -> Result<Arc<Self>, String> {
        // SAFETY: loading a library runs its initialisers; the user asked for this plugin.
        let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let handle = handle.map_err(|error| reason(&error))?;
        Ok(Arc::new(Self { handle, path: path.to_owned() }))
    }

    /// The program itself and what it is linked with (`STATIC_PLUGIN`).
    pub fn program() -> Arc<Self> {
        Arc::new(Self { handle: Handle::this(), path: PathBuf::from("STATIC_PLUGIN") })
    }

    /// Address of a data symbol; None if there is none, or if it is NULL.
    pub fn data(&self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: only the address is taken; whoever reads through it knows the type by the name.
        let symbol = unsafe { self.handle.get::<*const c_void>(name.as_bytes_with_nul()) };
        symbol.ok().map(|s| s.into_raw().cast_const()).filter(|p| !p.is_null())
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// libloading's own text is just "dlopen failed": the reason is in the source.
fn reason(error: &libloading::Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
