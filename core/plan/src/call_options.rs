//! The wishes of one call, over the settings of its communicator (`ncclCollConfig_t`).

use hawser_types::{Algorithm, Class, Collective, Executor, Handle, PlanError, Result, Route, Routes};

use crate::config::{ALL_PROGRAMS, PlanConfig, algorithm_bit, word_bits};

/// The options of one call. Equal on all ranks, by NCCL's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CallOptions {
    /// The algorithms and routes that may run.
    pub selection: Selection,
    /// True if a selection that leaves nothing, or a rule that does not decide, is an error; otherwise the
    /// choice is free then.
    pub is_forced: bool,
    /// The only rule of tuners that counts, by the number of its name.
    pub rule: Option<u64>,
    /// The program of a call that names one by itself, as those of no known collective do.
    pub program: Option<Handle>,
    /// The number that the program gives the call for profilers; 0 for none. It decides nothing.
    pub tag: u64,
    /// Fewest CTAs.
    pub min_ctas: Option<u32>,
    /// Most CTAs, within the communicator's.
    pub max_ctas: Option<u32>,
    /// True if copy engines are to do what they can, which needs the communicator's staging; false if kernels
    /// are to do everything.
    pub copy_engines: Option<bool>,
    /// The level of reproducible reductions ([`PlanConfig::reproducible`]), instead of the communicator's.
    pub reproducible: Option<u8>,
    /// The class of the call, instead of the communicator's. It decides when the call runs, not how.
    pub class: Option<Class>,
}

/// Algorithms and routes that may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Selection {
    /// A set of [`algorithm_bit`]s; None = all.
    algorithms: Option<u64>,
    /// A bit for each [`Route::index`]; None = all.
    routes: Option<u64>,
}

impl Selection {
    /// Reads words with commas between them, in any case, with or without underscores: names of algorithms
    /// (`RING`, `COLLNET_DIRECT`), of protocols, routes and executors (`LL128`, `fused/LL`, `copy_engine`),
    /// and both together (`RING_LL`). A call runs one of the algorithms, if any is named, by one of the
    /// routes, if any is named. NVLS and NCCL's symmetric kernels (`SYMK_…`) are known words for which
    /// there is nothing here.
    ///
    /// # Errors
    /// `InvalidArgument` that names the unknown word.
    pub fn parse(text: &str) -> Result<Self> {
        let mut selection = Self::default();
        for word in text.split(',') {
            let (algorithms, routes) = parse_word(word).ok_or_else(|| {
                PlanError::argument(format!(
                    "\"{}\" is no algorithm, protocol or executor: write words such as RING, RING_LL or {}",
                    word.trim(),
                    Executor::Fused.name()
                ))
            })?;
            for (set, bits) in [(&mut selection.algorithms, algorithms), (&mut selection.routes, routes)] {
                *set = bits.map_or(*set, |bits| Some(set.unwrap_or(0) | bits));
            }
        }
        Ok(selection)
    }

    /// The same, by one executor only: `interpreter`, `fused`, `copy_engine` or `host`. The host device runs
    /// what the interpreter runs on GPUs.
    ///
    /// # Errors
    /// `InvalidArgument` that names the unknown word.
    pub fn by_executor(self, name: &str) -> Result<Self> {
        let executor = Executor::ALL.into_iter().find(|executor| plain(executor.name()) == plain(name));
        let executor = executor.ok_or_else(|| {
            let known = Executor::ALL.map(Executor::name).join(", ");
            PlanError::argument(format!("\"{}\" is no executor: use one of {known}", name.trim()))
        })?;
        Ok(self.by(|route| {
            let stands_for = if route == Route::HOST { Executor::Interpreter } else { route.executor };
            executor == route.executor || executor == stands_for
        }))
    }

    /// The same, by one protocol only, whatever the executor: `LL`, `LL128` or `Simple`.
    ///
    /// # Errors
    /// `InvalidArgument` that names the unknown word.
    pub fn by_protocol(self, name: &str) -> Result<Self> {
        let is_it = |route: &Route| plain(route.protocol.name()) == plain(name);
        if !Route::ALL.iter().any(is_it) {
            let text = format!("\"{}\" is no protocol: use LL, LL128 or Simple", name.trim());
            return Err(PlanError::argument(text));
        }
        Ok(self.by(|route| is_it(&route)))
    }

    /// The same, by some of the routes only.
    fn by(self, may_run: impl Fn(Route) -> bool) -> Self {
        let bit = |route: Route| 1u64 << route.index();
        let bits =
            Route::ALL.into_iter().filter(|route| may_run(*route)).map(bit).fold(0, |all, bit| all | bit);
        Self { routes: Some(self.routes.unwrap_or(u64::MAX) & bits), ..self }
    }

