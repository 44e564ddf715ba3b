//! The communicators and ranks of a job, as journals tell them. Pure.

use std::collections::BTreeMap;

use hawser_plan::{Collective, DataType};
use hawser_runtime::progress::operation::{Operation, Stage, What};
use hawser_runtime::progress::report::{CommReport, ProcessReport};
use hawser_runtime::progress::verdict::{Cause, Evidence, Verdict, of_meetings, verdict};
use serde::Serialize;

use super::figures::{self, Pool, Rail};

/// The time over which rates are taken, in milliseconds.
const WINDOW: u64 = 10_000;
/// An operation that is open for so long is worth a verdict, in milliseconds.
const LONG: u64 = 3_000;
/// The clock of journals has this grain, in milliseconds.
const GRAIN: u64 = 8;

/// The communicators that are seen at a moment.
#[derive(Serialize)]
pub struct Job {
    /// They, with the most ranks first.
    pub comms: Vec<Comm>,
    /// The number of processes.
    pub processes: usize,
    /// The rails of their hosts.
    pub rails: Vec<Rail>,
    /// The memory of their devices.
    pub pools: Vec<Pool>,
    /// Sentences about ranks that wait in init.
    pub joining: Vec<String>,
    /// True if files are looked at, which do not change.
    pub is_dead: bool,
}

/// A communicator.
#[derive(Serialize)]
pub struct Comm {
    /// Its name, or its number.
    pub name: String,
    /// The number of its ranks, seen or not.
    pub size: u32,
    /// The ranks that are seen, in order.
    pub ranks: Vec<Rank>,
    /// The sentence on why nothing moves, if nothing does.
    pub verdict: Option<Verdict>,
}

/// A rank.
#[derive(Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Its host and process.
    pub process: String,
    /// The kernel's word on the process.
    pub state: String,
    /// Collectives that it has called.
    pub called: u64,
    /// The operation that is open, or was last.
    pub operation: String,
    /// The stage of that.
    pub mood: Mood,
    /// An operation is open.
    pub is_open: bool,
    /// Milliseconds since the operation was called.
    pub age_ms: u64,
    /// Whom it waits for.
    pub waits_for: String,
    /// Operations in a second.
    pub rate: f64,
    /// Bus bandwidth over time, in bytes per second.
    pub busbw: f64,
    /// The bus bandwidth that the planner predicts for the same operations, one right after the other.
    pub predicted: Option<f64>,
    /// Milliseconds by which it comes after the first of its host, as a median; None for what the clock's
    /// grain hides.
    pub late_ms: Option<u64>,
}

/// The state of a rank, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mood {
    /// The verdict blames it.
    Guilty,
    /// Its process is stopped or held.
    Stopped,
    /// It has called and is not submitted.
    Called,
    /// It is in an operation.
    Busy,
    /// Nothing is open.
    Idle,
}

impl Comm {
    /// The rank that comes last, if one does.
    pub fn slowest(&self) -> Option<&Rank> {
        self.ranks.iter().filter(|rank| rank.late_ms.is_some()).max_by_key(|rank| rank.late_ms)
    }

    /// The mean bus bandwidth of the ranks that are seen.
    pub fn busbw(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.busbw).sum::<f64>() / self.ranks.len().max(1) as f64
    }

    /// The mean of the bus bandwidths that the planner predicts, of the ranks that know one.
    pub fn predicted(&self) -> Option<f64> {
        let known: Vec<f64> = self.ranks.iter().filter_map(|rank| rank.predicted).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    /// The mean number of operations in a second.
    pub fn rate(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.rate).sum::<f64>() / self.ranks.len().max(1) as f64
    }

    /// The longest time that an operation is open, in milliseconds.
    pub fn open_ms(&self) -> Option<u64> {
        self.ranks.iter().filter(|rank| rank.is_open).map(|rank| rank.age_ms).max()
    }
}

