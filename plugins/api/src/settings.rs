//! Settings of plugins that may be built in.

use std::ffi::OsString;
use std::sync::OnceLock;

static SOURCE: OnceLock<fn(&str) -> Option<OsString>> = OnceLock::new();

/// For the library: where [`setting`] looks from now on. The first source stays.
pub fn set_source(source: fn(&str) -> Option<OsString>) {
    let _ = SOURCE.set(source);
}

/// The value of a variable for a plugin that may be built in; an empty one counts as not set. Built in, it is
/// asked for where the library's own settings come from (environment, files, an env plugin); in a library of
/// its own the environment is all that a plugin has.
pub fn setting(name: &str) -> Option<OsString> {
    let value = match SOURCE.get() {
        Some(source) => source(name),
        None => std::env::var_os(name),
    };
    value.filter(|value| !value.is_empty())
}
