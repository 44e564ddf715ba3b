//! The host's way to a plugin library.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::{fmt, mem};

use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::{AbiInstabilityErrors, check_layout_compatibility};
use abi_stable::library::{AbiHeaderRef, LibHeader, LibraryError, RawLibrary, abi_header_from_raw_library};
use abi_stable::std_types::{RErr, ROk};

use super::host;
use super::raw::RawManifest_Ref;
use crate::builtin::Component;
use crate::error::Error;

/// The symbol that a plugin library exports.
pub const SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

/// A loaded plugin library.
#[derive(Clone)]
#[non_exhaustive]
pub struct Manifest {
    /// Name of the crate.
    pub name: String,
    /// Version of the crate.
    pub version: String,
    /// Version of this interface that it was built with.
    pub interface: String,
    /// The components of the library, in its order.
    pub components: Vec<Component>,
    /// Number of components of kinds that this host does not know.
    pub unknown: usize,
}

/// The reason why a library was refused.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadError {
    /// The sort of reason.
    pub kind: LoadErrorKind,
    /// One line for the user.
    pub text: String,
    /// Everything that is known, for those who debug; may have hundreds of lines. Empty if `text` says it
    /// all.
    pub detail: String,
}

/// Sorts of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// The dynamic loader refused it.
    Open,
    /// A library, but without a Hawser plugin.
    NotAPlugin,
    /// A plugin for another version of the interface.
    Mismatch,
    /// The plugin's own code failed.
    Failed,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LoadError {}

impl LoadError {
    fn new(kind: LoadErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), detail: String::new() }
    }
}

/// Loads a library and makes its components. Any number of libraries can be loaded; loading one twice makes
/// its components twice.
///
/// Blocking: as long as dlopen takes. Thread: any.
///
/// # Errors
/// A library that cannot be opened, is no plugin, or was built for another version of the interface; see
/// [`LoadErrorKind`].
pub fn load(path: &Path) -> Result<Manifest, LoadError> {
    let library = RawLibrary::load_at(path).map_err(|error| {
        let why = match &error {
            LibraryError::OpenError { err, .. } => err.to_string(),
            other => other.to_string(),
        };
        LoadError::new(LoadErrorKind::Open, one_line(&why))
    })?;
    // SAFETY: the reference is used while `library` lives, or after it was leaked.
    let header = unsafe { abi_header_from_raw_library(&library) }.map_err(|_| {
        let text = format!("{} is not a Hawser plugin: it lacks the symbol {SYMBOL}", path.display());
        LoadError::new(LoadErrorKind::NotAPlugin, text)
    })?;
    mem::forget(library); // from here on its code runs
    from_header(header, &path.display().to_string())
}

/// [`load`] for a library that is open, by the address of its [`SYMBOL`]. `label` names the library in
/// errors.
///
/// # Safety
/// The address is that of this symbol, and the library is never closed.
///
/// # Errors
/// As [`load`].
pub unsafe fn from_symbol(symbol: NonNull<c_void>, label: &str) -> Result<Manifest, LoadError> {
    // SAFETY: the symbol is a header or something that claims to be one, and the type is one plain reference
    // to it.
    let header = unsafe { mem::transmute::<NonNull<c_void>, AbiHeaderRef>(symbol) };
    from_header(header, label)
}

fn from_header(header: AbiHeaderRef, label: &str) -> Result<Manifest, LoadError> {
    let header = header.upgrade().map_err(|error| {
        let text = format!("{label} was built with another version of abi_stable than 0.11: rebuild it");
        LoadError { kind: LoadErrorKind::Mismatch, text, detail: error.to_string() }
    })?;
    check_layout(header, label)?;
    // SAFETY: the layouts were compared.
    let root = unsafe { header.init_root_module_with_unchecked_layout::<RawManifest_Ref>() };
    let root = root.map_err(|error| refused(header, label, &error))?;
    let failed = |error: Error| LoadError::new(LoadErrorKind::Failed, format!("{label}: the plugin {error}"));
    let raw = match root.components()() {
        ROk(raw) => raw,
        RErr(error) => return Err(failed(error.into())),
    };
    let (mut components, mut unknown) = (Vec::new(), 0);
    for raw in raw {
        let made = raw.into_enum().ok().map(host::component).transpose().map_err(failed)?.flatten();
        unknown += usize::from(made.is_none());
        components.extend(made);
    }
    let version = |header: &LibHeader| header.version_strings().version.to_string();
    Ok(Manifest {
        name: root.name().to_string(),
        version: root.version().to_string(),
        interface: version(header),
        components,
        unknown,
    })
}

/// True if host and plugin agree. The check takes a plugin that is newer than the host; the same check the
/// other way round takes an older one.
fn check_layout(header: &'static LibHeader, label: &str) -> Result<(), LoadError> {
    let root = header.root_mod_consts().name();
    if root.as_str() != "hawser_plugin" {
        let text = format!("{label} is not a Hawser plugin: it is one of {root}");
        return Err(LoadError::new(LoadErrorKind::NotAPlugin, text));
    }
    let ours = <RawManifest_Ref as StableAbi>::LAYOUT;
    let Some(theirs) = header.layout() else {
        let text = format!("{label} says nothing about its layout: build it with export_plugin!");
        return Err(LoadError::new(LoadErrorKind::Mismatch, text));
    };
    let Err(newer) = check_layout_compatibility(ours, theirs) else { return Ok(()) };
    let Err(_) = check_layout_compatibility(theirs, ours) else { return Ok(()) };
    let text = format!("{}: {}", versions(header, label), first_difference(&newer));
    Err(LoadError { kind: LoadErrorKind::Mismatch, text, detail: newer.to_string() })
}

