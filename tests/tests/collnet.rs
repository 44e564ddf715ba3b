//! All-reduce through a collnet plugin that is built into this test program and reduces on the host.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use hawser_plan::{Algorithm, Collective, DataType as Type, ReduceOp as Op};
use hawser_plugin::collnet::{CollNet, CollNetComm, CollNetContext, CollNetListener, DataType, ReduceOp};
use hawser_plugin::net::{HANDLE_BYTES, Handle, NetProperties, Region, Registration, Request};
use hawser_plugin::tuner::{self, Answer, Candidate, Question, Tuner, TunerConfig, TunerContext};
use hawser_plugin::{BuiltIn, Component, Error, Log, Result, inventory};
use hawser_runtime::Config;
use hawser_tests::oracle::Case;
use hawser_tests::world::{call, on_host, on_hosts, plain, run};

inventory::submit! {
    BuiltIn { name: "test", priority: 1, make: || Component::CollNet(Arc::new(Summer)) }
}

inventory::submit! {
    BuiltIn { name: "test tuner", priority: 1, make: || Component::Tuner(Arc::new(NetworkFirst)) }
}

/// Lets the network reduce wherever it can.
struct NetworkFirst;

impl Tuner for NetworkFirst {
    fn name(&self) -> &str {
        "network first"
    }

    fn open(&self, _config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        Ok(Box::new(NetworkFirst))
    }
}

impl TunerContext for NetworkFirst {
    fn tune(&self, _question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        let is_chain = |c: &Candidate<'_>| c.decision.algorithm == tuner::Algorithm::COLLNET_CHAIN;
        let chain = candidates.iter().position(|c| c.is_possible() && is_chain(c));
        Ok(chain.map_or_else(Answer::default, Answer::ordered))
    }
}

static REDUCTIONS: AtomicU64 = AtomicU64::new(0);

/// Reduces floats and 32-bit integers.
struct Summer;

impl CollNet for Summer {
    fn name(&self) -> &str {
        "summer"
    }

    fn open(&self, _comm_id: u64, _log: &Log) -> Result<Box<dyn CollNetContext>> {
        Ok(Box::new(Summer))
    }
}

impl CollNetContext for Summer {
    fn devices(&self) -> Result<u32> {
        Ok(1)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        Ok(NetProperties::new("summer", device))
    }

    fn listen(&self, _device: u32) -> Result<(Handle, Box<dyn CollNetListener>)> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        Ok((handle, Box::new(Summer)))
    }

    fn supports(&self, dtype: DataType, op: ReduceOp) -> Result<bool> {
        Ok(matches!(dtype, DataType::Float32 | DataType::Int32) && op != ReduceOp::Prod)
    }
}

/// The state that the ranks of a connection share: the operations that some have begun.
#[derive(Default)]
struct Meeting {
    joined: Mutex<usize>,
    all_here: Condvar,
    operations: Mutex<VecDeque<Operation>>,
    /// Operations over so far.
    over: AtomicU64,
}

struct Operation {
    parts: Vec<Option<(u64, u64)>>,
    count: usize,
    dtype: DataType,
    op: ReduceOp,
}

impl CollNetListener for Summer {
    /// Blocks until all ranks are here, as plugins may.
    fn connect(self: Box<Self>, handles: &[Handle], rank: u32) -> Result<Box<dyn CollNetComm>> {
        static MEETINGS: OnceLock<Mutex<HashMap<Handle, Arc<Meeting>>>> = OnceLock::new();
        let meeting =
            MEETINGS.get_or_init(Mutex::default).lock().unwrap().entry(handles[0]).or_default().clone();
        let mut joined = meeting.joined.lock().unwrap();
        *joined += 1;
        meeting.all_here.notify_all();
        let joined = meeting.all_here.wait_while(joined, |joined| *joined < handles.len()).unwrap();
        drop(joined);
        Ok(Box::new(Member { meeting, rank: rank as usize, ranks: handles.len(), begun: 0 }))
    }
}

struct Member {
    meeting: Arc<Meeting>,
    rank: usize,
    ranks: usize,
    begun: u64,
}

