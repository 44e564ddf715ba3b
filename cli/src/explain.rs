//! `hawser explain`: shows which algorithm, executor, protocol and number of channels each size gets, and
//! why, without running anything.

mod calls;
mod living;
mod machine;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_base::env;
use hawser_plan::choose::Candidate;
use hawser_plan::executor::{self, Decided, fused};
use hawser_plan::topology::DeviceKind;
use hawser_plan::{Call, Collective, DataType, Decision, Executor, PlanConfig, Topology};
use hawser_runtime::tuning::{CallAttributes, TunedDecision, Tuners};
use hawser_tuner::RuleTuner;
use hawser_tuner::files;
use serde_json::json;

pub use self::machine::{Asked, Machine};
use crate::output::{self, Align, Table, exact};
use crate::perf::collective::{Geometry, Test};
use crate::perf::options::{parse_size, parse_type};

/// Options of `hawser explain`.
#[derive(Debug, Args)]
pub struct Options {
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather or scatter
    #[arg(required_unless_present = "calls")]
    collective: Option<String>,
    /// Explain each call of this file instead, a line each: collective, bytes, type and root, as in
    /// `all_gather 64K bfloat16 0`; prints an array
    #[arg(long, value_name = "FILE", requires = "json",
          conflicts_with_all = ["collective", "bytes", "datatype", "changes", "pid"])]
    calls: Option<PathBuf>,
    /// A size, or the first and last of a range of doubled ones: 1K..1G
    #[arg(long, default_value = "1K..1G", value_parser = parse_range)]
    bytes: (u64, u64),
    /// Element type
    #[arg(long, short = 'd', default_value = "float", value_parser = parse_type)]
    datatype: DataType,
    /// Rule files, separated by commas, in the order in which they count; none = no rules [default: those
    /// that a job started here would have: HAWSER_RULES, or the usual places]
    #[arg(long, value_name = "FILES")]
    rules: Option<String>,
    /// Only sizes at which another algorithm, executor or protocol takes over
    #[arg(long)]
    changes: bool,
    /// All candidates of every size, and what rules make of it
    #[arg(long)]
    full: bool,
    /// Print the choices as JSON
    #[arg(long, conflicts_with = "full")]
    json: bool,
    /// Ask the communicators of this process of this user, on this host, as they are now: their ranks, their
    /// rules and what adaptive mode has learned
    #[arg(long, value_name = "PID", conflicts_with_all = ["rules", "ranks", "hosts", "per_host", "gpus",
          "device", "link", "one_process", "windows", "links", "cluster"])]
    pid: Option<u32>,
    /// Only communicators with this name; * and ? stand for any letters
    #[arg(long, requires = "pid")]
    communicator: Option<String>,
    #[command(flatten)]
    machine: Machine,
}

/// Runs `hawser explain`.
///
/// # Errors
/// The collective has no choice, or nothing is left to choose from.
pub fn run(options: &Options) -> Result<()> {
    if let Some(path) = &options.calls {
        return output::print(&calls::explained(options, path)?);
    }
    let collective = collective_of(options.collective.as_deref().unwrap_or_default())?;
    let text = match options.pid {
        Some(pid) => living::table(options, pid, collective)?,
        None => table(options, collective)?,
    };
    output::print(&text)
}

/// The collective of this name.
fn collective_of(name: &str) -> Result<Collective> {
    match Test::from_name(name) {
        Some(Test::One(collective)) if collective != Collective::SendRecv => Ok(collective),
        _ => bail!(
            "{name} has no algorithm to choose; known are {}",
            Collective::ALL.map(Collective::name).join(", ")
        ),
    }
}

/// The decision for one size.
#[derive(Debug, Clone)]
pub struct Line {
    /// Bytes of the larger of input and output.
    pub bytes: u64,
    /// The choice of the planner.
    pub choice: Decision,
    /// The blocks in which rank 0 runs it: the size may ask for fewer than the choice has.
    pub blocks: u32,
    /// GB/s of the bus that were predicted.
    pub busbw: f64,
    /// The fastest of the other candidates that the planner may take by itself.
    pub next: Option<Candidate>,
    /// The reason why data go through staging, where they could go without on this device.
    staged: Option<String>,
    /// The notes of rules about it.
    notes: Vec<String>,
}

