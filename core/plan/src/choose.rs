//! Which program, protocol and how many instances a call gets, and why.
//!
//! A pure function of call (without its addresses), topology and settings: equal inputs on all ranks
//! give equal choices on all ranks. Callers may keep the choice per (collective, count, type, root).

use crate::algo::{self, ProgramKey};
pub use crate::choice::{Advice, Candidate, Choice, Outcome, Why};
use crate::config::PlanConfig;
pub use crate::config::{ALL_PROGRAMS, algorithm_bit, program_bit, protocol_bit};
use crate::cost;
use crate::executor::copy_engine as dma;
use crate::executor::fused as exchange;
use crate::executor::interpreter::fold;
use crate::executor::launch::device_op;
use crate::imported;
use crate::topology::Topology;
use hawser_kernels_abi::DeviceOp;
use hawser_types::{Algorithm, Call, Collective, DeviceKind, Link, PlanError, Protocol, Result};

/// Instances that are tried.
const INSTANCES: [u32; 7] = [1, 2, 4, 8, 12, 16, 24];
/// A chunk is not cut into pieces smaller than this.
const USEFUL_BYTES: u64 = 2 << 10;
/// Over a network, a chunk is not cut into pieces smaller than this, nor into more pieces than [`NET_INSTANCES`]:
/// measured over TCP, where one connection at a time is fastest up to a few MiB, and four are from 16 MiB on.
const NET_USEFUL_BYTES: u64 = 1 << 20;
/// See [`NET_USEFUL_BYTES`].
const NET_INSTANCES: u32 = 4;
/// Above this size the host device runs two instances.
const HOST_SPLIT_BYTES: u64 = 64 << 10;

/// Chooses for a call that moves data between the ranks of `topology`.
///
/// # Errors
/// `InvalidUsage` when `NCCL_ALGO`, `NCCL_PROTO` or the device leave nothing; the text names which.
pub fn choose(call: &Call, topology: &Topology, config: &PlanConfig) -> Result<Choice> {
    decide(call, topology, config, candidates(call, topology, config)?, None)
}

/// All candidates for a call, with what filtered each or its predicted time.
///
/// # Errors
/// A program that cannot be made: a bug of this crate.
pub fn candidates(call: &Call, topology: &Topology, config: &PlanConfig) -> Result<Vec<Candidate>> {
    let bytes = call.total_bytes(topology.size());
    let mut candidates = brought(call, topology, config)?;
    let collnet = topology.collnet != 0 && call.collective == Collective::AllReduce;
    for &algorithm in algo::algorithms(call.collective).iter().chain(collnet.then_some(&Algorithm::CollNet)) {
        let key = key(call, algorithm, topology);
        if let Some(reason) =
            (algorithm == Algorithm::CollNet).then(|| refused_by_network(call, topology)).flatten()
        {
            let outcome = Outcome::Filtered(reason);
            candidates.push(Candidate::new(algorithm, Protocol::Simple, outcome, topology));
            continue;
        }
        let fused = exchange::is_known(algorithm);
        let copied = !call.collective.reduces() || algorithm == Algorithm::AllPairs;
        let can = |p: &Protocol| (fused || !p.is_exchange()) && (copied || *p != Protocol::Dma);
        for protocol in Protocol::ALL.into_iter().filter(can) {
            let outcome = match filter(call, &key, protocol, topology, config) {
                Some(reason) => Outcome::Filtered(reason),
                None => price(&key, protocol, bytes, topology, config)?,
            };
            candidates.push(Candidate::new(algorithm, protocol, outcome, topology));
        }
    }
    pass_sm(call, topology, config, &mut candidates)?;
    Ok(candidates)
}

