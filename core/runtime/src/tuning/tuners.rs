//! The answers of tuner plugins about a call, the facts that ranks must have in common for them, and the
//! reasons for a choice.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hawser_base::env::{self, Explain};
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_plan::choose::{self, Advice, Candidate, Decision};
use hawser_plan::{Call, Class, Collective, PlanConfig, ReduceOp, Topology};
use hawser_plugin::Tuner;
use hawser_plugin::learner::Learner;
use hawser_plugin::tuner::{self, Answer, Function, Question, SettingsFile, TunerConfig, TunerContext};

use super::call_attributes::CallAttributes;
use super::tuner_bridge;
use crate::plugins;
use crate::record::{self, Shared, SharedRecord};

/// The smallest chunk that is followed, in bytes.
const LEAST_CHUNK: u64 = 512;
/// So many calls are remembered as explained.
const MOST_SHOWN: usize = 4096;

/// The tuners of a communicator, in the order in which they are asked.
#[derive(Default)]
pub struct Tuners {
    open: Vec<Arc<Open>>,
    /// The reason why one cannot be used at all: the communicator fails.
    failed: Option<String>,
    /// Calls that were explained.
    shown: Mutex<Vec<Shown>>,
    wants: Wants,
}

/// The facts that tuners want to know and that cost the host something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// True if calls are captured into graphs.
    pub in_graph: bool,
    /// True if they want to know how long operations take.
    pub times: bool,
}

/// A call without its addresses.
#[derive(PartialEq)]
struct Shown(Collective, u64, hawser_plan::DataType, ReduceOp, u32, CallAttributes);

struct Open {
    name: String,
    /// Opens it again, with other settings.
    tuner: Option<Arc<dyn Tuner>>,
    context: Box<dyn TunerContext>,
    /// It is asked about what NCCL asks no tuner about.
    wants_every: bool,
    has_failed: AtomicBool,
}

/// A choice and what tuners had to do with it.
#[derive(Debug, Clone, PartialEq)]
pub struct TunedDecision {
    /// The choice.
    pub choice: Decision,
    /// The remarks of each tuner that has something to say about the call, in lines.
    pub notes: Vec<String>,
    /// The class that a tuner has given to the operation.
    pub class: Option<Class>,
}

/// Candidates, what removed each, predicted times, what decided, and the rules of tuners.
impl fmt::Display for TunedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.choice.why)?;
        self.class.map_or(Ok(()), |class| write!(f, "\n  class: {}, by a tuner", class.name()))?;
        for note in &self.notes {
            for (at, line) in note.lines().enumerate() {
                write!(f, "\n  {}{line}", if at == 0 { "" } else { "  " })?;
            }
        }
        Ok(())
    }
}

impl Tuners {
    /// Opens all tuners of the process for a communicator. One that fails is left out; one whose settings are
    /// wrong fails the communicator, when ranks compare.
    pub fn open(comm_id: u64, topology: &Topology, plan_config: &PlanConfig, name: Option<&str>) -> Self {
        let mut tuners = Self::default();
        for candidate in plugins::tuners() {
            let tuner = &candidate.plugin;
            match tuner.open(&tuner_bridge::config(comm_id, topology, plan_config, name)) {
                Ok(context) => tuners.add(Some(tuner.clone()), tuner.name(), context),
                Err(error) if error.kind == hawser_plugin::ErrorKind::InvalidUsage => {
                    tuners.failed.get_or_insert(format!("tuner {}: {error}", tuner.name()));
                }
                Err(error) => log::warn(&format!("tuner {} is left out: {error}", tuner.name())),
            }
        }
        tuners
    }

    /// One tuner, for questions without a communicator.
    ///
    /// # Errors
    /// The tuner's.
    pub fn of(
        tuner: &dyn hawser_plugin::Tuner,
        topology: &Topology,
        plan_config: &PlanConfig,
        name: Option<&str>,
    ) -> Result<Self> {
        let mut tuners = Self::default();
        let context = tuner
            .open(&tuner_bridge::config(0, topology, plan_config, name))
            .map_err(|e| Error::invalid_usage(e.into_text()))?;
        tuners.add(None, tuner.name(), context);
        Ok(tuners)
    }

    fn add(&mut self, tuner: Option<Arc<dyn Tuner>>, name: &str, context: Box<dyn TunerContext>) {
        let (name, wants_every) = (name.to_owned(), context.wants_every_collective());
        let has_failed = AtomicBool::new(false);
        self.push(Arc::new(Open { name, tuner, context, wants_every, has_failed }));
    }