impl Line {
    /// Asks the planner, and the tuners, for the largest size up to `bytes` that the collective has.
    ///
    /// # Errors
    /// Nothing is left to choose from.
    pub fn new(
        (collective, root): (Collective, u32),
        bytes: u64,
        dtype: DataType,
        (topology, plan_config): (&Topology, &PlanConfig),
        tuners: &Tuners,
    ) -> Result<Self> {
        let ranks = topology.size();
        let call = Call::of_bytes(collective, bytes, dtype, root, ranks);
        let attributes = CallAttributes::default();
        let TunedDecision { choice, notes, .. } = tuners.choose(&call, attributes, topology, plan_config)?;
        let config = tuners.plan_config(&call, attributes, topology, &choice, plan_config);
        let decided = Decided { call: &call, decision: &choice, rank: 0, topology, config: &config };
        // One rank copies, and nothing is nobody's work.
        let runs = ranks > 1 && call.count > 0;
        let blocks = if runs { executor::blocks(&decided)?.into() } else { choice.channels };
        let own = (choice.key.algorithm, choice.route);
        let others = choice.why.candidates.iter().filter(|c| (c.algorithm, c.route) != own);
        // What was not measured in such a topology is taken only if somebody names it.
        let possible = others.filter(|c| c.held.is_none() && c.is_measured && c.us().is_some());
        let next = possible.min_by(|a, b| a.us().unwrap_or_default().total_cmp(&b.us().unwrap_or_default()));
        let next = next.cloned();
        let test = Test::One(collective);
        let geometry = Geometry {
            count: call.count,
            send: call.count * u64::from(collective.input_blocks(ranks)),
            recv: call.count * u64::from(collective.output_blocks(ranks)),
        };
        let busbw = test.bandwidth(geometry, dtype, ranks, f64::from(choice.predicted_us) / 1e6).1;
        let goes_by_kernels = !choice.route.zero_copy && choice.route.executor != Executor::CopyEngine;
        let staged = (runs && topology.device != DeviceKind::Host && goes_by_kernels)
            .then(|| fused::why_staged(&call, topology));
        Ok(Self { bytes: call.total_bytes(ranks), choice, blocks, busbw, next, staged, notes })
    }

    /// True if another algorithm or protocol is chosen than in `other`.
    pub fn differs(&self, other: &Line) -> bool {
        let way = |line: &Line| (line.choice.key.algorithm, line.choice.route);
        way(self) != way(other)
    }
}

