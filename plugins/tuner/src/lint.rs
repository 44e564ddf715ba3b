//! Rules that are right and yet do not do what their author may think.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use crate::rule::{self, Action, Match, Problem, Ranges, Rule};

/// Most kinds of conditions that each rule is compared with, so that files of any size are checked in a
/// moment.
const MOST_KINDS: usize = 256;

/// Rules that can never count, because an earlier one takes all their calls. In the order in which rules are
/// looked at.
pub fn lint(rules: &[Rule]) -> Vec<Problem> {
    let mut earlier = Earlier::default();
    let mut problems = Vec::new();
    for rule in rule::in_order(rules.iter()) {
        if let Some(first) = earlier.that_covers(rule) {
            let text = match decides(first) {
                true => format!("can never count: {} comes before it and takes all its calls", first.title()),
                false => format!(
                    "counts only where nothing of {} is possible, which comes before it",
                    first.title()
                ),
            };
            problems.push(Problem { place: rule.place.clone(), text });
        }
        earlier.add(rule);
    }
    problems
}

/// The rules before one, by their conditions but for bytes: few kinds even where rules are many.
#[derive(Default)]
struct Earlier<'r> {
    numbers: HashMap<Match, usize>,
    kinds: Vec<(Match, Sizes<'r>)>,
}

impl<'r> Earlier<'r> {
    /// A rule that takes all calls of another one.
    fn that_covers(&self, rule: &Rule) -> Option<&'r Rule> {
        let all = [0..=u64::MAX];
        let bytes = if rule.when.bytes.0.is_empty() { &all[..] } else { &rule.when.bytes.0 };
        let own = self.numbers.get(&kind(rule)).map(|number| &self.kinds[*number]);
        let others = self.kinds.iter().take(MOST_KINDS).filter(|(when, _)| when.covers(&rule.when));
        own.into_iter().chain(others).find_map(|(_, sizes)| sizes.that_covers(bytes))
    }

    fn add(&mut self, rule: &'r Rule) {
        let kind = kind(rule);
        let number = *self.numbers.entry(kind.clone()).or_insert_with(|| {
            self.kinds.push((kind, Sizes::default()));
            self.kinds.len() - 1
        });
        let sizes = &mut self.kinds[number].1;
        match rule.when.bytes.0.as_slice() {
            [] => sizes.add(&(0..=u64::MAX), rule),
            ranges => ranges.iter().for_each(|range| sizes.add(range, rule)),
        }
    }
}

/// The conditions of a rule without those about bytes.
fn kind(rule: &Rule) -> Match {
    Match { bytes: Ranges::default(), ..rule.when.clone() }
}

/// Ranges of bytes of rules, none inside another one: by their first byte, which then is the order of the
/// last bytes, too.
#[derive(Default)]
struct Sizes<'r>(BTreeMap<u64, (u64, &'r Rule)>);

impl<'r> Sizes<'r> {
    /// The rule whose range holds all bytes of another one's ranges.
    fn that_covers(&self, ranges: &[RangeInclusive<u64>]) -> Option<&'r Rule> {
        let of = |range: &RangeInclusive<u64>| {
            let (_, (last, rule)) = self.0.range(..=*range.start()).next_back()?;
            (last >= range.end()).then_some(*rule)
        };
        let first = of(ranges.first()?)?;
        ranges.iter().all(|range| of(range).is_some_and(|rule| std::ptr::eq(rule, first))).then_some(first)
    }

    fn add(&mut self, range: &RangeInclusive<u64>, rule: &'r Rule) {
        let (start, end) = range.clone().into_inner();
        let before = self.0.range(..=start).next_back();
        if before.is_some_and(|(_, (last, _))| *last >= end) {
            return;
        }
        let inside = self.0.range(start..).take_while(|(_, (last, _))| *last <= end);
        let inside: Vec<u64> = inside.map(|(first, _)| *first).collect();
        inside.into_iter().for_each(|first| {
            self.0.remove(&first);
        });
        self.0.insert(start, (end, rule));
    }
}

/// True if no later rule stands in for it.
fn decides(rule: &Rule) -> bool {
    rule.chain.last() == Some(&Action::DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::parse;

    fn texts(rules: &[&str]) -> Vec<String> {
        let text: String = rules.iter().map(|rule| format!("[[rule]]\n{rule}\n")).collect();
        lint(&parse("r", &text).unwrap()).iter().map(|problem| problem.to_string()).collect()
    }

    #[test]
    fn what_an_earlier_rule_takes_is_told() {
        let all = "use = [{ algorithm = \"ring\" }, \"default\"]";
        let small = "match.bytes = \"..64K\"\nuse = { algorithm = \"tree\" }";
        let part = "match.bytes = \"4K..8K\"\nmatch.ranks = 8\nuse = { algorithm = \"ring\" }";
        let found = texts(&[all, small]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("r:3:1: can never count: rule at r:1:1"), "{found:?}");
        let found = texts(&[small, part]);
        assert!(found[0].contains("counts only where nothing of rule at r:1:1 is possible"), "{found:?}");
        assert!(texts(&[part, small, all]).is_empty());
        assert!(texts(&[all, &format!("priority = 1\n{small}")]).is_empty(), "the second is looked at first");
    }

    #[test]
    fn ranges_of_bytes_are_found_inside_others() {
        let rule = |bytes: &str| format!("match.bytes = {bytes}\nuse = \"default\"");
        for (rules, found) in [
            (&["\"1K..8K\"", "\"2K..4K\""][..], 1),
            (&["\"2K..4K\"", "\"1K..8K\"", "\"1K..2K\""], 1),
            (&["\"1K..4K\"", "\"2K..8K\"", "\"3K..8K\"", "\"1K..2K\""], 2),
            (&["\"1K..4K\"", "\"4K..8K\"", "\"2K..6K\""], 0),
            (&["[\"1K..4K\", \"8K..\"]", "[\"2K..4K\", \"9K..10K\"]"], 1),
            (&["\"1K..4K\"", "\"8K..\"", "[\"2K..4K\", \"9K..10K\"]"], 0),
            (&["\"..\"", "\"5\""], 1),
        ] {
            let rules: Vec<String> = rules.iter().map(|bytes| rule(bytes)).collect();
            let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
            assert_eq!(texts(&rules).len(), found, "{rules:?}");
        }
    }

    #[test]
    fn conditions_cover_one_another_or_not() {
        for (first, second, covers) in [
            ("match.ranks = \"2..\"", "match.ranks = [4, 8]", true),
            ("match.ranks = [4, 8]", "match.ranks = \"4..9\"", false),
            ("match.op = [\"sum\", \"avg\"]", "match.op = \"avg\"", true),
            ("match.op = \"sum\"", "", false),
            ("match.communicator = \"*\"", "match.communicator = \"a\"", true),
            ("match.communicator = \"a*\"", "match.communicator = \"ab\"", false),
            ("match.registered = true", "match.registered = true", true),
            ("match.registered = true", "match.registered = false", false),
            ("match.data_type = \"half\"", "match.data_type = \"float16\"", true),
        ] {
            let found = texts(
                &[first, second]
                    .map(|when| format!("{when}\nuse = \"default\""))
                    .each_ref()
                    .map(String::as_str),
            );
            assert_eq!(found.len(), usize::from(covers), "{first} / {second}: {found:?}");
        }
    }
}
