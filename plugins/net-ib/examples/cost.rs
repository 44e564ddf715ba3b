//! The cost of failover while nothing fails: messages of 1 MiB over two rails of the test double, with
//! failover on and off in turns. Prints medians of the processor's time per message (all threads) and of the
//! throughput, and the ratio of both.
//!
//!     cargo run --release -p hawser-net-ib --example cost [turns]

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::VecDeque;
use std::time::Instant;

use common::{Pair, settings, until};
use hawser_plugin::net::{MemoryKinds, Region, Registration, Segment};

const BYTES: usize = 1 << 20;
const MESSAGES: usize = 400;
/// Messages under way.
const WINDOW: usize = 8;

fn main() {
    let turns = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(41);
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        // Nobody is always first.
        for failover in [turn % 2 == 0, turn % 2 == 1] {
            let taken = run(failover);
            if failover { on.push(taken) } else { off.push(taken) }
        }
    }
    for (name, which) in [("processor's time", 0), ("time", 1)] {
        let pick = |all: &[[f64; 2]]| all.iter().map(|taken| taken[which]).collect::<Vec<_>>();
        let (on, off) = (pick(&on), pick(&off));
        let ratios = on.iter().zip(&off).map(|(on, off)| on / off).collect::<Vec<_>>();
        let range = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            (all[all.len() / 4], all[all.len() / 2], all[all.len() * 3 / 4])
        };
        println!(
            "{name} of a message, µs (quartile, median, quartile): on {:.1?}, off {:.1?}; ratio {:.4?}",
            range(on),
            range(off),
            range(ratios)
        );
    }
}

/// Microseconds of a message: the processor's, and those that passed.
fn run(failover: bool) -> [f64; 2] {
    let mut pair = Pair::new(2, with_failover(failover));
    let memory = || vec![0u8; BYTES];
    let (sources, targets): (Vec<_>, Vec<_>) = (0..WINDOW).map(|_| (memory(), memory())).unzip();
    let region = |bytes: &[u8]| Region {
        addr: bytes.as_ptr() as u64,
        bytes: bytes.len(),
        kind: MemoryKinds::HOST,
        dmabuf: None,
    };
    // SAFETY: the memory outlives the pair's use of it.
    let from: Vec<Registration> =
        sources.iter().map(|m| unsafe { pair.sender.register(&region(m)) }.expect("register")).collect();
    // SAFETY: as above.
    let to: Vec<Registration> =
        targets.iter().map(|m| unsafe { pair.receiver.register(&region(m)) }.expect("register")).collect();
    let segment = |memory: &[u8], registration| Segment {
        addr: memory.as_ptr() as u64,
        bytes: BYTES,
        registration,
        tag: 0,
        profile: 0,
    };
    let (mut sends, mut receives) = (VecDeque::new(), VecDeque::new());
    let (mut begun, mut posted, mut done) = (0, 0, 0);
    let (clock, used) = (Instant::now(), processor());
    until("all messages", || {
        while posted < MESSAGES && receives.len() < WINDOW {
            let at = posted % WINDOW;
            // SAFETY: nobody reads the target before the request is done.
            let request = unsafe { pair.receiver.irecv(&[segment(&targets[at], to[at])], false) };
            let Some(request) = request.expect("irecv") else { break };
            receives.push_back(request);
            posted += 1;
        }
        while begun < MESSAGES && sends.len() < WINDOW {
            let at = begun % WINDOW;
            // SAFETY: nobody writes the source.
            let request = unsafe { pair.sender.isend(&segment(&sources[at], from[at])) };
            let Some(request) = request.expect("isend") else { break };
            sends.push_back(request);
            begun += 1;
        }
        while let Some(&request) = sends.front() {
            if pair.sender.test(request).expect("test").is_none() {
                break;
            }
            sends.pop_front();
        }
        while let Some(&request) = receives.front() {
            if !pair.receiver.test(request, &mut [0]).expect("test") {
                break;
            }
            receives.pop_front();
            done += 1;
        }
        (done == MESSAGES && sends.is_empty()).then_some(())
    });
    [processor() - used, clock.elapsed().as_secs_f64()].map(|seconds| seconds * 1e6 / MESSAGES as f64)
}

fn with_failover(failover: bool) -> hawser_net_ib::Settings {
    let mut settings = settings();
    settings.failover = failover;
    settings
}

/// Seconds of the processor that this process has used.
fn processor() -> f64 {
    // SAFETY: plain data, filled in by the call.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
