//! Holds the library against the judge: for every file, what each says of it, of the program that would run,
//! and of mutants.

use std::path::{Path, PathBuf};

use hawser_msccl::{Import, Window, read, read_mscclpp, to_xml};
use hawser_plan::Protocol;

use super::element::Element;
use super::mutate::{self, Draw};
use super::runs::{self, Ran};
use super::table::Table;
use super::{Opinion, Rules, judge, plan_json};

/// A file of a corpus.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path of the file below its folder.
    pub name: String,
    /// The contents of the file.
    pub text: String,
}

/// The opinions of the library and of the judge about one text.
#[derive(Debug, Clone)]
pub struct Said {
    /// The reason why the library refuses it, by class and in full.
    pub refused: Option<(String, String)>,
    /// The judge's opinion of the file; of JSON, of the program that the library makes of it.
    pub file: Opinion,
    /// The judge's opinion of the program that would run, where the library takes the file and MSCCL's words
    /// can say it.
    pub program: Opinion,
    /// The text that would run, for running it.
    pub runnable: Option<String>,
}

impl Said {
    /// True if the library takes what the judge calls wrong.
    pub fn is_wrongly_taken(&self) -> bool {
        self.refused.is_none() && (self.file.is_wrong() || self.program.is_wrong())
    }
}

/// Asks both about a text.
pub fn ask(text: &str) -> Said {
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        return ask_about_plan(text);
    }
    let file = judge(text, Rules::default());
    match read(text) {
        Ok(import) => {
            let (program, _) = of_import(&import);
            Said { refused: None, file, program, runnable: Some(text.to_owned()) }
        }
        Err(error) => refused(error.class.name(), error.to_string(), file),
    }
}

/// Of JSON the judge knows what is promised; what moves it sees in the program that comes out.
fn ask_about_plan(text: &str) -> Said {
    let import = match read_mscclpp(text) {
        Ok(import) => import,
        Err(error) => {
            let open = Opinion::Open("the judge follows no signals".to_owned());
            return refused(error.class.name(), error.to_string(), open);
        }
    };
    let (program, xml) = of_import(&import);
    let made = xml.as_deref().and_then(|xml| Element::read(xml).ok());
    let found = made.and_then(|algo| {
        let ranks = algo.get("ngpus")?.parse::<usize>().ok()?;
        Some((algo.get("coll")?.replace('_', ""), ranks))
    });
    let promised = plan_json::promise(text).map(|(word, ranks)| (word.replace('_', ""), ranks));
    let file = if found.is_some() && found == promised {
        program.clone()
    } else {
        Opinion::Wrong(format!("{promised:?} became {found:?}"))
    };
    Said { refused: None, file, program, runnable: xml }
}

fn refused(class: &str, text: String, file: Opinion) -> Said {
    let program = Opinion::Open("refused".to_owned());
    Said { refused: Some((class.to_owned(), text)), file, program, runnable: None }
}

/// Judges the program that an import made, with the FIFO slots that the library gives it, in place and out of
/// place.
fn of_import(import: &Import) -> (Opinion, Option<String>) {
    let imported = &import.imported;
    let window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };
    match to_xml(&imported.program, &window) {
        Ok(xml) => {
            let rules = Rules { slots: Some(imported.min_depth as usize), keeps_input: true };
            let text = if imported.right_in_place { xml.clone() } else { apart(&xml) };
            (judge(&text, rules), Some(xml))
        }
        Err(error) => (Opinion::Open(error.to_string()), None),
    }
}

/// The same file for calls that are not in place.
fn apart(xml: &str) -> String {
    match Element::read(xml) {
        Ok(mut algo) => {
            algo.set("inplace", 0);
            algo.to_string()
        }
        Err(_) => xml.to_owned(),
    }
}

/// The work that is done with every file.
#[derive(Debug, Clone)]
pub struct Options {
    /// Mutants of every file that both call right.
    pub mutants: usize,
    /// One of so many right files and accepted mutants is run; 0 runs none.
    pub run_one_of: usize,
    /// The seed of mutants.
    pub seed: u64,
    /// The program that runs files, see [`runs::run`].
    pub binary: PathBuf,
    /// Folder for files that are run; those that went wrong stay.
    pub folder: PathBuf,
    /// Longest file that gets mutants, in bytes: each of them is read and judged.
    pub longest: usize,
}