impl Job {
    /// The job that these processes are; `pid`: only communicators of that process.
    pub fn new(reports: Vec<ProcessReport>, pid: Option<u32>, is_dead: bool) -> Self {
        let mut comms: BTreeMap<u64, Vec<(&ProcessReport, &CommReport)>> = BTreeMap::new();
        for report in &reports {
            for comm in &report.comms {
                comms.entry(comm.comm_id).or_default().push((report, comm));
            }
        }
        let is_wanted = |ranks: &[(&ProcessReport, &CommReport)]| {
            pid.is_none_or(|pid| ranks.iter().any(|(report, _)| report.pid == pid))
        };
        let wanted = comms.into_iter().filter(|(_, ranks)| is_wanted(ranks));
        let mut comms: Vec<Comm> = wanted.map(|(id, ranks)| comm(id, ranks, &reports, is_dead)).collect();
        comms.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.name.cmp(&b.name)));
        let joining = of_meetings(&reports).into_iter().map(|verdict| verdict.sentence).collect();
        let (rails, pools) = (figures::rails(&reports), figures::pools(&reports));
        Self { comms, processes: reports.len(), rails, pools, joining, is_dead }
    }
}

fn comm(
    id: u64,
    mut ranks: Vec<(&ProcessReport, &CommReport)>,
    reports: &[ProcessReport],
    is_dead: bool,
) -> Comm {
    ranks.sort_by_key(|(_, comm)| comm.rank);
    let late = lateness(&ranks);
    let first = ranks[0].1;
    let name = if first.name.is_empty() { format!("{id:016x}") } else { first.name.clone() };
    let size = first.ranks;
    let rows = ranks.iter().map(|(report, comm)| rank(report, comm, late.get(&comm.rank).copied(), is_dead));
    let mut rows: Vec<Rank> = rows.collect();
    let is_stuck = |rank: &Rank| rank.mood == Mood::Stopped || (rank.is_open && rank.age_ms >= LONG);
    // Who is alone waits for nobody.
    let verdict = (size > 1 && rows.iter().any(is_stuck))
        .then(|| verdict(&Evidence { comm_id: id, reports: reports.to_vec(), ..Evidence::default() }))
        .filter(|verdict| verdict.cause != Cause::NothingOpen);
    for row in &mut rows {
        if verdict.as_ref().is_some_and(|verdict| verdict.guilty.contains(&row.rank)) {
            row.mood = Mood::Guilty;
        }
    }
    Comm { name, size, ranks: rows, verdict }
}

fn rank(report: &ProcessReport, comm: &CommReport, late_ms: Option<u64>, is_dead: bool) -> Rank {
    let open = comm.open();
    let shown = open.or_else(|| comm.operations.last());
    let is_stopped = report.state.as_ref().is_some_and(|state| state.is_stopped() || state.is_held());
    let mood = match open.map(|operation| operation.stage) {
        _ if is_stopped => Mood::Stopped,
        Some(Stage::Called) => Mood::Called,
        Some(_) => Mood::Busy,
        None if comm.queued.is_some() => Mood::Called,
        None => Mood::Idle,
    };
    let waits = comm.waits.iter().map(|waits| format!("{} of {}", waits.awaited, waits.peer));
    let Rates { rate, busbw, predicted } = rates(comm, is_dead);
    Rank {
        rank: comm.rank,
        process: format!("{}:{}", report.host, report.pid),
        state: report.state.as_ref().map_or_else(|| "ended".into(), |state| state.text()),
        called: comm.collectives,
        operation: shown.map_or_else(String::new, |operation| operation.text().replace("operation ", "")),
        mood,
        is_open: open.is_some(),
        age_ms: shown.map_or(0, |operation| operation.age_ms),
        waits_for: waits.collect::<Vec<_>>().join("; "),
        rate,
        busbw,
        predicted,
        late_ms: late_ms.filter(|late| *late > GRAIN),
    }
}

/// The speeds of a rank, as [`Rank`] has them.
#[derive(Default)]
struct Rates {
    rate: f64,
    busbw: f64,
    predicted: Option<f64>,
}

