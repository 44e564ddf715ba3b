//! Rules `riddle` and `question`: a doc comment says in a sentence what a thing is.
//!
//! "Whose.", "Which kernel.", "How ranks meet.", "See there." and single words are no sentence: who does not
//! know the code learns nothing. What has no full stop is help for an option of a command, not a sentence.

use super::{Finding, Source};

/// Words that begin a question and not a sentence.
const QUESTIONS: [&str; 8] = ["What", "Who", "Whose", "Where", "How", "Whether", "Which", "When"];
/// The longest sentence, in characters after its first word, that is a riddle when it begins as a question.
const SHORT: usize = 60;
/// Sentences that send the reader elsewhere, or say nothing.
const EMPTY: [&str; 8] = [
    "See there",
    "See above",
    "See below",
    "See the module",
    "See the trait",
    "None yet",
    "The same",
    "As above",
];

/// Finds the doc comments whose first sentence says nothing.
pub fn check(source: &Source) -> Vec<Finding> {
    if source.extension() != "rs" {
        return Vec::new();
    }
    let lines: Vec<Option<&str>> = source.text.lines().map(doc).collect();
    let mut findings = Vec::new();
    for (index, text) in lines.iter().enumerate() {
        let Some(text) = text.filter(|_| index == 0 || lines[index - 1].is_none()) else { continue };
        let paragraph = lines[index..].iter().map_while(|line| line.filter(|text| !text.is_empty()));
        let rule = match (is_riddle(text), is_question(text, paragraph.last().unwrap_or_default())) {
            (true, _) => "riddle",
            (false, true) => "question",
            (false, false) => continue,
        };
        let text = format!("\"{text}\" is no full sentence: say what the thing is");
        findings.push(Finding::new(source, index + 1, rule, text));
    }
    findings
}

/// The text of a line of documentation.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!text.starts_with('/')).then(|| text.trim())
}

/// True if the first sentence that begins in this line says nothing.
fn is_riddle(text: &str) -> bool {
    let Some(sentence) = first_sentence(text) else { return false };
    let (first, rest) = sentence.split_once(' ').unwrap_or((sentence, ""));
    let is_short_question = QUESTIONS.contains(&first) && rest.chars().count() <= SHORT;
    let is_word = rest.is_empty() && first.chars().all(|c| c.is_alphanumeric() || c == '-');
    is_short_question || is_word || EMPTY.contains(&sentence)
}

/// True if a paragraph of sentences begins as a question; it is given by its first and last lines.
fn is_question(first: &str, last: &str) -> bool {
    let word = first.split(' ').next().unwrap_or_default().trim_end_matches('.');
    (word == "Why" || QUESTIONS.contains(&word)) && last.ends_with('.')
}

/// The first sentence without its full stop; `None` if it goes on in the next line.
fn first_sentence(text: &str) -> Option<&str> {
    let end = text.find(". ").or_else(|| text.ends_with('.').then(|| text.len() - 1))?;
    Some(&text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        check(&Source::planted("a.rs", text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn riddles_are_found() {
        for riddle in [
            "Whose.",
            "Where.",
            "See there.",
            "None yet.",
            "Zero.",
            "Which kernel.",
            "What measures.",
            "Where. From 0.",
            "Whether the connection has carried all that its two ends have agreed to send before they part.",
        ] {
            assert_eq!(found(&format!("struct A {{\n    /// {riddle}\n    b: u8,\n}}")), [2], "{riddle}");
            assert_eq!(found(&format!("//! {riddle}\n")), [1], "{riddle}");
        }
    }

    #[test]
    fn sentences_are_fine() {
        for sentence in
            ["The stream the launch is submitted to.", "Number of ranks.", "How often to run all sizes"]
        {
            assert_eq!(found(&format!("/// {sentence}\nfn f() {{}}")), [0; 0], "{sentence}");
        }
        assert_eq!(found("/// Which of the\n/// two.\nfn f() {}\n"), [1]);
        assert_eq!(found("/// A sentence of its own.\n/// Zero.\nfn f() {}\n// Zero.\n//// Zero.\n"), [0; 0]);
    }

    #[test]
    fn only_rust_is_asked() {
        assert_eq!(check(&Source::planted("a.md", "/// Whose.")), []);
    }
}