/// Goes through files and counts.
pub fn examine(sources: &[Source], options: &Options, mut tell: impl FnMut(&str)) -> Table {
    let mut table = Table::default();
    for (number, source) in sources.iter().enumerate() {
        let said = ask(&source.text);
        table.file(source, &said);
        let name = &source.name;
        if said.is_wrongly_taken() {
            tell(&format!("WRONGLY TAKEN {name}: {:?} {:?}", said.file, said.program));
        } else if let Some((class, text)) = &said.refused {
            tell(&format!("refused {name}: {text} [{class}]; the judge: {:?}", said.file));
        }
        let mut draw = Draw::new(options.seed ^ ((number as u64) << 32));
        if said.refused.is_none() && is_drawn(options.run_one_of, &mut draw) {
            run(&said, name, options, &mut table, &mut tell);
        }
        let is_right = said.refused.is_none() && said.file == Opinion::Right;
        if is_right && source.text.len() <= options.longest {
            mutants(source, options, &mut draw, &mut table, &mut tell);
        }
        if number % 20 == 19 {
            tell(&format!("{} of {} files, {}", number + 1, sources.len(), table.line()));
        }
    }
    table
}

fn mutants(
    source: &Source,
    options: &Options,
    draw: &mut Draw,
    table: &mut Table,
    tell: &mut impl FnMut(&str),
) {
    let algo = Element::read(&source.text).ok();
    for _ in 0..options.mutants {
        let made = match &algo {
            Some(algo) => {
                let (changed, what) = mutate::mutant(algo, draw);
                Some((changed.to_string(), what))
            }
            None => plan_json::mutant(&source.text, draw),
        };
        let Some((text, what)) = made else { return };
        let said = ask(&text);
        table.mutant(&said);
        let name = format!("{} with {what}", source.name);
        if said.is_wrongly_taken() {
            let kept = options.folder.join(format!("wrongly-taken-{}.xml", table.mutants()));
            let written = std::fs::write(&kept, &text).map(|()| kept.display().to_string());
            tell(&format!("WRONGLY TAKEN {name}: {:?} {:?} ({written:?})", said.file, said.program));
        } else if let (Some((class, why)), Opinion::Right) = (&said.refused, &said.file) {
            table.example(class, &format!("{name}: {why}"));
        }
        if said.refused.is_none() && is_drawn(options.run_one_of, draw) {
            run(&said, &name, options, table, tell);
        }
    }
}

fn is_drawn(one_of: usize, draw: &mut Draw) -> bool {
    one_of > 0 && draw.below(one_of) == 0
}

fn run(said: &Said, name: &str, options: &Options, table: &mut Table, tell: &mut impl FnMut(&str)) {
    let Some(text) = &said.runnable else { return };
    let path = options.folder.join(format!("run-{}.xml", table.runs()));
    let ran = match std::fs::write(&path, text) {
        Ok(()) => runs::run(&options.binary, &path),
        Err(error) => Ran::Not(format!("{}: {error}", path.display())),
    };
    match &ran {
        Ran::Wrong(text) => tell(&format!("RAN WRONG {name} ({}): {text}", path.display())),
        _ => remove(&path),
    }
    table.run(&ran);
}

fn remove(path: &Path) {
    // A file that stays disturbs nobody.
    let _ = std::fs::remove_file(path);
}

/// All `*.xml` and `*.json` below a folder, in the order of their paths.
///
/// # Errors
/// A folder cannot be read.
pub fn below(folder: &Path) -> std::io::Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "xml" || e == "json") {
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                // Files in other encodings are no programs.
                if let Ok(text) = std::fs::read_to_string(&path)
                    && is_program(&text)
                {
                    found.push(Source { name, text });
                }
            }
        }
    }
    found.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(found)
}

/// Folders of other people hold topologies and results in XML and JSON, too.
fn is_program(text: &str) -> bool {
    text.contains("<algo") || (text.contains("\"gpus\"") && text.contains("\"threadblocks\""))
}
