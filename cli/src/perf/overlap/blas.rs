//! cuBLAS, if the machine has it.

use std::ffi::{c_int, c_void};
use std::ptr;

use anyhow::{Result, bail};
use hawser_runtime::Stream;

use super::driver::{function, handle, load};

/// The names under which the library is looked for, the newest first.
const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"];
/// `CUDA_R_16BF`.
const BFLOAT16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_FLOAT: c_int = 68;
/// `CUBLAS_GEMM_DEFAULT`.
const DEFAULT: c_int = -1;

type Handle = *mut c_void;
/// `cublasGemmEx`: handle, whether A and B are transposed, rows, columns, inner, factor, A, its type and
/// leading dimension, the same of B, factor of C, the same of C, type of sums, algorithm.
type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// A handle of cuBLAS on one stream.
pub struct Blas {
    handle: Handle,
    gemm: GemmEx,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
}

impl Blas {
    /// For the current context.
    ///
    /// # Errors
    /// It is not there, or refuses this GPU.
    pub fn open(stream: Stream) -> Result<Self> {
        let library = load(&NAMES)?;
        let mut made = ptr::null_mut();
        // SAFETY: the types are those of cuBLAS's documentation.
        let (create, set_stream, gemm, destroy) = unsafe {
            (
                function::<unsafe extern "C" fn(*mut Handle) -> c_int>(library, "cublasCreate_v2")?,
                function::<unsafe extern "C" fn(Handle, Handle) -> c_int>(library, "cublasSetStream_v2")?,
                function::<GemmEx>(library, "cublasGemmEx")?,
                function::<unsafe extern "C" fn(Handle) -> c_int>(library, "cublasDestroy_v2")?,
            )
        };
        // SAFETY: valid for a handle; a context is current.
        check(unsafe { create(&mut made) }, "cublasCreate")?;
        let blas = Self { handle: made, gemm, destroy };
        // SAFETY: a live handle, and a stream of the current context.
        check(unsafe { set_stream(blas.handle, handle(stream)) }, "cublasSetStream")?;
        Ok(blas)
    }

    /// Puts C = A B on the stream: square bfloat16 matrices of `side` columns, which follow one another.
    ///
    /// # Safety
    /// The addresses are those of such matrices, alive until the stream has passed this.
    pub unsafe fn multiply(&self, side: u32, [a, b, c]: [u64; 3]) -> Result<()> {
        let (n, one, zero) = (side as c_int, 1.0f32, 0.0f32);
        let (alpha, beta): (*const f32, *const f32) = (&one, &zero);
        let at = |address: u64| ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        // SAFETY: a live handle; factors are read before the call returns; the rest is the caller's promise.
        let status = unsafe {
            (self.gemm)(
                self.handle,
                0,
                0,
                n,
                n,
                n,
                alpha.cast(),
                at(a),
                BFLOAT16,
                n,
                at(b),
                BFLOAT16,
                n,
                beta.cast(),
                at(c),
                BFLOAT16,
                n,
                COMPUTE_FLOAT,
                DEFAULT,
            )
        };
        check(status, "cublasGemmEx")
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: a live handle that nobody names any more.
        let _ = unsafe { (self.destroy)(self.handle) };
    }
}

fn check(status: c_int, call: &str) -> Result<()> {
    if status != 0 {
        bail!("{call} failed: cublasStatus_t {status}");
    }
    Ok(())
}
