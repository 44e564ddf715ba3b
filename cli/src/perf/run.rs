//! The job: which processes, threads and ranks there are, and what they measure.

use anyhow::{Context, Result, anyhow, bail};
use hawser_plan::{DataType, ReduceOp};

use super::barrier::Barrier;
use super::collective::Test;
use super::control::Control;
use super::launcher::{self, Place};
use super::library::{self, Id, Library};
use super::options::Options;
use super::report::{Job, Reporter};
use super::worker::Worker;

/// Runs `hawser perf`. Returns whether all results were right (always true where others report).
///
/// # Errors
/// Options, launcher, bring-up or an operation failed.
pub fn run(options: &Options) -> Result<bool> {
    launcher::end_with_starter();
    options.validate()?;
    allow_sharing();
    let place = Place::from_env()?;
    if !place.launched && options.processes.is_some_and(|n| n > 1) {
        return launcher::spawn(options.processes.unwrap_or(1)).map(|()| true);
    }
    let shape = Shape::new(options, &place)?;
    if options.graph > 0 && hawser_device::is_host() {
        bail!("graphs need CUDA: -G cannot be used on the host device");
    }
    let library = library::open(options.library.as_deref())?;
    let mut control = Control::meet(&place, options.deadline())?;
    let agree = |_| agree_on_id(library.as_ref(), &mut control, &place);
    let ids: Vec<Id> = (0..options.names.len().max(1)).map(agree).collect::<Result<_>>()?;
    let job = shape.job(library.as_ref(), &mut control, &place)?;
    let is_shared = job.has_shared_devices();
    let plan = plan(options, job.ranks)?;
    let rows = ids.len() as u64 * plan.iter().map(|series| series.rows(options)).sum::<u64>();
    let reporter = if place.process == 0 { Some(Reporter::new(options, job, rows)?) } else { None };
    if let Some(reporter) = reporter.as_ref().filter(|_| leaves_out_hypercube(options, &plan)) {
        reporter.note("hypercube is left out: it needs a power of two of ranks");
    }
    if let Some(reporter) = reporter.as_ref().filter(|_| is_shared) {
        reporter.note(&format!("ranks share GPUs ({SHARING}=1): times say nothing about links"));
    }
    let barrier = Barrier::new(control, shape.threads as usize, options.deadline());
    let worker = |thread: u32, reporter| {
        let library = library.as_ref();
        let (barrier, place, ids, plan) = (&barrier, &place, &ids, &plan);
        let context = Worker { options, library, barrier, shape, place, ids, plan, thread };
        context.run(reporter).map_err(|error| anyhow!(barrier.fail(&format!("{error:#}"))))
    };
    std::thread::scope(|scope| {
        let worker = &worker;
        scope.spawn(|| {
            if let Some(failure) = barrier.watch() {
                eprintln!("hawser: {failure}; a rank does not come back from a call, so this process ends");
                std::process::exit(1);
            }
        });
        let others: Vec<_> = (1..shape.threads).map(|t| scope.spawn(move || worker(t, None))).collect();
        let mut outcome = worker(0, reporter);
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
            outcome = outcome.and_then(|ok| ended.map(|others_ok| ok && others_ok));
        }
        barrier.finish();
        outcome
    })
}

/// The setting that lets several ranks of a communicator use one GPU.
pub(super) const SHARING: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Lets ranks share GPUs where there are too few, unless the user says otherwise. It has no effect where
/// there are enough.
pub(super) fn allow_sharing() {
    if std::env::var_os(SHARING).is_none() {
        // SAFETY: the program has one thread so far, and has not read this variable.
        unsafe { std::env::set_var(SHARING, "1") };
    }
}

/// Threads and communicators of every process.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Threads of a process.
    pub threads: u32,
    /// Communicators of a thread.
    pub gpus: u32,
    /// All ranks of the job.
    pub ranks: u32,
    /// Devices that there are; ranks share them if there are more ranks on this host.
    pub devices: u32,
}

/// All sizes of one operation with one type, reduction and root.
pub struct Series {
    /// The operation that is measured.
    pub test: Test,
    /// Element type.
    pub dtype: DataType,
    /// Reduction, if it reduces.
    pub op: Option<ReduceOp>,
    /// Root, if it has one.
    pub root: Option<u32>,
    /// The first one of its operation: prints the header.
    pub first: bool,
}

impl Series {
    fn rows(&self, options: &Options) -> u64 {
        options.sizes().len() as u64 * u64::from(options.cycles)
    }
}

impl Shape {
    fn new(options: &Options, place: &Place) -> Result<Self> {
        let chosen = place.launched || options.threads.is_some() || options.gpus.is_some();
        let (threads, gpus) = match (chosen, hawser_device::is_host()) {
            (true, _) => (options.threads.unwrap_or(1), options.gpus.unwrap_or(1)),
            (false, true) => (4, 1),
            (false, false) => (1, hawser_device::count().max(1)),
        };
        let local = threads * gpus;
        let most = hawser_plan::algo::MAX_RANKS;
        let ranks = local.checked_mul(place.processes).filter(|n| *n <= most);
        let ranks = ranks
            .ok_or_else(|| anyhow!("more than {most} ranks: lower -t, -g or the number of processes"))?;
        let shape = Self { threads, gpus, ranks, devices: hawser_device::count() };
        if shape.devices == 0 {
            bail!("there is no device: HAWSER_DEVICE=host measures on the CPU");
        }
        Ok(shape)
    }

    /// Device of the communicator with this index in its process.
    pub fn ordinal(&self, place: &Place, index: u32) -> u32 {
        (place.local * self.threads * self.gpus + index) % self.devices
    }

    /// Collects one line per rank.
    fn job(&self, library: &dyn Library, control: &mut Control, place: &Place) -> Result<Job> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut lines = Vec::new();
        for index in 0..self.threads * self.gpus {
            let ordinal = self.ordinal(place, index);
            let device = hawser_device::open(ordinal)?;
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
        Ok(Job {
            library: library.about().clone(),
            ranks: self.ranks,
            threads: self.threads,
            gpus: self.gpus,
            devices: devices.collect(),
        })
    }
}

/// The unique id that process 0 made.
pub fn agree_on_id(library: &dyn Library, control: &mut Control, place: &Place) -> Result<Id> {
    let mine = if place.process == 0 { library.unique_id()?.to_vec() } else { Vec::new() };
    let all = control.exchange(&mine)?;
    all[0].as_slice().try_into().context("process 0 sent no unique id")
}

/// The operations that are asked for, with their types, reductions and roots.
///
/// # Errors
/// A root is no rank, or nothing but a hypercube is asked for, of no power of two of ranks.
pub(super) fn plan(options: &Options, ranks: u32) -> Result<Vec<Series>> {
    let mut plan = Vec::new();
    for &test in &options.collective.0 {
        if test == Test::Hypercube && !ranks.is_power_of_two() {
            if options.collective.0.len() == 1 {
                let less = 1 << ranks.ilog2();
                bail!("hypercube needs a power of two of ranks, not {ranks}: take {less} or {}", 2 * less);
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

/// True if a hypercube is asked for among others, and the number of ranks is no power of two.
pub(super) fn leaves_out_hypercube(options: &Options, plan: &[Series]) -> bool {
    options.collective.0.contains(&Test::Hypercube)
        && plan.iter().all(|series| series.test != Test::Hypercube)
}
