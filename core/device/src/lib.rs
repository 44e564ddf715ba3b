//! Hawser's devices: where buffers live and programs run.
//!
//! A device implements the traits of [`device`]; what runs on it knows nothing else of it. [`open`] opens
//! the one that is asked for.
//!
//! | module | has |
//! |---|---|
//! | [`device`] | the traits, and the words that they are in |
//! | [`cuda`] | NVIDIA GPUs, through the CUDA driver |
//! | [`host`] | the CPU: buffers are host memory, and the arithmetic that reduces them |
//! | [`pool`] | the memory of a device, with a limit |
//!
//! ```
//! use hawser_device::host::HostDevice;
//! use hawser_device::{Device, Streams};
//!
//! let device = HostDevice::new(0)?;
//! let (from, to) = (device.alloc(64)?, device.alloc(64)?);
//! let stream = device.stream()?;
//! device.copy_and_wait(&stream, to.addr, from.addr, 64)?;
//! assert!(device.kernels().is_none(), "the host runs programs on its own threads");
//! # Ok::<(), hawser_base::Error>(())
//! ```

pub mod cuda;
pub mod device;
pub mod host;
mod memory;
pub mod pool;

use std::sync::{Arc, OnceLock};

use hawser_base::env;
use hawser_base::error::{Error, Result};

pub use device::{
    Caps, Device, Event, Export, Exposed, FlatMaps, FusedKernelLaunch, Graph, Graphs, HeapKind, HostWords,
    Ipc, Kernels, MemoryOp, Moment, Multicast, MulticastObject, OwnedStream, Pieces, RecordNode, Row,
    SharedMemory, Stream, StreamState, StreamWords, Streams,
};
pub use memory::{Memory, size_text};

/// True if programs run on the CPU: no CUDA driver or GPU was found, or `HAWSER_DEVICE=host`.
pub fn is_host() -> bool {
    static HOST: OnceLock<bool> = OnceLock::new();
    *HOST.get_or_init(|| match env::settings().device.as_str() {
        "host" => true,
        "cuda" => false,
        _ => cuda::count().unwrap_or(0) == 0,
    })
}

/// Number of devices. The host device pretends to have as many as anyone asks for.
pub fn count() -> u32 {
    if is_host() { u32::MAX } else { cuda::count().unwrap_or(0) }
}

/// Ordinal of the calling thread's current device.
pub fn current() -> Result<u32> {
    if is_host() { Ok(0) } else { cuda::current() }
}

/// The number that NVML has for the GPU with this identity ([`Caps::id`]), whatever `CUDA_VISIBLE_DEVICES`
/// says; None if it does not know it.
pub fn nvml_index(id: &str) -> Option<u32> {
    if is_host() { None } else { cuda::nvml::index(id) }
}

/// Opens a device.
pub fn open(ordinal: u32) -> Result<Arc<dyn Device>> {
    if is_host() {
        return Ok(Arc::new(host::HostDevice::new(ordinal)?));
    }
    let count = cuda::count()?;
    if ordinal >= count {
        return Err(Error::invalid_argument(format!(
            "device {ordinal} does not exist: this process sees {count} GPUs"
        )));
    }
    cuda::open(ordinal)
}
