//! `hawser explain --pid`: the decisions that the communicators of a process would take now.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hawser_plan::Collective;
use hawser_runtime::progress::decision::{Asked, Choice, MOST_SIZES, Told};
use hawser_runtime::rules_update::client;

use super::{Options, sizes};
use crate::output::{self, Align, Table, exact};

/// The time that a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the process, and lays the answers out.
///
/// # Errors
/// The process cannot be asked, or has no such communicator.
pub fn table(options: &Options, pid: u32, collective: Collective) -> Result<String> {
    let bytes: Vec<u64> = sizes(options.bytes).take(MOST_SIZES).collect();
    let (datatype, root) = (options.datatype.name().to_owned(), options.machine.root);
    let asked = Asked { collective: collective.name().to_owned(), datatype, root, bytes };
    let mut all = client::decide(pid, &asked, PATIENCE).map_err(|error| anyhow::anyhow!("{error}"))?;
    if let Some(pattern) = &options.communicator {
        all.retain(|told| hawser_tuner::matches_glob(pattern, &told.name));
    }
    if all.is_empty() {
        bail!("process {pid} has no such communicator of more than one rank; hawser rules list shows them");
    }
    if options.changes {
        let way = |c: &Choice| (c.algorithm.clone(), c.executor.clone(), c.protocol.clone());
        all.iter_mut().for_each(|told| told.choices.dedup_by_key(|choice| way(choice)));
    }
    if options.json {
        return Ok(serde_json::to_string_pretty(&all).context("the decisions as JSON")? + "\n");
    }
    let with_why = options.full || options.bytes.0 == options.bytes.1;
    Ok(all.iter().map(|told| text(told, pid, collective, with_why)).collect())
}

fn text(told: &Told, pid: u32, collective: Collective, with_why: bool) -> String {
    let Told { communicator, name, rank, ranks, hosts, device, link, begun, rules, choices } = told;
    let hosts = if *hosts > 1 { format!(" of {hosts} hosts") } else { String::new() };
    let rules = if rules.is_empty() { "no rules" } else { rules };
    let mut text = format!(
        "# {} on {ranks} ranks{hosts}, {device} over {link}: communicator {name} ({communicator}), \
         rank {rank} of process {pid}, after {begun} collectives; {rules}\n",
        collective.name()
    );
    let mut table = Table::new([
        ("size", Align::Right),
        ("algorithm", Align::Left),
        ("executor", Align::Left),
        ("protocol", Align::Left),
        ("strategy", Align::Left),
        ("channels", Align::Right),
        ("threads", Align::Right),
        ("predicted µs", Align::Right),
        ("decided by", Align::Left),
    ]);
    for choice in choices {
        table.row([
            exact(choice.bytes),
            choice.algorithm.clone(),
            choice.executor.clone(),
            choice.protocol.clone(),
            if choice.zero_copy { "zero_copy" } else { "-" }.to_owned(),
            choice.channels.to_string(),
            choice.threads.to_string(),
            format!("{:.1}", choice.predicted_us),
            choice.rule.clone().unwrap_or_else(|| "the cost model".to_owned()),
        ]);
    }
    let rows = table.lines();
    let (head, rows) = rows.split_first().map_or(("", &[][..]), |(head, rows)| (head, rows));
    let _ = writeln!(text, "{}", output::styled(output::HEADING, head));
    for (row, choice) in rows.iter().zip(choices) {
        let _ = writeln!(text, "{row}");
        for line in choice.why.lines().filter(|_| with_why) {
            let _ = writeln!(text, "#   {line}");
        }
    }
    text
}
