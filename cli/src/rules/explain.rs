//! `hawser rules explain`: what rules make of one call.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_base::env;
use hawser_plan::choose;
use hawser_plan::{Call, Collective, DataType, ReduceOp, Topology};
use hawser_plugin::Log;
use hawser_plugin::tuner::Tuner;
use hawser_runtime::tuning::{self, CallAttributes, Tuners};
use hawser_tuner::RuleTuner;
use hawser_tuner::engine::{Engine, Outcome, describe};
use hawser_tuner::files::RuleFile;
use hawser_tuner::rule::{Job, Rule};

use crate::explain::{Asked, Machine};
use crate::perf::collective::Test;
use crate::perf::options::{parse_size, parse_type};

/// Options of `hawser rules explain`.
#[derive(Debug, Args)]
pub struct Options {
    /// Rule files, in the order in which they count
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather or scatter
    #[arg(long)]
    collective: String,
    /// Bytes of the larger of input and output
    #[arg(long, value_parser = parse_size)]
    bytes: u64,
    /// Element type
    #[arg(long, short = 'd', default_value = "float", value_parser = parse_type)]
    datatype: DataType,
    /// Reduction: sum, prod, max, min, avg or mulsum
    #[arg(long, short = 'o', default_value = "sum", value_parser = parse_op)]
    op: ReduceOp,
    /// Name of the communicator
    #[arg(long, default_value = "")]
    communicator: String,
    /// The call is captured into a CUDA graph
    #[arg(long)]
    in_graph: bool,
    /// Both buffers lie in symmetric windows
    #[arg(long)]
    registered: bool,
    /// Print the rules and what became of them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: Machine,
}

