//! The output of `hawser simulate`: the operations, the times of ranks, and the links.

use std::fmt::Write as _;
use std::path::Path;

use hawser_sim::Cluster;
use hawser_sim::links::{Links, Name};
use hawser_sim::step::{Kind, Op, Shares, Step, Timeline, shares};
use serde_json::{Value, json};

use super::alone::Times;
use crate::output::{self, Align};

/// Most classes of ranks that are printed.
const MOST_CLASSES: usize = 8;

/// A step that was simulated.
pub struct Report<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The step.
    pub step: &'a Step,
    /// The times of operations alone.
    pub times: &'a Times<'a>,
    /// The times at which operations ran, and the use of links.
    pub timeline: &'a Timeline,
    /// The links of the cluster.
    pub links: &'a Links<'a>,
    /// Sentences about the step.
    pub notes: &'a [String],
}

/// Operations that are equal but for when they run.
pub struct Row<'a> {
    /// One of them.
    pub op: &'a Op,
    /// Their number.
    pub count: usize,
    /// The time of one alone, in µs; None if it is not known.
    pub alone_us: Option<f64>,
    /// The mean time in the step.
    pub us: f64,
    /// The decisions by which it runs.
    pub how: String,
}

/// The use of the links of a kind.
pub struct Use {
    /// The kind.
    pub kind: &'static str,
    /// The number of links of this kind.
    pub links: u32,
    /// The mean use over the step.
    pub mean: f64,
    /// The busiest link.
    pub busiest: Name,
    /// Its use over the step.
    pub most: f64,
}

/// The number of links of a kind, the sum of their uses, and the busiest one with its use.
type OfKind = (u32, f64, Option<(u32, f64)>);

/// The operations by what they are, in the order in which they come first.
fn rows<'a>(step: &'a Step, times: &Times<'_>, timeline: Option<&Timeline>) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (at, op) in step.ops.iter().enumerate() {
        let us = timeline.map_or(0.0, |timeline| timeline.spans[at].us());
        let is_equal =
            |row: &&mut Row<'_>| (&row.op.name, row.op.kind, row.op.group) == (&op.name, op.kind, op.group);
        if let Some(row) = rows.iter_mut().find(is_equal) {
            (row.count, row.us) = (row.count + 1, row.us + us);
            continue;
        }
        let found = times.of(op);
        let alone_us = match op.kind {
            Kind::Compute { us, .. } => Some(us),
            Kind::Collective(_) => found.map(|found| found.alone.us()),
        };
        let how = found.map_or(String::new(), |found| {
            let part = if found.is_carried_on { " (a part was run, its time carried on)" } else { "" };
            found.decisions.join("; ") + part
        });
        rows.push(Row { op, count: 1, alone_us, us, how });
    }
    rows.iter_mut().for_each(|row| row.us /= row.count as f64);
    rows
}

