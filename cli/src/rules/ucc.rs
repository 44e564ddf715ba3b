//! UCC's scores (`UCC_TL_UCP_TUNE`, `UCC_CL_HIER_TUNE`, lines of `ucc.conf`) as rules.
//!
//! A score string is tokens with `#` between them; a token is qualifiers with `:` between them, each of
//! which may be missing: collectives, ranges of bytes, kinds of memory, sizes of teams in brackets, a score,
//! `@` and an algorithm. Tokens without an algorithm choose between UCC's layers, of which there is one here.

use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Result, bail};
use hawser_plugin::tuner::{Algorithm, Function};
use hawser_tuner::rule::{Action, Match, Place, Ranges, Rule, Way};
use hawser_tuner::write;

/// UCC's collectives that rules are asked about.
const COLLECTIVES: [(&str, Function); 8] = [
    ("allgather", Function::AllGather),
    ("allreduce", Function::AllReduce),
    ("alltoall", Function::AllToAll),
    ("bcast", Function::Broadcast),
    ("gather", Function::Gather),
    ("reduce", Function::Reduce),
    ("reduce_scatter", Function::ReduceScatter),
    ("scatter", Function::Scatter),
];
/// Those that no rule is asked about.
const OTHERS: [&str; 8] =
    ["allgatherv", "alltoallv", "barrier", "fanin", "fanout", "gatherv", "reduce_scatterv", "scatterv"];
/// Words for kinds of memory.
const MEMORY: [&str; 7] = ["cpu", "host", "cuda", "cuda_managed", "cuda_mng", "rocm", "rocm_managed"];

/// Ours for an algorithm's name there, if there is one of the kind.
fn ours(function: Function, name: &str) -> &'static str {
    use Function::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    match (function, name) {
        (_, "ring") => "ring",
        (AllReduce | Broadcast | Reduce, "dbt") => "tree",
        (AllReduce, "knomial") => "recursive_doubling",
        (AllReduce, "sra_knomial") => "halving_doubling",
        (AllReduce, "rab" | "split_rail") => "hierarchical",
        (AllGather, "linear") => "all_pairs",
        (AllToAll, "pairwise") => "pairwise",
        (AllToAll, "bruck") => "bruck",
        (AllToAll, "onesided") => "direct",
        (Broadcast | Reduce, "knomial") => "knomial",
        (Broadcast, "sag_knomial") => "all_pairs",
        (Gather | Scatter, "linear") => "direct",
        (ReduceScatter | _, _) => "",
    }
}

/// A token's qualifiers.
#[derive(Default)]
struct Token {
    /// Words for collectives; none = all.
    collectives: Vec<String>,
    bytes: Ranges,
    ranks: Ranges,
    is_off: bool,
    algorithm: Option<String>,
}

/// True if a text looks like scores: a line sets such a variable, or is a string with an algorithm.
pub fn is_scores(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next().unwrap_or_default();
    let begins = first.split([':', ',']).next().unwrap_or_default();
    let is_collective = COLLECTIVES.iter().any(|(word, _)| *word == begins) || OTHERS.contains(&begins);
    variable(first).is_some() || (is_collective && first.contains(":@"))
}

/// The value of `UCC_TL_X_TUNE=value`, with or without `export`, blanks and quotes.
fn variable(line: &str) -> Option<&str> {
    let line = line.trim().strip_prefix("export ").unwrap_or(line).trim();
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_score = name.starts_with("UCC_") && name.ends_with("_TUNE");
    is_score.then(|| value.trim().trim_matches(['"', '\'']))
}

/// The rules of all score strings, as TOML with comments.
///
/// # Errors
/// The text names the line and the token, and says what is wrong in it.
pub fn toml(name: &str, text: &str) -> Result<String> {
    let mut rules = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let value = match variable(line) {
            Some(value) => value,
            None if line.is_empty() || line.starts_with('#') || line.contains('=') => continue,
            None => line,
        };
        for word in value.split('#').map(str::trim).filter(|word| !word.is_empty()) {
            match token(word) {
                Ok(token) => rules.push_str(&written(name, number, word, &token)),
                Err(error) => bail!("{name}:{number}: \"{word}\": {error}"),
            }
        }
    }
    Ok(rules)
}

fn token(text: &str) -> Result<Token> {
    let mut token = Token::default();
    let mut has_score = false;
    for part in text.split(':').map(str::trim).filter(|part| !part.is_empty()) {
        let words: Vec<&str> = part.split(',').map(str::trim).collect();
        let all = |known: &dyn Fn(&str) -> bool| words.iter().all(|word| known(&word.to_ascii_lowercase()));
        if let Some(name) = part.strip_prefix('@') {
            if name.is_empty() {
                bail!("an algorithm is missing behind @");
            }
            token.algorithm = Some(name.to_owned());
        } else if let Some(inner) = part.strip_prefix('[').and_then(|part| part.strip_suffix(']')) {
            // Sizes of teams take in both ends.
            token.ranks = ranges(inner, false)?;
        } else if all(&|word| COLLECTIVES.iter().any(|(known, _)| *known == word) || OTHERS.contains(&word)) {
            token.collectives = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        } else if all(&|word| MEMORY.contains(&word)) {
            // Where buffers lie is the communicator's matter.
        } else if part == "inf" || part.bytes().all(|byte| byte.is_ascii_digit()) {
            (has_score, token.is_off) = (true, part == "0");
        } else if part.contains('-') {
            token.bytes = ranges(part, true)?;
        } else {
            bail!("\"{part}\" is no collective, range, kind of memory, score or algorithm");
        }
    }
    if token.algorithm.is_none() && !has_score {
        bail!("it has neither a score nor an algorithm");
    }
    Ok(token)
}

