//! Man pages and completions, made from the command line's own description.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, output};

/// Options of `hawser man`.
#[derive(Debug, Args)]
pub struct Man {
    /// The folder for the pages
    folder: PathBuf,
}

/// Options of `hawser completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Writes a man page for each command.
///
/// # Errors
/// The folder cannot be made, or a page cannot be written.
pub fn man(options: &Man) -> Result<()> {
    let folder = &options.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write man pages into {}", folder.display()))
}

/// Prints completions.
///
/// # Errors
/// They cannot be written.
pub fn completions(options: &Completions) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "hawser", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All commands below one, and the words that lead to each.
    fn all(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        let path = format!("{path} {}", command.get_name());
        found.push((path.clone(), command.clone()));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            all(below, &path, found);
        }
    }

    #[test]
    fn help_has_examples_and_fits_into_100_columns() {
        let mut found = Vec::new();
        let mut root = Cli::command();
        root.build();
        all(&root, "", &mut found);
        assert!(found.len() > 18, "{}", found.len());
        for (path, command) in found {
            for help in [command.clone().render_help(), command.clone().render_long_help()] {
                let text = help.to_string();
                let is_root = path.trim() == "hawser";
                assert!(text.contains(if is_root { "Exit codes:" } else { "Examples:" }), "{path}: {text}");
                for line in text.lines() {
                    assert!(line.chars().count() <= 100, "{path}: {line}");
                }
            }
        }
        for line in crate::FIRST_STEPS.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
