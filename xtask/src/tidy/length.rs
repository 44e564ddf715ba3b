//! Rules `file-length` and `function-length`.
//!
//! Rust functions are measured with a parser; C, CUDA, Python and shell ones by braces and
//! indentation, which is near enough.

use super::{Finding, Source};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 60;
const FUNCTION_LINES_LIMIT: usize = 100;

/// A function: name, first line from 1, number of lines.
type Function = (String, usize, usize);

pub fn check(source: &Source) -> Vec<Finding> {
    let functions = match source.extension() {
        "rs" => rust_functions(&source.text),
        "cu" | "cuh" | "c" | "h" => c_functions(&source.text),
        "py" => python_functions(&source.text),
        "sh" => shell_functions(&source.text),
        _ => return Vec::new(),
    };
    let mut findings = Vec::new();
    let lines = source.text.lines().count();
    if lines > FILE_LINES {
        let text = format!("{lines} lines, the limit is {FILE_LINES}: split it by idea");
        findings.push(Finding::new(source, 0, "file-length", text));
    }
    for (name, line, length) in functions {
        if length > FUNCTION_LINES {
            let text = format!("{name} has {length} lines, aim at {FUNCTION_LINES}");
            let mut finding = Finding::new(source, line, "function-length", text);
            finding.warning = length <= FUNCTION_LINES_LIMIT;
            findings.push(finding);
        }
    }
    findings
}

fn rust_functions(text: &str) -> Vec<Function> {
    let mut functions = RustFunctions(Vec::new());
    if let Ok(file) = syn::parse_file(text) {
        functions.visit_file(&file);
    }
    functions.0
}

struct RustFunctions(Vec<Function>);

impl RustFunctions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let last = block.brace_token.span.close().end().line;
        self.0.push((signature.ident.to_string(), first, last + 1 - first));
    }
}

impl<'ast> Visit<'ast> for RustFunctions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Functions of C, C++ and CUDA: an opening brace after a parameter list, with nothing but
/// namespaces, linkage blocks and types around it.
fn c_functions(text: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut open: Vec<(Block, String, usize)> = Vec::new();
    let (mut head, mut head_line) = (String::new(), 1);
    for (index, line) in without_comments(text).lines().enumerate() {
        for c in line.chars() {
            match c {
                '{' => {
                    let outside = open.iter().all(|(block, ..)| *block == Block::Container);
                    open.push((block_kind(&head, outside), std::mem::take(&mut head), head_line));
                }
                '}' => {
                    if let Some((Block::Function, head, first)) = open.pop() {
                        functions.push((c_name(&head), first, index + 2 - first));
                    }
                    head.clear();
                }
                ';' => head.clear(),
                _ => {
                    if head.trim().is_empty() {
                        head_line = index + 1;
                    }
                    head.push(c);
                }
            }
        }
        head.push(' ');
    }
    functions
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Container,
    Function,
    Other,
}

fn block_kind(head: &str, outside: bool) -> Block {
    let head = head.trim();
    if !outside || head.ends_with('=') {
        Block::Other
    } else if head.contains('(') && head.contains(')') {
        Block::Function
    } else {
        Block::Container
    }
}

/// The last word before the first parameter list that follows a name, for the message only.
fn c_name(head: &str) -> String {
    let before = head.split('(').next().unwrap_or(head).trim_end();
    before.rsplit([' ', '*', '&']).next().unwrap_or(before).to_string()
}

/// `text` with comments, literals and preprocessor lines replaced by spaces; line breaks stay.
fn without_comments(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut in_comment, mut in_directive) = (false, false);
    for line in text.lines() {
        let directive = in_directive || (!in_comment && line.trim_start().starts_with('#'));
        in_directive = directive && line.ends_with('\\');
        if !directive {
            code_of_line(line, &mut in_comment, &mut result);
        }
        result.push('\n');
    }
    result
}

/// Appends the code of one line to `result`. Literals do not reach over line ends.
fn code_of_line(line: &str, in_comment: &mut bool, result: &mut String) {
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if *in_comment {
            let Some((_, after)) = rest.split_once("*/") else { return };
            *in_comment = false;
            rest = after;
        } else if rest.starts_with("//") {
            return;
        } else if let Some(after) = rest.strip_prefix("/*") {
            *in_comment = true;
            rest = after;
        } else if c == '"' || c == '\'' {
            rest = after_literal(&rest[1..], c);
        } else {
            result.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
}

fn after_literal(text: &str, quote: char) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !escaped {
            return &text[at + 1..];
        }
        escaped = c == '\\' && !escaped;
    }
    ""
}

