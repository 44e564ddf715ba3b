//! Settings as parameters: what programs read of them by name (`ncclParam…`).
//!
//! A parameter shows the value that the library uses: a text that the setting does not accept is ignored, so
//! the default is shown then. Numbers of levels and of parts of the log are NCCL 2.32.3's.

use std::sync::OnceLock;

use super::kind::{Form, parse_size, switch};
use super::table::{Setting, TABLE};
use super::{ORIGIN, Origin, is_in_environment, settings, value};

/// Parameters that NCCL leaves out of lists unless `NCCL_PARAM_DUMP_ALL` is set.
const PRIVATE: [&str; 3] = ["NCCL_PARAM_DUMP_ALL", "NCCL_NO_CACHE", "NCCL_WARN_ENABLE_DEBUG_INFO"];

/// Names of the bits of `NCCL_DEBUG_LEVELS`.
pub(super) const LEVELS: Words = Words {
    names: &[("VERSION", 1), ("WARN", 2), ("ATTN", 6), ("INFO", 3), ("ABORT", 4), ("TRACE", 5)],
    all: 0x7e,
};

/// Names of the bits of `NCCL_DEBUG_SUBSYS`.
const SUBSYSTEMS: Words = Words {
    names: &[
        ("INIT", 0),
        ("COLL", 1),
        ("P2P", 2),
        ("SHM", 3),
        ("NET", 4),
        ("GRAPH", 5),
        ("TUNING", 6),
        ("ENV", 7),
        ("ALLOC", 8),
        ("ALLOC_HOST", 17),
        ("CALL", 9),
        ("PROXY", 10),
        ("NVLS", 11),
        ("BOOTSTRAP", 12),
        ("REG", 13),
        ("PROFILE", 14),
        ("RAS", 15),
        ("DESTROY", 16),
    ],
    all: u64::MAX,
};

/// A setting, with the value that it has in this process.
#[derive(Debug)]
pub struct Parameter {
    /// The entry of the table.
    pub setting: &'static Setting,
    /// The value as text; empty if there is none.
    pub text: String,
    /// The value in its form; None if it has none in that form.
    pub value: Option<Value>,
    /// The place that the value is from, in one word.
    pub set_by: &'static str,
}

/// The value of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// The text of the parameter.
    Text,
    /// An integer.
    Number(i128),
    /// Yes or no.
    Flag(bool),
    /// A number of NCCL's `ncclDebugLogLevel`.
    Level(i32),
    /// The bits of levels of the log.
    Levels(u32),
    /// The bits of parts of the log.
    Subsystems(u64),
}

/// All parameters, in the order of the table.
pub fn parameters() -> &'static [Parameter] {
    static PARAMETERS: OnceLock<Vec<Parameter>> = OnceLock::new();
    PARAMETERS.get_or_init(|| {
        settings(); // they say where values come from
        TABLE.iter().map(Parameter::of_process).collect()
    })
}

/// The parameter of a name, which may be an older name of the setting.
pub fn parameter(name: &str) -> Option<&'static Parameter> {
    parameters().iter().find(|it| it.setting.name == name || it.setting.older_names.contains(&name))
}

impl Parameter {
    /// Returns whether lists leave the parameter out.
    pub fn is_private(&self) -> bool {
        PRIVATE.contains(&self.setting.name)
    }

