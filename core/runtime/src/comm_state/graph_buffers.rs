//! Calls that are captured into graphs: their buffers are lent to the graph, without any registration.

use std::sync::Arc;

use hawser_base::env;
use hawser_base::error::Result;
use hawser_base::wait::Wait;
use hawser_device::Stream;
use hawser_plan::executor::fused::zero_copy;
use hawser_plan::{Call, CallOptions, Collective};

use super::reach::Reached;
use super::{CommState, Compiled};
use crate::tuning::TimedOp;

/// Calls of fewer bytes are staged in any case.
const LEAST_BYTES: u64 = 128 << 10;

/// A compiled call, how it is timed, and where its buffers are found that are lent to a graph.
type OnStream = (Arc<Compiled>, Option<Box<TimedOp>>, Option<Reached>);

impl CommState {
    /// The choice for a call on a stream, as [`CommState::compiled`] makes it. If it is captured and its
    /// buffers could be used where they are, all ranks map them for the graph.
    ///
    /// # Errors
    /// As [`CommState::compiled`]; another rank did not answer.
    pub fn compiled_for_stream(
        &self,
        call: &Call,
        options: Option<&CallOptions>,
        stream: Stream,
        number: u64,
    ) -> Result<OnStream> {
        self.lsa.let_go_of_graphs();
        if let Some(capture) = self.capture_to_lend_to(call, stream)? {
            let (compiled, timed) = self.compiled(call, options, stream, (number, true))?;
            if let Compiled::Fused(plan, _) = &*compiled
                && plan.may_reach()
            {
                // A rank whose buffers cannot be used so tells the others: they wait for it.
                let buffers = plan.to_reach(call.input, call.output);
                if let Some(reached) = self.lend_to_graph((stream, capture), buffers)? {
                    return Ok((compiled, timed, Some(reached)));
                }
            }
        }
        let (compiled, timed) = self.compiled(call, options, stream, (number, false))?;
        Ok((compiled, timed, None))
    }

    /// The capture that a call is part of, if its buffers may be lent to the graph. All ranks answer alike:
    /// they capture a call or do not, and each has both buffers.
    fn capture_to_lend_to(&self, call: &Call, stream: Stream) -> Result<Option<u64>> {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        let has_both = matches!(call.collective, AllReduce | AllGather | ReduceScatter | AllToAll);
        if !has_both || !self.lsa.lends_to_graphs() || call.total_bytes(self.topology.size()) < LEAST_BYTES {
            return Ok(None);
        }
        Ok(self.device.stream_state(stream)?.capture)
    }

    /// The places at which other ranks find input and output, once all have mapped them; `buffers` is none
    /// if this rank's cannot be used where they are.
    fn lend_to_graph(
        &self,
        graph: (Stream, u64),
        buffers: Option<[(u64, u64); 2]>,
    ) -> Result<Option<Reached>> {
        let wait = Wait::new(self.abort.clone(), Some(env::settings().join_timeout()));
        let [input, output] = buffers.map_or([None; 2], |buffers| buffers.map(Some));
        let Some(src_seen) = self.lsa.lend_to_graph(graph, input, &wait)? else { return Ok(None) };
        let Some(dst_seen) = self.lsa.lend_to_graph(graph, output, &wait)? else { return Ok(None) };
        Ok(Some(Reached { direct: zero_copy::READY, src_seen, dst_seen }))
    }
}
