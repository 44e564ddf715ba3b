//! `hawser rules import`: rule files of others as TOML.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use hawser_tuner::files::{Form, RuleFile};
use hawser_tuner::{csv, write};
use serde_json::json;

use super::{ompi, ompi_json, ucc};
use crate::files;

/// Options of `hawser rules import`.
#[derive(Debug, Args)]
pub struct Options {
    /// NCCL's tuner file (CSV), a table or JSON for Open MPI's coll_tuned_dynamic_rules_filename, or scores
    /// of UCC
    file: PathBuf,
    /// What the file is [default: what it looks like]
    #[arg(long, value_enum)]
    from: Option<From>,
    /// Write a new file instead of to standard output
    #[arg(short, long, alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the number of rules, the rules unless they go into a file, and that file, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum From {
    /// NCCL's CSV
    Nccl,
    /// Open MPI's table of numbers
    Ompi,
    /// Open MPI's JSON
    OmpiJson,
    /// UCC's scores: the value of UCC_TL_UCP_TUNE, or lines of ucc.conf
    Ucc,
}

/// Imports a file; returns what is to be printed.
///
/// # Errors
/// The file cannot be understood, or the output file is there already.
pub fn run(options: &Options) -> Result<String> {
    let name = options.file.display().to_string();
    let before = std::fs::read_to_string(&options.file).with_context(|| format!("cannot read {name}"))?;
    let (text, count) = converted(&name, &before, options.from)?;
    let json = |rules: Option<&str>| -> Result<String> {
        let written = options.out.as_ref().map(|path| path.display().to_string());
        let record = json!({ "from": name, "rules": count, "toml": rules, "written": written });
        Ok(serde_json::to_string_pretty(&record)? + "\n")
    };
    let Some(output) = &options.out else {
        return if options.json { json(Some(&text)) } else { Ok(text) };
    };
    let shown = output.display();
    files::check_place(output)?;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(output);
    let mut file =
        file.with_context(|| format!("cannot make {shown} (a file that is there is not replaced)"))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {shown}"))?;
    if options.json { json(None) } else { Ok(String::new()) }
}

/// The rules of a file as TOML, and how many there are.
fn converted(name: &str, text: &str, from: Option<From>) -> Result<(String, usize)> {
    let body = match from.unwrap_or_else(|| looks_like(text)) {
        From::Nccl => nccl(name, text)?,
        From::Ompi => ompi::toml(name, text)?,
        From::OmpiJson => ompi_json::toml(name, text)?,
        From::Ucc => ucc::toml(name, text)?,
    };
    // Comments tell what was left out in the file's own words, and take no control characters.
    let body = body.replace(|letter: char| letter.is_control() && !matches!(letter, '\n' | '\t'), "?");
    let text = format!("# Made by hawser rules import of {}\n{body}", one_line(name));
    let made = RuleFile { form: Form::Toml, ..RuleFile::named("the rules made") };
    let rules = made.parse(&text).with_context(|| format!("importing {name}"))?.len();
    Ok((text, rules))
}

/// Reads a text in each form, and in the one that it seems to have.
///
/// # Panics
/// It was taken, and what was made of it are no rules.
pub fn fuzz(text: &str) {
    let forms = [From::Nccl, From::Ompi, From::OmpiJson, From::Ucc].map(Some);
    for form in forms.into_iter().chain([None]) {
        if let Err(error) = converted("fuzz", text, form) {
            // Only the parser of what was made names that file, and first; texts may hold any words.
            let is_of_made = error.chain().any(|cause| cause.to_string().starts_with("the rules made:"));
            assert!(!is_of_made, "{error:#}");
        }
    }
}

/// The form in which a text seems to be written.
fn looks_like(text: &str) -> From {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    match first {
        Some(line) if line.starts_with('{') => From::OmpiJson,
        _ if ucc::is_scores(text) => From::Ucc,
        Some(line) if line.contains(',') => From::Nccl,
        _ => From::Ompi,
    }
}

/// NCCL's lines as rules, each below its line.
fn nccl(name: &str, text: &str) -> Result<String> {
    let file: Arc<str> = name.into();
    let rules = csv::parse(text).map_err(|bad| {
        let lines: String = bad.iter().map(|line| format!("\n{name}:{line}")).collect();
        anyhow::anyhow!("{name} is no tuner file of NCCL:{lines}")
    })?;
    let lines: Vec<&str> = text.lines().collect();
    let line = |rule: &csv::Rule| lines.get(rule.line as usize - 1).map_or("", |line| line.trim());
    let each = |rule: &csv::Rule| {
        format!("\n# line {}: {}\n{}", rule.line, one_line(line(rule)), write::toml(&rule.general(&file)))
    };
    Ok(rules.iter().map(each).collect())
}

/// A text that a comment may hold.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\n\
                       # small ones\n\
                       allreduce,0,65535,tree,ll,2,1,-1\n\
                       broadcast,65536,-1,ring,simple,-1,-1,8,-1,1\n\
                       reduce,4096,8192,sym_all_pairs,ll128,-1,-1,-1\n";

    #[test]
    fn nccls_lines_become_rules() {
        let (text, count) = converted("t.csv", CSV, None).unwrap();
        assert_eq!(count, 3);
        let wanted = "# Made by hawser rules import of t.csv\n\n\
            # line 3: allreduce,0,65535,tree,ll,2,1,-1\n\
            [[rule]]\n\
            match = { collective = \"all_reduce\", bytes = \"..64K\", hosts = \"1\" }\n\
            use = { algorithm = \"tree\", protocol = \"ll\", channels = 2 }\n\n\
            # line 4: broadcast,65536,-1,ring,simple,-1,-1,8,-1,1\n\
            [[rule]]\n\
            match = { collective = \"broadcast\", bytes = \"64K..\", ranks = \"8\", registered = true }\n\
            use = { algorithm = \"ring\", protocol = \"simple\" }\n\n\
            # line 5: reduce,4096,8192,sym_all_pairs,ll128,-1,-1,-1\n\
            [[rule]]\n\
            match = { collective = \"reduce\", bytes = \"4K..=8K\" }\n\
            use = { algorithm = \"all_pairs\", executor = \"fused\", protocol = \"ll128\" }\n";
        assert_eq!(text, wanted);
        assert_eq!(hawser_tuner::write::layout(&text), text, "it is laid out");
    }

    #[test]
    fn control_characters_of_a_file_do_not_reach_comments() {
        let (text, _) = converted("t", "allreduce:@\u{1}ing\u{7f}x\n", None).unwrap();
        assert!(text.contains("allreduce's ?ing?x"), "{text}");
    }

    #[test]
    fn what_cannot_be_imported_is_told() {
        let error = |text: &str| format!("{:#}", converted("t", text, None).unwrap_err());
        assert!(error("allreduce,0,1,rng,ll,1,1,1\n").contains("t:1: algorithm \"rng\" is unknown"));
        assert!(error("{\"rule_file_version\": 3}").contains("collectives"));
        assert!(error("UCC_TL_UCP_TUNE=allreduce:@").contains("t:1: "));
        assert!(error("").contains("t: the table ends"));
    }

    #[test]
    fn a_file_that_is_there_is_not_replaced() {
        let path = std::env::temp_dir().join(format!("hawser-import-{}.csv", std::process::id()));
        std::fs::write(&path, CSV).unwrap();
        let options = Options { file: path.clone(), from: None, out: Some(path.clone()), json: false };
        assert!(format!("{:#}", run(&options).unwrap_err()).contains("is not replaced"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), CSV);
        std::fs::remove_file(path).unwrap();
    }
}
