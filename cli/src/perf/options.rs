//! The command line of `hawser perf`: nccl-tests' options and their meaning.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use hawser_plan::{DataType, ReduceOp};

use super::collective::Test;
use super::rank;

/// Measures a collective and checks its results.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  hawser perf all_reduce -b 8 -e 1G -f 2 -g 8
  HAWSER_DEVICE=host hawser perf all -t 4 -b 1K -e 1M -f 32
  torchrun --nproc-per-node 8 --no-python hawser perf all_gather -b 1M -e 1G -f 4
  hawser perf all_reduce -b 1M -e 1M -J results.json
  hawser perf all_reduce -b 1K -e 1G -f 4 --simulate '64 hosts of hgx-h200, rail-optimised, 2:1'

Ranks = processes * threads * gpus. Without -t, -g and -p: all GPUs in one thread, or 4 threads on
the host device. Runs under torchrun, mpirun and srun as it is. Unlike in nccl-tests, -p is a number
of processes; threads always initialize in parallel.")]
pub struct Options {
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv,
    /// hypercube, several of them with commas between, or all
    #[arg(value_parser = parse_tests)]
    pub collective: Tests,
    /// Threads per process
    #[arg(short = 't', long = "nthreads", value_parser = crate::ranks::ranks(1))]
    pub threads: Option<u32>,
    /// GPUs (communicators) per thread
    #[arg(short = 'g', long = "ngpus", value_parser = crate::ranks::ranks(1))]
    pub gpus: Option<u32>,
    /// Processes to start on this host
    #[arg(short = 'p', long, value_parser = crate::ranks::ranks(1))]
    pub processes: Option<u32>,
    /// First size, e.g. 8, 64K, 1.5M, 1G (powers of 1024)
    #[arg(short = 'b', long = "minbytes", default_value = "32M", value_parser = parse_size)]
    pub min_bytes: u64,
    /// Last size
    #[arg(short = 'e', long = "maxbytes", default_value = "32M", value_parser = parse_size)]
    pub max_bytes: u64,
    /// Added from size to size (if there is no factor)
    #[arg(short = 'i', long = "stepbytes", default_value = "1M", value_parser = parse_size)]
    pub step_bytes: u64,
    /// Factor from size to size
    #[arg(short = 'f', long = "stepfactor", default_value_t = 1)]
    pub step_factor: u64,
    /// Timed iterations
    #[arg(short = 'n', long = "iters", default_value_t = 20)]
    pub iterations: u32,
    /// Operations per iteration, in one group, each with buffers of its own as far as 256 MiB go
    #[arg(short = 'm', long = "agg_iters", default_value_t = 1)]
    pub aggregated: u32,
    /// Iterations before that, at every power-of-two size
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 1)]
    pub warmup: u32,
    /// How often to run all sizes
    #[arg(short = 'N', long = "run_cycles", default_value_t = 1)]
    pub cycles: u32,
    /// Checked iterations; 0 = results are not checked
    #[arg(short = 'c', long = "check", default_value_t = 1)]
    pub check: u32,
    /// sum, prod, min, max, avg, mulsum or all
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = parse_ops)]
    pub ops: Ops,
    /// int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2 or all
    #[arg(short = 'd', long = "datatype", default_value = "float", value_parser = parse_types)]
    pub types: Types,
    /// Root rank or all
    #[arg(
        short = 'r', long = "root", default_value = "0",
        value_parser = parse_root, allow_hyphen_values = true
    )]
    pub root: Root,
    /// 1 = wait after each iteration and meet, 2 = only wait
    #[arg(
        short = 'z', long = "blocking", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=2)
    )]
    pub blocking: u32,
    /// Deadline in seconds for every wait of this program
    #[arg(short = 'T', long = "timeout", default_value_t = 600)]
    pub timeout: u64,
    /// Launches of a CUDA graph that holds the timed iterations (-z then waits after each launch); 0 = no
    /// graph
    #[arg(short = 'G', long = "cudagraph", default_value_t = 0)]
    pub graph: u32,
    /// File for the results as JSON, besides the table
    #[arg(short = 'J', long = "output_file", visible_alias = "out", value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Print the results as JSON, and no table
    #[arg(long)]
    pub json: bool,
    /// Reported time: 0 = rank 0, 1 = mean, 2 = least, 3 = most of all threads
    #[arg(
        short = 'a', long = "average", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(0..=3)
    )]
    pub average: u32,
    /// Elements by which buffers are misaligned
    #[arg(short = 'u', long = "unalign", default_value_t = 0)]
    pub unalign: u64,
    /// 1 = register buffers (ncclCommRegister)
    #[arg(
        short = 'R', long = "local_register", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1)
    )]
    pub register: u32,
    /// Let the ranks count as ranks of this many hosts, in equal parts: what passes between them goes over a
    /// net plugin
    #[arg(long, value_parser = crate::ranks::ranks(1))]
    pub hosts: Option<u32>,
    /// Make a communicator of each of these names, which take turns at every size: rules may tell them apart
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub names: Vec<String>,
    /// Measure this libnccl.so.2 (a path, or a name that the loader searches) instead of the linked library
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// Milliseconds that one measurement should take at most: fewer iterations, and launches of a graph,
    /// where one operation takes long
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub point_ms: Option<u64>,
    /// Leave out the measurements in place
    #[arg(long)]
    pub skip_in_place: bool,
    /// Show for every size where the time between hosts goes, by stages, on process 0 (not with --library)
    #[arg(long = "where", conflicts_with = "library")]
    pub stages: bool,
    /// Show for every size which algorithm was chosen, and why
    #[arg(long)]
    pub explain: bool,
    /// Measure nothing, and predict the times on this cluster: a file (docs/simulate.md), or a sentence such
    /// as "64 hosts of hgx-h200, rail-optimised, 2:1"
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["threads", "gpus", "processes", "hosts",
          "names", "library", "stages", "graph", "aggregated", "point_ms", "unalign", "cycles", "register"])]
    pub simulate: Option<String>,
    /// Seed of what is drawn in a simulation
    #[arg(long, default_value_t = 0, requires = "simulate")]
    pub seed: u64,
}

