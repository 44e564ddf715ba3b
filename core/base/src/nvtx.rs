//! Ranges of NVTX around the calls of a program, for tools such as Nsight Systems.
//!
//! There are ranges only where a tool asks for them (`NVTX_INJECTION64_PATH`) and NVIDIA's library of NVTX is
//! found: that library loads the tool and hands it the ranges. Facts are from `nvToolsExt.h` of NVTX 3.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use hawser_compat::library::Library;

use crate::env;
use crate::log::{self, Subsys};

/// Names of NVIDIA's libraries that have NVTX's functions, newest first.
const LIBRARIES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];
/// The name that ranges stand under, as those of NCCL do.
const DOMAIN: &CStr = c"NCCL";
/// The room for the name of a range, with the zero at its end.
const LONGEST: usize = 64;

type CreateDomain = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The attributes of a range (`nvtxEventAttributes_v2`). A kind of 0 says that there is no such thing.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    colour_kind: i32,
    colour: u32,
    payload_kind: i32,
    reserved: i32,
    payload: u64,
    message_kind: i32,
    message: *const c_char,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// The kind of a message that is a text with a zero at its end (`NVTX_MESSAGE_TYPE_ASCII`).
const ASCII: i32 = 1;
/// The version of NVTX since which attributes have this form (`NVTX_VERSION`).
const VERSION: u16 = 2;

/// The functions of NVTX, and the domain of our ranges.
struct Nvtx {
    push: Push,
    pop: Pop,
    domain: *mut c_void,
    /// Keeps the functions loaded.
    _library: Option<Arc<Library>>,
}

// SAFETY: NVTX's functions and domains are for all threads.
unsafe impl Send for Nvtx {}
// SAFETY: as above.
unsafe impl Sync for Nvtx {}

static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();

/// Begins a range of the calling thread, where anybody wants to know. [`end`] must follow on this thread.
pub fn begin(name: &str) {
    if let Some(nvtx) = NVTX.get_or_init(open) {
        nvtx.begin(name);
    }
}

/// Ends the range that the calling thread has begun last.
pub fn end() {
    if let Some(Some(nvtx)) = NVTX.get() {
        nvtx.end();
    }
}

impl Nvtx {
    #[cold]
    fn begin(&self, name: &str) {
        let mut text = [0u8; LONGEST];
        for (to, from) in text[..LONGEST - 1].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let attributes = Attributes {
            version: VERSION,
            size: size_of::<Attributes>() as u16,
            category: 0,
            colour_kind: 0,
            colour: 0,
            payload_kind: 0,
            reserved: 0,
            payload: 0,
            message_kind: ASCII,
            message: text.as_ptr().cast(),
        };
        // SAFETY: the attributes have the form that they name and a text with an end; the tool copies both.
        unsafe { (self.push)(self.domain, &attributes) };
    }

    #[cold]
    fn end(&self) {
        // SAFETY: the domain is NVTX's own.
        unsafe { (self.pop)(self.domain) };
    }
}

/// Opens NVTX where a tool asks for ranges.
#[cold]
fn open() -> Option<Nvtx> {
    if env::settings().nvtx_disable || !env::has_nvtx_tool() {
        return None;
    }
    let found = LIBRARIES.into_iter().find_map(|name| functions(Library::open(Path::new(name)).ok()?));
    log::info(Subsys::Init, || match &found {
        Some(_) => "calls are ranges of NVTX in the domain NCCL".to_owned(),
        None => format!("calls are no ranges of NVTX: none of {} is found", LIBRARIES.join(", ")),
    });
    found
}

/// The functions of a library, and a domain of it.
fn functions(library: Arc<Library>) -> Option<Nvtx> {
    let address = |name: &str| library.data(name);
    let (create, push, pop) =
        (address("nvtxDomainCreateA")?, address("nvtxDomainRangePushEx")?, address("nvtxDomainRangePop")?);
    // SAFETY: functions of these names have these types in every version of NVTX from 2 on.
    let (create, push, pop) = unsafe {
        (
            transmute::<*const c_void, CreateDomain>(create),
            transmute::<*const c_void, Push>(push),
            transmute::<*const c_void, Pop>(pop),
        )
    };
    // SAFETY: the name is terminated.
    let domain = unsafe { create(DOMAIN.as_ptr()) };
    Some(Nvtx { push, pop, domain, _library: Some(library) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    unsafe extern "C" fn push(domain: *mut c_void, attributes: *const Attributes) -> c_int {
        // SAFETY: the pointer is what `begin` passes.
        let (name, attributes) = unsafe { (CStr::from_ptr((*attributes).message), &*attributes) };
        assert_eq!((attributes.version, attributes.size, attributes.message_kind), (2, 48, 1));
        let text = format!("{domain:?} {}", name.to_str().unwrap());
        HEARD.lock().unwrap().push(text);
        0
    }

    unsafe extern "C" fn pop(domain: *mut c_void) -> c_int {
        HEARD.lock().unwrap().push(format!("{domain:?} over"));
        0
    }

    #[test]
    fn ranges_have_names_and_ends() {
        let nvtx = Nvtx { push, pop, domain: 0x40 as *mut c_void, _library: None };
        nvtx.begin("ncclAllReduce");
        nvtx.end();
        nvtx.begin(&"x".repeat(100));
        let heard = HEARD.lock().unwrap();
        assert_eq!(heard[..2], ["0x40 ncclAllReduce", "0x40 over"]);
        assert_eq!(heard[2], format!("0x40 {}", "x".repeat(63)));
    }

    #[test]
    fn without_a_tool_there_is_no_range() {
        begin("ncclAllReduce");
        assert!(matches!(NVTX.get(), Some(None)));
        end();
    }
}
