//! What a rule does: the values of `use`.

use hawser_plugin::tuner::Algorithm;
use toml::de::{DeTable, DeValue};

use super::{Reader, Value, each, find};
use crate::names::{self, PROTOCOLS};
use crate::range;
use crate::rule::{Action, Executor, Way};

/// Keys of an action.
const KEYS: [&str; 6] = ["algorithm", "program", "protocol", "channels", "chunk", "executor"];
/// The word for the cost model's own choice.
const DEFAULT: &str = "default";
/// The word for "as the cost model says" within an action.
const AUTO: &str = "auto";
/// More channels than any library has.
const MOST_CHANNELS: i64 = 1024;
/// Sizes of a chunk that make sense.
const CHUNKS: std::ops::RangeInclusive<u64> = 512..=4 << 20;

impl Reader<'_> {
    /// One action or a list of them.
    pub(super) fn chain(&mut self, value: &Value<'_>) -> Vec<Action> {
        if matches!(value.get_ref(), DeValue::Array(all) if all.is_empty()) {
            self.problem(value.span(), "use is empty: name at least one action, or write use = \"default\"");
        }
        let all: Vec<&Value<'_>> = each(value).collect();
        let mut chain: Vec<Action> = Vec::new();
        for (at, value) in all.iter().enumerate() {
            let Some(action) = self.action(value) else { continue };
            if action == Action::DEFAULT && at + 1 < all.len() {
                self.problem(value.span(), "the default is always possible: nothing can come after it");
            }
            chain.push(action);
        }
        chain
    }

    fn action(&mut self, value: &Value<'_>) -> Option<Action> {
        let table = match value.get_ref() {
            DeValue::String(word) if names::same(word, DEFAULT) => return Some(Action::DEFAULT),
            DeValue::Table(table) => table,
            _ => {
                let text = "an action is a table such as { algorithm = \"ring\" }, or the word \"default\"";
                self.problem(value.span(), text);
                return None;
            }
        };
        self.only(table, &KEYS, "use");
        if table.is_empty() {
            self.problem(
                value.span(),
                "an action without keys does nothing: write use = \"default\" if that is meant",
            );
        }
        let program = find(table, "program").and_then(|value| {
            if find(table, "algorithm").is_some() {
                self.problem(
                    value.span(),
                    "an action has an algorithm or a program, not both: make two of it",
                );
            }
            self.text(value, "program").map(str::to_owned)
        });
        let way = self.way(table);
        Some(Action { program, way, channels: self.channels(table), chunk: self.chunk(table) })
    }

    /// Who runs it, and whether what else the action names has such a form.
    fn executor(&mut self, table: &DeTable<'_>, algorithm: Option<Algorithm>) -> Option<Executor> {
        let value = find(table, "executor")?;
        let word = self.text(value, "executor").filter(|word| !names::same(word, AUTO))?;
        let executor = match word {
            word if names::same(word, "sm") => Executor::Sm,
            word if names::same(word, "dma") => Executor::Dma,
            _ => {
                let words = ["sm", "dma", AUTO];
                self.unknown(value.span(), "executor", word, words.into_iter(), &words.join(", "));
                return None;
            }
        };
        let copied = algorithm.is_some_and(names::is_copied);
        let can_copy = |algorithm| names::is_copied(algorithm) || names::copied_form(algorithm).is_some();
        let text = match (executor, algorithm) {
            (Executor::Sm, Some(algorithm)) if copied => {
                format!("{} is for copy engines: write executor = \"dma\"", names::algorithm_name(algorithm))
            }
            (Executor::Dma, Some(algorithm)) if !can_copy(algorithm) => format!(
                "copy engines do not run {}: write ring, all_pairs or direct, or leave the algorithm out",
                names::algorithm_name(algorithm)
            ),
            (Executor::Dma, _) if find(table, "program").is_some() => {
                "copy engines do not run programs of your own: leave one of the two out".into()
            }
            _ => return Some(executor),
        };
        self.problem(value.span(), text);
        None
    }

    fn way(&mut self, table: &DeTable<'_>) -> Way {
        let mut way = Way::ANY;
        let algorithm = find(table, "algorithm").and_then(|value| {
            let word = self.text(value, "algorithm").filter(|word| !names::same(word, AUTO))?;
            let known = Algorithm::NAMES.iter().find(|(_, name)| names::same(name, word));
            if known.is_none() {
                let words = || Algorithm::NAMES.iter().map(|(_, name)| *name).chain([AUTO]);
                let all = words().collect::<Vec<_>>().join(", ");
                self.unknown(value.span(), "algorithm", word, words(), &all);
            }
            known.map(|(algorithm, _)| *algorithm)
        });
        if let Some(algorithm) = algorithm {
            way.algorithm = Some((algorithm, names::fused_form(algorithm).unwrap_or(algorithm)));
        }
        way.executor = self.executor(table, algorithm);
        if algorithm.is_some_and(names::is_copied) {
            way.executor = Some(Executor::Dma);
        }
        if let Some(value) = find(table, "protocol")
            && let Some(word) = self.text(value, "protocol").filter(|word| !names::same(word, AUTO))
        {
            match PROTOCOLS.iter().find(|(_, _, name)| names::same(name, word)) {
                Some((protocol, fused, name)) => {
                    let (bit, only_fused) = (1 << *protocol as u8, algorithm.is_some_and(names::is_fused));
                    way.protocols = match fused {
                        // The three plain words name the staging where the algorithm is a fused one anyway.
                        false if only_fused => (0, bit),
                        false => (bit, 0),
                        true => (0, bit),
                    };
                    let no_form = |a: Algorithm| !names::is_fused(a) && names::fused_form(a).is_none();
                    if let Some(algorithm) = algorithm.filter(|a| *fused && no_form(*a)) {
                        let text = format!(
                            "{} has no fused kernels, so no protocol {name}: write ll, ll128 or simple",
                            names::algorithm_name(algorithm)
                        );
                        self.problem(value.span(), text);
                    }
                }
                None => {
                    let words = || PROTOCOLS.iter().map(|(_, _, name)| *name).chain([AUTO]);
                    let all = words().collect::<Vec<_>>().join(", ");
                    self.unknown(value.span(), "protocol", word, words(), &all);
                }
            }
        }
        way
    }

    fn channels(&mut self, table: &DeTable<'_>) -> Option<u32> {
        let value = find(table, "channels")?;
        if value.get_ref().as_str().is_some_and(|word| names::same(word, AUTO)) {
            return None;
        }
        Some(self.integer(value, "channels", 1..=MOST_CHANNELS)? as u32)
    }

    fn chunk(&mut self, table: &DeTable<'_>) -> Option<u64> {
        let value = find(table, "chunk")?;
        let read = match value.get_ref() {
            DeValue::String(word) if names::same(word, AUTO) => return None,
            DeValue::String(text) => range::number(text, true),
            _ => Ok(self.integer(value, "chunk", 0..=i64::MAX)? as u64),
        };
        let wrong = match read {
            Ok(bytes) if CHUNKS.contains(&bytes) => return Some(bytes),
            Ok(_) => "a chunk has 512 bytes to 4M".to_owned(),
            Err(text) => text,
        };
        self.problem(value.span(), format!("chunk: {wrong}"));
        None
    }
}
