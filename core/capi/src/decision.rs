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

/// `hawserDecision_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Answer {
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
        let mut answer = Answer { size: given.size, version: given.version, ..Answer::unset() };
        let last = handle.name(handle.comm.last_decision())?;
        if let Some(last) = &last {
            answer.take(last);
        }
        let said = last.as_ref().map_or("", |last| &last.text);
        answer.text_bytes = said.len() + 1;
        if !text.is_null() && capacity > 0 {
            let part = cut(said, capacity - 1).bytes().map(|byte| byte as c_char);
            text.set_all("text", part.chain([0]))?;
        }
        if given.version > 1 {
            return decision.set_prefix("decision", &answer, given.size);
        }
        let first = FirstAnswer::new(&answer, last.map(|last| last.route));
        decision.cast::<FirstAnswer>().set_prefix("decision", &first, given.size)
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
        Self {
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
            executor: [0; 16],
            rule: [0; 256],
            zero_copy: 0,
            reserved: 0,
        }
    }

    /// Fills in a decision.
    fn take(&mut self, last: &LastDecision) {
        (self.known, self.operation, self.bytes) = (1, last.operation, last.bytes);
        (self.predicted_us, self.channels, self.threads) = (last.predicted_us, last.channels, last.threads);
        self.zero_copy = last.route.zero_copy.into();
        fill(&mut self.collective, &last.collective);
        fill(&mut self.algorithm, &last.algorithm);
        fill(&mut self.protocol, last.route.protocol.name());
        fill(&mut self.executor, last.route.executor.name());
        fill(&mut self.rule, last.rule.as_deref().unwrap_or(""));
    }
}

impl FirstAnswer {
    fn new(answer: &Answer, route: Option<Route>) -> Self {
        let Answer { size, magic, version, operation, bytes, predicted_us, channels, threads, known, .. } =
            *answer;
        let Answer { text_bytes, collective, algorithm, rule, .. } = *answer;
        let (mut protocol, mut executor) = ([0; 16], [0; 8]);
        if let Some(route) = route {
            fill(&mut protocol, route.old_name());
            fill(
                &mut executor,
                match route.executor {
                    Executor::Interpreter | Executor::Fused => "sm",
                    Executor::CopyEngine => "dma",
                    Executor::Host => "host",
                },
            );
        }
        Self {
            size,
            magic,
            version,
            operation,
            bytes,
            predicted_us,
            channels,
            threads,
            known,
            text_bytes,
            collective,
            algorithm,
            protocol,
            executor,
            rule,
        }
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
            (text(&first.protocol), text(&first.executor))
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
