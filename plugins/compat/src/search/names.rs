//! From the value of a variable to what is opened.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Kind;

/// The request that a variable's value makes.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The kind is switched off.
    None,
    /// Not set: the library of this kind's default name.
    Default(Entry),
    /// These, in this order.
    List(Vec<Entry>),
}

/// One name of a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// The program itself: `STATIC_PLUGIN`.
    Program,
    /// A path or a name.
    Name(String),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("STATIC_PLUGIN"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Reads a value. Empty names of a list are skipped; a list without names counts as not set.
pub fn wanted(kind: Kind, value: Option<&str>) -> Wanted {
    let default = || Wanted::Default(Entry::Name(format!("libnccl-{}.so", kind.word())));
    let Some(value) = value.map(str::trim) else { return default() };
    if value.eq_ignore_ascii_case("none") {
        return Wanted::None;
    }
    let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
    let entries: Vec<Entry> = names
        .map(|name| match name.eq_ignore_ascii_case("STATIC_PLUGIN") {
            true => Entry::Program,
            false => Entry::Name(name.to_owned()),
        })
        .collect();
    if entries.is_empty() { default() } else { Wanted::List(entries) }
}

/// The files that are opened for a name, in this order: first what the dynamic loader finds, then what lies
/// in `beside`.
pub fn attempts(kind: Kind, name: &str, beside: Option<&Path>) -> Vec<PathBuf> {
    let mut names = vec![PathBuf::from(name)];
    if name.contains('/') {
        return names;
    }
    if !(name.starts_with("lib") && name.ends_with(".so")) {
        names.push(PathBuf::from(format!("libnccl-{}-{name}.so", kind.word())));
        names.push(PathBuf::from(format!("lib{name}.so")));
    }
    let beside: Vec<PathBuf> =
        beside.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect();
    names.extend(beside);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(value: &str) -> Vec<String> {
        match wanted(Kind::Net, Some(value)) {
            Wanted::List(entries) => entries.iter().map(Entry::to_string).collect(),
            other => vec![format!("{other:?}")],
        }
    }

    #[test]
    fn values_are_lists_of_whole_words() {
        assert_eq!(list("aws"), ["aws"]);
        assert_eq!(list(" aws,,/opt/libx.so , static_plugin,"), ["aws", "/opt/libx.so", "STATIC_PLUGIN"]);
        for none in ["none", "NONE", " None "] {
            assert_eq!(wanted(Kind::Tuner, Some(none)), Wanted::None);
        }
        assert_eq!(list("nones"), ["nones"]);
        assert_eq!(list("none,aws"), ["none", "aws"], "only the whole value switches off");
        for prefix in ["s", "stat", "STATIC_PLUGINS"] {
            assert_eq!(list(prefix), [prefix], "a prefix is not the word");
        }
        let default = Wanted::Default(Entry::Name("libnccl-env.so".to_owned()));
        for unset in [None, Some(""), Some(" , ")] {
            assert_eq!(wanted(Kind::Env, unset), default);
        }
    }

    #[test]
    fn names_are_tried_as_they_are_and_then_in_full() {
        let tried = |name: &str, beside: Option<&str>| -> Vec<String> {
            let paths = attempts(Kind::Net, name, beside.map(Path::new));
            paths.iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(tried("aws", None), ["aws", "libnccl-net-aws.so", "libaws.so"]);
        assert_eq!(tried("libaws.so", None), ["libaws.so"]);
        assert_eq!(tried("aws.so", None), ["aws.so", "libnccl-net-aws.so.so", "libaws.so.so"]);
        assert_eq!(tried("libaws", None), ["libaws", "libnccl-net-libaws.so", "liblibaws.so"]);
        let versioned = ["libaws.so.1", "libnccl-net-libaws.so.1.so", "liblibaws.so.1.so"];
        assert_eq!(tried("libaws.so.1", None), versioned);
        assert_eq!(tried("./aws", Some("/opt")), ["./aws"], "a path is a path");
        let names = ["aws", "libnccl-net-aws.so", "libaws.so"];
        let both = [names.map(str::to_owned), names.map(|name| format!("/opt/{name}"))].concat();
        assert_eq!(tried("aws", Some("/opt")), both);
        assert_eq!(tried("libnccl-net.so", Some("/opt")), ["libnccl-net.so", "/opt/libnccl-net.so"]);
    }
}
