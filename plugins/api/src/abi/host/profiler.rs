//! Profiler plugins of libraries.

use abi_stable::std_types::{RString, RVec};

use super::raw_host;
use crate::abi::raw::plain;
use crate::abi::raw::profiler::{RawEvent, RawProfilerBox, RawProfilerConfig, RawProfilerContextBox};
use crate::error::Result;
use crate::profiler::{
    Event, EventHandle, EventMask, EventState, Profiler, ProfilerConfig, ProfilerContext, StateArgs,
};

pub struct LoadedProfiler {
    pub name: String,
    pub raw: RawProfilerBox,
}

impl Profiler for LoadedProfiler {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        let raw = plain(self.raw.open(RawProfilerConfig {
            comm_id: config.comm_id,
            comm_name: config.comm_name.clone().map(RString::from).into(),
            nodes: config.nodes,
            ranks: config.ranks,
            rank: config.rank,
            spare: 0,
            host: raw_host(&config.log),
            room: [0; 8],
            texts: RVec::new(),
        }))?;
        Ok(Box::new(LoadedContext(raw)))
    }
}

struct LoadedContext(RawProfilerContextBox);

impl ProfilerContext for LoadedContext {
    fn mask(&self) -> EventMask {
        EventMask(self.0.mask())
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        self.0.start(&RawEvent::from(event)).into_option().map(EventHandle)
    }

    fn stop(&self, event: EventHandle) {
        self.0.stop(event.0);
    }

    fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        self.0.record(event.0, state.0, args.into());
    }
}
