//! Ranks that are stopped (SIGSTOP) for a while, by seed: nobody may take them for dead.

use std::time::Duration;

use hawser_runtime::unique_id;

use crate::attack::dice;
use crate::process::Process;

/// A job some of whose ranks are stopped and go on later.
#[derive(Debug, Clone)]
pub struct Stop {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of "hosts".
    pub hosts: u32,
    /// The ranks that are stopped.
    pub stopped: Vec<u32>,
    /// The time for which they are stopped.
    pub lasting: Duration,
}

impl Stop {
    /// The stop of a seed: of one rank, of some or of all, for 1 to 60 seconds.
    pub fn of(seed: u64) -> Self {
        let mut below = dice(seed, 0x2545_f491_4f6c_dd1d);
        let ranks = 2 + below(3) as u32;
        let hosts = if below(2) == 0 { 1 } else { 2 + below(u64::from(ranks) - 1) as u32 };
        let stopped = match below(4) {
            0 => (0..ranks).collect(),
            1 => (0..ranks).filter(|_| below(2) == 0).collect(),
            _ => vec![below(u64::from(ranks)) as u32],
        };
        Self { ranks, hosts, stopped, lasting: Duration::from_secs(1 + below(60)) }
    }

    /// In words, for tables.
    pub fn words(&self) -> String {
        let Stop { ranks, hosts, stopped, lasting } = self;
        format!("ranks {stopped:?} of {ranks} on {hosts} hosts, for {} s", lasting.as_secs())
    }

    /// Carries it out with ranks that run `binary`.
    ///
    /// # Errors
    /// The text is what the ranks wrote that did not end well.
    pub fn carry_out(&self, binary: &str) -> Result<(), String> {
        let id = unique_id().expect("a unique id");
        let start = |rank: u32| {
            let host = format!("host {}", rank % self.hosts);
            let settings = [("NCCL_HOSTID", host.as_str())];
            let used = if self.hosts > 1 { &settings[..] } else { &[] };
            Process::rank(binary, &id, (rank, self.ranks), &["mark", "rounds", "destroy"], used)
        };
        let mut all: Vec<Process> = (0..self.ranks).map(start).collect();
        all.iter_mut().for_each(|process| process.wait_for("mark"));
        let stopped = || self.stopped.iter().map(|rank| &all[*rank as usize]);
        stopped().for_each(|process| process.signal("STOP"));
        std::thread::sleep(self.lasting);
        stopped().for_each(|process| process.signal("CONT"));
        if !all[0].has_ended() {
            all[0].tell("stop");
        }
        let ended = all.into_iter().map(Process::end);
        let bad: Vec<String> = ended.filter(|end| !end.status.success()).map(|end| end.output).collect();
        if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
    }
}
