//! The commands that the documentation shows: every `hawser` command in a block of code names a command and
//! options that the built tool has, and what needs no job and no GPU is run. Where a page shows the output
//! behind a `$ hawser ...`, the program's must have the same shape.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hawser_tests::pages::{blocks, pages, repository};
use hawser_tests::skip::skipped;
use hawser_tests::world::on_host;

/// Commands that need no job and no GPU; files of the reader's are in [`reader`].
const RUN: [&str; 8] = [
    "explain ",
    "plan list",
    "plan show ",
    "plan verify ",
    "plan export ",
    "rules check ",
    "rules explain ",
    "perf all",
];

/// Words of commands that are run with others: a small size is enough, and there is no shell.
const INSTEAD: [(&str, &str); 8] = [
    ("8G", "4K"),
    ("64M", "4K"),
    ("1G", "4K"),
    ("16M", "4K"),
    ("1M", "4K"),
    ("*.xml", "mine.xml"),
    ("*.toml", "mine.toml"),
    ("cluster.toml", "2 hosts of cpu"),
];

/// Commands whose output is shown and is not compared, and why.
const NOT_COMPARED: [(&str, &str); 1] = [("tune ", "what is found depends on the machine and on its load")];

/// A folder with the files that a reader of the pages has.
fn reader(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hawser-documents-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for what commands read and write");
    let programs = repository().join("core/plan/tests/msccl");
    let copies = [
        ("mine.xml", "valid.pair.xml"),
        ("ring.xml", "race.send_before_sum.xml"),
        ("swap.xml", "valid.swap.xml"),
        ("theirs.xml", "valid.directions.xml"),
    ];
    for (file, of) in copies {
        std::fs::copy(programs.join(of), folder.join(file)).expect("a program");
    }
    let large = "[[rule]]\nname = \"large\"\nmatch.bytes = \"1M..\"\nuse = { algorithm = \"ring\" }\n";
    let rest = "[[rule]]\nname = \"rest\"\nuse = [{ algorithm = \"nvls\" }, { algorithm = \"tree\" }]\n";
    let files = [
        ("rules.toml", format!("{large}\n{rest}")),
        ("mine.toml", large.to_owned()),
        ("new.toml", large.to_owned()),
    ];
    for (file, text) in files {
        std::fs::write(folder.join(file), text).expect("a file");
    }
    folder
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
        .env("HAWSER_RUNTIME_DIR", folder.join("run"))
        .output()
        .expect("hawser starts")
}

/// The words of `hawser` commands in the blocks of code of a page, without variables before them and pipes
/// behind.
fn commands(text: &str) -> Vec<Vec<String>> {
    let shells = blocks(text).into_iter().filter(|block| block.is_shell());
    shells.flat_map(|block| block.commands()).filter_map(|line| command(&line)).collect()
}

/// The words behind `hawser` in a line of a shell; None if the line is another command.
fn command(line: &str) -> Option<Vec<String>> {
    let words = shlex::split(line)?;
    let is_variable =
        |word: &&String| word.split('=').next().is_some_and(|name| is_name(name) && word.contains('='));
    let first = words.iter().take_while(is_variable).count();
    let program = words.get(first)?.rsplit('/').next()?;
    let rest = &words[first + 1..];
    let ends =
        |word: &str| ["#", "|", ">", "2>", "&", ";"].iter().any(|end| word.starts_with(end)) || word == "--";
    let rest: Vec<String> = rest.iter().take_while(|word| !ends(word)).cloned().collect();
    (program == "hawser" && !rest.is_empty()).then_some(rest)
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The text about a command that is wrong; None if it is right.
fn problem(words: &[impl AsRef<str>], folder: &Path) -> Option<String> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let command = words.join(" ");
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
    let is_run = RUN.iter().any(|start| command.starts_with(start)) && !command.contains("--library");
    // Without a last size there would be large ones.
    let is_run = is_run && (words[0] != "perf" || words.contains(&"-e"));
    let words: Vec<&str> = words
        .iter()
        .map(|word| INSTEAD.iter().find(|(of, _)| of == word).map_or(*word, |(_, to)| *to))
        .collect();
    let output = is_run.then(|| run(&words, folder)).filter(|output| !output.status.success())?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_commands_of_the_documentation_are_right() {
    let folder = reader("commands");
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for command in commands(&text) {
            count += 1;
            if let Some(problem) = problem(&command, &folder) {
                wrong.push(format!("{}: hawser {}: {problem}", page.display(), command.join(" ")));
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "only {count} commands were found");
}

#[test]
fn commands_are_found_and_judged() {
    let block = "A=1 x/hawser perf a -b 8 \\\n  -e 1M --simulate '2 hosts' # text\nls\n";
    let page = format!("```sh\n{block}```\nhawser no\n```text\nhawser no\n```\n");
    assert_eq!(commands(&page), [["perf", "a", "-b", "8", "-e", "1M", "--simulate", "2 hosts"]]);
    let folder = std::env::temp_dir();
    let problem = |command: &str| problem(&command.split(' ').collect::<Vec<_>>(), &folder);
    assert_eq!(problem("perf all_reduce -b 8 --hosts 2"), None);
    assert_eq!(problem("no-such-command"), Some("there is no such command".into()));
    assert_eq!(problem("perf overlap --no-such-option"), Some("there is no option --no-such-option".into()));
    assert!(problem("explain all_reduce --ranks none").is_some());
}

/// A command that a page shows behind a `$`, and the lines of output behind it.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    command: String,
    output: Vec<String>,
}

/// The `hawser` commands whose output a page shows.
fn shown(text: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut is_code, mut is_behind) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            (is_code, is_behind) = (!is_code, false);
        } else if let Some(command) = line.strip_prefix("$ hawser ").filter(|_| is_code) {
            found.push(Shown { command: command.to_owned(), output: Vec::new() });
            is_behind = true;
        } else if let Some(last) = found.last_mut().filter(|_| is_behind) {
            last.output.push(line.to_owned());
        }
    }
    found.retain(|shown| !shown.output.is_empty());
    found
}

