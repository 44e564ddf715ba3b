//! Rule files in CSV, as the example that NCCL comes with has them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use hawser_plugin::tuner::{Algorithm, Executor, Function, Protocol};

use crate::names::WITH_EXECUTOR;
use crate::rule::{self, Action, Match, Place, Ranges, RunBy, Way};

/// More channels than any library has.
const MOST_CHANNELS: u32 = 1024;
/// The form of a line, for error texts.
const FORM: &str =
    "collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks[,operations[,registered]]";

/// A line of the file. None in a condition means any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The line in the file, from 1.
    pub line: u32,
    /// The collective.
    pub function: Function,
    /// The sizes in bytes that the line is for.
    pub bytes: RangeInclusive<u64>,
    /// Algorithm to take.
    pub algorithm: Algorithm,
    /// The executor that has to run it, if the name says so (`sym_one_shot`); None = whoever does it step by
    /// step.
    pub executor: Option<Executor>,
    /// Protocol to take.
    pub protocol: Protocol,
    /// Channels to take; None = the host's default.
    pub channels: Option<u32>,
    /// Number of hosts.
    pub nodes: Option<u32>,
    /// Number of ranks.
    pub ranks: Option<u32>,
    /// Operations of the group that run together.
    pub pipelined: Option<u32>,
    /// Both buffers are registered, or not.
    pub registered: Option<bool>,
}

impl Rule {
    fn algorithm_name(&self) -> &'static str {
        let own = (self.algorithm, self.executor);
        algorithms().iter().find(|(known, _)| *known == own).map_or("", |(_, name)| name)
    }

    /// In the terms of all rules. `file` is where it stands.
    pub fn general(&self, file: &Arc<str>) -> rule::Rule {
        let exactly = |number: Option<u32>| Ranges(number.map(|n| n.into()..=n.into()).into_iter().collect());
        let bytes = match self.bytes == (0..=u64::MAX) {
            true => Ranges::default(),
            false => Ranges(vec![self.bytes.clone()]),
        };
        let when = Match {
            collectives: 1 << self.function as u32,
            bytes,
            ranks: exactly(self.ranks),
            hosts: exactly(self.nodes),
            registered: self.registered,
            pipelined: self.pipelined,
            ..Match::default()
        };
        let way = Way {
            algorithm: Some(self.algorithm),
            executor: self.executor.map(RunBy::Only),
            protocol: Some(self.protocol),
            takes_held: false,
        };
        rule::Rule {
            place: Place { file: file.clone(), line: self.line, column: 1 },
            name: None,
            priority: 0,
            when,
            chain: vec![Action { way, channels: self.channels, ..Action::DEFAULT }],
            never_worse: false,
        }
    }
}

/// As in the file.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: Option<u32>| number.map_or("-1".to_owned(), |number| number.to_string());
        let (min, max) = self.bytes.clone().into_inner();
        write!(f, "{},{min},{max},{},", self.function.name(), self.algorithm_name())?;
        write!(f, "{},{},", self.protocol.name(), number(self.channels))?;
        write!(f, "{},{},{},", number(self.nodes), number(self.ranks), number(self.pipelined))?;
        f.write_str(&number(self.registered.map(u32::from)))
    }
}

/// A line that is no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// The line in the file, from 1.
    pub line: u32,
    /// The fault, and what would be right.
    pub text: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

/// Reads the text of a rule file. Empty lines, lines that begin with `#` and a heading are skipped.
///
/// # Errors
/// All lines that are no rules; no rule counts then.
pub fn parse(text: &str) -> Result<Vec<Rule>, Vec<BadLine>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut rules, mut bad) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = text.split(',').map(field).collect();
        if fields[0].eq_ignore_ascii_case("collective_type") {
            continue;
        }
        match rule(line, &fields) {
            Ok(rule) => rules.push(rule),
            Err(text) => bad.push(BadLine { line, text }),
        }
    }
    if bad.is_empty() { Ok(rules) } else { Err(bad) }
}

/// A field without the blanks and quotes around it.
fn field(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).trim()
}

