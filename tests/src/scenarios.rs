//! The scenarios of the attack, each drawn from a seed: the same seed gives the same attack.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hawser_runtime::unique_id;

use crate::attack::{Kill, dice};
use crate::deadline::LIMIT;
use crate::floods::Flood;
use crate::process::Process;
use crate::stops::Stop;

/// The kinds of attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// A rank is killed: [`Kill`].
    Kill,
    /// Ranks are stopped for some seconds and go on: [`Stop`].
    Stop,
    /// Silent connections come to every port: [`Flood`].
    Flood,
    /// Ranks fork children that call what they must not.
    Fork,
    /// Several threads of each rank call with wrong arguments.
    Misuse,
    /// A file that a setting names is damaged.
    File,
}

/// Settings that name files, and the folder of the fuzzers' corpus that has files of that kind.
const FILES: [(&str, &str); 5] = [
    ("NCCL_CONF_FILE", "settings_file"),
    ("HAWSER_RULES", "rules_toml"),
    ("NCCL_TUNER_CONFIG_FILE", "rules_csv"),
    ("MSCCL_XML_FILES", "msccl_xml"),
    ("MSCCL_XML_FILES", "plan_text"),
];

/// The longest time for which ranks are stopped here; `attack --stops` has longer ones.
const LONGEST_STOP: Duration = Duration::from_secs(4);

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Kill, Self::Stop, Self::Flood, Self::Fork, Self::Misuse, Self::File];

    /// The scenario of a seed: half of them are kills.
    pub fn of(seed: u64) -> Self {
        let turn = seed % (2 * (Self::ALL.len() as u64 - 1));
        Self::ALL[usize::try_from(turn / 2 + 1).unwrap_or(0) * usize::from(turn % 2 == 1)]
    }

    /// Carries out the attack of a seed with ranks that run `binary`.
    ///
    /// # Errors
    /// The attack in words, and what ranks wrote that did not end as they should.
    pub fn carry_out(self, seed: u64, binary: &str) -> Result<(), String> {
        let say = |words: String| move |text: String| format!("{words}:\n{text}");
        match self {
            Self::Kill => {
                let kill = Kill::of(seed);
                let outcome = kill.carry_out(binary);
                let texts = [outcome.hangs, outcome.wrong].concat();
                if texts.is_empty() { Ok(()) } else { Err(say(kill.words())(texts.join("\n"))) }
            }
            Self::Stop => {
                let stop = Stop::of(seed);
                let stop = Stop { lasting: stop.lasting.min(LONGEST_STOP), ..stop };
                stop.carry_out(binary).map_err(say(stop.words()))
            }
            Self::Flood => flood(seed, binary),
            Self::Fork => {
                in_order(seed, binary, &["all_reduce", "fork-calls", "small", "fork-calls", "destroy"])
            }
            Self::Misuse => {
                let misuse = format!("misuse={seed}");
                in_order(
                    seed,
                    binary,
                    &["all_reduce", &misuse, "small", &misuse, "all_reduce", "destroy", "late"],
                )
            }
            Self::File => file(seed, binary),
        }
    }
}

fn flood(seed: u64, binary: &str) -> Result<(), String> {
    let mut below = dice(seed, 0x9e6c_63d0_876a_3f6b);
    let is_root = rustix::process::getuid().is_root();
    let flood = Flood {
        ranks: 2 + below(3) as u32,
        files: 256 << below(3),
        from_strangers: 100 + below(2_000) as u32,
        from_another_user: if is_root { below(200) as u32 } else { 0 },
        nice: 0,
    };
    let outcome = flood.carry_out(binary).map_err(|text| format!("{flood:?}:\n{text}"))?;
    let is_good = outcome.failed == 0 && outcome.opened > 0 && outcome.lines <= 100;
    if is_good { Ok(()) } else { Err(format!("{flood:?}: {outcome:?}")) }
}

