//! Rules about Rust code, checked on its tokens, so that strings and comments do not count and
//! macro bodies do.
//!
//! | rule | says |
//! |---|---|
//! | `parse` | the file is Rust |
//! | `tests-last` | an inline test module is the last item |
//! | `safety-comment` | each `unsafe` block and impl has its own `// SAFETY:` comment |
//! | `env-var` | the runtime, and every plugin, reads its environment in one file |
//! | `no-mangle` | only `core/capi` exports symbols, and the export macros of `plugins/compat` |
//! | `plan-is-pure` | crates that only compute (`PURE`) use no libc, nor what of std touches the world |
//! | `algo-imports` | `core/plan/src/algo` sees the vocabulary (`ALGO_IMPORTS`), not choosing or compiling |

use super::{Finding, Source};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The distance above `unsafe` at which its comment may stand, in lines of code of the same statement.
const SAFETY_REACH: usize = 4;
const IMPURE_STD: [&str; 5] = ["fs", "net", "env", "time", "thread"];
const ALGO_IMPORTS: [&str; 2] = ["imported", "algo"];
/// The crates that only compute.
const PURE: [&str; 5] =
    ["core/types/src/", "core/program/src/", "core/msccl/src/", "core/plan/src/", "kernels/abi/src/"];
const ENV_FUNCTIONS: [&str; 6] = ["var", "var_os", "vars", "vars_os", "set_var", "remove_var"];

pub fn check(source: &Source) -> Vec<Finding> {
    let (Ok(tokens), Ok(file)) = (source.text.parse::<TokenStream>(), syn::parse_file(&source.text)) else {
        return vec![Finding::new(source, 0, "parse", "not valid Rust")];
    };
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut paths = Vec::new();
    collect_paths(&tokens, &mut paths);
    let mut findings: Vec<Finding> = tests_last(source, &file).into_iter().collect();
    findings.extend(safety_comments(source, &tokens));
    findings.extend(env_var(source, &paths));
    findings.extend(exported_symbols(source, &paths));
    findings.extend(plan_is_pure(source, &paths));
    findings.extend(algo_imports(source, &paths));
    findings
}

fn tests_last(source: &Source, file: &syn::File) -> Option<Finding> {
    let is_tests = |item: &syn::Item| match item {
        syn::Item::Mod(module) => module.content.is_some() && module.attrs.iter().any(is_cfg_test),
        _ => false,
    };
    let at = file.items.iter().position(is_tests)?;
    let after = file.items[at + 1..].iter().find(|item| !is_tests(item))?;
    let line = syn::spanned::Spanned::span(after).start().line;
    Some(Finding::new(source, line, "tests-last", "code after the test module: move the tests to the end"))
}

pub(super) fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let words = list.tokens.clone().into_iter();
    list.path.is_ident("cfg") && words.into_iter().any(|token| token.to_string() == "test")
}

fn safety_comments(source: &Source, tokens: &[TokenTree]) -> Vec<Finding> {
    let mut unsafe_lines = Vec::new();
    collect_unsafe(tokens, &mut unsafe_lines);
    unsafe_lines.sort_unstable();
    let lines: Vec<&str> = source.text.lines().collect();
    let undocumented = unsafe_lines.iter().filter(|line| !has_safety_comment(&lines, &unsafe_lines, **line));
    undocumented
        .map(|line| {
            Finding::new(source, *line, "safety-comment", "unsafe without a `// SAFETY:` comment above it")
        })
        .collect()
}

/// The lines of `unsafe {` and `unsafe impl`.
fn collect_unsafe(tokens: &[TokenTree], lines: &mut Vec<usize>) {
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                collect_unsafe(&inner, lines);
            }
            TokenTree::Ident(word) if word == "unsafe" => {
                let counts = match tokens.get(index + 1) {
                    Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
                    Some(TokenTree::Ident(next)) => next == "impl",
                    _ => false,
                };
                if counts {
                    lines.push(word.span().start().line);
                }
            }
            _ => {}
        }
    }
}

/// True if the comment stands on the line itself, or above it with no other `unsafe` in between.
fn has_safety_comment(lines: &[&str], unsafe_lines: &[usize], line: usize) -> bool {
    let mut code_above = 0;
    for above in (1..=line).rev() {
        let text = lines[above - 1].trim();
        if text.contains("SAFETY:") {
            return true;
        }
        let is_comment = text.starts_with("//") || text.starts_with("#[");
        if above != line && !is_comment {
            code_above += 1;
        }
        if code_above > SAFETY_REACH || (above != line && unsafe_lines.contains(&above)) {
            return false;
        }
    }
    false
}

