//! The measurement itself: processes, threads, loops.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use hawser_plan::{DataType, ReduceOp};
use hawser_runtime::device::Graph;
use hawser_runtime::{Comm, Config, UniqueId, device, group, unique_id};

use super::collective::Test;
use super::control::Control;
use super::launcher::{self, Place};
use super::options::Options;
use super::report::{Job, Outcome, Reporter, Row};
use super::seat::{Case, Seat};
use super::team::Team;

/// Runs `hawser perf`. Returns whether all results were right (always true where others report).
///
/// # Errors
/// Options, launcher, bring-up or an operation failed.
pub fn run(options: &Options) -> Result<bool> {
    options.validate()?;
    let place = Place::from_env()?;
    if !place.launched && options.processes.is_some_and(|n| n > 1) {
        return launcher::spawn(options.processes.unwrap_or(1)).map(|()| true);
    }
    let shape = Shape::new(options, &place)?;
    if options.graph > 0 && device::is_host() {
        bail!("graphs need CUDA: -G cannot be used on the host device");
    }
    let mut control = Control::meet(&place, options.deadline())?;
    let id = agree_on_id(&mut control, &place)?;
    let job = shape.job(&mut control, &place)?;
    let plan = plan(options, job.ranks)?;
    let rows = plan.iter().map(|series| series.rows(options)).sum();
    let reporter = if place.process == 0 { Some(Reporter::new(options, job, rows)?) } else { None };
    if let Some(reporter) = reporter.as_ref().filter(|_| leaves_out_hypercube(options, &plan)) {
        reporter.note("hypercube is left out: it needs a power of two of ranks");
    }
    let team = Team::new(control, shape.threads as usize, options.deadline());
    let worker = |thread: u32, reporter| {
        let context = Worker { options, team: &team, shape, place: &place, id, plan: &plan, thread };
        context.run(reporter).map_err(|error| anyhow!(team.fail(&format!("{error:#}"))))
    };
    std::thread::scope(|scope| {
        let worker = &worker;
        scope.spawn(|| team.watch());
        let others: Vec<_> = (1..shape.threads).map(|t| scope.spawn(move || worker(t, None))).collect();
        let mut outcome = worker(0, reporter);
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
            outcome = outcome.and_then(|ok| ended.map(|others_ok| ok && others_ok));
        }
        team.finish();
        outcome
    })
}

/// Threads and communicators of every process.
#[derive(Debug, Clone, Copy)]
struct Shape {
    threads: u32,
    gpus: u32,
    ranks: u32,
}

/// All sizes of one operation with one type, reduction and root.
struct Series {
    test: Test,
    dtype: DataType,
    op: Option<ReduceOp>,
    root: Option<u32>,
    /// The first one of its operation: prints the header.
    first: bool,
}

impl Series {
    fn rows(&self, options: &Options) -> u64 {
        options.sizes().len() as u64 * u64::from(options.cycles)
    }
}

impl Shape {
    fn new(options: &Options, place: &Place) -> Result<Self> {
        let chosen = place.launched || options.threads.is_some() || options.gpus.is_some();
        let (threads, gpus) = match (chosen, device::is_host()) {
            (true, _) => (options.threads.unwrap_or(1), options.gpus.unwrap_or(1)),
            (false, true) => (4, 1),
            (false, false) => (1, device::count().max(1)),
        };
        let local = threads * gpus;
        let ranks = local.checked_mul(place.processes).filter(|n| *n <= 1024);
        let ranks =
            ranks.ok_or_else(|| anyhow!("more than 1024 ranks: lower -t, -g or the number of processes"))?;
        let (needed, count) = ((place.local + 1) * local, device::count());
        if needed > count {
            bail!(
                "process {} of this host needs GPUs {}..{}, but there are {count}; lower -t and -g or start fewer processes",
                place.local,
                place.local * local,
                needed - 1
            );
        }
        Ok(Self { threads, gpus, ranks })
    }

    fn ordinal(&self, place: &Place, index: u32) -> u32 {
        place.local * self.threads * self.gpus + index
    }

