//! The code that [`export_plugin!`](crate::export_plugin) expands to. It is not for direct use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abi_stable::library::{CheckTypeLayout, RootModuleResult};
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::std_types::{RErr, ROk, RStr, RVec};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::plugin::Shield;
use super::raw::collnet::RawCollNet_TO;
use super::raw::env::RawEnv_TO;
use super::raw::manifest::RawComponent_NE;
use super::raw::net::RawNet_TO;
use super::raw::profiler::RawProfiler_TO;
use super::raw::tuner::RawTuner_TO;
use super::raw::{RawComponent, RawManifest, RawManifest_Ref};
use crate::builtin::Component;
use crate::error::Error;
use crate::{CollNet, Env, Net, Profiler, Tuner};

pub use super::raw::RawError;
pub use abi_stable::library::LibHeader;
pub use abi_stable::library::RootModuleResult as RootResult;
pub use abi_stable::std_types::RResult;

/// The list of components as it crosses.
pub type Components = RResult<RVec<RawComponent_NE>, RawError>;

/// The header that hosts look for.
pub const fn header(root: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: `root` ends in [`root`] below, which gives a manifest.
    unsafe { LibHeader::from_constructor::<RawManifest_Ref>(root, CheckTypeLayout::Yes) }
}

/// The body of the library's entry.
pub fn root(
    name: &'static str,
    version: &'static str,
    components: extern "C" fn() -> Components,
) -> RootModuleResult {
    let manifest = RawManifest {
        name: RStr::from_str(name),
        version: RStr::from_str(version),
        components,
        #[cfg(feature = "next")]
        motto: RStr::from_str("newer"),
    };
    let manifest = abi_stable::prefix_type::PrefixRefTrait::to_prefix_ref(manifest.leak_into_prefix());
    // SAFETY: the result type erases what the reference is to; hosts cast it back after the layout check.
    ROk(unsafe { manifest.cast() })
}

/// The body of the manifest's function: runs the author's expressions.
pub fn components(make: impl FnOnce() -> Vec<Component>) -> Components {
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(made) => {
            let made = made.into_iter().map(|component| RawComponent_NE::new(raw(component)));
            #[cfg(feature = "next")]
            let made = made.chain([RawComponent_NE::new(RawComponent::Next(7))]);
            ROk(made.collect())
        }
        Err(payload) => {
            std::mem::forget(payload); // its destructor is the author's code
            RErr(Error::internal("panicked while its components were made").into())
        }
    }
}

fn raw(component: Component) -> RawComponent {
    match component {
        Component::Net(net) => RawComponent::Net(RawNet_TO::from_value(Shield::new(net), TD_Opaque)),
        Component::CollNet(net) => {
            RawComponent::CollNet(RawCollNet_TO::from_value(Shield::new(net), TD_Opaque))
        }
        Component::Tuner(tuner) => {
            RawComponent::Tuner(RawTuner_TO::from_value(Shield::new(tuner), TD_Opaque))
        }
        Component::Profiler(profiler) => {
            RawComponent::Profiler(RawProfiler_TO::from_value(Shield::new(profiler), TD_Opaque))
        }
        Component::Env(env) => RawComponent::Env(RawEnv_TO::from_value(Shield::new(env), TD_Opaque)),
    }
}

pub fn net(net: impl Net + 'static) -> Component {
    Component::Net(Arc::new(net))
}

pub fn collnet(collnet: impl CollNet + 'static) -> Component {
    Component::CollNet(Arc::new(collnet))
}

pub fn tuner(tuner: impl Tuner + 'static) -> Component {
    Component::Tuner(Arc::new(tuner))
}

pub fn profiler(profiler: impl Profiler + 'static) -> Component {
    Component::Profiler(Arc::new(profiler))
}

pub fn env(env: impl Env + 'static) -> Component {
    Component::Env(Arc::new(env))
}
