//! Open MPI's rule files in JSON (`coll_tuned_dynamic_rules_filename`, version 3) as rules.
//!
//! `collectives` has a list for each collective; of the entries of a list the first whose communicator fits
//! counts, and of its `rules` the first whose message fits. Where none of those does, Open MPI decides by
//! itself: that becomes the cost model's choice.

use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail};
use hawser_tuner::rule::{Action, Match, Place, Ranges, Rule};
use hawser_tuner::write;
use serde_json::{Map, Value};

use super::ompi;

/// Open MPI's collectives in the order of their numbers.
const COLLECTIVES: [&str; 17] = [
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "alltoallw",
    "barrier",
    "bcast",
    "exscan",
    "gather",
    "gatherv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "scan",
    "scatter",
    "scatterv",
];

/// True if a text looks like such a file.
pub fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"collectives\"")
}

/// The rules of a file, as TOML with comments.
///
/// # Errors
/// The text says where something is wrong.
pub fn toml(name: &str, text: &str) -> Result<String> {
    let file: Value =
        serde_json::from_str(text).map_err(|error| anyhow::anyhow!("{name} is no JSON: {error}"))?;
    let collectives = file.get("collectives").and_then(Value::as_object);
    let collectives = collectives.with_context(|| format!("{name} has no object \"collectives\""))?;
    if let Some(version) = file.get("rule_file_version").and_then(Value::as_f64)
        && version != 3.0
    {
        bail!("{name}: version {version} is not known: files of JSON have version 3");
    }
    let mut rules = String::new();
    for (word, list) in collectives {
        let list = list.as_array().with_context(|| format!("{name}: {word} is no list"))?;
        let Some(number) = COLLECTIVES.iter().position(|known| known == word) else {
            rules.push_str(&format!("\n# {}: left out, rules are not asked about it\n", one_line(word)));
            continue;
        };
        for (at, entry) in list.iter().enumerate() {
            let place = format!("{word}, communicator {}", at + 1);
            let is_last = at + 1 == list.len();
            let found = communicator(name, &place, (number as u64, is_last), entry);
            rules.push_str(&found.with_context(|| format!("{name}: {place}"))?);
        }
    }
    Ok(rules)
}

/// The rules for communicators of some sizes.
fn communicator(
    name: &str,
    place: &str,
    (collective, is_last): (u64, bool),
    entry: &Value,
) -> Result<String> {
    let entry = entry.as_object().context("it is no object")?;
    let ranks = between(entry, "comm_size_min", "comm_size_max")?;
    let mut when = Match { ranks: ompi::range(&ranks), ..Match::default() };
    match entry.get("comm_rank_distribution").map(|value| value.as_str().unwrap_or_default()) {
        None | Some("any") => {}
        Some(word) if word.starts_with("one-per") => when.ranks_per_host = Ranges(vec![1..=1]),
        Some(word) if word.starts_with("single") => when.hosts = Ranges(vec![1..=1]),
        Some(word) => {
            let word = one_line(word);
            return Ok(format!("\n# {place}: left out, no rule can ask for the distribution {word}\n"));
        }
    }
    let messages = entry.get("rules").and_then(Value::as_array).context("it has no list \"rules\"")?;
    let mut text = String::new();
    for (at, message) in messages.iter().enumerate() {
        let place = format!("{place}, rule {}", at + 1);
        let found = message_rule(name, &place, collective, &when, message);
        text.push_str(&found.with_context(|| format!("rule {}", at + 1))?);
    }
    if !is_last && ompi::is_asked_about(collective) {
        text.push_str(&rest(name, place, collective, when));
    }
    Ok(text)
}

fn message_rule(name: &str, place: &str, collective: u64, when: &Match, message: &Value) -> Result<String> {
    let message = message.as_object().context("it is no object")?;
    let bytes = between(message, "msg_size_min", "msg_size_max")?;
    let segment = size(message, "seg_size")?.unwrap_or(0);
    let algorithm = match message.get("alg").context("it has no \"alg\"")? {
        Value::String(word) => match ompi::number_of(collective, word) {
            Some(number) => number,
            None => {
                let word = one_line(word);
                return Ok(format!("\n# {place}: left out, there is no algorithm \"{word}\"\n"));
            }
        },
        other => other.as_u64().context("\"alg\" is neither a name nor a number")?,
    };
    let when = Match { bytes: ompi::range(&bytes), ..when.clone() };
    Ok(ompi::written(name, place, (collective, algorithm), segment, when))
}

/// Messages of which an entry says nothing are not for the entries behind it.
fn rest(name: &str, place: &str, collective: u64, when: Match) -> String {
    let when = Match { collectives: ompi::bit(collective), ..when };
    let rule = Rule {
        place: Place { file: name.into(), line: 1, column: 1 },
        name: None,
        priority: 0,
        when,
        chain: vec![Action::DEFAULT],
        never_worse: false,
    };
    format!("\n# {place}: what it says nothing of\n{}", write::toml(&rule))
}

