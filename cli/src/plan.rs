//! `hawser plan`: prints, verifies, draws and exports programs, from a file or from a generator's name.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use hawser_msccl::{Dialect, Window};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::imported;
use hawser_plan::{Collective, Measured, Program, Protocol};
use hawser_program::{Buf, draw, text, verify};
use serde_json::{Value, json};

use crate::files;
use crate::output::{self, Align, Table, print};
use crate::progress::Progress;

/// Options of `hawser plan`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Names of the built-in programs
    #[command(after_help = "Examples:
  hawser plan list --json")]
    List {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a program as text, with what the verifier says
    #[command(after_help = "Examples:
  hawser plan show tree_all_reduce --ranks 8
  hawser plan show ring_all_reduce --ranks 8 -o ring.svg
  hawser plan show ring_all_reduce --ranks 8 --svg ring.svg --html ring.html")]
    Show(Show),
    /// Only verify it
    #[command(after_help = "Examples:
  hawser plan verify mine.xml
  hawser plan verify allpairs_all_gather --ranks 16 --json")]
    Verify(Show),
    /// Write it as a file for MSCCL_XML_FILES
    #[command(after_help = "Examples:
  hawser plan export tree_all_reduce --ranks 8 --msccl --protocol LL -o tree.xml")]
    Export(Export),
    /// Prove a file, MSCCL++'s JSON too, and write it as one that the library reads
    #[command(after_help = "Examples:
  hawser plan import theirs.json -o ours.xml")]
    Import(Import),
}

/// The file to read, and the file to write.
#[derive(Debug, Args)]
struct Import {
    /// MSCCL++'s JSON, MSCCL's XML or a .plan file
    file: PathBuf,
    /// FILE.xml keeps protocol and sizes, FILE.plan has neither
    #[arg(long, short)]
    out: PathBuf,
    /// Print what the verifier says as JSON, and no text
    #[arg(long)]
    json: bool,
}

/// The form in which a program is written.
#[derive(Debug, Args)]
struct Export {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    form: Form,
    /// Write to this file instead of the standard output
    #[arg(long, short)]
    out: Option<PathBuf>,
    /// The protocol that the XML names
    #[arg(long, value_enum, ignore_case = true, default_value_t = Fifo::Simple)]
    protocol: Fifo,
    /// Fewest bytes (of the larger buffer) for which the XML is meant
    #[arg(long, default_value_t = 0)]
    min_bytes: u64,
    /// Most bytes; 0 = no limit
    #[arg(long, default_value_t = 0)]
    max_bytes: u64,
    /// Print what was written, and what the verifier says, as JSON
    #[arg(long, requires = "out")]
    json: bool,
}

/// The form to write.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Form {
    /// MSCCL's XML
    #[arg(long)]
    msccl: bool,
    /// The text form of this library
    #[arg(long)]
    plan: bool,
}

/// Protocols with FIFOs.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Fifo {
    #[value(name = "LL")]
    Ll,
    #[value(name = "LL128")]
    Ll128,
    #[value(name = "Simple")]
    Simple,
}

/// The program to show.
#[derive(Debug, Args)]
struct Which {
    /// A .plan file, MSCCL's XML, MSCCL++'s JSON, or the name of a built-in program (see `hawser plan list`)
    program: String,
    /// Ranks of a built-in program
    #[arg(long, default_value_t = 4, value_parser = crate::ranks::ranks(1))]
    ranks: u32,
    /// Root of a built-in program
    #[arg(long, default_value_t = 0)]
    root: u32,
    /// Ranks per host, for programs that know hosts; 0 = the program's own choice
    #[arg(long, default_value_t = 0)]
    per_host: u32,
}

/// The program to show, and the pictures to make of it.
#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    which: Which,
    /// Draw it into this file: FILE.svg or FILE.html
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw it into a page in which the transfers of the step under the pointer stand out
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print what the verifier says as JSON, and no text
    #[arg(long)]
    json: bool,
}

