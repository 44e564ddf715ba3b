//! Reads what a rule does: the values of `use`.

use hawser_plugin::tuner::{Algorithm, Class, Executor, Protocol};
use toml::de::{DeTable, DeValue};

use super::{Reader, Value, each, find};
use crate::names;
use crate::range;
use crate::rule::{Action, RunBy, Way};

/// Keys of an action.
const KEYS: [&str; 7] = ["algorithm", "program", "protocol", "channels", "chunk", "executor", "class"];
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
        let (channels, chunk, class) = (self.channels(table), self.chunk(table), self.class(table));
        Some(Action { program, way, channels, chunk, class })
    }

    /// The candidates that an action means.
    fn way(&mut self, table: &DeTable<'_>) -> Way {
        let mut way = Way::ANY;
        let algorithm = find(table, "algorithm").and_then(|value| Some((value, self.algorithm(value)?)));
        way.algorithm = algorithm.map(|(_, (algorithm, _))| algorithm);
        let mut implied = algorithm.and_then(|(value, (_, executor))| Some((value, executor?)));
        if let Some(value) = find(table, "protocol")
            && let Some((protocol, executor)) = self.protocol(value)
        {
            way.protocol = Some(protocol);
            if implied.is_none() {
                implied = executor.map(|executor| (value, executor));
            }
        }
        let named = find(table, "executor").and_then(|value| Some((value, self.executor(value)?)));
        way.executor = self.run_by(named, implied);
        // Names that imply copy engines ask for them; those that imply fused kernels take them where they may
        // run.
        let is_copied = implied.is_some_and(|(_, executor)| executor == Executor::CopyEngine);
        way.takes_held = named.is_some() || is_copied;
        if let Some(RunBy::Only(executor)) = way.executor
            && let Some(value) = named.map(|(value, _)| value).or(implied.map(|(value, _)| value))
        {
            self.must_run(value, executor, way.algorithm, find(table, "program").is_some());
        }
        way
    }

    /// The executor that has to run it, by the key `executor` and by a name that implies an executor;
    /// complains if they differ.
    fn run_by(
        &mut self,
        named: Option<(&Value<'_>, RunBy)>,
        implied: Option<(&Value<'_>, Executor)>,
    ) -> Option<RunBy> {
        let Some((value, named)) = named else { return implied.map(|(_, executor)| RunBy::Only(executor)) };
        let Some((word, implied)) = implied else { return Some(named) };
        match named {
            RunBy::Only(named) if named == implied => {}
            RunBy::Kernels if implied != Executor::CopyEngine => {}
            _ => {
                let word = word.get_ref().as_str().unwrap_or_default();
                let text =
                    format!("{word} is for executor = \"{}\": write that, or another name", implied.name());
                self.problem(value.span(), text);
            }
        }
        Some(RunBy::Only(implied))
    }

    /// Complains if an executor has no form of what else the action names.
    fn must_run(
        &mut self,
        value: &Value<'_>,
        executor: Executor,
        algorithm: Option<Algorithm>,
        is_program: bool,
    ) {
        let cannot = algorithm.filter(|algorithm| !names::can_run(executor, *algorithm)).map(Algorithm::name);
        let text = match (executor, cannot) {
            (Executor::CopyEngine, Some(name)) => format!(
                "copy engines do not run {name}: write ring, all_pairs or direct, or leave the algorithm out"
            ),
            (Executor::CopyEngine, None) if is_program => {
                "copy engines do not run programs of your own: leave one of the two out".to_owned()
            }
            (_, Some(name)) => format!(
                "{name} has no fused kernels: write one_shot, all_pairs or direct, or leave the executor out"
            ),
            (_, None) => return,
        };
        self.problem(value.span(), text);
    }

    /// An algorithm, and the executor that an old name implies. None for `auto`, and for what is no
    /// algorithm.
    fn algorithm(&mut self, value: &Value<'_>) -> Option<(Algorithm, Option<Executor>)> {
        let word = self.text(value, "algorithm").filter(|word| !names::same(word, AUTO))?;
        if let Some((algorithm, _)) = Algorithm::NAMES.iter().find(|(_, name)| names::same(name, word)) {
            return Some((*algorithm, None));
        }
        let old = names::WITH_EXECUTOR.iter().find(|(_, _, name)| names::same(name, word));
        if let Some((algorithm, executor, _)) = old {
            let now = format!("algorithm = \"{}\", executor = \"{}\"", algorithm.name(), executor.name());
            self.hint(value.span(), word, &now);
            return Some((*algorithm, Some(*executor)));
        }
        let words = || Algorithm::NAMES.iter().map(|(_, name)| *name).chain([AUTO]);
        self.unknown(value.span(), "algorithm", word, words(), &words().collect::<Vec<_>>().join(", "));
        None
    }

    /// A protocol, and the executor that an old name implies. None for `auto`, and for what is no protocol.
    fn protocol(&mut self, value: &Value<'_>) -> Option<(Protocol, Option<Executor>)> {
        let word = self.text(value, "protocol").filter(|word| !names::same(word, AUTO))?;
        if let Some(protocol) = Protocol::ALL.into_iter().find(|known| names::same(known.name(), word)) {
            return Some((protocol, None));
        }
        let old = names::FUSED_PROTOCOLS.iter().find(|(_, name)| names::same(name, word));
        if let Some((protocol, _)) = old {
            let fused = Executor::Fused;
            let now = format!("executor = \"{}\", protocol = \"{}\"", fused.name(), protocol.name());
            self.hint(value.span(), word, &now);
            return Some((*protocol, Some(fused)));
        }
        let words = || Protocol::ALL.into_iter().map(Protocol::name).chain([AUTO]);
        self.unknown(value.span(), "protocol", word, words(), &words().collect::<Vec<_>>().join(", "));
        None
    }

    /// The executor that has to run the action. None for `auto`, and for what is no executor.
    fn executor(&mut self, value: &Value<'_>) -> Option<RunBy> {
        let word = self.text(value, "executor").filter(|word| !names::same(word, AUTO))?;
        if let Some(executor) = Executor::ALL.into_iter().find(|known| names::same(known.name(), word)) {
            return Some(RunBy::Only(executor));
        }
        if names::same(word, names::KERNELS) {
            return Some(RunBy::Kernels);
        }
        let old = [
            (names::OLD_KERNELS, RunBy::Kernels),
            (names::OLD_COPY_ENGINE, RunBy::Only(Executor::CopyEngine)),
        ];
        if let Some((_, run_by)) = old.into_iter().find(|(old, _)| names::same(word, old)) {
            self.hint(value.span(), word, &format!("executor = \"{}\"", run_by.name()));
            return Some(run_by);
        }
        let words = || Executor::ALL.into_iter().map(Executor::name).chain([names::KERNELS, AUTO]);
        self.unknown(value.span(), "executor", word, words(), &words().collect::<Vec<_>>().join(", "));
        None
    }

    /// A class. None for `auto`, and for what is no class.
    fn class(&mut self, table: &DeTable<'_>) -> Option<Class> {
        let value = find(table, "class")?;
        let word = self.text(value, "class").filter(|word| !names::same(word, AUTO))?;
        let class = Class::ALL.into_iter().find(|known| names::same(known.name(), word));
        if class.is_none() {
            let words = || Class::ALL.into_iter().map(Class::name).chain([AUTO]);
            self.unknown(value.span(), "class", word, words(), &words().collect::<Vec<_>>().join(", "));
        }
        class
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