/// A path such as `std::env::var` and its line; a use tree gives one for each leaf.
pub(super) type PathAt = (Vec<String>, usize);

pub(super) fn collect_paths(tokens: &[TokenTree], paths: &mut Vec<PathAt>) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(_) => at = collect_path(tokens, at, &[], paths),
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                collect_paths(&inner, paths);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Reads one path from `at`, below `prefix`. Returns where to go on.
fn collect_path(tokens: &[TokenTree], mut at: usize, prefix: &[String], paths: &mut Vec<PathAt>) -> usize {
    let mut path = prefix.to_vec();
    let line = tokens[at].span().start().line;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in
                    inner.split(|token| is_punct(Some(token), ',')).filter(|branch| !branch.is_empty())
                {
                    collect_path(branch, 0, &path, paths);
                }
                return at + 1;
            }
            _ => break, // a glob or a generic argument
        }
        at += 1;
        if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
    }
    paths.push((path, line));
    at
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn env_var(source: &Source, paths: &[PathAt]) -> Vec<Finding> {
    let name = source.path.rsplit('/').next().unwrap_or_default();
    let of_plugin = source.path.starts_with("plugins/") && ["config.rs", "settings.rs"].contains(&name);
    let allowed = source.path == "core/base/src/env.rs"
        || of_plugin
        || name == "build.rs"
        || source
            .path
            .split('/')
            .any(|folder| ["tests", "benches", "build", "cli", "xtask"].contains(&folder));
    if allowed {
        return Vec::new();
    }
    let reads = |path: &[String]| {
        path.windows(2).any(|pair| pair[0] == "env" && ENV_FUNCTIONS.contains(&pair[1].as_str()))
    };
    let text = "the environment is read in core/base/src/env.rs, and in a plugin's config.rs or \
                settings.rs, only: add the setting there";
    on_lines(source, "env-var", text, paths.iter().filter(|(path, _)| reads(path)))
}

fn exported_symbols(source: &Source, paths: &[PathAt]) -> Vec<Finding> {
    let is_macro = source.path.starts_with("plugins/compat/src/") && source.path.contains("/export");
    // A program replaces functions of the C library there, and is no library.
    let is_program = source.path.starts_with("tests/twin/src/turns/");
    if source.path.starts_with("core/capi/") || is_macro || is_program {
        return Vec::new();
    }
    let exports = |path: &[String]| path.iter().any(|word| word == "no_mangle" || word == "export_name");
    let text = "only core/capi and the export macros of plugins/compat export symbols";
    on_lines(source, "no-mangle", text, paths.iter().filter(|(path, _)| exports(path)))
}

fn plan_is_pure(source: &Source, paths: &[PathAt]) -> Vec<Finding> {
    if !PURE.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    let impure = |path: &[String]| match path {
        [first, ..] if first == "libc" => true,
        [first, second, ..] => first == "std" && IMPURE_STD.contains(&second.as_str()),
        _ => false,
    };
    let text = "the planner only computes: no libc, no std::{fs, net, env, time, thread}";
    on_lines(source, "plan-is-pure", text, paths.iter().filter(|(path, _)| impure(path)))
}

fn algo_imports(source: &Source, paths: &[PathAt]) -> Vec<Finding> {
    if !source.path.starts_with("core/plan/src/algo/") {
        return Vec::new();
    }
    let foreign = |path: &[String]| match path {
        [first, second, ..] if first == "crate" => !ALGO_IMPORTS.contains(&second.as_str()),
        [first, second, ..] => first == "super" && second == "super",
        _ => false,
    };
    let text = "an algorithm builds a program from a key and a rank: import hawser_types, hawser_program \
                and crate::imported only";
    on_lines(source, "algo-imports", text, paths.iter().filter(|(path, _)| foreign(path)))
}

