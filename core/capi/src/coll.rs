//! Collectives: arguments become one [`Call`] that the runtime plans and runs.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_plan::Scalar;
use hawser_plan::{Call, Collective, ReduceOp};
use hawser_runtime::{Result, Stream};

use crate::args::{self, In};
use crate::config;
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;
use crate::types::NcclCollConfig;

/// Reduction of calls that reduce nothing.
const NO_OP: c_int = 0;
/// Root of calls that have none.
const NO_ROOT: c_int = 0;

/// The arguments of a collective.
struct Request {
    collective: Collective,
    send: *const c_void,
    recv: *const c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    root: c_int,
    comm: CommPtr,
    stream: *const c_void,
    config: In<NcclCollConfig>,
}

macro_rules! collectives {
    ($($(#[doc = $doc:literal])* $collective:ident: $name:ident / $twin:ident, $with:ident / $with_twin:ident,
        op: ($($op:ident)?), root: ($($root:ident)?);)*) => {nccl_api! {$(
        $(#[doc = $doc])*
        fn $name / $twin(
            sendbuff: *const c_void, recvbuff: *const c_void, count: usize, datatype: c_int,
            $($op: c_int,)? $($root: c_int,)? comm: CommPtr, stream: *const c_void,
        ) {
            let op = collectives!(@or NO_OP $($op)?);
            let root = collectives!(@or NO_ROOT $($root)?);
            let (send, recv, config) = (sendbuff, recvbuff, In::NULL);
            let collective = Collective::$collective;
            Request { collective, send, recv, count, datatype, op, root, comm, stream, config }.submit()
        }

        $(#[doc = $doc])*
        ///
        /// With a configuration of this call (NULL for none).
        fn $with / $with_twin(
            sendbuff: *const c_void, recvbuff: *const c_void, count: usize, datatype: c_int,
            $($op: c_int,)? $($root: c_int,)? comm: CommPtr, stream: *const c_void,
            config: In<NcclCollConfig>,
        ) {
            let op = collectives!(@or NO_OP $($op)?);
            let root = collectives!(@or NO_ROOT $($root)?);
            let (send, recv) = (sendbuff, recvbuff);
            let collective = Collective::$collective;
            Request { collective, send, recv, count, datatype, op, root, comm, stream, config }.submit()
        }
    )*}};
    (@or $default:ident) => { $default };
    (@or $default:ident $given:ident) => { $given };
}

collectives! {
    /// Reduces `count` elements of all ranks; every rank gets the result.
    AllReduce: ncclAllReduce / pncclAllReduce, ncclAllReduceConfig / pncclAllReduceConfig, op: (op), root: ();
    /// Reduces `count` elements of all ranks to the root.
    Reduce: ncclReduce / pncclReduce, ncclReduceConfig / pncclReduceConfig, op: (op), root: (root);
    /// Copies `count` elements of the root to all ranks.
    Broadcast: ncclBroadcast / pncclBroadcast, ncclBroadcastConfig / pncclBroadcastConfig,
        op: (), root: (root);
    /// Every rank gets the `count` elements of all ranks, in rank order.
    AllGather: ncclAllGather / pncclAllGather, ncclAllGatherConfig / pncclAllGatherConfig, op: (), root: ();
    /// Reduces `count` elements per rank; rank r gets the r-th block.
    ReduceScatter: ncclReduceScatter / pncclReduceScatter, ncclReduceScatterConfig / pncclReduceScatterConfig,
        op: (op), root: ();
    /// Rank r's s-th block of `count` elements becomes rank s's r-th block.
    AllToAll: ncclAlltoAll / pncclAlltoAll, ncclAlltoAllConfig / pncclAlltoAllConfig, op: (), root: ();
    /// The root gets the `count` elements of all ranks, in rank order.
    Gather: ncclGather / pncclGather, ncclGatherConfig / pncclGatherConfig, op: (), root: (root);
    /// Rank r gets the r-th block of `count` elements of the root.
    Scatter: ncclScatter / pncclScatter, ncclScatterConfig / pncclScatterConfig, op: (), root: (root);
}

nccl_api! {
    /// Broadcast in place, NCCL 1's form.
    fn ncclBcast / pncclBcast(
        buff: *const c_void, count: usize, datatype: c_int, root: c_int, comm: CommPtr, stream: *const c_void,
    ) {
        let (send, recv, config) = (buff, buff, In::NULL);
        let collective = Collective::Broadcast;
        Request { collective, send, recv, count, datatype, op: NO_OP, root, comm, stream, config }.submit()
    }
}

impl Request {
    fn submit(self) -> Result<()> {
        grouped(self.comm.operable().and_then(|handle| handle.name(self.submit_to(&handle))))
    }

    fn submit_to(&self, handle: &Arc<Handle>) -> Result<()> {
        let read = || Ok((self.call(handle)?, config::read_call(self.config, handle)?));
        let (call, (options, event)) = read().inspect_err(|error| handle.comm.refused(error))?;
        let stream = Stream(self.stream as u64);
        match event {
            None => handle.comm.collective_with(call, options, stream)?,
            Some(event) => handle.comm.collective_recorded(call, options, event, stream)?,
        }
        handle.progress()
    }

    fn call(&self, handle: &Handle) -> Result<Call> {
        let (collective, count, ranks, rank) =
            (self.collective, self.count as u64, handle.comm.ranks(), handle.comm.rank());
        let dtype = args::data_type(self.datatype)?;
        let none = (ReduceOp::Sum, Scalar::Immediate(0));
        let (op, scalar) = if collective.reduces() { handle.ops.find(self.op, dtype)? } else { none };
        let root = args::rank("root", self.root, ranks)?;
        // A buffer that this rank does not use may be anything.
        let input = if collective.has_input(rank, root) { self.send as u64 } else { 0 };
        let output = if collective.has_output(rank, root) { self.recv as u64 } else { 0 };
        Ok(Call { collective, count, dtype, op, scalar, root, input, output, gap: 0 })
    }
}
