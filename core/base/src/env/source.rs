//! The sources of the values of settings: names and texts, of which the first that gives a name a value
//! counts.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::kind::Kind;
use super::{distance, nearest, table_entry};

/// The values that were found, the environment already laid over the files, and what is wrong with them.
pub(super) struct Source {
    /// The values by name. Empty ones are left out.
    pub(super) values: BTreeMap<String, String>,
    /// A sentence about each value that is ignored.
    complaints: RefCell<Vec<String>>,
    /// A sentence about each value that no communicator comes up with.
    faults: RefCell<Vec<String>>,
}

impl Source {
    /// The first of several values of a name counts, also if it is empty: an empty variable takes back what a
    /// file sets.
    pub(super) fn of(pairs: impl Iterator<Item = (String, String)>) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in pairs {
            values.entry(name).or_insert(value);
        }
        values.retain(|_, value| !value.trim().is_empty());
        Self { values, complaints: Default::default(), faults: Default::default() }
    }

    /// Adds sentences about what is ignored.
    pub(super) fn complain(&self, texts: Vec<String>) {
        self.complaints.borrow_mut().extend(texts);
    }

    /// Returns the value of the first of these names that has one of this kind.
    pub(super) fn unset<T>(&self, names: &[&str], kind: &Kind<T>, _otherwise: &str) -> Option<T> {
        names.iter().find_map(|name| self.value(name, kind))
    }

    /// The same, or what the default means.
    pub(super) fn default<T>(&self, names: &[&str], kind: &Kind<T>, default: &str) -> T {
        let found = self.unset(names, kind, default).or_else(|| (kind.parse)(default));
        found.expect("the default of a setting is one of its values, which a test checks")
    }

    fn value<T>(&self, name: &str, kind: &Kind<T>) -> Option<T> {
        let text = self.values.get(name)?.trim();
        let value = (kind.parse)(text);
        if value.is_none() {
            let (list, consequence) = match kind.is_strict {
                true => (&self.faults, "means nothing"),
                false => (&self.complaints, "is ignored"),
            };
            list.borrow_mut().push(format!("{name}={text} {consequence}: it must be {}", kind.accepted));
        }
        value
    }

    /// The values that no communicator comes up with.
    pub(super) fn faults(&self) -> Vec<String> {
        self.faults.borrow().clone()
    }

    /// The values that are ignored.
    pub(super) fn wrong_values(&self) -> Vec<String> {
        self.complaints.borrow().clone()
    }

    /// The values that are ignored, and names that look like typing errors of settings.
    pub(super) fn complaints(&self) -> Vec<String> {
        let unknown = self.values.keys().filter(|name| table_entry(name).is_none());
        let typing_error = |name: &String| {
            let near = nearest(name).filter(|near| distance(name, near) <= 2)?;
            Some(format!("{name} is not a setting of this library; did you mean {near}?"))
        };
        self.wrong_values().into_iter().chain(unknown.filter_map(typing_error)).collect()
    }
}

/// The names and values of a file with settings.
pub(super) fn parse_file(text: &str) -> impl Iterator<Item = (String, String)> {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('='))
        .map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::env) fn source(pairs: &[(&str, &str)]) -> Source {
        Source::of(pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn files_are_trimmed_and_comments_skipped() {
        let pairs: Vec<_> = parse_file("# NCCL_ALGO=Tree\nNCCL_ALGO = Ring \nnonsense\n").collect();
        assert_eq!(pairs, [("NCCL_ALGO".to_owned(), "Ring".to_owned())]);
    }

    #[test]
    fn the_first_value_of_a_name_counts() {
        let environment = [("NCCL_PROTO", ""), ("NCCL_ALGO", "Tree")];
        let file = parse_file("NCCL_ALGO=Ring\nNCCL_PROTO=LL\nNCCL_NET=Socket\nNCCL_NET=IB\n");
        let pairs = environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let settings = Source::of(pairs.chain(file)).settings();
        assert_eq!(
            [settings.algo.as_deref(), settings.proto.as_deref(), settings.net.as_deref()],
            [Some("Tree"), None, Some("Socket")]
        );
    }
}