impl CollNetComm for Member {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        Ok(Registration(region.addr))
    }

    fn deregister(&mut self, _registration: Registration) -> Result<()> {
        Ok(())
    }

    unsafe fn iall_reduce(
        &mut self,
        (from, _): (u64, Registration),
        (to, _): (u64, Registration),
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<Request>> {
        let mut operations = self.meeting.operations.lock().unwrap();
        let at = (self.begun - self.meeting.over.load(Ordering::Relaxed)) as usize;
        if operations.len() == at {
            operations.push_back(Operation { parts: vec![None; self.ranks], count, dtype, op });
        }
        let operation = &mut operations[at];
        if (operation.count, operation.dtype, operation.op) != (count, dtype, op) {
            return Err(Error::internal("ranks reduce different things"));
        }
        operation.parts[self.rank] = Some((from, to));
        if operation.parts.iter().all(Option::is_some) {
            let operation = operations.pop_front().unwrap();
            // SAFETY: all ranks promised buffers of `count` elements until their requests are done.
            unsafe { operation.carry_out() };
            self.meeting.over.fetch_add(1, Ordering::Release);
            REDUCTIONS.fetch_add(1, Ordering::Relaxed);
        }
        self.begun += 1;
        Ok(Some(Request(self.begun)))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        Ok((self.meeting.over.load(Ordering::Acquire) >= request.0).then_some(0))
    }
}

impl Operation {
    /// # Safety
    /// The addresses are those of live buffers.
    unsafe fn carry_out(&self) {
        match self.dtype {
            // SAFETY: passed on to the caller.
            DataType::Int32 => unsafe { self.reduce::<i32>(i32::wrapping_add, i32::max, i32::min) },
            // SAFETY: as above.
            _ => unsafe { self.reduce::<f32>(|a, b| a + b, f32::max, f32::min) },
        }
    }

    /// # Safety
    /// As [`Operation::carry_out`].
    unsafe fn reduce<T: Copy>(&self, add: fn(T, T) -> T, max: fn(T, T) -> T, min: fn(T, T) -> T) {
        let fold = match self.op {
            ReduceOp::Max => max,
            ReduceOp::Min => min,
            _ => add,
        };
        for i in 0..self.count {
            let parts = self.parts.iter().flatten();
            // SAFETY: element `i` of `count`.
            let values =
                parts.clone().map(|(from, _)| unsafe { (*from as *const T).add(i).read_unaligned() });
            let Some(value) = values.reduce(fold) else { continue };
            // SAFETY: as above.
            parts.for_each(|(_, to)| unsafe { (*to as *mut T).add(i).write_unaligned(value) });
        }
    }
}

#[test]
fn the_network_reduces_what_it_can() {
    // SAFETY: nothing of this process has read a setting yet; the only other thread is the test harness's,
    // which waits.
    unsafe { std::env::set_var("NCCL_COLLNET_ENABLE", "1") };
    if !on_host() {
        return;
    }
    for hosts in ["ab", "aabb", "abcabc", "aaabbb", "aabbccdd"] {
        let before = REDUCTIONS.load(Ordering::Relaxed);
        on_hosts(hosts, &Config::default(), |comm| {
            let ranks = comm.ranks();
            let choice =
                comm.explain(&call(&plain(Collective::AllReduce, ranks, 1 << 20), 0, (16, 16))).unwrap();
            let regular = hosts != "abcabc";
            assert_eq!(choice.key.algorithm == Algorithm::CollNet, regular, "{}", choice.why);
            for (dtype, op) in [
                (Type::Float32, Op::Sum),
                (Type::Float32, Op::Avg),
                (Type::Int32, Op::Avg),
                (Type::Int32, Op::Min),
                (Type::Float32, Op::Prod),
                (Type::Int8, Op::Sum),
                (Type::Float32, Op::PreMulSum),
            ] {
                for count in [1, 7, 100_003] {
                    let case = Case { collective: Collective::AllReduce, dtype, op, ranks, root: 0, count };
                    run(comm, case, count == 7, count % 3).unwrap();
                }
            }
        });
        let used = REDUCTIONS.load(Ordering::Relaxed) > before;
        assert_eq!(used, hosts != "abcabc", "{hosts}");
    }
}
