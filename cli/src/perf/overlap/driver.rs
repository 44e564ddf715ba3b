//! The few functions of the CUDA driver that a measurement needs besides the device's: events with times, and
//! a kernel.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, bail};
use hawser_runtime::Stream;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

type Status = c_int;
type Handle = *mut c_void;

/// `cuLaunchKernel`: function, grid, block, shared bytes, stream, parameters, extra.
type Launch = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;

/// The functions.
pub struct Driver {
    event_create: unsafe extern "C" fn(*mut Handle, c_uint) -> Status,
    event_record: unsafe extern "C" fn(Handle, Handle) -> Status,
    event_elapsed: unsafe extern "C" fn(*mut f32, Handle, Handle) -> Status,
    event_destroy: unsafe extern "C" fn(Handle) -> Status,
    module_load: unsafe extern "C" fn(*mut Handle, *const c_void) -> Status,
    module_function: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Status,
    launch: Launch,
}

/// Loads a library for the rest of the program: what it has begun may go on in threads of its own.
///
/// # Errors
/// The dynamic loader's reason for each name.
pub fn load(names: &[&str]) -> Result<&'static Library> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: loading a library of NVIDIA's runs its initialisers, which expect nothing.
        match unsafe { Library::open(Some(Path::new(name)), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(error) => {
                let reason = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
                reasons.push(reason);
            }
        }
    }
    bail!("cannot load {}: {}", names.join(" or "), reasons.join("; "))
}

/// A function of a library.
///
/// # Safety
/// `T` is the type of the function that the library has under this name.
pub unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    Ok(*found.with_context(|| format!("it has no {name}"))?)
}

impl Driver {
    /// The driver of this machine.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> Result<&'static Self> {
        let library = load(&["libcuda.so.1"])?;
        // SAFETY: the types are those of the driver's documentation.
        let driver = unsafe {
            Self {
                event_create: function(library, "cuEventCreate")?,
                event_record: function(library, "cuEventRecord")?,
                event_elapsed: function(library, "cuEventElapsedTime")?,
                event_destroy: function(library, "cuEventDestroy_v2")?,
                module_load: function(library, "cuModuleLoadData")?,
                module_function: function(library, "cuModuleGetFunction")?,
                launch: function(library, "cuLaunchKernel")?,
            }
        };
        Ok(Box::leak(Box::new(driver)))
    }

    /// So many events of the current context.
    pub fn events(&self, count: usize) -> Result<Events<'_>> {
        let mut events = Events { driver: self, list: Vec::with_capacity(count) };
        for _ in 0..count {
            let mut event = ptr::null_mut();
            // SAFETY: valid for a handle; a context is current.
            check(unsafe { (self.event_create)(&mut event, 0) }, "cuEventCreate")?;
            events.list.push(event);
        }
        Ok(events)
    }

    /// A kernel of an image, which stays loaded in the current context.
    pub fn kernel(&'static self, image: &'static [u8], name: &CStr) -> Result<Kernel> {
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: valid for a handle; the image is a whole fat binary and lives for ever.
        check(unsafe { (self.module_load)(&mut module, image.as_ptr().cast()) }, "cuModuleLoadData")?;
        // SAFETY: valid for a handle; the module was loaded above.
        let status = unsafe { (self.module_function)(&mut function, module, name.as_ptr()) };
        check(status, "cuModuleGetFunction")?;
        Ok(Kernel { driver: self, function })
    }
}

/// Events, destroyed when dropped.
pub struct Events<'a> {
    driver: &'a Driver,
    list: Vec<Handle>,
}

impl Events<'_> {
    /// Puts an event on a stream.
    pub fn record(&self, index: usize, stream: Stream) -> Result<()> {
        // SAFETY: a live event; the caller's stream, of the same context.
        check(unsafe { (self.driver.event_record)(self.list[index], handle(stream)) }, "cuEventRecord")
    }

    /// Seconds from one event to another; both have happened.
    pub fn seconds(&self, from: usize, to: usize) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: live events; valid for a number.
        let status =
            unsafe { (self.driver.event_elapsed)(&mut milliseconds, self.list[from], self.list[to]) };
        check(status, "cuEventElapsedTime").map(|()| f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Events<'_> {
    fn drop(&mut self) {
        for event in &self.list {
            // SAFETY: a live event that nobody names any more.
            let _ = unsafe { (self.driver.event_destroy)(*event) };
        }
    }
}

/// A kernel.
pub struct Kernel {
    driver: &'static Driver,
    function: Handle,
}

impl Kernel {
    /// Puts a launch on a stream.
    ///
    /// # Safety
    /// `parameters` are addresses of what the kernel takes, and what those lead to lives until the stream has
    /// passed it.
    pub unsafe fn launch(
        &self,
        grid: (u32, u32),
        threads: u32,
        stream: Stream,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let parameters = parameters.as_mut_ptr();
        // SAFETY: a live function; the rest is the caller's promise.
        let status = unsafe {
            let none = ptr::null_mut();
            (self.driver.launch)(
                self.function,
                grid.0,
                grid.1,
                1,
                threads,
                1,
                1,
                0,
                handle(stream),
                parameters,
                none,
            )
        };
        check(status, "cuLaunchKernel")
    }
}

/// A stream as C knows it.
pub fn handle(stream: Stream) -> Handle {
    ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn check(status: Status, call: &str) -> Result<()> {
    if status != 0 {
        bail!("{call} failed: CUresult {status}");
    }
    Ok(())
}
