//! The root module of a plugin library: its name and a list of components.

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RResult, RStr, RVec};

use super::RawError;
use super::collnet::RawCollNetBox;
use super::env::RawEnvBox;
use super::net::RawNetBox;
use super::profiler::RawProfilerBox;
use super::tuner::RawTunerBox;

/// One thing that a library offers. Older hosts skip kinds that they do not know.
#[repr(u8)]
#[derive(StableAbi)]
#[sabi(kind(WithNonExhaustive(size = [usize; 16], align = usize, traits(Send, Sync))))]
pub enum RawComponent {
    Net(RawNetBox),
    CollNet(RawCollNetBox),
    Tuner(RawTunerBox),
    Profiler(RawProfilerBox),
    Env(RawEnvBox),
    /// An imagined addition, for the tests.
    #[cfg(feature = "next")]
    Next(u64),
}

/// The manifest: the one thing that a plugin library exports.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = RawManifest_Ref)), missing_field(panic))]
pub struct RawManifest {
    pub name: RStr<'static>,
    pub version: RStr<'static>,
    #[sabi(last_prefix_field)]
    pub components: extern "C" fn() -> RResult<RVec<RawComponent_NE>, RawError>,
    /// An imagined addition, for the tests.
    #[cfg(feature = "next")]
    #[sabi(missing_field(option))]
    pub motto: RStr<'static>,
}

impl RootModule for RawManifest_Ref {
    abi_stable::declare_root_module_statics! {RawManifest_Ref}
    const BASE_NAME: &'static str = "hawser_plugin";
    const NAME: &'static str = "hawser_plugin";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}
