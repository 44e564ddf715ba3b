//! One contender, in a process of its own: a thread per GPU times GEMMs alone, transfers alone, and both at
//! once.

use std::any::Any;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hawser_plan::{Collective, DataType, ReduceOp};
use serde::{Deserialize, Serialize};

use super::super::barrier::{Barrier, Row};
use super::super::collective::Test;
use super::super::control::Control;
use super::super::launcher::Place;
use super::super::library::{self, Id, Joining, Library};
use super::super::rank::{Case, Rank};
use super::super::run::agree_on_id;
use super::compute::{Engine, Marks, Transfers};
use super::power::{Meter, Reading};
use super::{Options, Role};

/// Operations of a measurement, at most: each has an event. On the CPU, where they get in each other's way,
/// fewer.
const MOST: usize = 4000;
const MOST_ON_CPU: usize = 40;
/// Size of the operation whose results are checked beside GEMMs.
const CHECKED_BYTES: u64 = 4 << 20;

/// The figures that one process found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Document {
    /// The library's version.
    pub version: String,
    /// Name of the GPUs.
    pub device: String,
    /// The engine that multiplied.
    pub gemm: String,
    /// By operation.
    pub figures: Vec<Figures>,
}

/// Times of one operation, of the slowest rank: alone, and beside the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Name of the operation.
    pub collective: String,
    /// Its bytes.
    pub bytes: u64,
    /// Seconds of a GEMM.
    pub gemm: [f64; 2],
    /// Seconds of a transfer.
    pub transfer: [f64; 2],
    /// Mean watts of a GPU: GEMM alone, transfer alone, both.
    pub watts: Option<[f64; 3]>,
    /// CTAs of the transfer, if the library tells.
    pub ctas: Option<u32>,
}