    /// Collects one line per rank.
    fn job(&self, control: &mut Control, place: &Place) -> Result<Job> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut lines = Vec::new();
        for index in 0..self.threads * self.gpus {
            let ordinal = self.ordinal(place, index);
            let device = device::open(ordinal)?;
            lines.push(format!(
                "Rank {:>2} Pid {:>6} on {:>10} device {ordinal:>2} [{}] {}",
                place.process * self.threads * self.gpus + index,
                std::process::id(),
                host.trim(),
                device.caps().id,
                device.caps().name
            ));
        }
        let all = control.exchange(lines.join("\n").as_bytes())?;
        let devices = all
            .iter()
            .flat_map(|text| String::from_utf8_lossy(text).lines().map(str::to_owned).collect::<Vec<_>>());
        Ok(Job { ranks: self.ranks, threads: self.threads, gpus: self.gpus, devices: devices.collect() })
    }
}

fn agree_on_id(control: &mut Control, place: &Place) -> Result<UniqueId> {
    let mine = if place.process == 0 { unique_id()?.to_bytes().to_vec() } else { Vec::new() };
    let all = control.exchange(&mine)?;
    let bytes: [u8; 128] =
        all[0].as_slice().try_into().map_err(|_| anyhow!("process 0 sent no unique id"))?;
    Ok(UniqueId::from_bytes(&bytes)?)
}

fn plan(options: &Options, ranks: u32) -> Result<Vec<Series>> {
    let mut plan = Vec::new();
    for &test in &options.collective.0 {
        if test == Test::Hypercube && !ranks.is_power_of_two() {
            if options.collective.0.len() == 1 {
                bail!("hypercube needs a power of two of ranks, not {ranks}");
            }
            continue;
        }
        let mut first = true;
        for &dtype in &options.types.0 {
            for op in options.ops(test) {
                for root in options.roots(test, ranks)? {
                    plan.push(Series { test, dtype, op, root, first: std::mem::take(&mut first) });
                }
            }
        }
    }
    Ok(plan)
}

fn leaves_out_hypercube(options: &Options, plan: &[Series]) -> bool {
    options.collective.0.contains(&Test::Hypercube)
        && plan.iter().all(|series| series.test != Test::Hypercube)
}

/// What one thread knows.
struct Worker<'a> {
    options: &'a Options,
    team: &'a Team,
    shape: Shape,
    place: &'a Place,
    id: UniqueId,
    plan: &'a [Series],
    thread: u32,
}