/// The number of times that an operation is run for one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetitions {
    /// Timed iterations, at least 1.
    pub iterations: u32,
    /// Launches of a graph that holds them; 0 = no graph.
    pub launches: u32,
}

/// Parsed list of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tests(pub Vec<Test>);
/// Parsed list of reductions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ops(pub Vec<ReduceOp>);
/// Parsed list of element types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Types(pub Vec<DataType>);

/// One root, or every rank in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Root {
    All,
    One(u32),
}

impl Options {
    /// Refuses options that do not fit together.
    ///
    /// # Errors
    /// Names the options.
    pub fn validate(&self) -> Result<()> {
        check_sizes(self.min_bytes, self.max_bytes)?;
        if self.step_factor <= 1 && self.step_bytes == 0 && self.min_bytes != self.max_bytes {
            bail!("-i 0 never reaches -e; give -i a size or -f a factor of at least 2");
        }
        if self.step_factor > 1 && self.min_bytes == 0 && self.max_bytes > 0 {
            bail!("-b 0 never grows by a factor; start at a larger size or use -i");
        }
        if self.iterations == 0 || self.aggregated == 0 || self.cycles == 0 || self.timeout == 0 {
            bail!("-n, -m, -N and -T must be at least 1");
        }
        if self.aggregated > 1 && self.collective.0.contains(&Test::Hypercube) {
            bail!("hypercube's steps depend on each other, so they cannot share a group: use -m 1");
        }
        if self.library.is_some() && self.explain {
            bail!("--explain cannot see into a --library; leave one of them out");
        }
        if self.library.is_some() && self.hosts.is_some() {
            bail!(
                "--hosts is for the linked library; with --library start processes with NCCL_HOSTID of \
                 their own"
            );
        }
        if self.library.is_some() && !self.names.is_empty() {
            bail!("--names is for the linked library, which has rules; leave --names or --library out");
        }
        Ok(())
    }

    /// Bytes of a buffer.
    pub fn buffer_bytes(&self) -> u64 {
        let of_group = rank::stretch(self.max_bytes).saturating_mul(self.aggregated.into());
        self.max_bytes.max(of_group.min(256 << 20))
    }

    /// All sizes, in order.
    pub fn sizes(&self) -> Vec<u64> {
        let next = |size: &u64| match self.step_factor {
            0 | 1 => size.checked_add(self.step_bytes.max(1)),
            factor => size.checked_mul(factor),
        };
        std::iter::successors(Some(self.min_bytes), next).take_while(|s| *s <= self.max_bytes).collect()
    }

    /// Sizes at which everything is warmed up.
    pub fn warmup_sizes(&self) -> Vec<u64> {
        let doubled = |size: &u64| if *size == 0 { Some(1) } else { size.checked_mul(2) };
        std::iter::successors(Some(self.min_bytes), doubled).take_while(|s| *s <= self.max_bytes).collect()
    }

    /// Roots of `test` in a job of `ranks` ranks; None where it has no root.
    ///
    /// # Errors
    /// The root is not a rank.
    pub fn roots(&self, test: Test, ranks: u32) -> Result<Vec<Option<u32>>> {
        match self.root {
            _ if !test.rooted() => Ok(vec![None]),
            Root::All => Ok((0..ranks).map(Some).collect()),
            Root::One(root) if root < ranks => Ok(vec![Some(root)]),
            Root::One(root) => bail!("-r {root} is not a rank: the job has {ranks} ranks, 0..{}", ranks - 1),
        }
    }

