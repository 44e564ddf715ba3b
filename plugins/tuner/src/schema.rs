//! Rule files in TOML: from text to rules, with all that is wrong in one go.
//!
//! Every complaint says where (line and column), what is wrong and what is accepted. Unknown keys are errors.

use std::ops::Range;
use std::sync::Arc;

use hawser_plugin::tuner::Reduction;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::adaptive::MOST_BUDGET;
use crate::contents::{Contents, Mode};
use crate::names::{self, COLLECTIVES, DATA_TYPES};
use crate::range;
use crate::rule::{Match, Place, Problem, Ranges, Rule};

mod action;

/// Keys of a file, of a rule, and of its conditions.
const FILE_KEYS: [&str; 6] = ["version", "never_worse", "mode", "budget", "rule", "avoid"];
const AVOID_KEYS: [&str; 2] = ["match", "use"];
const RULE_KEYS: [&str; 5] = ["name", "priority", "match", "use", "never_worse"];
const MATCH_KEYS: [&str; 11] = [
    "collective",
    "bytes",
    "ranks",
    "ranks_per_host",
    "hosts",
    "data_type",
    "op",
    "registered",
    "in_graph",
    "operations",
    "communicator",
];

/// The rules of a file in TOML; `file` is its name for places.
///
/// # Errors
/// As [`contents`].
pub fn parse(file: &str, text: &str) -> Result<Vec<Rule>, Vec<Problem>> {
    contents(file, text).map(|contents| contents.rules)
}

/// Reads the text of a rule file in TOML; `file` is its name for places.
///
/// # Errors
/// All that is wrong, in the order of the text; no rule counts then.
pub fn contents(file: &str, text: &str) -> Result<Contents, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::new(file, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        reader.problem(error.span().unwrap_or(0..0), error.message().to_owned());
    }
    let contents = if errors.is_empty() { reader.document(document.get_ref()) } else { Contents::default() };
    if !reader.problems.is_empty() {
        reader.problems.sort_by_key(|problem| (problem.place.line, problem.place.column));
        return Err(reader.problems);
    }
    Ok(Contents { hints: reader.hints, ..contents })
}

type Value<'i> = Spanned<DeValue<'i>>;

struct Reader<'t> {
    file: Arc<str>,
    text: &'t str,
    /// The places where lines begin.
    lines: Vec<usize>,
    problems: Vec<Problem>,
    hints: Vec<Problem>,
}

impl<'t> Reader<'t> {
    fn new(file: &str, text: &'t str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file: file.into(), text, lines, problems: Vec::new(), hints: Vec::new() }
    }

    fn place(&self, at: usize) -> Place {
        let line = self.lines.partition_point(|start| *start <= at).max(1);
        let start = self.lines[line - 1];
        let before = self.text.get(start..at.min(self.text.len())).unwrap_or_default();
        Place { file: self.file.clone(), line: line as u32, column: before.chars().count() as u32 + 1 }
    }

    fn problem(&mut self, span: Range<usize>, text: impl Into<String>) {
        let place = self.place(span.start);
        self.problems.push(Problem { place, text: text.into() });
    }

    /// An old spelling is read, and how it is written now.
    fn hint(&mut self, span: Range<usize>, old: &str, now: &str) {
        let place = self.place(span.start);
        self.hints.push(Problem { place, text: format!("\"{old}\" is written {now} now") });
    }

    fn document(&mut self, table: &DeTable<'_>) -> Contents {
        self.only(table, &FILE_KEYS, "a rule file");
        if let Some(value) = find(table, "version")
            && self.integer(value, "version", 1..=1).is_none()
        {
            return Contents::default();
        }
        let careful = find(table, "never_worse").and_then(|value| self.flag(value, "never_worse"));
        let mut list = |key, keys: &[&'static str]| -> Vec<Rule> {
            let Some(value) = find(table, key) else { return Vec::new() };
            let Some(all) = value.get_ref().as_array() else {
                let text = format!("{key} is a list: begin each {key} with [[{key}]] on a line of its own");
                self.problem(value.span(), text);
                return Vec::new();
            };
            all.iter().filter_map(|value| self.rule(value, keys, careful.unwrap_or(false))).collect()
        };
        let (rules, avoid) = (list("rule", &RULE_KEYS), list("avoid", &AVOID_KEYS));
        let mode = find(table, "mode").and_then(|value| self.mode(value));
        let budget = find(table, "budget").and_then(|value| self.budget(value));
        Contents { rules, avoid, mode, budget, hints: Vec::new() }
    }