/// Measures all operations; process 0 leaves the figures in the file that the options name.
///
/// # Errors
/// Bring-up, an operation or the GEMM failed, or a result is wrong.
pub fn run(options: &Options, role: Role, place: &Place) -> Result<()> {
    let limit = Duration::from_secs(options.timeout);
    let library = library::open(options.library.as_deref())?;
    let mut control = Control::meet(place, limit)?;
    let id = agree_on_id(library.as_ref(), &mut control, place)?;
    let threads = if place.launched { 1 } else { options.ranks() };
    let barrier = Barrier::new(control, threads as usize, limit);
    let ranks = threads * place.processes;
    let participant = |thread: u32| {
        let rank = place.process * threads + thread;
        let ordinal = (place.local * threads + thread) % hawser_device::count().max(1);
        let participant = Participant {
            options,
            role,
            library: library.as_ref(),
            barrier: &barrier,
            id,
            thread,
            rank,
            ranks,
            ordinal,
        };
        participant.run().map_err(|error| anyhow!(barrier.fail(&format!("{error:#}"))))
    };
    let document = std::thread::scope(|scope| {
        let participant = &participant;
        scope.spawn(|| {
            if let Some(failure) = barrier.watch() {
                eprintln!("hawser: {failure}; a rank does not come back from a call, so this process ends");
                std::process::exit(1);
            }
        });
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || participant(t))).collect();
        let mut outcome = participant(0);
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
            outcome = outcome.and_then(|document| ended.map(|_| document));
        }
        barrier.finish();
        outcome
    })?;
    match &options.json_file {
        Some(path) if place.process == 0 => {
            let text = serde_json::to_vec(&document).context("the figures as JSON")?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// One rank of the contender, which is a thread.
struct Participant<'a> {
    options: &'a Options,
    role: Role,
    library: &'a dyn Library,
    barrier: &'a Barrier,
    id: Id,
    thread: u32,
    rank: u32,
    ranks: u32,
    ordinal: u32,
}

impl Participant<'_> {
    fn run(&self) -> Result<Document> {
        let device = hawser_device::open(self.ordinal)?;
        // Current from now on, as in programs that use the CUDA runtime.
        let _current: Box<dyn Any> = device.enter()?;
        let zero_ctas = self.role == Role::ZeroCtas;
        let joining = Joining {
            id: &self.id,
            ranks: self.ranks,
            rank: self.rank,
            device: device.as_ref(),
            host: None,
            name: None,
            zero_ctas,
        };
        let comm = self.library.join(&joining)?;
        self.barrier.register(std::iter::once(comm.stop()));
        let rank = Rank::new(comm, self.rank, device.clone(), self.options.bytes(), 0)?;
        let (side, limit) = (self.options.side(), Duration::from_secs(self.options.timeout));
        let engine = Engine::new(&device, hawser_device::is_host(), side, self.options.own_gemm, limit)?;
        let meter = Meter::open(&device.caps().id).ok();
        let mut figures = Vec::new();
        for &test in &self.options.collective.0 {
            figures.push(self.measure(test, &rank, &engine, meter.as_ref())?);
        }
        self.barrier.wait(self.thread as usize)?;
        rank.close()?;
        Ok(Document {
            version: self.library.about().version.clone(),
            device: device.caps().name.clone(),
            gemm: engine.name().to_owned(),
            figures,
        })
    }

    fn case(&self, test: Test, bytes: u64) -> Case {
        let dtype = DataType::Bfloat16;
        // In place where the own part would be a copy within the GPU otherwise, which multiprocessors make.
        let in_place = !matches!(test, Test::One(Collective::SendRecv | Collective::AllToAll));
        let geometry = test.geometry(bytes, dtype, self.ranks);
        let op = test.reduces().then_some(ReduceOp::Sum);
        Case { test, dtype, op, root: 0, geometry, ranks: self.ranks, in_place }
    }

    fn measure(&self, test: Test, rank: &Rank, engine: &Engine, meter: Option<&Meter>) -> Result<Figures> {
        let case = self.case(test, self.options.bytes());
        let start = || self.start(rank, &case);
        let limit = Duration::from_secs(self.options.timeout);
        let finish = || rank.synchronize(limit);
        let transfers = |count| Transfers { count, start: &start, stream: rank.stream(), finish: &finish };
        // Kernels are loaded and connections made before anything is timed.
        engine.run(2, &transfers(0))?;
        self.barrier()?;
        engine.run(0, &transfers(2))?;
        let ctas = rank.comm.ctas();
        if self.role == Role::Log {
            return Ok(self.figures(test, [0.0; 4], None, ctas));
        }
        self.check(test, rank, engine)?;
        let window = self.options.window_ms as f64 / 1e3;
        let (trial_gemm, trial) =
            (engine.run(3, &transfers(0))?, self.together(|| engine.run(0, &transfers(3)))?);
        let guess = self.largest([longest(&trial_gemm.gemm), longest(&trial.transfer), 0.0, 0.0])?;
        let most = if hawser_device::is_host() { MOST_ON_CPU } else { MOST };
        let count = |seconds: f64| ((window / seconds.max(1e-9)) as usize).clamp(4, most);
        let (gemms, moves) = (count(guess[0]), count(guess[1]));
        let metered = |run: &dyn Fn() -> Result<Marks>| {
            let before = meter.and_then(Meter::read);
            let marks = self.together(run)?;
            Ok::<_, anyhow::Error>((marks, watts(meter, before)))
        };
        let (alone, watts_gemm) = metered(&|| engine.run(gemms, &transfers(0)))?;
        let (moved, watts_transfer) = metered(&|| engine.run(0, &transfers(moves)))?;
        let beside = |counts: (usize, usize)| metered(&|| engine.run(counts.0, &transfers(counts.1)));
        let ((gemm, transfer), watts_both) = self.beside(test, (gemms, moves), &beside)?;
        let everything = (f64::MIN, f64::MAX);
        let lone = |marks| median(&inside(marks, everything)).unwrap_or_default();
        let times = self.largest([lone(&alone.gemm), gemm, lone(&moved.transfer), transfer])?;
        let watts = [watts_gemm, watts_transfer, watts_both].map(|watts| watts.unwrap_or(f64::NAN));
        let watts = self.mean([watts[0], watts[1], watts[2], 0.0])?;
        Ok(self.figures(test, times, Some(watts), ctas))
    }

    /// Both at once, until each has enough operations that lie wholly beside the other's: how much longer
    /// either takes is not known before. Seconds of a GEMM and of a transfer, and watts.
    fn beside(
        &self,
        test: Test,
        mut counts: (usize, usize),
        run: &dyn Fn((usize, usize)) -> Result<(Marks, Option<f64>)>,
    ) -> Result<((f64, f64), Option<f64>)> {
        /// Operations that are enough.
        const ENOUGH: f64 = 3.0;
        /// The number of times that counts are raised.
        const ATTEMPTS: u32 = 6;
        for _ in 0..ATTEMPTS {
            let (marks, watts) = run(counts)?;
            let both = (marks.gemm[0].max(marks.transfer[0]), last(&marks.gemm).min(last(&marks.transfer)));
            // A shared CPU serves one side or the other for long: there everything counts.
            let common = if hawser_device::is_host() { (f64::MIN, f64::MAX) } else { both };
            let (gemm, transfer) = (inside(&marks.gemm, common), inside(&marks.transfer, common));
            // Negative: the fewest of all ranks.
            let fewest =
                self.largest([-(gemm.len() as f64), -(transfer.len() as f64), f64::MIN, f64::MIN])?;
            if let (Some(gemm), Some(transfer)) = (median(&gemm), median(&transfer))
                && fewest[0] <= -ENOUGH
                && fewest[1] <= -ENOUGH
            {
                return Ok(((gemm, transfer), watts));
            }
            // Whoever lacked operations beside the other needs the other to last longer.
            if fewest[1] > -ENOUGH {
                counts.0 *= 4;
            }
            if fewest[0] > -ENOUGH {
                counts.1 *= 4;
            }
        }
        bail!("{}: GEMMs and transfers hardly overlap: raise --window-ms", test.name());
    }

    fn figures(&self, test: Test, times: Row, watts: Option<[f64; 3]>, ctas: Option<u32>) -> Figures {
        Figures {
            collective: test.name().to_owned(),
            bytes: self.options.bytes(),
            gemm: [times[0], times[1]],
            transfer: [times[2], times[3]],
            watts: watts.filter(|watts| watts.iter().all(|watts| watts.is_finite())),
            ctas,
        }
    }

    /// The results of a smaller operation beside GEMMs.
    fn check(&self, test: Test, rank: &Rank, engine: &Engine) -> Result<()> {
        let case = self.case(test, self.options.bytes().min(CHECKED_BYTES));
        rank.prepare(&case, 1)?;
        let limit = Duration::from_secs(self.options.timeout);
        let (start, finish) = (|| self.start(rank, &case), || rank.synchronize(limit));
        let transfers = Transfers { count: 1, start: &start, stream: rank.stream(), finish: &finish };
        self.together(|| engine.run(2, &transfers))?;
        let found = rank.check(&case, 1)?;
        if found.wrong + found.outside > 0 {
            let (wrong, outside) = (found.wrong, found.outside);
            bail!(
                "rank {}: {}: {wrong} wrong elements, {outside} bytes changed outside the buffer",
                self.rank,
                test.name()
            );
        }
        Ok(())
    }

    fn start(&self, rank: &Rank, case: &Case) -> Result<()> {
        if case.test.call(0, case.dtype, case.op, 0).is_some() {
            return rank.start(case, 0);
        }
        self.library.group_start()?;
        let called = rank.start(case, 0);
        let ended = self.library.group_end();
        called.and(ended)
    }

    /// Begins with all other ranks.
    fn together(&self, run: impl FnOnce() -> Result<Marks>) -> Result<Marks> {
        self.barrier()?;
        run()
    }

    fn barrier(&self) -> Result<()> {
        self.barrier.wait(self.thread as usize)
    }

    /// The largest of each of all ranks' numbers.
    fn largest(&self, row: Row) -> Result<Row> {
        let rows = self.barrier.exchange(self.thread as usize, row)?;
        Ok(std::array::from_fn(|i| rows.iter().map(|row| row[i]).fold(f64::MIN, f64::max)))
    }

    fn mean(&self, row: Row) -> Result<[f64; 3]> {
        let rows = self.barrier.exchange(self.thread as usize, row)?;
        Ok(std::array::from_fn(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64))
    }
}