    /// True if everything may run.
    pub fn is_free(&self) -> bool {
        *self == Self::default()
    }
}

impl CallOptions {
    /// True if the call asks for nothing that decides how it runs.
    pub fn is_default(&self) -> bool {
        let Self { selection, rule, program, min_ctas, max_ctas, copy_engines, reproducible, .. } = self;
        let is_any = rule.is_some()
            || program.is_some()
            || min_ctas.is_some()
            || max_ctas.is_some()
            || copy_engines.is_some()
            || reproducible.is_some();
        selection.is_free() && !is_any
    }

    /// The part of the options that decides how the call runs.
    #[must_use]
    pub fn deciding(self) -> Self {
        Self { tag: 0, class: None, ..self }
    }
}

impl PlanConfig {
    /// The settings for a call of this collective that has options.
    #[must_use]
    pub fn of_call(&self, collective: Collective, options: &CallOptions) -> Self {
        let mut config = self.clone();
        let at = Collective::ALL.iter().position(|&it| it == collective).unwrap_or(0);
        if let Some(mask) = options.selection.algorithms {
            config.algorithms[at] = Some(mask & config.algorithms[at].unwrap_or(u64::MAX));
        }
        if let Some(bits) = options.selection.routes {
            let allowed = config.routes[at].unwrap_or(Routes::ALL);
            config.routes[at] =
                Some(Routes::that(|route| bits >> route.index() & 1 != 0 && allowed.contains(route)));
        }
        if let Some(program) = options.program {
            config.imports = vec![program];
        }
        config.max_ctas = options.max_ctas.map_or(config.max_ctas, |most| most.clamp(1, config.max_ctas));
        config.min_ctas = options.min_ctas.unwrap_or(config.min_ctas).min(config.max_ctas);
        config.reproducible = options.reproducible.unwrap_or(config.reproducible);
        let has_staging = self.pass_sm > 0 || self.copy_engines;
        match options.copy_engines {
            Some(true) if has_staging => config.pass_sm = config.pass_sm.max(1),
            Some(false) => config.pass_sm = 0,
            _ => {}
        }
        config
    }
}

/// The algorithms and the routes that a word names.
fn parse_word(word: &str) -> Option<(Option<u64>, Option<u64>)> {
    let word = plain(word);
    if let Some(bits) = algorithm_named(&word) {
        return Some((Some(bits), None));
    }
    if let Some(bits) = routes_named(&word) {
        return Some((None, Some(bits)));
    }
    if word.starts_with("symk") {
        return Some((Some(0), None));
    }
    ["ll128", "simple", "ll"].iter().find_map(|protocol| {
        let algorithm = algorithm_named(word.strip_suffix(protocol)?)?;
        Some((Some(algorithm), routes_named(protocol)))
    })
}

fn plain(word: &str) -> String {
    word.trim().replace('_', "").to_ascii_lowercase()
}

fn algorithm_named(word: &str) -> Option<u64> {
    match word {
        "nvls" | "nvlstree" => return Some(0),
        "collnetdirect" | "collnetchain" => return Some(algorithm_bit(Algorithm::CollNet)),
        "msccl" => return Some(ALL_PROGRAMS),
        _ => {}
    }
    let found = Algorithm::ALL.iter().find(|algorithm| plain(algorithm.name()) == word);
    found.map(|algorithm| word_bits(*algorithm))
}

