//! The table of what library and judge said.

use std::collections::BTreeMap;
use std::fmt;

use super::Opinion;
use super::corpus::{Said, Source};
use super::runs::Ran;

/// Texts by what both said of them.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    taken_right: u32,
    taken_wrong: u32,
    taken_open: u32,
    refused_right: u32,
    refused_wrong: u32,
    refused_open: u32,
}

impl Counts {
    fn add(&mut self, said: &Said) {
        let place = match (&said.refused, &said.file) {
            (None, _) if said.is_wrongly_taken() => &mut self.taken_wrong,
            (None, Opinion::Right) => &mut self.taken_right,
            (None, _) => &mut self.taken_open,
            (Some(_), Opinion::Right) => &mut self.refused_right,
            (Some(_), Opinion::Wrong(_)) => &mut self.refused_wrong,
            (Some(_), Opinion::Open(_)) => &mut self.refused_open,
        };
        *place += 1;
    }

    const fn sum(self) -> u32 {
        self.taken_right
            + self.taken_wrong
            + self.taken_open
            + self.refused_right
            + self.refused_wrong
            + self.refused_open
    }
}

/// Figures of a corpus.
#[derive(Debug, Default)]
pub struct Table {
    files: BTreeMap<String, Counts>,
    mutants: Counts,
    /// Texts that the judge calls right and the library refuses, by the library's class.
    false_refusals: BTreeMap<String, (u32, String)>,
    programs_judged: u32,
    ran_right: u32,
    calls: u32,
    ran_wrong: u32,
    not_run: BTreeMap<String, u32>,
}

impl Table {
    /// Counts a file, by the first folder of its name.
    pub fn file(&mut self, source: &Source, said: &Said) {
        let folder = source.name.split_once('/').map_or(".", |(folder, _)| folder);
        self.files.entry(folder.to_owned()).or_default().add(said);
        self.programs_judged += u32::from(matches!(said.program, Opinion::Right | Opinion::Wrong(_)));
        if let (Some((class, text)), Opinion::Right) = (&said.refused, &said.file) {
            self.example(class, &format!("{}: {text}", source.name));
        }
    }

    /// Counts a mutant.
    pub fn mutant(&mut self, said: &Said) {
        self.mutants.add(said);
        self.programs_judged += u32::from(matches!(said.program, Opinion::Right | Opinion::Wrong(_)));
    }

    /// Keeps the first text of a class that was refused though the judge calls it right.
    pub fn example(&mut self, class: &str, text: &str) {
        self.false_refusals.entry(class.to_owned()).or_insert_with(|| (0, text.to_owned())).0 += 1;
    }

    /// Counts a run.
    pub fn run(&mut self, ran: &Ran) {
        match ran {
            Ran::Right(calls) => {
                self.ran_right += 1;
                self.calls += calls;
            }
            Ran::Wrong(_) => self.ran_wrong += 1,
            Ran::Not(why) => *self.not_run.entry(why.clone()).or_default() += 1,
        }
    }

    /// Mutants so far.
    pub const fn mutants(&self) -> u32 {
        self.mutants.sum()
    }

    /// Programs that were run, or tried to.
    pub fn runs(&self) -> u32 {
        self.ran_right + self.ran_wrong + self.not_run.values().sum::<u32>()
    }

    /// Texts that the library takes and the judge calls wrong, and programs that ran wrong.
    pub fn failures(&self) -> u32 {
        let files: u32 = self.files.values().map(|counts| counts.taken_wrong).sum();
        files + self.mutants.taken_wrong + self.ran_wrong
    }

    /// Files that the library takes.
    pub fn files_taken(&self) -> u32 {
        self.files.values().map(|counts| counts.taken_right).sum()
    }

    /// Mutants that the judge calls wrong.
    pub const fn wrong_mutants(&self) -> u32 {
        self.mutants.refused_wrong + self.mutants.taken_wrong
    }

    /// One line for those who wait.
    pub fn line(&self) -> String {
        format!(
            "{} mutants, {} runs, {} wrongly taken or run wrong",
            self.mutants(),
            self.runs(),
            self.failures()
        )
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, c: Counts| {
            writeln!(
                f,
                "{name:<28} {:>7} {:>10} {:>10} {:>9} {:>12} {:>12} {:>11}",
                c.sum(),
                c.taken_right,
                c.taken_wrong,
                c.taken_open,
                c.refused_wrong,
                c.refused_right,
                c.refused_open
            )
        };
        writeln!(
            f,
            "{:<28} {:>7} {:>10} {:>10} {:>9} {:>12} {:>12} {:>11}",
            "library / judge",
            "texts",
            "both right",
            "only judge",
            "open",
            "both wrong",
            "only library",
            "open"
        )?;
        writeln!(
            f,
            "{:<28} {:>7} {:>10} {:>10} {:>9} {:>12} {:>12} {:>11}",
            "", "", "", "says wrong", "", "", "says wrong", "(refused)"
        )?;
        for (folder, counts) in &self.files {
            row(f, folder, *counts)?;
        }
        row(f, "mutants", self.mutants)?;
        writeln!(f, "programs that would run, judged with the slots they get: {}", self.programs_judged)?;
        writeln!(
            f,
            "run on the host device: {} right ({} calls by the program), {} wrong, not run: {:?}",
            self.ran_right, self.calls, self.ran_wrong, self.not_run
        )?;
        for (class, (count, text)) in &self.false_refusals {
            writeln!(f, "refused as {class} though the judge says right: {count}, such as {text}")?;
        }
        Ok(())
    }
}
