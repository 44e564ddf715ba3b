//! The table, in nccl-tests' form, and the same as JSON.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::collective::Test;
use super::library::{About, Decided};
use super::options::Options;
use crate::{files, output};

/// One direction (out of place or in place) of one row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Time of one operation in microseconds.
    #[serde(rename = "time")]
    pub time_us: f64,
    /// Bytes per time in GB/s.
    #[serde(rename = "alg_bw")]
    pub algorithm: f64,
    /// The bandwidth that links must carry, in GB/s.
    #[serde(rename = "bus_bw")]
    pub bus: f64,
    /// Wrong elements; None if nobody looked.
    #[serde(rename = "nwrong")]
    pub wrong: Option<u64>,
    /// The number of operations that the time is the mean of.
    pub operations: u64,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The communicator, if several take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicator: Option<String>,
    /// Name of the operation.
    pub collective: &'static str,
    /// Bytes of the larger buffer.
    pub size: u64,
    /// NCCL's count argument.
    pub count: u64,
    /// Element type.
    #[serde(rename = "type")]
    pub dtype: &'static str,
    /// Reduction or `none`.
    #[serde(rename = "redop")]
    pub op: &'static str,
    /// Root or -1.
    pub root: i64,
    /// Different buffers.
    pub out_of_place: Outcome,
    /// The same buffer; None if that was left out.
    pub in_place: Option<Outcome>,
    /// The candidates and what decided between them, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// The decision itself, if that was asked for and there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decided>,
    /// The table of stages that its time went to, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<String>,
}

/// Sums over all rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Wrong elements and bytes changed outside the receive buffers.
    pub errors: u64,
    bus: f64,
    samples: u32,
}

impl Totals {
    /// Adds a row's outcomes, and bytes that were changed outside the receive buffers.
    pub fn add(&mut self, row: &Row, outside: u64) {
        for outcome in [Some(row.out_of_place), row.in_place].into_iter().flatten() {
            self.errors += outcome.wrong.unwrap_or(0);
            self.bus += outcome.bus;
            self.samples += 1;
        }
        self.errors += outside;
    }

    /// Mean of all bus bandwidths.
    pub fn average(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.bus / f64::from(self.samples) }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    program: String,
    start_time_unix: u64,
    end_time_unix: u64,
    args: Vec<String>,
    env: Vec<String>,
    config: Config<'a>,
    results: &'a [Row],
    out_of_bounds: Verdict,
    average_bus_bandwidth: Bandwidth,
}

#[derive(Serialize)]
struct Config<'a> {
    library: &'a About,
    init_ms: f64,
    ranks: u32,
    nthreads: u32,
    ngpus: u32,
    minimum_bytes: u64,
    maximum_bytes: u64,
    step_factor: u64,
    step_bytes: u64,
    warmup_iters: u32,
    iterations: u32,
    aggregated_iterations: u32,
    validation: u32,
    graph: u32,
    point_ms: Option<u64>,
    devices: &'a [String],
}

#[derive(Serialize)]
struct Verdict {
    count: u64,
    okay: bool,
}

#[derive(Serialize)]
struct Bandwidth {
    bandwidth: f64,
}

/// Shape of the job, for the header.
#[derive(Debug, Clone)]
pub struct Job {
    /// The job that is measured.
    pub library: About,
    /// All ranks.
    pub ranks: u32,
    /// Threads per process.
    pub threads: u32,
    /// Communicators per thread.
    pub gpus: u32,
    /// One line per rank.
    pub devices: Vec<String>,
}

impl Job {
    /// True if two ranks use one device of one host.
    pub fn has_shared_devices(&self) -> bool {
        let place = |line: &str| line.split_once(" on ").map(|(_, place)| place.to_owned());
        let mut places: Vec<_> = self.devices.iter().map(|line| place(line)).collect();
        places.sort_unstable();
        places.windows(2).any(|pair| pair[0] == pair[1])
    }
}

/// Prints, if this is the process and thread that does.
pub struct Reporter<'a> {
    options: &'a Options,
    job: Job,
    progress: ProgressBar,
    json: Option<File>,
    rows: Vec<Row>,
    totals: Totals,
    init_ms: f64,
    start: u64,
    /// The reason why some of the table was lost.
    lost: OnceCell<anyhow::Error>,
}

impl<'a> Reporter<'a> {
    /// A reporter that expects `rows` rows.
    ///
    /// # Errors
    /// The JSON file cannot be created.
    pub fn new(options: &'a Options, job: Job, rows: u64) -> Result<Self> {
        let json = options.json_file.as_ref().map(|path| {
            files::check_place(path)?;
            File::create(path).with_context(|| format!("cannot create {} for -J", path.display()))
        });
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let progress = ProgressBar::with_draw_target(Some(rows), target).with_style(style);
        Ok(Self {
            options,
            job,
            progress,
            json: json.transpose()?,
            rows: Vec::new(),
            totals: Totals::default(),
            init_ms: 0.0,
            start: now(),
            lost: OnceCell::new(),
        })
    }