fn refused(header: &LibHeader, label: &str, error: &LibraryError) -> LoadError {
    let detail = error.to_string();
    match error {
        LibraryError::IncompatibleVersionNumber { .. } | LibraryError::ParseVersionError(_) => {
            LoadError { kind: LoadErrorKind::Mismatch, text: versions(header, label), detail }
        }
        _ => {
            let text = format!("{label}: the plugin failed to start: {}", one_line(&detail));
            LoadError { kind: LoadErrorKind::Failed, text, detail }
        }
    }
}

fn versions(header: &LibHeader, label: &str) -> String {
    let theirs = header.version_strings().version;
    let ours = env!("CARGO_PKG_VERSION");
    format!(
        "{label} was built with hawser-plugin {theirs}, which does not fit {ours} of this library: rebuild it with \
         hawser-plugin {ours}"
    )
}

/// The first difference, and the innermost place of it.
fn first_difference(errors: &AbiInstabilityErrors) -> String {
    let Some(first) = errors.errors.iter().find(|error| !error.errs.is_empty()) else { return String::new() };
    let place = first.stack_trace.last().map(|place| place.found.to_string()).unwrap_or_default();
    let names = place
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("field_name:") || line.starts_with("type:"));
    let names: Vec<&str> = names.take(2).collect();
    let text = first.to_string();
    let stanza = text.split("Error:").nth(1).unwrap_or_default();
    format!("{} ({})", one_line(stanza), one_line(&names.join(" ")))
}

/// A text of several lines in one, not too long.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(160) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
#[allow(non_camel_case_types, dead_code)] // names of the macros
mod tests {
    use super::*;
    use crate::abi::glue;
    use abi_stable::library::{CheckTypeLayout, RootModule, RootModuleResult};
    use abi_stable::sabi_types::VersionStrings;

    #[repr(C)]
    #[derive(StableAbi)]
    #[sabi(kind(Prefix(prefix_ref = Other_Ref)), missing_field(panic))]
    struct Other {
        #[sabi(last_prefix_field)]
        name: u64,
    }

    /// A root module that calls itself ours and is not.
    impl RootModule for Other_Ref {
        abi_stable::declare_root_module_statics! {Other_Ref}
        const BASE_NAME: &'static str = "hawser_plugin";
        const NAME: &'static str = "hawser_plugin";
        const VERSION_STRINGS: VersionStrings = VersionStrings::new("2.0.0");
    }

    #[repr(C)]
    #[derive(StableAbi)]
    #[sabi(kind(Prefix(prefix_ref = Foreign_Ref)), missing_field(panic))]
    struct Foreign {
        #[sabi(last_prefix_field)]
        name: u64,
    }

    impl RootModule for Foreign_Ref {
        abi_stable::declare_root_module_statics! {Foreign_Ref}
        const BASE_NAME: &'static str = "viewer";
        const NAME: &'static str = "viewer";
        const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
    }

    extern "C" fn never() -> RootModuleResult {
        panic!("refused before it starts");
    }

    extern "C" fn fails() -> RootModuleResult {
        RErr(abi_stable::library::RootModuleError::Unwound)
    }

    extern "C" fn empty() -> RootModuleResult {
        glue::root("empty", "0.0.0", no_components)
    }

    extern "C" fn no_components() -> glue::Components {
        glue::components(|| panic!("an author's bug"))
    }

    fn header<M: RootModule>(root: extern "C" fn() -> RootModuleResult) -> &'static LibHeader {
        // SAFETY: the constructors above give nothing of another type.
        Box::leak(Box::new(unsafe { LibHeader::from_constructor::<M>(root, CheckTypeLayout::Yes) }))
    }

    fn error<T>(header: &'static T) -> LoadError {
        // SAFETY: it stands where a library's symbol would, and lives for ever.
        unsafe { from_symbol(NonNull::from(header).cast(), "libx.so") }.err().unwrap()
    }

    #[test]
    fn another_layout_is_told_in_one_line() {
        let error = error(header::<Other_Ref>(never));
        assert_eq!(error.kind, LoadErrorKind::Mismatch);
        let start = "libx.so was built with hawser-plugin 2.0.0, which does not fit 1.0.0 of this library: rebuild it";
        assert!(error.text.starts_with(start), "{error}");
        assert!(
            error
                .text
                .ends_with("mismatched type Expected: RawManifest Found: Other (field_name:0 type:Other)"),
            "{error}"
        );
        assert!(error.text.len() < 600 && !error.text.contains('\n'), "{error}");
        assert!(error.detail.lines().count() > 10, "{}", error.detail);
    }

    #[test]
    fn other_uses_of_abi_stable_are_no_plugins() {
        let error = error(header::<Foreign_Ref>(never));
        assert_eq!(error.kind, LoadErrorKind::NotAPlugin);
        assert!(error.text.contains("it is one of viewer"), "{error}");
    }

    #[test]
    fn headers_of_other_versions_are_refused() {
        let error = error(Box::leak(Box::new([0_u64; 64])));
        assert_eq!(error.kind, LoadErrorKind::Mismatch);
        assert!(error.text.contains("another version of abi_stable"), "{error}");
    }

    #[test]
    fn plugins_that_fail_to_start_are_errors() {
        let failed = error(header::<RawManifest_Ref>(fails));
        assert_eq!(failed.kind, LoadErrorKind::Failed);
        assert!(failed.text.contains("failed to start"), "{failed}");
        let panicked = error(header::<RawManifest_Ref>(empty));
        assert_eq!(panicked.kind, LoadErrorKind::Failed);
        assert_eq!(panicked.text, "libx.so: the plugin panicked while its components were made");
    }
}