/// `NCCL_PASS_SM`: where copy engines can do a call, all else is held back, or out if they have to. Without it they are held
/// back. Reductions are never out: nobody can do them without multiprocessors.
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
    let is_small = reduces && call.total_bytes(topology.size()) < dma::fold::LEAST_BYTES;
    let held = match config.pass_sm {
        0 => Some("for a rule with executor = \"dma\""),
        _ if is_small && candidates.iter().any(|c| c.protocol != Protocol::Dma && is_possible(c)) => {
            Some("kernels are faster below 1 MiB; for a rule with executor = \"dma\"")
        }
        _ => None,
    };
    if held.is_some() {
        candidates.iter_mut().filter(|c| c.protocol == Protocol::Dma).for_each(|c| c.held = held);
        return Ok(());
    }
    if candidates.iter().any(|c| c.protocol == Protocol::Dma && is_possible(c)) {
        for candidate in candidates.iter_mut().filter(|c| c.protocol != Protocol::Dma) {
            match config.pass_sm {
                1 => candidate.held = Some("NCCL_PASS_SM; for a rule with executor = \"sm\""),
                _ => candidate.outcome = Outcome::Filtered("left out by NCCL_PASS_SM".into()),
            }
        }
        return Ok(());
    }
    if config.pass_sm < 2 || reduces {
        return Ok(());
    }
    let reasons: Vec<String> =
        candidates.iter().filter(|c| c.protocol == Protocol::Dma).map(|c| format!("\n  {c}")).collect();
    Err(PlanError::usage(format!(
        "NCCL_PASS_SM=2: {} cannot run without multiprocessors:{}\nset NCCL_PASS_SM=1 to let kernels do what copy engines cannot",
        call.collective.name(),
        reasons.concat()
    )))
}

/// The user's programs for the collective. Each is offered with its author's protocol first; another one is for topologies
/// that do not have that.
fn brought(call: &Call, topology: &Topology, config: &PlanConfig) -> Result<Vec<Candidate>> {
    let bytes = call.total_bytes(topology.size());
    let mut candidates = Vec::new();
    for &handle in &config.imports {
        let program = imported::kept(handle);
        if program.program.shape.collective != call.collective {
            continue;
        }
        let key = key(call, Algorithm::Imported(handle), topology);
        let others =
            [Protocol::Simple, Protocol::Ll, Protocol::Ll128].into_iter().filter(|&p| p != program.protocol);
        for protocol in [program.protocol].into_iter().chain(others) {
            let refused = imported::refuses(program, call, topology.size(), config);
            let outcome = match refused.or_else(|| filter(call, &key, protocol, topology, config)) {
                Some(reason) => Outcome::Filtered(reason),
                None => price(&key, protocol, bytes, topology, config)?,
            };
            candidates.push(Candidate::new(key.algorithm, protocol, outcome, topology));
        }
    }
    Ok(candidates)
}

/// Takes the fastest candidate by the advice if there is any that leaves one; else the first program that the user brought;
/// else the fastest by the cost model.
///
/// # Errors
/// As [`choose`].
pub fn decide(
    call: &Call,
    topology: &Topology,
    config: &PlanConfig,
    candidates: Vec<Candidate>,
    advice: Option<&Advice>,
) -> Result<Choice> {
    let ranks = topology.size();
    let bytes = call.total_bytes(ranks);
    let advised = advice.and_then(|advice| Some((best_advised(&candidates, advice)?, advice)));
    let Some(best) = advised.map(|(best, _)| best).or_else(|| taken(&candidates)) else {
        return Err(PlanError::usage(nothing_left(call.collective, ranks, &candidates)));
    };
    let Best { candidate, us, channels, .. } = best;
    let (algorithm, protocol) = (candidate.algorithm, candidate.protocol);
    let key = key(call, algorithm, topology);
    let blocks = advised.and_then(|(_, advice)| advice.blocks);
    let instances = match blocks {
        Some(blocks) if protocol.is_exchange() || protocol == Protocol::Dma => {
            blocks.clamp(1, best.instances)
        }
        Some(blocks) => {
            let most = fold(&key, algo::channels(&key)?, config)?.most_instances;
            blocks
                .div_ceil(channels)
                .clamp(1, most.min((config.most_ctas(call.collective) / channels).max(1)))
        }
        None => best.instances,
    };
    let threads = match protocol.is_exchange() {
        true => exchange::grid(protocol, key.ranks, longest_part(&key, bytes), instances).1,
        false => threads(topology, protocol, bytes / u64::from(instances * channels)),
    };
    let who = match (advised, algorithm) {
        (Some((_, advice)), _) => format!("fastest by {}", advice.source),
        (None, Algorithm::Imported(_)) => "the first of your programs that fits".into(),
        _ => "predicted fastest".into(),
    };
    let decided = format!(
        "{} with {} in {instances} × {channels} blocks of {threads} threads is {who}: {us:.1} µs",
        algorithm.name(),
        protocol.name()
    );
    let rule = advised.map(|(_, advice)| advice.source.clone());
    let why = Why { collective: call.collective, bytes, ranks, candidates, decided, rule };
    Ok(Choice { key, protocol, instances, threads, predicted_us: us, why })
}

