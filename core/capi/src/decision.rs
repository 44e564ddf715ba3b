//! Our own function that says what the last operation ran, and why (`hawser.h`).

use std::ffi::{c_char, c_uint};

use crate::args::{Out, Plain};
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
    executor: [u8; 8],
    rule: [u8; 256],
}

// SAFETY: integers, a float and bytes behind NCCL's header: any bytes are a value.
unsafe impl Plain for Answer {}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Answer>() == 432);

hawser_api! {
    /// Tells what the last operation of a communicator ran, and why.
    fn hawserLastDecision(comm: CommPtr, decision: Out<Answer>, text: Out<c_char>, capacity: usize) {
        let handle = comm.ready()?;
        let given = decision.input().read_versioned("decision", Answer::unset(), MAGIC)?;
        let mut answer = Answer { size: given.size, version: given.version, ..Answer::unset() };
        let mut said = String::new();
        if let Some(last) = handle.name(handle.comm.last_decision())? {
            (answer.known, answer.operation, answer.bytes) = (1, last.operation, last.bytes);
            answer.predicted_us = last.predicted_us;
            (answer.channels, answer.threads) = (last.channels, last.threads);
            fill(&mut answer.collective, &last.collective);
            fill(&mut answer.algorithm, &last.algorithm);
            fill(&mut answer.protocol, &last.protocol);
            fill(&mut answer.executor, last.executor);
            fill(&mut answer.rule, last.rule.as_deref().unwrap_or(""));
            said = last.text;
        }
        answer.text_bytes = said.len() + 1;
        if !text.is_null() && capacity > 0 {
            let part = cut(&said, capacity - 1).bytes().map(|byte| byte as c_char);
            text.set_all("text", part.chain([0]))?;
        }
        decision.set_prefix("decision", &answer, given.size)
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
            executor: [0; 8],
            rule: [0; 256],
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
    fn texts_are_cut_between_characters() {
        assert_eq!((cut("abc", 9), cut("abc", 2), cut("aµs", 2), cut("", 3)), ("abc", "ab", "a", ""));
        let mut field = [7u8; 4];
        fill(&mut field, "long");
        assert_eq!(field, *b"lon\x07");
    }
}
