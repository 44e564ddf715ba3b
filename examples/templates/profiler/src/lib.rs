//! A profiler that counts, for each collective of a communicator, how often it was called and for how many
//! elements, and writes the sums to the log when the communicator ends.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, Profiler, ProfilerConfig, ProfilerContext, What,
};
use hawser_plugin::{Log, Result, Subsys};

hawser_plugin::export_plugin! { profiler: Counter }

/// The plugin. It is made once.
struct Counter;

impl Profiler for Counter {
    fn name(&self) -> &str {
        "{{crate_name}}"
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        let communicator = config.comm_name.clone().unwrap_or_else(|| format!("{:x}", config.comm_id));
        let title = format!("{{crate_name}}: {communicator}, rank {} of {}", config.rank, config.ranks);
        Ok(Box::new(Counts { title, log: config.log.clone(), sums: Mutex::default() }))
    }
}

/// The plugin, opened for a communicator. Dropping it closes it.
struct Counts {
    title: String,
    log: Log,
    /// Calls and elements of each collective.
    sums: Mutex<BTreeMap<String, (u64, u64)>>,
}

impl ProfilerContext for Counts {
    fn mask(&self) -> EventMask {
        EventMask::COLL
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        if let What::Coll { func, count, .. } = event.what {
            // Several threads may report at once.
            let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            let (calls, elements) = sums.entry(func.to_owned()).or_default();
            *calls += 1;
            *elements = elements.saturating_add(count);
        }
        None // nothing more of this event is wanted
    }

    fn stop(&self, _: EventHandle) {}
}

impl Drop for Counts {
    fn drop(&mut self) {
        let sums = self.sums.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (function, (calls, elements)) in sums {
            let title = &self.title;
            self.log.info(Subsys::PROFILE, format!("{title}: {function} {calls} calls, {elements} elements"));
        }
    }
}

#[cfg(test)]
mod tests {
    hawser_plugin_testkit::profiler_suite!(std::sync::Arc::new(super::Counter));
}
