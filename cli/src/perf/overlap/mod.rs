//! `hawser perf overlap`: what a collective and computing on the same GPUs cost each other.
//!
//! ```text
//! contest (this process) ─► a process per contender and round ─► contender (a thread per GPU):
//!                                                                GEMM alone, transfer alone, both
//!    └► report: table, JSON, picture                               ├ compute: cuBLAS, our kernel, or the CPU
//!                                                                  └ power
//! ```
//! A contender is a library with settings. Settings are read once in a process, so each contender has
//! processes of its own, and rounds take contenders in turns, so that a GPU that slows down slows all.

mod blas;
mod compute;
mod contender;
mod contest;
mod driver;
mod power;
mod report;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::launcher::{self, Place};
use super::options::{Tests, parse_size, parse_tests};
use super::run::{SHARING, allow_sharing};

/// Measures what a collective and a GEMM on the same GPUs cost each other.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Operations, with commas between
    #[arg(default_value = "sendrecv,all_gather,all_reduce", value_parser = parse_tests)]
    pub collective: Tests,
    /// Threads, a GPU each [default: all GPUs, at least 2; 2 on the host device]
    #[arg(short = 't', long = "nthreads", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    /// Processes, a GPU each, instead of threads
    #[arg(
        short = 'p', long, conflicts_with = "threads",
        value_parser = clap::value_parser!(u32).range(2..=64)
    )]
    pub processes: Option<u32>,
    /// Size of an operation [default: 256M; 1M on the host device]
    #[arg(short = 'b', long, value_parser = parse_size)]
    pub bytes: Option<u64>,
    /// The GEMM multiplies square matrices of so many rows (bfloat16) [default: 8192; 192 (float) on the host
    /// device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub gemm: Option<u32>,
    /// How often every contender runs, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Milliseconds that each of the three measurements takes
    #[arg(
        long, value_name = "MS", default_value_t = 500,
        value_parser = clap::value_parser!(u64).range(10..=60_000)
    )]
    pub window_ms: u64,
    /// Compare with this libnccl.so.2: as it is, with few CTAs, and with the zero-CTA policy on windows
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// CTAs of the compared library where it is to take few
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub ctas: u32,
    /// Only these contenders, by their names in the table, with commas between
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Multiply by the library's own kernel, not by cuBLAS
    #[arg(long)]
    pub own_gemm: bool,
    /// Deadline in seconds for every wait of this program
    #[arg(
        short = 'T', long = "timeout", default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub timeout: u64,
    /// File for the figures as JSON
    #[arg(short = 'J', long = "output_file", visible_alias = "out", value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Print the results as JSON, and no table
    #[arg(long)]
    pub json: bool,
    /// File for a picture as SVG
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// What this process measures for another one that compares
    #[arg(long, hide = true, value_enum)]
    pub role: Option<Role>,
}

/// The way in which a process calls its library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Plain calls on plain memory.
    Plain,
    /// With the zero-CTA policy, on memory that is a symmetric window.
    ZeroCtas,
    /// A few calls without a measurement, for the log of what they run.
    Log,
}

impl Options {
    /// Ranks of the job.
    pub fn ranks(&self) -> u32 {
        let all = || if hawser_device::is_host() { 2 } else { hawser_device::count() };
        self.processes.or(self.threads).unwrap_or_else(all)
    }

    /// Bytes of an operation.
    pub fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(if hawser_device::is_host() { 1 << 20 } else { 256 << 20 })
    }

    /// Rows of a matrix.
    pub fn side(&self) -> u32 {
        self.gemm.unwrap_or(if hawser_device::is_host() { 192 } else { 8192 })
    }
}

/// Runs `hawser perf overlap`.
///
/// # Errors
/// There are too few GPUs, a library or a kernel for the GEMM is missing, or a measurement failed.
pub fn run(options: &Options) -> Result<bool> {
    if options.threads == Some(1) {
        bail!("overlap needs at least 2 ranks: -t 1 has nobody to send to");
    }
    if options.ranks() < 2 {
        bail!(
            "overlap needs at least 2 ranks, and this process sees {} GPUs; run it where there are more, let \
             ranks share a GPU (-p 2), or measure with HAWSER_DEVICE=host on the CPU",
            hawser_device::count()
        );
    }
    allow_sharing();
    let place = Place::from_env()?;
    let Some(role) = options.role else {
        if place.launched {
            bail!("overlap starts its processes itself: run it without a launcher, with -t or -p");
        }
        if options.ranks() > hawser_device::count() {
            eprintln!("ranks share GPUs ({SHARING}=1): times say nothing about links");
        }
        return contest::run(options).map(|()| true);
    };
    if !place.launched && options.processes.is_some_and(|n| n > 1) {
        return launcher::spawn(options.processes.unwrap_or(1)).map(|()| true);
    }
    contender::run(options, role, &place).map(|()| true)
}
