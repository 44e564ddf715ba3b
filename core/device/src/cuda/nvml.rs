//! Peers that CUDA does not show: GPUs hidden by `CUDA_VISIBLE_DEVICES`.
//!
//! Launchers often give each process one GPU. CUDA maps the memory of a hidden GPU all the same,
//! but only NVML (`libnvidia-ml.so.1`, "nvmlDeviceGetP2PStatus") says whether the two have a path.
//! NVML is asked only if the kernel module knows more GPUs than this process sees.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::query::PeerLink;

/// The folder in which NVIDIA's kernel module lists the GPUs of the host, one folder per bus id.
const KERNEL_LIST: &str = "/proc/driver/nvidia/gpus";
/// `nvmlGpuP2PCapsIndex_t`: loads, stores, NVLink.
const READ: c_int = 0;
const WRITE: c_int = 1;
const NVLINK: c_int = 2;

type Handle = *mut c_void;
type ByBusId = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type Index = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
type P2pStatus = unsafe extern "C" fn(Handle, Handle, c_int, *mut c_int) -> c_int;

/// Identity and link of the GPUs of this host that are not in `visible` and that the GPU `id` can
/// reach. Empty if nothing is hidden or nobody can tell.
pub fn hidden_peers(id: &str, visible: &[String]) -> Vec<(String, PeerLink)> {
    let hidden = hidden(kernel_list(), visible);
    // A MIG instance has no peers.
    if hidden.is_empty() || id.contains('/') {
        return Vec::new();
    }
    Nvml::open().map(|nvml| nvml.links(id, hidden)).unwrap_or_default()
}

/// NVML's number of the GPU `id`, which hidden GPUs count in, or of the GPU of a MIG instance.
pub fn index(id: &str) -> Option<u32> {
    let nvml = Nvml::open()?;
    let device = nvml.device(id.split('/').next()?)?;
    let of = nvml.function::<Index>("nvmlDeviceGetIndex")?;
    let mut index = 0;
    // SAFETY: a handle of this NVML session, and a place for the number.
    let code = unsafe { of(device, &mut index) };
    (code == 0).then_some(index)
}

fn kernel_list() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(KERNEL_LIST) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().to_ascii_lowercase()).collect()
}

fn hidden(all: Vec<String>, visible: &[String]) -> Vec<String> {
    let is_visible = |id: &String| visible.iter().any(|seen| seen.split('/').next() == Some(id));
    let mut hidden: Vec<String> = all.into_iter().filter(|id| !is_visible(id)).collect();
    hidden.sort();
    hidden
}

/// NVML, initialised until dropped.
struct Nvml {
    library: Library,
}

impl Nvml {
    fn open() -> Option<Self> {
        // SAFETY: NVML's initialisers have no preconditions.
        let library = unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_NOW | RTLD_LOCAL) }.ok()?;
        let nvml = Nvml { library };
        // SAFETY: takes nothing, may be called any number of times.
        let code =
            nvml.function::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2").map(|init| unsafe { init() });
        if code == Some(0) {
            return Some(nvml);
        }
        std::mem::forget(nvml); // not initialised, so there is nothing to shut down
        None
    }

    fn links(&self, id: &str, peers: Vec<String>) -> Vec<(String, PeerLink)> {
        let Some(this) = self.device(id) else { return Vec::new() };
        peers
            .into_iter()
            .filter_map(|peer| Some((self.link(this, self.device(&peer)?)?, peer)))
            .map(|(l, p)| (p, l))
            .collect()
    }

    fn device(&self, bus_id: &str) -> Option<Handle> {
        let by_bus_id = self.function::<ByBusId>("nvmlDeviceGetHandleByPciBusId_v2")?;
        let bus_id = CString::new(bus_id).ok()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a C string, and a place for the handle.
        let code = unsafe { by_bus_id(bus_id.as_ptr(), &mut handle) };
        (code == 0 && !handle.is_null()).then_some(handle)
    }

    fn link(&self, from: Handle, to: Handle) -> Option<PeerLink> {
        let status = self.function::<P2pStatus>("nvmlDeviceGetP2PStatus")?;
        let ok = |capability| {
            let mut answer: c_int = -1;
            // SAFETY: handles of this NVML session, and a place for the answer (an enum of C int size).
            let code = unsafe { status(from, to, capability, &mut answer) };
            code == 0 && answer == 0
        };
        if !(ok(READ) && ok(WRITE)) {
            return None;
        }
        Some(if ok(NVLINK) { PeerLink::NvLink } else { PeerLink::Pcie })
    }

    /// The function `name`, whose type the caller knows from nvml.h.
    fn function<F>(&self, name: &str) -> Option<Symbol<F>> {
        // SAFETY: the types above are nvml.h's of these names.
        unsafe { self.library.get(name.as_bytes()) }.ok()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(shutdown) = self.function::<unsafe extern "C" fn() -> c_int>("nvmlShutdown") {
            // SAFETY: balances the nvmlInit_v2 in `open`; NVML counts them.
            unsafe { shutdown() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_is_what_the_process_does_not_see() {
        let all = ["0000:2a:00.0", "0000:1b:00.0", "0000:3c:00.0"].map(String::from).to_vec();
        let visible = ["0000:1b:00.0", "0000:3c:00.0/mig-00ff"].map(String::from);
        assert_eq!(hidden(all, &visible), ["0000:2a:00.0"]);
    }

    #[test]
    fn nothing_is_known_of_a_gpu_that_does_not_exist() {
        assert_eq!(hidden_peers("ffff:ff:1f.7", &[]), []);
        assert_eq!(index("ffff:ff:1f.7"), None);
    }
}
