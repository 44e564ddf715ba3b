//! A `libnccl.so.2`, loaded by its path and called through NCCL's C interface.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use hawser_device::Memory;
use hawser_oracle::numbers::{Number, encode};
use hawser_plan::Scalar;
use hawser_plan::{Call, Collective, DataType, ReduceOp};
use hawser_runtime::Stream;

use super::api::{Api, Comm, Config, CudaStream, Status, UniqueId};
use super::{About, Communicator, Explained, ID_BYTES, Id, Joining, Library, Stop};

/// `ncclScalarHostImmediate`: a factor is read while its reduction is made.
const HOST_IMMEDIATE: c_int = 1;

/// The loaded library.
pub struct Loaded {
    api: &'static Api,
    about: About,
}

impl Loaded {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// See [`Api::load`]; or it does not say its version.
    pub fn open(path: &Path) -> Result<Self> {
        let api = Api::load(path)?;
        let mut code = 0;
        // SAFETY: valid for the one number.
        let status = unsafe { (api.version)(&mut code) };
        api.check(status, "ncclGetVersion", &path.display())?;
        // A bare name was searched by the loader; it stays as it is.
        let known = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { api, about: About { path: Some(known.display().to_string()), version: version(code) } })
    }
}

/// NCCL's version number in words: from 2.9 on 10000, 100 and 1, before 1000, 100 and 1.
fn version(code: c_int) -> String {
    let major = if code < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", code / major, code % major / 100, code % 100)
}

impl Library for Loaded {
    fn about(&self) -> &About {
        &self.about
    }

    fn unique_id(&self) -> Result<Id> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: valid for an id.
        let status = unsafe { (self.api.unique_id)(&mut id) };
        self.api.check(status, "ncclGetUniqueId", &"process 0")?;
        Ok(id.0)
    }

    fn join(&self, joining: &Joining) -> Result<Box<dyn Communicator>> {
        let Joining { ranks, rank, .. } = *joining;
        let comm = Rank {
            api: self.api,
            rank,
            ranks,
            handle: Rc::new(Cell::new(ptr::null_mut())),
            stopped: Arc::default(),
            zero_ctas: joining.zero_ctas,
        };
        // The library takes the thread's current device.
        let _device: Box<dyn Any> = joining.device.enter().with_context(|| format!("rank {rank}"))?;
        let (id, handle) = (UniqueId(*joining.id), comm.handle.as_ptr());
        let (ranks, rank) = (ranks as c_int, rank as c_int);
        if joining.zero_ctas {
            let init = self.api.init_config.ok_or_else(|| no_policy("ncclCommInitRankConfig"))?;
            // SAFETY: as below; the configuration is read before the function returns.
            let status = unsafe { init(handle, ranks, id, rank, &mut Config::zero_ctas()) };
            comm.check(status, "ncclCommInitRankConfig")?;
            return Ok(Box::new(comm));
        }
        // SAFETY: the cell lives as long as `comm`, which the caller keeps beyond the end of the group.
        let status = unsafe { (self.api.init_rank)(handle, ranks, id, rank) };
        comm.check(status, "ncclCommInitRank")?;
        Ok(Box::new(comm))
    }

    fn group_start(&self) -> Result<()> {
        // SAFETY: a group belongs to the calling thread, which needs nothing else.
        self.api.check(unsafe { (self.api.group_start)() }, "ncclGroupStart", &"this thread")
    }

    fn group_end(&self) -> Result<()> {
        // SAFETY: the caller opened the group; buffers of its calls are alive.
        self.api.check(unsafe { (self.api.group_end)() }, "ncclGroupEnd", &"a rank of this thread")
    }
}

/// One rank. The handle is not `Sync`: nobody can free it while its thread is in a call.
struct Rank {
    api: &'static Api,
    rank: u32,
    ranks: u32,
    /// Null before the end of the group that makes it, and after destroy or abort.
    handle: Rc<Cell<Comm>>,
    stopped: Arc<AtomicBool>,
    zero_ctas: bool,
}

