//! Constants from measured times: which runs to make, and the least-squares fit to what they took.
//!
//! Times go in as logarithms, so that a size counts as much as another. Constants move as logarithms too,
//! from the ones that are there; a weak pull back keeps those that no sample says anything about.

use crate::algo::{self, ProgramKey};
use crate::choose::{self, Outcome};
use crate::config::PlanConfig;
use crate::executor::{self, Grid, Load};
use crate::link_constants::Constants;
use crate::topology::Topology;
use hawser_types::{Algorithm, Call, Collective, DataType, ReduceOp, Result, Route, Scalar};

/// A measurement to make: these collectives, forced onto one algorithm and protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The family of the program (`NCCL_ALGO`).
    pub algorithm: Algorithm,
    /// The executor and the protocol (`NCCL_PROTO`).
    pub route: Route,
    /// Most blocks (`NCCL_MAX_CTAS`).
    pub max_ctas: u32,
    /// The collectives to measure.
    pub collectives: Vec<Collective>,
}

/// A measured time of an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The program that ran.
    pub key: ProgramKey,
    /// The executor and the protocol that ran it.
    pub route: Route,
    /// Instances of the program, and blocks of one.
    pub grid: (u32, u32),
    /// Bytes of the larger of input and output.
    pub bytes: u64,
    /// Measured time.
    pub us: f64,
}

impl Sample {
    /// The time that the model of `topology` predicts for it.
    pub fn predicted_us(&self, topology: &Topology, config: &PlanConfig) -> f64 {
        let load = Load { key: &self.key, route: self.route, bytes: self.bytes };
        let (instances, channels) = self.grid;
        executor::of(self.route.executor).predict(&load, Grid { instances, channels }, topology, config)
    }
}

/// The result of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The constants.
    pub constants: Constants,
    /// Median factor between predicted and measured times, at least 1, with the constants before.
    pub error_before: f64,
    /// The same with the new ones.
    pub error: f64,
}

/// Collectives that are measured.
const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
/// Families that are measured: they differ in hops and traffic.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Ring, Algorithm::OneShot, Algorithm::AllPairs];

/// The runs for a topology: every algorithm with every protocol that it can have, and some of them in one
/// block.
///
/// # Errors
/// A program that cannot be made: a bug of this crate.
pub fn runs(topology: &Topology, config: &PlanConfig) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for route in Route::ALL {
        for algorithm in ALGORITHMS {
            let lone = if route.is_fused() { Algorithm::AllPairs } else { Algorithm::Ring };
            let ctas = [Some(config.max_ctas), (algorithm == lone && config.max_ctas > 1).then_some(1)];
            for max_ctas in ctas.into_iter().flatten() {
                let mut run = Run { algorithm, route, max_ctas, collectives: COLLECTIVES.to_vec() };
                for collective in COLLECTIVES {
                    if run.sample(collective, 1 << 10, 1.0, topology, config)?.is_none() {
                        run.collectives.retain(|c| *c != collective);
                    }
                }
                if !run.collectives.is_empty() {
                    runs.push(run);
                }
            }
        }
    }
    Ok(runs)
}

impl Run {
    /// The sample that a sum of `count` floats is in this run; None if it cannot run so.
    ///
    /// # Errors
    /// As [`runs`].
    pub fn sample(
        &self,
        collective: Collective,
        count: u64,
        us: f64,
        topology: &Topology,
        config: &PlanConfig,
    ) -> Result<Option<Sample>> {
        let (dtype, op, scalar) = (DataType::Float32, ReduceOp::Sum, Scalar::Immediate(0));
        let call = &Call { collective, count, dtype, op, scalar, root: 0, input: 0, output: 0, gap: 0 };
        let config = PlanConfig { algorithms: [None; 8], routes: [None; 8], ..self.config(config) };
        let candidates = match algo::algorithms(call.collective).contains(&self.algorithm) {
            true => choose::candidates(call, topology, &config)?,
            false => Vec::new(),
        };
        let own = candidates.into_iter().find(|c| (c.algorithm, c.route) == (self.algorithm, self.route));
        let Some(Outcome::Predicted { instances, channels, .. }) = own.map(|c| c.outcome) else {
            return Ok(None);
        };
        let (key, bytes) = (choose::key(call, self.algorithm, topology), call.total_bytes(topology.size()));
        Ok(Some(Sample { key, route: self.route, grid: (instances, channels), bytes, us }))
    }

    /// `config` with this run's limit of blocks.
    fn config(&self, config: &PlanConfig) -> PlanConfig {
        PlanConfig { min_ctas: 1, max_ctas: self.max_ctas, ..config.clone() }
    }
}

/// Spread of the logarithm of a time that the model need not explain.
const NOISE: f64 = 0.05;
/// Residuals beyond this many spreads count less.
const TAME: f64 = 3.0;
/// Spread of the logarithm of a constant that no sample fixes.
const PRIOR: f64 = 1.5;
/// Most rounds of the fit: it ends by itself after 10 to 40.
const ROUNDS: u32 = 200;

/// The constants under which the samples are most likely, from those of `topology`.
pub fn fit(samples: &[Sample], topology: &Topology, config: &PlanConfig) -> Fit {
    let measured: Vec<f64> = samples.iter().map(|sample| sample.us).collect();
    let predict = |constants: &Constants| {
        let topology = Topology { constants: *constants, ..topology.clone() };
        samples.iter().map(|sample| sample.predicted_us(&topology, config)).collect()
    };
    // The share of the wire that an interpreter's protocol leaves to data is known, so it is not fitted. That
    // of fused kernels is, since they wait as well.
    let is_free = |name: &str| {
        !name.starts_with("net.") && (!name.ends_with(".wire_share") || name.starts_with("fused."))
    };
    fit_by(&topology.constants, &measured, &predict, &is_free)
}

