//! Collectives of the bootstrap: rank 0 gathers from all at once and sends everybody the result.
//!
//! Every collective has a number; a contribution with another number is an error, not a mix-up. After any
//! failure the star is broken for good: rank 0 tells all others the reason, a rank that gives up closes its
//! arm so that rank 0 notices at once.

use super::auth::Role;
use super::root::MOST_RANKS;
use super::search::Search;
use super::service::Inbox;
use super::stop::broadcast;
use super::wire::{
    Frame, FrameReader, Incoming, Kind, decode_failure, decode_parts, decode_ranks, encode_failure,
    encode_parts, encode_ranks, frame_bytes, list_ranks, malformed,
};
use super::{Bootstrap, lock};
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::wait::Wait;
use hawser_oob::stream::Stream;
use hawser_oob::wait::poll;
use rustix::event::{PollFd, PollFlags};
use std::time::{Duration, Instant};

/// The longest contribution of one rank to [`Bootstrap::all_gather`], in bytes.
pub const MAX_CONTRIBUTION: usize = 16 << 20;

/// The longest result, in bytes.
const MAX_RESULT: usize = 1 << 30;

/// The pause before those who wait are told again which ranks are missing.
const STATUS_PERIOD: Duration = Duration::from_millis(50);

/// This rank's part of the star.
#[derive(Default)]
pub(super) struct Star {
    ends: Ends,
    /// Collectives done.
    number: u64,
    /// The reason why no further collective can work.
    broken: Option<Error>,
}

#[derive(Default)]
enum Ends {
    /// The only rank.
    #[default]
    Alone,
    /// Rank 0: the arm to rank r is at r - 1.
    Hub(Vec<Stream>),
    /// Any other rank: the arm to rank 0.
    Arm(Stream),
}

