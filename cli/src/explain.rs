//! `hawser explain`: which algorithm is chosen for which size, and why, without running anything.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use hawser_plan::call::Scalar;
use hawser_plan::choose::choose;
use hawser_plan::knobs::NET_SLOT_BYTES;
use hawser_plan::world::{DeviceKind, Link};
use hawser_plan::{Call, Collective, DataType, Knobs, ReduceOp, World};

use crate::perf::collective::Test;
use crate::perf::options::{parse_size, parse_type};

/// Options of `hawser explain`.
#[derive(Debug, Args)]
pub struct Options {
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather or scatter
    collective: String,
    /// Number of ranks
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Hosts, with equally many ranks each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    hosts: u32,
    /// A size, or the first and last of a range of doubled ones: 1K..1G
    #[arg(long, default_value = "1K..1G", value_parser = parse_range)]
    bytes: (u64, u64),
    /// Element type
    #[arg(long, short = 'd', default_value = "float", value_parser = parse_type)]
    datatype: DataType,
    /// The machine
    #[arg(long, value_enum, default_value_t = Machine::H200)]
    device: Machine,
    /// All candidates of every size
    #[arg(long)]
    full: bool,
}

/// Machines that can be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machine {
    /// Host memory and CPU threads
    Host,
    /// H200 GPUs joined by NVLink
    H200,
}

/// Runs `hawser explain`.
///
/// # Errors
/// The collective has no choice, or nothing is left to choose from.
pub fn run(options: &Options) -> Result<()> {
    let Some(Test::One(collective)) =
        Test::from_name(&options.collective).filter(|t| *t != Test::One(Collective::SendRecv))
    else {
        bail!(
            "{} has no algorithm to choose; known are {}",
            options.collective,
            Collective::ALL.map(Collective::name).join(", ")
        );
    };
    let text = table(options, collective)?;
    // A reader that went away (`| head`) is no error.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

fn table(options: &Options, collective: Collective) -> Result<String> {
    let world = match options.device {
        Machine::Host => (DeviceKind::Host, Link::HostMemory),
        Machine::H200 => (DeviceKind::Cuda { sm: 90 }, Link::NvLink),
    };
    if !options.ranks.is_multiple_of(options.hosts) {
        bail!("{} ranks are not spread evenly over {} hosts", options.ranks, options.hosts);
    }
    let world = World::of_hosts(options.ranks, options.ranks / options.hosts, world.0, world.1);
    let mut knobs = knobs()?;
    if options.hosts > 1 {
        // As bring-up sets them where slots cross a network.
        knobs.slot_bytes = [0, 0, NET_SLOT_BYTES];
    }
    let mut text = format!("# {} on {} ranks\n", collective.name(), options.ranks);
    let _ = writeln!(
        text,
        "# {:>12}  {:10} {:8} {:>9} {:>8} {:>12}",
        "bytes", "algorithm", "protocol", "instances", "threads", "predicted/us"
    );
    for bytes in sizes(options.bytes) {
        let geometry = Test::One(collective).geometry(bytes, options.datatype, options.ranks);
        let call = Call {
            collective,
            count: geometry.count,
            dtype: options.datatype,
            op: ReduceOp::Sum,
            scalar: Scalar::Immediate(0),
            root: 0,
            input: 0,
            output: 0,
        };
        let choice = choose(&call, &world, &knobs)?;
        let _ = writeln!(
            text,
            "{:>14}  {:10} {:8} {:>9} {:>8} {:>12.1}",
            call.total_bytes(options.ranks),
            choice.key.algorithm.name(),
            choice.protocol.name(),
            choice.instances,
            choice.threads,
            choice.predicted_us
        );
        if options.full || options.bytes.0 == options.bytes.1 {
            for line in choice.why.to_string().lines() {
                let _ = writeln!(text, "#   {line}");
            }
        }
    }
    Ok(text)
}

/// `NCCL_ALGO` and `NCCL_PROTO` count here as they do in a job.
fn knobs() -> Result<Knobs> {
    let mut knobs = Knobs::default();
    if let Ok(text) = std::env::var("NCCL_ALGO") {
        knobs.algorithms = Knobs::parse_algo(&text)?;
    }
    if let Ok(text) = std::env::var("NCCL_PROTO") {
        knobs.protocols = Knobs::parse_proto(&text)?;
    }
    Ok(knobs)
}

fn sizes((first, last): (u64, u64)) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |s| s.max(&1).checked_mul(2)).take_while(move |s| *s <= last)
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let range = (parse_size(first)?, parse_size(last.trim_start_matches('='))?);
    if range.0 > range.1 { Err(format!("{text} is empty")) } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_parse() {
        assert_eq!(parse_range("1K..4K"), Ok((1024, 4096)));
        assert_eq!(parse_range("8"), Ok((8, 8)));
        assert!(parse_range("4K..1K").is_err() && parse_range("a..b").is_err());
        assert_eq!(sizes((1, 5)).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(sizes((0, 2)).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn every_collective_and_machine_has_a_table() {
        for collective in Collective::ALL {
            for device in [Machine::Host, Machine::H200] {
                for (ranks, hosts) in [(1, 1), (3, 1), (8, 1), (8, 2), (6, 6)] {
                    let options = Options {
                        hosts,
                        collective: collective.name().into(),
                        ranks,
                        bytes: (1 << 10, 1 << 20),
                        datatype: DataType::Float32,
                        device,
                        full: true,
                    };
                    let text = table(&options, collective)
                        .unwrap_or_else(|e| panic!("{collective:?} {device:?}: {e}"));
                    assert!(text.lines().filter(|l| !l.starts_with('#')).count() == 11, "{text}");
                    assert!(text.contains("decided"), "{text}");
                }
            }
        }
    }
}