/// The constants under which `predict` comes nearest to the measured times (in µs, in its order), from those
/// of `start`. Only those move whose name `is_free` accepts.
pub fn fit_by(
    start: &Constants,
    measured: &[f64],
    predict: &dyn Fn(&Constants) -> Vec<f64>,
    is_free: &dyn Fn(&str) -> bool,
) -> Fit {
    let problem = Problem::new(start, measured, predict, is_free);
    let mut x = vec![0.0; problem.free.len()];
    let (mut cost, mut damping) = (problem.cost(&x), 1e-3);
    for _ in 0..ROUNDS {
        let Some(step) = problem.step(&x, damping) else { break };
        let next: Vec<f64> = x.iter().zip(&step).map(|(x, d)| x + d.clamp(-1.0, 1.0)).collect();
        let new = problem.cost(&next);
        let moved = step.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
        if new < cost {
            (x, cost, damping) = (next, new, damping / 4.0);
        } else {
            damping *= 5.0;
        }
        if moved < 1e-6 || damping > 1e9 {
            break;
        }
    }
    let constants = problem.constants(&x);
    Fit { constants, error_before: problem.error(start), error: problem.error(&constants) }
}

/// The measured times, their prediction, and which constants may move.
struct Problem<'a> {
    base: &'a Constants,
    measured: &'a [f64],
    predict: &'a dyn Fn(&Constants) -> Vec<f64>,
    /// The constants that may move, as positions in [`Constants::values`].
    free: Vec<usize>,
    /// The values of all constants at the beginning, above 0.
    start: Vec<f64>,
}

impl<'a> Problem<'a> {
    fn new(
        base: &'a Constants,
        measured: &'a [f64],
        predict: &'a dyn Fn(&Constants) -> Vec<f64>,
        is_free: &dyn Fn(&str) -> bool,
    ) -> Self {
        let names = base.named();
        let free = names.iter().enumerate().filter(|(_, (name, _))| is_free(name));
        let start = base.values().into_iter().map(|v| v.max(1e-3)).collect();
        Self { base, measured, predict, free: free.map(|(i, _)| i).collect(), start }
    }

    /// The constants at `x`: logarithms of factors.
    fn constants(&self, x: &[f64]) -> Constants {
        let mut values = self.start.clone();
        self.free.iter().zip(x).for_each(|(&i, x)| values[i] *= x.exp());
        self.base.with_values(&values)
    }

    /// Logarithms of predicted over measured times.
    fn misses(&self, constants: &Constants) -> Vec<f64> {
        let predicted = (self.predict)(constants);
        let miss = |(predicted, us): (f64, &f64)| (predicted.max(1e-6) / us.max(1e-6)).ln();
        predicted.into_iter().zip(self.measured).map(miss).collect()
    }

    fn residuals(&self, x: &[f64]) -> Vec<f64> {
        self.misses(&self.constants(x)).into_iter().map(|miss| miss / NOISE).collect()
    }

    fn cost(&self, x: &[f64]) -> f64 {
        let tamed = |r: f64| 2.0 * TAME * TAME * ((1.0 + (r / TAME).powi(2)).sqrt() - 1.0);
        let data: f64 = self.residuals(x).into_iter().map(tamed).sum();
        data + x.iter().map(|x| (x / PRIOR).powi(2)).sum::<f64>()
    }

    /// A damped Gauss-Newton step from `x`; None where there is none.
    fn step(&self, x: &[f64], damping: f64) -> Option<Vec<f64>> {
        let n = x.len();
        let at = self.residuals(x);
        let weights: Vec<f64> = at.iter().map(|r| 1.0 / (1.0 + (r / TAME).powi(2)).sqrt()).collect();
        let slopes: Vec<Vec<f64>> = (0..n)
            .map(|j| {
                let mut beside = x.to_vec();
                beside[j] += 1e-4;
                self.residuals(&beside).iter().zip(&at).map(|(b, a)| (b - a) / 1e-4).collect()
            })
            .collect();
        let dot = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).zip(&weights).map(|((a, b), weight)| a * b * weight).sum()
        };
        let mut matrix = vec![vec![0.0; n]; n];
        let mut right = vec![0.0; n];
        for j in 0..n {
            for k in 0..n {
                matrix[j][k] = dot(&slopes[j], &slopes[k]);
            }
            matrix[j][j] += PRIOR.powi(-2);
            matrix[j][j] *= 1.0 + damping;
            right[j] = -dot(&slopes[j], &at) - x[j] / PRIOR.powi(2);
        }
        solve(matrix, right)
    }

    /// Median factor between predicted and measured.
    fn error(&self, constants: &Constants) -> f64 {
        let mut misses: Vec<f64> = self.misses(constants).into_iter().map(f64::abs).collect();
        misses.sort_by(f64::total_cmp);
        misses.get(misses.len() / 2).map_or(1.0, |miss| miss.exp())
    }
}

/// Solves `matrix * x = right` by elimination with pivots; None if it has no single solution.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let n = right.len();
    for column in 0..n {
        let pivot =
            (column..n).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let top = matrix[column].clone();
        if !top[column].is_normal() {
            return None;
        }
        for row in column + 1..n {
            let factor = matrix[row][column] / top[column];
            matrix[row].iter_mut().zip(&top).skip(column).for_each(|(cell, top)| *cell -= factor * top);
            right[row] -= factor * right[column];
        }
    }
    let mut x = vec![0.0; n];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|k| matrix[row][k] * x[k]).sum();
        x[row] = (right[row] - known) / matrix[row][row];
    }
    x.iter().all(|x| x.is_finite()).then_some(x)
}
