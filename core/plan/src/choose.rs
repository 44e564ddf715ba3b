//! The choice of a program, a protocol and a number of instances for a call, with the reasons.
//!
//! A pure function of call (without its addresses), topology and settings: equal inputs on all ranks
//! give equal choices on all ranks. Callers may keep the choice per (collective, count, type, root).

use crate::algo::{self, Needs, ProgramKey};
use crate::config::PlanConfig;
pub use crate::config::{ALL_PROGRAMS, algorithm_bit, program_bit};
pub use crate::decision::{Advice, Candidate, Decision, Outcome, Why};
use crate::executor::launch::device_op;
use crate::executor::{self, EXECUTORS, Grid, Query};
use crate::executor::{copy_engine, fused};
use crate::imported;
use crate::reproducible;
use crate::topology::Topology;
use hawser_kernels_abi::DeviceOp;
use hawser_types::{Algorithm, Call, Collective, DeviceKind, Executor, PlanError, Result, Route};

/// Chooses for a call that moves data between the ranks of `topology`.
///
/// # Errors
/// `InvalidUsage` when `NCCL_ALGO`, `NCCL_PROTO` or the device leave nothing; the text names which.
pub fn choose(call: &Call, topology: &Topology, config: &PlanConfig) -> Result<Decision> {
    decide(call, topology, config, candidates(call, topology, config)?, None)
}

/// All candidates for a call, with what filtered each or its predicted time.
///
/// # Errors
/// A program that cannot be made: a bug of this crate.
pub fn candidates(call: &Call, topology: &Topology, config: &PlanConfig) -> Result<Vec<Candidate>> {
    let mut candidates = brought(call, topology, config)?;
    let simple = Route::simple(topology.device);
    let networks = algo::algorithms_of_networks(call.collective).filter(|_| topology.collnet != 0);
    for algorithm in algo::algorithms(call.collective).iter().copied().chain(networks) {
        let key = key(call, algorithm, topology);
        if let Some(reason) = (algo::needs(algorithm) == Needs::ReducingNetwork)
            .then(|| refused_by_network(call, topology))
            .flatten()
        {
            let outcome = Outcome::Filtered(reason);
            candidates.push(Candidate::new(algorithm, simple, outcome, topology));
            continue;
        }
        for executor in
            EXECUTORS.iter().filter(|executor| executor.offers(call.collective, algorithm, topology.device))
        {
            for &route in executor.routes() {
                let query = Query { call, key, route, topology, config };
                candidates.push(Candidate::new(algorithm, route, outcome(&query)?, topology));
            }
        }
    }
    pass_sm(call, topology, config, &mut candidates)?;
    Ok(candidates)
}

/// `NCCL_PASS_SM`: where copy engines can do a call, all else is held back, or out if they have to. Without
/// it they are held back. Reductions are never out: nobody can do them without multiprocessors.
///
/// # Errors
/// `InvalidUsage` where they have to and cannot; the text names why each program is out.
fn pass_sm(
    call: &Call,
    topology: &Topology,
    config: &PlanConfig,
    candidates: &mut [Candidate],
) -> Result<()> {
    if topology.size() == 1 {
        return Ok(());
    }
    let reduces = call.collective.reduces();
    let is_possible = |c: &Candidate| matches!(c.outcome, Outcome::Predicted { .. });
    let is_small = reduces && call.total_bytes(topology.size()) < copy_engine::reduce_kernel::LEAST_BYTES;
    let held = match config.pass_sm {
        0 => Some("for a rule with executor = \"copy_engine\""),
        _ if is_small && candidates.iter().any(|c| c.route != Route::COPY_ENGINE && is_possible(c)) => {
            Some("kernels are faster below 1 MiB; for a rule with executor = \"copy_engine\"")
        }
        _ => None,
    };
    if held.is_some() {
        candidates.iter_mut().filter(|c| c.route == Route::COPY_ENGINE).for_each(|c| c.held = held);
        return Ok(());
    }
    if candidates.iter().any(|c| c.route == Route::COPY_ENGINE && is_possible(c)) {
        for candidate in candidates.iter_mut().filter(|c| c.route != Route::COPY_ENGINE) {
            match config.pass_sm {
                1 => candidate.held = Some("NCCL_PASS_SM; for a rule with executor = \"not_copy_engine\""),
                _ => candidate.outcome = Outcome::Filtered("left out by NCCL_PASS_SM".into()),
            }
        }
        return Ok(());
    }
    if config.pass_sm < 2 || reduces {
        return Ok(());
    }
    let reasons: Vec<String> =
        candidates.iter().filter(|c| c.route == Route::COPY_ENGINE).map(|c| format!("\n  {c}")).collect();
    Err(PlanError::usage(format!(
        "NCCL_PASS_SM=2: {} cannot run without multiprocessors:{}\nset NCCL_PASS_SM=1 to let kernels do what \
         copy engines cannot",
        call.collective.name(),
        reasons.concat()
    )))
}

