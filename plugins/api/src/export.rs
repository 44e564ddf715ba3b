//! The macro that makes a library a plugin.

/// Exports plugins from a `cdylib`. Each line is a kind (`net`, `collnet`, `tuner`, `profiler`, `env`) and an
/// expression that makes an object with the trait of that kind; a kind may stand there several times. Hosts
/// find the library's name and version in the crate's manifest.
///
/// ```
/// use hawser_plugin::env::{Env, EnvContext};
/// use hawser_plugin::{Log, Result};
///
/// struct Fixed;
///
/// impl Env for Fixed {
///     fn name(&self) -> &str {
///         "fixed"
///     }
///     fn open(&self, _version: (u8, u8, u8), _log: &Log) -> Result<Box<dyn EnvContext>> {
///         Ok(Box::new(Fixed))
///     }
/// }
///
/// impl EnvContext for Fixed {
///     fn value(&self, name: &str) -> Option<String> {
///         (name == "NCCL_DEBUG").then(|| "INFO".to_owned())
///     }
/// }
///
/// hawser_plugin::export_plugin! { env: Fixed }
/// # fn main() {}
/// ```
///
/// Use it once per library, and in a crate that is nothing but the `cdylib`: the exported symbol would also
/// come along with a crate that is linked into something else.
#[macro_export]
macro_rules! export_plugin {
    ($($kind:ident : $make:expr),+ $(,)?) => {
        const _: () = {
            extern "C" fn components() -> $crate::abi::glue::Components {
                $crate::abi::glue::components(|| vec![$($crate::abi::glue::$kind($make)),+])
            }

            extern "C" fn root() -> $crate::abi::glue::RootResult {
                $crate::abi::glue::root(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), components)
            }

            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub static _1as_0lib_1header_0root_bmodule_bloader: $crate::abi::glue::LibHeader =
                $crate::abi::glue::header(root);
        };
    };
}