/// The text that `hawser rules explain` prints.
///
/// # Errors
/// A file cannot be used, or nothing is left to choose from.
pub fn text(options: &Options) -> Result<String> {
    let Some(Test::One(collective)) = Test::from_name(&options.collective) else {
        bail!(
            "{} is no collective: known are {}",
            options.collective,
            Collective::ALL.map(Collective::name).join(", ")
        );
    };
    let Asked { topology, mut plan_config, source } = options.machine.asked()?;
    let files: Vec<RuleFile> = options.files.iter().map(RuleFile::named).collect();
    let rules = super::read(&files)?;
    let tuner = RuleTuner::new(files);
    let name = Some(options.communicator.as_str());
    let tuners = Tuners::of(&tuner, &topology, &plan_config, name)?;
    plan_config.copy_engines = env::settings().dma_enable && tuners.wants_copy_engines();
    let (bytes, root) = (options.bytes, options.machine.root);
    let asked = Call::of_bytes(collective, bytes, options.datatype, root, topology.size());
    let call = Call { op: options.op, ..asked };
    let candidates = choose::candidates(&call, &topology, &plan_config)?;
    let attributes = CallAttributes {
        in_graph: options.in_graph,
        registered: options.registered,
        ..CallAttributes::default()
    };
    let Some((question, table)) = tuning::asked(&call, attributes, &topology, &candidates) else {
        bail!("rules are not asked about {}: it has one way only", collective.name());
    };
    let chosen = tuners.choose(&call, attributes, &topology, &plan_config)?;

    let job = Job::from(&tuning::tuner_config(0, &topology, &plan_config, name));
    let engine = Engine::new(&rules, "", &job, Log::silent());
    let mut seen: Vec<(&Rule, Outcome<'_>)> = Vec::new();
    engine.trace(&question, &table, |rule, outcome| seen.push((rule, outcome)));
    let why = chosen.choice.why.to_string();
    if options.json {
        let value = serde_json::json!({
            "collective": collective.name(),
            "bytes": question.bytes,
            "datatype": call.dtype.name(),
            "op": collective.reduces().then(|| call.op.name()),
            "ranks": topology.size(),
            "hosts": topology.hosts(),
            "device": topology.device.to_string(),
            "rules": json_rules(&rules, &job, &seen),
            "why": why,
        });
        return Ok(serde_json::to_string_pretty(&value).context("the rules as JSON")? + "\n");
    }
    let mut text = heading(&call, question.bytes, &topology, &source);
    let _ = writeln!(text, "rules of {}, in the order in which they are looked at:", tuner.name());
    list(&mut text, &rules, &job, &seen);
    let _ = writeln!(text, "what the chooser made of it:\n  {}", why.replace('\n', "\n  "));
    Ok(text)
}

/// The first line: the call, where it runs, and the origin of the cost model's constants.
fn heading(call: &Call, bytes: u64, topology: &Topology, source: &str) -> String {
    format!(
        "{} of {bytes} bytes of {}{} on {} ranks, {} {}, {} over {}, {source} constants\n",
        call.collective.name(),
        call.dtype.name(),
        if call.collective.reduces() { format!(" by {}", call.op.name()) } else { String::new() },
        topology.size(),
        topology.hosts(),
        if topology.hosts() == 1 { "host" } else { "hosts" },
        topology.device,
        topology.link.name()
    )
}

/// The rules in the order in which they are looked at.
fn ordered(rules: &[Rule]) -> Vec<&Rule> {
    let mut ordered: Vec<&Rule> = rules.iter().collect();
    ordered.sort_by_key(|rule| std::cmp::Reverse(rule.priority)); // stable
    ordered
}

/// True if a rule wins by an outcome.
fn wins(outcome: &Outcome<'_>) -> bool {
    matches!(outcome, Outcome::Taken(..) | Outcome::Default)
}

/// The rules as JSON. `outcomes` is empty for a rule that was not looked at.
fn json_rules(rules: &[Rule], job: &Job, seen: &[(&Rule, Outcome<'_>)]) -> Vec<serde_json::Value> {
    let one = |rule: &&Rule| {
        let outcomes = seen.iter().filter(|(other, _)| other.place == rule.place);
        let outcomes: Vec<_> = outcomes
            .map(|(_, outcome)| serde_json::json!({ "wins": wins(outcome), "text": describe(*outcome) }))
            .collect();
        serde_json::json!({
            "place": rule.place.to_string(),
            "name": rule.name,
            "rule": rule.to_string(),
            "is_for_communicator": rule.when.fits_job(job).is_ok(),
            "outcomes": outcomes,
        })
    };
    ordered(rules).iter().map(one).collect()
}

/// A line per rule, and below it what became of it.
fn list(text: &mut String, rules: &[Rule], job: &Job, seen: &[(&Rule, Outcome<'_>)]) {
    let ordered = ordered(rules);
    if ordered.is_empty() {
        let _ = writeln!(text, "  none");
    }
    for rule in ordered {
        let _ = writeln!(text, "  {}: {rule}", rule.title());
        let mut outcomes = seen.iter().filter(|(other, _)| other.place == rule.place).peekable();
        if let Err(key) = rule.when.fits_job(job) {
            let _ = writeln!(text, "    another communicator is meant ({key})");
        } else if outcomes.peek().is_none() {
            let _ = writeln!(
                text,
                "    not looked at: a rule before it decided, or it is for another collective"
            );
        }
        for (_, outcome) in outcomes {
            let wins = if wins(outcome) { "WINS: " } else { "" };
            let _ = writeln!(text, "    {wins}{}", describe(*outcome));
        }
    }
}

fn parse_op(text: &str) -> Result<ReduceOp, String> {
    let names = ReduceOp::ALL.map(ReduceOp::name).join(", ");
    ReduceOp::ALL.into_iter().find(|op| op.name() == text).ok_or_else(|| format!("known are {names}"))
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

    fn explained(rules: &str, arguments: &[&str]) -> String {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hawser-explain-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, rules).unwrap();
        let name = path.to_str().unwrap();
        let first = ["explain", name, "--collective", "all_reduce", "--device", "host"];
        let all = first.iter().chain(arguments);
        let line = Line::try_parse_from(all).unwrap_or_else(|error| panic!("{error}"));
        let text = text(&line.options).unwrap_or_else(|error| panic!("{error:#}")).replace(name, "R");
        std::fs::remove_file(path).unwrap();
        text
    }

    const RULES: &str = "[[rule]]\nmatch.ranks = 16\nuse = { algorithm = \"ring\" }\n\
                         [[rule]]\nname = \"small\"\npriority = 1\nmatch.bytes = \"..4K\"\nuse = \
                              { algorithm = \"one_shot\" }\n\
                         [[rule]]\nname = \"rest\"\nmatch.communicator = \"tp*\"\nuse = \
                              [{ algorithm = \"nvls\" }, { algorithm = \"tree\" }]\n\
                         [[rule]]\nuse = { algorithm = \"ring\" }\n";

    #[test]
    fn every_rule_and_the_winner_are_shown() {
        let text = explained(RULES, &["--bytes", "64K", "--ranks", "4", "--communicator", "tp_1"]);
        let wanted = "all_reduce of 65536 bytes of float by sum on 4 ranks, 1 host, host over host, built-in \
                      constants\n\
                      rules of hawser-rules, in the order in which they are looked at:\n  \
                      rule \"small\" (R:4:1): bytes ..4K -> one_shot priority 1\n    another call is meant \
                             (bytes)\n  \
                      rule at R:1:1: ranks 16 -> ring\n    another communicator is meant (ranks)\n  \
                      rule \"rest\" (R:9:1): communicator tp* -> nvls, else tree\n    nvls: impossible \
                             here\n    WINS: tree: takes tree/host/simple channels ";
        assert!(text.starts_with(wanted), "{text}");
        for part in [
            "  rule at R:13:1: always -> ring\n    not looked at",
            "what the chooser made of it:\n  all_reduce of 65536 bytes on 4 ranks\n",
            "is what tuner hawser-rules: rule \"rest\" (R:9:1) orders: ",
            "fused kernels are for GPUs",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let text = explained(RULES, &["--bytes", "4000", "--ranks", "4"]);
        assert!(text.contains("WINS: one_shot: takes one_shot/host/simple"), "{text}");
        let when =
            "[[rule]]\nmatch = { in_graph = true, registered = true }\nuse = { algorithm = \"tree\" }\n";
        for (flags, wins) in [
            (&["--in-graph", "--registered"][..], true),
            (&["--in-graph"], false),
            (&["--registered"], false),
        ] {
            let arguments = [&["--bytes", "4000", "--ranks", "4"], flags].concat();
            let text = explained(when, &arguments);
            assert_eq!(text.contains("WINS: tree"), wins, "{text}");
        }
        let text = explained("", &["--bytes", "4000", "--ranks", "4"]);
        assert!(text.contains("\n  none\n") && text.contains("predicted fastest"), "{text}");
    }
}