    fn push(&mut self, open: Arc<Open>) {
        self.wants.in_graph |= open.context.wants_in_graph();
        self.wants.times |= open.context.wants_times();
        self.open.push(open);
    }

    /// These tuners with the settings in these files instead of their own, where they take such; and a digest
    /// that is equal on ranks that then choose alike. Nothing changes here.
    ///
    /// # Errors
    /// The text says what is wrong with the files, or that no tuner takes any.
    pub fn with_settings(&self, config: &TunerConfig, files: &[SettingsFile]) -> Result<(Self, u64)> {
        let mut tuners = Self::default();
        let mut taken = false;
        for open in &self.open {
            let again = open.tuner.as_ref().map(|tuner| tuner.open_with(config, files));
            match again {
                Some(Ok(context)) => {
                    taken = true;
                    tuners.add(open.tuner.clone(), &open.name, context);
                }
                Some(Err(error)) if error.kind != hawser_plugin::ErrorKind::Unsupported => {
                    return Err(Error::invalid_usage(format!("tuner {}: {error}", open.name)));
                }
                _ => tuners.push(open.clone()),
            }
        }
        if !taken {
            let all: Vec<&str> = self.open.iter().map(|open| open.name.as_str()).collect();
            let text = format!("no tuner takes rules here; there are \"{}\"", all.join(", "));
            return Err(Error::invalid_usage(text));
        }
        let shared = tuners.shared();
        let compared: Vec<(&str, u64)> =
            shared.iter().flatten().map(|tuner| (&*tuner.name, tuner.digest)).collect();
        let digest = hawser_oob::sha256::hash(&record::encode(&compared));
        let first = digest.first_chunk().copied().unwrap_or_default();
        Ok((tuners, u64::from_le_bytes(first)))
    }

    /// The sources of the rules, for logs.
    pub fn sources(&self) -> String {
        let source = |open: &Arc<Open>| open.context.agreement().map(|agreement| agreement.source);
        self.open.iter().filter_map(source).collect::<Vec<_>>().join("; ")
    }

    /// True if one of them may ask for copy engines where the settings do not.
    pub fn wants_copy_engines(&self) -> bool {
        self.open.iter().any(|tuner| tuner.context.wants_copy_engines())
    }

    /// The facts that they want to know and that cost the host something.
    #[inline]
    pub fn wants(&self) -> Wants {
        self.wants
    }

    /// The trial that a collective is for.
    pub fn trial(&self, number: u64) -> Option<u32> {
        self.open.iter().find_map(|tuner| tuner.context.trial(number))
    }

    /// The first that learns; it is asked on rank 0.
    pub fn learner(&self, config: &TunerConfig) -> Option<Box<dyn Learner>> {
        let of = |open: &Arc<Open>| {
            let learner = open.tuner.as_ref()?.learner(config);
            let complain = |error: &_| log::warn(&format!("tuner {} does not learn: {error}", open.name));
            learner.inspect_err(complain).ok().flatten()
        };
        self.open.iter().find_map(of)
    }

    /// The record of this rank: the tuners that it has, with what their answers depend on.
    pub fn shared(&self) -> SharedRecord {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let shared = self.open.iter().map(|tuner| {
            let agreement = tuner.context.agreement();
            let (digest, source) = agreement.map_or((0, String::new()), |a| (a.digest, a.source));
            Shared { name: tuner.name.clone(), digest, source }
        });
        Ok(shared.collect())
    }

    /// The choice for a call, by the cost model and what tuners make of it.
    ///
    /// # Errors
    /// Nothing is left to choose from.
    pub fn choose(
        &self,
        call: &Call,
        attributes: CallAttributes,
        topology: &Topology,
        plan_config: &PlanConfig,
    ) -> Result<TunedDecision> {
        let candidates = choose::candidates(call, topology, plan_config)?;
        let Told { advice, notes, class } = self.advise(call, attributes, topology, &candidates);
        let choice = choose::decide(call, topology, plan_config, candidates, advice.as_ref())?;
        Ok(TunedDecision { choice, notes, class })
    }

