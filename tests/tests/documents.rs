//! The commands that the documentation shows: every `hawser` command in a block of code names a command and
//! options that the built tool has, and those that only compute are run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Commands that need no job, no GPU and no file of the reader's.
const RUN: [&str; 3] = ["explain ", "plan list", "plan show "];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository")
}

/// The tool that cargo has built.
fn tool() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let tool = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("hawser");
    assert!(tool.is_file(), "no hawser: run cargo build -p hawser-cli");
    tool
}

fn run(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(tool());
    command
        .env_remove("HAWSER_RULES")
        .args(words)
        .current_dir(folder)
        .env("HAWSER_DEVICE", "host")
        .output()
        .expect("hawser starts")
}

/// The pages for readers: at the top, of `docs` and of `examples`.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![repository().join("docs"), repository().join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
            let path = entry.path();
            let is_built = path.ends_with("target");
            if path.is_dir() && !is_built {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.extend(["README.md", "CONTRIBUTING.md"].map(|name| repository().join(name)));
    found
}

/// The `hawser` commands in the blocks of code of a page, without variables before them and pipes behind.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut language = None;
    for line in text.replace("\\\n", " ").lines() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("```") {
            language = if language.is_none() { Some(rest.trim().to_string()) } else { None };
        } else if language.as_deref().is_some_and(|language| ["", "sh", "bash"].contains(&language)) {
            found.extend(command(line.trim_start_matches("$ ")));
        }
    }
    found
}

/// The words behind `hawser` in a line of a shell; None if the line is another command.
fn command(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_variable =
        |word: &&&str| word.split('=').next().is_some_and(|name| is_name(name) && word.contains('='));
    let first = words.iter().take_while(is_variable).count();
    let program = words.get(first)?.rsplit('/').next()?;
    let rest = &words[first + 1..];
    let ends =
        |word: &str| ["#", "|", ">", "2>", "&", ";"].iter().any(|end| word.starts_with(end)) || word == "--";
    let rest: Vec<&str> = rest.iter().take_while(|word| !ends(word)).copied().collect();
    (program == "hawser" && !rest.is_empty()).then(|| rest.join(" "))
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The text about a command that is wrong; None if it is right.
fn problem(command: &str, folder: &Path) -> Option<String> {
    let words: Vec<&str> = command.split(' ').collect();
    // `perf overlap` is a command of `perf`, `rules check` of `rules`: the longest that has a help.
    let plain = words.iter().take_while(|word| !word.starts_with('-')).count().min(2);
    let help = (1..=plain).rev().find_map(|count| {
        let output = run(&[&words[..count], &["--help"]].concat(), folder);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success()
            && (count == 1 || text.contains(&format!("hawser {}", words[..count].join(" ")))))
        .then_some(text)
    });
    let Some(help) = help else { return Some("there is no such command".into()) };
    let known: Vec<&str> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').collect();
    let option = |word: &&&str| word.starts_with('-') && word.len() > 1 && !word.starts_with("-1");
    let unknown = words.iter().filter(option).map(|word| word.split('=').next().unwrap_or(word));
    if let Some(word) = unknown.clone().find(|word| !known.contains(word)) {
        return Some(format!("there is no option {word}"));
    }
    let is_run = RUN.iter().any(|start| command.starts_with(start)) && !command.contains(".xml");
    let output = is_run.then(|| run(&words, folder)).filter(|output| !output.status.success())?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_commands_of_the_documentation_are_right() {
    let folder = std::env::temp_dir().join(format!("hawser-documents-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for what commands write");
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for command in commands(&text) {
            count += 1;
            if let Some(problem) = problem(&command, &folder) {
                wrong.push(format!("{}: hawser {command}: {problem}", page.display()));
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "only {count} commands were found");
}

#[test]
fn commands_are_found_and_judged() {
    let page =
        "```sh\nA=1 x/hawser perf a -b 8 \\\n  -e 1M # text\nls\n```\nhawser no\n```text\nhawser no\n```\n";
    assert_eq!(commands(page), ["perf a -b 8 -e 1M"]);
    let folder = std::env::temp_dir();
    assert_eq!(problem("perf all_reduce -b 8 --hosts 2", &folder), None);
    assert_eq!(problem("no-such-command", &folder), Some("there is no such command".into()));
    assert_eq!(
        problem("perf overlap --no-such-option", &folder),
        Some("there is no option --no-such-option".into())
    );
    assert!(problem("explain all_reduce --ranks none", &folder).is_some());
}