/// The lines as a table, its headings first.
pub fn table_of(lines: &[Line]) -> Vec<String> {
    let mut table = Table::new([
        ("size", Align::Right),
        ("algorithm", Align::Left),
        ("executor", Align::Left),
        ("protocol", Align::Left),
        ("strategy", Align::Left),
        ("channels", Align::Right),
        ("threads", Align::Right),
        ("predicted µs", Align::Right),
        ("busbw GB/s", Align::Right),
        ("next best", Align::Left),
        ("µs", Align::Right),
    ]);
    for line in lines {
        let route = line.choice.route;
        let (next, us) = match &line.next {
            Some(next) => (
                format!("{} {}", next.algorithm.name(), next.route.name()),
                format!("{:.1}", next.us().unwrap_or_default()),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        table.row([
            exact(line.bytes),
            line.choice.key.algorithm.name().to_owned(),
            route.executor.name().to_owned(),
            route.protocol.name().to_owned(),
            if route.zero_copy { "zero_copy" } else { "-" }.to_owned(),
            line.blocks.to_string(),
            line.choice.threads.to_string(),
            format!("{:.1}", line.choice.predicted_us),
            format!("{:.2}", line.busbw),
            next,
            us,
        ]);
    }
    table.lines()
}

fn json_of_all(
    collective: Collective,
    topology: &Topology,
    source: &str,
    lines: &[Line],
) -> serde_json::Value {
    json!({
        "collective": collective.name(), "ranks": topology.size(), "hosts": topology.hosts(),
        "device": topology.device.to_string(), "link": topology.link.name(), "constants": source,
        "choices": lines.iter().map(json_of).collect::<Vec<_>>(),
    })
}

fn json_of(line: &Line) -> serde_json::Value {
    let route = line.choice.route;
    json!({
        "bytes": line.bytes,
        "algorithm": line.choice.key.algorithm.name(),
        "executor": route.executor.name(),
        "protocol": route.protocol.name(),
        "zero_copy": route.zero_copy,
        "staged": line.staged,
        "channels": line.blocks,
        "threads": line.choice.threads,
        "predicted_us": line.choice.predicted_us,
        "busbw_gbs": line.busbw,
        "next": line.next.as_ref().map(|next| json!({
            "algorithm": next.algorithm.name(), "route": next.route.name(), "predicted_us": next.us()
        })),
        "order": line.choice.why.order,
        "why": line.choice.why.to_string(),
        "rules": line.notes,
    })
}

/// The sizes of a range at which the way changes, the first size included. Without rules.
///
/// # Errors
/// As [`Line::new`].
pub fn changes(
    collective: Collective,
    bytes: (u64, u64),
    dtype: DataType,
    topology: &Topology,
    plan_config: &PlanConfig,
) -> Result<Vec<Line>> {
    let tuners = Tuners::default();
    let line = |bytes| Line::new((collective, 0), bytes, dtype, (topology, plan_config), &tuners);
    changing(sizes(bytes).map(line))
}

fn changing(all: impl Iterator<Item = Result<Line>>) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for line in all {
        let line = line?;
        if lines.last().is_none_or(|last| line.differs(last)) {
            lines.push(line);
        }
    }
    Ok(lines)
}

fn table(options: &Options, collective: Collective) -> Result<String> {
    let Asked { topology, mut plan_config, source } = options.machine.asked()?;
    let (bytes, dtype) = (options.bytes, options.datatype);
    let (tuners, rules) = tuners(options.rules.as_deref(), &topology, &plan_config)?;
    plan_config.copy_engines = env::settings().dma_enable && tuners.wants_copy_engines();
    let root = options.machine.root;
    if root >= topology.size() {
        bail!("--root {root} is no rank: there are {}", topology.size());
    }
    let line = |bytes| Line::new((collective, root), bytes, dtype, (&topology, &plan_config), &tuners);
    let all = sizes(bytes).map(line);
    let lines = if options.changes { changing(all)? } else { all.collect::<Result<_>>()? };
    if options.json {
        let value = json_of_all(collective, &topology, &source, &lines);
        return Ok(serde_json::to_string_pretty(&value).context("the choices as JSON")? + "\n");
    }
    let mut text = format!(
        "# {} on {} ranks{}, {} over {}, {source} constants{rules}\n",
        collective.name(),
        topology.size(),
        if topology.hosts() > 1 { format!(" of {} hosts", topology.hosts()) } else { String::new() },
        topology.device,
        topology.link.name()
    );
    if let Some(order) = lines.iter().find_map(|line| line.choice.why.order.as_ref()) {
        let _ = writeln!(text, "# declared order, {order}");
    }
    let rows = table_of(&lines);
    let (head, rows) = rows.split_first().context("a table without a head")?;
    let _ = writeln!(text, "{}", output::styled(output::HEADING, head));
    for (row, line) in rows.iter().zip(lines) {
        let _ = writeln!(text, "{row}");
        if options.full || bytes.0 == bytes.1 {
            if let Some(why) = &line.staged {
                let _ = writeln!(text, "#   staged: {why}");
            }
            let chosen = TunedDecision { choice: line.choice, notes: line.notes, class: None };
            for line in chosen.to_string().lines() {
                let _ = writeln!(text, "#   {line}");
            }
        }
    }
    Ok(text)
}

/// The tuner of these rule files, and how the heading goes on.
///
/// # Errors
/// A rule file cannot be read.
pub fn tuners(
    names: Option<&str>,
    topology: &Topology,
    plan_config: &PlanConfig,
) -> Result<(Tuners, String)> {
    let tuner = names.map_or_else(RuleTuner::built_in, |names| RuleTuner::new(files::named_in(names)));
    let files = tuner.files();
    if files.is_empty() {
        return Ok((Tuners::default(), String::new()));
    }
    let shown: Vec<String> = files.iter().map(|file| file.path.display().to_string()).collect();
    let tuners = Tuners::of(&tuner, topology, plan_config, None)?;
    Ok((tuners, format!(", rules of {}", shown.join(", "))))
}

fn sizes((first, last): (u64, u64)) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |s| s.max(&1).checked_mul(2)).take_while(move |s| *s <= last)
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let range = (parse_size(first)?, parse_size(last.trim_start_matches('='))?);
    if range.0 > range.1 { Err(format!("{text} is empty: write the smaller size first")) } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use hawser_plan::topology::Link;

    use super::machine::{parse_device, parse_link};
    use super::*;

    #[test]
    fn ranges_parse() {
        assert_eq!(parse_range("1K..4K"), Ok((1024, 4096)));
        assert_eq!(parse_range("8"), Ok((8, 8)));
        assert!(parse_range("4K..1K").is_err() && parse_range("a..b").is_err());
        assert_eq!(sizes((1, 5)).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(sizes((0, 2)).collect::<Vec<_>>(), [0, 2]);
    }

    fn options(collective: Collective, device: DeviceKind, (ranks, hosts): (u32, u32)) -> Options {
        Options {
            collective: Some(collective.name().into()),
            calls: None,
            bytes: (1 << 10, 1 << 20),
            datatype: DataType::Float32,
            rules: Some("none".into()),
            changes: false,
            full: false,
            json: false,
            pid: None,
            communicator: None,
            machine: Machine {
                ranks,
                hosts,
                per_host: Vec::new(),
                gpus: None,
                root: 0,
                device,
                link: None,
                links: None,
                one_process: false,
                windows: false,
                cluster: None,
            },
        }
    }

    fn rows(text: &str) -> Vec<&str> {
        text.lines().filter(|l| l.contains("iB  ") || l.contains(" B  ")).collect()
    }

    #[test]
    fn every_collective_and_machine_has_a_table() {
        for collective in Collective::ALL {
            for device in ["host", "h200", "cuda:80"].map(|name| parse_device(name).unwrap()) {
                for shape in [(1, 1), (3, 1), (8, 1), (8, 2), (6, 6)] {
                    let options = Options { full: true, ..options(collective, device, shape) };
                    let text = table(&options, collective)
                        .unwrap_or_else(|e| panic!("{collective:?} {device:?}: {e}"));
                    assert!(rows(&text).len() == 11 && text.contains("decided"), "{text}");
                }
            }
        }
    }

    /// The planner does not choose what was not measured on such machines. Where that is predicted faster,
    /// the decision names it.
    #[test]
    fn what_is_predicted_faster_but_was_not_measured_is_named() {
        let bytes = (1 << 10, 1 << 10);
        let base = options(Collective::AllReduce, DeviceKind::Cuda { sm: 90 }, (32, 4));
        let text = table(&Options { bytes, ..base }, Collective::AllReduce).unwrap();
        let micros = |line: &str| line.split(" µs").next()?.rsplit(' ').next()?.parse::<f64>().ok();
        let (others, measured): (Vec<_>, Vec<_>) = text
            .lines()
            .filter(|line| line.starts_with("#     ") && line.contains(" blocks"))
            .filter(|line| !line.contains("decided: "))
            .partition(|line| line.contains("not measured on such machines"));
        let least =
            |lines: &[&str]| lines.iter().filter_map(|line| micros(line)).fold(f64::INFINITY, f64::min);
        let (chosen, faster) = (least(&measured), least(&others));
        assert!(faster < chosen && chosen.is_finite(), "{text}");
        let decided = text.lines().find(|line| line.contains("decided: ")).expect("a decision");
        let is_said = format!("is predicted fastest of what may run: {chosen:.1} µs, of what was measured");
        let is_named = format!("({faster:.1} µs) was not, and runs only if NCCL_ALGO or a rule names it");
        assert!(decided.contains(&is_said) && decided.contains(&is_named), "{decided}");
    }

    #[test]
    fn changes_are_the_lines_that_differ() {
        let device = DeviceKind::Cuda { sm: 90 };
        let all = Options { bytes: (8, 8 << 30), ..options(Collective::AllReduce, device, (8, 1)) };
        let text = table(&all, Collective::AllReduce).unwrap();
        let few = table(&Options { changes: true, ..all }, Collective::AllReduce).unwrap();
        let way = |row: &str| row.split_whitespace().skip(2).take(4).map(str::to_owned).collect::<Vec<_>>();
        let mut expected: Vec<_> = rows(&text).into_iter().map(way).collect();
        assert_eq!(expected.len(), 31, "{text}");
        expected.dedup();
        let few_ways: Vec<_> = rows(&few).into_iter().map(way).collect();
        assert!(expected.len() > 2 && expected == few_ways, "{few}");
    }

    #[test]
    fn links_and_devices_have_names() {
        assert_eq!(parse_device("H200"), parse_device("cuda:90"));
        assert!(parse_device("gpu").is_err() && parse_link("sli").is_err());
        let with = |device, link| {
            let base = options(Collective::AllReduce, device, (2, 1));
            let machine = Machine { link: Some(link), ..base.machine.clone() };
            table(&Options { machine, ..base }, Collective::AllReduce)
        };
        let host = with(DeviceKind::Host, Link::NvLink).unwrap_err().to_string();
        assert!(host.contains("--link host"), "{host}");
        let base = options(Collective::AllReduce, DeviceKind::Host, (4, 1));
        let machine = Machine { gpus: Some(1), ..base.machine.clone() };
        let none = table(&Options { machine, ..base }, Collective::AllReduce).unwrap_err().to_string();
        assert!(none.contains("--gpus"), "{none}");
        let text = with(DeviceKind::Cuda { sm: 90 }, Link::Pcie).unwrap();
        assert!(text.contains("cuda:90 over pcie, built-in") && !text.contains("LL128"), "{text}");
    }

    #[test]
    fn ranks_that_share_a_gpu_take_turns() {
        let base = options(Collective::AllReduce, DeviceKind::Cuda { sm: 90 }, (6, 2));
        let machine = Machine { gpus: Some(2), ..base.machine };
        let (topology, _) = machine.topology().unwrap();
        let devices: Vec<&str> = topology.ranks.iter().map(|rank| rank.device.as_str()).collect();
        assert_eq!((devices, topology.most_on_a_device()), (vec!["0", "1", "0", "0", "1", "0"], 2));
    }

    #[test]
    fn rules_change_the_table_and_are_named() {
        let path = std::env::temp_dir().join(format!("hawser-table-{}.toml", std::process::id()));
        std::fs::write(
            &path,
            "[[rule]]\nmatch.bytes = \"64K..\"\nuse = { algorithm = \"tree\", protocol = \"simple\" }\n",
        )
        .unwrap();
        let name = path.display().to_string();
        let base = options(Collective::AllReduce, DeviceKind::Cuda { sm: 90 }, (8, 1));
        let ruled = Options { rules: Some(name.clone()), full: true, ..base };
        let text = table(&ruled, Collective::AllReduce).unwrap();
        assert!(text.lines().next().unwrap().ends_with(&format!("constants, rules of {name}")), "{text}");
        for row in rows(&text) {
            let mut words = row.split_whitespace();
            let number = words.next().unwrap().parse::<u64>().unwrap();
            let large = words.next() == Some("MiB") || number >= 64;
            assert_eq!(words.next() == Some("Tree"), large, "{row}");
            assert!(
                words.nth(5).unwrap().parse::<f64>().unwrap() > 0.0,
                "an order has a predicted time: {row}"
            );
        }
        let place = format!("tuner hawser-rules: rule at {name}:1:1");
        assert!(text.contains(&format!("#     {place}")) && text.contains("no rule decided"), "{text}");
        let few = table(&Options { changes: true, full: false, ..ruled }, Collective::AllReduce).unwrap();
        assert_eq!(rows(&few).last().map(|row| row.contains(" Tree ")), Some(true), "{few}");
        std::fs::write(&path, "[[rule]]\nuse = 1\n").unwrap();
        let broken = options(Collective::AllReduce, DeviceKind::Host, (2, 1));
        let broken = Options { rules: Some(name.clone()), ..broken };
        let error = format!("{:#}", table(&broken, Collective::AllReduce).unwrap_err());
        assert!(error.contains(&format!("{name}:2:7: an action is a table")), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
