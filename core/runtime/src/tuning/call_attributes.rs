//! The facts that a choice depends on beside the call: all ranks find the same, by NCCL's contract.
//!
//! Whether an operation is captured into a graph is a property of the operation on all ranks, as NCCL demands
//! it. Buffers count as registered if both lie in symmetric windows (`ncclCommWindowRegister` with
//! `NCCL_WIN_COLL_SYMMETRIC`), which all ranks make and use alike. A registration that a rank makes by itself
//! (`ncclCommRegister`) tells nothing about the others, so it does not count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use hawser_plan::Call;

/// The share of collectives that are timed where somebody learns from times, beside those of trials: one of
/// 2^4.
const TIMED_BITS: u32 = 4;
/// So many collectives before one of a trial are timed as well, to compare.
pub const TIMED_BEFORE: u64 = 4;

/// The attributes of a call that tuners may ask about and the call itself does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CallAttributes {
    /// It is captured into a graph.
    pub in_graph: bool,
    /// Its buffers are registered on all ranks.
    pub registered: bool,
    /// Kernels of all ranks reach some window of the communicator, or registered buffers of all ranks; the
    /// call's buffers need not lie in them.
    pub has_windows: bool,
    /// The trial that it is for.
    pub trial: Option<u32>,
    /// The only rule that counts, by the number of its name.
    pub rule: Option<u64>,
}

/// Symmetric windows of a communicator on this rank.
#[derive(Default)]
pub struct Windows {
    any: AtomicBool,
    list: Mutex<Vec<(u64, u64)>>,
}

impl Windows {
    /// One more.
    pub fn add(&self, base: u64, bytes: u64) {
        self.change(|list| list.push((base, bytes)));
    }

    /// It is none any more.
    pub fn remove(&self, base: u64, bytes: u64) {
        self.change(|list| {
            if let Some(at) = list.iter().position(|window| *window == (base, bytes)) {
                list.swap_remove(at);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(u64, u64)>)) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut list);
        self.any.store(!list.is_empty(), Ordering::Release);
    }

    /// True if both buffers of a call lie in windows.
    pub fn hold(&self, call: &Call, ranks: u32) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = [call.collective.input_blocks(ranks), call.collective.output_blocks(ranks)];
        [call.input, call.output].iter().zip(blocks).all(|(&addr, blocks)| {
            let end = addr.saturating_add(call.extent(blocks));
            // A rank without a buffer has nothing to register.
            addr == 0 || list.iter().any(|(base, bytes)| *base <= addr && end - base <= *bytes)
        })
    }
}

/// True if a collective is timed. Drawn, since calls repeat and each has to have its turn.
pub fn is_drawn(number: u64) -> bool {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - TIMED_BITS) == 0
}

#[cfg(test)]
mod tests {
    use hawser_plan::Scalar;
    use hawser_plan::{Collective, DataType, ReduceOp};

    use super::*;

    #[test]
    fn each_call_of_a_pattern_is_timed_at_times() {
        for period in 1..40 {
            for of_it in 0..period {
                let drawn = (0..16_000).filter(|round| is_drawn(round * period + of_it)).count();
                assert!((500..1_500).contains(&drawn), "{drawn} of call {of_it} of {period}");
            }
        }
    }

    #[test]
    fn both_buffers_have_to_lie_in_windows() {
        let windows = Windows::default();
        let call = |input, output| Call {
            collective: Collective::AllGather,
            count: 10,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            scalar: Scalar::Immediate(0),
            root: 0,
            input,
            output,
            gap: 0,
        };
        assert!(!windows.hold(&call(1000, 2000), 4));
        windows.add(1000, 40);
        assert!(!windows.hold(&call(1000, 2000), 4));
        windows.add(2000, 160);
        assert!(windows.hold(&call(1000, 2000), 4));
        assert!(!windows.hold(&call(1000, 2004), 4) && !windows.hold(&call(996, 2000), 4));
        assert!(!windows.hold(&call(1000, 2000), 5), "the output is longer");
        windows.remove(1000, 40);
        assert!(!windows.hold(&call(1000, 2000), 4));
        assert!(windows.hold(&call(0, 2000), 4), "no input here");
        windows.add(3000, u64::MAX);
        assert!(windows.hold(&call(4000, u64::MAX - 10), 4), "a window as long as addresses");
    }
}
