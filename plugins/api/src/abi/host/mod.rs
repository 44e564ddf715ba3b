//! The host's side of the boundary: the plain traits around what a library gave.

mod collnet;
mod env;
mod net;
mod profiler;
mod tuner;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abi_stable::std_types::{RStr, RVec};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::raw::{
    RawComponent, RawFigure, RawHost, RawHost_TO, RawHostBox, plain, plain_level, plain_subsys,
};
use crate::builtin::Component;
use crate::error::Result;
use crate::host::Log;

/// A component of a library; None for kinds that this host does not know.
pub fn component(raw: RawComponent) -> Result<Option<Component>> {
    Ok(Some(match raw {
        RawComponent::Net(raw) => Component::Net(Arc::new(net::LoadedNet { name: plain(raw.name())?, raw })),
        RawComponent::CollNet(raw) => {
            Component::CollNet(Arc::new(collnet::LoadedCollNet { name: plain(raw.name())?, raw }))
        }
        RawComponent::Tuner(raw) => {
            Component::Tuner(Arc::new(tuner::LoadedTuner { name: plain(raw.name())?, raw }))
        }
        RawComponent::Profiler(raw) => {
            Component::Profiler(Arc::new(profiler::LoadedProfiler { name: plain(raw.name())?, raw }))
        }
        RawComponent::Env(raw) => Component::Env(Arc::new(env::LoadedEnv::new(raw)?)),
        #[cfg(feature = "next")]
        RawComponent::Next(_) => return Ok(None),
    }))
}

/// The host's log as plugins see it.
struct HostSide(Log);

impl RawHost for HostSide {
    fn line(&self, level: u32, subsys: u64, text: RStr<'_>) {
        let write = || self.0.line(plain_level(level), plain_subsys(subsys), text.as_str());
        let _ = catch_unwind(AssertUnwindSafe(write)); // a lost line is better than a dead process
    }

    fn stress(&self, what: RStr<'_>) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.stress(what.as_str()))); // as above
    }

    fn count(&self, net: RStr<'_>, rail: RStr<'_>, what: RStr<'_>, by: u64) {
        let count = || self.0.count(net.as_str(), rail.as_str(), what.as_str(), by);
        let _ = catch_unwind(AssertUnwindSafe(count)); // as above
    }

    fn figures(&self) -> RVec<RawFigure> {
        let figures = catch_unwind(AssertUnwindSafe(|| self.0.figures())); // as above
        figures.unwrap_or_default().into_iter().map(RawFigure::from).collect()
    }
}

fn raw_host(log: &Log) -> RawHostBox {
    RawHost_TO::from_value(HostSide(log.clone()), TD_Opaque)
}
