//! The embedded kernels: found by symbol, loaded before the first launch, cached per device.
//!
//! With CUDA 12 images are libraries, loaded once per process and valid in all contexts; older
//! drivers load a module per context. [`Kernels::prepare`] makes the driver load the code for
//! real: lazy loading at launch time may wait for running kernels, and these wait for each other.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};

use cudarc::driver::sys::{CUfunc_st, CUfunction, CUfunction_attribute, CUlibrary, CUmodule};
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::log;
use hawser_kernels::FATBINS;
use hawser_kernels_abi::{DeviceOp, KernelKey, Variant};
use hawser_plan::DataType;
use hawser_plan::Route;
use hawser_plan::executor::{copy_engine, fused};
use hawser_plan::topology::DeviceKind;
use rustc_hash::FxHashMap;

use super::context::Context;
use super::result::{MISSING, Status, code, installed_version};
use crate::device::Caps;

/// Slots of the cache: operations × types × protocols × (one exchange, several), and messages that land.
const SLOTS: usize = 7 * 12 * PROTOCOLS * Variant::ALL.len() + 1;
/// Kinds of kernels.
const PROTOCOLS: usize = Route::ALL.len();

/// An image that was loaded. Images are `'static`, so their index names them.
#[derive(Clone, Copy)]
enum LoadedProgram {
    /// By `cuLibraryLoadData`.
    Library(CUlibrary),
    /// By `cuModuleLoadData`, in one context.
    Module(CUmodule),
}

// SAFETY: handles of the driver, usable from any thread.
unsafe impl Send for LoadedProgram {}

/// Libraries of this process by index in [`FATBINS`]; they stay for ever, as the images do.
static LIBRARIES: LazyLock<Mutex<FxHashMap<usize, LoadedProgram>>> = LazyLock::new(Mutex::default);

/// The kernels of one device.
pub struct Kernels {
    context: Arc<Context>,
    functions: Box<[AtomicPtr<CUfunc_st>; SLOTS]>,
    /// Modules of this context, for drivers without libraries. They end with the context.
    modules: Mutex<FxHashMap<usize, LoadedProgram>>,
    /// All kernels are loaded.
    all: Mutex<bool>,
}

impl Kernels {
    /// Nothing is loaded yet.
    pub fn new(context: &Arc<Context>) -> Self {
        Kernels {
            context: context.clone(),
            functions: Box::new([const { AtomicPtr::new(ptr::null_mut()) }; SLOTS]),
            modules: Mutex::default(),
            all: Mutex::default(),
        }
    }

    /// The loaded kernel; loads it if `prepare` was not called.
    #[inline]
    pub fn function(&self, key: KernelKey, caps: &Caps) -> Result<CUfunction> {
        let function = self.functions[slot(key)].load(Ordering::Acquire);
        if !function.is_null() {
            return Ok(function);
        }
        self.prepare(key, caps)?;
        Ok(self.functions[slot(key)].load(Ordering::Acquire))
    }

