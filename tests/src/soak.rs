//! Ranks that sleep for random times between operations, always for less than `HAWSER_HANG_AFTER`: nothing
//! hangs, so no verdict may come.

use std::time::{Duration, Instant};

use hawser_plan::Collective;
use hawser_runtime::{Comm, Error, Result, Stream, unique_id};

use crate::oracle::Buffer;
use crate::process::Process;
use crate::world;

/// The first words of the report that comes after `HAWSER_HANG_AFTER`. The line that warns before half of it
/// does not begin so, and is right: some sleeps are longer.
const VERDICT: &str = "nothing has moved for";

/// A soak.
#[derive(Debug, Clone, Copy)]
pub struct Soak {
    /// Ranks, each a process.
    pub ranks: u32,
    /// Hosts, which the ranks take in turns.
    pub hosts: u32,
    /// `HAWSER_HANG_AFTER`, in seconds.
    pub hang_after: u32,
    /// The time that it lasts.
    pub time: Duration,
    /// The seed of its random numbers.
    pub seed: u64,
}

/// The findings of a soak.
#[derive(Debug, Default)]
pub struct Findings {
    /// Operations that each rank has called.
    pub operations: u64,
    /// The longest time that an operation was open on any rank.
    pub longest: Duration,
    /// The verdicts that came, and the ranks that failed.
    pub wrong: Vec<String>,
}

impl Soak {
    /// Runs the ranks to their end.
    pub fn carry_out(&self, binary: &str) -> Findings {
        let Self { ranks, hosts, hang_after, time, seed } = *self;
        let id = unique_id().expect("a unique id");
        let after = hang_after.to_string();
        let step = format!("soak={seed}/{}/{}", u64::from(hang_after) * 1000, time.as_millis());
        let start = |rank: u32| {
            let host = format!("host {}", rank % hosts);
            let mut settings = vec![("HAWSER_HANG_AFTER", &*after)];
            if hosts > 1 {
                settings.push(("NCCL_HOSTID", &*host));
            }
            Process::rank(binary, &id, (rank, ranks), &[&step, "finalize", "destroy"], &settings)
        };
        let processes: Vec<Process> = (0..ranks).map(start).collect();
        // Beyond the limit of a process that has nothing to do but end.
        std::thread::sleep(time);
        let mut findings = Findings::default();
        for (rank, ended) in processes.into_iter().map(Process::end).enumerate() {
            let is_report = |line: &str| line.starts_with(VERDICT);
            if !ended.status.success() || ended.output.lines().any(is_report) {
                findings.wrong.push(format!("rank {rank}, {}:\n{}", ended.status, ended.output));
            }
            let told = ended.output.lines().find_map(|line| line.strip_prefix("soaked "));
            let mut numbers = told.unwrap_or_default().split(' ').filter_map(|word| word.parse::<u64>().ok());
            findings.operations = findings.operations.max(numbers.next().unwrap_or(0));
            findings.longest = findings.longest.max(Duration::from_millis(numbers.next().unwrap_or(0)));
        }
        findings
    }
}

/// The step of a rank: `SEED/LIMIT/TIME`, the last two in milliseconds. All ranks draw the same operations
/// and pauses of their own, of which most are short and some come near to the limit.
pub fn step(comm: &Comm, text: &str) -> Result<()> {
    let bad = || Error::invalid_argument(format!("no soak {text}"));
    let numbers: Vec<u64> = text.split('/').filter_map(|word| word.parse().ok()).collect();
    let &[seed, limit, time] = &numbers[..] else { return Err(bad()) };
    let (mut same, mut own) = (Random(seed | 1), Random((seed ^ u64::from(comm.rank()) << 32) | 1));
    let begin = Instant::now();
    let (mut operations, mut longest) = (0u64, Duration::ZERO);
    let collectives =
        [Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::AllToAll];
    loop {
        // All meet before each pause, so that nobody waits for two of another rank, and end together.
        let is_over = comm.rank() == 0 && begin.elapsed() >= Duration::from_millis(time);
        if any_says(comm, is_over)? {
            break;
        }
        // One in eight sleeps long; a third of the limit is left for a machine with much else to do.
        let most = if own.below(8) == 0 { limit * 2 / 3 } else { limit / 50 };
        std::thread::sleep(Duration::from_millis(own.below(most.max(1))));
        let collective = collectives[same.below(4) as usize];
        let count = 1 + same.below(50_000) as usize;
        let called = Instant::now();
        world::run(comm, world::plain(collective, comm.ranks(), count), false, 0)?;
        longest = longest.max(called.elapsed());
        operations += 2;
    }
    println!("soaked {operations} {}", longest.as_millis());
    Ok(())
}

/// Returns whether any rank says yes, when all have said something.
fn any_says(comm: &Comm, yes: bool) -> Result<bool> {
    let case = world::plain(Collective::AllReduce, comm.ranks(), 1);
    let (mut said, sum) = (Buffer::new(4, 0), Buffer::new(4, 0));
    said.bytes_mut().copy_from_slice(&f32::from(yes).to_le_bytes());
    comm.collective(world::call(&case, comm.rank(), (said.addr(), sum.addr())), Stream(0))?;
    Ok(sum.bytes().iter().any(|byte| *byte != 0))
}

/// Numbers that look random (xorshift), drawn by a seed other than 0.
pub struct Random(pub u64);

impl Random {
    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