/// The user's programs for the collective. Each is offered with its author's protocol first; another one is
/// for topologies that do not have that, and for rules.
fn brought(call: &Call, topology: &Topology, config: &PlanConfig) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for &handle in &config.imports {
        let program = imported::kept(handle);
        if program.program.shape.collective != call.collective {
            continue;
        }
        let key = key(call, Algorithm::Imported(handle), topology);
        let own = Route::interpreter(program.protocol);
        let others = [Route::SIMPLE, Route::LL, Route::LL128].into_iter().filter(|&route| route != own);
        let routes = match topology.device {
            DeviceKind::Host => vec![Route::HOST],
            DeviceKind::Cuda { .. } => [own].into_iter().chain(others).collect(),
        };
        for route in routes {
            let refused = imported::refuses(program, call, topology.size(), config);
            let outcome = match refused {
                Some(reason) => Outcome::Filtered(reason),
                None => outcome(&Query { call, key, route, topology, config })?,
            };
            candidates.push(Candidate::new(key.algorithm, route, outcome, topology));
        }
    }
    Ok(candidates)
}

/// Takes the fastest candidate by the advice if there is any that leaves one; else the fastest by the cost
/// model, programs that the user brought among them.
///
/// # Errors
/// As [`choose`].
pub fn decide(
    call: &Call,
    topology: &Topology,
    config: &PlanConfig,
    candidates: Vec<Candidate>,
    advice: Option<&Advice>,
) -> Result<Decision> {
    let ranks = topology.size();
    let bytes = call.total_bytes(ranks);
    let order = reproducible::describe(call, ranks, config.reproducible);
    let advised = advice.and_then(|advice| Some((best_advised(&candidates, advice)?, advice)));
    let Some(best) = advised.map(|(best, _)| best).or_else(|| taken(&candidates, order.is_some())) else {
        return Err(PlanError::usage(nothing_left(call.collective, ranks, &candidates, order)));
    };
    let Best { candidate, us, channels, .. } = best;
    let (algorithm, route) = (candidate.algorithm, candidate.route);
    let key = key(call, algorithm, topology);
    let blocks = advised.and_then(|(_, advice)| advice.blocks);
    let query = Query { call, key, route, topology, config };
    let executor = executor::of(route.executor);
    let instances = match blocks {
        Some(blocks) => executor.advised(&query, Grid { instances: best.instances, channels }, blocks)?,
        None => best.instances,
    };
    let threads = executor.threads(&query, Grid { instances, channels });
    let decided = format!(
        "{} with {} in {instances} × {channels} blocks of {threads} threads is {}: {us:.1} µs{}",
        algorithm.name(),
        route.name(),
        who(&candidates, best, advised.map(|(_, advice)| advice)),
        faster(&candidates, best, advised.is_some()).unwrap_or_default()
    );
    let rule = advised.map(|(_, advice)| advice.source.clone());
    let why = Why { collective: call.collective, bytes, ranks, candidates, order, decided, rule };
    Ok(Decision { key, route, instances, channels: instances * channels, threads, predicted_us: us, why })
}

/// The program of a family for a call.
pub(crate) fn key(call: &Call, algorithm: Algorithm, topology: &Topology) -> ProgramKey {
    let key = ProgramKey::new(call.collective, algorithm, topology.size(), call.root);
    match algo::needs(algorithm) {
        Needs::Hosts | Needs::ReducingNetwork => {
            ProgramKey { per_host: topology.per_host().unwrap_or(0), ..key }
        }
        Needs::Nothing => key,
    }
}