impl Worker<'_> {
    fn run(&self, mut reporter: Option<Reporter>) -> Result<bool> {
        let seats = self.sit_down()?;
        for _ in 0..self.options.cycles {
            for series in self.plan {
                if let Some(reporter) = reporter.as_mut().filter(|_| series.first) {
                    reporter.begin(series.test);
                }
                self.series(&seats, series, reporter.as_mut())?;
            }
        }
        self.barrier()?;
        let ok = reporter.map_or(Ok(true), Reporter::finish)?;
        seats.into_iter().try_for_each(Seat::close)?;
        Ok(ok)
    }

    fn sit_down(&self) -> Result<Vec<Seat>> {
        let first = (self.place.process * self.shape.threads + self.thread) * self.shape.gpus;
        let mut comms = Vec::new();
        in_group(self.shape.gpus > 1, || {
            for i in 0..self.shape.gpus {
                let ordinal = self.shape.ordinal(self.place, self.thread * self.shape.gpus + i);
                let config = Config { host: self.host(first + i), ..Config::default() };
                let comm = Comm::init(&[self.id], self.shape.ranks, first + i, ordinal, config);
                comms.push((comm.with_context(|| format!("rank {}", first + i))?, ordinal));
            }
            Ok(())
        })?;
        self.team.register(comms.iter().map(|(comm, _)| comm.clone()));
        let (bytes, unalign) = (self.options.max_bytes, self.options.unalign);
        comms
            .into_iter()
            .map(|(comm, ordinal)| Seat::new(comm, device::open(ordinal)?, bytes, unalign))
            .collect()
    }

    /// The host that a rank counts as (`--hosts`).
    fn host(&self, rank: u32) -> Option<String> {
        let hosts = self.options.hosts?.min(self.shape.ranks);
        Some(format!("part {} of {hosts}", u64::from(rank) * u64::from(hosts) / u64::from(self.shape.ranks)))
    }

    fn series(&self, seats: &[Seat], series: &Series, mut reporter: Option<&mut Reporter>) -> Result<()> {
        self.barrier()?;
        for bytes in self.options.warmup_sizes() {
            let case = self.case(series, bytes, false);
            for _ in 0..self.options.warmup {
                start(seats, &case, 1)?;
            }
            synchronize(seats)?;
        }
        for (i, bytes) in self.options.sizes().into_iter().enumerate() {
            if let Some(reporter) = &reporter {
                reporter.working(|| format!("{} {} {bytes} B", series.test.name(), series.dtype.name()));
            }
            let seed = i as u64 * 2;
            let (out_of_place, outside) = self.bench(seats, &self.case(series, bytes, false), seed)?;
            let (in_place, outside_in_place) =
                self.bench(seats, &self.case(series, bytes, true), seed + 1)?;
            let Some(reporter) = reporter.as_mut() else { continue };
            let case = self.case(series, bytes, false);
            let row = Row {
                collective: series.test.name(),
                size: case.geometry.send.max(case.geometry.recv) * series.dtype.size() as u64,
                count: case.geometry.count,
                dtype: series.dtype.name(),
                op: series.op.map_or("none", ReduceOp::name),
                root: series.root.map_or(-1, i64::from),
                out_of_place,
                in_place,
                choice: self.options.explain.then(|| explain(&seats[0], &case)),
            };
            reporter.row(row, outside + outside_in_place);
        }
        Ok(())
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
    fn bench(&self, seats: &[Seat], case: &Case, seed: u64) -> Result<(Outcome, u64)> {
        if self.options.check > 0 {
            // Numbers of moderate size, so that nothing but speed is measured.
            seats.iter().try_for_each(|seat| seat.prepare(case, seed))?;
        }
        start(seats, case, 1)?;
        synchronize(seats)?;
        self.barrier()?;
        let elapsed = self.timed(seats, case)?;
        let operations = f64::from(self.options.iterations) * f64::from(self.options.aggregated);
        let seconds = self.average(elapsed.as_secs_f64() / operations)?;
        let (algorithm, bus) = case.test.bandwidth(case.geometry, case.dtype, case.ranks, seconds);
        let (wrong, outside) = self.checked(seats, case, seed)?;
        Ok((Outcome { time_us: seconds * 1e6, algorithm, bus, wrong }, outside))
    }

    /// Time of all iterations together.
    fn timed(&self, seats: &[Seat], case: &Case) -> Result<Duration> {
        if self.options.graph > 0 {
            return self.timed_graph(seats, case);
        }
        let clock = Instant::now();
        for _ in 0..self.options.iterations {
            start(seats, case, self.options.aggregated)?;
            self.pace(seats)?;
        }
        synchronize(seats)?;
        Ok(clock.elapsed())
    }

    /// As [`Worker::timed`], all iterations in one graph: the mean of its launches.
    fn timed_graph(&self, seats: &[Seat], case: &Case) -> Result<Duration> {
        let graphs = capture(seats, || {
            (0..self.options.iterations).try_for_each(|_| start(seats, case, self.options.aggregated))
        })?;
        self.barrier()?;
        let clock = Instant::now();
        for _ in 0..self.options.graph {
            launch(seats, &graphs)?;
            self.pace(seats)?;
        }
        synchronize(seats)?;
        Ok(clock.elapsed() / self.options.graph)
    }

    /// `-z`: what happens after each iteration, or after each launch of a graph.
    fn pace(&self, seats: &[Seat]) -> Result<()> {
        if self.options.blocking > 0 {
            synchronize(seats)?;
        }
        if self.options.blocking == 1 {
            self.barrier()?;
        }
        Ok(())
    }

    /// `-a`: which time of all threads counts.
    fn average(&self, seconds: f64) -> Result<f64> {
        let rows = self.team.exchange(self.thread as usize, [seconds, 0.0, 0.0, 0.0])?;
        let times = rows.iter().map(|row| row[0]);
        Ok(match self.options.average {
            0 => rows[0][0],
            1 => times.sum::<f64>() / rows.len() as f64,
            2 => times.fold(f64::INFINITY, f64::min),
            _ => times.fold(0.0, f64::max),
        })
    }

    fn checked(&self, seats: &[Seat], case: &Case, seed: u64) -> Result<(Option<u64>, u64)> {
        if self.options.check == 0 || (case.in_place && !case.test.checks_in_place()) {
            return Ok((None, 0));
        }
        let (mut wrong, mut outside) = (0.0, 0.0);
        for repetition in 0..u64::from(self.options.check) {
            let seed = seed + 1000 * (repetition + 1);
            seats.iter().try_for_each(|seat| seat.prepare(case, seed))?;
            self.run_once(seats, case)?;
            let mut mine = [0.0; 4];
            for seat in seats {
                let findings = seat.check(case, seed)?;
                mine[0] += findings.wrong as f64;
                mine[1] += findings.outside as f64;
            }
            let rows = self.team.exchange(self.thread as usize, mine)?;
            wrong += rows.iter().map(|row| row[0]).sum::<f64>();
            outside += rows.iter().map(|row| row[1]).sum::<f64>();
            if wrong + outside > 0.0 {
                break;
            }
        }
        Ok((Some(wrong as u64), outside as u64))
    }

    /// Runs `case` to its end, with `-G` as a graph, which lives until it is over.
    fn run_once(&self, seats: &[Seat], case: &Case) -> Result<()> {
        if self.options.graph == 0 {
            start(seats, case, 1)?;
            return synchronize(seats);
        }
        let graphs = capture(seats, || start(seats, case, 1))?;
        launch(seats, &graphs)?;
        synchronize(seats)
    }

    fn barrier(&self) -> Result<()> {
        self.team.barrier(self.thread as usize)
    }
}

