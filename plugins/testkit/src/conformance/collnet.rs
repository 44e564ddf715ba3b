//! The cases of a collnet: what it has to do right. Each rank is a thread, because joining the ranks may
//! block.

use std::sync::{Arc, Barrier};

use hawser_plugin::collnet::{CollNet, CollNetComm, CollNetContext, CollNetSegment, DataType, ReduceOp};
use hawser_plugin::net::{Handle, MAX_REQUESTS, MemoryKinds, Region, Registration, Request};
use hawser_plugin::{ErrorKind, Log};

use super::case::{Case, Options, Outcome, Trial, check_name, only, want};

/// The cases, in the order in which they run.
pub const CASES: &[Case<dyn CollNet>] = &[
    Case { name: "name_is_constant", wants: "one name that fits into a log line", run: name_is_constant },
    Case {
        name: "properties_are_sane",
        wants: "devices with host memory and the same answers each time",
        run: properties_are_sane,
    },
    Case {
        name: "support_is_constant",
        wants: "the same answer for a type and an operation each time",
        run: support_is_constant,
    },
    Case { name: "one_rank", wants: "an all-reduce of one rank", run: |trial| reduce_all(trial, 1, 2) },
    Case { name: "three_ranks", wants: "right sums of three ranks", run: |trial| reduce_all(trial, 3, 3) },
    Case {
        name: "many_requests_in_flight",
        wants: "MAX_REQUESTS requests at once",
        run: |trial| reduce_all(trial, 2, MAX_REQUESTS),
    },
    Case {
        name: "gathers_and_scatters",
        wants: "right all-gathers and reduce-scatters, or Unsupported",
        run: gathers_and_scatters,
    },
    Case { name: "closing_early", wants: "ranks that leave with requests in flight", run: closing_early },
];

/// Runs one case.
///
/// # Panics
/// If it does not come out as expected.
pub fn one(name: &str, plugin: Arc<dyn CollNet>, options: &Options) {
    only(CASES, name, plugin, options);
}

type Fails<T> = Result<T, String>;

fn told<T>(what: &str, result: hawser_plugin::Result<T>) -> Fails<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn open(trial: &Trial<dyn CollNet>) -> Fails<Box<dyn CollNetContext>> {
    told("open", trial.plugin.open(1, &Log::silent()))
}

fn name_is_constant(trial: &Trial<dyn CollNet>) -> Outcome {
    let first = trial.plugin.name().to_owned();
    drop(open(trial)?);
    check_name(&first, trial.plugin.name())
}

fn properties_are_sane(trial: &Trial<dyn CollNet>) -> Outcome {
    let context = open(trial)?;
    let count = told("devices", context.devices())?;
    want!(count > 0, "there is no device here, so nothing can be tested");
    for device in 0..count {
        let properties = told("properties", context.properties(device))?;
        want!(properties.memory.contains(MemoryKinds::HOST), "device {device} cannot use host memory");
        want!(!properties.name.is_empty(), "device {device} has no name");
        let again = told("properties", context.properties(device))?;
        want!(again == properties, "device {device}: {properties:?} becomes {again:?}");
    }
    want!(context.properties(count + 1000).is_err(), "properties of a device that is not there are no error");
    Ok(())
}

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

fn support_is_constant(trial: &Trial<dyn CollNet>) -> Outcome {
    let contexts = [open(trial)?, open(trial)?];
    let mut any = false;
    for dtype in DataType::ALL {
        for op in OPS {
            let first = told("supports", contexts[0].supports(dtype, op))?;
            let second = told("supports", contexts[1].supports(dtype, op))?;
            want!(first == second, "{dtype:?} with {op:?}: {first} becomes {second}");
            any |= first;
        }
    }
    want!(any, "nothing can be reduced");
    Ok(())
}

/// One rank of a case.
struct Rank {
    comm: Box<dyn CollNetComm>,
    rank: usize,
    ranks: usize,
    types: Vec<DataType>,
}

