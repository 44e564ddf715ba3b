//! The signals of networks in kernels, and what other ranks ask for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hawser_base::error::{Error, Result};

use super::Fetch;

/// The signals of a network: numbers that only this rank's host adds to, whoever asks for it.
pub trait Board: Send + Sync {
    /// All of them, context by context.
    fn signals(&self) -> &[AtomicU64];
}

/// The boards of a rank, and requests of other ranks that its thread for networks answers.
#[derive(Default)]
pub struct Boards {
    /// By the number of networks before.
    shown: BTreeMap<u64, Arc<dyn Board>>,
    /// Networks so far.
    made: u64,
    wanted: VecDeque<(u32, Fetch)>,
    got: Vec<u64>,
}

impl Boards {
    /// Shows the signals of a network.
    pub fn show(&mut self, number: u64, board: Arc<dyn Board>) {
        self.shown.insert(number, board);
        self.made = self.made.max(number + 1);
    }

    /// Takes them back.
    pub fn hide(&mut self, number: u64) {
        self.shown.remove(&number);
    }

    /// True for networks that were made, and may have gone.
    pub fn has_made(&self, number: u64) -> bool {
        number < self.made
    }

    /// Adds to a signal. False if the network is not made yet.
    ///
    /// # Errors
    /// `Remote`: there is no such signal.
    pub fn add(&self, number: u64, place: u32, value: u64) -> Result<bool> {
        let Some(board) = self.shown.get(&number) else {
            // One that has gone needs no signals.
            return Ok(self.has_made(number));
        };
        let signals = board.signals();
        let signal = signals.get(place as usize).ok_or_else(|| {
            Error::remote(format!("signal {place} of all contexts, but there are {}", signals.len()))
                .remedy("ask for the same signals and contexts on all ranks (ncclDevCommRequirements)")
        })?;
        signal.fetch_add(value, Ordering::Release);
        Ok(true)
    }

    /// Rank `from` wants bytes.
    pub fn want(&mut self, from: u32, fetch: Fetch) {
        self.wanted.push_back((from, fetch));
    }

    /// All that was wanted by a ticket has come.
    pub fn get(&mut self, ticket: u64) {
        self.got.push(ticket);
    }

    /// The oldest request of another rank.
    pub fn take_wanted(&mut self) -> Option<(u32, Fetch)> {
        self.wanted.pop_front()
    }

    /// True, once, if all that was wanted by a ticket has come.
    pub fn take_got(&mut self, ticket: u64) -> bool {
        let at = self.got.iter().position(|got| *got == ticket);
        at.map(|at| self.got.swap_remove(at)).is_some()
    }
}
