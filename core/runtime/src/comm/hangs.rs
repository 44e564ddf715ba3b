//! Lets other ranks and programs ask a communicator how it is, and judges why nothing moves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hawser_base::error::Result;
use hawser_base::liveness::{End, Identity};
use hawser_base::log::{self, Subsys};
use hawser_kernels_abi::Report;
use rustc_hash::FxHashSet;

use super::counts::{self, Counted};
use crate::bootstrap::Question;
use crate::comm_state::CommState;
use crate::progress::decision;
use crate::progress::hang_watch::note_notice;
use crate::progress::journal::now_ms;
use crate::progress::members::{self, Member, Registered};
use crate::progress::operation::{Awaited, Waits};
use crate::progress::process_state::ProcessState;
use crate::progress::report::{CommReport, ProcessReport};
use crate::progress::stall::{NetRequest, Stall};
use crate::progress::verdict::{Evidence, Gone, HowGone, Verdict, verdict};
use crate::{ras, record};

/// The time that launches on a GPU may take to say whom they wait for, for each peer and in all.
const PATIENCE: [Duration; 2] = [Duration::from_millis(40), Duration::from_millis(700)];

/// A sweep of the proxy that takes so long is in a call of the net plugin.
const IN_A_CALL: Duration = Duration::from_millis(400);

/// The requests to the net that a report holds, and the peers without room besides.
const MOST_STALLS: [usize; 2] = [8, 16];

/// Other processes of the host about which an answer tells.
const MOST_NEIGHBOURS: usize = 64;

/// The longest answer that travels, in bytes.
const LONGEST: usize = 11 << 10;

/// Lets a communicator be asked, by its ranks and by other programs.
pub(super) fn let_be_asked(state: &Arc<CommState>) {
    let ras = Arc::new(Counted(Arc::downgrade(state)));
    let _ = state.counted.set(ras::Registered::new(ras));
    if state.topology.size() < 2 {
        return;
    }
    let (asked, told) = (Arc::downgrade(state), Arc::downgrade(state));
    let answer = move |question| match (asked.upgrade(), question) {
        (None, _) => Vec::new(),
        (Some(state), Question::Progress) => answer(&state),
        (Some(state), Question::Census) => counts::answer(&state),
    };
    let notice = move |from: u32, sentence: &str| {
        if let Some(state) = told.upgrade() {
            let (name, rank) = (&state.name, state.rank);
            log::info(Subsys::Coll, || format!("{name} rank {rank}: rank {from} says: {sentence}"));
            note_notice(&Asked(Arc::downgrade(&state)), sentence);
        }
    };
    state.bootstrap.on_ask(answer, notice);
    let _ = state.asked.set(Registered::new(Arc::new(Asked(Arc::downgrade(state)))));
}

/// A rank that can be asked.
struct Asked(Weak<CommState>);

impl Member for Asked {
    fn comm_id(&self) -> u64 {
        self.0.upgrade().map_or(0, |state| state.comm_id)
    }

    fn rank(&self) -> u32 {
        self.0.upgrade().map_or(0, |state| state.rank)
    }

    fn report(&self) -> Option<CommReport> {
        let state = self.0.upgrade()?;
        note_what_is_over(&state);
        state.journal.view().map(CommReport::of_view)
    }

    fn full_report(&self) -> Option<CommReport> {
        let state = self.0.upgrade()?;
        let mut report = self.report()?;
        if let Some(waits) = ask_kernels(&state, &report) {
            // What was called before the operation that waits is over: launches run in the order of the
            // calls.
            let waiting = report.operations.iter().find(|operation| operation.number == waits.number);
            if let Some(waiting) = waiting.filter(|_| !state.order.has_captures()) {
                state.journal.done(waiting.sequence - 1);
            }
            report = state.journal.view().map(CommReport::of_view)?;
            report.waits.push(waits);
        }
        report.stalls = stalls(&state);
        Some(report)
    }

    fn open(&self) -> Option<(u64, Duration)> {
        let report = self.report()?;
        let open = report.open()?;
        Some((open.sequence, Duration::from_millis(open.age_ms)))
    }

    fn judge(&self, limit: Duration) -> Option<Verdict> {
        let state = self.0.upgrade()?;
        let answers = state.bootstrap.ask(Question::Progress, limit);
        let reports = answers.iter().filter_map(|(_, bytes)| record::decode::<ProcessReport>(bytes));
        let roster = state.bootstrap.roster();
        let members = (0..).zip(roster.members()).map(|(rank, member)| {
            (rank, crate::progress::verdict::Member { host: member.host(), pid: member.pid })
        });
        let gone = |(rank, end, _)| match end {
            End::Left(how) => Gone { rank, end: HowGone::Left, how: format!("it has left ({how})") },
            End::Died(how) => Gone { rank, end: HowGone::Died, how: format!("it has died ({how})") },
            End::OutOfReach(how) => {
                Gone { rank, end: HowGone::OutOfReach, how: format!("it was found out of reach ({how})") }
            }
            End::Failed { text, because_of } => {
                Gone { rank, end: HowGone::Failed(because_of), how: format!("it has failed ({text})") }
            }
        };
        let evidence = Evidence {
            comm_id: state.comm_id,
            members: members.collect(),
            gone: roster.all().into_iter().map(gone).collect(),
            reports: reports.collect(),
        };
        Some(verdict(&evidence))
    }

