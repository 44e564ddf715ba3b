//! A child bootstrap from some ranks of a parent, without the help of the others: they may be dead, or not
//! take part. The lowest of the ranks, their **leader**, collects what each gives and sends it to all.
//!
//! A rank's part has a number. An answer counts for who finds the number of its own part in it: other answers
//! belong to a try that this rank has given up, or that failed before the leader got the part.

use std::time::{Duration, Instant};

use super::meet::PeerAddress;
use super::service::Listeners;
use super::split::{MEMBER, digest_of_members, read_card};
use super::wire::{
    decode_failure, decode_leading_parts, decode_parts, encode_failure, encode_parts, list_ranks, malformed,
};
use super::{Bootstrap, Settings, Tag, random};
use hawser_base::error::{Error, Result};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_oob::sha256;

/// The time for which a leader that fails tries to tell the others.
const TELL: Duration = Duration::from_secs(1);

/// The time for which a rank may be missing before it is looked for, and the longest time of the search: who
/// left at the same time as the centre could tell nobody.
const LOOK: Duration = Duration::from_millis(500);

/// The number of threads that answer at once, and of ranks that are not worth another thread.
const SIDE_BY_SIDE: usize = 8;
const FEW: usize = 8;

/// Bytes of the number of a part.
const NONCE: usize = 16;

/// Bytes in front of what a rank gives: the number, and [`Call::is_urgent`].
const HEADER: usize = NONCE + 1;

/// The time for which a rank that has left may still be heard: news of its end takes another connection than
/// what it said before.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// First byte of a part on its way to the leader.
const PART: u8 = 2;
/// First byte of an answer: what all gave follows.
const ALL: u8 = 1;
/// First byte of an answer: the numbers of the parts that the leader got follow, and the reason of its
/// failure.
const FAILED: u8 = 0;

/// A call by which ranks collect what each of them gives.
struct Call<'a> {
    members: &'a [u32],
    tag: u64,
    /// Ranks that call urgently do not wait for those that do not: these get an error and may call again.
    is_urgent: bool,
    /// A rank that has left or died gives nothing; otherwise everybody gets an error that names it.
    skips_absent: bool,
    mine: &'a [u8],
    wait: &'a Wait,
}

impl Bootstrap {
    /// Builds a bootstrap of `members`: parent ranks, in the order of the child's. All of them call it, and
    /// nobody else. It works as long as the members can be reached, whatever has become of the parent's
    /// operations. `is_urgent`: a member that calls it otherwise is told so, and has to call again.
    ///
    /// # Errors
    /// `InvalidArgument` when `members` lacks this rank, repeats one or names one out of range; `Remote` with
    /// the name of a member that has left or died, or calls it with other members; otherwise as
    /// [`Wait::check`].
    pub fn subset(&self, members: &[u32], is_urgent: bool, wait: &Wait) -> Result<Bootstrap> {
        self.check_members(members)?;
        let settings = Settings { comm_id: None, ..self.settings.clone() };
        let listeners = Listeners::open(&settings, self.near, self.own_world())?;
        let digest = digest_of_members(members);
        let nonce: [u8; NONCE] = random()?;
        let mine = &[&nonce[..], &[MEMBER], &digest, &listeners.address.encode()].concat();
        let call = Call { members, tag: Tag::Subset.word(), is_urgent, skips_absent: false, mine, wait };
        let cards = self.exchange(&call)?;
        let cards: Vec<Vec<u8>> = cards.into_iter().map(Option::unwrap_or_default).collect();
        let cards: Vec<_> = cards.iter().map(|card| card.split_at(card.len().min(NONCE))).collect();
        let peers = members.iter().zip(&cards).map(|(member, (_, card))| read_card(*member, card, &digest));
        let peers = peers.collect::<Result<Vec<PeerAddress>>>()?;
        // The nonce is fresh, and only ranks of the parent know its secret.
        let secret = sha256::mac(&self.secret, &[&b"hawser subset"[..], cards[0].0, &digest].concat());
        let place = members.iter().position(|member| *member == self.rank).unwrap_or(0);
        let label = format!("{} / {} of {} ranks", self.label, members.len(), self.nranks);
        let listeners = (members.len() > 1).then_some(listeners);
        let mut child =
            Bootstrap::assemble(place as u32, label, secret, peers, listeners, &self.settings, wait)?;
        child.near = self.near;
        Ok(child)
    }