    /// The name of the parameter's type.
    pub fn type_name(&self) -> &'static str {
        match self.setting.form {
            Form::Text => "const char*",
            Form::Number => "int64_t",
            Form::Flag => "bool",
            Form::Level => "ncclDebugLogLevel",
            Form::Levels => "uint32_t",
            Form::Subsystems => "uint64_t",
        }
    }

    fn of_process(setting: &'static Setting) -> Self {
        let mut names = std::iter::once(&setting.name).chain(setting.older_names);
        let found = names.find_map(|name| {
            let text = value(name)?.into_string().ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty() && (setting.accepts)(text))
        });
        let origin = match ORIGIN.get() {
            Some(Origin::Plugin(_)) => "EnvPlugin",
            _ if found.as_deref().is_some_and(|text| is_in_environment(setting, text)) => "Environment",
            _ => "File",
        };
        Self::new(setting, found, origin)
    }

    fn new(setting: &'static Setting, found: Option<String>, origin: &'static str) -> Self {
        let set_by = if found.is_some() { origin } else { "Default" };
        let given = found.or_else(|| setting.has_default.then(|| setting.default.to_owned()));
        let value = value_of(setting.form, given.as_deref());
        let text = match value {
            Some(Value::Flag(is_on)) => if is_on { "TRUE" } else { "FALSE" }.to_owned(),
            Some(Value::Level(level)) => level_name(level).to_owned(),
            Some(Value::Levels(bits)) => LEVELS.text(bits.into()),
            Some(Value::Subsystems(bits)) => SUBSYSTEMS.text(bits),
            Some(Value::Text | Value::Number(_)) | None => given.unwrap_or_default(),
        };
        Self { setting, text, value, set_by }
    }
}

fn value_of(form: Form, given: Option<&str>) -> Option<Value> {
    match form {
        Form::Text => Some(Value::Text),
        Form::Number => number(given?).map(Value::Number),
        Form::Flag => Some(Value::Flag((super::kind::NCCL_FLAG.parse)(given?)?)),
        Form::Level => Some(Value::Level(given.map_or(0, level))),
        Form::Levels => {
            Some(Value::Levels(given.and_then(|text| LEVELS.bits(text)).unwrap_or(0).try_into().ok()?))
        }
        Form::Subsystems => Some(Value::Subsystems(SUBSYSTEMS.known_bits(given?))),
    }
}

/// An integer, a switch as 0 or 1, or a size in bytes.
fn number(text: &str) -> Option<i128> {
    let switched = || switch(text)?.map(i128::from);
    text.parse().ok().or_else(switched).or_else(|| parse_size(text).map(i128::from))
}

/// A level of the log by its name; any word that is none means INFO (see `log::lines`).
fn level(text: &str) -> i32 {
    let named = LEVELS.names.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    named.map_or(3, |(_, number)| i32::from(*number))
}

fn level_name(level: i32) -> &'static str {
    let named = LEVELS.names.iter().find(|(_, number)| i32::from(*number) == level);
    named.map_or("<unknown>", |(name, _)| name)
}

/// Names of bits.
pub(super) struct Words {
    /// Each name with the number of its bit.
    names: &'static [(&'static str, u8)],
    /// The bits that ALL means.
    all: u64,
}

impl Words {
    /// The bits of a list; None if a word is none of the names.
    pub(super) fn bits(&self, list: &str) -> Option<u64> {
        list.split(',').map(|word| self.bit(word)).try_fold(0, |bits, bit| Some(bits | bit?))
    }

    /// The bits of those words of a list that are names; `^` at the start inverts them.
    fn known_bits(&self, list: &str) -> u64 {
        let (is_inverted, names) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
        let bits = names.split(',').filter_map(|word| self.bit(word)).fold(0, |bits, bit| bits | bit);
        if is_inverted { !bits } else { bits }
    }

    fn bit(&self, word: &str) -> Option<u64> {
        let is = |name: &str| word.trim().eq_ignore_ascii_case(name);
        let named = || self.names.iter().find(|(name, _)| is(name)).map(|(_, bit)| 1 << bit);
        if is("ALL") { Some(self.all) } else { named() }
    }

