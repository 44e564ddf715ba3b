//! The library that this code is part of: the version of NCCL that it stands for, and where it lies.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The version of NCCL that the library stands for.
pub const NCCL_VERSION: (u8, u8, u8) = (2, 32, 3);

/// The folder of the library or program that holds this code. Plugins are looked for there too.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for; `info` is valid for a write.
        let found = unsafe { libc::dladdr(folder as fn() -> _ as *const libc::c_void, info.as_mut_ptr()) };
        // SAFETY: zeroed, and filled by dladdr if it says so; all its fields are pointers.
        let name = unsafe { info.assume_init() }.dli_fname;
        if found == 0 || name.is_null() {
            return None;
        }
        // SAFETY: dladdr gives a terminated string that lives as long as the library.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
        path.canonicalize().ok()?.parent().map(Path::to_owned)
    };
    FOLDER.get_or_init(find).as_deref()
}