    /// Reductions of `test`; None where nothing is reduced.
    pub fn ops(&self, test: Test) -> Vec<Option<ReduceOp>> {
        if test.reduces() { self.ops.0.iter().copied().map(Some).collect() } else { vec![None] }
    }

    /// Returns how often to repeat an operation that takes about `seconds`.
    pub fn repetitions(&self, seconds: f64) -> Repetitions {
        let Some(limit) = self.point_ms else {
            return Repetitions { iterations: self.iterations, launches: self.graph };
        };
        // The cast saturates.
        let fit = |seconds: f64, most: u32| ((limit as f64 / 1e3 / seconds) as u32).clamp(most.min(1), most);
        let seconds = seconds * f64::from(self.aggregated);
        let iterations = fit(seconds, self.iterations);
        Repetitions { iterations, launches: fit(seconds * f64::from(iterations), self.graph) }
    }

    /// Deadline of every wait of this program.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Refuses a range of sizes that has none.
///
/// # Errors
/// The first size is above the last.
pub fn check_sizes(first: u64, last: u64) -> Result<()> {
    if first > last {
        bail!("-b {first} is larger than -e {last}: no size is left; swap them, or leave one out");
    }
    Ok(())
}

/// A size in bytes: a number, fractions allowed, and K, M or G for powers of 1024.
///
/// # Errors
/// Not a number, negative, another unit, or too large.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1u64 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let wrong = || format!("{text:?} is not a size; sizes look like 8, 64K, 1.5M or 1G");
    if let Ok(whole) = number.trim().parse::<u64>() {
        return whole
            .checked_mul(unit)
            .filter(|s| *s <= i64::MAX as u64)
            .ok_or_else(|| format!("{text} is too large"));
    }
    let value = number.trim().parse::<f64>().map_err(|_| wrong())? * unit as f64;
    if value >= 0.0 && value < i64::MAX as f64 { Ok(value as u64) } else { Err(wrong()) }
}

/// Operations by their names, with commas between.
///
/// # Errors
/// Lists the known names.
pub fn parse_tests(text: &str) -> Result<Tests, String> {
    if text == "all" {
        return Ok(Tests(Test::ALL.to_vec()));
    }
    let names = Test::ALL.map(Test::name).join(", ");
    let found: Option<Vec<_>> = text.split(',').map(|name| Test::from_name(name.trim())).collect();
    found.map(Tests).ok_or_else(|| format!("known are {names} and all"))
}

fn parse_ops(text: &str) -> Result<Ops, String> {
    if text == "all" {
        return Ok(Ops(ReduceOp::ALL.to_vec()));
    }
    let names = ReduceOp::ALL.map(ReduceOp::name);
    let found = ReduceOp::ALL.into_iter().find(|op| op.name() == text);
    found.map(|op| Ops(vec![op])).ok_or_else(|| format!("known are {} and all", names.join(", ")))
}

/// An element type by the name that nccl-tests uses, or another common one.
///
/// # Errors
/// Lists the known names.
pub fn parse_type(text: &str) -> Result<DataType, String> {
    let name = match text {
        "char" => "int8",
        "int" => "int32",
        "float16" | "fp16" => "half",
        "float32" | "fp32" => "float",
        "float64" | "fp64" => "double",
        "bf16" => "bfloat16",
        "fp8_e4m3" | "fp8e4m3" => "f8e4m3",
        "fp8_e5m2" | "fp8e5m2" => "f8e5m2",
        other => other,
    };
    let names = DataType::ALL.map(DataType::name);
    let found = DataType::ALL.into_iter().find(|d| d.name() == name);
    found.ok_or_else(|| format!("known are {} and all", names.join(", ")))
}

fn parse_types(text: &str) -> Result<Types, String> {
    if text == "all" { Ok(Types(DataType::ALL.to_vec())) } else { parse_type(text).map(|d| Types(vec![d])) }
}