    fn text(&self, bits: u64) -> String {
        if bits == self.all {
            return "ALL".to_owned();
        }
        let named = self.names.iter().filter(|(_, bit)| bits >> bit & 1 != 0).map(|(name, _)| *name);
        let names: Vec<&str> = named.collect();
        if names.is_empty() { "NONE".to_owned() } else { names.join(",") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table_entry;
    use super::*;

    fn parameter(name: &str, given: Option<&str>) -> Parameter {
        Parameter::new(table_entry(name).unwrap(), given.map(str::to_owned), "Environment")
    }

    /// The values that NVIDIA's library 2.32.3 answers for these values of the environment.
    #[test]
    fn nccls_parameters_have_nccls_values() {
        let cases = [
            ("NCCL_DEBUG", None, "<unknown>", Value::Level(0)),
            ("NCCL_DEBUG", Some("info"), "INFO", Value::Level(3)),
            ("NCCL_DEBUG", Some("ATTN"), "ATTN", Value::Level(6)),
            ("NCCL_DEBUG", Some("TRACE"), "TRACE", Value::Level(5)),
            ("NCCL_DEBUG_SUBSYS", None, "INIT,ENV,BOOTSTRAP", Value::Subsystems(0x1081)),
            ("NCCL_DEBUG_SUBSYS", Some("ALLOC_HOST"), "ALLOC_HOST", Value::Subsystems(0x20000)),
            ("NCCL_DEBUG_SUBSYS", Some("DESTROY"), "DESTROY", Value::Subsystems(0x10000)),
            ("NCCL_DEBUG_SUBSYS", Some("ALL"), "ALL", Value::Subsystems(u64::MAX)),
            ("NCCL_DEBUG_LEVELS", None, "NONE", Value::Levels(0)),
            ("NCCL_DEBUG_LEVELS", Some("ALL"), "ALL", Value::Levels(0x7e)),
            ("NCCL_DEBUG_TIMESTAMP_LEVELS", None, "WARN,ATTN", Value::Levels(0x44)),
            ("NCCL_SET_THREAD_NAME", None, "FALSE", Value::Flag(false)),
            ("NCCL_PARAM_DUMP_ALL", Some("t"), "TRUE", Value::Flag(true)),
            ("NCCL_DEBUG_FILE", None, "", Value::Text),
            ("NCCL_DEBUG_TIMESTAMP_FORMAT", None, "[%F %T] ", Value::Text),
        ];
        for (name, given, text, value) in cases {
            let found = parameter(name, given);
            assert_eq!((found.text.as_str(), found.value), (text, Some(value)), "{name}");
            assert_eq!(found.set_by, if given.is_some() { "Environment" } else { "Default" });
        }
        let inverted = parameter("NCCL_DEBUG_SUBSYS", Some("^INIT,NET"));
        assert_eq!(inverted.value, Some(Value::Subsystems(!0x11)));
        assert!(inverted.text.starts_with("COLL,P2P,SHM,GRAPH,") && inverted.text.ends_with(",RAS,DESTROY"));
    }

    #[test]
    fn numbers_are_integers_switches_and_sizes() {
        let value = |name, given| parameter(name, given).value;
        assert_eq!(value("NCCL_MAX_CTAS", Some("8")), Some(Value::Number(8)));
        assert_eq!(value("NCCL_CUMEM_ENABLE", None), Some(Value::Number(-1)));
        assert_eq!(value("NCCL_CUMEM_POOL_SIZE", Some("2GB")), Some(Value::Number(2 << 30)));
        assert_eq!(value("NCCL_DMA_ENABLE", Some("off")), Some(Value::Number(0)));
        // A value that is no integer is a text alone, and one that is not there is none.
        for (name, given) in
            [("NCCL_ZERO_COPY", None), ("HAWSER_OP_TIMEOUT", Some("0.5")), ("NCCL_MAX_CTAS", None)]
        {
            assert_eq!(value(name, given), None, "{name}");
        }
        assert_eq!(parameter("HAWSER_OP_TIMEOUT", Some("0.5")).text, "0.5");
    }

    #[test]
    fn every_default_has_a_value_of_its_form() {
        for setting in TABLE.iter().filter(|setting| setting.has_default) {
            let found = Parameter::new(setting, None, "");
            let is_word = setting.default == "auto" && setting.form == Form::Number;
            assert_eq!(found.value.is_none(), is_word, "{}", setting.name);
        }
    }

    #[test]
    fn names_older_names_and_no_others_are_found() {
        for name in super::super::names() {
            assert!(super::parameter(name).is_some(), "{name}");
        }
        assert!(super::parameter("NCCL_NONSENSE").is_none() && super::parameter("").is_none());
    }
}
