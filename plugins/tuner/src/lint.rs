//! Rules that are right and yet do not do what their author may think.

use crate::rule::Problem;
use crate::rule::{self, Action, Rule};

/// Rules that can never count, because an earlier one takes all their calls. In the order in which rules are
/// looked at.
pub fn lint(rules: &[Rule]) -> Vec<Problem> {
    let ordered = rule::in_order(rules.iter());
    let mut problems = Vec::new();
    for (at, rule) in ordered.iter().enumerate() {
        let before = &ordered[..at];
        if let Some(first) = before.iter().find(|first| first.when.covers(&rule.when)) {
            let text = match decides(first) {
                true => format!("can never count: {} comes before it and takes all its calls", first.title()),
                false => format!(
                    "counts only where nothing of {} is possible, which comes before it",
                    first.title()
                ),
            };
            problems.push(Problem { place: rule.place.clone(), text });
        }
    }
    problems
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
