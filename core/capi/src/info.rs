//! Version and errors.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU8, Ordering};

use hawser_base::{env, log::last_error};

use crate::args::Out;
use crate::handle::CommPtr;
use crate::types::{VERSION_CODE, result};

nccl_api! {
    /// The NCCL version whose interface this is.
    fn ncclGetVersion / pncclGetVersion(version: Out<c_int>) {
        version.set("version", VERSION_CODE)
    }

    /// Returns what a result code means, in words.
    fn ncclGetErrorString / pncclGetErrorString(code: c_int) -> *const c_char,
        else c"unknown result".as_ptr(), {
        Ok(meaning(code).as_ptr())
    }

    /// The latest error of the process; the memory stays, the text until the next call of any thread. `comm`
    /// may be NULL.
    fn ncclGetLastError / pncclGetLastError(comm: CommPtr) -> *const c_char, else c"".as_ptr(), {
        let _ = comm; // NCCL ignores it as well
        // The last one is never written, so the text always ends.
        static TEXT: [AtomicU8; 2048] = [const { AtomicU8::new(0) }; 2048];
        let text = last_error();
        let bytes = text.bytes().map(|byte| if byte == 0 { b' ' } else { byte }).chain([0]);
        for (kept, byte) in TEXT[..TEXT.len() - 1].iter().zip(bytes) {
            kept.store(byte, Ordering::Relaxed);
        }
        Ok(TEXT.as_ptr().cast())
    }

    /// Deprecated by NCCL from its first day. Settings are read once, so there is nothing to reset.
    fn ncclResetDebugInit / pncclResetDebugInit() -> (), else (), {
        env::settings();
        Ok(())
    }
}

/// NCCL exports this name as well, without a twin and in no header.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInitInternal() {}

fn meaning(code: c_int) -> &'static CStr {
    match code {
        result::SUCCESS => c"success",
        result::UNHANDLED_CUDA_ERROR => {
            c"a CUDA call failed (ncclGetLastError or NCCL_DEBUG=WARN tells which)"
        }
        result::SYSTEM_ERROR => {
            c"a system call failed or a deadline passed (ncclGetLastError or NCCL_DEBUG=WARN tells more)"
        }
        result::INTERNAL_ERROR => {
            c"internal error or aborted call (ncclGetLastError or NCCL_DEBUG=WARN tells more)"
        }
        result::INVALID_ARGUMENT => c"invalid argument (ncclGetLastError or NCCL_DEBUG=WARN tells which)",
        result::INVALID_USAGE => c"invalid usage (ncclGetLastError or NCCL_DEBUG=WARN tells why)",
        result::REMOTE_ERROR => c"another rank failed or the network to it did",
        result::IN_PROGRESS => c"operation in progress",
        result::TIMEOUT => c"timeout",
        _ => c"unknown result code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_meaning_of_its_own() {
        let texts: std::collections::HashSet<_> = (-1..=8).map(meaning).collect();
        assert_eq!(texts.len(), 10);
        assert_eq!(meaning(9), meaning(-1));
    }
}