/// Runs `hawser plan`. Returns whether the program is right.
///
/// # Errors
/// The program does not exist or does not parse, or a file cannot be written.
pub fn run(options: &Options) -> Result<bool> {
    let (show, prints) = match &options.command {
        Command::List { json: true } => return output::print_json(&json_list()).map(|()| true),
        Command::List { json: false } => return print(&list()).map(|()| true),
        Command::Show(show) => (show, true),
        Command::Verify(show) => (show, false),
        Command::Export(export) => return write(export).map(|()| true),
        Command::Import(import) => return convert(import),
    };
    let Show { which, svg, html, json, .. } = show;
    let (out_svg, out_html) = by_ending(show.out.as_deref())?;
    let (program, import) = load(which)?;
    if prints && !json {
        print(&text::to_text(&program))?;
    }
    for (form, path) in [
        (draw::to_svg as fn(&Program) -> String, svg.as_deref()),
        (draw::to_svg, out_svg),
        (draw::to_html, html.as_deref()),
        (draw::to_html, out_html),
    ] {
        draw(&program, form, path, *json)?;
    }
    let waiting = Progress::waiting("verifying");
    let (report, ok) = match algo::find(&which.program) {
        Some(_) => verdicts(&program),
        None => of_a_file(&program),
    };
    waiting.end();
    if *json {
        return output::print_json(&json_verdicts(&program, import.as_ref(), None)).map(|()| ok);
    }
    print(&report)?;
    print(&import.map_or_else(String::new, |import| attributes(&import) + &changes(&import)))?;
    Ok(ok)
}

/// A file to be drawn, as one for an SVG or as one for a page: its name tells.
///
/// # Errors
/// It ends in neither.
fn by_ending(path: Option<&Path>) -> Result<(Option<&Path>, Option<&Path>)> {
    match path.map(|path| (path, path.extension().and_then(|ending| ending.to_str()))) {
        None => Ok((None, None)),
        Some((path, Some("svg"))) => Ok((Some(path), None)),
        Some((path, Some("html"))) => Ok((None, Some(path))),
        Some((path, _)) => bail!("{}: the name of a drawing ends in .svg or .html", path.display()),
    }
}

/// Draws a program into a file, if one is named.
fn draw(program: &Program, form: fn(&Program) -> String, path: Option<&Path>, quiet: bool) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    files::write(path, &form(program))?;
    if quiet { Ok(()) } else { print(&format!("# drawn into {}\n", path.display())) }
}

fn write(export: &Export) -> Result<()> {
    let (program, _) = load(&export.which)?;
    let most = if export.max_bytes == 0 { u64::MAX } else { export.max_bytes };
    if export.min_bytes > most {
        bail!("--min-bytes {} is above --max-bytes {most}: no call would fit", export.min_bytes);
    }
    let protocol = match export.protocol {
        Fifo::Ll => Protocol::Ll,
        Fifo::Ll128 => Protocol::Ll128,
        Fifo::Simple => Protocol::Simple,
    };
    let text = match export.form.plan {
        true => text::to_text(&program),
        false => hawser_msccl::to_xml(&program, &Window { protocol, bytes: (export.min_bytes, most) })?,
    };
    match &export.out {
        Some(path) => files::write(path, &text)?,
        None => print(&text)?,
    }
    match export.json {
        true => output::print_json(&json_verdicts(&program, None, export.out.as_deref())),
        false => Ok(()),
    }
}

/// Reads a file and writes it in another form.
fn convert(import: &Import) -> Result<bool> {
    let (program, said) = load_file(&import.file)?;
    let window = said.as_ref().map_or(Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) }, |said| {
        Window { protocol: said.imported.protocol, bytes: said.imported.bytes }
    });
    let text = match import.out.extension().and_then(|e| e.to_str()) {
        Some("plan") => text::to_text(&program),
        Some("xml") => hawser_msccl::to_xml(&program, &window)?,
        _ => bail!("{}: the name of the new file ends in .xml or .plan", import.out.display()),
    };
    let (report, ok) = of_a_file(&program);
    if ok {
        files::write(&import.out, &text)?;
    }
    if import.json {
        let written = ok.then_some(import.out.as_path());
        return output::print_json(&json_verdicts(&program, said.as_ref(), written)).map(|()| ok);
    }
    if ok {
        print(&format!("# written: {}\n", import.out.display()))?;
    }
    print(&report)?;
    print(&said.as_ref().map_or_else(String::new, changes))?;
    Ok(ok)
}

/// The attributes of an MSCCL file, and what follows from them.
fn attributes(import: &hawser_msccl::Import) -> String {
    let (least, most) = import.imported.bytes;
    let size = |bytes: u64| if bytes == u64::MAX { "any size".to_owned() } else { format!("{bytes} bytes") };
    if import.dialect == Dialect::Mscclpp {
        return format!(
            "# MSCCL++       {}, for {least} bytes to {}\n",
            import.imported.protocol.name(),
            size(most)
        );
    }
    let safe =
        import.safe_bytes_of_msccl().map_or("every size".to_owned(), |bytes| format!("up to {bytes} bytes"));
    format!(
        "# MSCCL         {} dialect, {}, for {least} bytes to {}; in MSCCL's own FIFOs it cannot hang for \
         {safe}\n",
        import.dialect.name(),
        import.imported.protocol.name(),
        size(most)
    )
}