impl Communicator for Rank {
    fn collective(&self, call: &Call, stream: Stream) -> Result<()> {
        let buffers = Buffers::of(call, stream);
        match call.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                self.reducing(call, &buffers)
            }
            _ => self.moving(call, &buffers, stream),
        }
    }

    fn send(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        let (kind, comm) = (DataType::Uint8 as c_int, self.comm()?);
        let (buffer, stream) = (pointer(addr), pointer(stream.0));
        // SAFETY: a live communicator; the caller's buffer holds that many bytes until the stream is through.
        let status = unsafe { (self.api.send)(buffer, bytes as usize, kind, peer as c_int, comm, stream) };
        self.check(status, "ncclSend")
    }

    fn recv(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        let (kind, comm) = (DataType::Uint8 as c_int, self.comm()?);
        let (buffer, stream) = (pointer(addr), pointer(stream.0));
        // SAFETY: as for send; nothing else writes the buffer meanwhile.
        let status = unsafe { (self.api.recv)(buffer, bytes as usize, kind, peer as c_int, comm, stream) };
        self.check(status, "ncclRecv")
    }

    fn window(&self, bytes: u64) -> Result<Option<Memory>> {
        /// `NCCL_WIN_COLL_SYMMETRIC`.
        const SYMMETRIC: c_int = 1;
        /// The number of bytes that lengths of windows are multiples of.
        const PAGE: u64 = 2 << 20;
        if !self.zero_ctas {
            return Ok(None);
        }
        let alloc = self.api.mem_alloc.ok_or_else(|| no_policy("ncclMemAlloc"))?;
        let free = self.api.mem_free.ok_or_else(|| no_policy("ncclMemFree"))?;
        let register = self.api.window_register.ok_or_else(|| no_policy("ncclCommWindowRegister"))?;
        let (mut address, mut window) = (ptr::null_mut(), ptr::null_mut());
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: valid for an address; the device's context is current.
        self.check(unsafe { alloc(&mut address, bytes as usize) }, "ncclMemAlloc")?;
        let memory = Memory {
            addr: address.expose_provenance() as u64,
            bytes,
            owner: Box::new(Windowed { address: address.expose_provenance(), free }),
        };
        // SAFETY: a live communicator; memory of that length, which outlives it; valid for a window.
        let status = unsafe { register(self.comm()?, address, bytes as usize, &mut window, SYMMETRIC) };
        self.check(status, "ncclCommWindowRegister")?;
        Ok(Some(memory))
    }

    fn register(&self, addr: u64, bytes: u64) -> Result<()> {
        let missing = || anyhow!("-R 1 needs ncclCommRegister, which the library does not have");
        let register = self.api.register.ok_or_else(missing)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a live communicator; memory of that length, which outlives it; valid for a handle.
        let status = unsafe { register(self.comm()?, pointer(addr), bytes as usize, &mut handle) };
        self.check(status, "ncclCommRegister")
    }

    fn healthy(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            bail!("rank {}: stopped, because something else failed", self.rank);
        }
        let mut found: Status = 0;
        // SAFETY: a live communicator; valid for a status.
        let status = unsafe { (self.api.async_error)(self.comm()?, &mut found) };
        self.check(status, "ncclCommGetAsyncError")?;
        self.check(found, "an operation in the background")
    }

    fn stop(&self) -> Stop {
        let stopped = Arc::clone(&self.stopped);
        Box::new(move || stopped.store(true, Ordering::Relaxed))
    }

    fn explain(&self, _: &Call) -> Result<Option<Explained>> {
        Ok(None)
    }

    fn destroy(&self) -> Result<()> {
        let comm = self.comm()?;
        self.handle.set(ptr::null_mut());
        // SAFETY: a live communicator that nothing names any more.
        self.check(unsafe { (self.api.destroy)(comm) }, "ncclCommDestroy")
    }

    fn abort(&self) {
        let comm = self.handle.replace(ptr::null_mut());
        if !comm.is_null() {
            // Something failed before; that is what will be reported.
            // SAFETY: a live communicator that nothing names any more.
            let _ = unsafe { (self.api.abort)(comm) };
        }
    }
}

