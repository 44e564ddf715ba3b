//! From the description to the text.

use std::fmt::Write;

use super::model::{Field, Item, Struct};

const WIDTH: usize = 110;

const HEAD: &str = "\
/* The plugin tables that Hawser accepts, for plugins in C or C++: the newest version of each kind. Older ones work too.
 * Such a plugin also works with NVIDIA's library, which has the same tables.
 *
 * Made from plugins/api/tests/header: do not edit. */
#ifndef HAWSER_PLUGIN_H
#define HAWSER_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#define HAWSER_CHECK(condition, text) static_assert(condition, text)
extern \"C\" {
#else
#include <stdbool.h>
#define HAWSER_CHECK(condition, text) _Static_assert(condition, text)
#endif

#define HAWSER_EXPORT __attribute__((visibility(\"default\")))
";

const TAIL: &str = "
#ifdef __cplusplus
}
#endif
#endif
";

/// The whole file.
pub fn header(items: &[&Item]) -> String {
    let mut out = HEAD.to_owned();
    items.iter().for_each(|item| render(&mut out, item));
    out.push_str("\n/* On other machines the tables would look different. */\n");
    for item in items {
        if let Item::Struct(s) = item {
            check_size(&mut out, s);
        }
    }
    out.push_str(TAIL);
    out
}

fn render(out: &mut String, item: &Item) {
    let _ = match item {
        Item::Section(title, text) => {
            let line = "=".repeat(WIDTH - 8 - title.len());
            writeln!(out, "\n/* {title} {line} */\n").map(|()| comment(out, "", text))
        }
        Item::Numbers(prefix, text, numbers) => {
            out.push('\n');
            comment(out, "", text);
            numbers.iter().try_for_each(|(name, value)| writeln!(out, "#define {prefix}{name} {value}"))
        }
        Item::Code(text, code) => {
            out.push('\n');
            comment(out, "", text);
            writeln!(out, "{code}")
        }
        Item::Struct(s) => {
            structure(out, s);
            Ok(())
        }
        Item::Export(symbol, kind) => writeln!(out, "extern HAWSER_EXPORT const {kind} {symbol};"),
    };
}

fn structure(out: &mut String, s: &Struct) {
    out.push('\n');
    comment(out, "", s.text);
    let union = s.fields.len() > 1 && s.fields.iter().all(|field| field.at == 0);
    let word = if union { "union" } else { "struct" };
    let _ = writeln!(out, "typedef {word} {} {{", s.name.trim_end_matches("_t"));
    for field in s.fields {
        declare(out, field);
    }
    let _ = writeln!(out, "}} {};", s.name);
}

/// A declaration with its comment behind it, or above it if that is too long. Parameters that are too many
/// for a line go on below.
fn declare(out: &mut String, Field { before, name, after, text, .. }: &Field) {
    let space = if before.ends_with('*') { "" } else { " " };
    let short = format!("    {before}{space}{name}{after}; /* {text} */");
    if !text.is_empty() && short.len() <= WIDTH {
        let _ = writeln!(out, "{short}");
        return;
    }
    comment(out, "    ", text);
    let mut line = format!("    {before}{space}{name}");
    for part in format!("{after};").split_inclusive(", ") {
        if line.len() + part.trim_end().len() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(12);
        }
        line.push_str(part);
    }
    let _ = writeln!(out, "{line}");
}

/// A comment, broken into lines.
fn comment(out: &mut String, indent: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    let mut line = format!("{indent}/*");
    for word in text.split_whitespace() {
        if line.len() + word.len() + 4 > WIDTH {
            let _ = writeln!(out, "{line}");
            line = format!("{indent} *");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line} */");
}

fn check_size(out: &mut String, Struct { name, size, .. }: &Struct) {
    let _ = writeln!(out, "HAWSER_CHECK(sizeof({name}) == {size}, \"{name}\");");
}

/// A check for the place of each field, to be compiled behind the header.
pub fn offsets(items: &[&Item]) -> String {
    let mut out = String::new();
    for item in items {
        let Item::Struct(Struct { name, fields, .. }) = item else { continue };
        for field in *fields {
            let (field, at) = (field.name, field.at);
            let _ = writeln!(out, "HAWSER_CHECK(offsetof({name}, {field}) == {at}, \"{name}.{field}\");");
        }
    }
    out
}