/// The changes that the import made, a line each.
fn changes(import: &hawser_msccl::Import) -> String {
    import.changes.iter().map(|change| format!("# changed       line {change}\n")).collect()
}

/// A built-in program, and when it runs.
struct Entry {
    name: String,
    most: u32,
    measured: Measured,
}

fn entries() -> Vec<Entry> {
    let of = |collective: Collective| {
        algo::algorithms(collective).iter().map(move |&algorithm| Entry {
            name: algo::name(collective, algorithm),
            most: algo::max_ranks(collective, algorithm),
            measured: algo::measured(algorithm),
        })
    };
    Collective::ALL.into_iter().flat_map(of).collect()
}

fn list() -> String {
    let columns = [("program", Align::Left), ("most ranks", Align::Right), ("measured", Align::Left)];
    let mut table = Table::new(columns);
    for Entry { name, most, measured } in entries() {
        let note = match measured {
            Measured::Everywhere => "everywhere",
            Measured::BetweenHosts => {
                "between hosts of one rank; runs there, where ranks have own NICs, or if a rule names it"
            }
            Measured::OwnNics => "not yet; runs where every rank has a NIC of its own, or a rule names it",
            Measured::Nowhere => "not yet; runs only if NCCL_ALGO or a rule names it",
        };
        table.row([name, most.to_string(), note.to_owned()]);
    }
    table.lines().join("\n") + "\n"
}

fn json_list() -> Value {
    let entry = |Entry { name, most, measured }: Entry| {
        let measured = match measured {
            Measured::Everywhere => "everywhere",
            Measured::BetweenHosts => "between_hosts",
            Measured::OwnNics => "nowhere_but_runs_with_own_nics",
            Measured::Nowhere => "nowhere",
        };
        json!({ "program": name, "most_ranks": most, "measured": measured })
    };
    Value::Array(entries().into_iter().map(entry).collect())
}

/// The verdicts on both uses of the buffers as a record, and the file into which the program was written.
fn json_verdicts(program: &Program, import: Option<&hawser_msccl::Import>, written: Option<&Path>) -> Value {
    let shape = &program.shape;
    let verdict = |in_place| match verify::verify(program, hawser_msccl::MOST_SLOTS, in_place) {
        Ok(verdict) => json!({
            "in_place": in_place, "right": true, "steps": verdict.steps, "fifo_slots": verdict.min_depth,
            "bitwise_equal": verdict.bitwise_equal, "deterministic": verdict.deterministic
        }),
        Err(fault) => json!({ "in_place": in_place, "right": false, "fault": fault.to_string() }),
    };
    let uses: &[bool] = if shape.collective == Collective::SendRecv { &[false] } else { &[false, true] };
    json!({
        "name": shape.name, "collective": shape.collective.name(), "ranks": shape.ranks, "root": shape.root,
        "verdicts": uses.iter().map(|in_place| verdict(*in_place)).collect::<Vec<_>>(),
        "changes": import.map_or(Vec::new(), |import| import.imported.changes.clone()),
        "written": written.map(|path| path.display().to_string())
    })
}

/// The program, and what its MSCCL file says if it is from one.
fn load(which: &Which) -> Result<(Program, Option<hawser_msccl::Import>)> {
    if let Some((collective, algorithm)) = algo::find(&which.program) {
        if which.root >= which.ranks {
            bail!("--root {} is not one of {} ranks: 0 to {}", which.root, which.ranks, which.ranks - 1);
        }
        let key = ProgramKey::new(collective, algorithm, which.ranks, which.root);
        let key = ProgramKey { per_host: which.per_host, ..key };
        return Ok((algo::program(&key)?, None));
    }
    let path = Path::new(&which.program);
    if !path.exists() {
        bail!("{} is neither a file nor a built-in program; `hawser plan list` names those", which.program);
    }
    load_file(path)
}

/// True if a text is XML, or has a program in XML behind other lines; what is not is read as a `.plan`.
pub fn is_xml(source: &str) -> bool {
    let begins = source.trim_start_matches('\u{feff}').trim_start().starts_with('<');
    !imported::is_plan(source) && (begins || source.contains("<algo"))
}