fn rule(line: u32, fields: &[&str]) -> Result<Rule, String> {
    let (required, optional) = fields.split_at_checked(8).unwrap_or((&[], &[]));
    let &[function, min, max, algorithm, protocol, channels, nodes, ranks] = required else {
        return Err(format!("{} fields are too few: write {FORM}", fields.len()));
    };
    if optional.len() > 2 {
        return Err(format!("{} fields are too many: write {FORM}", fields.len()));
    }
    let (min_bytes, max_bytes) = (bytes("min_bytes", min)?, bytes("max_bytes", max)?);
    let range = min_bytes.unwrap_or(0)..=max_bytes.unwrap_or(u64::MAX);
    if range.is_empty() {
        return Err(format!("min_bytes {min} is more than max_bytes {max}: exchange them"));
    }
    let (algorithm, executor) = named("algorithm", algorithm, &algorithms())?;
    Ok(Rule {
        line,
        function: named("collective", function, &Function::ALL.map(|function| (function, function.name())))?,
        bytes: range,
        algorithm,
        executor,
        protocol: named("protocol", protocol, &Protocol::ALL.map(|protocol| (protocol, protocol.name())))?,
        channels: number("channels", channels, 0..=MOST_CHANNELS)?.filter(|channels| *channels > 0),
        nodes: number("nodes", nodes, 1..=u32::MAX)?,
        ranks: number("ranks", ranks, 1..=u32::MAX)?,
        pipelined: optional.first().map_or(Ok(None), |text| number("operations", text, 1..=u32::MAX))?,
        registered: optional
            .get(1)
            .map_or(Ok(None), |text| number("registered", text, 0..=1))?
            .map(|registered| registered == 1),
    })
}

/// The thing of this name, in any case.
fn named<T: Copy>(what: &str, text: &str, names: &[(T, &str)]) -> Result<T, String> {
    let found = names.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
    found.map(|(thing, _)| *thing).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        format!("{what} {text:?} is unknown: write one of {}", names.join(", "))
    })
}

/// A size; None for -1.
fn bytes(what: &str, text: &str) -> Result<Option<u64>, String> {
    integer(text)
        .ok_or_else(|| format!("{what} {text:?} is no number of bytes: write digits only, or -1 for any"))
}

/// A number in a range; None for -1.
fn number(what: &str, text: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, String> {
    let number = integer::<u32>(text).filter(|number| number.is_none_or(|number| range.contains(&number)));
    number.ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("{what} {text:?} is no number from {least} to {most}: write one, or -1 for any")
    })
}

/// Some(None) for -1, None for what is no number.
fn integer<T: FromStr>(text: &str) -> Option<Option<T>> {
    if text == "-1" {
        return Some(None);
    }
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?.map(Some)
}