fn on_lines<'a>(
    source: &Source,
    rule: &'static str,
    text: &str,
    paths: impl Iterator<Item = &'a PathAt>,
) -> Vec<Finding> {
    paths
        .map(|(path, line)| Finding::new(source, *line, rule, format!("{}: {text}", path.join("::"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        check(&Source::planted(path, text)).iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn tests_come_last() {
        let tests = "#[cfg(test)]\nmod tests { fn t() {} }\n";
        assert_eq!(rules("a.rs", &format!("fn f() {{}}\n{tests}")), []);
        assert_eq!(rules("a.rs", &format!("{tests}fn f() {{}}\n")), [("tests-last", 3)]);
        assert_eq!(rules("a.rs", "#[cfg(test)]\nmod fixtures;\nfn f() {}\n"), []);
    }

    #[test]
    fn every_unsafe_block_has_its_comment() {
        assert_eq!(rules("a.rs", "fn f() {\n    // SAFETY: fine\n    unsafe { g() }\n}"), []);
        assert_eq!(rules("a.rs", "fn f() {\n    unsafe { g() } // SAFETY: fine\n}"), []);
        let wrapped = "// SAFETY: long\n// reason\n#[allow(x)]\nlet a =\n    b(\n        unsafe { c() });";
        assert_eq!(rules("a.rs", &format!("fn f() {{\n{wrapped}\n}}")), []);
        assert_eq!(rules("a.rs", "fn f() {\n    unsafe { g() }\n}"), [("safety-comment", 2)]);
        assert_eq!(rules("a.rs", "unsafe impl Send for X {}"), [("safety-comment", 1)]);
        let shared = "fn f() {\n    // SAFETY: one\n    unsafe { g() };\n    unsafe { h() }\n}";
        assert_eq!(rules("a.rs", shared), [("safety-comment", 4)]);
        let in_macro = "macro_rules! m { () => {\n unsafe { g() } } }";
        assert_eq!(rules("a.rs", in_macro), [("safety-comment", 2)]);
    }

    #[test]
    fn unsafe_that_is_no_block_needs_no_comment() {
        assert_eq!(rules("a.rs", "unsafe fn f() {}\nunsafe extern \"C\" { fn g(); }"), []);
        assert_eq!(rules("a.rs", "const A: &str = \"unsafe { }\"; // unsafe { }"), []);
    }

    #[test]
    fn environment_is_read_in_one_place() {
        let direct = "fn f() { std::env::var(\"A\"); }";
        let imported = "use std::{fs, env::{self, var_os as v}};";
        for text in [direct, imported, "use std::env;\nfn f() { env::vars(); }"] {
            assert_eq!(rules("core/runtime/src/comm.rs", text).len(), 1, "{text}");
        }
        for path in [
            "core/base/src/env.rs",
            "kernels/build.rs",
            "cli/src/a.rs",
            "core/capi/tests/a.rs",
            "plugins/x/src/settings.rs",
        ] {
            assert_eq!(rules(path, direct), [], "{path}");
        }
        assert_eq!(rules("core/runtime/src/a.rs", "fn f() { std::env::temp_dir(); env!(\"A\"); }"), []);
    }

    #[test]
    fn symbols_are_exported_by_capi_only() {
        for text in
            ["#[unsafe(no_mangle)]\nextern \"C\" fn f() {}", "#[unsafe(export_name = \"g\")]\nfn f() {}"]
        {
            assert_eq!(rules("core/runtime/src/a.rs", text), [("no-mangle", 1)]);
            assert_eq!(rules("core/capi/src/a.rs", text), []);
            assert_eq!(rules("plugins/compat/src/net/export/mod.rs", text), []);
            assert_eq!(rules("plugins/net-socket/src/export.rs", text), [("no-mangle", 1)]);
        }
    }

    #[test]
    fn the_planner_is_pure() {
        for text in ["use std::fs;", "use std::{fmt, time::Duration};", "fn f() { std::thread::yield_now() }"]
        {
            assert_eq!(rules("core/plan/src/a.rs", text), [("plan-is-pure", 1)], "{text}");
            assert_eq!(rules("core/runtime/src/a.rs", text), [], "{text}");
        }
        assert_eq!(rules("core/plan/src/a.rs", "use libc::c_int;"), [("plan-is-pure", 1)]);
        assert_eq!(rules("core/plan/src/a.rs", "use std::fmt; use crate::time::X;"), []);
    }

    #[test]
    fn algorithms_see_only_the_language() {
        let path = "core/plan/src/algo/ring.rs";
        assert_eq!(
            rules(path, "use crate::imported::kept;\nuse hawser_program::Program;\nuse super::table;"),
            []
        );
        assert_eq!(rules(path, "use crate::{imported::kept, choose::X};"), [("algo-imports", 1)]);
        assert_eq!(rules(path, "use super::super::choose;"), [("algo-imports", 1)]);
        assert_eq!(rules("core/plan/src/choose.rs", "use crate::cost::X;"), []);
    }
}
