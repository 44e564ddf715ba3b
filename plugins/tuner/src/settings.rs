//! The environment of the plugin. A plugin cannot ask the host for settings, so it looks itself, here only.

use std::ffi::OsString;
use std::path::PathBuf;

/// Names the rule file.
pub const RULE_FILE: &str = "NCCL_TUNER_CONFIG_FILE";

/// The rule file that the user named.
pub fn rule_file() -> Option<PathBuf> {
    named(std::env::var_os(RULE_FILE))
}

/// An empty value counts as not set.
fn named(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_value_names_nothing() {
        assert_eq!(named(None), None);
        assert_eq!(named(Some("".into())), None);
        assert_eq!(named(Some("a b".into())), Some("a b".into()));
    }
}