impl Rank {
    fn comm(&self) -> Result<Comm> {
        let comm = self.handle.get();
        if comm.is_null() {
            bail!("rank {}: the library made no communicator, or it is gone", self.rank);
        }
        Ok(comm)
    }

    fn check(&self, status: Status, call: &str) -> Result<()> {
        self.api.check(status, call, &format_args!("rank {}", self.rank))
    }

    fn reducing(&self, call: &Call, buffers: &Buffers) -> Result<()> {
        let (api, comm, own) = (self.api, self.comm()?, self.own_op(call)?);
        let op = own.unwrap_or(call.op as c_int);
        let &Buffers { input, output, count, kind, root, stream } = buffers;
        // SAFETY: a live communicator; the rank's buffers hold `count` elements per block.
        let (status, name) = unsafe {
            match call.collective {
                Collective::Reduce => {
                    ((api.reduce)(input, output, count, kind, op, root, comm, stream), "ncclReduce")
                }
                Collective::ReduceScatter => {
                    ((api.reduce_scatter)(input, output, count, kind, op, comm, stream), "ncclReduceScatter")
                }
                _ => ((api.all_reduce)(input, output, count, kind, op, comm, stream), "ncclAllReduce"),
            }
        };
        let freed = own.map_or(Ok(()), |op| self.free_op(op));
        self.check(status, name).and(freed)
    }

    fn moving(&self, call: &Call, buffers: &Buffers, on: Stream) -> Result<()> {
        let (api, comm) = (self.api, self.comm()?);
        let &Buffers { input, output, count, kind, root, stream } = buffers;
        // SAFETY: a live communicator; the rank's buffers hold `count` elements per block.
        let (status, name) = unsafe {
            match (call.collective, api.all_to_all, api.gather, api.scatter) {
                (Collective::Broadcast, ..) => {
                    ((api.broadcast)(input, output, count, kind, root, comm, stream), "ncclBroadcast")
                }
                (Collective::AllGather, ..) => {
                    ((api.all_gather)(input, output, count, kind, comm, stream), "ncclAllGather")
                }
                (Collective::AllToAll, Some(run), ..) => {
                    (run(input, output, count, kind, comm, stream), "ncclAlltoAll")
                }
                (Collective::Gather, _, Some(run), _) => {
                    (run(input, output, count, kind, root, comm, stream), "ncclGather")
                }
                (Collective::Scatter, _, _, Some(run)) => {
                    (run(input, output, count, kind, root, comm, stream), "ncclScatter")
                }
                _ => return self.messages(call, on),
            }
        };
        self.check(status, name)
    }

    /// The collectives for which NCCL before 2.28 has no function, as its documentation composes them.
    fn messages(&self, call: &Call, stream: Stream) -> Result<()> {
        let block = call.block_bytes();
        let (all, me, root) = (call.collective == Collective::AllToAll, self.rank, call.root);
        let place =
            |base: u64, peer: u32, many: bool| if many { base + u64::from(peer) * block } else { base };
        // SAFETY: a group of this thread, ended below in any case.
        self.check(unsafe { (self.api.group_start)() }, "ncclGroupStart")?;
        let called = (0..self.ranks).try_for_each(|peer| {
            let (gather, scatter) =
                (call.collective == Collective::Gather, call.collective == Collective::Scatter);
            if all || (gather && peer == root) || (scatter && me == root) {
                self.send(place(call.input, peer, !gather), block, peer, stream)?;
            }
            if all || (gather && me == root) || (scatter && peer == root) {
                self.recv(place(call.output, peer, !scatter), block, peer, stream)?;
            }
            Ok(())
        });
        // SAFETY: opened above.
        let ended = self.check(unsafe { (self.api.group_end)() }, "ncclGroupEnd");
        called.and(ended)
    }