    /// Settings for laying a choice over a call: with the chunk size that the last tuner with an opinion
    /// wants.
    pub fn plan_config<'k>(
        &self,
        call: &Call,
        attributes: CallAttributes,
        topology: &Topology,
        choice: &Decision,
        plan_config: &'k PlanConfig,
    ) -> Cow<'k, PlanConfig> {
        let (question, taken) =
            (tuner_bridge::question(call, attributes, topology), tuner_bridge::chosen(choice));
        let (Some(question), Some(taken)) = (question, taken) else { return Cow::Borrowed(plan_config) };
        if choice.route.is_fused() || choice.route.is_copied() {
            return Cow::Borrowed(plan_config);
        }
        let at = choice.route.slots();
        let slot = plan_config.slot_bytes[at];
        let ask = |tuner: &Open| {
            let asked = tuner.context.chunk_bytes(&question, &taken);
            asked.map_err(|error| tuner.complain(&error)).ok().flatten()
        };
        let Some(chunk) = self
            .open
            .iter()
            .filter(|tuner| tuner.is_for(&question))
            .filter_map(|tuner| ask(tuner))
            .next_back()
        else {
            return Cow::Borrowed(plan_config);
        };
        let mut plan_config = plan_config.clone();
        plan_config.slot_bytes[at] = slot.min(u32::try_from(chunk.max(LEAST_CHUNK)).unwrap_or(slot));
        Cow::Owned(plan_config)
    }

    /// Writes why a call runs as it does, if `HAWSER_EXPLAIN` wants that of this rank: once per call that
    /// differs.
    pub fn show(
        &self,
        name: &str,
        rank: u32,
        (call, attributes): (&Call, CallAttributes),
        chosen: &TunedDecision,
    ) {
        let wanted = match env::settings().explain {
            Explain::No => false,
            Explain::First => rank == 0,
            Explain::All => true,
        };
        let Some(mut shown) = wanted.then(|| self.shown.lock().ok()).flatten() else { return };
        if shown.len() >= MOST_SHOWN {
            shown.clear();
        }
        let this = Shown(call.collective, call.count, call.dtype, call.op, call.root, attributes);
        if !shown.contains(&this) {
            shown.push(this);
            log::explain(&format!("communicator {name}, rank {rank}: {chosen}"));
        }
    }

    /// The advice of the tuners about the candidates, if any has an opinion, and their remarks.
    ///
    /// Each tuner sees the times that the one before it left, and the last order counts. One that fails is
    /// ignored for this call.
    fn advise(
        &self,
        call: &Call,
        attributes: CallAttributes,
        topology: &Topology,
        candidates: &[Candidate],
    ) -> Told {
        if self.open.is_empty() || topology.size() == 1 {
            return Told::default();
        }
        let Some((question, mut table)) = tuner_bridge::asked(call, attributes, topology, candidates) else {
            return Told::default();
        };
        let mut advice = Said::default();
        for tuner in self.open.iter().filter(|tuner| tuner.is_for(&question)) {
            let before = table.clone();
            match tuner.tune(&question, &mut table) {
                Ok(answer) => advice.add(tuner, answer, &question, (&before, &table)),
                Err(error) => {
                    table = before;
                    tuner.complain(&error);
                }
            }
        }
        let Said { sources, notes, order, blocks, class } = advice;
        if sources.is_empty() {
            return Told { advice: None, notes, class };
        }
        let source = format!("tuner {}", sources.join(", "));
        log::info(Subsys::Tuning, || {
            format!("{} of {} bytes: advice of {source}", question.function.name(), question.bytes)
        });
        let order = order.filter(|place| table.get(*place).is_some_and(tuner::Candidate::is_possible));
        let advice = Some(Advice { source, order, us: times(&table), blocks });
        Told { advice, notes, class }
    }
}

/// The outcome of asking all tuners about a call.
#[derive(Default)]
struct Told {
    /// The advice, if any has an opinion.
    advice: Option<Advice>,
    /// Their remarks for people.
    notes: Vec<String>,
    /// The class that they give the operation.
    class: Option<Class>,
}

/// All that tuners have said about a call.
#[derive(Default)]
struct Said {
    /// The tuners with an opinion, and the reason of each.
    sources: Vec<String>,
    /// All that tuners tell people.
    notes: Vec<String>,
    /// The place of the candidate that was ordered last.
    order: Option<usize>,
    /// The number of channels that was wanted last.
    blocks: Option<u32>,
    /// The class that was wanted last.
    class: Option<Class>,
}

impl Said {
    /// Adds the answer of a tuner, with the candidates before and after it.
    fn add(
        &mut self,
        tuner: &Open,
        answer: Answer,
        question: &Question,
        (before, after): (&[tuner::Candidate<'_>], &[tuner::Candidate<'_>]),
    ) {
        let why = tuner.context.why(question, before).unwrap_or_default();
        if before != after || answer != Answer::default() {
            let first = why.lines().next().map_or_else(String::new, |line| format!(": {line}"));
            self.sources.push(format!("{}{first}", tuner.name));
        }
        if !why.is_empty() {
            self.notes.push(format!("tuner {}: {why}", tuner.name));
        }
        (self.order, self.blocks) = (answer.order.or(self.order), answer.channels.or(self.blocks));
        self.class = answer.class.and_then(|class| Class::numbered(class as u8)).or(self.class);
    }
}

