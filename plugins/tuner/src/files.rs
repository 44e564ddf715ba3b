//! Rule files: where they are, and what stands in them.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind as Io, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hawser_plugin::{Error, ErrorKind};

use crate::contents::Contents;
use crate::rule::{Place, Problem, Rule};
use crate::{csv, schema, settings};

/// More rules than anybody writes.
const MOST_BYTES: u64 = 16 << 20;
/// So many faults are told in full.
const MOST_TOLD: usize = 20;

/// A file that may hold rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFile {
    /// The path of the file.
    pub path: PathBuf,
    /// In what form.
    pub form: Form,
    /// The consequence if the file is not there.
    pub absent: Absent,
}

/// Forms of rule files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Hawser's own form, in TOML.
    Toml,
    /// NCCL's.
    Csv,
}

/// The consequence if a file is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// The user named it: an error.
    Wrong,
    /// The user named it as NCCL's example is told its file: a warning.
    Odd,
    /// Nobody named it.
    Fine,
}

impl RuleFile {
    /// A file that the user named: CSV by the endings `.csv` and `.conf`, or if it is that of
    /// `NCCL_TUNER_CONFIG_FILE`, else TOML.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let is_csv = matches!(ending, Some("csv" | "conf")) || settings::rule_file().as_ref() == Some(&path);
        let form = if is_csv { Form::Csv } else { Form::Toml };
        Self { path, form, absent: Absent::Wrong }
    }

    /// Its text; None if it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn text(&self) -> Result<Option<String>, Unusable> {
        let found = text(&self.path).map_err(|text| self.unusable(vec![self.whole(text)]))?;
        if found.is_none() && self.absent == Absent::Wrong {
            return Err(self.unusable(vec![self.whole("there is no such file".to_owned())]));
        }
        Ok(found)
    }

    /// The contents of the file; None if it is not there.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(&self) -> Result<Option<Contents>, Unusable> {
        self.text()?.map(|text| self.contents(&text)).transpose()
    }

    /// The rules of a text that stands for the file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(&self, text: &str) -> Result<Vec<Rule>, Unusable> {
        self.contents(text).map(|contents| contents.rules)
    }

    /// The contents of a text that stands for the file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn contents(&self, text: &str) -> Result<Contents, Unusable> {
        let name = self.path.display().to_string();
        if self.form == Form::Toml {
            return schema::contents(&name, text).map_err(|problems| self.unusable(problems));
        }
        let file: Arc<str> = name.into();
        let rules = csv::parse(text).map_err(|bad| {
            let place = |line| Place { file: file.clone(), line, column: 1 };
            let problem = |line: csv::BadLine| Problem { place: place(line.line), text: line.text };
            self.unusable(bad.into_iter().map(problem).collect())
        })?;
        let rules = rules.iter().map(|rule| rule.general(&file)).collect();
        Ok(Contents { rules, ..Contents::default() })
    }

    fn unusable(&self, problems: Vec<Problem>) -> Unusable {
        Unusable { file: self.path.display().to_string(), problems }
    }

    /// A fault of the whole file.
    fn whole(&self, text: String) -> Problem {
        Problem { place: Place { file: self.path.display().to_string().into(), line: 0, column: 0 }, text }
    }
}

/// A file that cannot be used, and all that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// The name of the file.
    pub file: String,
    /// The faults of the file. Line 0 is the whole file.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &self.problems[..]
            && only.place.line == 0
        {
            return write!(f, "the rule file {} cannot be used: {}", self.file, only.text);
        }
        let count = self.problems.len();
        write!(
            f,
            "the rule file {} cannot be used, {count} {} wrong",
            self.file,
            if count == 1 { "thing is" } else { "things are" }
        )?;
        for problem in self.problems.iter().take(MOST_TOLD) {
            write!(f, "\n{problem}")?;
        }
        if count > MOST_TOLD { write!(f, "\nand {} more", count - MOST_TOLD) } else { Ok(()) }
    }
}

impl std::error::Error for Unusable {}

impl From<Unusable> for Error {
    fn from(unusable: Unusable) -> Self {
        Self::new(
            ErrorKind::InvalidUsage,
            format!("{unusable}\nhawser rules check {} says the same", unusable.file),
        )
    }
}

/// The files of `HAWSER_RULES`; without it the first that is there of `hawser-rules.toml` beside the library
/// and `/etc/hawser/rules.toml`. `none` = no file.
pub fn ours() -> Vec<RuleFile> {
    match settings::rules() {
        Some(list) => named_in(&list),
        None => found(&settings::usual_places()).into_iter().collect(),
    }
}

/// The files of a value of `HAWSER_RULES`.
pub fn named_in(list: &str) -> Vec<RuleFile> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "none");
    names.map(RuleFile::named).collect()
}

fn found(places: &[PathBuf]) -> Option<RuleFile> {
    let path = places.iter().find(|path| path.is_file())?;
    Some(RuleFile { absent: Absent::Fine, ..RuleFile::named(path) })
}

/// The text of a file; None if there is none.
fn text(path: &Path) -> Result<Option<String>, String> {
    // Opening a pipe would wait for somebody to write.
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => {
            return Err("it is no regular file: write the rules into one".to_owned());
        }
        Ok(_) => {}
        Err(error) if error.kind() == Io::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err("it is larger than 16 MiB: is it the right one?".to_owned());
    }
    String::from_utf8(bytes).map(Some).map_err(|_| "it is not UTF-8: save it as plain text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_files_and_their_forms() {
        let files = named_in("a.toml, b.csv,,/c/d.conf");
        let forms: Vec<Form> = files.iter().map(|file| file.form).collect();
        assert_eq!(forms, [Form::Toml, Form::Csv, Form::Csv]);
        assert_eq!(files[1].path, Path::new("b.csv"));
        assert!(named_in("none").is_empty() && named_in("").is_empty());
    }

    #[test]
    fn of_the_usual_places_the_first_that_is_there_counts() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["a.toml", "b.toml", "c.toml"].map(|name| folder.path().join(name));
        assert_eq!(found(&places), None);
        std::fs::write(&places[1], "").unwrap();
        std::fs::write(&places[2], "").unwrap();
        let file = found(&places).unwrap();
        assert_eq!((file.path.as_path(), file.absent), (places[1].as_path(), Absent::Fine));
    }

    #[test]
    fn what_is_no_rule_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| RuleFile::named(path).read().unwrap_err().to_string();
        let file = |name: &str| folder.path().join(name);
        assert!(refused(folder.path()).contains("no regular file"));
        assert!(refused(&file("none")).contains("there is no such file"));
        std::fs::write(file("latin"), b"# caf\xe9\n").unwrap();
        assert!(refused(&file("latin")).contains("is not UTF-8"));
        File::create(file("huge")).unwrap().set_len((16 << 20) + 1).unwrap();
        assert!(refused(&file("huge")).contains("larger than 16 MiB"));
        assert!(refused(&file("huge").join("below")).contains("Not a directory"));
    }

    #[test]
    fn many_faults_are_cut() {
        let file = RuleFile::named("r.csv");
        let text = file.parse(&"allreduce,0,1,rng,ll,1,1,1\n".repeat(50)).unwrap_err().to_string();
        assert!(
            text.starts_with("the rule file r.csv cannot be used, 50 things are wrong\nr.csv:1:1: algorithm"),
            "{text}"
        );
        assert!(text.contains("r.csv:20:1:") && !text.contains("r.csv:21:1:"), "{text}");
        assert!(text.ends_with("and 30 more"), "{text}");
    }
}