/// The program of a family for a call.
pub(crate) fn key(call: &Call, algorithm: Algorithm, topology: &Topology) -> ProgramKey {
    let key = ProgramKey::new(call.collective, algorithm, topology.size(), call.root);
    match algorithm {
        Algorithm::Hierarchical | Algorithm::CollNet => {
            ProgramKey { per_host: topology.per_host().unwrap_or(0), ..key }
        }
        _ => key,
    }
}

/// Bytes of the longest part of an exchange that moves `bytes` (the larger of input and output).
fn longest_part(key: &ProgramKey, bytes: u64) -> u64 {
    let blocks = key.collective.input_blocks(key.ranks).max(key.collective.output_blocks(key.ranks));
    exchange::longest_part(key.collective, key.algorithm, bytes / u64::from(blocks.max(1)), key.ranks)
}

/// Whether the collnet plugin cannot reduce what a call asks for.
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

/// Why a candidate cannot be, if so.
fn filter(
    call: &Call,
    key: &ProgramKey,
    protocol: Protocol,
    topology: &Topology,
    config: &PlanConfig,
) -> Option<String> {
    let index = Collective::ALL.iter().position(|&c| c == key.collective).unwrap_or(0);
    let most = algo::max_ranks(key.collective, key.algorithm);
    if key.ranks == 1 {
        // One copy: settings about algorithms and protocols have nothing to act on.
        return (protocol != Protocol::Simple).then(|| "one rank only copies".to_string());
    }
    if key.ranks > most {
        return Some(format!("offered up to {most} ranks"));
    }
    if matches!(key.algorithm, Algorithm::Hierarchical | Algorithm::CollNet) {
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
    if config.algorithms[index].is_some_and(|mask| mask & algorithm_bit(key.algorithm) == 0) {
        return Some("left out by NCCL_ALGO".to_string());
    }
    if config.protocols[index].is_some_and(|mask| mask & protocol_bit(protocol) == 0) {
        let is_spared = config.pass_sm > 0 && protocol_bit(protocol) & exchange::tile_bits() != 0;
        let why = if is_spared { "NCCL_PASS_SM, whose staging has its memory" } else { "NCCL_PROTO" };
        return Some(format!("left out by {why}"));
    }
    if protocol.is_exchange() {
        return exchange::refused(call, key, protocol, topology);
    }
    if protocol == Protocol::Dma {
        return dma::refused(call, key, topology, config);
    }
    if config.slot_bytes[protocol.slots()] < 128 {
        return Some("its FIFO slots are configured away".to_string());
    }
    match (protocol, topology.device, topology.link) {
        (Protocol::Simple, _, _) => None,
        (_, DeviceKind::Host, _) => Some("the host device has the Simple protocol only".to_string()),
        _ if topology.hosts() > 1 => Some("networks carry the Simple protocol only".to_string()),
        (Protocol::Ll128, DeviceKind::Cuda { sm }, _) if sm < 70 => {
            Some(format!("LL128 needs sm_70, this is sm_{sm}"))
        }
        (Protocol::Ll128, _, Link::Pcie | Link::HostMemory) => {
            Some("LL128 needs lines that land whole: NVLink only".to_string())
        }
        _ => None,
    }
}

/// The cheapest number of instances of a candidate.
fn price(
    key: &ProgramKey,
    protocol: Protocol,
    bytes: u64,
    topology: &Topology,
    config: &PlanConfig,
) -> Result<Outcome> {
    if protocol.is_exchange() {
        let max_ctas = exchange::most_blocks(protocol).min(config.most_ctas(key.collective));
        let blocks = exchange::grid(protocol, key.ranks, longest_part(key, bytes), max_ctas).0;
        let us = predict(key, protocol, (blocks, 1), bytes, topology, config) as f32;
        return Ok(Outcome::Predicted { us, instances: blocks, channels: 1 });
    }
    if protocol == Protocol::Dma {
        let config = dma::config_for(key, bytes, topology, config);
        if let Err(error) = fold(key, algo::channels(key)?, &config) {
            return Ok(Outcome::Filtered(error.into_text()));
        }
        let us = match key.collective.reduces() {
            true => cost::predict_folds(key, dma::fold::ctas(&config), bytes, topology, &config),
            false => predict(key, protocol, (dma::LANES, 1), bytes, topology, &config),
        } as f32;
        return Ok(Outcome::Predicted { us, instances: dma::LANES, channels: 1 });
    }
    let fold = match fold(key, algo::channels(key)?, config) {
        Ok(fold) => fold,
        Err(error) => return Ok(Outcome::Filtered(error.into_text())),
    };
    let channels = fold.blocks;
    let most = config.most_ctas(key.collective);
    if channels > most && most < config.max_ctas {
        return Ok(Outcome::Filtered(format!("needs {channels} CTAs, HAWSER_SM_FREE_CTAS allows {most}")));
    }
    let limit = fold.most_instances.min((most / channels).max(1));
    let limit = match topology.device {
        DeviceKind::Host if bytes <= HOST_SPLIT_BYTES => 1,
        DeviceKind::Host => limit.min(2),
        DeviceKind::Cuda { .. } if topology.hosts() > 1 => limit.min(NET_INSTANCES),
        DeviceKind::Cuda { .. } => limit,
    };
    let useful_bytes = if topology.hosts() > 1 { NET_USEFUL_BYTES } else { USEFUL_BYTES };
    let chunk = bytes / u64::from(algo::shape(key)?.per_block);
    let useful = u64::from(limit).min(chunk.div_ceil(useful_bytes).max(1)) as u32;
    let least = config.min_ctas.div_ceil(channels).min(limit);
    let limit = useful.max(least);
    let mut best: Option<(f32, u32)> = None;
    for instances in INSTANCES.into_iter().map(|i| i.clamp(least, limit)) {
        let us = predict(key, protocol, (instances, channels), bytes, topology, config) as f32;
        if best.is_none_or(|(cheapest, _)| us < cheapest) {
            best = Some((us, instances));
        }
    }
    let (us, instances) = best.unwrap_or((f32::MAX, 1));
    Ok(Outcome::Predicted { us, instances, channels })
}

/// Predicted µs of a candidate for `bytes` bytes in `instances` instances of `channels` channels.
pub(crate) fn predict(
    key: &ProgramKey,
    protocol: Protocol,
    (instances, channels): (u32, u32),
    bytes: u64,
    topology: &Topology,
    config: &PlanConfig,
) -> f64 {
    if !protocol.is_exchange() {
        return cost::predict(key, channels, protocol, instances, bytes, topology, config);
    }
    let most = longest_part(key, bytes);
    let (blocks, threads, tile) = exchange::grid(protocol, key.ranks, most, instances);
    let rounds = exchange::rounds(protocol, most, blocks, threads, tile);
    cost::predict_exchange(key, protocol, (blocks, rounds), bytes, topology)
}

/// A candidate that can be taken.
#[derive(Clone, Copy)]
struct Best<'a> {
    candidate: &'a Candidate,
    us: f32,
    instances: u32,
    channels: u32,
}