/// The names of algorithms, and of algorithms with an executor.
fn algorithms() -> Vec<((Algorithm, Option<Executor>), &'static str)> {
    let plain = Algorithm::NAMES.iter().map(|(algorithm, name)| ((*algorithm, None), *name));
    let others =
        WITH_EXECUTOR.iter().map(|(algorithm, executor, name)| ((*algorithm, Some(*executor)), *name));
    plain.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_form_of_nvidias_example_is_read() {
        let text = "\u{feff}collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\r\n\
                    # small\r\n\
                    \r\n\
                    allreduce,0,65536,tree,simple,2,1,-1,-1,1\r\n\
                    \x20 # indented\n\
                    BROADCAST , 32769, 4294967295, \"Ring\", ll128 ,-1,-1,8\n\
                    reducescatter,-1,-1,one_shot,LL,0,4,32,4\n";
        let rule = |line, function, bytes, algorithm, protocol| Rule {
            line,
            function,
            bytes,
            algorithm,
            executor: None,
            protocol,
            channels: None,
            nodes: None,
            ranks: None,
            pipelined: None,
            registered: None,
        };
        let mut first = rule(4, Function::AllReduce, 0..=65536, Algorithm::TREE, Protocol::Simple);
        (first.channels, first.nodes, first.registered) = (Some(2), Some(1), Some(true));
        let mut second =
            rule(6, Function::Broadcast, 32769..=u32::MAX.into(), Algorithm::RING, Protocol::Ll128);
        second.ranks = Some(8);
        let mut third = rule(7, Function::ReduceScatter, 0..=u64::MAX, Algorithm::ONE_SHOT, Protocol::Ll);
        (third.nodes, third.ranks, third.pipelined) = (Some(4), Some(32), Some(4));
        assert_eq!(parse(text), Ok(vec![first, second, third]));
        assert_eq!(parse(""), Ok(vec![]));
    }

    #[test]
    fn every_bad_line_is_told_with_its_remedy() {
        let cases = [
            ("allreduce,0,1,ring,ll,1,1", "7 fields are too few: write collective,"),
            ("allreduce,0,1,ring,ll,1,1,1,1,1,1", "11 fields are too many"),
            (
                "alltoall,0,1,ring,ll,1,1,1",
                "collective \"alltoall\" is unknown: write one of broadcast, reduce,",
            ),
            ("allreduce,0,1,rng,ll,1,1,1", "algorithm \"rng\" is unknown: write one of tree, ring,"),
            (
                "allreduce,0,1,ring,ll256,1,1,1",
                "protocol \"ll256\" is unknown: write one of ll, ll128, simple",
            ),
            ("allreduce,0,1,ring,-1,1,1,1", "protocol \"-1\" is unknown"),
            ("allreduce,4K,1,ring,ll,1,1,1", "min_bytes \"4K\" is no number of bytes"),
            ("allreduce,0,-2,ring,ll,1,1,1", "max_bytes \"-2\" is no number of bytes"),
            ("allreduce,0,99999999999999999999,ring,ll,1,1,1", "max_bytes"),
            ("allreduce,2,1,ring,ll,1,1,1", "min_bytes 2 is more than max_bytes 1: exchange them"),
            ("allreduce,0,1,ring,ll,1025,1,1", "channels \"1025\" is no number from 0 to 1024"),
            ("allreduce,0,1,ring,ll,,1,1", "channels \"\" is no number"),
            ("allreduce,0,1,ring,ll,1,0,1", "nodes \"0\" is no number from 1"),
            ("allreduce,0,1,ring,ll,1,1,+1", "ranks \"+1\" is no number"),
            ("allreduce,0,1,ring,ll,1,1,1,0", "operations \"0\" is no number from 1"),
            ("allreduce,0,1,ring,ll,1,1,1,1,2", "registered \"2\" is no number from 0 to 1"),
            ("allreduce", "1 fields are too few"),
        ];
        let text: String = cases.iter().map(|(line, _)| format!("{line}\n# fine\n")).collect();
        let bad = parse(&text).unwrap_err();
        assert_eq!(bad.len(), cases.len());
        for ((at, bad), (_, expected)) in (0..).zip(bad).zip(cases) {
            assert_eq!(bad.line, at * 2 + 1);
            assert!(bad.text.contains(expected), "{bad} / {expected}");
        }
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let condition = || proptest::option::of(1..=u32::MAX);
        let choice = (0..5_usize, 0..algorithms().len(), 0..3_usize, proptest::option::of(1..=MOST_CHANNELS));
        let conditions = (condition(), condition(), condition(), proptest::option::of(any::<bool>()));
        (choice, any::<(u64, u64)>(), conditions).prop_map(
            |(choice, (a, b), (nodes, ranks, pipelined, registered))| Rule {
                line: 1,
                function: Function::ALL[choice.0],
                bytes: a.min(b)..=a.max(b),
                algorithm: algorithms()[choice.1].0.0,
                executor: algorithms()[choice.1].0.1,
                protocol: Protocol::ALL[choice.2],
                channels: choice.3,
                nodes,
                ranks,
                pipelined,
                registered,
            },
        )
    }

    proptest! {
        #[test]
        fn any_text_gives_rules_or_bad_lines(text in any::<String>()) {
            match parse(&text) {
                Ok(rules) => prop_assert!(rules.len() <= text.lines().count()),
                Err(bad) => prop_assert!(!bad.is_empty()),
            }
        }

        #[test]
        fn what_looks_like_rules_never_panics(
            text in r"((allreduce|reduce|x)?,?(-?[0-9]{0,21}[KM]?,){0,4}(ring|tree|)?,(ll|simple|),?([-0-9]{0,11},){0,6}\n?){0,5}"
        ) {
            let lines = text.lines().count();
            prop_assert!(parse(&text).map_or_else(|bad| bad.len(), |rules| rules.len()) <= lines);
        }

        #[test]
        fn a_rule_is_read_as_it_is_written(rule in any_rule()) {
            prop_assert_eq!(parse(&rule.to_string()), Ok(vec![rule]));
        }
    }
}