fn parse_root(text: &str) -> Result<Root, String> {
    match text {
        "all" | "-1" => Ok(Root::All),
        number => number.parse().map(Root::One).map_err(|_| "a root is a rank or all".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> Result<Options, clap::Error> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|l| l.options)
    }

    fn parsed(line: &str) -> Options {
        parse(line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    #[test]
    fn sizes_parse_like_those_of_nccl_tests() {
        for (text, bytes) in [
            ("8", 8),
            ("64K", 65536),
            ("64k", 65536),
            ("256M", 256 << 20),
            ("1G", 1 << 30),
            ("1.5M", 3 << 19),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "8T", "1e400", "99999999999G", "nan"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let o = parsed("all_reduce");
        assert_eq!((o.min_bytes, o.max_bytes, o.step_bytes, o.step_factor), (32 << 20, 32 << 20, 1 << 20, 1));
        assert_eq!((o.iterations, o.warmup, o.check, o.aggregated, o.graph), (20, 1, 1, 1, 0));
        assert_eq!(
            (o.ops.0, o.types.0, o.root),
            (vec![ReduceOp::Sum], vec![DataType::Float32], Root::One(0))
        );
        assert_eq!((o.threads, o.gpus, o.processes), (None, None, None));
    }

    #[test]
    fn short_and_long_names_agree() {
        let short =
            parsed("reduce -b 8 -e 1K -f 2 -n 3 -w 4 -c 2 -d half -o max -r 1 -g 2 -t 3 -G 5 -J out.json");
        let long = parsed(
            "reduce --minbytes 8 --maxbytes 1K --stepfactor 2 --iters 3 --warmup_iters 4 --check 2 \
             --datatype half --op max --root 1 --ngpus 2 --nthreads 3 --cudagraph 5 --output_file out.json",
        );
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        assert_eq!(short.sizes(), [8, 16, 32, 64, 128, 256, 512, 1024]);
    }

    #[test]
    fn all_means_all() {
        let o = parsed("all -d all -o all -r all");
        assert_eq!((o.collective.0.len(), o.types.0.len(), o.ops.0.len(), o.root), (10, 12, 6, Root::All));
        assert_eq!(parsed("reduce -r -1").root, Root::All);
        assert_eq!(o.roots(Test::ALL[3], 3).expect("roots"), [Some(0), Some(1), Some(2)]);
        assert_eq!(o.roots(Test::ALL[0], 3).expect("roots"), [None]);
        assert_eq!(o.ops(Test::ALL[1]), [None]);
    }

    #[test]
    fn several_operations_come_in_the_given_order() {
        let names = |line| parsed(line).collective.0.into_iter().map(Test::name).collect::<Vec<_>>();
        assert_eq!(names("sendrecv,all_to_all"), ["sendrecv", "alltoall"]);
        assert!(parse("all_reduce,nothing").is_err() && parse("all_reduce,").is_err());
    }

    #[test]
    fn long_operations_are_repeated_less() {
        let repeat = |line, seconds| {
            let found = parsed(line).repetitions(seconds);
            (found.iterations, found.launches)
        };
        assert_eq!(repeat("all_reduce -n 200", 10.0), (200, 0));
        let line = "all_reduce -n 200 --point-ms 50";
        let eager = [0.0, 1e-5, 1e-3, 0.04, 10.0].map(|seconds| repeat(line, seconds));
        assert_eq!(eager, [(200, 0), (200, 0), (50, 0), (1, 0), (1, 0)]);
        let line = "all_reduce -n 20 -G 10 -m 2 --point-ms 50";
        let graphs = [1e-5, 1e-4, 1e-3, 10.0].map(|seconds| repeat(line, seconds));
        assert_eq!(graphs, [(20, 10), (20, 10), (20, 1), (1, 1)]);
    }

    #[test]
    fn steps_add_up() {
        assert_eq!(parsed("gather -b 10 -e 35 -i 10").sizes(), [10, 20, 30]);
        assert_eq!(parsed("gather -b 0 -e 0").sizes(), [0]);
        assert_eq!(parsed("gather -b 3 -e 20 -i 5").warmup_sizes(), [3, 6, 12]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "allreduce",
            "all_reduce -d float17",
            "all_reduce -o mean",
            "all_reduce -t 0",
            "all_reduce -r x",
            "all_reduce -b x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in [
            "all_reduce -b 2 -e 1",
            "all_reduce -b 1 -e 2 -i 0",
            "all_reduce -b 0 -e 8 -f 2",
            "all_reduce -n 0",
            "hypercube -m 2",
            "all_reduce --library libnccl.so.2 --explain",
            "all_reduce --library libnccl.so.2 --hosts 2",
            "all_reduce --library libnccl.so.2 --names a,b",
        ] {
            assert!(parsed(line).validate().is_err(), "{line}");
        }
        assert!(parsed("reduce -r 4").roots(Test::ALL[4], 4).is_err());
    }

    #[test]
    fn types_have_several_names() {
        assert_eq!(parse_type("f8e4m3"), Ok(DataType::Float8e4m3));
        assert_eq!(parse_type("fp8_e5m2"), Ok(DataType::Float8e5m2));
        assert_eq!(parse_type("bf16"), Ok(DataType::Bfloat16));
        for dtype in DataType::ALL {
            assert_eq!(parse_type(dtype.name()), Ok(dtype));
        }
    }
}
