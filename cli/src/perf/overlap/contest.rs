//! Contenders, each in processes of its own, in turns.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::super::collective::Test;
use super::contender::{Document, Figures};
use super::{Options, Role, report};
use crate::progress::Progress;
use crate::subprocess::{Folder, alone, wait};

/// A library with settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// Name in tables and options.
    pub name: &'static str,
    /// A description of the library and its settings, for people.
    pub what: String,
    role: Role,
    /// True for the library that Hawser is compared with.
    pub is_other: bool,
    settings: Vec<(&'static str, String)>,
}

/// The results of a contender.
pub struct Score {
    /// The contender whose results these are.
    pub contender: Contender,
    /// Version of its library.
    pub version: String,
    /// Figures by round, then by operation.
    pub rounds: Vec<Vec<Figures>>,
    /// The reason why the contender takes no further part.
    pub failure: Option<String>,
}

/// Lets all contenders run, and reports.
///
/// # Errors
/// A name is unknown; or a contender failed, after the others were reported.
pub fn run(options: &Options) -> Result<()> {
    let contenders = chosen(options)?;
    if options.collective.0.contains(&Test::Hypercube) {
        bail!("hypercube is several operations in a row: overlap measures single ones");
    }
    let folder = Folder::new()?;
    let score = |contender| Score { contender, version: String::new(), rounds: Vec::new(), failure: None };
    let mut scores: Vec<Score> = contenders.into_iter().map(score).collect();
    let mut about = None;
    let progress = Progress::new(u64::from(options.rounds) * scores.len() as u64, "runs");
    for round in 0..options.rounds {
        // Not always behind the same neighbour.
        scores.rotate_left(usize::from(round > 0));
        for score in scores.iter_mut().filter(|score| score.failure.is_none()) {
            progress.say(score.contender.name.to_owned());
            let measured = measure(options, &score.contender, folder.path(), round);
            progress.inc();
            match measured {
                Ok(document) => {
                    score.version.clone_from(&document.version);
                    score.rounds.push(document.figures);
                    about.get_or_insert((document.device, document.gemm));
                }
                Err(error) => score.failure = Some(format!("{error:#}")),
            }
        }
    }
    progress.end();
    let order = chosen(options)?;
    scores.sort_by_key(|score| order.iter().position(|contender| contender.name == score.contender.name));
    for score in scores.iter_mut().filter(|score| score.contender.is_other) {
        count_ctas(options, score, folder.path());
    }
    let Some((device, gemm)) = about else {
        let reason = |score: &Score| Some(format!("{}: {}", score.contender.name, score.failure.as_ref()?));
        let reasons: Vec<String> = scores.iter().filter_map(reason).collect();
        bail!("no contender came to an end: {}", reasons.join("; "));
    };
    report::write(options, &scores, &report::About { device, gemm })?;
    let failed: Vec<&str> =
        scores.iter().filter(|score| score.failure.is_some()).map(|score| score.contender.name).collect();
    if !failed.is_empty() {
        bail!("{} failed; the reasons are above", failed.join(", "));
    }
    Ok(())
}

/// The contenders that the options ask for.
fn chosen(options: &Options) -> Result<Vec<Contender>> {
    let all = contenders(options);
    if let Some(unknown) = options.only.iter().find(|name| !all.iter().any(|c| c.name == name.as_str())) {
        let names: Vec<&str> = all.iter().map(|c| c.name).collect();
        bail!("--only {unknown}: contenders are {}; those of NVIDIA's need --library", names.join(", "));
    }
    let is_wanted = |c: &Contender| options.only.is_empty() || options.only.iter().any(|name| name == c.name);
    Ok(all.into_iter().filter(is_wanted).collect())
}

