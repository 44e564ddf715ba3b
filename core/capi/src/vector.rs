//! Our own functions: collectives whose parts differ in length, and programs that are called by name
//! (`hawser.h`).

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use hawser_plan::vector::{Parts, Vector};
use hawser_runtime::{Result, Stream};

use crate::args::{self, In};
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;

hawser_api! {
    /// Part p of this rank's input becomes a part of rank p's output.
    fn hawserAlltoAllv(
        sendbuff: *const c_void, sendcounts: In<usize>, sdispls: In<usize>, recvbuff: *const c_void,
        recvcounts: In<usize>, rdispls: In<usize>, datatype: c_int, comm: CommPtr, stream: *const c_void,
    ) {
        submit(comm, datatype, stream, |handle, submit| {
            let (sends, recvs) = (
                Counts::read(handle, "sendcounts", sendcounts, sdispls)?,
                Counts::read(handle, "recvcounts", recvcounts, rdispls)?,
            );
            let (input, output) = (sendbuff as u64, recvbuff as u64);
            submit(&Vector::AllToAll { input, sends: sends.parts(), output, recvs: recvs.parts() })
        })
    }

    /// Every rank gets the elements of all ranks.
    fn hawserAllGatherv(
        sendbuff: *const c_void, sendcount: usize, recvbuff: *const c_void, recvcounts: In<usize>,
        rdispls: In<usize>, datatype: c_int, comm: CommPtr, stream: *const c_void,
    ) {
        submit(comm, datatype, stream, |handle, submit| {
            let recvs = Counts::read(handle, "recvcounts", recvcounts, rdispls)?;
            let (input, count, output) = (sendbuff as u64, sendcount as u64, recvbuff as u64);
            submit(&Vector::AllGather { input, count, output, recvs: recvs.parts() })
        })
    }

    /// The root gets the elements of all ranks.
    fn hawserGatherv(
        sendbuff: *const c_void, sendcount: usize, recvbuff: *const c_void, recvcounts: In<usize>,
        rdispls: In<usize>, datatype: c_int, root: c_int, comm: CommPtr, stream: *const c_void,
    ) {
        submit(comm, datatype, stream, |handle, submit| {
            let root = args::rank("root", root, handle.comm.ranks())?;
            let recvs = Counts::at(root, handle, "recvcounts", recvcounts, rdispls)?;
            let (input, count, output) = (sendbuff as u64, sendcount as u64, recvbuff as u64);
            submit(&Vector::Gather { input, count, output, recvs: recvs.as_ref().map(Counts::parts), root })
        })
    }

    /// Every rank gets its part of the root's input.
    fn hawserScatterv(
        sendbuff: *const c_void, sendcounts: In<usize>, sdispls: In<usize>, recvbuff: *const c_void,
        recvcount: usize, datatype: c_int, root: c_int, comm: CommPtr, stream: *const c_void,
    ) {
        submit(comm, datatype, stream, |handle, submit| {
            let root = args::rank("root", root, handle.comm.ranks())?;
            let sends = Counts::at(root, handle, "sendcounts", sendcounts, sdispls)?;
            let (input, output, count) = (sendbuff as u64, recvbuff as u64, recvcount as u64);
            submit(&Vector::Scatter { input, sends: sends.as_ref().map(Counts::parts), output, count, root })
        })
    }

    /// A program of the user's that computes what no collective does.
    fn hawserCustom(
        program: In<c_char>, sendbuff: *const c_void, recvbuff: *const c_void, count: usize,
        datatype: c_int, comm: CommPtr, stream: *const c_void,
    ) {
        grouped(comm.ready().and_then(|handle| {
            let run = || {
                let name = program.text().ok_or_else(|| args::null("program"))?;
                let what = (count as u64, args::data_type(datatype)?);
                let buffers = (sendbuff as u64, recvbuff as u64);
                handle.comm.custom(&name, buffers, what, Stream(stream as u64))?;
                handle.progress()
            };
            handle.name(run())
        }))
    }
}

/// Counts and displacements of all ranks, in elements.
struct Counts {
    counts: Vec<u64>,
    displs: Option<Vec<u64>>,
}

impl Counts {
    fn read(handle: &Handle, name: &str, counts: In<usize>, displs: In<usize>) -> Result<Self> {
        let ranks = handle.comm.ranks() as usize;
        let wide = |values: Vec<usize>| values.into_iter().map(|value| value as u64).collect();
        let counts = wide(counts.read_all(name, ranks)?);
        let displs = if displs.is_null() { None } else { Some(wide(displs.read_all(name, ranks)?)) };
        Ok(Self { counts, displs })
    }

    /// None on other ranks than the root, where they may be anything.
    fn at(
        root: u32,
        handle: &Handle,
        name: &str,
        counts: In<usize>,
        displs: In<usize>,
    ) -> Result<Option<Self>> {
        (handle.comm.rank() == root).then(|| Self::read(handle, name, counts, displs)).transpose()
    }

    fn parts(&self) -> Parts<'_> {
        Parts { counts: &self.counts, displs: self.displs.as_deref() }
    }
}

/// Checks what all have in common and hands the call that `make` makes to the runtime.
fn submit(
    comm: CommPtr,
    datatype: c_int,
    stream: *const c_void,
    make: impl FnOnce(&Handle, &dyn Fn(&Vector<'_>) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let checked = |handle: &Arc<Handle>| {
        let dtype = args::data_type(datatype)?;
        make(handle, &|vector| handle.comm.vector(vector, dtype, Stream(stream as u64)))?;
        handle.progress()
    };
    grouped(comm.ready().and_then(|handle| handle.name(checked(&handle))))
}
