//! One thread of the measurement: its ranks, and the loops over sizes and iterations.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use hawser_base::stages::{self, Stage};
use hawser_device::{Device, Graph};
use hawser_plan::ReduceOp;

use super::barrier::{self, Barrier};
use super::collective::Test;
use super::launcher::Place;
use super::library::{Communicator, Decided, Id, Joining, Library};
use super::options::{Options, Repetitions};
use super::rank::{Case, Rank};
use super::report::{Outcome, Reporter, Row};
use super::run::{Series, Shape};

/// The knowledge of one thread that measures.
pub struct Worker<'a> {
    /// The command line.
    pub options: &'a Options,
    /// The library that is measured.
    pub library: &'a dyn Library,
    /// The barrier of all threads.
    pub barrier: &'a Barrier,
    /// The numbers of processes, threads and ranks of the job.
    pub shape: Shape,
    /// The place of this process among those of the job.
    pub place: &'a Place,
    /// Of the communicators: of one, or of each of those with names.
    pub ids: &'a [Id],
    /// The series that are to be measured.
    pub plan: &'a [Series],
    /// The index of the thread in the process.
    pub thread: u32,
}

impl Worker<'_> {
    /// Measures everything. Returns whether all results were right (true without a reporter).
    ///
    /// # Errors
    /// Bring-up or an operation failed, here or elsewhere.
    pub fn run(&self, mut reporter: Option<Reporter>) -> Result<bool> {
        let devices = self.devices()?;
        // Current from now on, as in programs that use the CUDA runtime.
        let _current: Box<dyn Any> = devices[0].enter()?;
        let tables = self.join_all(&devices, reporter.as_mut())?;
        for _ in 0..self.options.cycles {
            for series in self.plan {
                if let Some(reporter) = reporter.as_mut().filter(|_| series.first) {
                    reporter.begin(series.test);
                }
                self.series(&tables, series, reporter.as_mut())?;
            }
        }
        self.barrier()?;
        let ok = reporter.map_or(Ok(true), Reporter::finish)?;
        tables.into_iter().flatten().try_for_each(Rank::close)?;
        Ok(ok)
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let first = self.thread * self.shape.gpus;
        let ordinals = (first..first + self.shape.gpus).map(|index| self.shape.ordinal(self.place, index));
        ordinals.map(|ordinal| Ok(hawser_device::open(ordinal)?)).collect()
    }

    /// The ranks of this thread in every communicator. A rank has the same buffers in all of them.
    fn join_all(
        &self,
        devices: &[Arc<dyn Device>],
        reporter: Option<&mut Reporter>,
    ) -> Result<Vec<Vec<Rank>>> {
        let (bytes, unalign) = (self.options.buffer_bytes(), self.options.unalign);
        let (mut tables, mut seconds) = (Vec::<Vec<Rank>>::new(), 0.0);
        for (index, id) in self.ids.iter().enumerate() {
            let (comms, took) = self.join(devices, id, self.options.names.get(index).cloned())?;
            seconds += took;
            let make = |(index, comm): (usize, _)| match tables.first() {
                Some(first) => first[index].beside(comm),
                None => {
                    let rank = self.first_rank() + index as u32;
                    Rank::new(comm, rank, Arc::clone(&devices[index]), bytes, unalign)
                }
            };
            let ranks = comms.into_iter().enumerate().map(make).collect::<Result<Vec<Rank>>>()?;
            if self.options.register > 0 {
                ranks.iter().try_for_each(Rank::register)?;
            }
            tables.push(ranks);
        }
        if let Some(reporter) = reporter {
            reporter.made(seconds);
        }
        Ok(tables)
    }

    /// Makes this thread's communicators of one id. Returns the seconds of the slowest thread, too.
    fn join(
        &self,
        devices: &[Arc<dyn Device>],
        id: &Id,
        name: Option<String>,
    ) -> Result<(Vec<Box<dyn Communicator>>, f64)> {
        let mut comms = Vec::new();
        self.barrier()?;
        let clock = Instant::now();
        self.in_group(self.shape.gpus > 1, || {
            for (rank, device) in (self.first_rank()..).zip(devices) {
                let (device, host, name) = (device.as_ref(), self.host(rank), name.clone());
                let ranks = self.shape.ranks;
                let joining = Joining { id, ranks, rank, device, host, name, zero_ctas: false };
                comms.push(self.library.join(&joining)?);
            }
            Ok(())
        })?;
        let seconds = clock.elapsed().as_secs_f64();
        self.barrier.register(comms.iter().map(|comm| comm.stop()));
        let rows = self.exchange([seconds, 0.0, 0.0, 0.0])?;
        Ok((comms, rows.iter().map(|row| row[0]).fold(0.0, f64::max)))
    }

    fn first_rank(&self) -> u32 {
        (self.place.process * self.shape.threads + self.thread) * self.shape.gpus
    }

    /// The host that a rank counts as (`--hosts`).
    fn host(&self, rank: u32) -> Option<String> {
        let hosts = self.options.hosts?.min(self.shape.ranks);
        Some(format!("part {} of {hosts}", u64::from(rank) * u64::from(hosts) / u64::from(self.shape.ranks)))
    }

    fn series(
        &self,
        tables: &[Vec<Rank>],
        series: &Series,
        mut reporter: Option<&mut Reporter>,
    ) -> Result<()> {
        self.barrier()?;
        for bytes in self.options.warmup_sizes() {
            let case = self.case(series, bytes, false);
            for ranks in tables {
                for _ in 0..self.options.warmup {
                    self.start(ranks, &case, 1)?;
                }
                self.synchronize(ranks)?;
            }
        }
        for (i, bytes) in self.options.sizes().into_iter().enumerate() {
            if let Some(reporter) = &reporter {
                reporter.working(|| format!("{} {} {bytes} B", series.test.name(), series.dtype.name()));
            }
            for (table, ranks) in tables.iter().enumerate() {
                let (row, outside) = self.row(ranks, series, bytes, i as u64 * 2)?;
                let communicator = self.options.names.get(table).cloned();
                if let Some(reporter) = reporter.as_mut() {
                    reporter.row(Row { communicator, ..row }, outside);
                }
            }
        }
        Ok(())
    }

    /// Measures a size with one communicator. Returns bytes changed outside the receive buffers, too.
    fn row(&self, ranks: &[Rank], series: &Series, bytes: u64, seed: u64) -> Result<(Row, u64)> {
        let case = self.case(series, bytes, false);
        let (out_of_place, mut outside) = self.bench(ranks, &case, seed)?;
        let stages = self.options.stages.then(|| stage_table(&out_of_place));
        let mut in_place = None;
        if !self.options.skip_in_place {
            let (outcome, more) = self.bench(ranks, &self.case(series, bytes, true), seed + 1)?;
            (in_place, outside) = (Some(outcome), outside + more);
        }
        let explained = self.options.explain.then(|| explain(&ranks[0], &case));
        let (choice, decision) = explained.map_or((None, None), |(text, decision)| (Some(text), decision));
        let row = Row {
            communicator: None,
            collective: series.test.name(),
            size: case.geometry.send.max(case.geometry.recv) * series.dtype.size() as u64,
            count: case.geometry.count,
            dtype: series.dtype.name(),
            op: series.op.map_or("none", ReduceOp::name),
            root: series.root.map_or(-1, i64::from),
            out_of_place,
            in_place,
            choice,
            decision,
            stages,
        };
        Ok((row, outside))
    }

    fn case(&self, series: &Series, bytes: u64, in_place: bool) -> Case {
        let ranks = self.shape.ranks;
        Case {
            test: series.test,
            dtype: series.dtype,
            op: series.op,
            root: series.root.unwrap_or(0),
            geometry: series.test.geometry(bytes, series.dtype, ranks),
            ranks,
            in_place,
        }
    }

    /// Times `case`, then checks it. Returns bytes changed outside the receive buffers, too.
    fn bench(&self, ranks: &[Rank], case: &Case, seed: u64) -> Result<(Outcome, u64)> {
        if self.options.check > 0 {
            // Numbers of moderate size, so that nothing but speed is measured.
            ranks.iter().try_for_each(|rank| rank.prepare(case, seed))?;
        }
        let repetitions = self.repetitions(ranks, case)?;
        self.barrier()?;
        let is_staged = self.options.stages && self.thread == 0;
        if is_staged {
            stages::start();
        }
        let elapsed = self.timed(ranks, case, repetitions)?;
        if is_staged {
            stages::stop();
        }
        let operations = u64::from(repetitions.iterations) * u64::from(self.options.aggregated);
        let seconds = self.average(elapsed.as_secs_f64() / operations as f64)?;
        let (algorithm, bus) = case.test.bandwidth(case.geometry, case.dtype, case.ranks, seconds);
        let (wrong, outside) = self.checked(ranks, case, seed)?;
        let operations = operations * u64::from(repetitions.launches.max(1));
        Ok((Outcome { time_us: seconds * 1e6, algorithm, bus, wrong, operations }, outside))
    }

    /// Runs `case` once, and says how often to repeat it, alike on all ranks.
    fn repetitions(&self, ranks: &[Rank], case: &Case) -> Result<Repetitions> {
        self.barrier()?;
        let clock = Instant::now();
        self.start(ranks, case, 1)?;
        self.synchronize(ranks)?;
        let rows = self.exchange([clock.elapsed().as_secs_f64(), 0.0, 0.0, 0.0])?;
        Ok(self.options.repetitions(rows.iter().map(|row| row[0]).fold(0.0, f64::max)))
    }

    /// Time of all iterations together.
    fn timed(&self, ranks: &[Rank], case: &Case, repetitions: Repetitions) -> Result<Duration> {
        if repetitions.launches > 0 {
            return self.timed_graph(ranks, case, repetitions);
        }
        let clock = Instant::now();
        for _ in 0..repetitions.iterations {
            self.start(ranks, case, self.options.aggregated)?;
            self.pace(ranks)?;
        }
        self.synchronize(ranks)?;
        Ok(clock.elapsed())
    }

    /// As [`Worker::timed`], all iterations in one graph: the mean of its launches.
    fn timed_graph(&self, ranks: &[Rank], case: &Case, repetitions: Repetitions) -> Result<Duration> {
        let graphs = capture(ranks, || {
            (0..repetitions.iterations).try_for_each(|_| self.start(ranks, case, self.options.aggregated))
        })?;
        self.barrier()?;
        let clock = Instant::now();
        for _ in 0..repetitions.launches {
            launch(ranks, &graphs)?;
            self.pace(ranks)?;
        }
        self.synchronize(ranks)?;
        Ok(clock.elapsed() / repetitions.launches)
    }

    /// `-z`: what happens after each iteration, or after each launch of a graph.
    fn pace(&self, ranks: &[Rank]) -> Result<()> {
        if self.options.blocking > 0 {
            self.synchronize(ranks)?;
        }
        if self.options.blocking == 1 {
            self.barrier()?;
        }
        Ok(())
    }

    /// `-a`: which time of all threads counts.
    fn average(&self, seconds: f64) -> Result<f64> {
        let rows = self.exchange([seconds, 0.0, 0.0, 0.0])?;
        let times = rows.iter().map(|row| row[0]);
        Ok(match self.options.average {
            0 => rows[0][0],
            1 => times.sum::<f64>() / rows.len() as f64,
            2 => times.fold(f64::INFINITY, f64::min),
            _ => times.fold(0.0, f64::max),
        })
    }

    fn checked(&self, ranks: &[Rank], case: &Case, seed: u64) -> Result<(Option<u64>, u64)> {
        if self.options.check == 0 || (case.in_place && !case.test.checks_in_place()) {
            return Ok((None, 0));
        }
        let (mut wrong, mut outside) = (0.0, 0.0);
        for repetition in 0..u64::from(self.options.check) {
            let seed = seed + 1000 * (repetition + 1);
            ranks.iter().try_for_each(|rank| rank.prepare(case, seed))?;
            self.run_once(ranks, case)?;
            let mut mine = [0.0; 4];
            for rank in ranks {
                let findings = rank.check(case, seed)?;
                mine[0] += findings.wrong as f64;
                mine[1] += findings.outside as f64;
            }
            let rows = self.exchange(mine)?;
            wrong += rows.iter().map(|row| row[0]).sum::<f64>();
            outside += rows.iter().map(|row| row[1]).sum::<f64>();
            if wrong + outside > 0.0 {
                break;
            }
        }
        Ok((Some(wrong as u64), outside as u64))
    }

    /// Runs `case` to its end, with `-G` as a graph, which lives until it is over.
    fn run_once(&self, ranks: &[Rank], case: &Case) -> Result<()> {
        if self.options.graph == 0 {
            self.start(ranks, case, 1)?;
            return self.synchronize(ranks);
        }
        let graphs = capture(ranks, || self.start(ranks, case, 1))?;
        launch(ranks, &graphs)?;
        self.synchronize(ranks)
    }

    /// Puts `times` operations of every rank on its device, in one group if there are several.
    fn start(&self, ranks: &[Rank], case: &Case, times: u32) -> Result<()> {
        if case.test == Test::Hypercube {
            for step in 0..case.ranks.trailing_zeros().max(1) {
                self.in_group(true, || ranks.iter().try_for_each(|rank| rank.start_hypercube(case, step)))?;
            }
            return Ok(());
        }
        let several = ranks.len() > 1 || times > 1 || case.test.call(0, case.dtype, case.op, 0).is_none();
        self.in_group(several, || {
            (0..times).try_for_each(|turn| ranks.iter().try_for_each(|rank| rank.start(case, turn)))
        })
    }

    /// Runs `calls`, inside a group if `grouped`; the group is closed in any case.
    fn in_group(&self, grouped: bool, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        if !grouped {
            return calls();
        }
        self.library.group_start()?;
        let called = calls();
        let ended = self.library.group_end();
        called?;
        ended
    }

    fn synchronize(&self, ranks: &[Rank]) -> Result<()> {
        ranks.iter().try_for_each(|rank| rank.synchronize(self.options.deadline()))
    }

    fn exchange(&self, row: barrier::Row) -> Result<Arc<Vec<barrier::Row>>> {
        self.barrier.exchange(self.thread as usize, row)
    }

    fn barrier(&self) -> Result<()> {
        self.barrier.wait(self.thread as usize)
    }
}