/// The table of operations.
fn table(step: &Step, rows: &[Row<'_>]) -> String {
    let mut table = output::Table::new([
        ("operation", Align::Left),
        ("ranks", Align::Right),
        ("size", Align::Right),
        ("times", Align::Right),
        ("alone µs", Align::Right),
        ("in the step µs", Align::Right),
        ("by", Align::Left),
    ]);
    for row in rows {
        let communicators = &step.groups[row.op.group].communicators;
        let each = communicators.first().map_or(0, Vec::len);
        let (ranks, size) = match row.op.kind {
            Kind::Compute { .. } => (each.to_string(), "-".to_owned()),
            Kind::Collective(collected) => {
                (format!("{} × {each}", communicators.len()), output::size(collected.bytes))
            }
        };
        let us = |us: f64| if us > 0.0 { format!("{us:.1}") } else { "-".to_owned() };
        table.row([
            row.op.name.clone(),
            ranks,
            size,
            row.count.to_string(),
            row.alone_us.map_or("-".to_owned(), us),
            us(row.us),
            row.how.clone(),
        ]);
    }
    table.lines().join("\n") + "\n"
}

/// The table of what is known when the user has interrupted the simulation.
pub fn unfinished(step: &Step, times: &Times<'_>) -> String {
    let known: Vec<Row<'_>> =
        rows(step, times, None).into_iter().filter(|row| row.alone_us.is_some()).collect();
    table(step, &known)
}

impl Report<'_> {
    /// The length of the step in µs.
    pub fn us(&self) -> f64 {
        self.timeline.end.us()
    }

    /// The times of classes of ranks, the one with most exposed communication first.
    pub fn shares(&self) -> Vec<Shares> {
        let mut shares = shares(self.step, self.timeline);
        shares.sort_by(|a, b| b.exposed_us.total_cmp(&a.exposed_us));
        shares
    }

    /// The use of links by kind, of the kinds that are used.
    pub fn uses(&self) -> Vec<Use> {
        let mut all: Vec<OfKind> = vec![(0, 0.0, None); Name::KINDS.len()];
        let whole = self.timeline.end.ps().max(1) as f64;
        for link in 0..self.links.count() {
            let share = self.timeline.busy[link as usize].ps() as f64 / whole;
            let (links, sum, most) = &mut all[self.links.name(link).kind()];
            (*links, *sum) = (*links + 1, *sum + share);
            if share > most.map_or(0.0, |(_, most)| most) {
                *most = Some((link, share));
            }
        }
        let one = |(kind, (links, sum, most)): (&&'static str, OfKind)| {
            let (link, most) = most?;
            Some(Use { kind, links, mean: sum / f64::from(links), busiest: self.links.name(link), most })
        };
        Name::KINDS.iter().zip(all).filter_map(one).collect()
    }

    /// The slowest link: the one that is used for most of the step.
    pub fn slowest(&self) -> Option<Use> {
        self.uses().into_iter().max_by(|a, b| a.most.total_cmp(&b.most))
    }

    /// The text for the terminal.
    pub fn text(&self, picture: Option<&Path>) -> String {
        let mut text = table(self.step, &rows(self.step, self.times, Some(self.timeline)));
        let ranks = self.cluster.topology.size();
        let _ = writeln!(text, "\nstep of {ranks} ranks: {:.1} µs", self.us());
        let all = self.shares();
        for shares in all.iter().take(MOST_CLASSES) {
            let who = match shares.ranks == ranks {
                true => "every rank".to_owned(),
                false => format!("rank {} (one of {} alike)", shares.rank, shares.ranks),
            };
            let _ = writeln!(
                text,
                "  {who}: computing {:.1} µs, communicating {:.1} µs, of it exposed {:.1} µs ({:.1} % of the \
                 step), neither {:.1} µs",
                shares.computing_us,
                shares.communicating_us,
                shares.exposed_us,
                self.percent(shares.exposed_us),
                shares.idle_us
            );
        }
        if all.len() > MOST_CLASSES {
            let _ = writeln!(text, "  ({} other kinds of ranks have less exposed)", all.len() - MOST_CLASSES);
        }
        match self.slowest() {
            None => text += "no link is used\n",
            Some(slowest) => {
                let _ = writeln!(
                    text,
                    "slowest link: {}, used for {:.1} % of the step",
                    slowest.busiest,
                    slowest.most * 100.0
                );
                text += &self.link_table();
            }
        }
        if let Some(path) = picture {
            let _ = writeln!(text, "# written: {}", path.display());
        }
        text
    }

    fn percent(&self, us: f64) -> f64 {
        us / self.us().max(f64::MIN_POSITIVE) * 100.0
    }

    fn link_table(&self) -> String {
        let mut table = output::Table::new([
            ("links", Align::Left),
            ("number", Align::Right),
            ("mean use", Align::Right),
            ("busiest", Align::Right),
            ("which", Align::Left),
        ]);
        for Use { kind, links, mean, busiest, most } in self.uses() {
            table.row([
                kind.to_owned(),
                links.to_string(),
                format!("{:.1} %", mean * 100.0),
                format!("{:.1} %", most * 100.0),
                busiest.to_string(),
            ]);
        }
        table.lines().join("\n") + "\n"
    }

    /// The record for programs.
    pub fn json(&self) -> Value {
        let shares: Vec<Value> = self.shares().iter().map(|s| {
            json!({
                "rank": s.rank, "ranks": s.ranks, "computing_us": s.computing_us,
                "communicating_us": s.communicating_us, "exposed_us": s.exposed_us, "neither_us": s.idle_us,
            })
        }).collect();
        let rows: Vec<Value> = rows(self.step, self.times, Some(self.timeline))
            .iter()
            .map(|row| {
                let (collective, bytes) = match row.op.kind {
                    Kind::Compute { .. } => (None, None),
                    Kind::Collective(collected) => (Some(collected.collective.name()), Some(collected.bytes)),
                };
                let communicators = &self.step.groups[row.op.group].communicators;
                json!({
                    "name": row.op.name, "collective": collective, "bytes": bytes, "times": row.count,
                    "communicators": communicators.len(), "ranks": communicators.first().map_or(0, Vec::len),
                    "alone_us": row.alone_us, "us": row.us, "by": row.how,
                })
            })
            .collect();
        let spans: Vec<Value> = self
            .step
            .ops
            .iter()
            .zip(&self.timeline.spans)
            .map(|(op, span)| {
                let (start, end) = (span.start.us(), span.end.us());
                json!({ "name": op.name, "stream": op.stream, "start_us": start, "end_us": end })
            })
            .collect();
        let links: Vec<Value> = self
            .uses()
            .iter()
            .map(|used| {
                json!({
                    "kind": used.kind, "links": used.links, "mean": used.mean, "most": used.most,
                    "busiest": used.busiest.to_string(),
                })
            })
            .collect();
        json!({
            "ranks": self.cluster.topology.size(), "cluster": self.cluster.origins, "notes": self.notes,
            "us": self.us(), "exposed_us": self.shares().first().map_or(0.0, |s| s.exposed_us),
            "slowest_link": self.slowest().map(|used| used.busiest.to_string()),
            "ranks_by_kind": shares, "operations": rows, "links": links, "timeline": spans,
        })
    }
}