    /// A reduction of its own for a pre-multiplied sum.
    fn own_op(&self, call: &Call) -> Result<Option<c_int>> {
        if call.op != ReduceOp::PreMulSum {
            return Ok(None);
        }
        let create = self.api.create_premul_sum.ok_or_else(|| {
            anyhow!("the library has no ncclRedOpCreatePreMulSum: -o mulsum needs NCCL 2.11 or later")
        })?;
        let mut factor = factor(call);
        let mut op = 0;
        // SAFETY: the factor is one element of the type, read before the function returns.
        let status = unsafe {
            create(&mut op, factor.as_mut_ptr().cast(), call.dtype as c_int, HOST_IMMEDIATE, self.comm()?)
        };
        self.check(status, "ncclRedOpCreatePreMulSum").map(|()| Some(op))
    }

    fn free_op(&self, op: c_int) -> Result<()> {
        let Some(destroy) = self.api.destroy_op else { return Ok(()) };
        // SAFETY: made by this communicator; operations that were started keep what they need.
        self.check(unsafe { destroy(op, self.comm()?) }, "ncclRedOpDestroy")
    }
}

/// Memory of `ncclMemAlloc`.
struct Windowed {
    address: usize,
    free: unsafe extern "C" fn(*mut c_void) -> Status,
}

impl Drop for Windowed {
    fn drop(&mut self) {
        // SAFETY: the library gave it, and the communicator that knew it is gone. A failure leaves it
        // allocated.
        let _ = unsafe { (self.free)(ptr::with_exposed_provenance_mut(self.address)) };
    }
}

fn no_policy(function: &str) -> anyhow::Error {
    anyhow!("the library has no {function}: the zero-CTA policy needs NCCL 2.28 or later")
}

/// A call's arguments as C takes them.
struct Buffers {
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    stream: CudaStream,
}

impl Buffers {
    fn of(call: &Call, stream: Stream) -> Self {
        Self {
            input: pointer(call.input),
            output: pointer(call.output),
            count: call.count as usize,
            kind: call.dtype as c_int,
            root: call.root as c_int,
            stream: pointer(stream.0),
        }
    }
}

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// The factor as one element of the call's type, aligned for any of them.
fn factor(call: &Call) -> [u64; 1] {
    let Scalar::Immediate(bits) = call.scalar else { return [0] };
    let value = match call.dtype {
        DataType::Float64 => Number::Float(f64::from_bits(bits)),
        dtype if dtype.is_float() => Number::Float(f64::from(f32::from_bits(bits as u32))),
        _ => Number::Int(i128::from(bits as i64)),
    };
    let mut bytes = [0; 8];
    encode(call.dtype, value, &mut bytes[..call.dtype.size()]);
    [u64::from_ne_bytes(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_both_schemes() {
        for (code, text) in [(2708, "2.7.8"), (20_905, "2.9.5"), (22_809, "2.28.9"), (23_203, "2.32.3")] {
            assert_eq!(version(code), text);
        }
    }

    #[test]
    fn factors_are_elements_of_the_type() {
        let call = |dtype, bits| Call {
            collective: Collective::AllReduce,
            count: 1,
            dtype,
            op: ReduceOp::PreMulSum,
            scalar: Scalar::Immediate(bits),
            root: 0,
            input: 0,
            output: 0,
            gap: 0,
        };
        let first = |call: &Call| factor(call)[0].to_ne_bytes();
        let two = u64::from(2f32.to_bits());
        assert_eq!(first(&call(DataType::Float32, two))[..4], 2f32.to_ne_bytes());
        assert_eq!(first(&call(DataType::Float16, two))[..2], half::f16::from_f32(2.0).to_ne_bytes());
        assert_eq!(first(&call(DataType::Float64, 2f64.to_bits())), 2f64.to_ne_bytes());
        assert_eq!(first(&call(DataType::Int8, 3))[0], 3);
        assert_eq!(first(&call(DataType::Uint64, 7)), 7u64.to_ne_bytes());
    }

    #[test]
    fn what_is_no_library_says_why() {
        for path in ["/nonexistent/libnccl.so.2", "/proc/self/exe", "/dev/null"] {
            let error = Loaded::open(Path::new(path)).map(drop).expect_err("no library");
            let text = format!("{error:#}");
            assert!(text.contains(path) && text.len() > path.len() + 40, "{text}");
        }
    }
}