fn load_file(path: &Path) -> Result<(Program, Option<hawser_msccl::Import>)> {
    let source = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = match () {
        () if imported::is_json(&source) => Some(hawser_msccl::read_mscclpp(&source)),
        () if is_xml(&source) => Some(hawser_msccl::read(&source)),
        () => None,
    };
    if let Some(import) = read {
        let import = import.map_err(|error| anyhow!("{}:{error}", path.display()))?;
        return Ok((import.imported.program.clone(), Some(import)));
    }
    let program = text::from_text(&source).map_err(|error| anyhow!("{}:{error}", path.display()))?;
    Ok((program, None))
}

/// As [`verdicts`], and whether the library can launch what somebody else wrote.
fn of_a_file(program: &Program) -> (String, bool) {
    let (report, ok) = verdicts(program);
    match imported::fits_devices(program) {
        Ok(()) => (report, ok),
        Err(error) => (format!("{report}# launches      WRONG: {error}\n"), false),
    }
}

/// The verifier's sentences about both uses of the buffers, and true if the program is right.
fn verdicts(program: &Program) -> (String, bool) {
    let shape = &program.shape;
    let depth = hawser_msccl::MOST_SLOTS;
    let chunks = |buf| shape.chunks(buf);
    let mut report = format!(
        "# {}: {} on {} ranks, root {}, chunks: {} input, {} output, {} scratch\n",
        shape.name,
        shape.collective.name(),
        shape.ranks,
        shape.root,
        chunks(Buf::Input),
        chunks(Buf::Output),
        chunks(Buf::Scratch)
    );
    let mut ok = true;
    let is_custom = shape.collective == Collective::SendRecv;
    if is_custom {
        report += "# custom        nothing says what it has to compute: bounds, races, deadlocks and reads \
                   of undefined data are what is proved; hawserCustom runs it, with two buffers\n";
    }
    let uses = [(false, "out of place"), (true, "in place")];
    for (in_place, name) in uses.into_iter().take(if is_custom { 1 } else { 2 }) {
        let line = match verify::verify(program, depth, in_place) {
            Ok(verdict) => format!(
                "right: {} steps, needs {} FIFO slots, {}, {}",
                verdict.steps,
                verdict.min_depth,
                if verdict.bitwise_equal {
                    "equal to the last bit on all ranks"
                } else {
                    "ranks may differ in rounding"
                },
                match (verdict.deterministic, verdict.keeps_places) {
                    (false, _) => "order may differ from run to run",
                    (true, true) => "deterministic",
                    (true, false) =>
                        "deterministic; chunks come to other places, so calls need whole ones of 16 bytes",
                }
            ),
            Err(fault) => {
                ok = false;
                format!("WRONG: {fault}")
            }
        };
        report += &format!("# {name:13} {line}\n");
    }
    (report, ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(program: &str, ranks: u32, root: u32) -> Which {
        Which { program: program.into(), ranks, root, per_host: 0 }
    }

    #[test]
    fn every_listed_program_loads_and_is_right() {
        let names: Vec<String> =
            list().lines().skip(1).map(|l| l.split_whitespace().next().unwrap_or("").to_owned()).collect();
        assert!(names.contains(&"ring_all_reduce".to_owned()) && names.len() > 10, "{names:?}");
        for name in names {
            let (program, _) = load(&which(&name, 3, 0)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let (report, ok) = verdicts(&program);
            assert!(ok, "{report}");
        }
    }

    #[test]
    fn a_broken_program_is_called_wrong() {
        let (mut program, _) = load(&which("ring_all_reduce", 3, 0)).expect("a program");
        program.ranks[1].channels[0].steps.pop();
        let (report, ok) = verdicts(&program);
        assert!(!ok && report.contains("WRONG"), "{report}");
    }

    /// Right, and yet a file with it would be refused when a job starts.
    #[test]
    fn a_program_that_no_launch_can_hold_is_called_wrong() {
        let (mut program, _) = load(&which("ring_all_reduce", 3, 0)).expect("a program");
        assert!(of_a_file(&program).1);
        for rank in &mut program.ranks {
            rank.channels.resize_with(66, Default::default);
        }
        let (report, ok) = of_a_file(&program);
        assert!(verdicts(&program).1 && !ok && report.contains("launches      WRONG: rank 0"), "{report}");
    }

    #[test]
    fn unknown_names_and_roots_are_refused() {
        let error = load(&which("ring_all_redoce", 4, 0)).expect_err("unknown").to_string();
        assert!(error.contains("plan list"), "{error}");
        assert!(load(&which("ring_broadcast", 4, 4)).is_err());
    }

    #[test]
    fn exports_load_again() {
        let folder = std::env::temp_dir().join(format!("hawser-export-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for (plan, file) in [(false, "a.xml"), (true, "a.plan")] {
            let out = folder.join(file);
            let export = Export {
                which: which("tree_all_reduce", 5, 0),
                form: Form { msccl: !plan, plan },
                out: Some(out.clone()),
                protocol: Fifo::Ll,
                min_bytes: 0,
                max_bytes: 4096,
                json: false,
            };
            write(&export).expect("an export");
            let (program, import) = load(&which(out.to_str().expect("a plain path"), 0, 0)).expect("a file");
            assert!(verdicts(&program).1 && import.is_none() == plan);
            let said = import.map(|import| attributes(&import)).unwrap_or_default();
            assert_eq!(said.contains("LL, for 0 bytes to 4096 bytes"), !plan, "{said}");
        }
        std::fs::write(folder.join("b.xml"), "<algo name='x'>").expect("a file");
        let error = load(&which(folder.join("b.xml").to_str().expect("a path"), 4, 0)).expect_err("broken");
        assert!(error.to_string().contains("b.xml:1:1: syntax"), "{error}");
        std::fs::remove_dir_all(folder).expect("a folder");
    }

    #[test]
    fn what_an_import_changed_is_told() {
        let text = include_str!("../../core/plan/tests/msccl/valid.surroundings.xml");
        let path = std::env::temp_dir().join(format!("hawser-changes-{}.xml", std::process::id()));
        std::fs::write(&path, text).expect("a file");
        let (program, import) = load_file(&path).expect("a program behind a log");
        std::fs::remove_file(path).expect("the file");
        let import = import.expect("MSCCL's XML");
        let told = changes(&import);
        assert!(told.starts_with("# changed       line 1:1: what stands before <algo>"), "{told}");
        assert_eq!(told.lines().count(), 4, "{told}");
        let json = json_verdicts(&program, Some(&import), None);
        assert_eq!(json["changes"].as_array().map(Vec::len), Some(4), "{json}");
        assert!(verdicts(&program).1);
    }

    #[test]
    fn plans_of_mscclpp_are_imported() {
        let folder = std::env::temp_dir().join(format!("hawser-import-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let json = folder.join("swap.json");
        let gpu = |id: u32| {
            format!(
                r#"{{"id": {id}, "input_chunks": 1, "output_chunks": 2, "scratch_chunks": 0,
                "channels": [{{"channel_type": "memory", "connected_to": [{0}]}}],
                "remote_buffers": [{{"rank": {0}, "type": "o", "access_channel_types": ["memory"]}}],
                "threadblocks": [{{"id": 0, "channels": [{{"channel_type": "memory", "channel_ids": [0]}}],
                "remote_buffer_refs": [{{"access_channel_type": "memory", "remote_buffer_ids": [0]}}],
                "ops": [{{"name": "put", "src_buff": [{{"type": "o", "index": {id}, "size": 1}}],
                "dst_buff": [{{"buffer_id": 0, "index": {id}, "size": 1}}], "channel_type": "memory"}},
                {{"name": "signal", "channel_ids": [0], "channel_type": "memory"}},
                {{"name": "wait", "channel_ids": [0], "channel_type": "memory"}}]}}]}}"#,
                1 - id
            )
        };
        let text = format!(
            r#"{{"name": "swap", "collective": "allgather", "protocol": "LL", "inplace": true,
            "max_message_size": 4096, "gpus": [{}, {}]}}"#,
            gpu(0),
            gpu(1)
        );
        std::fs::write(&json, &text).expect("a file");
        let said = load_file(&json).expect("a plan").1.map(|import| attributes(&import)).unwrap_or_default();
        assert!(said.contains("MSCCL++       LL, for 0 bytes to 4096 bytes"), "{said}");
        let import = |out: &str| convert(&Import { file: json.clone(), out: folder.join(out), json: false });
        assert!(
            import("swap.xml").expect("xml")
                && import("swap.plan").expect("plan")
                && import("swap.txt").is_err()
        );
        let (program, said) = load_file(&folder.join("swap.xml")).expect("xml");
        assert_eq!(
            said.map(|said| (said.imported.protocol, said.imported.bytes)),
            Some((Protocol::Ll, (0, 4096)))
        );
        assert!(verdicts(&program).1 && verdicts(&load_file(&folder.join("swap.plan")).expect("plan").0).1);
        std::fs::write(&json, text.replace("\"put\"", "\"gstore\"")).expect("a file");
        let error = load_file(&json).expect_err("refused").to_string();
        assert!(
            error.contains("swap.json:") && error.contains("operation: gpu 0 threadblock 0 op 0 (gstore)"),
            "{error}"
        );
        std::fs::remove_dir_all(folder).expect("a folder");
    }
}