/// Joins ranks in threads and runs `work` on each.
fn ranks(trial: &Trial<dyn CollNet>, count: usize, work: impl Fn(&mut Rank) -> Outcome + Sync) -> Outcome {
    let contexts = (0..count).map(|_| open(trial)).collect::<Fails<Vec<_>>>()?;
    let listening: Vec<_> =
        contexts.iter().map(|context| told("listen", context.listen(0))).collect::<Fails<_>>()?;
    let handles: Vec<Handle> = listening.iter().map(|(handle, _)| *handle).collect();
    let types =
        DataType::ALL.into_iter().filter(|dtype| contexts[0].supports(*dtype, ReduceOp::Sum) == Ok(true));
    let types: Vec<DataType> = types.filter(|dtype| value(*dtype, 1).is_some()).collect();
    let together = Barrier::new(count);
    std::thread::scope(|scope| {
        let (handles, types, together, work) = (&handles, &types, &together, &work);
        let start =
            |(rank, (_, listener)): (usize, (Handle, Box<dyn hawser_plugin::collnet::CollNetListener>))| {
                scope.spawn(move || {
                    let comm = told("connect", listener.connect(handles, rank as u32));
                    let outcome = comm.map(|comm| {
                        let mut rank = Rank { comm, rank, ranks: handles.len(), types: types.clone() };
                        let outcome = work(&mut rank);
                        (rank, outcome)
                    });
                    // Nobody leaves while others still work.
                    together.wait();
                    outcome.and_then(|(_rank, outcome)| outcome)
                })
            };
        let threads: Vec<_> = listening.into_iter().enumerate().map(start).collect();
        let panicked = |_| Err("it panicked".to_owned());
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })
}

/// The bytes of a small whole number; None for types that are not tested.
fn value(dtype: DataType, number: usize) -> Option<Vec<u8>> {
    Some(match dtype {
        DataType::Int8 | DataType::Uint8 => vec![number as u8],
        DataType::Int32 | DataType::Uint32 => (number as u32).to_ne_bytes().to_vec(),
        DataType::Int64 | DataType::Uint64 => (number as u64).to_ne_bytes().to_vec(),
        DataType::Float32 => (number as f32).to_ne_bytes().to_vec(),
        DataType::Float64 => (number as f64).to_ne_bytes().to_vec(),
        _ => return None,
    })
}

/// Elements made by a function of their place. The memory is never given back.
fn elements(dtype: DataType, count: usize, f: impl Fn(usize) -> usize) -> &'static mut [u8] {
    (0..count).flat_map(|at| value(dtype, f(at)).unwrap_or_default()).collect::<Vec<u8>>().leak()
}

impl Rank {
    fn register(&mut self, memory: &[u8]) -> Fails<(u64, Registration)> {
        let (addr, bytes) = (memory.as_ptr() as u64, memory.len());
        let region = Region { addr, bytes, kind: MemoryKinds::HOST, dmabuf: None };
        // SAFETY: the memory is never given back.
        Ok((addr, told("register", unsafe { self.comm.register(&region) })?))
    }

    fn finish(&mut self, trial: &Trial<dyn CollNet>, request: Request) -> Outcome {
        let done = || self.comm.test(request).map(|bytes| bytes.map(drop));
        trial.patience().until("a request", done)
    }
}

/// The value that rank `rank` sends at a place: sums of a few ranks fit into a byte.
fn share(rank: usize, at: usize) -> usize {
    (rank + 1) * (1 + at % 7)
}

/// All-reduce of some messages at once, for each type that can be summed.
fn reduce_all(trial: &Trial<dyn CollNet>, count: usize, at_once: usize) -> Outcome {
    ranks(trial, count, |rank| {
        want!(!rank.types.is_empty(), "no plain type can be summed");
        for dtype in rank.types.clone() {
            reduce(trial, rank, dtype, at_once)?;
        }
        Ok(())
    })
}

