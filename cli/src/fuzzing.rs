//! Entry points for fuzz targets: the files of others that the tool reads.

use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};

pub use crate::exec::fuzz as elf_head;
pub use crate::rules::fuzz_import as rules_import;
use crate::{simulate, trace};

/// Reads bytes as a trace, as `hawser trace merge`, `hawser trace view` and `hawser simulate` do.
pub fn trace(bytes: &[u8]) {
    // Readers open files by their names.
    let file = memfd_create("trace", MemfdFlags::CLOEXEC).map(std::fs::File::from);
    let file =
        file.and_then(|mut file| file.write_all(bytes).map(|()| file).map_err(|_| rustix::io::Errno::IO));
    let Ok(file) = file else { return };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    trace::fuzz(&path, &mut io::sink());
    simulate::fuzz_recorded(&path);
}