/// A line without what differs from run to run: numbers, names of communicators, widths.
fn shape(line: &str) -> String {
    let word = |word: &str| -> String {
        let is_id = word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).len() == 16
            && word.chars().filter(char::is_ascii_hexdigit).count() >= 16;
        if is_id {
            return "ID".into();
        }
        let mut text = String::new();
        for c in word.chars() {
            let is_number = c.is_ascii_digit() || c == '.' && text.ends_with('N');
            match (is_number, text.ends_with('N')) {
                (true, true) => {}
                (true, false) => text.push('N'),
                (false, _) => text.push(c),
            }
        }
        text
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// True if a line has the shape of one that a page shows; `…` there stands for any text.
fn fits(shown: &str, line: &str) -> bool {
    let (shown, line) = (shape(shown), shape(line));
    match shown.split_once('…') {
        Some((first, last)) => line.starts_with(first.trim_end()) && line.ends_with(last.trim_start()),
        None => shown == line,
    }
}

/// True if lines have the shape of those that a page shows, where `...` stands for any number of lines.
fn all_fit(shown: &[String], lines: &[&str]) -> bool {
    match shown {
        [] => lines.is_empty(),
        [any, rest @ ..] if any.trim() == "..." => (0..=lines.len()).any(|at| all_fit(rest, &lines[at..])),
        [first, rest @ ..] => {
            lines.split_first().is_some_and(|(line, lines)| fits(first, line) && all_fit(rest, lines))
        }
    }
}

/// A job that works until it is dropped.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Job {
    /// Starts a job of 8 ranks, and waits until others see it.
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(tool());
        command.args("perf all_reduce -t 8 -b 8 -e 8 -n 100000000 -w 0 -c 0".split(' '));
        command.env("HAWSER_DEVICE", "host").env("HAWSER_RUNTIME_DIR", folder.join("run"));
        command.env("HAWSER_JOB", "1234").stdout(Stdio::null()).stderr(Stdio::null());
        let job = Self(command.spawn().expect("hawser starts"));
        let until = Instant::now() + Duration::from_secs(120);
        let is_seen = || String::from_utf8_lossy(&run(&["rules", "list"], folder).stdout).contains("1234");
        while !is_seen() {
            assert!(Instant::now() < until, "nobody sees the job");
            std::thread::sleep(Duration::from_millis(50));
        }
        job
    }
}

/// The page of the benchmark history is made of the files of results.
#[test]
fn the_history_is_that_of_the_results() {
    let script = repository().join("bench/history.py");
    let output = match Command::new("python3").arg(script).arg("--check").output() {
        Ok(output) => output,
        Err(error) => return skipped(format!("python3: {error}")),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_output_of_the_documentation_has_the_shape_of_the_programs() {
    if !on_host() {
        return;
    }
    let folder = reader("output");
    let mut job = None;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for Shown { command, output } in shown(&text) {
            if NOT_COMPARED.iter().any(|(start, _)| command.starts_with(start)) {
                continue;
            }
            let needs_job = ["rules list", "rules apply"].iter().any(|start| command.starts_with(start));
            let pid = needs_job.then(|| job.get_or_insert_with(|| Job::start(&folder)).0.id().to_string());
            let words = command.split(' ').map(|word| match (word, &pid) {
                ("4711", Some(pid)) => pid.as_str(),
                _ => word,
            });
            let told = run(&words.collect::<Vec<_>>(), &folder);
            let told = [told.stdout, told.stderr].concat();
            let told = String::from_utf8_lossy(&told);
            compared += 1;
            if !all_fit(&output, &told.lines().collect::<Vec<_>>()) {
                wrong.push(format!(
                    "{}: hawser {command} shows\n{}\nbut the program says\n{told}",
                    page.display(),
                    output.join("\n")
                ));
            }
        }
    }
    drop(job);
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(compared >= 4, "only {compared} outputs were found");
}

#[test]
fn shapes_differ_where_words_do() {
    let page = "```\n$ hawser a\nof 12 µs\n...\nend\n$ hawser b\n```\n$ hawser no\nno\n";
    let output = ["of 12 µs", "...", "end"].map(String::from);
    assert_eq!(shown(page), [Shown { command: "a".into(), output: output.clone().into() }]);
    assert!(all_fit(&output, &["of   7.25 µs", "end"]) && all_fit(&output, &["of 1 µs", "x", "y", "end"]));
    assert!(!all_fit(&output, &["of 12 ms", "end"]) && !all_fit(&output, &["of 12 µs", "end", "more"]));
    assert!(fits("x.xml:1:2: tb 0 … [fifo]", "x.xml:30:7: tb 1 of gpu 2 waits [fifo]"));
    assert!(!fits("x.xml:1:2: tb 0 … [fifo]", "x.xml:30:7: tb 1 of gpu 2 waits [race]"));
    assert!(fits("world (9f1c0a77b2d3e4f5): 5 ranks", "world (0123456789abcdef): 8 ranks"));
}