/// The reason why the collnet plugin cannot reduce what a call asks for, if so.
fn refused_by_network(call: &Call, topology: &Topology) -> Option<String> {
    let op = match device_op(call) {
        DeviceOp::Copy | DeviceOp::Sum | DeviceOp::PreMulSum | DeviceOp::SumDiv => 0,
        DeviceOp::Prod => 1,
        DeviceOp::Max => 2,
        DeviceOp::Min => 3,
    };
    let bit = 5 * call.dtype as u64 + op;
    let refuses = topology.collnet >> bit & 1 == 0;
    refuses.then(|| format!("the network does not reduce {} by {}", call.dtype.name(), call.op.name()))
}

/// Predicts a candidate, or says why it is out.
///
/// # Errors
/// A program that cannot be made: a bug of this crate.
fn outcome(query: &Query<'_>) -> Result<Outcome> {
    let executor = executor::of(query.route.executor);
    if let Some(reason) = refused_by_settings(query) {
        return Ok(Outcome::Filtered(reason));
    }
    if query.call.gap > 0 && query.key.ranks > 1 && query.route.executor != Executor::Fused {
        return Ok(Outcome::Filtered("only fused kernels serve blocks that lie apart".into()));
    }
    if query.key.ranks > 1
        && let Err(reason) = executor.supports(query)
    {
        return Ok(Outcome::Filtered(reason));
    }
    if let Some(reason) = reproducible::refused(query) {
        return Ok(Outcome::Filtered(reason));
    }
    executor.estimate(query)
}

/// The reason why a candidate cannot be, whatever its executor says: ranks, hosts, `NCCL_ALGO` and
/// `NCCL_PROTO`.
fn refused_by_settings(query: &Query<'_>) -> Option<String> {
    let Query { ref key, route, topology, config, .. } = *query;
    // Settings name no calls of custom programs, which name their program themselves.
    let index = Collective::ALL.iter().position(|&c| c == key.collective);
    let most = algo::max_ranks(key.collective, key.algorithm);
    if key.ranks == 1 {
        // One copy: settings about algorithms and protocols have nothing to act on.
        return (route != Route::simple(topology.device)).then(|| "one rank only copies".to_string());
    }
    if key.ranks > most {
        return Some(format!("offered up to {most} ranks"));
    }
    if algo::needs(key.algorithm) != Needs::Nothing {
        if topology.hosts() < 2 {
            return Some("there is one host only".to_string());
        }
        if key.per_host == 0 {
            return Some("hosts differ in ranks, or their ranks do not follow one another".to_string());
        }
        if let Err(error) = algo::shape(key) {
            return Some(error.into_text());
        }
    }
    if key.algorithm == Algorithm::RailRelay && !config.relays {
        return Some("left out by NCCL_PXN_DISABLE".to_string());
    }
    if index
        .and_then(|index| config.algorithms[index])
        .is_some_and(|mask| mask & algorithm_bit(key.algorithm) == 0)
    {
        return Some("left out by NCCL_ALGO".to_string());
    }
    if index.and_then(|index| config.routes[index]).is_some_and(|routes| !routes.contains(route)) {
        let is_spared = config.pass_sm > 0 && fused::tile_routes().contains(route);
        let why = if is_spared { "NCCL_PASS_SM, whose staging has its memory" } else { "NCCL_PROTO" };
        return Some(format!("left out by {why}"));
    }
    None
}

/// A candidate that can be taken.
#[derive(Clone, Copy)]
struct Best<'a> {
    candidate: &'a Candidate,
    us: f32,
    instances: u32,
    channels: u32,
}

/// Without advice: the cheapest that was measured, or that the user brought; else the cheapest. Where an
/// order is declared, few are left, and the measured ones are not the best for every size.
fn taken(candidates: &[Candidate], is_ordered: bool) -> Option<Best<'_>> {
    let possible = || {
        candidates.iter().enumerate().filter_map(|(place, candidate)| match candidate.outcome {
            Outcome::Predicted { us, instances, channels }
                if candidate.held.is_none() && !has_other_protocol(candidates, place) =>
            {
                Some(Best { candidate, us, instances, channels })
            }
            _ => None,
        })
    };
    least(possible().filter(|best| best.candidate.is_measured && !is_ordered)).or_else(|| least(possible()))
}