    /// Every rank that is still there gives some bytes and gets those of all, by rank; `None` of a rank that
    /// has left or died. `tag` tells one use of it from another.
    ///
    /// # Errors
    /// As [`Wait::check`], and what made the leader fail.
    pub fn all_gather_of_present(&self, tag: Tag, mine: &[u8], wait: &Wait) -> Result<Vec<Option<Vec<u8>>>> {
        let members: &[u32] = &(0..self.nranks).collect::<Vec<_>>();
        self.exchange(&Call { members, tag: tag.word(), is_urgent: false, skips_absent: true, mine, wait })
    }

    /// Sends this rank's part to the leader and gets what all gave.
    fn exchange(&self, call: &Call<'_>) -> Result<Vec<Option<Vec<u8>>>> {
        let part = [&random::<NONCE>()?[..], &[call.is_urgent.into()], call.mine].concat();
        loop {
            let is_there = |member: &&u32| !call.skips_absent || !self.is_gone(**member);
            let leader = call.members.iter().filter(is_there).min().copied().unwrap_or(self.rank);
            let outcome = match leader == self.rank {
                true => self.lead(call, &part),
                false => self.follow(leader, call, &part),
            };
            match outcome {
                Err(_) if call.skips_absent && self.is_gone(leader) => {}
                outcome => {
                    let given = |part: &Vec<u8>| part.get(HEADER..).map(<[u8]>::to_vec);
                    return outcome.map(|parts| parts.iter().map(given).collect());
                }
            }
        }
    }

    /// The leader's part.
    fn lead(&self, call: &Call<'_>, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); call.members.len()];
        parts[call.place(self.rank)] = own.to_vec();
        let outcome = self.collect_from_others(call, &mut parts).and_then(|()| {
            let all = [&[ALL][..], &encode_parts(&parts)?].concat();
            self.answer_all(call, &all)
        });
        if let Err(error) = outcome {
            let wait = &Wait::new(AbortFlag::new(), Some(TELL));
            let failed = failure(&parts, &error)?;
            // Whoever cannot be told either has gone or meets its deadline.
            let call = Call { skips_absent: true, wait, ..*call };
            let _ = self.answer_all(&call, &failed);
            return Err(error);
        }
        Ok(parts)
    }

    /// Fills in what the others send; it stays empty for a rank that has gone.
    fn collect_from_others(&self, call: &Call<'_>, parts: &mut [Vec<u8>]) -> Result<()> {
        let Call { members, wait, .. } = *call;
        let mut open: Vec<usize> = (0..members.len()).filter(|at| members[*at] != self.rank).collect();
        let mut next_look = Instant::now() + LOOK;
        loop {
            self.take_what_came(call, &open, parts)?;
            if !call.skips_absent {
                self.check_presence(members)?;
            }
            open.retain(|at| parts[*at].is_empty() && !self.is_gone(members[*at]));
            if open.is_empty() {
                return Ok(());
            }
            let missing: Vec<u32> = open.iter().map(|at| members[*at]).collect();
            wait.check(|| format!("rank {} waits for {} ({})", self.rank, list_ranks(&missing), self.label))?;
            if Instant::now() >= next_look {
                missing.iter().for_each(|member| self.watch.look_for(*member, &wait.at_most(LOOK)));
                next_look = Instant::now() + LOOK;
            }
            self.shared.rest(wait.slice());
        }
    }