    /// Loads all kernels that the device can run, once.
    pub fn prepare_all(&self, caps: &Caps) -> Result<()> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if *all || FATBINS.is_empty() {
            return Ok(());
        }
        let is_used = |key: &KernelKey| key.op != DeviceOp::Copy || key.dtype == DataType::Uint8;
        let can_run = |key: &KernelKey| {
            key.route != Route::COPY_ENGINE || copy_engine::reduce_kernel::has_room(caps.kind)
        };
        keys()
            .filter(|key| is_built(key) && is_used(key) && can_run(key))
            .try_for_each(|key| self.prepare(key, caps))?;
        *all = true;
        Ok(())
    }

    /// Loads the kernel, which may allocate device memory.
    pub fn prepare(&self, key: KernelKey, caps: &Caps) -> Result<()> {
        if !self.functions[slot(key)].load(Ordering::Acquire).is_null() {
            return Ok(());
        }
        log_images();
        if FATBINS.is_empty() {
            return Err(Error::new(ErrorKind::Internal, "this library was built without CUDA kernels")
                .remedy(
                    "build it where nvcc is found (`make setup` gets it, NVCC or CUDA_HOME name it), or \
                         run on the CPU with HAWSER_DEVICE=host",
                ));
        }
        let _scope = self.context.enter_relaxed()?;
        let function = self.find(key, caps)?;
        self.load_code(function)?;
        if key.route == Route::COPY_ENGINE {
            self.allow_shared(function, copy_engine::reduce_kernel::SHARED_BYTES)?;
        }
        self.functions[slot(key)].store(function, Ordering::Release);
        Ok(())
    }

    /// Looks in the image that should have the symbol, then in all others.
    fn find(&self, key: KernelKey, caps: &Caps) -> Result<CUfunction> {
        let symbol = key.symbol();
        let c_symbol =
            CString::new(symbol.as_str()).map_err(|_| Error::internal("a kernel symbol with a zero byte"))?;
        let expected = FATBINS.iter().position(|(name, _)| *name == unit(&symbol));
        let others = (0..FATBINS.len()).filter(|index| Some(*index) != expected);
        let mut failure = None;
        for index in expected.into_iter().chain(others) {
            match self.load_image(index).and_then(|loaded| self.function_in(loaded, &c_symbol)) {
                Ok(function) => return Ok(function),
                Err(status) if status.code == code::NOT_FOUND => {}
                // What the expected image says is worth more than what the others say.
                Err(status) => failure = failure.or(Some((index, status))),
            }
        }
        Err(match failure {
            Some((index, status)) => self.load_error(index, status, &symbol, caps),
            None => Error::internal(format!("no embedded image has the kernel {symbol}: {}", images_text())),
        })
    }

    /// Loads an image once per process or, with old drivers, once per context.
    fn load_image(&self, index: usize) -> std::result::Result<LoadedProgram, Status> {
        let image: *const c_void = FATBINS[index].1.as_ptr().cast();
        let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = libraries.get(&index) {
            return Ok(*library);
        }
        let mut library = ptr::null_mut();
        let none: *mut *mut c_void = ptr::null_mut();
        // SAFETY: the image is static and complete; there are no options.
        let status = unsafe {
            self.context.driver.library_load_data(
                &mut library,
                image,
                none.cast(),
                none,
                0,
                none.cast(),
                none,
                0,
            )
        };
        if status.code != MISSING {
            let loaded = ok(status, LoadedProgram::Library(library))?;
            libraries.insert(index, loaded);
            return Ok(loaded);
        }
        drop(libraries);
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&index) {
            return Ok(*module);
        }
        let mut module = ptr::null_mut();
        // SAFETY: the image is static and complete.
        let loaded = ok(
            unsafe { self.context.driver.module_load_data(&mut module, image) },
            LoadedProgram::Module(module),
        )?;
        modules.insert(index, loaded);
        Ok(loaded)
    }

    fn function_in(
        &self,
        loaded: LoadedProgram,
        symbol: &CString,
    ) -> std::result::Result<CUfunction, Status> {
        let driver = self.context.driver;
        let mut function = ptr::null_mut();
        match loaded {
            LoadedProgram::Library(library) => {
                let mut kernel = ptr::null_mut();
                // SAFETY: a live library, a C string, a place for the handle.
                let status = unsafe { driver.library_kernel(&mut kernel, library, symbol.as_ptr()) };
                ok(status, ())?;
                // SAFETY: a live kernel, a place for the handle; our context is current.
                ok(unsafe { driver.kernel_function(&mut function, kernel) }, ())?;
            }
            LoadedProgram::Module(module) => {
                // SAFETY: a live module, a C string, a place for the handle.
                ok(unsafe { driver.module_function(&mut function, module, symbol.as_ptr()) }, ())?;
            }
        }
        Ok(function)
    }

    /// Ends lazy loading for one kernel.
    fn load_code(&self, function: CUfunction) -> Result<()> {
        // SAFETY: a live function of the current context.
        let status = unsafe { self.context.driver.func_load(function) };
        if status.code != MISSING {
            return status.check(&self.context);
        }
        // Before CUDA 12.4 asking for an attribute does it.
        let (mut value, attribute): (c_int, _) =
            (0, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
        // SAFETY: as above, and a place for the number.
        unsafe { self.context.driver.func_attribute(&mut value, attribute, function) }.check(&self.context)
    }

    /// Lets launches ask for so much shared memory, on multiprocessors that have as much of it as they can:
    /// one that is set to less does not take a block before all others on it are over.
    fn allow_shared(&self, function: CUfunction, bytes: u32) -> Result<()> {
        use CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MOST,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as PERCENT,
        };
        [(MOST, bytes as c_int), (PERCENT, 100)].into_iter().try_for_each(|(attribute, value)| {
            // SAFETY: a live function of the current context; the driver checks the number.
            unsafe { self.context.driver.func_set_attribute(function, attribute, value) }.check(&self.context)
        })
    }

    fn load_error(&self, index: usize, status: Status, symbol: &str, caps: &Caps) -> Error {
        let DeviceKind::Cuda { sm } = caps.kind else { return status.error(&self.context) };
        status.error(&self.context).context(format_args!("loading the kernel {symbol}")).remedy(format!(
            "the GPU is sm_{sm}, the driver supports {}, the image {} holds {}",
            installed_version(),
            FATBINS[index].0,
            image_text(index)
        ))
    }
}

