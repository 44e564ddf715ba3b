//! The CUDA driver's entry points, found at run time.
//!
//! Nothing links to `libcuda.so.1`: it is opened once, kept for ever, and asked for each function
//! by the version of its signature (`cuGetProcAddress`, `cudaTypedefs.h` lists the versions).
//! Types come from cudarc. Functions return a plain `c_int`, since a driver may know error codes
//! that the Rust enum does not.

use std::ffi::{CString, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::mem::ManuallyDrop;
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::*;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::result::{MISSING, Status};

/// File name of the driver library.
const LIBRARY: &str = "libcuda.so.1";

/// The driver's functions, loaded on the first call; the error says what is missing.
pub fn driver() -> Result<&'static Driver, &'static str> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().map_err(String::as_str)
}

/// Declares [`Driver`]: one field and one method per function. A method of an optional function
/// that this driver lacks answers [`MISSING`].
macro_rules! driver_table {
    (required { $($r:ident = $rs:ident @ $rv:literal ($($rp:ident: $rt:ty),*);)* }
     optional { $($o:ident = $os:ident @ $ov:literal ($($op:ident: $ot:ty),*);)* }) => {
        /// The driver's functions.
        pub struct Driver {
            error_name: Option<ErrorText>,
            error_string: Option<ErrorText>,
            $($r: unsafe extern "C" fn($($rt),*) -> c_int,)*
            $($o: Option<unsafe extern "C" fn($($ot),*) -> c_int>,)*
        }

        impl Driver {
            /// Fills the table from the functions that `lookup(exact name, version)` finds.
            ///
            /// # Safety
            /// `lookup` gives null or the function of that name with the signature of that version.
            unsafe fn resolve(lookup: impl Fn(&str, c_int) -> *mut c_void) -> Result<Self, String> {
                Ok(Driver {
                    error_name: optional(&lookup, "cuGetErrorName", 6000)
                        // SAFETY: the caller vouches for the signature.
                        .map(|p| unsafe { transmute::<*mut c_void, ErrorText>(p) }),
                    error_string: optional(&lookup, "cuGetErrorString", 6000)
                        // SAFETY: the caller vouches for the signature.
                        .map(|p| unsafe { transmute::<*mut c_void, ErrorText>(p) }),
                    $($r: {
                        let p = optional(&lookup, stringify!($rs), $rv)
                            .ok_or(concat!("the CUDA driver has no ", stringify!($rs), ": update it"))?;
                        // SAFETY: the caller vouches for the signature.
                        unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($rt),*) -> c_int>(p) }
                    },)*
                    $($o: optional(&lookup, stringify!($os), $ov).map(|p| {
                        // SAFETY: the caller vouches for the signature.
                        unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($ot),*) -> c_int>(p) }
                    }),)*
                })
            }

            $(
                /// The function of the CUDA driver API; its documentation applies.
                ///
                /// # Safety
                /// As the documentation of the driver API asks.
                #[allow(clippy::too_many_arguments)] // the driver's own
                #[inline]
                pub unsafe fn $r(&self, $($rp: $rt),*) -> Status {
                    // SAFETY: the caller keeps the driver's contract.
                    let code = unsafe { (self.$r)($($rp),*) };
                    Status { call: stringify!($rs), code, since: $rv }
                }
            )*
            $(
                /// The function of the CUDA driver API; its documentation applies. May be missing.
                ///
                /// # Safety
                /// As the documentation of the driver API asks.
                #[allow(clippy::too_many_arguments)] // the driver's own
                #[inline]
                pub unsafe fn $o(&self, $($op: $ot),*) -> Status {
                    let code = match self.$o {
                        // SAFETY: the caller keeps the driver's contract.
                        Some(function) => unsafe { function($($op),*) },
                        None => MISSING,
                    };
                    Status { call: stringify!($os), code, since: $ov }
                }
            )*
        }

        /// Compiles only if every signature equals cudarc's, which is generated from NVIDIA's header.
        #[cfg(test)]
        #[allow(dead_code)]
        fn signatures_equal_the_headers() {
            $(let _: unsafe fn($($rt),*) -> CUresult = cudarc::driver::sys::$rs;)*
            $(let _: unsafe fn($($ot),*) -> CUresult = cudarc::driver::sys::$os;)*
        }
    };
}