/// A job whose ranks carry out these steps and all succeed, on one "host" or several.
fn in_order(seed: u64, binary: &str, steps: &[&str]) -> Result<(), String> {
    let mut below = dice(seed, 0xd6e8_feb8_6659_fd93);
    let ranks = 2 + below(3) as u32;
    let hosts = 1 + below(u64::from(ranks)) as u32;
    let id = unique_id().map_err(|error| error.into_text())?;
    let start = |rank: u32| {
        let host = format!("host {}", rank % hosts);
        Process::rank(binary, &id, (rank, ranks), steps, &[("NCCL_HOSTID", &host)])
    };
    let all: Vec<Process> = (0..ranks).map(start).collect();
    let ended: Vec<_> = all.into_iter().map(Process::end).collect();
    let bad: Vec<String> =
        ended.into_iter().filter(|end| !end.status.success()).map(|end| end.output).collect();
    if bad.is_empty() {
        Ok(())
    } else {
        Err(format!("{steps:?} of {ranks} ranks on {hosts} hosts:\n{}", bad.join("\n")))
    }
}

/// A job of two ranks with a damaged file: it works, or each rank ends with an error of the library's.
fn file(seed: u64, binary: &str) -> Result<(), String> {
    let mut below = dice(seed, 0xa076_1d64_78bd_642f);
    let (setting, folder) = FILES[below(FILES.len() as u64) as usize];
    let files = corpus(folder)?;
    let whole =
        std::fs::read(&files[below(files.len() as u64) as usize]).map_err(|error| error.to_string())?;
    let bytes = damaged(whole, &mut below);
    let path = std::env::temp_dir().join(format!("hawser-attack-{}-{seed}.xml", std::process::id()));
    std::fs::write(&path, &bytes).map_err(|error| error.to_string())?;
    let value = path.to_str().ok_or("the folder of temporary files is not UTF-8")?;
    let id = unique_id().map_err(|error| error.into_text())?;
    let start = |rank| {
        Process::rank(binary, &id, (rank, 2), &["all_reduce", "small", "destroy"], &[(setting, value)])
    };
    let mut all = [0, 1].map(start);
    let end = Instant::now() + LIMIT;
    while !all.iter_mut().all(Process::has_ended) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    let is_good = |process: &mut Process| process.has_ended() && !process.written().contains("panicked");
    let outcome = if all.iter_mut().all(is_good) {
        let bad = all.into_iter().map(Process::end).filter(|end| !matches!(end.status.code(), Some(0 | 3)));
        bad.map(|end| format!("{}:\n{}\n", end.status, end.output)).collect()
    } else {
        all.iter_mut().map(|process| process.written().to_owned() + "\n").collect::<String>()
    };
    let _ = std::fs::remove_file(&path);
    match outcome.is_empty() {
        true => Ok(()),
        false => Err(format!("{setting}={}:\n{outcome}", bytes.escape_ascii())),
    }
}

fn corpus(folder: &str) -> Result<Vec<PathBuf>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(folder);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    if files.is_empty() { Err(format!("{} is empty", folder.display())) } else { Ok(files) }
}

/// Bytes with some damage: changed, cut out, doubled, put in.
fn damaged(mut bytes: Vec<u8>, below: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
    for _ in 0..1 + below(4) {
        let length = bytes.len() as u64;
        let at = below(length + 1) as usize;
        let piece = at..(at + below(40) as usize).min(bytes.len());
        match below(5) {
            0 if at < bytes.len() => bytes[at] = below(256) as u8,
            1 => drop(bytes.drain(piece)),
            2 => bytes.extend_from_within(piece),
            3 => bytes.insert(at, b"\0\"<>[]{}=,-9\n\xff"[below(14) as usize]),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_its_turn_and_half_are_kills() {
        let turns: Vec<Scenario> = (0..10).map(Scenario::of).collect();
        assert_eq!(turns.iter().filter(|turn| **turn == Scenario::Kill).count(), 5);
        assert!(Scenario::ALL.iter().all(|scenario| turns.contains(scenario)));
    }
}
