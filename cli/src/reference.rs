//! The part of docs/cli.md that lists all commands with their options, and the test that keeps it current.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;

/// The page, and the heading from which on it is written by the test.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
const HEADING: &str = "## All commands and options\n";

/// The commands below one that are not hidden, each with the words that lead to it, in order.
fn below<'a>(command: &'a Command, path: &str, found: &mut Vec<(String, &'a Command)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        found.push((path.clone(), sub));
        below(sub, &path, found);
    }
}

/// The generated part of the page.
fn text() -> String {
    let mut root = Cli::command();
    root.build();
    let mut commands = Vec::new();
    below(&root, "hawser", &mut commands);
    let mut text = format!(
        "{HEADING}\nMade from the program's own description: `BLESS=1 cargo test -p hawser-cli reference` \
         writes it anew. `hawser help COMMAND` says the same.\n"
    );
    for (path, command) in commands {
        let _ = write!(text, "\n### {path}\n\n");
        if let Some(about) = command.get_long_about().or(command.get_about()) {
            let _ = writeln!(text, "{}.", about.to_string().trim().trim_end_matches('.'));
        }
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        let _ = write!(text, "\n```text\n{usage}\n```\n");
        table(&mut text, command);
        behind(&mut text, command);
    }
    text
}

/// The table of arguments and options.
fn table(text: &mut String, command: &Command) {
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let mut arguments = command.get_arguments().filter(is_shown).peekable();
    if arguments.peek().is_none() {
        return;
    }
    let _ = write!(text, "\n| option | meaning |\n|---|---|\n");
    for argument in arguments {
        let _ = writeln!(text, "| {} | {} |", names(argument), meaning(argument));
    }
}

/// An argument as it is typed: `-b`, `--minbytes BYTES`.
fn names(argument: &Arg) -> String {
    let mut names: Vec<String> =
        argument.get_short().map(|short| format!("`-{short}`")).into_iter().collect();
    names.extend(argument.get_long().map(|long| format!("`--{long}`")));
    names.extend(
        argument.get_visible_aliases().unwrap_or_default().iter().map(|alias| format!("`--{alias}`")),
    );
    let takes_value = argument.get_num_args().is_some_and(|count| count.takes_values());
    let values = argument.get_value_names().unwrap_or_default();
    let values: Vec<String> =
        values.iter().map(|name| format!("*{}*", name.to_string().to_uppercase())).collect();
    let values = if takes_value { values.join(" ") } else { String::new() };
    [names.join(", "), values].iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" ")
}

/// The help of an argument, the words that it takes and its default.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let takes_value = argument.get_num_args().is_some_and(|count| count.takes_values());
    let words: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if takes_value && !words.is_empty() {
        let _ = write!(text, ". One of {}", words.join(", "));
    }
    let defaults = argument.get_default_values();
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let defaults: Vec<String> =
            defaults.iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let _ = write!(text, " (default: `{}`)", defaults.join(" "));
    }
    text
}

/// The examples of a command as a block of the shell, and what its help says besides.
fn behind(text: &mut String, command: &Command) {
    let Some(help) = command.get_after_long_help().or(command.get_after_help()) else { return };
    for part in help.to_string().split("\n\n") {
        match part.strip_prefix("Examples:\n") {
            Some(examples) => {
                let lines: Vec<&str> =
                    examples.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
                let _ = write!(text, "\n```sh\n{}\n```\n", lines.join("\n"));
            }
            None => {
                let _ = write!(text, "\n{}\n", part.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
}

#[test]
fn the_page_lists_every_command_as_it_is() {
    let page = std::fs::read_to_string(PAGE).expect("docs/cli.md");
    let (written, _) = page.split_once(HEADING).unwrap_or((&page, ""));
    let wanted = format!("{written}{}", text());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, &wanted).expect("docs/cli.md");
    }
    let page = std::fs::read_to_string(PAGE).expect("docs/cli.md");
    assert!(
        page == wanted,
        "docs/cli.md is not what the program says: BLESS=1 cargo test -p hawser-cli reference writes it"
    );
}

/// Commands without `--json`: `exec` becomes the program that it runs, the others make packages.
const WITHOUT_JSON: [&str; 3] = ["hawser exec", "hawser man", "hawser completions"];

/// The same thing is said alike everywhere: files are written with `-o` or `--out`, programs get JSON with
/// `--json`, and commands have examples.
#[test]
fn commands_agree_about_their_options() {
    let mut root = Cli::command();
    root.build();
    let mut commands = Vec::new();
    below(&root, "hawser", &mut commands);
    for (path, command) in commands {
        for argument in command.get_arguments() {
            let is_out = argument.get_long() == Some("out");
            assert!(!is_out || argument.get_short() == Some('o'), "{path}: --out without -o");
        }
        let has = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
        let needs_json = !command.has_subcommands() && !WITHOUT_JSON.contains(&path.as_str());
        assert!(has("json") || !needs_json, "{path}: no --json");
        let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        let has_examples = help.is_some_and(|help| help.contains("Examples:\n"));
        assert!(has_examples || command.has_subcommands(), "{path}: no examples");
    }
}