/// `cuGetErrorName`, `cuGetErrorString`; the code is not an enum here, any number may come.
type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

driver_table! {
    required {
        init = cuInit @ 2000 (flags: c_uint);
        driver_version = cuDriverGetVersion @ 2020 (version: *mut c_int);
        device_count = cuDeviceGetCount @ 2000 (count: *mut c_int);
        device_at = cuDeviceGet @ 2000 (device: *mut CUdevice, ordinal: c_int);
        device_name = cuDeviceGetName @ 2000 (name: *mut c_char, len: c_int, dev: CUdevice);
        device_total_mem = cuDeviceTotalMem_v2 @ 3020 (bytes: *mut usize, dev: CUdevice);
        device_attribute = cuDeviceGetAttribute @ 2000 (value: *mut c_int, attribute: CUdevice_attribute,
            dev: CUdevice);
        device_bus_id = cuDeviceGetPCIBusId @ 4010 (bus_id: *mut c_char, len: c_int, dev: CUdevice);
        device_can_access_peer = cuDeviceCanAccessPeer @ 4000 (can: *mut c_int, dev: CUdevice,
            peer: CUdevice);
        primary_ctx_retain = cuDevicePrimaryCtxRetain @ 7000 (ctx: *mut CUcontext, dev: CUdevice);
        primary_ctx_release = cuDevicePrimaryCtxRelease_v2 @ 11000 (dev: CUdevice);
        ctx_current = cuCtxGetCurrent @ 4000 (ctx: *mut CUcontext);
        ctx_set_current = cuCtxSetCurrent @ 4000 (ctx: CUcontext);
        ctx_device = cuCtxGetDevice @ 2000 (dev: *mut CUdevice);
        ctx_stream_priority_range = cuCtxGetStreamPriorityRange @ 5050 (least: *mut c_int,
            greatest: *mut c_int);
        ctx_enable_peer_access = cuCtxEnablePeerAccess @ 4000 (peer: CUcontext, flags: c_uint);
        mem_alloc = cuMemAlloc_v2 @ 3020 (ptr: *mut CUdeviceptr, bytes: usize);
        mem_free = cuMemFree_v2 @ 3020 (ptr: CUdeviceptr);
        mem_address_range = cuMemGetAddressRange_v2 @ 3020 (base: *mut CUdeviceptr, bytes: *mut usize,
            ptr: CUdeviceptr);
        mem_info = cuMemGetInfo_v2 @ 3020 (free: *mut usize, total: *mut usize);
        mem_host_alloc = cuMemHostAlloc @ 2020 (ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
        mem_free_host = cuMemFreeHost @ 2000 (ptr: *mut c_void);
        mem_host_register = cuMemHostRegister_v2 @ 6050 (ptr: *mut c_void, bytes: usize, flags: c_uint);
        mem_host_unregister = cuMemHostUnregister @ 4000 (ptr: *mut c_void);
        mem_host_device_pointer = cuMemHostGetDevicePointer_v2 @ 3020 (dev_ptr: *mut CUdeviceptr,
            ptr: *mut c_void, flags: c_uint);
        memset_d8_async = cuMemsetD8Async @ 3020 (dst: CUdeviceptr, value: c_uchar, n: usize,
            stream: CUstream);
        memcpy_htod_async = cuMemcpyHtoDAsync_v2 @ 3020 (dst: CUdeviceptr, src: *const c_void, bytes: usize,
            stream: CUstream);
        memcpy_async = cuMemcpyAsync @ 4000 (dst: CUdeviceptr, src: CUdeviceptr, bytes: usize,
            stream: CUstream);
        memcpy_dtoh_async = cuMemcpyDtoHAsync_v2 @ 3020 (dst: *mut c_void, src: CUdeviceptr, bytes: usize,
            stream: CUstream);
        pointer_attribute = cuPointerGetAttribute @ 4000 (data: *mut c_void, attribute: CUpointer_attribute,
            ptr: CUdeviceptr);
        ipc_mem_handle = cuIpcGetMemHandle @ 4010 (handle: *mut CUipcMemHandle, ptr: CUdeviceptr);
        ipc_open_mem_handle = cuIpcOpenMemHandle_v2 @ 11000 (ptr: *mut CUdeviceptr, handle: CUipcMemHandle,
            flags: c_uint);
        ipc_close_mem_handle = cuIpcCloseMemHandle @ 4010 (ptr: CUdeviceptr);
        stream_create_with_priority = cuStreamCreateWithPriority @ 5050 (stream: *mut CUstream,
            flags: c_uint, priority: c_int);
        stream_priority_range = cuCtxGetStreamPriorityRange @ 5050 (least: *mut c_int, greatest: *mut c_int);
        stream_destroy = cuStreamDestroy_v2 @ 4000 (stream: CUstream);
        stream_synchronize = cuStreamSynchronize @ 2000 (stream: CUstream);
        stream_query = cuStreamQuery @ 2000 (stream: CUstream);
        stream_wait_event = cuStreamWaitEvent @ 3020 (stream: CUstream, event: CUevent, flags: c_uint);
        event_create = cuEventCreate @ 2000 (event: *mut CUevent, flags: c_uint);
        event_record = cuEventRecord @ 2000 (event: CUevent, stream: CUstream);
        event_destroy = cuEventDestroy_v2 @ 4000 (event: CUevent);
        event_elapsed = cuEventElapsedTime @ 2000 (milliseconds: *mut f32, start: CUevent, end: CUevent);
        module_load_data = cuModuleLoadData @ 2000 (module: *mut CUmodule, image: *const c_void);
        module_function = cuModuleGetFunction @ 2000 (function: *mut CUfunction, module: CUmodule,
            name: *const c_char);
        func_attribute = cuFuncGetAttribute @ 2020 (value: *mut c_int, attribute: CUfunction_attribute,
            function: CUfunction);
        func_set_attribute = cuFuncSetAttribute @ 9000 (function: CUfunction,
            attribute: CUfunction_attribute, value: c_int);
        launch_kernel = cuLaunchKernel @ 4000 (function: CUfunction, grid_x: c_uint, grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream,
            params: *mut *mut c_void, extra: *mut *mut c_void);
    }
    optional {
        ctx_create = cuCtxCreate_v2 @ 3020 (ctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        ctx_pop = cuCtxPopCurrent_v2 @ 4000 (ctx: *mut CUcontext);
        launch_kernel_ex = cuLaunchKernelEx @ 11060 (config: *const CUlaunchConfig, function: CUfunction,
            params: *mut *mut c_void, extra: *mut *mut c_void);
        device_p2p_attribute = cuDeviceGetP2PAttribute @ 8000 (value: *mut c_int,
            attribute: CUdevice_P2PAttribute, src: CUdevice, dst: CUdevice);
        device_uuid = cuDeviceGetUuid @ 9020 (uuid: *mut CUuuid, dev: CUdevice);
        device_uuid_v2 = cuDeviceGetUuid_v2 @ 11040 (uuid: *mut CUuuid, dev: CUdevice);
        thread_exchange_capture_mode = cuThreadExchangeStreamCaptureMode @ 10010 (
            mode: *mut CUstreamCaptureMode);
        stream_capture_info = cuStreamGetCaptureInfo_v2 @ 11030 (stream: CUstream,
            status: *mut CUstreamCaptureStatus,
            id: *mut cuuint64_t, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode,
                n_dependencies: *mut usize);
        user_object_create = cuUserObjectCreate @ 11030 (object: *mut CUuserObject, data: *mut c_void,
            destroy: CUhostFn, references: c_uint, flags: c_uint);
        user_object_release = cuUserObjectRelease @ 11030 (object: CUuserObject, count: c_uint);
        graph_retain_user_object = cuGraphRetainUserObject @ 11030 (graph: CUgraph, object: CUuserObject,
            count: c_uint, flags: c_uint);
        stream_id = cuStreamGetId @ 12000 (stream: CUstream, id: *mut c_ulonglong);
        stream_priority = cuStreamGetPriority @ 5050 (stream: CUstream, priority: *mut c_int);
        stream_batch_mem_op = cuStreamBatchMemOp_v2 @ 11070 (stream: CUstream, count: c_uint,
            ops: *mut CUstreamBatchMemOpParams, flags: c_uint);
        stream_wait_value = cuStreamWaitValue32_v2 @ 11070 (stream: CUstream, addr: CUdeviceptr,
            value: cuuint32_t, flags: c_uint);
        launch_host_func = cuLaunchHostFunc @ 10000 (stream: CUstream, function: CUhostFn,
            data: *mut c_void);
        stream_begin_capture = cuStreamBeginCapture_v2 @ 10010 (stream: CUstream, mode: CUstreamCaptureMode);
        stream_end_capture = cuStreamEndCapture @ 10000 (stream: CUstream, graph: *mut CUgraph);
        graph_instantiate = cuGraphInstantiateWithFlags @ 11040 (exec: *mut CUgraphExec, graph: CUgraph,
            flags: c_ulonglong);
        graph_launch = cuGraphLaunch @ 10000 (exec: CUgraphExec, stream: CUstream);
        graph_exec_destroy = cuGraphExecDestroy @ 10000 (exec: CUgraphExec);
        graph_destroy = cuGraphDestroy @ 10000 (graph: CUgraph);
        graph_add_event_record = cuGraphAddEventRecordNode @ 11010 (node: *mut CUgraphNode, graph: CUgraph,
            dependencies: *const CUgraphNode, n_dependencies: usize, event: CUevent);
        graph_add_dependencies = cuGraphAddDependencies @ 10000 (graph: CUgraph, from: *const CUgraphNode,
            to: *const CUgraphNode, count: usize);
        graph_remove_dependencies = cuGraphRemoveDependencies @ 10000 (graph: CUgraph,
            from: *const CUgraphNode,
            to: *const CUgraphNode, count: usize);
        mem_create = cuMemCreate @ 10020 (handle: *mut CUmemGenericAllocationHandle, bytes: usize,
            prop: *const CUmemAllocationProp, flags: c_ulonglong);
        mem_release = cuMemRelease @ 10020 (handle: CUmemGenericAllocationHandle);
        mem_address_reserve = cuMemAddressReserve @ 10020 (ptr: *mut CUdeviceptr, bytes: usize,
            alignment: usize, addr: CUdeviceptr, flags: c_ulonglong);
        mem_address_free = cuMemAddressFree @ 10020 (ptr: CUdeviceptr, bytes: usize);
        mem_map = cuMemMap @ 10020 (ptr: CUdeviceptr, bytes: usize, offset: usize,
            handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
        mem_unmap = cuMemUnmap @ 10020 (ptr: CUdeviceptr, bytes: usize);
        mem_set_access = cuMemSetAccess @ 10020 (ptr: CUdeviceptr, bytes: usize,
            desc: *const CUmemAccessDesc, count: usize);
        mem_granularity = cuMemGetAllocationGranularity @ 10020 (granularity: *mut usize,
            prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
        mem_export = cuMemExportToShareableHandle @ 10020 (shareable: *mut c_void,
            handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong);
        mem_import = cuMemImportFromShareableHandle @ 10020 (handle: *mut CUmemGenericAllocationHandle,
            os_handle: *mut c_void, kind: CUmemAllocationHandleType);
        mem_retain = cuMemRetainAllocationHandle @ 11000 (handle: *mut CUmemGenericAllocationHandle,
            addr: *mut c_void);
        multicast_create = cuMulticastCreate @ 12010 (handle: *mut CUmemGenericAllocationHandle,
            prop: *const CUmulticastObjectProp);
        multicast_granularity = cuMulticastGetGranularity @ 12010 (granularity: *mut usize,
            prop: *const CUmulticastObjectProp, option: CUmulticastGranularity_flags);
        multicast_add_device = cuMulticastAddDevice @ 12010 (handle: CUmemGenericAllocationHandle,
            device: CUdevice);
        multicast_bind_addr = cuMulticastBindAddr @ 12010 (handle: CUmemGenericAllocationHandle,
            offset: usize, addr: CUdeviceptr, bytes: usize, flags: c_ulonglong);
        multicast_unbind = cuMulticastUnbind @ 12010 (handle: CUmemGenericAllocationHandle,
            device: CUdevice, offset: usize, bytes: usize);
        library_load_data = cuLibraryLoadData @ 12000 (library: *mut CUlibrary, code: *const c_void,
            jit_options: *mut CUjit_option, jit_values: *mut *mut c_void, n_jit: c_uint,
            library_options: *mut CUlibraryOption, library_values: *mut *mut c_void, n_library: c_uint);
        library_kernel = cuLibraryGetKernel @ 12000 (kernel: *mut CUkernel, library: CUlibrary,
            name: *const c_char);
        kernel_function = cuKernelGetFunction @ 12000 (function: *mut CUfunction, kernel: CUkernel);
        func_load = cuFuncLoad @ 12040 (function: CUfunction);
    }
}

impl Driver {
    /// Opens the library, which stays open for ever: threads and exit handlers of it keep running.
    fn load() -> Result<Self, String> {
        type ProcAddress =
            unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
        // SAFETY: the driver's initialisers may run at any time and place.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| format!("cannot load {LIBRARY}: {}", with_sources(&e)))?;
        // Never closed: what was looked up stays valid.
        let library = ManuallyDrop::new(library);
        // SAFETY: the signature is cuGetProcAddress_v2's of CUDA 12.0.
        let proc_address = unsafe { library.get::<ProcAddress>(b"cuGetProcAddress_v2\0") }.ok().map(|s| *s);
        let lookup = |exact: &str, version: c_int| {
            let mut found = ptr::null_mut();
            let mut symbol_status = 0;
            if let (Some(ask), Ok(base)) = (proc_address, CString::new(base_name(exact))) {
                // SAFETY: valid pointers; flag 0 asks for the legacy default stream.
                let code = unsafe { ask(base.as_ptr(), &mut found, version, 0, &mut symbol_status) };
                if code == 0 && !found.is_null() {
                    return found;
                }
            }
            // SAFETY: only the address is taken.
            unsafe { library.get::<*mut c_void>(exact.as_bytes()) }
                .map_or(ptr::null_mut(), |s| s.as_raw_ptr())
        };
        // SAFETY: the driver promises name and version; exact names are versioned too.
        unsafe { Driver::resolve(lookup) }
    }

    /// Name (`CUDA_ERROR_OUT_OF_MEMORY`) and description of an error code, if the driver knows it.
    pub fn error_texts(&self, code: c_int) -> Option<(String, String)> {
        Some((error_text(self.error_name?, code)?, error_text(self.error_string?, code)?))
    }
}

/// Asks the driver for one text.
fn error_text(ask: ErrorText, code: c_int) -> Option<String> {
    let mut text: *const c_char = ptr::null();
    // SAFETY: `text` is valid for the one pointer that the driver writes.
    if unsafe { ask(code, &mut text) } != 0 || text.is_null() {
        return None;
    }
    // SAFETY: the driver gave a static C string.
    Some(unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Null means that the driver lacks the function.
fn optional(lookup: &impl Fn(&str, c_int) -> *mut c_void, name: &str, version: c_int) -> Option<*mut c_void> {
    Some(lookup(name, version)).filter(|p| !p.is_null())
}

/// The form of a name that `cuGetProcAddress` wants: the name without its `_v2`, but with every other suffix.
fn base_name(exact: &str) -> &str {
    match exact.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) => base,
        _ => exact,
    }
}

/// The error and its sources: libloading keeps dlerror's text in the source.
fn with_sources(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_sources(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_suffixes_are_stripped() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuStreamWriteValue32"), "cuStreamWriteValue32");
        assert_eq!(base_name("cuThing_vector"), "cuThing_vector");
        assert_eq!(base_name("cuThing_v"), "cuThing_v");
    }

    #[test]
    fn a_missing_required_function_is_named() {
        // SAFETY: nothing is found, so nothing can be called.
        let error = unsafe { Driver::resolve(|_, _| ptr::null_mut()) }.err().unwrap();
        assert!(error.contains("cuInit"), "{error}");
    }

    #[test]
    fn a_missing_optional_function_is_a_status() {
        unsafe extern "C" fn never() -> c_int {
            unreachable!("not called")
        }
        let optional = ["cuMemCreate", "cuFuncLoad"];
        let lookup =
            |name: &str, _| if optional.contains(&name) { ptr::null_mut() } else { never as *mut c_void };
        // SAFETY: of these functions only the missing ones are called below.
        let driver = unsafe { Driver::resolve(lookup) }.unwrap();
        // SAFETY: the function is missing.
        let status = unsafe { driver.func_load(ptr::null_mut()) };
        assert_eq!((status.call, status.code, status.since), ("cuFuncLoad", MISSING, 12040));
    }
}