/// Without advice: the first program of the user's, else the cheapest that was measured, else the cheapest.
fn taken(candidates: &[Candidate]) -> Option<Best<'_>> {
    let possible = || {
        candidates.iter().filter_map(|candidate| match candidate.outcome {
            Outcome::Predicted { us, instances, channels } if candidate.held.is_none() => {
                Some(Best { candidate, us, instances, channels })
            }
            _ => None,
        })
    };
    let brought = possible().find(|best| matches!(best.candidate.algorithm, Algorithm::Imported(_)));
    let measured = || least(possible().filter(|best| best.candidate.is_measured));
    brought.or_else(measured).or_else(|| least(possible()))
}

/// What the advice orders, else the fastest by it; it cannot bring back what is impossible.
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

fn threads(topology: &Topology, protocol: Protocol, bytes_per_block: u64) -> u32 {
    let usual = cost::threads(topology.device, protocol);
    if protocol == Protocol::Ll && bytes_per_block > 4096 { usual * 2 } else { usual }
}

fn nothing_left(collective: Collective, ranks: u32, candidates: &[Candidate]) -> String {
    let mut text = format!("no algorithm and protocol left for {} on {ranks} ranks:", collective.name());
    for candidate in candidates {
        text.push_str(&format!("\n  {candidate}"));
    }
    text.push_str("\nloosen NCCL_ALGO or NCCL_PROTO");
    text
}
