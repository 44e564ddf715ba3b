//! Numbers of collectives, and rules that count from one of them on.

use std::sync::Arc;

use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};

use super::{Choices, CommState};
use crate::rules_update::{Staged, Switch};

impl CommState {
    /// The number of a collective that begins now: all ranks count alike. Rules that count from there on are
    /// taken.
    #[inline]
    pub(crate) fn begin(&self) -> Result<u64> {
        let (number, asks) = self.epoch.begin();
        if asks {
            self.change(number)?;
        }
        Ok(number)
    }

    /// Takes the rules that count from a collective on, and waits where ranks have not decided yet.
    #[cold]
    fn change(&self, number: u64) -> Result<()> {
        let stop = || {
            let aborted = self.abort.is_raised() || self.peer_memory.control.is_aborted();
            let text = format!("rank {}: aborted while ranks agreed on a change of rules", self.rank);
            aborted.then(|| self.failure().unwrap_or_else(|| Error::new(ErrorKind::Aborted, text)))
        };
        let take = |change, at, staged: Staged| {
            let (tuners, digest) = match staged {
                Staged::Rules { tuners, digest } => (*tuners, digest),
                Staged::Registered => return self.begin_with_registered(number),
            };
            log::info(Subsys::Tuning, || {
                let (name, rank, rules) = (&self.name, self.rank, tuners.sources());
                format!(
                    "{name} rank {rank} op {number}: change {change} of the rules counts from here on: \
                     {rules}"
                )
            });
            self.times.want(tuners.wants().times);
            *lock(&self.choices)? = Choices::new(Arc::new(tuners));
            if let Some(participant) = &self.participant {
                participant.wake();
                participant.participant().remember(Switch { change, at, begun: number, digest });
            }
            Ok(())
        };
        let passed = self.epoch.pass(number, stop, take);
        let passed = passed.map_err(|error| match error.kind {
            ErrorKind::Remote => self.bootstrap.blame(error),
            _ => error,
        });
        passed.inspect_err(|error| {
            // This rank has not begun what the others wait for.
            if error.kind == ErrorKind::Remote {
                self.peer_memory.control.fail(error.clone());
            }
        })
    }

    /// Calls are chosen as if their buffers were registered from this collective on: ranks have agreed on it.
    fn begin_with_registered(&self, number: u64) -> Result<()> {
        if !self.lsa.use_registered() {
            return Ok(());
        }
        log::info(Subsys::Reg, || {
            let (name, rank) = (&self.name, self.rank);
            format!("{name} rank {rank} op {number}: registered buffers are used where they are from here on")
        });
        Ok(())
    }

    /// Has the thread for changes of rules unmap what launches still use, once they are over.
    pub fn free_retired_later(&self) {
        if let Some(participant) = self.participant.as_ref().filter(|_| self.lsa.has_retired()) {
            participant.wake();
        }
    }
}