/// Operations and bytes on the bus in a second, of what was over lately. On a GPU the end of operations is
/// not in the journal: all but the last count.
fn rates(comm: &CommReport, is_dead: bool) -> Rates {
    let newest = comm.operations.iter().map(|operation| operation.age_ms).min().unwrap_or(0);
    let end = if is_dead { newest } else { 0 };
    let oldest = comm.operations.first().map_or(0, |operation| operation.age_ms);
    let window = oldest.min(end + WINDOW).saturating_sub(end);
    if window == 0 {
        return Rates::default();
    }
    let count = comm.operations.len().saturating_sub(1);
    let is_over = |(at, operation): &(usize, &Operation)| {
        let in_time = operation.age_ms <= end + window;
        in_time && (operation.stage == Stage::Done || (!comm.is_exact && *at < count))
    };
    let over: Vec<&Operation> =
        comm.operations.iter().enumerate().filter(is_over).map(|(_, operation)| operation).collect();
    let seconds = window as f64 / 1000.0;
    let bytes: f64 = over.iter().map(|operation| on_bus(&operation.what, comm.ranks)).sum();
    // Messages and copies within a rank have no prediction.
    let planned = over.iter().filter(|operation| operation.predicted_ns > 0);
    let (predicted_bytes, predicted_ns) = planned.fold((0.0, 0), |(bytes, ns), operation| {
        (bytes + on_bus(&operation.what, comm.ranks), ns + operation.predicted_ns)
    });
    let predicted = (predicted_ns > 0).then(|| predicted_bytes / (predicted_ns as f64 / 1e9));
    Rates { rate: over.len() as f64 / seconds, busbw: bytes / seconds, predicted }
}

/// The bytes of an operation that cross a rank's bus, as nccl-tests count them.
fn on_bus(what: &What, ranks: u32) -> f64 {
    match what {
        What::Messages { first, .. } => first.iter().map(|message| message.bytes as f64).sum::<f64>() / 2.0,
        What::Collective { collective, dtype, count, .. } => {
            let found = Collective::ALL.into_iter().find(|known| *known as u8 == *collective);
            let (Some(collective), Some(dtype)) = (found, DataType::from_raw(i32::from(*dtype))) else {
                return 0.0;
            };
            let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
            let bytes = *count as f64 * dtype.size() as f64 * f64::from(blocks);
            let others = f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1));
            match collective {
                Collective::AllReduce => bytes * 2.0 * others,
                Collective::Broadcast | Collective::Reduce => bytes,
                _ => bytes * others,
            }
        }
    }
}

/// For each rank the median time by which it calls a collective after the first rank of its host, whose clock
/// it shares.
fn lateness(ranks: &[(&ProcessReport, &CommReport)]) -> BTreeMap<u32, u64> {
    /// The number that all processes of a host have.
    type Machine = [u8; 16];
    /// Collectives that tell something.
    const FEWEST: usize = 4;
    let mut calls: BTreeMap<(Machine, u64), Vec<(u32, u64)>> = BTreeMap::new();
    let mut of_host: BTreeMap<Machine, usize> = BTreeMap::new();
    for (report, comm) in ranks {
        *of_host.entry(report.machine).or_default() += 1;
        for operation in comm.operations.iter().filter(|operation| operation.what.is_collective()) {
            let at = comm.taken_ms.saturating_sub(operation.age_ms);
            calls.entry((report.machine, operation.number)).or_default().push((comm.rank, at));
        }
    }
    let mut late: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for ((machine, _), calls) in calls {
        let first = calls.iter().map(|(_, at)| *at).min().unwrap_or(0);
        if calls.len() > 1 && of_host.get(&machine) == Some(&calls.len()) {
            calls.into_iter().for_each(|(rank, at)| late.entry(rank).or_default().push(at - first));
        }
    }
    late.retain(|_, times| times.len() >= FEWEST);
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    late.into_iter().map(|(rank, times)| (rank, median(times))).collect()
}

#[cfg(test)]
pub mod tests {
    use hawser_runtime::progress::operation::{Awaited, Waits};
    use hawser_runtime::progress::process_state::ProcessState;

    use super::*;