/// `value` if the call succeeded.
fn ok<T>(status: Status, value: T) -> std::result::Result<T, Status> {
    if status.is_ok() { Ok(value) } else { Err(status) }
}

/// Everything that a launch can be named by, with or without a kernel.
fn keys() -> impl Iterator<Item = KernelKey> {
    use DeviceOp::{Copy, Max, Min, PreMulSum, Prod, Sum, SumDiv};
    let of_type = |op, dtype| {
        let kinds = Route::ALL.into_iter().flat_map(|route| Variant::ALL.map(|variant| (route, variant)));
        kinds.map(move |(route, variant)| KernelKey { op, dtype, route, variant })
    };
    [Copy, Sum, Prod, Max, Min, PreMulSum, SumDiv]
        .into_iter()
        .flat_map(move |op| DataType::ALL.into_iter().flat_map(move |dtype| of_type(op, dtype)))
        .chain([KernelKey::new(Copy, DataType::Uint8, Route::LANDING)])
}

/// True if there is such a kernel.
fn is_built(key: &KernelKey) -> bool {
    match key.route.is_fused() {
        _ if key.route == Route::HOST => false,
        _ if key.variant == Variant::Batch && key.route != Route::FUSED_LL => false,
        _ if key.variant == Variant::Nested && !fused::has_nested_kernel(key) => false,
        _ if key.route == Route::COPY_ENGINE => copy_engine::reduce_kernel::has_kernel(key.op, key.dtype),
        true => fused::has_kernel(key.op, key.dtype),
        false => key.op != DeviceOp::SumDiv || !key.dtype.is_float(),
    }
}

/// Position in the cache.
fn slot(key: KernelKey) -> usize {
    if key.route == Route::LANDING {
        return SLOTS - 1;
    }
    let one = (key.op as usize * 12 + key.dtype as usize) * PROTOCOLS + key.route.index();
    one * Variant::ALL.len() + key.variant as usize
}

