//! Asking all ranks how they are, over the connections for news: the question goes by the centre to all, the
//! answers come back the same way. Whoever asks waits for the answers; nobody else waits for anybody.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::log::{self, Subsys};
use rustc_hash::FxHashMap;

use super::lock;
use super::watch::Watch;
use super::wire::{Fields, Frame, Kind, frame_bytes};

/// The longest answer, in bytes.
pub(super) const LONGEST_ANSWER: usize = 12 << 10;
/// The longest notice, in bytes.
const LONGEST_NOTICE: usize = 2 << 10;
/// Answers that may be under way at once; who asks more often gets none.
const MOST_ANSWERING: u32 = 4;

/// The things that ranks ask each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Question {
    /// Asks a rank what it runs, and whom it waits for.
    Progress = 0,
    /// Asks a process for its ranks, and what each has called.
    Census = 1,
}

impl Question {
    /// The question of a frame; `None` if this version does not know it.
    fn parse(payload: &[u8]) -> Option<Self> {
        [Self::Progress, Self::Census].into_iter().find(|question| payload == [*question as u8])
    }
}

/// The function that makes a rank's answer.
type Hook = Box<dyn Fn(Question) -> Vec<u8> + Send + Sync>;
/// The function that takes a notice: the rank that it comes from, and the sentence.
type NoticeHook = Box<dyn Fn(u32, &str) + Send + Sync>;

/// An answer, and the rank that it comes from.
type Answer = (u32, Vec<u8>);

/// The questions and answers of a rank.
#[derive(Default)]
pub(super) struct Asking {
    /// Makes this rank's answers.
    hook: OnceLock<Hook>,
    /// Takes the notices of other ranks.
    notice: OnceLock<NoticeHook>,
    /// The questions of this rank that wait for answers, by number.
    open: Mutex<FxHashMap<u32, Sender<Answer>>>,
    /// The number of this rank's next question.
    next: AtomicU32,
    /// Threads that make an answer at the moment.
    answering: AtomicU32,
}

impl Asking {
    /// Sets what this rank answers, and what it does with notices. The first counts.
    pub fn on_ask(&self, hook: Hook, notice: NoticeHook) {
        let _ = self.hook.set(hook);
        let _ = self.notice.set(notice);
    }
}

impl Watch {
    /// Asks all ranks, this one too, and returns the answers that come within `limit`.
    pub fn ask(self: &Arc<Self>, question: Question, limit: Duration) -> Vec<(u32, Vec<u8>)> {
        let until = Instant::now() + limit;
        let number = self.asking.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = channel();
        lock(&self.asking.open).insert(number, sender);
        let asked = frame_bytes(Kind::Ask, tag(self.rank(), number), &[question as u8]);
        self.push_to_others(None, &asked.unwrap_or_default());
        self.answer(question, tag(self.rank(), number), None);
        let wanted = self.present();
        let collected = collect(&answers, wanted, until);
        lock(&self.asking.open).remove(&number);
        collected
    }

    /// Tells all other ranks a sentence for their logs.
    pub fn notify(&self, sentence: &str) {
        let end = sentence.floor_char_boundary(LONGEST_NOTICE);
        let bytes = frame_bytes(Kind::Notice, self.rank().into(), &sentence.as_bytes()[..end]);
        self.push_to_others(None, &bytes.unwrap_or_default());
    }

    /// Takes a frame of this protocol that came from another watcher. False if it is nonsense.
    pub fn take_question(self: &Arc<Self>, from: u32, frame: &Frame) -> bool {
        let bytes = || frame_bytes(frame.kind, frame.tag, &frame.payload).unwrap_or_default();
        match frame.kind {
            Kind::Ask => {
                let Some(question) = Question::parse(&frame.payload) else { return false };
                self.push_to_others(Some(from), &bytes());
                self.answer(question, frame.tag, Some(from));
            }
            Kind::Answer if asker(frame.tag) == self.rank() => {
                let mut fields = Fields::new(&frame.payload);
                let Ok(rank) = fields.u32() else { return false };
                if let Some(question) = lock(&self.asking.open).get(&(frame.tag as u32)) {
                    let _ = question.send((rank, fields.rest().to_vec()));
                }
            }
            Kind::Answer => self.push_to(asker(frame.tag), &bytes()),
            Kind::Notice => {
                self.push_to_others(Some(from), &bytes());
                if let Some(notice) = self.asking.notice.get() {
                    notice(frame.tag as u32, &String::from_utf8_lossy(&frame.payload));
                }
            }
            _ => return false,
        }
        true
    }

    /// Answers a question in a thread of its own, since the answer may take a while: to the watcher that it
    /// came from, or to this rank itself.
    fn answer(self: &Arc<Self>, question: Question, tag: u64, to: Option<u32>) {
        if self.asking.answering.fetch_add(1, Ordering::AcqRel) >= MOST_ANSWERING {
            self.asking.answering.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let watch = self.clone();
        let answer = move || {
            let mut bytes = watch.asking.hook.get().map_or_else(Vec::new, |hook| hook(question));
            bytes.truncate(LONGEST_ANSWER);
            match to {
                None => {
                    if let Some(question) = lock(&watch.asking.open).get(&(tag as u32)) {
                        let _ = question.send((watch.rank(), bytes));
                    }
                }
                Some(to) => {
                    let mut payload = watch.rank().to_le_bytes().to_vec();
                    payload.append(&mut bytes);
                    watch.push_to(to, &frame_bytes(Kind::Answer, tag, &payload).unwrap_or_default());
                }
            }
            watch.asking.answering.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = thread::Builder::new().name("hawser-answer".into()).spawn(answer) {
            self.asking.answering.fetch_sub(1, Ordering::AcqRel);
            log::info(Subsys::Bootstrap, || format!("a rank that asks gets no answer: no thread: {error}"));
        }
    }
}

/// The answers of `wanted` ranks, or of those that answer in time.
fn collect(answers: &Receiver<(u32, Vec<u8>)>, wanted: usize, until: Instant) -> Vec<(u32, Vec<u8>)> {
    let mut collected: Vec<(u32, Vec<u8>)> = Vec::new();
    while collected.len() < wanted {
        match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((rank, bytes)) => {
                if !collected.iter().any(|(known, _)| *known == rank) {
                    collected.push((rank, bytes));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    collected
}

/// The tag of question `number` of a rank.
fn tag(rank: u32, number: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(number)
}

/// The rank whose question has this tag.
fn asker(tag: u64) -> u32 {
    (tag >> 32) as u32
}