/// Records what `calls` starts: one graph per rank. The captures are ended in any case.
fn capture(ranks: &[Rank], calls: impl FnOnce() -> Result<()>) -> Result<Vec<Graph>> {
    let mut begun = 0;
    let called = ranks.iter().try_for_each(|rank| rank.begin_capture().map(|()| begun += 1));
    let called = called.and_then(|()| calls());
    let graphs: Vec<Result<Graph>> = ranks[..begun].iter().map(Rank::end_capture).collect();
    called?;
    graphs.into_iter().collect()
}

fn launch(ranks: &[Rank], graphs: &[Graph]) -> Result<()> {
    ranks.iter().zip(graphs).try_for_each(|(rank, graph)| rank.launch(graph))
}

/// Returns the stages at which the time of the last measurement went by on this process.
fn stage_table(outcome: &Outcome) -> String {
    let operations = outcome.operations.max(1) as f64;
    let mut text = format!("{:9} {:>10} {:>9} {:>10}\n", "stage", "us per op", "times", "longest");
    for stage in Stage::ALL {
        let measured = stages::measured(stage);
        let (us, times) =
            (measured.total.as_secs_f64() * 1e6 / operations, measured.count as f64 / operations);
        let longest = measured.longest.as_secs_f64() * 1e6;
        text += &format!("{:9} {us:10.2} {times:9.2} {longest:10.1}  {}\n", stage.name(), stage.meaning());
    }
    text
}

/// The decision for a case as a row tells it: in words, and the decision itself if there is one.
fn explain(rank: &Rank, case: &Case) -> (String, Option<Decided>) {
    let Some(call) = rank.call(case) else {
        return ("sends and receives: no algorithm to choose".into(), None);
    };
    match rank.comm.explain(&call) {
        Ok(Some(explained)) => (explained.text, Some(explained.decision)),
        Ok(None) => ("a loaded library does not tell".into(), None),
        Err(error) => (format!("no choice: {error:#}"), None),
    }
}
