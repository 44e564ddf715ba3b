//! The arguments of Hawser's kernels: the types that kernels, planner and runtime share.
//!
//! Every type is `repr(C)` and has a twin in `kernels/cuda`; assertions pin sizes and offsets on both sides.
//! There is a module for each kind of kernel: the interpreter's image (at the root of the crate), the
//! arguments of fused kernels ([`fused`]) and those of the reduce kernel beside copy engines ([`reduce`]). A
//! [`KernelKey`] names a kernel and its symbol.
//!
//! ```
//! use hawser_kernels_abi::{DeviceOp, KernelKey};
//! use hawser_types::{DataType, Route};
//!
//! let key = KernelKey::new(DeviceOp::Sum, DataType::Float16, Route::LL128);
//! assert_eq!(key.symbol(), "hawser_sum_f16_ll128");
//! ```

#![forbid(unsafe_code)]

pub mod fused;
mod interpreter;
mod key;
pub mod reduce;

pub use interpreter::*;
pub use key::{DeviceOp, KernelKey, Variant, protocol_number};
