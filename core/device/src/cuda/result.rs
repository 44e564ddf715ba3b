//! Results of driver calls and their texts.

use std::ffi::c_int;
use std::fmt::{Display, Write};

use hawser_base::error::{Error, ErrorKind, Result, SystemCode};
use hawser_base::log;

use super::sys;

/// [`Status::code`] of an optional function that the driver lacks.
pub const MISSING: c_int = -1;

/// Codes of `CUresult` that are looked at, by the names of `cuda.h` without `CUDA_ERROR_`.
pub mod code {
    use std::ffi::c_int;
    pub const SUCCESS: c_int = 0;
    pub const INVALID_VALUE: c_int = 1;
    pub const OUT_OF_MEMORY: c_int = 2;
    pub const DEINITIALIZED: c_int = 4;
    pub const NO_DEVICE: c_int = 100;
    pub const INVALID_CONTEXT: c_int = 201;
    pub const NO_BINARY_FOR_GPU: c_int = 209;
    pub const PEER_ACCESS_UNSUPPORTED: c_int = 217;
    pub const UNSUPPORTED_PTX_VERSION: c_int = 222;
    pub const INVALID_HANDLE: c_int = 400;
    pub const NOT_FOUND: c_int = 500;
    pub const NOT_READY: c_int = 600;
    pub const ILLEGAL_ADDRESS: c_int = 700;
    pub const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
    pub const CONTEXT_IS_DESTROYED: c_int = 709;
    pub const LAUNCH_FAILED: c_int = 719;
    pub const NOT_PERMITTED: c_int = 800;
    pub const NOT_SUPPORTED: c_int = 801;
    pub const SYSTEM_NOT_READY: c_int = 802;
    pub const SYSTEM_DRIVER_MISMATCH: c_int = 803;
    pub const STREAM_CAPTURE_UNSUPPORTED: c_int = 900;
    pub const STREAM_CAPTURE_IMPLICIT: c_int = 906;
    pub const STREAM_CAPTURE_WRONG_THREAD: c_int = 908;
}

/// The answer of a driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Status {
    /// Name of the driver function.
    pub call: &'static str,
    /// A `CUresult`, or [`MISSING`].
    pub code: c_int,
    /// CUDA version that introduced the function (12040 = 12.4).
    pub since: c_int,
}

impl Status {
    /// True if the call succeeded.
    pub fn is_ok(self) -> bool {
        self.code == code::SUCCESS
    }

    /// The call's result; `place` says on which device.
    #[inline]
    pub fn check(self, place: &dyn Display) -> Result<()> {
        if self.is_ok() { Ok(()) } else { Err(self.error(place)) }
    }

    /// The failed call as an error.
    #[cold]
    pub fn error(self, place: &dyn Display) -> Error {
        let error = Error::new(ErrorKind::UnhandledCuda, self.text(place));
        error.with_code(SystemCode::Cuda(self.code)).with_resource(place)
    }

    /// For destructors, which cannot fail: a warning, except while the process ends.
    pub fn warn(self, place: &dyn Display) {
        if !matches!(self.code, code::SUCCESS | code::DEINITIALIZED | code::CONTEXT_IS_DESTROYED) {
            log::warn(&self.text(place));
        }
    }

    /// The whole sentence.
    fn text(self, place: &dyn Display) -> String {
        let Status { call, code, since } = self;
        if code == MISSING {
            let (needs, has) = (version_text(since), installed_version());
            return format!(
                "{call} failed on {place}: the CUDA driver ({has}) lacks it, it came with CUDA \
                {needs}; update the driver"
            );
        }
        let mut text = format!("{call} failed on {place}: ");
        match sys::driver().ok().and_then(|d| d.error_texts(code)) {
            Some((name, description)) => write!(text, "{name} ({code}): {description}"),
            None => write!(text, "CUDA error {code}"),
        }
        .expect("writing to a String cannot fail");
        if let Some(remedy) = remedy(code) {
            text.push_str("; ");
            text.push_str(remedy);
        }
        text
    }
}

/// `13.0` for 13000.
pub fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Highest CUDA version of the installed driver, as text.
pub fn installed_version() -> String {
    let mut version = 0;
    match sys::driver() {
        // SAFETY: `version` is valid for the one number that the driver writes.
        Ok(driver) if unsafe { driver.driver_version(&mut version) }.is_ok() => {
            format!("CUDA {}", version_text(version))
        }
        _ => "of unknown version".into(),
    }
}

/// The advice to the user, where the code alone tells it.
fn remedy(error: c_int) -> Option<&'static str> {
    Some(match error {
        code::INVALID_CONTEXT | code::INVALID_HANDLE => {
            "check that the stream is alive and belongs to the communicator's device"
        }
        code::NO_BINARY_FOR_GPU => "rebuild with HAWSER_CUDA_ARCHS naming this GPU's architecture",
        code::PEER_ACCESS_UNSUPPORTED => "set NCCL_P2P_DISABLE=1 on all ranks to stage in host memory",
        code::UNSUPPORTED_PTX_VERSION => {
            "update the driver, or rebuild the kernels with a CUDA toolkit no newer than the driver"
        }
        code::ILLEGAL_ADDRESS | code::LAUNCH_FAILED => {
            "an earlier kernel of this process faulted and the device is unusable for it; compute-sanitizer \
             finds the kernel"
        }
        code::SYSTEM_NOT_READY => {
            "start nvidia-fabricmanager (hosts with NVSwitch need it) or nvidia-persistenced"
        }
        code::SYSTEM_DRIVER_MISMATCH => {
            "the user-space driver and the kernel module differ: reboot or reinstall the driver"
        }
        code::STREAM_CAPTURE_UNSUPPORTED..=code::STREAM_CAPTURE_WRONG_THREAD => {
            "the call does not fit the stream capture that is going on"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::size_text;

    fn status(code: c_int) -> Status {
        Status { call: "cuMemCreate", code, since: 10020 }
    }

    #[test]
    fn texts_name_call_place_code_and_remedy() {
        let place = "device 3 (0000:1b:00.0)";
        assert!(status(code::SUCCESS).check(&place).is_ok());
        let error = status(code::SYSTEM_NOT_READY).check(&place).unwrap_err();
        assert_eq!(error.kind, ErrorKind::UnhandledCuda);
        for part in ["cuMemCreate failed on device 3 (0000:1b:00.0): ", "802", "; start nvidia-fabricmanager"]
        {
            assert!(error.text.contains(part), "{error}");
        }
    }

    #[test]
    fn a_missing_function_says_since_when_it_exists() {
        let error = status(MISSING).check(&"device 0").unwrap_err();
        assert!(error.text.contains("cuMemCreate") && error.text.contains("came with CUDA 10.2"), "{error}");
    }

    #[test]
    fn every_capture_error_has_the_capture_remedy() {
        for capture in 900..=908 {
            assert!(status(capture).error(&"device 0").text.contains("capture"));
        }
        assert!(remedy(899).is_none() && remedy(909).is_none());
    }

    #[test]
    fn sizes_and_versions_read_well() {
        assert_eq!(size_text(100), "100 bytes");
        assert_eq!(size_text(96 << 20), "96 MiB");
        assert_eq!(size_text((3 << 30) / 2), "1.5 GiB");
        assert_eq!(version_text(13000), "13.0");
        assert_eq!(version_text(12040), "12.4");
    }
}
