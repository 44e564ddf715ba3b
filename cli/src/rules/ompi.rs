//! Open MPI's tables of collective algorithms (`coll_tuned_dynamic_rules_filename`, versions 1 and 2) as
//! rules.
//!
//! The table is numbers: how many collectives; for each its number and how many sizes of communicators; for
//! each of those its ranks and how many sizes of messages; for each of those bytes, algorithm, fan-in and
//! fan-out, segment size. Version 2 begins with `rule-file-version-2` and may have the most requests as a
//! fifth number. An entry holds up to the next larger one.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use hawser_plugin::tuner::{Algorithm, Function};
use hawser_tuner::rule::{Action, Match, Place, Ranges, Rule, Way};
use hawser_tuner::write;

/// Numbers of collectives that rules are asked about.
const COLLECTIVES: [(u64, Function); 9] = [
    (0, Function::AllGather),
    (2, Function::AllReduce),
    (3, Function::AllToAll),
    (7, Function::Broadcast),
    (9, Function::Gather),
    (11, Function::Reduce),
    (12, Function::ReduceScatter),
    (13, Function::ReduceScatter),
    (15, Function::Scatter),
];
/// Most entries of any list: a wrong number is no reason to take all memory.
const MOST: u64 = 100_000;
/// Segment sizes that are followed as chunks.
const CHUNKS: std::ops::RangeInclusive<u64> = 512..=4 << 20;

/// A collective's algorithms by their numbers (from 1 on): Open MPI's name, and ours if there is one of the
/// kind.
fn algorithms(collective: u64) -> &'static [(&'static str, &'static str)] {
    match collective {
        0 => &[
            ("linear", "all_pairs"),
            ("bruck", ""),
            ("recursive_doubling", ""),
            ("ring", "ring"),
            ("neighbor", ""),
            ("two_proc", "all_pairs"),
            ("sparbit", ""),
            ("direct", "all_pairs"),
        ],
        2 => &[
            ("basic_linear", ""),
            ("nonoverlapping", "tree"),
            ("recursive_doubling", "recursive_doubling"),
            ("ring", "ring"),
            ("segmented_ring", "ring"),
            ("rabenseifner", "halving_doubling"),
            ("allgather_reduce", "one_shot"),
        ],
        3 => &[
            ("linear", "direct"),
            ("pairwise", "pairwise"),
            ("modified_bruck", "bruck"),
            ("linear_sync", "direct"),
            ("two_proc", "direct"),
        ],
        7 => &[
            ("basic_linear", "one_shot"),
            ("chain", "ring"),
            ("pipeline", "ring"),
            ("split_binary_tree", "tree"),
            ("binary_tree", "tree"),
            ("binomial", "tree"),
            ("knomial", "knomial"),
            ("scatter_allgather", "all_pairs"),
            ("scatter_allgather_ring", ""),
        ],
        9 => &[("basic_linear", "direct"), ("binomial", ""), ("linear_sync", "direct")],
        11 => &[
            ("linear", "one_shot"),
            ("chain", "ring"),
            ("pipeline", "ring"),
            ("binary", "tree"),
            ("binomial", "tree"),
            ("in-order_binary", "tree"),
            ("rabenseifner", ""),
            ("knomial", "knomial"),
        ],
        12 => &[("non-overlapping", ""), ("recursive_halving", ""), ("ring", "ring"), ("butterfly", "")],
        13 => {
            &[("basic_linear", ""), ("recursive_doubling", ""), ("recursive_halving", ""), ("butterfly", "")]
        }
        15 => &[("basic_linear", "direct"), ("binomial", ""), ("linear_nb", "direct")],
        _ => &[],
    }
}

/// True if a file looks like such a table: numbers, or the heading of version 2.
pub fn is_table(text: &str) -> bool {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let first = lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    first.starts_with("rule-file-version-") || (!first.is_empty() && first.split_whitespace().all(is_number))
}