    fn mode(&mut self, value: &Value<'_>) -> Option<Mode> {
        let word = self.text(value, "mode")?;
        let known = Mode::NAMES.iter().find(|(_, name)| names::same(name, word));
        if known.is_none() {
            let words = || Mode::NAMES.iter().map(|(_, name)| *name);
            self.unknown(value.span(), "mode", word, words(), &words().collect::<Vec<_>>().join(", "));
        }
        known.map(|(mode, _)| *mode)
    }

    fn budget(&mut self, value: &Value<'_>) -> Option<f64> {
        let share = match value.get_ref() {
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n as f64)
            }
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            _ => None,
        };
        let share = share.filter(|share| (0.0..=MOST_BUDGET).contains(share));
        if share.is_none() {
            let text =
                format!("budget is the share of operations that are trials, 0 to {MOST_BUDGET}: 0.01 is 1 %");
            self.problem(value.span(), text);
        }
        share
    }

    fn rule(&mut self, value: &Value<'_>, keys: &[&'static str], careful: bool) -> Option<Rule> {
        let table = self.table(value, "a rule")?;
        self.only(table, keys, if keys == AVOID_KEYS { "avoid" } else { "a rule" });
        let text = |reader: &mut Self, key| find(table, key).and_then(|value| reader.text(value, key));
        let name = text(self, "name").map(str::to_owned);
        let priority = find(table, "priority")
            .and_then(|value| self.integer(value, "priority", i32::MIN.into()..=i32::MAX.into()));
        let never_worse = find(table, "never_worse").and_then(|value| self.flag(value, "never_worse"));
        let when = match find(table, "match") {
            Some(value) => self.conditions(value),
            None => Match::default(),
        };
        let Some(chain) = find(table, "use") else {
            self.problem(value.span(), "the rule does nothing: add use = { algorithm = \"...\" }");
            return None;
        };
        let chain = self.chain(chain);
        Some(Rule {
            place: self.place(value.span().start),
            name,
            priority: priority.unwrap_or(0),
            when,
            chain,
            never_worse: never_worse.unwrap_or(careful),
        })
    }

    fn conditions(&mut self, value: &Value<'_>) -> Match {
        let Some(table) = self.table(value, "match") else { return Match::default() };
        self.only(table, &MATCH_KEYS, "match");
        let of = |key| find(table, key);
        let mut when = Match::default();
        if let Some(value) = of("collective") {
            let words: Vec<(u32, &[&str])> =
                COLLECTIVES.iter().map(|(f, name)| (*f as u32, std::slice::from_ref(name))).collect();
            when.collectives = self.mask(value, "collective", &words);
        }
        if let Some(value) = of("data_type") {
            let words: Vec<(u32, &[&str])> =
                DATA_TYPES.iter().map(|(t, names)| (*t as u32, *names)).collect();
            when.data_types = self.mask(value, "data_type", &words);
        }
        if let Some(value) = of("op") {
            let names = Reduction::ALL.map(|op| [op.name()]);
            let words: Vec<(u32, &[&str])> = (0..).zip(names.iter().map(|name| &name[..])).collect();
            when.ops = self.mask(value, "op", &words);
        }
        for (key, ranges, sizes) in [
            ("bytes", &mut when.bytes, true),
            ("ranks", &mut when.ranks, false),
            ("ranks_per_host", &mut when.ranks_per_host, false),
            ("hosts", &mut when.hosts, false),
        ] {
            if let Some(value) = of(key) {
                *ranges = self.ranges(value, key, sizes);
            }
        }
        when.registered = of("registered").and_then(|value| self.flag(value, "registered"));
        when.in_graph = of("in_graph").and_then(|value| self.flag(value, "in_graph"));
        let operations =
            of("operations").and_then(|value| self.integer(value, "operations", 1..=u32::MAX.into()));
        when.pipelined = operations.map(|count| count as u32);
        if let Some(value) = of("communicator") {
            for value in each(value) {
                when.communicators.extend(self.text(value, "communicator").map(str::to_owned));
            }
        }
        when
    }

    /// The bits of one word or of a list of words.
    fn mask(&mut self, value: &Value<'_>, key: &str, words: &[(u32, &[&str])]) -> u32 {
        let mut mask = 0;
        for value in each(value) {
            let Some(text) = self.text(value, key) else { continue };
            match words.iter().find(|(_, names)| names.iter().any(|name| names::same(name, text))) {
                Some((bit, _)) => mask |= 1 << bit,
                None => {
                    let all: Vec<&str> =
                        words.iter().filter_map(|(_, names)| names.first()).copied().collect();
                    let meant = words.iter().flat_map(|(_, names)| names.iter().copied());
                    self.unknown(value.span(), key, text, meant, &all.join(", "));
                }
            }
        }
        mask
    }

    fn ranges(&mut self, value: &Value<'_>, key: &str, sizes: bool) -> Ranges {
        let mut ranges = Vec::new();
        for value in each(value) {
            let read = match value.get_ref() {
                DeValue::String(text) => range::parse(text, sizes),
                DeValue::Integer(_) => match self.integer(value, key, 0..=i64::MAX) {
                    Some(number) => Ok(number as u64..=number as u64),
                    None => continue,
                },
                other => Err(format!(
                    "{} is no range: write a number, \"..64K\", \"1M..16M\", or a list of those",
                    other.type_str()
                )),
            };
            match read {
                Ok(range) => ranges.push(range),
                Err(text) => self.problem(value.span(), format!("{key}: {text}")),
            }
        }
        Ranges(ranges)
    }

    fn table<'v, 'i>(&mut self, value: &'v Value<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        if let DeValue::Table(table) = value.get_ref() {
            return Some(table);
        }
        let found = value.get_ref().type_str();
        self.problem(value.span(), format!("{what} is a table, not {}", article(found)));
        None
    }

    fn text<'v>(&mut self, value: &'v Value<'_>, key: &str) -> Option<&'v str> {
        if let Some(text) = value.get_ref().as_str() {
            return Some(text);
        }
        let found = value.get_ref().type_str();
        self.problem(value.span(), format!("{key} is a text in quotes, not {}", article(found)));
        None
    }

    fn flag(&mut self, value: &Value<'_>, key: &str) -> Option<bool> {
        if let Some(flag) = value.get_ref().as_bool() {
            return Some(flag);
        }
        let found = value.get_ref().type_str();
        self.problem(value.span(), format!("{key} is true or false, not {}", article(found)));
        None
    }

    fn integer(&mut self, value: &Value<'_>, key: &str, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        if let Some(number) = number.filter(|number| range.contains(number)) {
            return Some(number);
        }
        let (least, most) = range.into_inner();
        let text = match least == most {
            true => format!("{key} is {least} in this library"),
            false => format!("{key} is a number from {least} to {most}"),
        };
        self.problem(value.span(), text);
        None
    }

    /// Complains of keys that are not known.
    fn only(&mut self, table: &DeTable<'_>, known: &[&'static str], what: &str) {
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let meant = meant(key.get_ref(), known.iter().copied());
            let text =
                format!("{what} has no key \"{}\"{meant} Known are {}", key.get_ref(), known.join(", "));
            self.problem(key.span(), text);
        }
    }

    fn unknown<'w>(
        &mut self,
        span: Range<usize>,
        key: &str,
        text: &str,
        words: impl Iterator<Item = &'w str>,
        all: &str,
    ) {
        self.problem(span, format!("{key} \"{text}\" is not known{} Known are {all}", meant(text, words)));
    }
}

/// The end of a complaint about an unknown word.
fn meant<'w>(wrong: &str, words: impl Iterator<Item = &'w str>) -> String {
    names::nearest(wrong, words)
        .map_or_else(|| ".".to_owned(), |meant| format!("; did you mean \"{meant}\"?"))
}

/// The value of a key.
fn find<'v, 'i>(table: &'v DeTable<'i>, key: &str) -> Option<&'v Value<'i>> {
    table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
}

/// The elements of a list, or the one value.
fn each<'v, 'i>(value: &'v Value<'i>) -> impl Iterator<Item = &'v Value<'i>> {
    match value.get_ref() {
        DeValue::Array(all) => all.iter().collect::<Vec<_>>(),
        _ => vec![value],
    }
    .into_iter()
}

fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests;