impl Bootstrap {
    /// Every rank gives some bytes (at most [`MAX_CONTRIBUTION`], lengths may differ) and gets those of all,
    /// by rank.
    ///
    /// # Errors
    /// `Timeout` names the missing ranks, `Remote` the rank that left; then no further collective works.
    pub fn all_gather(&self, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>> {
        self.collect("all_gather", mine, wait)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    pub fn barrier(&self, wait: &Wait) -> Result<()> {
        self.collect("barrier", &[], wait).map(drop)
    }

    fn collect(&self, what: &str, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>> {
        if mine.len() > MAX_CONTRIBUTION {
            let text = format!("rank {}: {} bytes for {what} are over the limit", self.rank, mine.len());
            return Err(Error::invalid_argument(format!("{text} of {MAX_CONTRIBUTION}")));
        }
        let star = &mut *lock(&self.star);
        if let Some(error) = &star.broken {
            let text = format!("rank {}: {what} '{}' is impossible after: {error}", self.rank, self.label);
            return Err(Error::new(error.kind, text));
        }
        star.number += 1;
        let round = Round { what, label: &self.label, rank: self.rank, number: star.number, wait };
        let outcome = match &star.ends {
            Ends::Alone => return Ok(vec![mine.to_vec()]),
            Ends::Hub(arms) => round.as_hub(arms, mine),
            Ends::Arm(hub) => round.as_arm(hub, self.nranks as usize, mine),
        };
        outcome.inspect_err(|error| {
            star.broken = Some(error.clone());
            if let Ends::Arm(_) = star.ends {
                star.ends = Ends::Alone;
            }
        })
    }

    /// Builds the star: all ranks connect to rank 0, which waits for them.
    pub(super) fn form_star(&self, wait: &Wait) -> Result<Star> {
        let label = &self.label;
        let ends = if self.nranks == 1 {
            Ends::Alone
        } else if self.rank == 0 {
            Ends::Hub(self.wait_for_arms(wait)?)
        } else {
            let describe = || format!("rank {} connects to rank 0 in init '{label}'", self.rank);
            Ends::Arm(self.dial_rank_0(Role::Star, wait, &describe)?)
        };
        Ok(Star { ends, number: 0, broken: None })
    }

    /// Rank 0 waits for the arms of all other ranks. One that has met and then dies has no connection whose
    /// end would tell it: those that do not come are looked for.
    fn wait_for_arms(&self, wait: &Wait) -> Result<Vec<Stream>> {
        let mut search = Search::new(self.settings.heartbeat);
        loop {
            let missing = |inbox: &Inbox| -> Vec<u32> {
                (1..self.nranks).filter(|rank| !inbox.star.contains_key(rank)).collect()
            };
            let absent = self.shared.look(|inbox| Some(missing(inbox))).unwrap_or_default();
            let describe = || {
                let absent = list_ranks(&absent);
                format!("rank 0 waits for {absent} to connect in init '{}'", self.label)
            };
            // The inbox says as well why nothing will come any more.
            let look = self.shared.take(&wait.at_most(wait.slice()), &|_| describe(), |inbox| {
                let is_whole = inbox.star.len() + 1 >= self.nranks as usize && missing(inbox).is_empty();
                is_whole.then(|| Ok((1..self.nranks).filter_map(|rank| inbox.star.remove(&rank)).collect()))
            });
            match look {
                Err(error) if error.kind == ErrorKind::Timeout => wait.check(describe)?,
                done => return done,
            }
            if let Some((rank, why)) = search.step(&self.dialer, &absent) {
                self.watch.is_out_of_reach(rank, &why);
                let error = self.roster().absence(rank).unwrap_or_else(|| Error::remote(why));
                return Err(error.context(format!("rank 0 in init '{}'", self.label)));
            }
        }
    }
}

/// One collective.
struct Round<'a> {
    what: &'a str,
    label: &'a str,
    rank: u32,
    number: u64,
    wait: &'a Wait,
}

impl Round<'_> {
    fn as_hub(&self, arms: &[Stream], mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let outcome = self.gather(arms, mine).and_then(|parts| {
            let payload = encode_parts(&parts)?;
            if payload.len() > MAX_RESULT {
                let text = format!(
                    "{} '{}': the result of {} bytes is too long",
                    self.what,
                    self.label,
                    payload.len()
                );
                return Err(Error::invalid_argument(text));
            }
            let all: Vec<&Stream> = arms.iter().collect();
            let describe = |slow| format!("rank 0 sends {} '{}' to {slow} ranks", self.what, self.label);
            broadcast(&all, &frame_bytes(Kind::Result, self.number, &payload)?, self.wait, &describe)
                .map_err(|(at, error)| {
                    at.map_or(error.clone(), |at| self.left(at as u32 + 1, &error.text))
                })?;
            Ok(parts)
        });
        outcome.inspect_err(|error| self.tell_all(arms, Kind::Failure, &encode_failure(error)))
    }

    /// Reads one contribution from every arm, in the order they come.
    fn gather(&self, arms: &[Stream], mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut parts = vec![mine.to_vec()];
        parts.resize(arms.len() + 1, Vec::new());
        let mut open: Vec<u32> = (1..=arms.len() as u32).collect();
        let mut readers: Vec<FrameReader> = arms.iter().map(|_| FrameReader::new(MAX_CONTRIBUTION)).collect();
        let mut next_status = Instant::now() + STATUS_PERIOD;
        let mut told = Vec::new();
        loop {
            let arm = |rank: u32| &arms[rank as usize - 1];
            let mut fds: Vec<_> = open.iter().map(|rank| PollFd::new(arm(*rank), PollFlags::IN)).collect();
            poll(&mut fds, Some(self.wait.slice()))?;
            let ready: Vec<u32> = open
                .iter()
                .zip(&fds)
                .filter(|(_, fd)| !fd.revents().is_empty())
                .map(|(rank, _)| *rank)
                .collect();
            for rank in ready {
                match readers[rank as usize - 1].advance(arm(rank)) {
                    Ok(Incoming::Nothing) => {}
                    Ok(Incoming::Frame(frame)) => {
                        parts[rank as usize] = self.contribution(rank, frame)?;
                        open.retain(|other| *other != rank);
                    }
                    Ok(Incoming::Closed) => {
                        return Err(self.left_early(rank, &open, "its process ended or it gave up"));
                    }
                    Err(error) => return Err(self.left_early(rank, &open, &error.text)),
                }
            }
            if open.is_empty() {
                return Ok(parts);
            }
            let missing =
                || format!("rank 0 waits for {} in {} '{}'", list_ranks(&open), self.what, self.label);
            self.wait.check(missing)?;
            if Instant::now() >= next_status && told != open {
                self.tell_all(arms, Kind::Status, &encode_ranks(&open));
                next_status = Instant::now() + STATUS_PERIOD;
                told.clone_from(&open);
            }
        }
    }

    fn contribution(&self, rank: u32, frame: Frame) -> Result<Vec<u8>> {
        match frame.kind {
            Kind::Gather if frame.tag == self.number => Ok(frame.payload),
            kind => Err(malformed(format!(
                "rank {rank} sent {kind:?} number {} where {} '{}' is number {}",
                frame.tag, self.what, self.label, self.number
            ))
            .with_peer(rank)),
        }
    }

    fn left(&self, rank: u32, why: &str) -> Error {
        let text = format!("rank {rank} left during {} '{}' ({why})", self.what, self.label);
        Error::remote(text).with_peer(rank).remedy("see the error of that rank")
    }

    /// A rank that gave up may itself have waited for those who are still missing, so they are named too.
    fn left_early(&self, rank: u32, missing: &[u32], why: &str) -> Error {
        let others: Vec<u32> = missing.iter().copied().filter(|other| *other != rank).collect();
        match others.as_slice() {
            [] => self.left(rank, why),
            others => self.left(rank, &format!("{why}; {} had not come yet either", list_ranks(others))),
        }
    }

    /// A short frame for every arm that can take it at once.
    fn tell_all(&self, arms: &[Stream], kind: Kind, payload: &[u8]) {
        let Ok(bytes) = frame_bytes(kind, self.number, payload) else { return };
        arms.iter().for_each(|arm| {
            let _ = arm.write_some(&bytes, false);
        });
    }

    fn as_arm(&self, hub: &Stream, nranks: usize, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let waiting = |behind: &Option<String>| {
            let behind = behind.as_ref().map_or(String::new(), |ranks| format!(", which waits for {ranks},"));
            format!("rank {} waits for rank 0{behind} in {} '{}'", self.rank, self.what, self.label)
        };
        let mut behind = None;
        let sent = hub.write_frame(Kind::Gather, self.number, mine, self.wait, &|| waiting(&None));
        // Whoever hears of this failure has to know that it is about rank 0.
        let of_hub = |error: Error| if error.kind == ErrorKind::Remote { error.or_peer(0) } else { error };
        sent.map_err(|error| self.last_words(hub).unwrap_or(of_hub(error)))?;
        loop {
            let frame = hub.read_frame(MAX_RESULT, self.wait, &|| waiting(&behind)).map_err(of_hub)?;
            match frame.kind {
                Kind::Status if frame.tag == self.number => behind = Some(decode_ranks(&frame.payload)?),
                // Sent before our contribution of this round arrived, about an earlier round.
                Kind::Status => {}
                Kind::Failure => return Err(self.reported(&frame.payload)),
                Kind::Result if frame.tag == self.number => return decode_parts(&frame.payload, nranks),
                kind => return Err(malformed(format!("{kind:?} number {} from rank 0", frame.tag))),
            }
        }
    }

    /// The reason that rank 0 gave before it closed the connection, if it gave one.
    fn last_words(&self, hub: &Stream) -> Option<Error> {
        let now = self.wait.at_most(Duration::ZERO);
        loop {
            let frame: Frame = hub.read_frame(MAX_RESULT, &now, &|| String::new()).ok()?;
            if frame.kind == Kind::Failure {
                return Some(self.reported(&frame.payload));
            }
        }
    }

    /// Rank 0's failure as this rank's error. Its abort or deadline is not ours.
    fn reported(&self, payload: &[u8]) -> Error {
        let error = decode_failure(payload);
        let kind = match error.kind {
            ErrorKind::Aborted => ErrorKind::Remote,
            kind => kind,
        };
        Error::new(kind, error.into_text()).context(format!("rank {}: rank 0 reports", self.rank))
    }
}

// A status or a result always fits the frame of the longest world.
const _: () = assert!(4 * (MOST_RANKS as usize) < MAX_RESULT);
