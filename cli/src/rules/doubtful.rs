//! Rules that can be read and yet name what cannot be: an algorithm that no executor has for the collective,
//! a name that an earlier rule has.

use hawser_plan::algo;
use hawser_plan::executor::EXECUTORS;
use hawser_plan::topology::DeviceKind;
use hawser_plan::{Algorithm, Collective, Route};
use hawser_plugin::tuner::Function;
use hawser_tuner::rule::{Action, Problem, Rule, RunBy};
use std::collections::HashMap;

/// The doubts about rules, in the order of the rules.
pub fn doubtful(rules: &[Rule]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut names: HashMap<&str, &Rule> = HashMap::new();
    for rule in rules {
        let mut say = |text: String| problems.push(Problem { place: rule.place.clone(), text });
        if let Some(name) = rule.name.as_deref() {
            match names.get(name) {
                Some(first) => say(format!("the name \"{name}\" is that of the rule at {} too", first.place)),
                None => drop(names.insert(name, rule)),
            }
        }
        for action in &rule.chain {
            if let Some(text) = impossible(rule, action) {
                say(text);
            }
        }
    }
    problems
}

/// The reason why no call of a rule can be done by an action, if so.
fn impossible(rule: &Rule, action: &Action) -> Option<String> {
    if let (Some(RunBy::Only(executor)), Some(protocol)) = (action.way.executor, action.way.protocol)
        && !Route::ALL.iter().any(|route| {
            same(route.executor.name(), executor.name()) && same(route.protocol.name(), protocol.name())
        })
    {
        return Some(format!("{} has no {}: no call can be done so", executor.name(), protocol.name()));
    }
    let wanted = action.way.algorithm?;
    let known = Algorithm::ALL.into_iter().find(|known| same(known.name(), wanted.name()))?;
    let collectives: Vec<Collective> = Collective::ALL
        .into_iter()
        .filter(|collective| rule.when.collectives == 0 || matches(rule, *collective))
        .collect();
    let has = |collective: Collective| {
        let own = algo::algorithms(collective).contains(&known)
            || algo::algorithms_of_networks(collective).any(|algorithm| algorithm == known);
        let devices = [DeviceKind::Host, DeviceKind::Cuda { sm: 90 }];
        let runs = EXECUTORS.iter().filter(|executor| match action.way.executor {
            Some(RunBy::Only(wanted)) => executor.executor().name() == wanted.name(),
            _ => true,
        });
        own && runs
            .into_iter()
            .any(|executor| devices.into_iter().any(|device| executor.offers(collective, known, device)))
    };
    if collectives.is_empty() || collectives.iter().any(|collective| has(*collective)) {
        return None;
    }
    let names: Vec<&str> = collectives.iter().map(|collective| collective.name()).collect();
    let by = match action.way.executor {
        Some(RunBy::Only(executor)) => format!(" by {}", executor.name()),
        _ => String::new(),
    };
    Some(format!("{}{by} is not there for {}: no call can be done so", wanted.name(), names.join(", ")))
}

fn matches(rule: &Rule, collective: Collective) -> bool {
    let function = Function::EVERY.into_iter().find(|function| same(function.name(), collective.name()));
    function.is_some_and(|function| rule.when.collectives >> function as u32 & 1 != 0)
}

/// True if two names are the same: case, `_` and `-` do not count.
fn same(one: &str, other: &str) -> bool {
    let plain = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_tuner::schema::parse;

    fn texts(rules: &str) -> Vec<String> {
        doubtful(&parse("r", rules).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ways_that_no_executor_has_are_told() {
        let found = texts(
            "[[rule]]\nmatch.collective = \"alltoall\"\nuse = [{ algorithm = \"ring\" }, \"default\"]\n\
             [[rule]]\nmatch.collective = [\"alltoall\", \"all_reduce\"]\nuse = { algorithm = \"ring\" }\n\
             [[rule]]\nuse = { algorithm = \"bruck\" }\n\
             [[rule]]\nmatch.collective = \"gather\"\nuse = { algorithm = \"direct\" }\n",
        );
        assert_eq!(found, ["r:1:1: ring is not there for alltoall: no call can be done so"]);
        let with = |protocol: &str| {
            texts(&format!("[[rule]]\nuse = {{ executor = \"copy_engine\", protocol = \"{protocol}\" }}\n"))
        };
        assert_eq!(with("ll"), ["r:1:1: copy_engine has no ll: no call can be done so"]);
        assert!(with("simple").is_empty());
    }

    #[test]
    fn names_that_come_twice_are_told() {
        let rule = "[[rule]]\nname = \"small\"\nuse = \"default\"\n";
        let found = texts(&[rule, rule, &rule.replace("small", "large")].concat());
        assert_eq!(found, ["r:4:1: the name \"small\" is that of the rule at r:1:1 too"]);
    }
}