    /// Takes the parts that have come from members that are open.
    fn take_what_came(&self, call: &Call<'_>, open: &[usize], parts: &mut [Vec<u8>]) -> Result<()> {
        for at in open.iter().copied() {
            let member = call.members[at];
            // The newest: with it a rank has given an earlier try up. Answers are of one that led before.
            let came = std::iter::from_fn(|| self.take(member, call.tag));
            let Some(part) = came.filter_map(|message| part_of(&message)).last() else { continue };
            match part.get(NONCE).map(|urgent| *urgent == 1) {
                Some(urgent) if urgent == call.is_urgent => parts[at] = part,
                Some(true) => {
                    // It waits for this rank's next try.
                    self.shared.put(|inbox| inbox.push_message(member, call.tag, message_of(&part)));
                    return Err(Error::remote(format!("rank {member} does not wait for what is under way"))
                        .with_peer(member)
                        .remedy("all of these ranks call ncclCommShrink with the same flags"));
                }
                Some(false) => {
                    let text = format!("rank {} does not wait for what is under way", self.rank);
                    let mut met = vec![Vec::new(); call.members.len()];
                    met[at] = part;
                    let error = Error::remote(text)
                        .remedy("all of these ranks call ncclCommShrink with the same flags");
                    self.answer(member, call, &failure(&met, &error)?)?;
                }
                None => return Err(malformed(format!("the part of rank {member}"))),
            }
        }
        Ok(())
    }

    /// Sends an answer to all members. Most of the time goes by until they have taken the connection, so
    /// several are made at once.
    fn answer_all(&self, call: &Call<'_>, bytes: &[u8]) -> Result<()> {
        let answer =
            |members: &[u32]| members.iter().try_for_each(|member| self.answer(*member, call, bytes));
        let each = call.members.len().div_ceil(SIDE_BY_SIDE).max(FEW);
        let (first, rest) = call.members.split_at(each.min(call.members.len()));
        std::thread::scope(|scope| {
            let start = |members| {
                let thread = std::thread::Builder::new().name("hawser-leader".into());
                // Where there is no thread, this one does it.
                (members, thread.spawn_scoped(scope, move || answer(members)).ok())
            };
            let threads: Vec<_> = rest.chunks(each).map(start).collect();
            let outcomes = threads.into_iter().map(|(members, thread)| match thread {
                Some(thread) => thread.join().unwrap_or_else(|_| {
                    Err(Error::internal("a thread that answers the ranks of a subset panicked"))
                }),
                None => answer(members),
            });
            let own = answer(first);
            // All of them are told, whatever became of one.
            let outcomes: Vec<Result<()>> = outcomes.collect();
            outcomes.into_iter().fold(own, Result::and)
        })
    }

    /// Sends an answer to a member; not to this rank, nor to one that has gone where that is no error.
    fn answer(&self, member: u32, call: &Call<'_>, bytes: &[u8]) -> Result<()> {
        if member == self.rank || call.skips_absent && self.is_gone(member) {
            return Ok(());
        }
        match self.reach(member, call.tag, bytes, call.wait) {
            Err(error) if !call.skips_absent => Err(error),
            _ => Ok(()),
        }
    }

    /// Every other rank's part.
    fn follow(&self, leader: u32, call: &Call<'_>, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.reach(leader, call.tag, &message_of(own), call.wait)?;
        let place = call.place(self.rank);
        let watched = if call.skips_absent { std::slice::from_ref(&leader) } else { call.members };
        let mut absent_since = None;
        loop {
            // What came before its connection was closed is there now.
            let has_closed = self.shared.look(|inbox| inbox.open_connections(leader)) == Some(0);
            let answer = self.take(leader, call.tag);
            match answer.map(|answer| read_answer(&answer, call.members.len())).transpose()? {
                Some((parts, _)) if nonce_of(&parts[place]) != nonce_of(own) => continue,
                Some((_, Some(failure))) => {
                    return Err(failure.context(format!("rank {}: rank {leader} reports", self.rank)));
                }
                Some((parts, None)) => return Ok(parts),
                None => {}
            }
            if let Err(absence) = self.check_presence(watched) {
                let since = *absent_since.get_or_insert_with(Instant::now);
                if has_closed || since.elapsed() >= LAST_WORDS {
                    return Err(absence);
                }
            }
            call.wait.check(|| format!("rank {} waits for rank {leader} ({})", self.rank, self.label))?;
            self.shared.rest(call.wait.slice());
        }
    }