    /// Notes the time that the slowest thread took to make its communicators.
    pub fn made(&mut self, seconds: f64) {
        self.init_ms = seconds * 1e3;
        self.note(&format!("communicators made in {:.1} ms", self.init_ms));
    }

    /// Starts the table of one operation.
    pub fn begin(&mut self, test: Test) {
        self.print(&header(test, self.options, &self.job));
    }

    /// Says what is measured now.
    pub fn working(&self, what: impl FnOnce() -> String) {
        if !self.progress.is_hidden() {
            self.progress.set_message(what());
        }
    }

    /// A remark between rows.
    pub fn note(&self, text: &str) {
        self.print(&text.lines().fold(String::new(), |all, line| all + "# " + line + "\n"));
    }

    /// A finished row.
    pub fn row(&mut self, row: Row, outside: u64) {
        self.totals.add(&row, outside);
        let mut text = line(&row) + "\n";
        for choice in row.choice.iter().chain(&row.stages).flat_map(|c| c.lines()) {
            let _ = writeln!(text, "#   {choice}");
        }
        if outside > 0 {
            let _ = writeln!(text, "#   {outside} bytes outside the receive buffers were changed");
        }
        self.print(&text);
        self.rows.push(row);
        self.progress.inc(1);
    }

    /// Prints the last lines and writes the JSON file. Returns whether all was right.
    ///
    /// # Errors
    /// The JSON file, or a line of the table, cannot be written.
    pub fn finish(mut self) -> Result<bool> {
        self.progress.finish_and_clear();
        self.print(&footer(&self.totals));
        if let Some(mut file) = self.json.take() {
            serde_json::to_writer_pretty(&mut file, &self.document())
                .context("cannot write the JSON file")?;
            file.write_all(b"\n").context("cannot write the JSON file")?;
        }
        if self.options.json {
            output::print_json(&self.document())?;
        }
        match self.lost.take() {
            Some(error) => Err(error),
            None => Ok(self.totals.errors == 0),
        }
    }

    /// Measuring goes on without the output: [`Reporter::finish`] tells of the first failure.
    fn print(&self, text: &str) {
        if self.options.json {
            return;
        }
        if let Err(error) = self.progress.suspend(|| output::print(text)) {
            let _ = self.lost.set(error);
        }
    }

