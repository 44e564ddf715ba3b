//! The input of the rules and their reports: the repository's files, and findings in them.

use std::fmt;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The path of the file, from the workspace root.
    pub path: String,
    /// The line, from 1; 0 stands for the file as a whole.
    pub line: usize,
    /// The name of the broken rule.
    pub rule: &'static str,
    /// The message: what is wrong, and what to do.
    pub text: String,
    /// True for a finding that is printed and fails nothing.
    pub warning: bool,
}

impl Finding {
    /// A finding that is an error; `line` counts from 1, and 0 stands for the file as a whole.
    pub fn new(source: &Source, line: usize, rule: &'static str, text: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, rule, text: text.into(), warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "error" };
        write!(f, "{kind}: {}:{}: {}: {}", self.path, self.line, self.rule, self.text)
    }
}

/// A text file of the repository.
pub struct Source {
    /// The path from the workspace root, with slashes.
    pub path: String,
    /// The whole text of the file.
    pub text: String,
}

impl Source {
    /// The extension of the path, without its full stop.
    pub fn extension(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    #[cfg(test)]
    pub fn planted(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}