/// The rules of a table, as TOML with comments.
///
/// # Errors
/// The text names the line and says what is wrong in it.
pub fn toml(name: &str, text: &str) -> Result<String> {
    let mut numbers = Numbers::new(name, text)?;
    let mut rules = String::new();
    for _ in 0..numbers.count("the number of collectives")? {
        let collective = numbers.next("the number of a collective")?;
        let sizes = communicators(&mut numbers, collective)?;
        for (at, (ranks, messages)) in sizes.iter().enumerate() {
            let ranks = up_to(*ranks, sizes.get(at + 1).map(|(ranks, _)| *ranks));
            for (at, entry) in messages.iter().enumerate() {
                let bytes = up_to(entry.bytes, messages.get(at + 1).map(|next| next.bytes));
                rules.push_str(&rule(name, collective, &ranks, &bytes, entry));
            }
        }
    }
    numbers.end()?;
    Ok(rules)
}

/// An entry for messages from this size on.
struct Entry {
    line: usize,
    bytes: u64,
    algorithm: u64,
    segment: u64,
}

/// The ranks from which on an entry holds, and its messages.
type Communicator = (u64, Vec<Entry>);

fn communicators(numbers: &mut Numbers<'_>, collective: u64) -> Result<Vec<Communicator>> {
    let mut all: Vec<Communicator> = Vec::new();
    for _ in 0..numbers.count(&format!("the number of communicator sizes of collective {collective}"))? {
        let ranks = numbers.next("the size of a communicator")?;
        if all.last().is_some_and(|(before, _)| *before >= ranks) {
            return Err(numbers.wrong("sizes of communicators have to grow"));
        }
        let mut messages: Vec<Entry> = Vec::new();
        for _ in 0..numbers.count("the number of message sizes")? {
            let bytes = numbers.next("the size of a message")?;
            let line = numbers.line;
            if messages.last().is_some_and(|before| before.bytes >= bytes) {
                return Err(numbers.wrong("sizes of messages have to grow"));
            }
            let algorithm = numbers.next("the number of an algorithm")?;
            numbers.next("fan-in and fan-out")?;
            let segment = numbers.next("the size of a segment")?;
            if numbers.version == 2 && numbers.is_on_line(line) {
                numbers.next("the most requests")?;
            }
            messages.push(Entry { line, bytes, algorithm, segment });
        }
        all.push((ranks, messages));
    }
    Ok(all)
}

/// From a size to below the next, if there is one. None if nothing is between.
fn up_to(first: u64, next: Option<u64>) -> std::ops::RangeInclusive<u64> {
    first..=next.map_or(u64::MAX, |next| next - 1)
}

fn rule(
    name: &str,
    collective: u64,
    ranks: &std::ops::RangeInclusive<u64>,
    bytes: &std::ops::RangeInclusive<u64>,
    entry: &Entry,
) -> String {
    let when = Match { bytes: range(bytes), ranks: range(ranks), ..Match::default() };
    let Entry { line, algorithm, segment, .. } = *entry;
    written(name, &format!("line {line}"), (collective, algorithm), segment, when)
}

/// A condition that is left out where it holds for everything.
pub(super) fn range(range: &std::ops::RangeInclusive<u64>) -> Ranges {
    match *range == (0..=u64::MAX) {
        true => Ranges::default(),
        false => Ranges(vec![range.clone()]),
    }
}