fn contenders(options: &Options) -> Vec<Contender> {
    let contender = |name, what: &str, role, is_other, settings: &[(&'static str, &str)]| Contender {
        name,
        what: what.to_owned(),
        role,
        is_other,
        settings: settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
    };
    let mut free = vec![("NCCL_PASS_SM", "1")];
    if options.processes.is_none() {
        // Threads of a process copy directly only if asked; here all of them load their kernels before.
        free.push(("NCCL_ZERO_COPY", "1"));
    }
    let mut all = vec![
        contender("sm-free", "hawser, NCCL_PASS_SM=1", Role::Plain, false, &free),
        contender("kernels", "hawser, kernels", Role::Plain, false, &[("NCCL_PASS_SM", "0")]),
    ];
    if options.library.is_some() {
        let few = options.ctas.to_string();
        let capped = [("NCCL_MIN_CTAS", "1"), ("NCCL_MAX_CTAS", &*few), ("NCCL_MAX_P2P_NCHANNELS", &*few)];
        let what = format!("the other library, at most {few} CTAs");
        all.push(contender("other", "the other library", Role::Plain, true, &[]));
        all.push(contender("other-few", &what, Role::Plain, true, &capped));
        let what = "the other library, zero-CTA policy on windows";
        all.push(contender("other-zero", what, Role::ZeroCtas, true, &[]));
    }
    all
}

/// Lets one contender measure once.
fn measure(options: &Options, contender: &Contender, folder: &Path, round: u32) -> Result<Document> {
    let json = folder.join(format!("{}-{round}.json", contender.name));
    let mut command = command(options, contender, contender.role, &json)?;
    execute(&mut command, options, contender)?;
    let text = std::fs::read(&json).with_context(|| format!("{} left no figures", contender.name))?;
    serde_json::from_slice(&text).with_context(|| format!("the figures of {}", contender.name))
}

fn execute(command: &mut Command, options: &Options, contender: &Contender) -> Result<()> {
    let mut child = command.spawn().context("cannot start this program again")?;
    let operations = options.collective.0.len() as u64;
    let measured = Duration::from_millis(options.window_ms * 8 * operations);
    let status = wait(&mut child, Duration::from_secs(2 * options.timeout) + measured)?;
    if !status.success() {
        bail!("{} ended with {status}", contender.name);
    }
    Ok(())
}

fn command(options: &Options, contender: &Contender, role: Role, json: &Path) -> Result<Command> {
    let mut command = alone(&["NCCL_PASS_SM", "NCCL_ZERO_COPY", "NCCL_CTA_POLICY"])?;
    let names: Vec<&str> = options.collective.0.iter().map(|test| test.name()).collect();
    let role = match role {
        Role::Plain => "plain",
        Role::ZeroCtas => "zero-ctas",
        Role::Log => "log",
    };
    let jobs = match options.processes {
        Some(processes) => format!("-p {processes}"),
        None => format!("-t {}", options.ranks()),
    };
    let words = [
        format!("perf overlap {} {jobs} --role {role}", names.join(",")),
        format!("-b {} --gemm {} --window-ms {}", options.bytes(), options.side(), options.window_ms),
        format!("-T {}{}", options.timeout, if options.own_gemm { " --own-gemm" } else { "" }),
    ];
    command.args(words.iter().flat_map(|words| words.split_whitespace())).arg("-J").arg(json);
    if let Some(library) = options.library.as_ref().filter(|_| contender.is_other) {
        command.arg("--library").arg(library);
    }
    // What loads a kernel later may wait for GPUs that wait for this thread.
    command.env("CUDA_MODULE_LOADING", "EAGER");
    command.envs(contender.settings.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// Reads from the other library's log how many channels its operations take; leaves unknown what it does not
/// tell.
fn count_ctas(options: &Options, score: &mut Score, folder: &Path) {
    if score.failure.is_some() || score.contender.role == Role::ZeroCtas {
        return;
    }
    let log = format!("{}.log", score.contender.name);
    let json = folder.join("log.json");
    let run = command(options, &score.contender, Role::Log, &json).and_then(|mut command| {
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "TUNING,COLL");
        command.env("NCCL_DEBUG_FILE", folder.join(format!("{log}.%p")));
        execute(&mut command, options, &score.contender)
    });
    // Without a log the table has a question mark.
    if run.is_err() {
        return;
    }
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = files.filter(|file| file.file_name().to_string_lossy().starts_with(&log));
    let text: String = ours.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
    for figures in score.rounds.iter_mut().flatten() {
        figures.ctas = channels(&text, &figures.collective);
    }
}

/// The channels of the last call of a collective in a log of NCCL's.
fn channels(log: &str, collective: &str) -> Option<u32> {
    let plain = |text: &str| text.replace('_', "").to_lowercase();
    let of_call = |line: &&str| {
        line.split_whitespace().any(|word| plain(word.trim_end_matches(':')) == plain(collective))
    };
    let line = log.lines().filter(|line| line.contains("channel{Lo..Hi}={")).rfind(of_call)?;
    let range = line.split("channel{Lo..Hi}={").nth(1)?.split('}').next()?;
    let (low, high) = range.split_once("..")?;
    Some(high.trim().parse::<u32>().ok()?.checked_sub(low.trim().parse().ok()?)? + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        Line::try_parse_from(std::iter::once("overlap").chain(line.split_whitespace())).unwrap().options
    }

    #[test]
    fn contenders_have_their_settings_and_are_chosen_by_name() {
        let names = |options: &Options| -> Vec<&str> {
            chosen(options).unwrap().iter().map(|contender| contender.name).collect()
        };
        assert_eq!(names(&options("sendrecv")), ["sm-free", "kernels"]);
        let all = options("sendrecv --library /x/libnccl.so.2 --ctas 2");
        assert_eq!(names(&all), ["sm-free", "kernels", "other", "other-few", "other-zero"]);
        let few = contenders(&all).remove(3);
        assert!(few.settings.contains(&("NCCL_MAX_CTAS", "2".into())) && few.what.contains("2 CTAs"));
        assert_eq!(names(&options("--library /x --only other-zero,kernels")), ["kernels", "other-zero"]);
        let error = chosen(&options("--only other")).unwrap_err().to_string();
        assert!(error.contains("--library") && error.contains("sm-free"), "{error}");
        let zero_copy = |options: &Options| {
            contenders(options)[0].settings.iter().any(|(name, _)| *name == "NCCL_ZERO_COPY")
        };
        assert!(zero_copy(&options("-t 2")) && !zero_copy(&options("-p 2")));
    }

    #[test]
    fn channels_are_read_from_the_log() {
        let log = "host:1:2 [0] NCCL INFO AllGather: 1048576 Bytes -> Algo RING proto SIMPLE \
            channel{Lo..Hi}={0..7}\n\
                   host:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={2..2}\n";
        assert_eq!((channels(log, "all_gather"), channels(log, "all_reduce")), (Some(8), Some(1)));
        assert_eq!((channels(log, "sendrecv"), channels("", "all_gather")), (None, None));
    }
}