    fn document(&self) -> Document<'_> {
        let o = self.options;
        let settings = |(name, value): (String, String)| {
            let wanted = ["NCCL_", "HAWSER_", "CUDA_"].iter().any(|p| name.starts_with(p));
            wanted.then(|| format!("{name}={value}"))
        };
        let vars =
            std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
        Document {
            version: 1,
            program: format!("hawser {}", env!("CARGO_PKG_VERSION")),
            start_time_unix: self.start,
            end_time_unix: now(),
            args: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            env: vars.filter_map(settings).collect(),
            config: Config {
                library: &self.job.library,
                init_ms: self.init_ms,
                ranks: self.job.ranks,
                nthreads: self.job.threads,
                ngpus: self.job.gpus,
                minimum_bytes: o.min_bytes,
                maximum_bytes: o.max_bytes,
                step_factor: o.step_factor,
                step_bytes: o.step_bytes,
                warmup_iters: o.warmup,
                iterations: o.iterations,
                aggregated_iterations: o.aggregated,
                validation: o.check,
                graph: o.graph,
                point_ms: o.point_ms,
                devices: &self.job.devices,
            },
            results: &self.rows,
            out_of_bounds: Verdict { count: self.totals.errors, okay: self.totals.errors == 0 },
            average_bus_bandwidth: Bandwidth { bandwidth: self.totals.average() },
        }
    }
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn header(test: Test, o: &Options, job: &Job) -> String {
    let (step, kind) = if o.step_factor > 1 { (o.step_factor, "factor") } else { (o.step_bytes, "bytes") };
    let mut text = format!("# hawser {} perf {}\n", env!("CARGO_PKG_VERSION"), test.name());
    let _ = writeln!(
        text,
        "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {} iters: {} agg \
         iters: {} validation: {} graph: {} unalign: {}",
        job.threads,
        job.gpus,
        o.min_bytes,
        o.max_bytes,
        o.warmup,
        o.iterations,
        o.aggregated,
        o.check,
        o.graph,
        o.unalign
    );
    let path = job.library.path.as_deref().unwrap_or("linked");
    let _ = writeln!(text, "# library: {path}, version {}", job.library.version);
    text.push_str("#\n# Using devices\n");
    for device in &job.devices {
        let _ = writeln!(text, "#  {device}");
    }
    text.push_str("#\n");
    let _ = writeln!(text, "# {:53}{:>23}{:>35}", "", "out-of-place", "in-place");
    let columns = |first: [&str; 5], half: [&str; 4]| {
        let [size, count, dtype, op, root] = first;
        let half = format!("  {:>7}  {:>6}  {:>6}  {:>6}", half[0], half[1], half[2], half[3]);
        format!("# {size:>10}  {count:>12}  {dtype:>8}  {op:>6}  {root:>6}{half}{half}\n")
    };
    text += &columns(["size", "count", "type", "redop", "root"], ["time", "algbw", "busbw", "#wrong"]);
    text += &columns(["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""]);
    text
}

fn line(row: &Row) -> String {
    let half = |o: &Outcome| {
        let wrong = o.wrong.map_or("N/A".to_owned(), |w| w.to_string());
        format!("  {}  {}  {}  {wrong:>6}", fitted(o.time_us, 7), fitted(o.algorithm, 6), fitted(o.bus, 6))
    };
    let none = format!("  {:>7}  {:>6}  {:>6}  {:>6}", "-", "-", "-", "-");
    let communicator = row.communicator.as_ref().map_or(String::new(), |name| format!("  {name}"));
    format!(
        "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{communicator}",
        row.size,
        row.count,
        row.dtype,
        row.op,
        row.root,
        half(&row.out_of_place),
        row.in_place.as_ref().map_or(none, half)
    )
}

fn footer(totals: &Totals) -> String {
    let verdict = if totals.errors == 0 { "OK" } else { "FAILED" };
    let average = significant(totals.average());
    format!(
        "# {:<20} : {} {verdict}\n# {:<20} : {average}\n#\n",
        "Out of bounds values", totals.errors, "Avg bus bandwidth"
    )
}

/// A number in `width` columns with as many of two decimals as fit.
fn fitted(value: f64, width: usize) -> String {
    let texts = [format!("{value:width$.2}"), format!("{value:width$.1}"), format!("{value:width$.0}")];
    let fits = texts.into_iter().find(|text| text.len() <= width);
    fits.unwrap_or_else(|| format!("{:>width$}", format!("{value:.1e}")))
}

/// Six significant digits without trailing zeros.
fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&magnitude) {
        return format!("{value:.5e}");
    }
    let text = format!("{value:.*}", (5 - magnitude).max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Row {
        let out_of_place =
            Outcome { time_us: 12.345, algorithm: 2.72, bus: 4.0, wrong: Some(0), operations: 20 };
        Row {
            communicator: None,
            collective: "all_reduce",
            size: 1048576,
            count: 262144,
            dtype: "float",
            op: "sum",
            root: -1,
            out_of_place,
            in_place: Some(Outcome {
                time_us: 123456.7,
                algorithm: 1234.567,
                bus: 12345.6,
                wrong: None,
                operations: 20,
            }),
            choice: None,
            decision: None,
            stages: None,
        }
    }

    #[test]
    fn rows_look_like_those_of_nccl_tests() {
        let want = "     1048576        262144     float     sum      -1    12.35    2.72    4.00       0   \
            123457  1234.6   12346     N/A";
        assert_eq!(line(&sample()), want);
        let half = line(&Row { in_place: None, ..sample() });
        assert_eq!((half.len(), half.split_whitespace().count()), (want.len(), 13));
    }

    #[test]
    fn header_columns_stand_over_the_numbers() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let o = <Line as clap::Parser>::parse_from(["perf", "all_reduce", "-b", "8", "-e", "64", "-f", "2"])
            .options;
        let library = About { path: Some("libnccl.so.2".into()), version: "2.28.9".into() };
        let job = Job { library, ranks: 2, threads: 2, gpus: 1, devices: vec!["Rank  0 on host".into()] };
        let text = header(Test::ALL[0], &o, &job);
        let want = format!(
            "\
# hawser {} perf all_reduce
# nThread 2 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 \
validation: 1 graph: 0 unalign: 0
# library: libnccl.so.2, version 2.28.9
#
# Using devices
#  Rank  0 on host
#
#                                                                 out-of-place                      \
\x20    in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   \
algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  \
(GB/s)  (GB/s)        
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text, want);
        let columns = text.lines().find(|l| l.contains("redop")).map(str::len);
        assert_eq!(columns, Some(line(&sample()).len()));
    }

    #[test]
    fn footer_sums_up() {
        let mut totals = Totals::default();
        totals.add(&sample(), 0);
        assert_eq!(footer(&totals), "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6174.8\n#\n");
        let mut bad = sample();
        bad.out_of_place.wrong = Some(3);
        totals.add(&bad, 4);
        assert!(footer(&totals).starts_with("# Out of bounds values : 7 FAILED\n"));
    }

    #[test]
    fn numbers_fit_their_columns() {
        for (value, width, want) in
            [(0.004, 6, "  0.00"), (999.994, 6, "999.99"), (9999.96, 6, "  10000"), (1e9, 7, "  1.0e9")]
        {
            let text = fitted(value, width);
            assert!(text.len() == width || want.len() > width, "{text:?}");
            assert_eq!(text.trim(), want.trim());
        }
        for (value, want) in
            [(0.0, "0"), (6174.8, "6174.8"), (0.1234567, "0.123457"), (1e6, "1000000"), (123456.7, "123457")]
        {
            assert_eq!(significant(value), want);
        }
    }
}
