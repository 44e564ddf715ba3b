//! The power that a GPU draws: its energy counter through NVML, if the machine has it.

use std::ffi::{CString, c_char, c_int, c_ulonglong, c_void};
use std::ptr;
use std::time::Instant;

use anyhow::{Result, bail};

use super::driver::{function, load};

type Handle = *mut c_void;

/// A GPU's energy counter.
pub struct Meter {
    energy: unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int,
    device: Handle,
}

/// The counter at some time.
pub struct Reading {
    millijoules: u64,
    at: Instant,
}

impl Meter {
    /// Of the GPU with this PCI bus id.
    ///
    /// # Errors
    /// There is no NVML, or it does not know the GPU.
    pub fn open(bus_id: &str) -> Result<Self> {
        let library = load(&["libnvidia-ml.so.1"])?;
        // SAFETY: the types are those of NVML's documentation.
        let (init, by_bus_id, energy) = unsafe {
            (
                function::<unsafe extern "C" fn() -> c_int>(library, "nvmlInit_v2")?,
                function::<unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int>(
                    library,
                    "nvmlDeviceGetHandleByPciBusId_v2",
                )?,
                function::<unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int>(
                    library,
                    "nvmlDeviceGetTotalEnergyConsumption",
                )?,
            )
        };
        let name = CString::new(bus_id)?;
        let mut device = ptr::null_mut();
        // SAFETY: takes nothing.
        let begun = unsafe { init() };
        // SAFETY: a text that ends with a zero; valid for a handle.
        let found = if begun == 0 { unsafe { by_bus_id(name.as_ptr(), &mut device) } } else { begun };
        if found != 0 {
            bail!("NVML does not know {bus_id}: nvmlReturn_t {found}");
        }
        Ok(Self { energy, device })
    }

    /// The counter now; None if it cannot be read.
    pub fn read(&self) -> Option<Reading> {
        let mut millijoules = 0;
        // SAFETY: a live device; valid for the number.
        let status = unsafe { (self.energy)(self.device, &mut millijoules) };
        (status == 0).then(|| Reading { millijoules, at: Instant::now() })
    }
}

impl Reading {
    /// Mean watts since an earlier reading.
    pub fn watts_since(&self, earlier: &Self) -> f64 {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        self.millijoules.saturating_sub(earlier.millijoules) as f64 / 1e3 / seconds.max(1e-9)
    }
}
