//! The driver once initialised, and the contexts of its devices.
//!
//! Rules:
//! 1. The primary context is used, the one the CUDA runtime and PyTorch use, retained as long as a
//!    [`Context`] lives.
//! 2. The caller's current context is as it was after every call: [`Scope`] sets ours and puts the old one
//!    back.
//! 3. Calls that may allocate run in the relaxed capture mode, since any thread may be capturing.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUstreamCaptureMode};
use hawser_base::error::{Error, ErrorKind, Result};

use super::result::{MISSING, code};
use super::sys::{self, Driver};

/// The driver after `cuInit`, and the devices that this process sees.
pub struct Platform {
    /// The driver's functions.
    pub driver: &'static Driver,
    /// Handles by ordinal.
    pub devices: Vec<CUdevice>,
}

/// Initialises the driver on the first call. The error says what is missing and what to do.
pub fn platform() -> Result<&'static Platform> {
    static PLATFORM: OnceLock<Result<Platform>> = OnceLock::new();
    PLATFORM.get_or_init(Platform::load).as_ref().map_err(Error::clone)
}

impl Platform {
    fn load() -> Result<Self> {
        let driver = sys::driver().map_err(|why| {
            Error::new(ErrorKind::System, format!("no CUDA driver: {why}"))
                .remedy("install NVIDIA's driver, or run on the CPU with HAWSER_DEVICE=host")
        })?;
        // SAFETY: flags must be 0.
        let init = unsafe { driver.init(0) };
        if init.code == code::NO_DEVICE {
            return Err(no_gpu());
        }
        init.check(&"this process")?;
        let mut count = 0;
        // SAFETY: `count` is valid for the one number that the driver writes.
        unsafe { driver.device_count(&mut count) }.check(&"this process")?;
        let mut devices = Vec::new();
        for ordinal in 0..count {
            let mut device: CUdevice = 0;
            // SAFETY: `device` is valid for the handle, the ordinal is below the count.
            unsafe { driver.device_at(&mut device, ordinal) }.check(&format_args!("device {ordinal}"))?;
            devices.push(device);
        }
        if devices.is_empty() { Err(no_gpu()) } else { Ok(Platform { driver, devices }) }
    }

    /// Handle of a device.
    pub fn device(&self, ordinal: u32) -> Result<CUdevice> {
        self.devices.get(ordinal as usize).copied().ok_or_else(|| {
            Error::invalid_argument(format!(
                "device {ordinal} does not exist: this process sees {} GPUs",
                self.devices.len()
            ))
        })
    }

    /// Ordinal of the calling thread's current device; 0 where nothing is current, as in the CUDA runtime.
    pub fn current(&self) -> Result<u32> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is valid for the handle.
        unsafe { self.driver.ctx_current(&mut context) }.check(&"the calling thread")?;
        if context.is_null() {
            return Ok(0);
        }
        let mut current: CUdevice = 0;
        // SAFETY: `current` is valid for the handle.
        unsafe { self.driver.ctx_device(&mut current) }.check(&"the calling thread")?;
        let ordinal = self.devices.iter().position(|device| *device == current);
        ordinal
            .map(|o| o as u32)
            .ok_or_else(|| Error::internal(format!("CUDA device handle {current} is not among the devices")))
    }

    /// One number about a device.
    pub fn attribute(&self, attribute: CUdevice_attribute, device: CUdevice) -> Result<i32> {
        let mut value: c_int = 0;
        // SAFETY: `value` is valid for the number.
        unsafe { self.driver.device_attribute(&mut value, attribute, device) }
            .check(&format_args!("device {device}"))?;
        Ok(value)
    }
}

fn no_gpu() -> Error {
    Error::new(ErrorKind::System, "the CUDA driver sees no GPU (CUDA_ERROR_NO_DEVICE)")
        .remedy("check nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU with HAWSER_DEVICE=host")
}

/// A device's primary context, retained until dropped.
pub struct Context {
    /// The driver's functions.
    pub driver: &'static Driver,
    /// Ordinal in this process.
    pub ordinal: u32,
    /// The driver's handle of the device.
    pub device: CUdevice,
    /// The context.
    pub raw: CUcontext,
    /// Identity of the device in all processes of the host.
    pub id: String,
}

// SAFETY: contexts may be current in and named by any number of threads at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device, which is created if nobody has used it yet.
    pub fn retain(ordinal: u32, id: String) -> Result<Arc<Self>> {
        let platform = platform()?;
        let device = platform.device(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is valid for the handle.
        unsafe { platform.driver.primary_ctx_retain(&mut raw, device) }
            .check(&format_args!("device {ordinal} ({id})"))?;
        Ok(Arc::new(Context { driver: platform.driver, ordinal, device, raw, id }))
    }

    /// Makes the context current until the scope is dropped.
    #[inline]
    pub fn enter(&self) -> Result<Scope> {
        let mut previous = ptr::null_mut();
        // SAFETY: `previous` is valid for the handle.
        unsafe { self.driver.ctx_current(&mut previous) }.check(self)?;
        let switched = previous != self.raw;
        if switched {
            // SAFETY: the context is retained as long as `self` lives.
            unsafe { self.driver.ctx_set_current(self.raw) }.check(self)?;
        }
        Ok(Scope { driver: self.driver, previous, switched, capture_mode: None, thread: PhantomData })
    }

    /// As [`Context::enter`], and lets the thread allocate although some stream is being captured.
    pub fn enter_relaxed(&self) -> Result<Scope> {
        let mut scope = self.enter()?;
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
        // SAFETY: `mode` is valid for reading the new and writing the old mode (an enum of C int size).
        let status = unsafe { self.driver.thread_exchange_capture_mode((&raw mut mode).cast()) };
        if status.code != MISSING {
            status.check(self)?;
            scope.capture_mode = Some(mode);
        }
        Ok(scope)
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({})", self.ordinal, self.id)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`; everything that lives in the context keeps an `Arc` of it.
        unsafe { self.driver.primary_ctx_release(self.device) }.warn(self);
    }
}

/// The time in which a context is current on this thread.
pub struct Scope {
    driver: &'static Driver,
    previous: CUcontext,
    switched: bool,
    capture_mode: Option<c_int>,
    /// The current context belongs to the thread, so must the scope.
    thread: PhantomData<*mut ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(mut mode) = self.capture_mode {
            // SAFETY: `mode` is the mode that the driver gave when the scope began.
            unsafe { self.driver.thread_exchange_capture_mode((&raw mut mode).cast()) }
                .warn(&"the calling thread");
        }
        if self.switched {
            // SAFETY: the context was current before (or null), its owner keeps it alive.
            unsafe { self.driver.ctx_set_current(self.previous) }.warn(&"the calling thread");
        }
    }
}

/// Text that the driver writes into a fixed buffer.
pub fn fixed_text(bytes: &[c_char]) -> String {
    let text: Vec<u8> = bytes.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_the_first_zero_or_at_the_end() {
        let text = |bytes: &[u8]| fixed_text(&bytes.iter().map(|b| *b as c_char).collect::<Vec<_>>());
        assert_eq!(text(b"H200\0junk"), "H200");
        assert_eq!(text(b"H200"), "H200");
        assert_eq!(text(b""), "");
    }

    #[test]
    fn the_platform_is_there_or_says_what_to_do() {
        match platform() {
            Ok(platform) => {
                assert!(!platform.devices.is_empty());
                assert!(platform.device(u32::MAX).unwrap_err().text.contains("does not exist"));
            }
            Err(error) => assert!(error.text.contains("HAWSER_DEVICE=host"), "{error}"),
        }
    }
}
