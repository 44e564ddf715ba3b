//! The calls that carry one partition: a range of elements of every block of the collective.

use hawser_base::error::{Error, Result};
use hawser_device::Stream;
use hawser_plan::executor::launch::PACK_BYTES;
use hawser_plan::vector::{Parts, Vector};
use hawser_plan::{Call, CallOptions, Collective};

use crate::comm::{Comm, group};

/// A range of elements of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first element.
    pub first: u64,
    /// The number of elements.
    pub count: u64,
}

/// The way in which a partition goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As one call: of the collective itself, or of the range of its only block.
    Whole,
    /// As one call whose blocks lie apart.
    Apart,
    /// As messages, or for a reduce-scatter as a reduction to each rank, in one group.
    Several,
}

impl Way {
    /// The way of a partition; all ranks find the same.
    ///
    /// # Errors
    /// The communicator is gone.
    pub fn new(comm: &Comm, call: &Call, range: Range, options: Option<&CallOptions>) -> Result<Self> {
        let ranks = comm.ranks();
        let blocks = call.collective.input_blocks(ranks).max(call.collective.output_blocks(ranks));
        if range.count == 0 || is_whole(call, range) || blocks == 1 {
            return Ok(Self::Whole);
        }
        let is_served = comm.state()?.serves_apart(&apart(call, range), options);
        Ok(if is_served { Self::Apart } else { Self::Several })
    }
}

/// Puts what carries a partition on a stream; on the host device it is over afterwards.
pub fn carry_out(
    comm: &Comm,
    call: &Call,
    (range, way): (Range, Way),
    options: Option<&CallOptions>,
    stream: Stream,
) -> Result<()> {
    if range.count == 0 {
        return Ok(());
    }
    let part = match way {
        Way::Whole => Call { gap: 0, ..apart(call, range) },
        Way::Apart => apart(call, range),
        Way::Several => return carry_part(comm, call, range, options, stream),
    };
    comm.collective_with(part, options.cloned().map(Box::new), stream)
}

/// The call for a range of each block of a call.
fn apart(call: &Call, range: Range) -> Call {
    let at = |addr: u64| if addr == 0 { 0 } else { addr + range.first * call.dtype.size() as u64 };
    let gap = call.count - range.count;
    Call { count: range.count, gap, input: at(call.input), output: at(call.output), ..*call }
}

/// Does once what [`carry_out`] will do, with data of no meaning in memory that nobody else uses: afterwards
/// all plans and connections that it needs are there, and all kernels are loaded.
pub fn rehearse(
    comm: &Comm,
    call: &Call,
    (range, way): (Range, Way),
    options: Option<&CallOptions>,
    (scratch, stream): (u64, Stream),
) -> Result<()> {
    if range.count == 0 {
        return Ok(());
    }
    let [input_bytes, _] = rehearsal_bytes(call, (range, way), comm.ranks());
    let count = range.count + gap_of(call, way);
    let small = Call { count, input: scratch, output: scratch + input_bytes, ..*call };
    carry_out(comm, &small, (Range { first: 0, ..range }, way), options, stream)
}

/// Elements between the blocks of a rehearsal: as few as leave them where kernels want data to begin.
fn gap_of(call: &Call, way: Way) -> u64 {
    if way == Way::Apart { PACK_BYTES / call.dtype.size() as u64 } else { 0 }
}

/// The bytes of input and output of a rehearsal.
pub fn rehearsal_bytes(call: &Call, (range, way): (Range, Way), ranks: u32) -> [u64; 2] {
    let (one, all) = (1, u64::from(ranks));
    let [inputs, outputs] = match call.collective {
        Collective::AllGather | Collective::Gather => [one, all],
        Collective::ReduceScatter | Collective::Scatter => [all, one],
        Collective::AllToAll => [all, all],
        _ => [one, one],
    };
    // Outputs begin where buffers of programs do.
    let block = (range.count + gap_of(call, way)) * call.dtype.size() as u64;
    [(inputs * block).next_multiple_of(512), outputs * block]
}

/// True if a partition is the whole collective.
fn is_whole(call: &Call, range: Range) -> bool {
    range == Range { first: 0, count: call.count }
}