/// True for a program of the user's with another protocol than its author's, where it can have that one.
fn has_other_protocol(candidates: &[Candidate], place: usize) -> bool {
    let algorithm = candidates[place].algorithm;
    let is_possible = |other: &Candidate| matches!(other.outcome, Outcome::Predicted { .. });
    let before = || candidates[..place].iter().filter(|other| other.algorithm == algorithm);
    matches!(algorithm, Algorithm::Imported(_)) && before().any(is_possible)
}

/// The words for the one taken. It is called the fastest only if no candidate is predicted to be faster.
fn who(candidates: &[Candidate], best: Best<'_>, advice: Option<&Advice>) -> String {
    let is_ordered = |advice: &Advice| {
        let candidate = advice.order.and_then(|place| candidates.get(place));
        candidate.is_some_and(|candidate| std::ptr::eq(candidate, best.candidate))
    };
    match advice {
        Some(advice) if is_ordered(advice) => format!("what {} orders", advice.source),
        Some(advice) => format!("fastest by {}", advice.source),
        None if fastest(candidates, best).is_some() => "predicted fastest of what may run".into(),
        None => "predicted fastest".into(),
    }
}

/// The fastest candidate that is predicted to be faster than the one taken.
fn fastest<'a>(candidates: &'a [Candidate], best: Best<'_>) -> Option<&'a Candidate> {
    let time = |candidate: &Candidate| candidate.us().unwrap_or(f32::INFINITY);
    let taken = time(best.candidate);
    let faster = candidates.iter().filter(|candidate| time(candidate) < taken);
    faster.min_by(|a, b| time(a).total_cmp(&time(b)))
}

/// The end of the sentence where another candidate is predicted to be faster: which, and why it is not taken.
fn faster(candidates: &[Candidate], best: Best<'_>, is_advised: bool) -> Option<String> {
    let fastest = fastest(candidates, best)?;
    let name =
        format!("{} with {} ({:.1} µs)", fastest.algorithm.name(), fastest.route.name(), fastest.us()?);
    let is_brought = matches!(fastest.algorithm, Algorithm::Imported(_));
    Some(match fastest.held {
        Some(held) => format!("; {name} is held back ({held})"),
        None if is_advised => format!("; the cost model takes {name} for faster"),
        None if is_brought => format!("; {name} is another protocol than the program's file names"),
        None => format!(
            ", of what was measured on such machines; {name} was not, and runs only if NCCL_ALGO or a rule \
             names it"
        ),
    })
}

/// The candidate that the advice orders, else the fastest by it; it cannot bring back what is impossible.
fn best_advised<'a>(candidates: &'a [Candidate], advice: &Advice) -> Option<Best<'a>> {
    let best = |candidate: &'a Candidate, by_tuner: Option<f32>| match candidate.outcome {
        Outcome::Predicted { us, instances, channels } => {
            Some(Best { candidate, us: by_tuner.unwrap_or(us), instances, channels })
        }
        Outcome::Filtered(_) => None,
    };
    let ordered = advice.order.and_then(|place| best(candidates.get(place)?, None));
    let offered = candidates.iter().zip(&advice.us).filter(|(candidate, _)| candidate.held.is_none());
    ordered.or_else(|| least(offered.filter_map(|(candidate, us)| best(candidate, Some((*us)?)))))
}

/// The first of the fastest.
fn least<'a>(all: impl Iterator<Item = Best<'a>>) -> Option<Best<'a>> {
    all.fold(None, |best: Option<Best<'a>>, next| match best {
        Some(best) if best.us <= next.us => Some(best),
        _ => Some(next),
    })
}

fn nothing_left(
    collective: Collective,
    ranks: u32,
    candidates: &[Candidate],
    order: Option<String>,
) -> String {
    let mut text = format!("no algorithm and protocol left for {} on {ranks} ranks:", collective.name());
    for candidate in candidates {
        text.push_str(&format!("\n  {candidate}"));
    }
    match order {
        None => text.push_str("\nloosen NCCL_ALGO or NCCL_PROTO"),
        Some(order) => text.push_str(&format!(
            "\nthe declared order is {order}\nloosen NCCL_ALGO or NCCL_PROTO, or HAWSER_REPRODUCIBLE"
        )),
    }
    text
}