/// Puts `times` operations of every seat on its device, in one group if there are several.
fn start(seats: &[Seat], case: &Case, times: u32) -> Result<()> {
    if case.test == Test::Hypercube {
        for step in 0..case.ranks.trailing_zeros().max(1) {
            in_group(true, || seats.iter().try_for_each(|seat| seat.start_hypercube(case, step)))?;
        }
        return Ok(());
    }
    let several = seats.len() > 1 || times > 1 || case.test.call(0, case.dtype, case.op, 0).is_none();
    in_group(several, || {
        for _ in 0..times {
            seats.iter().try_for_each(|seat| seat.start(case))?;
        }
        Ok(())
    })
}

/// Records what `calls` starts: one graph per seat. The captures are ended in any case.
fn capture(seats: &[Seat], calls: impl FnOnce() -> Result<()>) -> Result<Vec<Graph>> {
    let mut begun = 0;
    let called = seats.iter().try_for_each(|seat| seat.begin_capture().map(|()| begun += 1));
    let called = called.and_then(|()| calls());
    let graphs: Vec<Result<Graph>> = seats[..begun].iter().map(Seat::end_capture).collect();
    called?;
    graphs.into_iter().collect()
}

fn launch(seats: &[Seat], graphs: &[Graph]) -> Result<()> {
    seats.iter().zip(graphs).try_for_each(|(seat, graph)| seat.launch(graph))
}

/// Runs `calls`, inside a group if `grouped`; the group is closed in any case.
fn in_group(grouped: bool, calls: impl FnOnce() -> Result<()>) -> Result<()> {
    if !grouped {
        return calls();
    }
    group::start()?;
    let called = calls();
    let ended = group::end();
    called?;
    Ok(ended?)
}

fn synchronize(seats: &[Seat]) -> Result<()> {
    seats.iter().try_for_each(Seat::synchronize)
}

fn explain(seat: &Seat, case: &Case) -> String {
    match seat.call(case).map(|call| seat.comm.explain(&call)) {
        Some(Ok(choice)) => choice.why.to_string(),
        Some(Err(error)) => format!("no choice: {error}"),
        None => "sends and receives: no algorithm to choose".into(),
    }
}