/// The image that should hold a kernel, by the operation and type in its symbol
/// (`hawser_<op>_<type>_<protocol>`).
fn unit(symbol: &str) -> &'static str {
    let mut parts = symbol.split('_').skip(1);
    if symbol.ends_with("_dma") {
        return match (parts.next(), parts.next()) {
            (Some("copy"), _) => "r_copy",
            (_, Some("f32" | "f64")) => "r_float",
            (_, Some("f16" | "bf16" | "e4m3" | "e5m2")) => "r_half",
            _ => "r_integer",
        };
    }
    if symbol.contains("_sym") {
        return match (parts.next(), parts.next()) {
            (Some("copy"), _) => "x_copy",
            (_, Some("f32" | "f64")) => "x_float",
            (_, Some("f16")) => "x_half",
            (_, Some("bf16")) => "x_bfloat",
            _ => "x_integer",
        };
    }
    match (parts.next(), parts.next()) {
        (Some("copy"), _) => "k_copy",
        (_, Some("f32" | "f64")) => "k_float",
        (_, Some("f16" | "bf16")) => "k_half",
        (_, Some("e4m3" | "e5m2")) => "k_fp8",
        (_, Some("i8" | "i32" | "i64")) => "k_sint",
        _ => "k_uint",
    }
}

fn image_text(index: usize) -> String {
    let archs: Vec<String> =
        hawser_kernels::archs(FATBINS[index].1).iter().map(ToString::to_string).collect();
    if archs.is_empty() { "nothing readable".into() } else { archs.join(" ") }
}

fn images_text() -> String {
    let texts: Vec<String> =
        FATBINS.iter().enumerate().map(|(i, (name, _))| format!("{name} ({})", image_text(i))).collect();
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

/// Says once what is embedded.
fn log_images() {
    static SAID: Once = Once::new();
    SAID.call_once(|| log::info(log::Subsys::Init, || format!("embedded kernels: {}", images_text())));
}

#[cfg(test)]
mod tests {
    use rustc_hash::FxHashSet;

    use super::*;

    #[test]
    fn every_key_has_a_slot_of_its_own() {
        let slots: FxHashSet<usize> = keys().map(slot).collect();
        assert_eq!(slots.len(), SLOTS);
        assert!(slots.into_iter().all(|slot| slot < SLOTS));
    }

    #[test]
    fn units_follow_the_symbol() {
        let cases = [
            ("hawser_copy_u8_ll", "k_copy"),
            ("hawser_sum_f64_simple", "k_float"),
            ("hawser_max_bf16_ll128", "k_half"),
            ("hawser_min_e5m2_ll", "k_fp8"),
            ("hawser_sumdiv_i64_ll", "k_sint"),
            ("hawser_premul_u32_ll", "k_uint"),
            ("hawser_sum_bf16_symll128", "x_bfloat"),
            ("hawser_sum_u32_symsimple", "x_integer"),
            ("hawser_copy_u8_symll", "x_copy"),
            ("hawser_max_f16_symll_bundle", "x_half"),
            ("hawser_sum_e4m3_dma", "r_half"),
            ("hawser_copy_u8_dma", "r_copy"),
            ("hawser_sumdiv_i8_dma", "r_integer"),
        ];
        for (symbol, expected) in cases {
            assert_eq!(unit(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn embedded_images_have_the_units_that_are_expected() {
        let names: FxHashSet<&str> = FATBINS.iter().map(|(name, _)| *name).collect();
        let expected: FxHashSet<&str> = keys().map(|key| unit(&key.symbol())).collect();
        // Without a CUDA compiler the table is empty.
        assert!(names.is_empty() || expected.is_subset(&names), "{names:?} lack some of {expected:?}");
    }

    #[test]
    fn the_expected_unit_has_the_symbol() {
        for key in keys().filter(is_built) {
            let symbol = key.symbol();
            if let Some((name, image)) = FATBINS.iter().find(|(name, _)| *name == unit(&symbol)) {
                // Compressed images keep no names; where one has names it must have this one.
                let has = |text: &str| image.windows(text.len()).any(|window| window == text.as_bytes());
                assert!(has(&symbol) || !has("hawser_"), "{name} lacks {symbol}");
            }
        }
    }
}