/// The rule for an algorithm of a collective, by Open MPI's numbers, below a comment that says where it is
/// from; or a comment that says why there is none.
pub(super) fn written(
    name: &str,
    place: &str,
    (collective, algorithm): (u64, u64),
    segment: u64,
    when: Match,
) -> String {
    let function =
        COLLECTIVES.iter().find(|(number, _)| *number == collective).map(|(_, function)| *function);
    let Some(function) = function else {
        return format!("\n# {place}: left out, rules are not asked about collective {collective}\n");
    };
    let what = function.name();
    if algorithm == 0 {
        return format!("\n# {place}: {what}: left to the cost model, as there\n");
    }
    let known = usize::try_from(algorithm - 1).ok().and_then(|at| algorithms(collective).get(at));
    let Some((theirs, ours)) = known else {
        return format!("\n# {place}: left out, {what} has no algorithm {algorithm}\n");
    };
    let Some((ours, _)) = Algorithm::NAMES.iter().find(|(_, own)| own == ours) else {
        return format!("\n# {place}: left out, nothing here is like {what}'s {algorithm} ({theirs})\n");
    };
    let chunk = Some(segment).filter(|segment| CHUNKS.contains(segment));
    let when = Match { collectives: 1 << function as u32, ..when };
    let way = Way { algorithm: Some(*ours), ..Way::ANY };
    let rule = Rule {
        place: Place { file: Arc::from(name), line: 1, column: 1 },
        name: None,
        priority: 0,
        when,
        chain: vec![Action { way, chunk, ..Action::DEFAULT }],
        never_worse: false,
    };
    format!("\n# {place}: {what}'s {algorithm} ({theirs})\n{}", write::toml(&rule))
}

/// The bit of a collective in a rule's conditions; 0 if rules are not asked about it.
pub(super) fn bit(collective: u64) -> u32 {
    let found = COLLECTIVES.iter().find(|(number, _)| *number == collective);
    found.map_or(0, |(_, function)| 1 << *function as u32)
}

/// True if rules are asked about a collective.
pub(super) fn is_asked_about(collective: u64) -> bool {
    bit(collective) != 0
}

/// The number of an algorithm of a collective by its name; `ignore` is 0.
pub(super) fn number_of(collective: u64, name: &str) -> Option<u64> {
    let place = algorithms(collective).iter().position(|(theirs, _)| *theirs == name);
    if name == "ignore" { Some(0) } else { place.map(|place| place as u64 + 1) }
}

/// The numbers of a table, with their lines.
struct Numbers<'t> {
    name: &'t str,
    /// Line and word, the next one last.
    words: Vec<(usize, &'t str)>,
    /// Of the number that was read last.
    line: usize,
    version: u64,
}

