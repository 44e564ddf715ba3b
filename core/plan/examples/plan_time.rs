//! The time that a plan takes by the number of ranks: the choice, the program of one rank, and its launch.
//!
//! `cargo run --release -p hawser-plan --example plan_time`

use std::time::{Duration, Instant};

use hawser_plan::config::NET_SLOT_BYTES;
use hawser_plan::executor::{self, Decided, interpreter, launch::device_op};
use hawser_plan::p2p;
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plan::vector;
use hawser_plan::{Call, Collective, DataType, PlanConfig, Result, Topology, algo, choose};

fn main() -> Result<()> {
    println!(
        "{:>6} {:<14} {:>10} {:>10} {:>8}  µs, the median of 11",
        "ranks", "collective", "choice", "launch", "steps"
    );
    for ranks in [8, 64, 512, 1024, 4096, 8000, 16384] {
        let topology = Topology::of_hosts(ranks, 8, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        let config = PlanConfig { slot_bytes: [0, 0, NET_SLOT_BYTES], lanes: 8, ..PlanConfig::default() };
        for collective in Collective::ALL {
            let call = Call::of_bytes(collective, 64 << 20, DataType::Float32, 0, ranks);
            let call = Call { input: 1 << 20, output: 1 << 60, ..call };
            if ranks > algo::most_ranks(collective) {
                let counts = vec![call.count; ranks as usize];
                let mut blocks = 0;
                let time = median(|| {
                    let messages =
                        vector::of_many_ranks(&call, &counts).map(|v| v.messages(call.dtype, 1, ranks));
                    let plans =
                        p2p::plan(&messages.transpose()?.unwrap_or_default(), 1, ranks, &topology, &config)?;
                    blocks = plans.iter().map(|plan| usize::from(plan.args.n_blocks)).sum();
                    Ok(())
                })?;
                println!("{ranks:>6} {:<14} {:>10} {time:>10} {blocks:>8}", collective.name(), "messages");
                continue;
            }
            let decision = choose::choose(&call, &topology, &config)?;
            let choice = median(|| choose::choose(&call, &topology, &config).map(drop))?;
            let mut steps = 0;
            let launch = median(|| {
                let shape = algo::shape(&decision.key)?;
                let program = algo::rank_program(&decision.key, 1)?;
                let lowered = interpreter::lower(&shape, &program, device_op(&call))?;
                steps = lowered.steps.len();
                let decided = Decided {
                    call: &call,
                    decision: &decision,
                    rank: 1,
                    topology: &topology,
                    config: &config,
                };
                executor::of(decision.route.executor).compile(&decided, Some(&lowered)).map(drop)
            })?;
            println!("{ranks:>6} {:<14} {choice:>10} {launch:>10} {steps:>8}", collective.name());
        }
    }
    Ok(())
}

/// The median time in µs of eleven runs.
fn median(mut run: impl FnMut() -> Result<()>) -> Result<u128> {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..11 {
        let begin = Instant::now();
        run()?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times[5].as_micros())
}