fn watts(meter: Option<&Meter>, before: Option<Reading>) -> Option<f64> {
    Some(meter?.read()?.watts_since(&before?))
}

fn last(marks: &[f64]) -> f64 {
    marks.last().copied().unwrap_or(f64::MIN)
}

fn longest(marks: &[f64]) -> f64 {
    inside(marks, (f64::MIN, f64::MAX)).into_iter().fold(0.0, f64::max)
}

/// Times of the operations that lie wholly inside a stretch of time.
fn inside(marks: &[f64], (from, to): (f64, f64)) -> Vec<f64> {
    marks.windows(2).filter(|pair| pair[0] >= from && pair[1] <= to).map(|pair| pair[1] - pair[0]).collect()
}

/// The middle one.
pub fn median(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_inside_counts() {
        let marks = [0.0, 1.0, 2.5, 3.0];
        assert_eq!(inside(&marks, (0.5, 3.0)), [1.5, 0.5]);
        assert_eq!(inside(&marks, (f64::MIN, f64::MAX)).len(), 3);
        assert!(inside(&marks[..1], (0.0, 9.0)).is_empty());
        assert_eq!(longest(&marks), 1.5);
        assert_eq!(
            (median(&[3.0, 1.0, 2.0]), median(&[1.0, 2.0]), median(&[])),
            (Some(2.0), Some(1.5), None)
        );
    }
}
