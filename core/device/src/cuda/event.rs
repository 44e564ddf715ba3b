//! Events: who owns them, and those that streams and replays of graphs share.
//!
//! In a graph a shared event is external: a node waits for whatever recorded it last before the replay, and
//! another node records it at each replay (`cuda.h`, `CU_EVENT_WAIT_EXTERNAL`; `cuGraphAddEventRecordNode`).

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUgraph, CUgraphNode, CUstream};
use hawser_base::error::{Error, Result};

use super::context::Context;
use super::memory::in_context;
use crate::device::{Event, RecordNode};

/// A new event that streams and replays share; without a time.
pub fn create(context: &Arc<Context>) -> Result<Event> {
    Ok(Event { owner: Box::new(Owned::new(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)?) })
}

/// Lets a stream wait for the event.
pub fn wait(context: &Context, stream: CUstream, event: &Event, is_captured: bool) -> Result<()> {
    let raw = of(event)?;
    let flags = if is_captured {
        CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL
    } else {
        CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT
    };
    let _scope = context.enter()?;
    // SAFETY: a live event; the driver checks the caller's stream.
    unsafe { context.driver.stream_wait_event(stream, raw, flags as c_uint) }.check(context)
}

/// Records the event on a stream that is not captured.
pub fn record(context: &Context, stream: CUstream, event: &Event) -> Result<()> {
    let raw = of(event)?;
    let _scope = context.enter()?;
    // SAFETY: a live event; the driver checks the caller's stream.
    unsafe { context.driver.event_record(raw, stream) }.check(context)
}

/// Adds the node that records the event, or moves it, to behind what is captured on the stream.
pub fn record_in_graph(
    context: &Context,
    stream: CUstream,
    event: &Event,
    node: Option<RecordNode>,
) -> Result<RecordNode> {
    let raw = of(event)?;
    let _scope = context.enter()?;
    let (graph, after) = captured(context, stream)?;
    let handle = match node {
        None => {
            let mut handle: CUgraphNode = ptr::null_mut();
            let (nodes, count) = (after.as_ptr(), after.len());
            // SAFETY: valid for the handle; as many nodes as told, all of the graph under capture; a live
            // event.
            unsafe { context.driver.graph_add_event_record(&mut handle, graph, nodes, count, raw) }
                .check(context)?;
            handle
        }
        Some(earlier) => {
            let handle: CUgraphNode = ptr::with_exposed_provenance_mut(earlier.node as usize);
            let before: Vec<CUgraphNode> =
                earlier.after.iter().map(|n| ptr::with_exposed_provenance_mut(*n as usize)).collect();
            let (old, new) = (vec![handle; before.len()], vec![handle; after.len()]);
            // SAFETY: the edges were added here, in the capture that still goes on; its nodes are never
            // removed.
            unsafe {
                context.driver.graph_remove_dependencies(graph, before.as_ptr(), old.as_ptr(), old.len())
            }
            .check(context)?;
            // SAFETY: as many edges as told, between nodes of the graph under capture.
            unsafe { context.driver.graph_add_dependencies(graph, after.as_ptr(), new.as_ptr(), new.len()) }
                .check(context)?;
            handle
        }
    };
    let after = after.iter().map(|node| node.expose_provenance() as u64).collect();
    Ok(RecordNode { node: handle.expose_provenance() as u64, after })
}

/// The graph under capture and the nodes that what comes next on the stream depends on.
fn captured(context: &Context, stream: CUstream) -> Result<(CUgraph, Vec<CUgraphNode>)> {
    let (mut status, mut id): (c_int, u64) = (0, 0);
    let mut graph: CUgraph = ptr::null_mut();
    let (mut nodes, mut count): (*const CUgraphNode, usize) = (ptr::null(), 0);
    // SAFETY: valid for a status (an enum of C int size) and all the rest; the driver checks the caller's
    // stream.
    unsafe {
        let status = (&raw mut status).cast();
        context.driver.stream_capture_info(stream, status, &mut id, &mut graph, &mut nodes, &mut count)
    }
    .check(context)?;
    if graph.is_null() || nodes.is_null() || count == 0 {
        let text = format!("{context}: stream {:#x} is not being captured any more", stream.addr());
        return Err(Error::invalid_usage(text).remedy("end a capture after the group that was captured"));
    }
    // SAFETY: the driver's array, valid until the next call on the stream.
    Ok((graph, unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec()))
}

fn of(event: &Event) -> Result<CUevent> {
    let owned = event.owner.downcast_ref::<Owned>();
    owned.map(|owned| owned.raw).ok_or_else(|| Error::internal("an event of another device"))
}

/// An event of the driver, destroyed when dropped.
pub struct Owned {
    context: Arc<Context>,
    /// The handle, valid as long as `self` lives.
    pub raw: CUevent,
}

impl Owned {
    /// A new one. Works during a capture.
    pub fn new(context: &Arc<Context>, flags: CUevent_flags) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let mut raw: CUevent = ptr::null_mut();
        // SAFETY: valid for the handle.
        unsafe { context.driver.event_create(&mut raw, flags as c_uint) }.check(context)?;
        Ok(Owned { context: context.clone(), raw })
    }
}

// SAFETY: events may be used and destroyed from any thread, the driver locks them.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: created in `new`, in nobody's hands, and graphs that name it are not replayed without
            // their communicator; what has been recorded is freed when it is reached.
            unsafe { self.context.driver.event_destroy(self.raw) }
        });
    }
}