    /// Sends something to a rank. The error names it if it has left or died.
    fn reach(&self, peer: u32, tag: u64, bytes: &[u8], wait: &Wait) -> Result<()> {
        self.send(peer, tag, bytes, wait).map_err(|error| {
            self.watch.look_for(peer, &wait.at_most(LOOK));
            self.roster().absence(peer).unwrap_or(error)
        })
    }

    /// # Errors
    /// One of these ranks has left or died.
    fn check_presence(&self, members: &[u32]) -> Result<()> {
        let others = members.iter().filter(|member| **member != self.rank);
        others.filter_map(|member| self.roster().absence(*member)).next().map_or(Ok(()), Err)
    }

    /// Returns true if a rank has left or died. This one is there.
    fn is_gone(&self, rank: u32) -> bool {
        rank != self.rank && self.roster().absence(rank).is_some()
    }

    fn check_members(&self, members: &[u32]) -> Result<()> {
        let refuse = |what: &str| {
            Err(Error::invalid_argument(format!("rank {}: {} {what}", self.rank, list_ranks(members))))
        };
        if !members.contains(&self.rank) {
            return refuse("lacks the calling rank");
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        if !sorted.is_sorted_by(|a, b| a < b) || sorted.last().is_some_and(|last| *last >= self.nranks) {
            return refuse(&format!("are not ranks below {}, each once", self.nranks));
        }
        Ok(())
    }
}

impl Call<'_> {
    fn place(&self, rank: u32) -> usize {
        self.members.iter().position(|member| *member == rank).unwrap_or(0)
    }
}

/// The message that brings a part to the leader.
fn message_of(part: &[u8]) -> Vec<u8> {
    [&[PART][..], part].concat()
}

/// The part that a message brings; None if it is an answer.
fn part_of(message: &[u8]) -> Option<Vec<u8>> {
    message.strip_prefix(&[PART]).map(<[u8]>::to_vec)
}

/// The answer of a leader that has failed with these parts.
fn failure(parts: &[Vec<u8>], error: &Error) -> Result<Vec<u8>> {
    let met: Vec<Vec<u8>> = parts.iter().map(|part| nonce_of(part).to_vec()).collect();
    Ok([&[FAILED][..], &encode_parts(&met)?, &encode_failure(error)].concat())
}

/// Reads an answer: the parts, or their numbers and why the leader failed.
fn read_answer(answer: &[u8], count: usize) -> Result<(Vec<Vec<u8>>, Option<Error>)> {
    let (kind, rest) = answer.split_first().ok_or_else(|| malformed("an empty answer"))?;
    if *kind == ALL {
        return Ok((decode_parts(rest, count)?, None));
    }
    let (parts, failure) = decode_leading_parts(rest, count)?;
    Ok((parts, Some(decode_failure(failure))))
}

/// The number of a part; empty for a rank that gave nothing.
fn nonce_of(part: &[u8]) -> &[u8] {
    part.get(..NONCE).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn answers_survive_and_nonsense_is_refused(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..9),
            bytes: Vec<u8>, count in 0usize..9
        ) {
            let all = [&[ALL][..], &encode_parts(&parts).unwrap()].concat();
            prop_assert_eq!(read_answer(&all, parts.len()).unwrap(), (parts.clone(), None));
            let failed = failure(&parts, &Error::remote("no")).unwrap();
            prop_assert_eq!(part_of(&message_of(&bytes)), Some(bytes.clone()));
            prop_assert_eq!((part_of(&all), part_of(&failed)), (None, None));
            let (numbers, error) = read_answer(&failed, parts.len()).unwrap();
            prop_assert!(numbers.iter().zip(&parts).all(|(number, part)| nonce_of(part) == &number[..]));
            prop_assert_eq!(error.map(|error| error.into_text()), Some("no".into()));
            let _ = read_answer(&bytes, count);
        }
    }
}
