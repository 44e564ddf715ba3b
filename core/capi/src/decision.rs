//! Our own functions that say what the last operation ran, and why, and how urgent the next ones are
//! (`hawser.h`).

use std::ffi::{c_char, c_uint};

use hawser_plan::{Executor, Route};
use hawser_runtime::LastDecision;

use crate::args::{self, In, Out, Plain};
use crate::config;
use crate::handle::CommPtr;

/// Magic number of `hawserDecision_t`.
pub const MAGIC: c_uint = 0x5241_5748;

/// The first part of `hawserDecision_t`, which has been the same since version 1.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Head {
    size: usize,
    magic: c_uint,
    version: c_uint,
    operation: u64,
    bytes: u64,
    predicted_us: f32,
    channels: c_uint,
    threads: c_uint,
    known: c_uint,
    text_bytes: usize,
    collective: [u8; 32],
    algorithm: [u8; 64],
    protocol: [u8; 16],
}

/// `hawserDecision_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Answer {
    head: Head,
    executor: [u8; 16],
    rule: [u8; 256],
    zero_copy: c_uint,
    reserved: c_uint,
}

// SAFETY: integers, a float and bytes behind NCCL's header: any bytes are a value.
unsafe impl Plain for Answer {}

/// `hawserDecision_t` as programs of version 1 know it: with shorter names of executors (`sm`, `dma`,
/// `host`), and with protocols that say who runs them (`SymLL`, `DMA`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FirstAnswer {
    head: Head,
    executor: [u8; 8],
    rule: [u8; 256],
}

// SAFETY: as for `Answer`.
unsafe impl Plain for FirstAnswer {}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Answer>() == 448 && size_of::<FirstAnswer>() == 432);

hawser_api! {
    /// Tells what the last operation of a communicator ran, and why.
    fn hawserLastDecision(comm: CommPtr, decision: Out<Answer>, text: Out<c_char>, capacity: usize) {
        let handle = comm.ready()?;
        let given = decision.input().read_versioned("decision", Answer::unset(), MAGIC)?;
        let mut answer = Answer::unset();
        (answer.head.size, answer.head.version) = (given.head.size, given.head.version);
        let last = handle.name(handle.comm.last_decision())?;
        if let Some(last) = &last {
            answer.take(last);
        }
        let said = last.as_ref().map_or("", |last| &last.text);
        answer.head.text_bytes = said.len() + 1;
        if !text.is_null() && capacity > 0 {
            let part = cut(said, capacity - 1).bytes().map(|byte| byte as c_char);
            text.set_all("text", part.chain([0]))?;
        }
        if given.head.version > 1 {
            return decision.set_prefix("decision", &answer, given.head.size);
        }
        let first = FirstAnswer::new(&answer, last.map(|last| last.route));
        decision.cast::<FirstAnswer>().set_prefix("decision", &first, given.head.size)
    }
}

hawser_api! {
    /// Gives the operations that are called on a communicator from now on a class.
    fn hawserCommSetClass(comm: CommPtr, operations: In<c_char>) {
        let handle = comm.ready()?;
        let text = operations.text().ok_or_else(|| args::null("operations"))?;
        handle.name(handle.comm.set_class(config::class("operations", &text)?))
    }
}

impl Answer {
    fn unset() -> Self {
        let head = Head {
            size: 0,
            magic: MAGIC,
            version: 0,
            operation: 0,
            bytes: 0,
            predicted_us: 0.0,
            channels: 0,
            threads: 0,
            known: 0,
            text_bytes: 0,
            collective: [0; 32],
            algorithm: [0; 64],
            protocol: [0; 16],
        };
        Self { head, executor: [0; 16], rule: [0; 256], zero_copy: 0, reserved: 0 }
    }

    /// Fills in a decision.
    fn take(&mut self, last: &LastDecision) {
        let head = &mut self.head;
        (head.known, head.operation, head.bytes) = (1, last.operation, last.bytes);
        (head.predicted_us, head.channels, head.threads) = (last.predicted_us, last.channels, last.threads);
        fill(&mut head.collective, &last.collective);
        fill(&mut head.algorithm, &last.algorithm);
        fill(&mut head.protocol, last.route.protocol.name());
        self.zero_copy = last.route.zero_copy.into();
        fill(&mut self.executor, last.route.executor.name());
        fill(&mut self.rule, last.rule.as_deref().unwrap_or(""));
    }
}

impl FirstAnswer {
    /// The same answer in the words of version 1.
    fn new(answer: &Answer, route: Option<Route>) -> Self {
        let Answer { head, rule, .. } = *answer;
        let mut first = Self { head: Head { protocol: [0; 16], ..head }, executor: [0; 8], rule };
        if let Some(route) = route {
            fill(&mut first.head.protocol, route.old_name());
            let executor = match route.executor {
                Executor::Interpreter | Executor::Fused => "sm",
                Executor::CopyEngine => "dma",
                Executor::Host => "host",
            };
            fill(&mut first.executor, executor);
        }
        first
    }
}

/// Writes as much of a text as fits before a NUL.
fn fill(field: &mut [u8], text: &str) {
    let part = cut(text, field.len() - 1);
    field[..part.len()].copy_from_slice(part.as_bytes());
}

/// The first bytes of a text, whole characters only.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_version_1_get_its_words() {
        let words = |route| {
            let first = FirstAnswer::new(&Answer::unset(), Some(route));
            let text = |field: &[u8]| String::from_utf8_lossy(field).trim_end_matches('\0').to_owned();
            (text(&first.head.protocol), text(&first.executor))
        };
        let pair = |protocol: &str, executor: &str| (protocol.to_owned(), executor.to_owned());
        assert_eq!(words(Route::ZERO_COPY), pair("SymDirect", "sm"));
        assert_eq!(words(Route::COPY_ENGINE), pair("DMA", "dma"));
        assert_eq!(words(Route::HOST), pair("Simple", "host"));
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!((cut("abc", 9), cut("abc", 2), cut("aµs", 2), cut("", 3)), ("abc", "ab", "a", ""));
        let mut field = [7u8; 4];
        fill(&mut field, "long");
        assert_eq!(field, *b"lon\x07");
    }
}