/// Carries a partition that is not the whole collective, and whose blocks lie apart.
fn carry_part(
    comm: &Comm,
    call: &Call,
    range: Range,
    options: Option<&CallOptions>,
    stream: Stream,
) -> Result<()> {
    let options = || options.cloned().map(Box::new);
    if let Some(owners) = reductions(call, range, comm.ranks(), comm.rank()) {
        group::start()?;
        let added = owners.iter().try_for_each(|call| comm.collective_with(*call, options(), stream));
        return group::end().and(added);
    }
    let (ranks, size) = (comm.ranks(), call.dtype.size() as u64);
    let counts = vec![range.count; ranks as usize];
    let displs: Vec<u64> = (0..u64::from(ranks)).map(|rank| rank * call.count + range.first).collect();
    let blocks = Parts { counts: &counts, displs: Some(&displs) };
    let at = |addr: u64| if addr == 0 { 0 } else { addr + range.first * size };
    let (input, output, count, root) = (call.input, call.output, range.count, call.root);
    let is_root = comm.rank() == root;
    let vector = match call.collective {
        Collective::AllToAll => Vector::AllToAll { input, sends: blocks, output, recvs: blocks },
        Collective::AllGather => Vector::AllGather { input: at(input), count, output, recvs: blocks },
        Collective::Gather => {
            Vector::Gather { input: at(input), count, output, recvs: is_root.then_some(blocks), root }
        }
        Collective::Scatter => {
            Vector::Scatter { input, sends: is_root.then_some(blocks), output: at(output), count, root }
        }
        collective => {
            return Err(Error::internal(format!("{} in parts that are no call", collective.name())));
        }
    };
    comm.vector(&vector, call.dtype, stream)
}

/// The reductions that make up a range of a reduce-scatter: one to each rank.
fn reductions(call: &Call, range: Range, ranks: u32, rank: u32) -> Option<Vec<Call>> {
    if call.collective != Collective::ReduceScatter {
        return None;
    }
    let size = call.dtype.size() as u64;
    let to = |root: u32| Call {
        collective: Collective::Reduce,
        root,
        count: range.count,
        input: call.input + (u64::from(root) * call.count + range.first) * size,
        output: if root == rank { call.output + range.first * size } else { 0 },
        ..*call
    };
    Some((0..ranks).map(to).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_reduce_scatter_is_a_reduction_to_each_rank() {
        let bytes = 3 * 10 * 4;
        let call = Call { input: 1_000, output: 9_000, ..call(Collective::ReduceScatter, bytes) };
        assert_eq!(call.count, 10);
        let parts = reductions(&call, Range { first: 4, count: 3 }, 3, 1).unwrap();
        let places: Vec<_> = parts.iter().map(|part| (part.root, part.input, part.output)).collect();
        assert_eq!(places, [(0, 1_016, 0), (1, 1_056, 9_016), (2, 1_096, 0)]);
        assert!(parts.iter().all(|part| part.count == 3 && part.collective == Collective::Reduce));
        assert!(
            reductions(
                &Call { collective: Collective::AllReduce, ..call },
                Range { first: 0, count: 1 },
                3,
                1
            )
            .is_none()
        );
    }

    #[test]
    fn a_range_of_blocks_is_a_call_whose_blocks_lie_apart() {
        let whole = Call { input: 1_000, output: 0, ..call(Collective::ReduceScatter, 3 * 10 * 4) };
        let part = apart(&whole, Range { first: 4, count: 3 });
        assert_eq!((part.count, part.gap, part.input, part.output), (3, 7, 1_016, 0));
        assert_eq!((part.step_bytes(), part.extent(3), part.extent(0)), (40, 92, 0));
        // A rehearsal has room for its gaps.
        let range = Range { first: 4, count: 3 };
        assert_eq!(rehearsal_bytes(&whole, (range, Way::Apart), 3), [512, 28]);
        assert_eq!(rehearsal_bytes(&whole, (Range { count: 40, ..range }, Way::Several), 3), [512, 160]);
    }

    fn call(collective: Collective, bytes: u64) -> Call {
        Call::of_bytes(collective, bytes, hawser_plan::DataType::Float32, 0, 3)
    }
}