/// `0-4k,1m-inf`; ranges of bytes end before their last.
fn ranges(text: &str, is_open: bool) -> Result<Ranges> {
    let mut all: Vec<RangeInclusive<u64>> = Vec::new();
    for range in text.split(',') {
        let Some((first, last)) = range.split_once('-') else { bail!("\"{range}\" is no range") };
        let (first, last) = (size(first)?, size(last)?);
        let last = if is_open && last != u64::MAX { last.saturating_sub(1) } else { last };
        if first > last {
            bail!("the range {range} is empty");
        }
        all.push(first..=last);
    }
    let is_everything = all.contains(&(0..=u64::MAX));
    Ok(if is_everything { Ranges::default() } else { Ranges(all) })
}

/// A number with a prefix (`4k`, `1Mb`), or `inf`.
fn size(text: &str) -> Result<u64> {
    let lower = text.trim().to_ascii_lowercase();
    if lower == "inf" {
        return Ok(u64::MAX);
    }
    let bare = lower.strip_suffix('b').unwrap_or(&lower);
    let powers = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];
    let found = powers.iter().find_map(|(letter, power)| Some((bare.strip_suffix(*letter)?, *power)));
    let (digits, power) = found.unwrap_or((bare, 0));
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << power));
    number.ok_or_else(|| anyhow::anyhow!("\"{text}\" is no number of bytes"))
}

/// A token's rules below a comment, or a comment that says why there are none.
fn written(name: &str, line: u32, word: &str, token: &Token) -> String {
    let word: String = word.chars().filter(|c| !c.is_control()).collect();
    let place = format!("\n# line {line}: {word}");
    let left_out = |why: &str| format!("{place}: left out, {why}\n");
    let Some(algorithm) = &token.algorithm else {
        return left_out("a score without an algorithm chooses between UCC's layers");
    };
    if token.is_off {
        return left_out("a score of 0 forbids the algorithm: name another one");
    }
    if algorithm.bytes().all(|byte| byte.is_ascii_digit()) {
        return left_out(
            "numbers of algorithms differ between layers: write the name that ucc_info -A tells",
        );
    }
    let is_meant = |known: &str| token.collectives.is_empty() || token.collectives.iter().any(|c| c == known);
    let mut text = String::new();
    for &(known, function) in COLLECTIVES.iter().filter(|(known, _)| is_meant(known)) {
        let Some((ours, _)) = Algorithm::NAMES.iter().find(|(_, own)| *own == ours(function, algorithm))
        else {
            text.push_str(&format!("{place}: left out, nothing here is like {known}'s {algorithm}\n"));
            continue;
        };
        let when = Match {
            collectives: 1 << function as u32,
            bytes: token.bytes.clone(),
            ranks: token.ranks.clone(),
            ..Match::default()
        };
        let way = Way { algorithm: Some(*ours), ..Way::ANY };
        let rule = Rule {
            place: Place { file: Arc::from(name), line, column: 1 },
            name: None,
            priority: 0,
            when,
            chain: vec![Action { way, ..Action::DEFAULT }],
            never_worse: false,
        };
        text.push_str(&format!("{place}\n{}", write::toml(&rule)));
    }
    match text.is_empty() {
        true => left_out("rules are not asked about it"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_rules() {
        let text = "# of a machine\nUCC_TLS = ucp\n\
            UCC_TL_UCP_TUNE = \"allreduce:0-4k:host:[2-8]:inf:@knomial#allreduce:4K-inf:@sra_knomial\"\n\
            export UCC_TL_CUDA_TUNE=bcast,alltoall:0-1mb,2M-inf:@bruck#alltoallv:@pairwise#inf#gather:@1\n";
        let wanted = "\n# line 3: allreduce:0-4k:host:[2-8]:inf:@knomial\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"..4K\", ranks = \"2..=8\" }\n\
            use = { algorithm = \"recursive_doubling\" }\n\n\
            # line 3: allreduce:4K-inf:@sra_knomial\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"4K..\" }\n\
            use = { algorithm = \"halving_doubling\" }\n\n\
            # line 4: bcast,alltoall:0-1mb,2M-inf:@bruck\n\
            [[rule]]\n\
            match = { collective = \"alltoall\", bytes = [\"..1M\", \"2M..\"] }\n\
            use = { algorithm = \"bruck\" }\n\n\
            # line 4: bcast,alltoall:0-1mb,2M-inf:@bruck: left out, nothing here is like bcast's bruck\n\n\
            # line 4: alltoallv:@pairwise: left out, rules are not asked about it\n\n\
            # line 4: inf: left out, a score without an algorithm chooses between UCC's layers\n\n\
            # line 4: gather:@1: left out, numbers of algorithms differ between layers: write the name that \
            ucc_info -A tells\n";
        assert_eq!(toml("t", text).unwrap(), wanted);
        assert!(is_scores("UCC_TL_UCP_TUNE=inf\n") && is_scores("allreduce:@ring") && !is_scores(""));
        assert!(!is_scores("allreduce,0,1,ring,ll,1,1,1\n") && !is_scores("[[rule]]\n"));
    }

    #[test]
    fn broken_scores_are_told_with_their_tokens() {
        for (text, words) in [
            ("allreduce:@", "t:1: \"allreduce:@\": an algorithm is missing"),
            ("allreduce", "neither a score nor an algorithm"),
            ("allreduce:0-4q:@ring", "\"4q\" is no number of bytes"),
            ("allreduce:4k-4k:@ring", "the range 4k-4k is empty"),
            ("allreduce:[3]:@ring", "\"3\" is no range"),
            ("allreduse:@ring", "\"allreduse\" is no collective"),
            ("allreduce:0-99999999999999T:@ring", "is no number of bytes"),
        ] {
            let error = toml("t", text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
