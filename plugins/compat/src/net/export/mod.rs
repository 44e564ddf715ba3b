//! A Rust net plugin as tables for NVIDIA's library.
//!
//! [`export_nccl_net!`](crate::export_nccl_net) defines the symbols `ncclNetPlugin_v8` to `_v12`; NCCL takes
//! the newest that it knows. All of them lead to one [`State`] and to the functions here:
//!
//! | C has | here it is |
//! |---|---|
//! | the context of v11 and v12 | a [`NetContext`](hawser_plugin::net::NetContext), opened by `init`, dropped
//! by `finalize` and the last connection |
//! | no context (v8 to v10) | one for the process, opened by the first `init`; v10 has one per traffic class,
//! opened by `connect` |
//! | listenComm, sendComm, recvComm | boxes; each holds its context open |
//! | request | a slot of its connection, as `test` gets nothing else |
//! | mhandle | the registration plus 1, so that none is NULL, which NCCL takes for "not registered" |
//!
//! NCCL registers memory in one thread while another one moves data over the same connection; the traits
//! promise one thread at a time, so each connection has a lock. A panic becomes `ncclInternalError` and
//! poisons the lock of its connection, which is not used any further.

mod connection;
mod context;
mod functions;
mod tables;

pub use super::abi::v8::Net as TableV8;
pub use super::abi::v9::Net as TableV9;
pub use super::abi::v10::Net as TableV10;
pub use super::abi::v11::Net as TableV11;
pub use super::abi::v12::Net as TableV12;
pub use context::State;
pub use tables::{v8, v9, v10, v11, v12};

/// Names the state behind a library's tables. Implemented by [`export_nccl_net!`](crate::export_nccl_net).
pub trait Export: 'static {
    /// The plugin and all that is open of it.
    fn state() -> &'static State;
}

/// A table in a static.
#[repr(transparent)]
pub struct Static<T>(pub T);

// SAFETY: tables hold functions and the address of a constant string, and nobody writes to them.
unsafe impl<T> Sync for Static<T> {}

/// Makes a Rust net plugin loadable by NVIDIA's library: defines the symbols `ncclNetPlugin_v8` to `_v12` in
/// a `cdylib`.
///
/// ```
/// use hawser_plugin::net::{Net, NetConfig, NetContext};
///
/// struct PigeonNet;
///
/// impl Net for PigeonNet {
///     fn name(&self) -> &str {
///         "Pigeon"
///     }
///
///     fn open(&self, _: &NetConfig) -> hawser_plugin::Result<Box<dyn NetContext>> {
///         Err(hawser_plugin::Error::internal("the pigeons are out"))
///     }
/// }
///
/// hawser_compat::export_nccl_net!("Pigeon", std::sync::Arc::new(PigeonNet));
/// # fn main() {}
/// ```
///
/// The expression, of type `Arc<dyn Net>`, is evaluated once, at the first call of a table's function. NCCL
/// reads the name before that, from data, and compares it with `NCCL_NET`, so it stands here; it must be what
/// [`Net::name`] gives. Without a name, it is that of the crate.
///
/// Versions say less the older they are. With v8, `NetProperties::max_p2p_bytes` is not passed on: messages
/// of up to 1 GiB come.
///
/// Link the library with `-z nodelete` if the plugin has threads: NCCL may close it when the last
/// communicator is gone.
///
/// [`Net::name`]: hawser_plugin::Net::name
#[macro_export]
macro_rules! export_nccl_net {
    ($name:literal, $plugin:expr $(,)?) => {
        $crate::export_nccl_net!(@tables concat!($name, "\0"), $plugin);
    };
    ($plugin:expr $(,)?) => {
        $crate::export_nccl_net!(@tables concat!(env!("CARGO_PKG_NAME"), "\0"), $plugin);
    };
    (@tables $name:expr, $plugin:expr) => {
        /// The net plugin of this library, for NCCL.
        pub enum ExportedNet {}

        impl $crate::net::export::Export for ExportedNet {
            fn state() -> &'static $crate::net::export::State {
                static STATE: $crate::net::export::State =
                    $crate::net::export::State::new($crate::net::export::terminated($name), || $plugin);
                &STATE
            }
        }

        $crate::export_nccl_net!(@table ncclNetPlugin_v8, TableV8, v8, $name);
        $crate::export_nccl_net!(@table ncclNetPlugin_v9, TableV9, v9, $name);
        $crate::export_nccl_net!(@table ncclNetPlugin_v10, TableV10, v10, $name);
        $crate::export_nccl_net!(@table ncclNetPlugin_v11, TableV11, v11, $name);
        $crate::export_nccl_net!(@table ncclNetPlugin_v12, TableV12, v12, $name);
    };
    (@table $symbol:ident, $table:ident, $make:ident, $name:expr) => {
        /// The table that NCCL looks for.
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static $symbol: $crate::net::export::Static<$crate::net::export::$table> =
            $crate::net::export::Static($crate::net::export::$make::<ExportedNet>(
                $crate::net::export::terminated($name),
            ));
    };
}

/// A C string from a literal that ends in NUL.
#[doc(hidden)]
pub const fn terminated(text: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the name of a plugin has a NUL in it"),
    }
}
