//! Writes rules: TOML for a rule, and the layout of a whole file.

use hawser_plugin::tuner::{Function, Reduction};

use crate::names::{self, DATA_TYPES};
use crate::range;
use crate::rule::{Action, Match, Rule, Way};

/// A rule as a `[[rule]]` of a TOML file, in the words that are used now.
pub fn toml(rule: &Rule) -> String {
    let mut text = "[[rule]]\n".to_owned();
    let mut line = |key: &str, value: String| text.push_str(&format!("{key} = {value}\n"));
    if let Some(name) = &rule.name {
        line("name", quoted(name));
    }
    if rule.priority != 0 {
        line("priority", rule.priority.to_string());
    }
    let when = conditions(&rule.when);
    if !when.is_empty() {
        line("match", table(&when));
    }
    let chain: Vec<String> = rule.chain.iter().map(action).collect();
    line("use", if let [only] = &chain[..] { only.clone() } else { format!("[{}]", chain.join(", ")) });
    if rule.never_worse {
        line("never_worse", "true".to_owned());
    }
    text
}

/// A text in quotes, as TOML wants it.
pub fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn table(pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// One text, or a list of them.
fn texts(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.map(|text| quoted(&text)).collect();
    if let [only] = &all[..] { only.clone() } else { format!("[{}]", all.join(", ")) }
}

fn conditions(when: &Match) -> Vec<(&'static str, String)> {
    let mut pairs = Vec::new();
    let set = |mask: u32, number: u32| mask >> number & 1 != 0;
    if when.collectives != 0 {
        let all = Function::EVERY.into_iter().filter(|f| set(when.collectives, *f as u32));
        pairs.push(("collective", texts(all.map(|f| names::collective_name(f).to_owned()))));
    }
    for (key, ranges, sizes) in [
        ("bytes", &when.bytes, true),
        ("ranks", &when.ranks, false),
        ("ranks_per_host", &when.ranks_per_host, false),
        ("hosts", &when.hosts, false),
    ] {
        if !ranges.0.is_empty() {
            pairs.push((key, texts(ranges.0.iter().map(|range| range::text(range, sizes)))));
        }
    }
    if when.data_types != 0 {
        let all = DATA_TYPES.iter().filter(|(t, _)| set(when.data_types, *t as u32));
        pairs.push(("data_type", texts(all.filter_map(|(_, names)| names.first().map(|n| (*n).to_owned())))));
    }
    if when.ops != 0 {
        let all = Reduction::ALL.into_iter().filter(|op| set(when.ops, *op as u32));
        pairs.push(("op", texts(all.map(|op| op.name().to_owned()))));
    }
    pairs.extend(when.registered.map(|value| ("registered", value.to_string())));
    pairs.extend(when.in_graph.map(|value| ("in_graph", value.to_string())));
    pairs.extend(when.pipelined.map(|value| ("operations", value.to_string())));
    if !when.communicators.is_empty() {
        pairs.push(("communicator", texts(when.communicators.iter().cloned())));
    }
    pairs
}

fn action(action: &Action) -> String {
    if *action == Action::DEFAULT {
        return quoted("default");
    }
    let mut pairs = Vec::new();
    pairs.extend(action.program.as_deref().map(|program| ("program", quoted(program))));
    let Way { algorithm, executor, protocol, .. } = action.way;
    pairs.extend(algorithm.map(|algorithm| ("algorithm", quoted(algorithm.name()))));
    pairs.extend(executor.map(|executor| ("executor", quoted(executor.name()))));
    pairs.extend(protocol.map(|protocol| ("protocol", quoted(protocol.name()))));
    pairs.extend(action.channels.map(|channels| ("channels", channels.to_string())));
    pairs.extend(action.chunk.map(|chunk| ("chunk", quoted(&range::size(chunk)))));
    pairs.extend(action.class.map(|class| ("class", quoted(class.name()))));
    table(&pairs)
}

/// The text of a TOML file in its usual layout: one space around `=` and after commas, one empty line before
/// a rule and nowhere two, no blanks at ends of lines. Nothing else changes: comments, order and words stay.
pub fn layout(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let mut pretty = Pretty::default();
    let mut rest = &text[..];
    while let Some(token) = token(rest) {
        rest = &rest[token.len()..];
        pretty.take(token);
    }
    pretty.end_line();
    let mut lines = pretty.lines;
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The next token: a string, a comment, blanks, a line end, punctuation or a word.
fn token(text: &str) -> Option<&str> {
    let first = text.chars().next()?;
    let length = match first {
        '"' | '\'' => string(text, first),
        '#' => text.find('\n').unwrap_or(text.len()),
        ' ' | '\t' => text.find(|c| c != ' ' && c != '\t').unwrap_or(text.len()),
        '\n' | '=' | ',' | '[' | ']' | '{' | '}' => 1,
        _ => text.find(|c| "\"'# \t\n=,[]{}".contains(c)).unwrap_or(text.len()),
    };
    Some(&text[..length])
}

/// Length of the string that a text begins with.
fn string(text: &str, quote: char) -> usize {
    let long = text.starts_with(&[quote; 3].iter().collect::<String>());
    let end: String = if long { [quote; 3].iter().collect() } else { quote.to_string() };
    let mut at = end.len();
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with(&end) {
            return at + end.len();
        }
        if !long && here.starts_with('\n') {
            return at;
        }
        let escaped = quote == '"' && here.starts_with('\\');
        at += here.chars().take(if escaped { 2 } else { 1 }).map(char::len_utf8).sum::<usize>();
    }
    text.len()
}

#[derive(Default)]
struct Pretty {
    lines: Vec<String>,
    line: String,
    /// Open brackets and braces, apart from those of headings.
    depth: usize,
    /// A blank stands before the next token, unless it wants none.
    blank: bool,
}

impl Pretty {
    fn take(&mut self, token: &str) {
        let at_start = self.line.is_empty();
        match token {
            "\n" => self.end_line(),
            blanks if blanks.starts_with([' ', '\t']) => self.blank = !at_start && !self.line.ends_with('['),
            "=" => self.put(" =", true),
            "," => self.put(",", true),
            "[" if self.depth == 0 && (at_start || self.line == "[") => {
                self.line.push('[');
                self.blank = false;
            }
            "]" if self.depth == 0 => self.put("]", false),
            "[" => self.open("[", false),
            "{" => self.open("{", true),
            "]" => self.close("]", false),
            "}" => self.close("}", true),
            comment if comment.starts_with('#') => {
                self.blank = !at_start;
                self.word(comment.trim_end());
            }
            word => {
                // Inside a heading or a dotted key no blank is needed.
                self.blank &= self.depth > 0 || self.line.contains(" =");
                self.word(word);
            }
        }
    }

    /// Punctuation that wants no blank before it.
    fn put(&mut self, text: &str, blank: bool) {
        self.blank = false;
        self.word(text);
        self.blank = blank;
    }

    fn open(&mut self, bracket: &str, blank: bool) {
        self.word(bracket);
        self.depth += 1;
        self.blank = blank;
    }

    fn close(&mut self, bracket: &str, blank: bool) {
        self.depth = self.depth.saturating_sub(1);
        let is_empty = self.line.ends_with(['{', '[']);
        self.blank = blank && !is_empty;
        self.word(bracket);
        self.blank = false;
    }

    fn word(&mut self, text: &str) {
        if self.line.is_empty() {
            self.line = "    ".repeat(self.depth);
        } else if self.blank {
            self.line.push(' ');
        }
        self.line.push_str(text);
        self.blank = false;
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_end();
        self.blank = false;
        let follows_empty = self.lines.last().is_none_or(String::is_empty);
        if line.is_empty() && follows_empty {
            return;
        }
        if line.starts_with("[[") && self.depth == 0 {
            // The empty line goes before the comment of a rule.
            let comments = self.lines.iter().rev().take_while(|line| line.starts_with('#')).count();
            let at = self.lines.len() - comments;
            if at > 0 && !self.lines[at - 1].is_empty() {
                self.lines.insert(at, String::new());
            }
        }
        self.lines.push(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::parse;
    use proptest::prelude::*;

    const RULES: &str = r#"[[rule]]
name = "a \"b\" \\ c"
priority = -3
match = { collective = ["all_gather", "all_reduce", "alltoall"], bytes = ["..64K", "1M..=2M"], ranks = "8", hosts = "2..", data_type = ["half", "bfloat16"], op = "premulsum", registered = true, in_graph = false, operations = 2, communicator = ["tp*", "x"] }
use = [{ algorithm = "all_pairs", executor = "fused", protocol = "ll" }, { protocol = "simple", channels = 4, chunk = "64K" }, { executor = "not_copy_engine" }, { program = "my one" }, { algorithm = "ring", executor = "copy_engine" }, "default"]
never_worse = true
"#;

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        let rules = parse("a", RULES).unwrap();
        assert_eq!(toml(&rules[0]), RULES);
        let old = "[[rule]]\n\
                   use = [{ algorithm = \"sym_direct\", protocol = \"symll\" }, { algorithm = \"dma_ring\" }]\n";
        let new = "[[rule]]\nuse = [{ algorithm = \"direct\", executor = \"fused\", protocol = \"ll\" }, \
                   { algorithm = \"ring\", executor = \"copy_engine\" }]\n";
        assert_eq!(toml(&parse("a", old).unwrap()[0]), new);
        let only = "[[rule]]\nuse = \"default\"\n";
        assert_eq!(toml(&parse("a", only).unwrap()[0]), only);
    }

    #[test]
    fn the_layout_is_tidied_and_nothing_else() {
        let untidy = "\u{feff}# top  \r\n\r\n\r\nversion=1\n[[rule]]  # one\n  name=\"a  =  b\"\n\tmatch . bytes = [ \"..4K\" ,\n \"8K\",# eight\n]\n\
                      # evidence\n#  12.5 µs\n[[ rule ]]\nuse=[{algorithm=\"ring\",channels = 2},\"default\" ]\n\n\n";
        let tidy = "# top\n\nversion = 1\n\n[[rule]] # one\nname = \"a  =  b\"\nmatch.bytes = [\"..4K\",\n    \"8K\", # eight\n]\n\n\
                    # evidence\n#  12.5 µs\n[[rule]]\nuse = [{ algorithm = \"ring\", channels = 2 }, \"default\"]\n";
        assert_eq!(layout(untidy), tidy);
        assert_eq!(layout(tidy), tidy);
        assert_eq!(layout(RULES), RULES);
        assert_eq!(layout("a = {}\nb = [  ]\nc = '''x\n  y'''\n"), "a = {}\nb = []\nc = '''x\n  y'''\n");
    }

    proptest! {
        #[test]
        fn any_text_can_be_laid_out_and_then_stays(text in "([a-z=,\\[\\]{}#\"'\\\\ \t\n.é]|\\[\\[rule\\]\\]|\"a b\"|= ){0,40}") {
            let once = layout(&text);
            if parse("a", &text).is_ok() {
                prop_assert_eq!(layout(&once), once);
            }
        }
    }
}
