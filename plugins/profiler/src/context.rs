//! A communicator that is watched: takes the host's calls, and sums up at the end.

use std::sync::{Arc, Mutex, PoisonError};

use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs,
};
use hawser_plugin::{Log, Result, Subsys};

use crate::count::Counts;
use crate::file::TraceFile;
use crate::follower::Follower;
use crate::watched::{Closed, Outlets, Watched};

/// A communicator, with or without a trace and figures.
pub struct Context {
    mask: EventMask,
    log: Log,
    label: String,
    events: Events,
}

/// The way that the events of a communicator go.
enum Events {
    /// They are counted.
    Counted(Mutex<Counts>),
    /// They are followed to their ends by a thread, which counts them too.
    Followed(Arc<Watched>, Arc<Follower>),
}

impl Context {
    /// `number` tells the communicators of this process apart.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn new(
        config: &ProfilerConfig,
        mask: EventMask,
        outlets: Outlets,
        (number, follower): (u64, &Arc<Follower>),
    ) -> Result<Self> {
        let id = config.comm_id;
        let name = config.comm_name.as_ref().map_or(String::new(), |name| format!(" {name:?}"));
        let label = format!("rank {} of {}, communicator{name} {id:#x}", config.rank, config.ranks);
        let events = match Watched::new(config, mask, outlets, number, &label) {
            None => Events::Counted(Mutex::default()),
            Some(watched) => {
                let watched = Arc::new(watched);
                follower.add(watched.clone())?;
                Events::Followed(watched, follower.clone())
            }
        };
        Ok(Self { mask, log: config.log.clone(), label, events })
    }
}

impl ProfilerContext for Context {
    fn mask(&self) -> EventMask {
        self.mask
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        match &self.events {
            Events::Counted(counts) => {
                counts.lock().unwrap_or_else(PoisonError::into_inner).add(&event.what);
                None
            }
            Events::Followed(watched, follower) => {
                let (handle, is_filling) = watched.start(event);
                if is_filling {
                    follower.call();
                }
                handle
            }
        }
    }

    fn stop(&self, event: EventHandle) {
        if let Events::Followed(watched, _) = &self.events {
            watched.stop(event);
        }
    }

    fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        if let Events::Followed(watched, _) = &self.events {
            watched.record(event, state, args);
        }
    }
}

/// Writes what is left and says what there was.
impl Drop for Context {
    fn drop(&mut self) {
        let mut text = format!("profiler: {}: ", self.label);
        match &self.events {
            Events::Counted(counts) => {
                text += &counts.lock().unwrap_or_else(PoisonError::into_inner).summary()
            }
            Events::Followed(watched, follower) => {
                let Closed { counts, dropped, is_written, lost } = watched.close(TraceFile::deadline());
                follower.remove(watched);
                text += &counts;
                if !is_written {
                    self.log.warn("profiler: the trace is not written yet, and is not waited for any longer");
                }
                if lost > 0 {
                    text += &format!("; {lost} lines of its file could not be written");
                }
                if dropped > 0 {
                    text += &format!("; {dropped} events are not in the trace: ask for fewer kinds");
                }
            }
        }
        self.log.info(Subsys::PROFILE, text);
    }
}