    /// An all-reduce of 1 MiB: `late` after a time, seen at 100 s.
    fn operation(number: u64, age_ms: u64, stage: Stage) -> Operation {
        let what = What::Collective { collective: 0, dtype: 7, op: 0, count: 1 << 18, root: 0 };
        // 1 MiB in 200 µs.
        Operation { sequence: number + 1, number, what, stage, age_ms, predicted_ns: 200_000, tag: 0 }
    }

    /// A job of so many ranks that all-reduces every 100 ms. Of these, one comes `late` ms after the others;
    /// one has stopped calling, for which all others wait.
    pub fn job(ranks: u32, late: Option<(u32, u64)>, missing: Option<u32>) -> Vec<ProcessReport> {
        let report = |rank: u32| {
            let behind = late.filter(|(who, _)| *who == rank).map_or(0, |(_, ms)| ms);
            let base = if missing.is_some() { 5_000 } else { 50 };
            let age = |number: u64| base + 200 + (20 - number) * 100 - behind;
            let mut operations: Vec<Operation> =
                (0..20).map(|number| operation(number, age(number), Stage::Done)).collect();
            let is_open = missing.is_some_and(|missing| missing != rank);
            if is_open {
                operations.push(operation(20, base, Stage::Submitted));
            }
            let wait = missing.filter(|_| is_open).map(|peer| Waits {
                number: 20,
                peer,
                awaited: Awaited::Data,
                block: 0,
                step: 1,
                since_ms: base,
            });
            let comm = CommReport {
                comm_id: 0xabc,
                name: "world".into(),
                rank,
                ranks,
                world: rank,
                is_exact: true,
                taken_ms: 100_000,
                collectives: operations.len() as u64,
                queued: None,
                waits: wait.into_iter().collect(),
                operations,
                stalls: Vec::new(),
            };
            let state =
                ProcessState { letter: 'S', tracer: 0, swapped_kib: 0, main_thread: "in read(2)".into() };
            ProcessReport {
                machine: [(rank / 8) as u8; 16],
                host: format!("node{:02}", rank / 8),
                pid: 1000 + rank,
                state: Some(state),
                comms: vec![comm],
                joining: Vec::new(),
                neighbours: Vec::new(),
                losses: Vec::new(),
                figures: Vec::new(),
            }
        };
        (0..ranks).map(report).collect()
    }

    #[test]
    fn rates_and_lateness_are_those_of_the_journals() {
        let job = Job::new(job(8, Some((5, 40)), None), None, false);
        let comm = &job.comms[0];
        assert_eq!((comm.ranks.len(), comm.size, &*comm.name), (8, 8, "world"));
        assert!(comm.verdict.is_none() && comm.open_ms().is_none());
        // 20 operations of 1 MiB in the 2.25 s up to now.
        assert!((comm.ranks[0].rate - 20.0 / 2.25).abs() < 1e-9, "{}", comm.ranks[0].rate);
        let busbw = 20.0 / 2.25 * f64::from(1 << 20) * 2.0 * 7.0 / 8.0;
        assert!((comm.ranks[0].busbw - busbw).abs() < 1.0);
        let predicted = f64::from(1 << 20) * 2.0 * 7.0 / 8.0 / 200e-6;
        assert!((comm.ranks[0].predicted.unwrap() - predicted).abs() < 1.0);
        assert!((comm.predicted().unwrap() - predicted).abs() < 1.0);
        assert_eq!(comm.slowest().map(|rank| (rank.rank, rank.late_ms)), Some((5, Some(40))));
    }

    #[test]
    fn who_keeps_the_others_waiting_is_named() {
        let job = Job::new(job(8, None, Some(3)), None, false);
        let comm = &job.comms[0];
        let verdict = comm.verdict.as_ref().unwrap();
        assert_eq!(
            (verdict.cause, &verdict.guilty[..]),
            (Cause::NotCalled, &[3][..]),
            "{}",
            verdict.sentence
        );
        assert_eq!((comm.ranks[3].mood, comm.ranks[2].mood), (Mood::Guilty, Mood::Busy));
        assert_eq!(comm.open_ms(), Some(5_000));
        let other = Job::new(tests::job(8, None, Some(3)), Some(7), false);
        assert!(other.comms.is_empty(), "none of that process");
    }
}
