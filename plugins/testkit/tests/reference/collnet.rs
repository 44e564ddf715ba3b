//! A collnet whose ranks are threads of this process. It sums plain types and gathers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use hawser_plugin::collnet::{
    CollNet, CollNetComm, CollNetContext, CollNetListener, CollNetSegment, DataType, ReduceOp,
};
use hawser_plugin::net::{HANDLE_BYTES, Handle, NetProperties, Region, Registration, Request};
use hawser_plugin::{Error, ErrorKind, Log, Result};

pub struct InProcess;

impl CollNet for InProcess {
    fn name(&self) -> &str {
        "in process"
    }
    fn open(&self, _: u64, _: &Log) -> Result<Box<dyn CollNetContext>> {
        Ok(Box::new(InProcess))
    }
}

impl CollNetContext for InProcess {
    fn devices(&self) -> Result<u32> {
        Ok(1)
    }
    fn properties(&self, device: u32) -> Result<NetProperties> {
        match device {
            0 => Ok(NetProperties::new("in process", device)),
            _ => Err(Error::new(ErrorKind::InvalidArgument, format!("no device {device}"))),
        }
    }
    fn listen(&self, _: u32) -> Result<(Handle, Box<dyn CollNetListener>)> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        Ok((handle, Box::new(Listening)))
    }
    fn supports(&self, dtype: DataType, op: ReduceOp) -> Result<bool> {
        Ok(op == ReduceOp::Sum && matches!(dtype, DataType::Uint8 | DataType::Int32 | DataType::Float64))
    }
}

struct Listening;

impl CollNetListener for Listening {
    fn connect(self: Box<Self>, handles: &[Handle], rank: u32) -> Result<Box<dyn CollNetComm>> {
        let hub = {
            let mut hubs = HUBS.lock().unwrap();
            let new = || Arc::new(Hub { together: Barrier::new(handles.len()), work: Mutex::default() });
            hubs.entry(handles[0]).or_insert_with(new).clone()
        };
        hub.together.wait();
        Ok(Box::new(Rank { hub, ranks: handles.len(), rank: rank as usize, next: 0 }))
    }
}

static HUBS: Mutex<BTreeMap<Handle, Arc<Hub>>> = Mutex::new(BTreeMap::new());

struct Hub {
    together: Barrier,
    /// By number of the operation: what each rank sent, and how many took the result.
    work: Mutex<BTreeMap<u64, Vec<Option<Share>>>>,
}

#[derive(Clone)]
struct Share {
    sent: Vec<u8>,
    recv: u64,
    what: What,
    taken: bool,
}

#[derive(Clone, Copy)]
enum What {
    Reduce(DataType),
    Gather,
    Scatter(usize),
}

struct Rank {
    hub: Arc<Hub>,
    ranks: usize,
    rank: usize,
    next: u64,
}

impl Rank {
    fn post(&mut self, sent: (u64, usize), recv: u64, what: What) -> Option<Request> {
        // SAFETY: the caller keeps what it sends until the request is over.
        let sent = unsafe { std::slice::from_raw_parts(sent.0 as *const u8, sent.1) }.to_vec();
        let mut work = self.hub.work.lock().unwrap();
        let shares = work.entry(self.next).or_insert_with(|| vec![None; self.ranks]);
        shares[self.rank] = Some(Share { sent, recv, what, taken: false });
        self.next += 1;
        Some(Request(self.next - 1))
    }
}

fn add(dtype: DataType, sum: &mut [u8], more: &[u8]) {
    for (sum, more) in sum.chunks_mut(dtype.size()).zip(more.chunks(dtype.size())) {
        match dtype {
            DataType::Uint8 => sum[0] += more[0],
            DataType::Int32 => {
                let whole = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().unwrap());
                sum.copy_from_slice(&(whole(sum) + whole(more)).to_ne_bytes());
            }
            _ => {
                let whole = |bytes: &[u8]| f64::from_ne_bytes(bytes.try_into().unwrap());
                sum.copy_from_slice(&(whole(sum) + whole(more)).to_ne_bytes());
            }
        }
    }
}

impl CollNetComm for Rank {
    unsafe fn register(&mut self, _: &Region) -> Result<Registration> {
        Ok(Registration(1))
    }
    fn deregister(&mut self, _: Registration) -> Result<()> {
        Ok(())
    }
    unsafe fn iall_reduce(
        &mut self,
        send: (u64, Registration),
        recv: (u64, Registration),
        count: usize,
        dtype: DataType,
        _: ReduceOp,
    ) -> Result<Option<Request>> {
        Ok(self.post((send.0, count * dtype.size()), recv.0, What::Reduce(dtype)))
    }
    unsafe fn iall_gather(
        &mut self,
        send: (u64, Registration),
        recv: &[CollNetSegment],
        bytes_per_rank: usize,
        _: (usize, usize),
    ) -> Result<Option<Request>> {
        Ok(self.post((send.0, bytes_per_rank), recv[0].addr, What::Gather))
    }
    unsafe fn ireduce_scatter(
        &mut self,
        send: &[CollNetSegment],
        recv: (u64, Registration),
        bytes_per_rank: usize,
        _: (usize, usize),
        _: DataType,
        _: ReduceOp,
    ) -> Result<Option<Request>> {
        Ok(self.post((send[0].addr, send[0].bytes), recv.0, What::Scatter(bytes_per_rank)))
    }
    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        let mut work = self.hub.work.lock().unwrap();
        let shares = work.get_mut(&request.0).ok_or_else(|| Error::internal("unknown request"))?;
        if shares.iter().any(Option::is_none) {
            return Ok(None);
        }
        let all: Vec<Share> = shares.iter().flatten().cloned().collect();
        let me = &all[self.rank];
        let summed = |dtype| {
            let mut sum = all[0].sent.clone();
            all[1..].iter().for_each(|share| add(dtype, &mut sum, &share.sent));
            sum
        };
        let result = match me.what {
            What::Reduce(dtype) => summed(dtype),
            What::Gather => all.iter().flat_map(|share| share.sent.clone()).collect(),
            What::Scatter(each) => summed(DataType::Uint8)[self.rank * each..][..each].to_vec(),
        };
        // SAFETY: the caller keeps the place until the request is over.
        unsafe { std::ptr::copy(result.as_ptr(), me.recv as *mut u8, result.len()) };
        if let Some(share) = &mut shares[self.rank] {
            share.taken = true;
        }
        if shares.iter().flatten().all(|share| share.taken) {
            work.remove(&request.0);
        }
        Ok(Some(result.len()))
    }
}