/// The routes of a protocol, a route or an executor. The host device runs what the interpreter runs on GPUs.
fn routes_named(word: &str) -> Option<u64> {
    let is_it = |route: Route| {
        let is_protocol = route == Route::interpreter(route.protocol) && plain(route.protocol.name()) == word;
        is_protocol || plain(route.name()) == word || plain(route.executor.name()) == word
    };
    let bit = |route: Route| 1u64 << route.index();
    let bits = Route::ALL.into_iter().filter(|route| is_it(*route)).map(bit).fold(0, |all, bit| all | bit);
    let host = if bits & bit(Route::SIMPLE) != 0 { bit(Route::HOST) } else { 0 };
    (bits != 0).then_some(bits | host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<u64>, Option<u64>) {
        let Selection { algorithms, routes } = Selection::parse(text).unwrap();
        (algorithms, routes)
    }

    fn routes(of: &[Route]) -> Option<u64> {
        Some(of.iter().map(|route| 1 << route.index()).sum())
    }

    #[test]
    fn a_tag_and_a_class_decide_nothing() {
        let class = Some(Class::Urgent);
        let tagged = CallOptions { tag: 7, class, ..CallOptions::default() };
        assert!(tagged.is_default() && tagged.deciding() == CallOptions::default());
        assert!(!CallOptions { rule: Some(1), ..CallOptions::default() }.is_default());
    }

    #[test]
    fn words_are_nccls_and_ours() {
        let (ring, tree) = (word_bits(Algorithm::Ring), word_bits(Algorithm::Tree));
        assert_eq!(parse("RING"), (Some(ring), None));
        assert_eq!(parse(" ring , Tree"), (Some(ring | tree), None));
        assert_eq!(parse("RING_LL"), (Some(ring), routes(&[Route::LL])));
        assert_eq!(parse("TREE_LL128"), (Some(tree), routes(&[Route::LL128])));
        assert_eq!(parse("ring,simple"), (Some(ring), routes(&[Route::SIMPLE, Route::HOST])));
        assert_eq!(parse("fused/LL"), (None, routes(&[Route::FUSED_LL])));
        assert_eq!(parse("host"), (None, routes(&[Route::HOST])));
        assert_eq!(parse("copy_engine"), (None, routes(&[Route::COPY_ENGINE])));
        assert_eq!(parse("COLLNET_DIRECT_SIMPLE").0, Some(algorithm_bit(Algorithm::CollNet)));
        assert_eq!(parse("NVLSTREE_SIMPLE").0, Some(0));
        assert_eq!(parse("SYMK_AGxLL_R"), (Some(0), None));
        let narrowed = |selection: Selection| selection.routes;
        let free = Selection::default();
        let fused = free.by_executor("Fused").unwrap();
        let is_fused = [Route::FUSED_LL, Route::FUSED_LL128, Route::FUSED_SIMPLE, Route::ZERO_COPY];
        assert_eq!(narrowed(fused), routes(&is_fused));
        assert_eq!(narrowed(fused.by_protocol("ll").unwrap()), routes(&[Route::FUSED_LL]));
        let plain = free.by_protocol("Simple").unwrap().by_executor("interpreter").unwrap();
        assert_eq!(narrowed(plain), routes(&[Route::SIMPLE, Route::HOST]));
        let nothing = Selection::parse("LL").unwrap().by_executor("copy_engine").unwrap();
        assert_eq!(narrowed(nothing), Some(0));
        assert!(free.by_executor("LL").is_err() && free.by_protocol("fused").is_err());
        for algorithm in Algorithm::ALL {
            assert_eq!(parse(algorithm.name()).0, Some(word_bits(algorithm)));
        }
        for wrong in ["", "warp", "ring;tree", "ring,", "ring_ll64", "_"] {
            assert!(Selection::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_narrow_what_the_communicator_allows() {
        let base = PlanConfig { max_ctas: 8, min_ctas: 2, ..PlanConfig::default() };
        let selection = Selection::parse("RING_SIMPLE").unwrap();
        let (max_ctas, min_ctas) = (Some(4), Some(6));
        let options = CallOptions { selection, max_ctas, min_ctas, ..CallOptions::default() };
        let config = base.of_call(Collective::AllReduce, &options);
        assert_eq!((config.min_ctas, config.max_ctas, config.pass_sm), (4, 4, 0));
        let at = Collective::ALL.iter().position(|&it| it == Collective::AllReduce).unwrap();
        assert_eq!(config.algorithms[at], Some(word_bits(Algorithm::Ring)));
        assert!(config.routes[at].unwrap().contains(Route::HOST));
        assert_eq!(config.algorithms.iter().flatten().count(), 1, "other collectives are as they were");
        // What the process leaves out stays out.
        let tree = PlanConfig { algorithms: PlanConfig::parse_algo("tree").unwrap(), ..base.clone() };
        assert_eq!(tree.of_call(Collective::AllReduce, &options).algorithms[at], Some(0));
        let wide = CallOptions { max_ctas: Some(64), ..CallOptions::default() };
        assert_eq!(base.of_call(Collective::AllReduce, &wide).max_ctas, 8);
        let reproducible = CallOptions { reproducible: Some(2), ..CallOptions::default() };
        assert!(!reproducible.is_default());
        assert_eq!(base.of_call(Collective::AllReduce, &reproducible).reproducible, 2);
        let copied = CallOptions { copy_engines: Some(true), ..CallOptions::default() };
        assert_eq!(base.of_call(Collective::Broadcast, &copied).pass_sm, 0, "no staging");
        let staged = PlanConfig { copy_engines: true, ..base };
        assert_eq!(staged.of_call(Collective::Broadcast, &copied).pass_sm, 1);
        let kernels = CallOptions { copy_engines: Some(false), ..CallOptions::default() };
        let passing = PlanConfig { pass_sm: 1, ..staged };
        assert_eq!(passing.of_call(Collective::Broadcast, &kernels).pass_sm, 0);
    }
}
