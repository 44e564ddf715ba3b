//! One validated call: what the user asked for. After [`Call::validate`] nobody checks again.

use crate::collective::Collective;
use crate::data::{DataType, ReduceOp, Scalar};
use crate::error::{PlanError, Result};

/// A collective call after validation. Buffers are opaque addresses: only a device looks behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The collective that is called.
    pub collective: Collective,
    /// NCCL's count argument: elements per block (see [`Collective::input_blocks`]).
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Reduction; `Sum` where nothing is reduced.
    pub op: ReduceOp,
    /// Factor of `PreMulSum`.
    pub scalar: Scalar,
    /// Root rank; 0 where there is none.
    pub root: u32,
    /// Address of the input buffer, 0 where this rank has none.
    pub input: u64,
    /// Address of the output buffer, 0 where this rank has none.
    pub output: u64,
    /// Elements between two blocks of a buffer that has several, which the call leaves alone: 0 unless it is
    /// a range of the blocks of a larger call. Equal on all ranks.
    pub gap: u64,
}

impl Call {
    /// Checks what can be checked without a device: root, overflow, null buffers, op and type.
    pub fn validate(&self, ranks: u32, rank: u32) -> Result<()> {
        let name = self.collective.name();
        if self.root >= ranks {
            return Err(PlanError::argument(format!(
                "{name}: root {} is not a rank of this communicator (0..{})",
                self.root,
                ranks - 1
            )));
        }
        let blocks = u64::from(self.collective.input_blocks(ranks).max(self.collective.output_blocks(ranks)));
        let step = self.count.checked_add(self.gap);
        let bytes =
            step.and_then(|n| n.checked_mul(blocks)).and_then(|n| n.checked_mul(self.dtype.size() as u64));
        if bytes.is_none_or(|b| b > i64::MAX as u64) {
            return Err(PlanError::argument(format!(
                "{name}: count {} of {} in {blocks} blocks exceeds the address space",
                self.count,
                self.dtype.name()
            )));
        }
        if self.count == 0 {
            return Ok(());
        }
        if self.collective.has_input(rank, self.root) && self.input == 0 {
            return Err(PlanError::argument(format!("{name}: send buffer is NULL on rank {rank}")));
        }
        if self.collective.has_output(rank, self.root) && self.output == 0 {
            return Err(PlanError::argument(format!("{name}: receive buffer is NULL on rank {rank}")));
        }
        Ok(())
    }

    /// A call whose larger buffer has `bytes` bytes, or as many fewer as elements and blocks ask for; it has
    /// no buffers, and what reduces sums.
    pub fn of_bytes(collective: Collective, bytes: u64, dtype: DataType, root: u32, ranks: u32) -> Self {
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let count = bytes / dtype.size() as u64 / u64::from(blocks);
        let (op, scalar) = (ReduceOp::Sum, Scalar::Immediate(0));
        Self { collective, count, dtype, op, scalar, root, input: 0, output: 0, gap: 0 }
    }

    /// Bytes of one block of `count` elements.
    pub fn block_bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }

    /// Bytes from the beginning of a block to that of the next.
    pub fn step_bytes(&self) -> u64 {
        (self.count + self.gap) * self.dtype.size() as u64
    }

    /// Bytes from the beginning to the end of a buffer of `blocks` blocks.
    pub fn extent(&self, blocks: u32) -> u64 {
        match blocks {
            0 => 0,
            _ => self.step_bytes() * u64::from(blocks - 1) + self.block_bytes(),
        }
    }

    /// Bytes that decide the choice: the larger of input and output (nccl-tests' size).
    pub fn total_bytes(&self, ranks: u32) -> u64 {
        self.block_bytes()
            * u64::from(self.collective.input_blocks(ranks).max(self.collective.output_blocks(ranks)))
    }
}
