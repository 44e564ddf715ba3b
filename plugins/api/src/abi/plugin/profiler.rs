//! Profiler plugins.

use std::sync::Arc;

use abi_stable::std_types::{RNone, ROption, RResult, RString};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::Shield;
use crate::abi::raw::profiler::{
    RawEvent, RawProfiler, RawProfilerConfig, RawProfilerContext, RawProfilerContext_TO,
    RawProfilerContextBox, RawStateArgs,
};
use crate::abi::raw::{RawError, plain_log};
use crate::profiler::{EventHandle, EventState, Profiler, ProfilerConfig, ProfilerContext};

impl RawProfiler for Shield<Arc<dyn Profiler>> {
    fn name(&self) -> RResult<RString, RawError> {
        self.call(|profiler| Ok(profiler.name().into()))
    }

    fn open(&self, raw: RawProfilerConfig) -> RResult<RawProfilerContextBox, RawError> {
        let log = plain_log(raw.host);
        self.guard.log_to(&log);
        let config = ProfilerConfig {
            comm_id: raw.comm_id,
            comm_name: raw.comm_name.into_option().map(String::from),
            nodes: raw.nodes,
            ranks: raw.ranks,
            rank: raw.rank,
            log,
        };
        self.call(|profiler| {
            let context = self.child(profiler.open(&config)?);
            Ok(RawProfilerContext_TO::from_value(context, TD_Opaque))
        })
    }
}

impl RawProfilerContext for Shield<Box<dyn ProfilerContext>> {
    fn mask(&self) -> u64 {
        self.call_or(0, |context| Some(context.mask().0))
    }

    fn start(&self, event: &RawEvent<'_>) -> ROption<u64> {
        self.call_or(RNone, |context| {
            let event = event.plain()?;
            Some(context.start(&event).map(|handle| handle.0).into())
        })
    }

    fn stop(&self, event: u64) {
        self.tell(|context| context.stop(EventHandle(event)));
    }

    fn record(&self, event: u64, state: u32, args: RawStateArgs) {
        let (event, state) = (EventHandle(event), EventState(state));
        self.tell(|context| context.record(event, state, args.into()));
    }
}