fn reduce(trial: &Trial<dyn CollNet>, rank: &mut Rank, dtype: DataType, at_once: usize) -> Outcome {
    let me = rank.rank;
    let mut flying = Vec::new();
    for message in 0..at_once {
        let length = [1, 7, 1000, 4099][message % 4];
        let send = elements(dtype, length, |at| share(me, at + message));
        let recv = elements(dtype, length, |_| 0);
        let (from, to) = (rank.register(send)?, rank.register(recv)?);
        let begin = || {
            // SAFETY: the memory is never given back, and left alone until the request is over.
            unsafe { rank.comm.iall_reduce(from, to, length, dtype, ReduceOp::Sum) }
        };
        let request = trial.patience().until("iall_reduce", begin)?;
        flying.push((request, recv, length, message, [from.1, to.1]));
    }
    for (request, recv, length, message, registrations) in flying {
        rank.finish(trial, request)?;
        let sum = |at: usize| (0..rank.ranks).map(|other| share(other, at + message)).sum();
        let wanted = elements(dtype, length, sum);
        want!(recv == wanted, "rank {me}: a wrong sum of {length} elements of {dtype:?}");
        for registration in registrations {
            told("deregister", rank.comm.deregister(registration))?;
        }
    }
    Ok(())
}

fn gathers_and_scatters(trial: &Trial<dyn CollNet>) -> Outcome {
    const EACH: usize = 1000;
    ranks(trial, 3, |rank| {
        let me = rank.rank;
        let whole = EACH * rank.ranks;
        let (mine, all) = (elements(DataType::Uint8, EACH, |at| share(me, at)), vec![0_u8; whole].leak());
        let (from, to) = (rank.register(mine)?, rank.register(all)?);
        let part = CollNetSegment { registration: to.1, addr: to.0, bytes: whole };
        // SAFETY: the memory is never given back.
        let begin = || unsafe { offered(rank.comm.iall_gather(from, &[part], EACH, (0, whole))) };
        if let Some(request) = trial.patience().until("iall_gather", begin)? {
            rank.finish(trial, request)?;
            let wanted = elements(DataType::Uint8, whole, |at| share(at / EACH, at % EACH));
            want!(all == wanted, "rank {me}: a wrong all-gather");
        }
        let (dtype, op) = (DataType::Uint8, ReduceOp::Sum);
        if !rank.types.contains(&dtype) {
            return Ok(());
        }
        let (send, recv) = (elements(dtype, whole, |at| share(me, at)), vec![0_u8; EACH].leak());
        let (from, to) = (rank.register(send)?, rank.register(recv)?);
        let part = CollNetSegment { registration: from.1, addr: from.0, bytes: whole };
        let begin = || {
            // SAFETY: the memory is never given back.
            unsafe { offered(rank.comm.ireduce_scatter(&[part], to, EACH, (0, whole), dtype, op)) }
        };
        if let Some(request) = trial.patience().until("ireduce_scatter", begin)? {
            rank.finish(trial, request)?;
            let sum = |at: usize| (0..rank.ranks).map(|other| share(other, me * EACH + at)).sum();
            want!(recv == elements(dtype, EACH, sum), "rank {me}: a wrong reduce-scatter");
        }
        Ok(())
    })
}

/// A call that a plugin need not offer: `Some(None)` if it does not.
fn offered(result: hawser_plugin::Result<Option<Request>>) -> hawser_plugin::Result<Option<Option<Request>>> {
    match result {
        Err(error) if error.kind == ErrorKind::Unsupported => Ok(Some(None)),
        other => other.map(|request| request.map(Some)),
    }
}

fn closing_early(trial: &Trial<dyn CollNet>) -> Outcome {
    ranks(trial, 2, |rank| {
        let Some(dtype) = rank.types.first().copied() else { return Ok(()) };
        let (me, length) = (rank.rank, 50_000);
        let (send, recv) = (elements(dtype, length, |at| share(me, at)), elements(dtype, length, |_| 0));
        let (from, to) = (rank.register(send)?, rank.register(recv)?);
        // SAFETY: the memory is never given back.
        let _ = unsafe { rank.comm.iall_reduce(from, to, length, dtype, ReduceOp::Sum) };
        Ok(())
    })?;
    reduce_all(trial, 2, 1)
}