/// The times by which the planner takes a candidate that no tuner orders: unmeasured ones have none where
/// others do.
fn times(table: &[tuner::Candidate<'_>]) -> Vec<Option<f32>> {
    // A time that is no number, or below 0, is no advice.
    let is_offered = |c: &tuner::Candidate<'_>| c.is_offered() && c.us >= 0.0;
    let any_measured = table.iter().any(|c| is_offered(c) && c.is_measured());
    let time = |c: &tuner::Candidate<'_>| is_offered(c) && (c.is_measured() || !any_measured);
    table.iter().map(|c| time(c).then_some(c.us)).collect()
}

impl Open {
    /// Asks the tuner, and keeps what it may not change as it was.
    fn tune(&self, question: &Question, table: &mut [tuner::Candidate<'_>]) -> hawser_plugin::Result<Answer> {
        let before = table.to_vec();
        let answer = self.context.tune(question, table)?;
        for (now, before) in table.iter_mut().zip(before) {
            now.decision = before.decision;
            if !before.is_possible() {
                *now = before;
            }
        }
        if let Some(place) = answer.order
            && !table.get(place).is_some_and(tuner::Candidate::is_possible)
        {
            let function = question.function.name();
            let text = format!("orders candidate {place} for {function}, which is impossible or not there");
            return Err(hawser_plugin::Error::internal(text));
        }
        Ok(answer)
    }

    fn is_for(&self, question: &Question) -> bool {
        self.wants_every || Function::ALL.contains(&question.function)
    }

    /// Says once that the tuner fails.
    fn complain(&self, error: &hawser_plugin::Error) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            log::warn(&format!("tuner {}: {error}; its advice is ignored where it fails", self.name));
        }
    }
}

/// Compares what all ranks told: with different tuners or rules they would decide differently.
///
/// # Errors
/// `InvalidUsage` that names ranks, tuners and where their settings are from.
pub fn check(records: &[SharedRecord]) -> Result<()> {
    let mut failed =
        records.iter().enumerate().filter_map(|(rank, record)| Some((rank, record.as_ref().err()?)));
    if let Some((rank, text)) = failed.next() {
        let others = failed.count();
        let also = if others == 0 { String::new() } else { format!(" (and {others} more ranks)") };
        return Err(Error::invalid_usage(format!("rank {rank}{also}: {text}")));
    }
    let told: Vec<&[Shared]> = records.iter().flatten().map(Vec::as_slice).collect();
    let names = |rank: usize| told[rank].iter().map(|tuner| &*tuner.name).collect::<Vec<_>>();
    if let Some(rank) = (1..told.len()).find(|rank| names(*rank) != names(0)) {
        let [first, other] = [0, rank].map(|rank| names(rank).join(", "));
        let text = format!("rank 0 has the tuners \"{first}\", rank {rank} has \"{other}\"");
        return Err(Error::invalid_usage(text)
            .remedy("give all ranks the same NCCL_TUNER_PLUGIN, readable everywhere"));
    }
    for at in 0..told.first().map_or(0, |first| first.len()) {
        let by_rank: Vec<&Shared> = told.iter().map(|tuners| &tuners[at]).collect();
        if let Some(rank) = by_rank.iter().position(|tuner| tuner.digest != by_rank[0].digest) {
            return Err(differing(&by_rank, rank));
        }
    }
    Ok(())
}

/// The error that says that rank `rank` and rank 0 differ in what a tuner depends on, of which each rank has
/// one.
fn differing(by_rank: &[&Shared], rank: usize) -> Error {
    let of = |first: usize| {
        let all: Vec<String> = (0..by_rank.len())
            .filter(|rank| by_rank[*rank].digest == by_rank[first].digest)
            .map(|rank| rank.to_string())
            .collect();
        let few = all.len().min(8);
        let more = if few < all.len() { format!(" and {} more", all.len() - few) } else { String::new() };
        let has = if all.len() == 1 { "rank" } else { "ranks" };
        format!("{has} {}{more}: {}", all[..few].join(", "), by_rank[first].source)
    };
    let tuner = &by_rank[0].name;
    let text = format!("the rules of tuner {tuner} differ between ranks. {}; {}", of(0), of(rank));
    let remedy = "give all ranks the same files (HAWSER_RULES, or hawser-rules.toml beside the library) and \
                  the same name of the communicator";
    Error::invalid_usage(text).remedy(remedy)
}

#[cfg(test)]
mod tests;
