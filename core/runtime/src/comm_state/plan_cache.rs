//! The plan cache of a communicator: programs repeat their calls, so what was chosen and compiled for a call,
//! or for a small batch of messages, is kept by the call's form and found again for other buffers.

use std::sync::{Arc, Mutex};

use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::p2p::Message;
use hawser_plan::{Call, CallOptions, Route};
use rustc_hash::FxHashMap;

use super::Compiled;
use crate::tuning::CallAttributes;

/// The most collectives that a communicator keeps.
const MOST_COLLECTIVES: usize = 4096;
/// The most batches that a communicator keeps, of 4 KiB each.
const MOST_BATCHES: usize = 64;
/// The most messages of a batch that is kept.
pub const MOST_KEPT_MESSAGES: usize = 16;

/// The plans that were compiled for the calls of a communicator, and the decision about the last operation.
#[derive(Default)]
pub struct PlanCache {
    collectives: FxHashMap<CallKey, Arc<Compiled>>,
    batches: FxHashMap<Box<[MessageForm]>, Arc<Mutex<KeptBatch>>>,
    last: Option<Last>,
}

/// The facts that the plan of a call depends on within a communicator: all of the call but its buffers, and
/// what tuners may ask. Few words, which are compared at every call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallKey {
    /// The collective, the type and the reduction by their numbers, a bit each for captured and registered
    /// calls and for windows, and the root.
    form: u64,
    count: u64,
    /// The parts that calls of usual programs lack.
    rare: Option<Box<Rare>>,
}

/// The parts of a key that few calls have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Rare {
    trial: Option<u32>,
    rule: Option<u64>,
    options: Option<CallOptions>,
    gap: u64,
}

impl CallKey {
    /// The key of a call with these attributes and options.
    pub fn new(call: &Call, attributes: CallAttributes, options: Option<CallOptions>) -> Self {
        let Call { collective, count, dtype, op, root, gap, .. } = *call;
        let CallAttributes { in_graph, registered, has_windows, trial, rule } = attributes;
        let flags = u8::from(in_graph) | u8::from(registered) << 1 | u8::from(has_windows) << 2;
        let small = u32::from_le_bytes([collective as u8, dtype as u8, op as u8, flags]);
        let is_rare = trial.is_some() || rule.is_some() || options.is_some() || gap > 0;
        let rare = is_rare.then(|| Box::new(Rare { trial, rule, options, gap }));
        Self { form: u64::from(small) | u64::from(root) << 32, count, rare }
    }
}

/// A message without its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct MessageForm {
    peer: u32,
    send: bool,
    bytes: u64,
}

/// The forms of a batch of messages, in their order; None for a batch that is too large to be kept.
pub struct BatchForm([MessageForm; MOST_KEPT_MESSAGES], usize);

impl BatchForm {
    /// The form of these messages.
    pub fn of(messages: &[Message]) -> Option<Self> {
        let mut forms = [MessageForm::default(); MOST_KEPT_MESSAGES];
        for (form, &Message { peer, send, bytes, .. }) in
            forms.get_mut(..messages.len())?.iter_mut().zip(messages)
        {
            *form = MessageForm { peer, send, bytes };
        }
        Some(Self(forms, messages.len()))
    }

    fn key(&self) -> &[MessageForm] {
        &self.0[..self.1]
    }
}

/// The launch of a small batch of messages, kept for when the batch comes again with other buffers.
pub struct KeptBatch {
    /// The launch; the addresses in it are those of the last time.
    pub plan: LaunchPlan,
    /// By message: the work and the base that take its address; None for a message without bytes.
    pub places: Vec<Option<(usize, usize)>>,
    /// The summary that is told of the batch.
    pub summary: BatchSummary,
}

impl KeptBatch {
    /// Fills in the addresses of the messages.
    pub fn bind(&mut self, messages: &[Message]) -> &mut LaunchPlan {
        for (message, place) in messages.iter().zip(&self.places) {
            if let Some((work, base)) = *place {
                self.plan.args.works[work].base[base] = message.addr;
            }
        }
        &mut self.plan
    }
}

/// The summary of messages that ran together.
#[derive(Debug, Clone, Copy)]
pub struct BatchSummary {
    /// The number of messages.
    pub messages: usize,
    /// The bytes of all messages together.
    pub bytes: u64,
    /// The protocol of the first launch.
    pub route: Route,
    /// The channels of all launches together.
    pub channels: u32,
}

/// The last operation, and its number.
pub enum Last {
    /// A collective.
    Collective(u64, Arc<Compiled>),
    /// A batch of messages.
    Batch(u64, BatchSummary),
    /// A collective that was a copy, since there is no other rank: it is planned when somebody asks.
    Copy(u64, Call),
}

impl PlanCache {
    /// The plan for a call that operation `number` makes, if its form came before.
    pub fn find(&mut self, key: &CallKey, number: u64) -> Option<Arc<Compiled>> {
        let compiled = self.collectives.get(key)?;
        match &mut self.last {
            // Programs repeat themselves: then only the number is another one.
            Some(Last::Collective(last, of_last)) if Arc::ptr_eq(of_last, compiled) => *last = number,
            last => *last = Some(Last::Collective(number, compiled.clone())),
        }
        Some(compiled.clone())
    }

    /// Keeps a plan that operation `number` had made; `again`: it holds for other calls of its form too.
    pub fn keep(&mut self, key: CallKey, number: u64, compiled: &Arc<Compiled>, again: bool) {
        self.last = Some(Last::Collective(number, compiled.clone()));
        if !again {
            return;
        }
        if self.collectives.len() >= MOST_COLLECTIVES {
            self.collectives.clear();
        }
        self.collectives.insert(key, compiled.clone());
    }

    /// The launch of a batch, if its form came before.
    pub fn find_batch(&self, form: &BatchForm) -> Option<Arc<Mutex<KeptBatch>>> {
        self.batches.get(form.key()).cloned()
    }

    /// Keeps the launch of a batch.
    pub fn keep_batch(&mut self, form: &BatchForm, batch: KeptBatch) -> Arc<Mutex<KeptBatch>> {
        if self.batches.len() >= MOST_BATCHES {
            self.batches.clear();
        }
        let batch = Arc::new(Mutex::new(batch));
        self.batches.insert(form.key().into(), batch.clone());
        batch
    }

    /// Remembers that messages ran.
    pub fn note_batch(&mut self, number: u64, batch: BatchSummary) {
        self.last = Some(Last::Batch(number, batch));
    }

    /// Remembers that a collective was a copy.
    pub fn note_copy(&mut self, number: u64, call: &Call) {
        self.last = Some(Last::Copy(number, *call));
    }

    /// The last operation; None before the first one and after all plans were forgotten.
    pub fn last(&self) -> Option<&Last> {
        self.last.as_ref()
    }

    /// Forgets all plans; what the last operation took is not known any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
