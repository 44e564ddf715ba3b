//! Rules about the words of any text file.
//!
//! | rule | says |
//! |---|---|
//! | `unfinished` | no marks of unfinished work, no skipped or empty tests |
//! | `machine-path` | no folder of somebody's machine |

use super::{Finding, Source};

/// Written in two halves, so that this file keeps the rule.
const UNFINISHED_WORDS: [(&str, &str); 3] = [("TO", "DO"), ("FIX", "ME"), ("XX", "X")];
const UNFINISHED_CODE: [(&str, &str); 4] =
    [("todo", "!("), ("unimplemented", "!("), ("#[", "ignore"), ("assert!(", "true)")];
const MACHINE_FOLDERS: [&str; 4] = ["work", "root", "home", "tmp"];

pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        if let Some(word) = unfinished(line, source.extension()) {
            let text = format!("{word}: finish it, or return an error that says what is missing");
            findings.push(Finding::new(source, index + 1, "unfinished", text));
        }
        if let Some(path) = machine_path(line) {
            let text = format!("{path} exists on one machine only");
            findings.push(Finding::new(source, index + 1, "machine-path", text));
        }
    }
    findings
}

fn unfinished(line: &str, extension: &str) -> Option<String> {
    let word = |(a, b): &(&str, &str)| format!("{a}{b}");
    let is_code = ["rs", "cu", "cuh", "c", "h"].contains(&extension);
    let words = UNFINISHED_WORDS.iter().map(word).find(|word| is_whole_word(line, word));
    words.or_else(|| UNFINISHED_CODE.iter().map(word).find(|code| is_code && line.contains(code.as_str())))
}

fn is_whole_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_letter) && !line[at + word.len()..].starts_with(is_letter))
}

/// A folder at the root of the file system that only some machines have, e.g. a home folder.
fn machine_path(line: &str) -> Option<String> {
    let continues = |c: char| c.is_alphanumeric() || "_.-~})*>/".contains(c);
    for name in MACHINE_FOLDERS {
        let folder = format!("/{name}");
        for (at, _) in line.match_indices(&folder) {
            let after = &line[at + folder.len()..];
            if !line[..at].ends_with(continues) && after.starts_with('/') {
                let path: String = line[at..].chars().take_while(|c| !c.is_whitespace()).collect();
                return Some(path);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [&str; 0] = [];

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        check(&Source::planted(path, text)).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn unfinished_work_is_found() {
        for (a, b) in UNFINISHED_WORDS {
            assert_eq!(rules("a.md", &format!("x {a}{b}: y")), ["unfinished"]);
            assert_eq!(rules("a.md", &format!("mktemp a.{a}{b}X")), NOTHING);
        }
        for (a, b) in UNFINISHED_CODE {
            assert_eq!(rules("a.rs", &format!("    {a}{b}")), ["unfinished"]);
            assert_eq!(rules("a.md", &format!("never {a}{b}")), NOTHING);
        }
    }

    #[test]
    fn machine_paths_are_found() {
        for name in MACHINE_FOLDERS {
            assert_eq!(rules("a.rs", &format!("open(\"/{name}/x\")")), ["machine-path"]);
            assert_eq!(rules("a.sh", &format!("cd /{name}/x/y")), ["machine-path"]);
            assert_eq!(rules("a.sh", &format!("cd $HOME/{name}/x ./{name}/y ${{A}}/{name}/z")), NOTHING);
            assert_eq!(rules("a.md", &format!("this /{name}s/x and a/{name}/b")), NOTHING);
        }
    }
}