fn python_functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut functions = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start().trim_start_matches("async ");
        let Some(rest) = code.strip_prefix("def ") else { continue };
        let body = lines[index + 1..].iter().take_while(|below| {
            let closes_signature = below.trim_start().starts_with(')');
            below.trim().is_empty() || closes_signature || indent(below) > indent(line)
        });
        let length = 1 + body.count();
        let blank = lines[index..index + length].iter().rev().take_while(|l| l.trim().is_empty()).count();
        let name = rest.split('(').next().unwrap_or(rest);
        functions.push((name.to_string(), index + 1, length - blank));
    }
    functions
}

fn shell_functions(text: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_suffix("() {") {
            open = Some((name.to_string(), index));
        } else if line == "}"
            && let Some((name, first)) = open.take()
        {
            functions.push((name, first + 1, index + 1 - first));
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(path: &str, text: &str) -> Vec<(usize, bool)> {
        check(&Source::planted(path, text)).iter().map(|f| (f.line, f.warning)).collect()
    }

    /// `head`, then lines so that the function has `lines` in all, then `}`.
    fn function(head: &str, lines: usize) -> String {
        format!("{head}\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    #[test]
    fn long_files_of_code_are_found() {
        for extension in ["rs", "cu", "cuh", "c", "h", "py", "sh"] {
            let path = format!("a.{extension}");
            assert_eq!(levels(&path, &"\n".repeat(600)), []);
            assert_eq!(levels(&path, &"\n".repeat(601)), [(0, false)], "{extension}");
        }
        assert_eq!(levels("a.md", &"\n".repeat(601)), []);
    }

    #[test]
    fn rust_functions_are_measured_wherever_they_are() {
        for (before, after) in [("", ""), ("impl X {\n", "}\n"), ("trait X {\n", "}\n"), ("mod m {\n", "}\n")]
        {
            for (lines, expected) in [(60, None), (61, Some(true)), (100, Some(true)), (101, Some(false))] {
                let text = format!("// one\n{before}{}{after}", function("fn f() {", lines));
                let line = 2 + before.lines().count();
                let expected: Vec<_> = expected.into_iter().map(|warning| (line, warning)).collect();
                assert_eq!(levels("a.rs", &text), expected, "{before:?} {lines}");
            }
        }
    }

    #[test]
    fn cuda_functions_are_measured() {
        let head = "template <int N = 4>\n__global__ void k(const char *s = \"}\", // }\n  int n) {";
        let text = format!("namespace a {{\nstruct S {{ int x; }};\n{}}}\n", function(head, 99));
        assert_eq!(levels("a.cu", &text), [(3, false)]);
        let short = format!("#define M(x) do {{ \\\n  x; \\\n{}", function("void f() {", 60));
        assert_eq!(levels("a.cuh", &short), []);
        let table = format!("int table[] = {{\n{}}};\n", "  1, /* { */\n".repeat(200));
        assert_eq!(levels("a.h", &table), []);
    }

    #[test]
    fn nested_blocks_count_once() {
        let inner = "  for (;;) {\n    if (a(b)) { c('{'); }\n  }\n".repeat(35);
        assert_eq!(levels("a.c", &format!("int\nmain(void) {{\n{inner}}}\n")), [(1, false)]);
    }

    #[test]
    fn python_and_shell_functions_are_measured() {
        let python = format!("import x\n\ndef f(\n    a,\n):\n{}\n\n\nprint(1)\n", "    pass\n".repeat(98));
        assert_eq!(levels("a.py", &python), [(3, false)]);
        let nested = format!("class A:\n    def f(self):\n{}", "        pass\n".repeat(60));
        assert_eq!(levels("a.py", &nested), [(2, true)]);
        assert_eq!(levels("a.sh", &function("work() {", 101)), [(1, false)]);
        assert_eq!(levels("a.sh", &function("work() {", 60)), []);
    }

    #[test]
    fn names_are_in_the_message() {
        let text = function("static __device__ int *reduce_copy(int n) {", 70);
        let finding = &check(&Source::planted("a.cu", &text))[0];
        assert!(finding.text.starts_with("reduce_copy has 70 lines"), "{}", finding.text);
    }
}