/// A range of which both ends are taken in.
fn between(object: &Map<String, Value>, first: &str, last: &str) -> Result<RangeInclusive<u64>> {
    let (least, most) = (size(object, first)?.unwrap_or(0), size(object, last)?.unwrap_or(u64::MAX));
    if least > most {
        bail!("{first} {least} is above {last} {most}");
    }
    Ok(least..=most)
}

/// A number; "inf" is the largest.
fn size(object: &Map<String, Value>, name: &str) -> Result<Option<u64>> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::String(word)) if word.to_ascii_lowercase().starts_with("inf") => Ok(Some(u64::MAX)),
        Some(value) => {
            let number = value.as_u64();
            number.map(Some).with_context(|| format!("{name} is neither a number nor \"inf\""))
        }
    }
}

/// A text that a comment may hold.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_fits_counts_as_there() {
        let text = r#"{ "rule_file_version": 3, "module": "tuned", "collectives": {
            "allreduce": [
                { "comm_size_min": 2, "comm_size_max": 8, "comm_rank_distribution": "one-per-node", "rules": [
                    { "msg_size_max": 4095, "alg": "recursive_doubling" },
                    { "msg_size_min": 4096, "msg_size_max": "inf", "alg": 5, "seg_size": 65536 } ] },
                { "comm_size_max": "INF", "rules": [ { "alg": "basic_linear" }, { "alg": "nothing" } ] } ],
            "alltoall": [ { "rules": [ { "alg": "pairwise", "faninout": 2 }, { "alg": 0 } ] } ],
            "barrier": [ { "rules": [ { "alg": 1 } ] } ], "new_one": [] } }"#;
        let wanted = "\n# allreduce, communicator 1, rule 1: allreduce's 3 (recursive_doubling)\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"..4K\", ranks = \"2..=8\", \
            ranks_per_host = \"1\" }\n\
            use = { algorithm = \"recursive_doubling\" }\n\n\
            # allreduce, communicator 1, rule 2: allreduce's 5 (segmented_ring)\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"4K..\", ranks = \"2..=8\", \
            ranks_per_host = \"1\" }\n\
            use = { algorithm = \"ring\", chunk = \"64K\" }\n\n\
            # allreduce, communicator 1: what it says nothing of\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", ranks = \"2..=8\", ranks_per_host = \"1\" }\n\
            use = \"default\"\n\n\
            # allreduce, communicator 2, rule 1: left out, nothing here is like \
            allreduce's 1 (basic_linear)\n\n\
            # allreduce, communicator 2, rule 2: left out, there is no algorithm \"nothing\"\n\n\
            # alltoall, communicator 1, rule 1: alltoall's 2 (pairwise)\n\
            [[rule]]\n\
            match = { collective = \"alltoall\" }\n\
            use = { algorithm = \"pairwise\" }\n\n\
            # alltoall, communicator 1, rule 2: alltoall: left to the cost model, as there\n\n\
            # barrier, communicator 1, rule 1: left out, rules are not asked about collective 6\n\n\
            # new_one: left out, rules are not asked about it\n";
        assert_eq!(toml("t", text).unwrap(), wanted);
        assert!(is_json(text) && !is_json("{\"gpus\": []}") && !is_json("[[rule]]"));
    }

    #[test]
    fn broken_files_are_told_with_their_places() {
        let of = |rules: &str| {
            let text = format!("{{ \"collectives\": {{ \"bcast\": [ {rules} ] }} }}");
            format!("{:#}", toml("t", &text).unwrap_err())
        };
        for (rules, words) in [
            ("7", "t: bcast, communicator 1: it is no object"),
            ("{}", "it has no list \"rules\""),
            (r#"{"rules": [{}]}"#, "communicator 1: rule 1: it has no \"alg\""),
            (r#"{"rules": [{"alg": -1}]}"#, "neither a name nor a number"),
            (r#"{"rules": [{"alg": 1, "msg_size_min": "x"}]}"#, "msg_size_min is neither a number nor"),
            (r#"{"comm_size_min": 9, "comm_size_max": 3, "rules": []}"#, "comm_size_min 9 is above"),
        ] {
            let error = of(rules);
            assert!(error.contains(words), "{rules}: {error}");
        }
        let error = |text: &str| format!("{:#}", toml("t", text).unwrap_err());
        assert!(error("{").contains("t is no JSON"));
        assert!(error("{}").contains("has no object \"collectives\""));
        assert!(error(r#"{"rule_file_version": 4, "collectives": {}}"#).contains("version 4 is not known"));
        assert!(error(r#"{"collectives": {"bcast": 1}}"#).contains("bcast is no list"));
    }
}