    fn decide(&self, asked: &decision::Asked) -> Option<Result<decision::Told>> {
        Some(self.0.upgrade()?.decide(asked))
    }

    fn notify(&self, sentence: &str) {
        if let Some(state) = self.0.upgrade() {
            state.bootstrap.notify(sentence);
        }
    }
}

/// The requests that the net of this rank has not carried out, the oldest first: one of a kind for each peer,
/// and no more than a report holds.
fn stalls(state: &CommState) -> Vec<Stall> {
    let mut stalls = state.net.as_ref().map_or_else(Vec::new, |net| net.stalls(IN_A_CALL));
    stalls.sort_by_key(|stall| std::cmp::Reverse(stall.age_ms));
    let (mut seen, mut left) = (FxHashSet::default(), MOST_STALLS);
    stalls.retain(|stall| {
        let left = &mut left[usize::from(stall.request == NetRequest::NoRoom)];
        let is_kept = *left > 0 && seen.insert((stall.peer, stall.request));
        *left -= usize::from(is_kept);
        is_kept
    });
    stalls
}

/// Makes the answer of this rank.
fn answer(state: &Arc<CommState>) -> Vec<u8> {
    let Some(own) = Asked(Arc::downgrade(state)).full_report() else { return Vec::new() };
    let members = state.bootstrap.roster().members();
    let Some(identity) = members.get(state.rank as usize) else { return Vec::new() };
    let others = others(&own);
    let mut report = ProcessReport::of_rank(identity, own, others);
    report.neighbours = neighbours(identity, members);
    let mut bytes = record::encode(&report);
    // A record that is cut is none.
    while bytes.len() > LONGEST && (report.neighbours.pop().is_some() || report.comms.len() > 1) {
        if report.neighbours.is_empty() {
            report.comms.truncate(1.max(report.comms.len() / 2));
        }
        bytes = record::encode(&report);
    }
    bytes
}

/// The reports of the other communicators of this rank. Launches are asked as long as there is time.
fn others(own: &CommReport) -> Vec<CommReport> {
    let members = members::all();
    let ranks_here = members.iter().filter(|member| member.comm_id() == own.comm_id).count();
    let is_of_this_rank =
        |other: &CommReport| other.comm_id != own.comm_id && (ranks_here < 2 || other.world == own.world);
    let until = now_ms() + PATIENCE[1].as_millis() as u64 / 2;
    let report = |member: &Arc<dyn Member>| {
        let report = member.report().filter(is_of_this_rank)?;
        let is_asked = report.open().is_some() && now_ms() < until;
        if is_asked { member.full_report() } else { Some(report) }
    };
    members.iter().filter_map(report).collect()
}

/// Notes in the journal of a GPU what is over, if its stream is idle.
fn note_what_is_over(state: &Arc<CommState>) {
    let journal = &state.journal;
    let submitted = journal.last_submitted();
    if state.device.kernels().is_none() || journal.last_done() == submitted {
        return;
    }
    if !state.has_launches() {
        journal.done(submitted);
    }
}

/// Asks the launches under way on a GPU whom they wait for.
fn ask_kernels(state: &CommState, own: &CommReport) -> Option<Waits> {
    state.device.kernels()?;
    own.open()?;
    let until = now_ms() + PATIENCE[1].as_millis() as u64;
    let peers = (0..state.topology.size()).filter(|peer| *peer != state.rank);
    let mut peers = peers.take_while(|_| now_ms() < until);
    let report = peers.find_map(|peer| state.peer_memory.control.ask_who_waits_for(peer, PATIENCE[0]))?;
    Some(of_kernel(&report))
}

fn of_kernel(report: &Report) -> Waits {
    let Report { block, step, peer, what, op_number, .. } = *report;
    let awaited = match what {
        0 => Awaited::Data,
        1 => Awaited::Room,
        _ => Awaited::Channel,
    };
    Waits { number: op_number, peer, awaited, block, step, since_ms: 0 }
}

/// The states of the processes of other ranks of this host, by rank.
fn neighbours(own: &Identity, members: &[Identity]) -> Vec<(u32, ProcessState)> {
    let is_here = |member: &Identity| !member.is_same_process(own) && member.is_seen_here();
    let near = (0..).zip(members).filter(|(_, member)| is_here(member)).take(MOST_NEIGHBOURS);
    near.filter_map(|(rank, member)| Some((rank, ProcessState::of(member.pid)?))).collect()
}