impl<'t> Numbers<'t> {
    fn new(name: &'t str, text: &'t str) -> Result<Self> {
        let mut words = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            words.extend(line.split_whitespace().map(|word| (number, word)));
        }
        words.reverse();
        let mut numbers = Self { name, words, line: 1, version: 1 };
        let heading = numbers.words.last().and_then(|(_, word)| word.strip_prefix("rule-file-version-"));
        if let Some(version) = heading {
            numbers.version =
                u64::from_str(version).ok().filter(|v| (1..=2).contains(v)).with_context(|| {
                    format!("{name}:1: version {version} is not known: tables have version 1 or 2")
                })?;
            numbers.words.pop();
        }
        Ok(numbers)
    }

    fn next(&mut self, what: &str) -> Result<u64> {
        let Some((line, word)) = self.words.pop() else {
            bail!("{}: the table ends where {what} should stand", self.name);
        };
        self.line = line;
        word.parse().map_err(|_| self.wrong(&format!("\"{word}\" stands where {what} should")))
    }

    /// The number of things that follow.
    fn count(&mut self, what: &str) -> Result<u64> {
        let count = self.next(what)?;
        if count > MOST {
            Err(self.wrong(&format!("{what} is {count}: too many to be true")))
        } else {
            Ok(count)
        }
    }

    fn is_on_line(&self, line: usize) -> bool {
        self.words.last().is_some_and(|(next, _)| *next == line)
    }

    fn end(&self) -> Result<()> {
        match self.words.last() {
            Some((line, word)) => {
                Err(anyhow!("{}:{line}: \"{word}\" follows the end of the table", self.name))
            }
            None => Ok(()),
        }
    }

    fn wrong(&self, text: &str) -> anyhow::Error {
        anyhow!("{}:{}: {text}", self.name, self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "3 # collectives\n\
                         2 # all-reduce\n2 # sizes\n4 3\n0 3 0 0\n8192 5 0 65536\n1048576 0 0 0\n\
                         64 1\n0 2 0 0\n\
                         6\n1\n0 1\n0 1 0 0\n\
                         7\n1\n0 2\n0 6 0 0\n4096 42 0 0\n";

    #[test]
    fn a_table_becomes_rules_for_the_ranges_between_its_sizes() {
        let text = toml("t", TABLE).unwrap();
        let wanted = "\n# line 5: allreduce's 3 (recursive_doubling)\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"..8K\", ranks = \"4..=63\" }\n\
            use = { algorithm = \"recursive_doubling\" }\n\n\
            # line 6: allreduce's 5 (segmented_ring)\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"8K..1M\", ranks = \"4..=63\" }\n\
            use = { algorithm = \"ring\", chunk = \"64K\" }\n\n\
            # line 7: allreduce: left to the cost model, as there\n\n\
            # line 9: allreduce's 2 (nonoverlapping)\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", ranks = \"64..\" }\n\
            use = { algorithm = \"tree\" }\n\n\
            # line 13: left out, rules are not asked about collective 6\n\n\
            # line 17: broadcast's 6 (binomial)\n\
            [[rule]]\n\
            match = { collective = \"broadcast\", bytes = \"..4K\" }\n\
            use = { algorithm = \"tree\" }\n\n\
            # line 18: left out, broadcast has no algorithm 42\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn collectives_that_only_move_are_imported_too() {
        let one = |collective: u64, algorithm: u64| {
            toml("t", &format!("1\n{collective}\n1\n0 1\n0 {algorithm} 0 0\n")).unwrap()
        };
        for (collective, algorithm, words) in [
            (3, 1, ["collective = \"alltoall\"", "algorithm = \"direct\""]),
            (3, 2, ["alltoall's 2 (pairwise)", "algorithm = \"pairwise\""]),
            (3, 3, ["alltoall's 3 (modified_bruck)", "algorithm = \"bruck\""]),
            (9, 3, ["collective = \"gather\"", "algorithm = \"direct\""]),
            (9, 2, ["nothing here is like", "2 (binomial)"]),
            (15, 1, ["collective = \"scatter\"", "algorithm = \"direct\""]),
        ] {
            let text = one(collective, algorithm);
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert!(is_table("# x\n\n1 # one\n") && is_table("rule-file-version-2\n") && !is_table("[[rule]]"));
        assert!(!is_table("") && !is_table("allreduce,0,1,ring,ll,1,1,1\n"));
    }

    #[test]
    fn version_2_may_have_a_fifth_number() {
        let text = "rule-file-version-2\n1\n7\n1\n0 2\n0 6 0 0 8\n4096 2 0 1024\n";
        let rules = toml("t", text).unwrap();
        assert!(
            rules.contains("algorithm = \"ring\", chunk = \"1K\"") && rules.matches("[[rule]]").count() == 2,
            "{rules}"
        );
        let error = toml("t", &text.replace("rule-file-version-2\n", "")).unwrap_err().to_string();
        assert!(error.contains("t:"), "{error}");
    }

    #[test]
    fn broken_tables_are_told_with_their_lines() {
        for (text, words) in [
            ("", "t: the table ends where the number of collectives should stand"),
            ("1\n2\n1\n4 1\n0 3 0", "ends where the size of a segment"),
            ("1\n2\n1\n4 2\n64 3 0 0\n8 3 0 0", "t:6: sizes of messages have to grow"),
            ("1\n2\n2\n4 0\n4 0", "t:5: sizes of communicators have to grow"),
            ("1\n2\n1\n4 1\n0 x 0 0", "t:5: \"x\" stands where the number of an algorithm should"),
            ("999999999", "too many to be true"),
            ("0\n7", "t:2: \"7\" follows the end of the table"),
            ("rule-file-version-9\n0", "version 9 is not known"),
        ] {
            let error = toml("t", text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
