use super::*;
use std::alloc::{Layout, alloc, dealloc};

const MIB: u64 = 1 << 20;

/// Memory of the allocator, filled with something; counts what is out, and refuses beyond a number of bytes.
struct Heap {
    out: Arc<AtomicU64>,
    most: u64,
}

struct Piece(u64, Layout, Arc<AtomicU64>);

impl Drop for Piece {
    fn drop(&mut self) {
        self.2.fetch_sub(self.1.size() as u64, Ordering::Relaxed);
        // SAFETY: allocated with this layout by `take`.
        unsafe { dealloc(self.0 as *mut u8, self.1) };
    }
}

impl Source for Heap {
    fn take(&self, bytes: u64) -> Result<Memory> {
        assert_eq!(bytes % GRANULARITY, 0);
        if self.out.load(Ordering::Relaxed) + bytes > self.most {
            return Err(Error::new(hawser_base::error::ErrorKind::UnhandledCuda, "out of memory"));
        }
        self.out.fetch_add(bytes, Ordering::Relaxed);
        let layout = Layout::from_size_align(bytes as usize, 4096).unwrap();
        // SAFETY: the layout is not empty.
        let addr = unsafe { alloc(layout) } as u64;
        // SAFETY: freshly allocated.
        unsafe { std::ptr::write_bytes(addr as *mut u8, 0xee, bytes as usize) };
        Ok(Memory { addr, bytes, owner: Box::new(Piece(addr, layout, self.out.clone())) })
    }

    fn zero(&self, addr: u64, bytes: u64) -> Result<()> {
        // SAFETY: the pool hands out ranges of pieces.
        unsafe { std::ptr::write_bytes(addr as *mut u8, 0, bytes as usize) };
        Ok(())
    }

    fn is_zeroed(&self) -> bool {
        false
    }
}

fn pool(policy: Policy) -> (Arc<Pool>, Arc<AtomicU64>) {
    limited(policy, u64::MAX)
}

fn limited(policy: Policy, most: u64) -> (Arc<Pool>, Arc<AtomicU64>) {
    let out = Arc::new(AtomicU64::new(0));
    let pool = Pool::new("device 7", policy, Box::new(Heap { out: out.clone(), most })).unwrap();
    (pool, out)
}

fn is_zero(memory: &Memory) -> bool {
    // SAFETY: the test's own memory.
    let bytes = unsafe { std::slice::from_raw_parts(memory.addr as *const u8, memory.bytes as usize) };
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn by_default_a_pool_takes_what_is_needed_and_keeps_nothing() {
    let (pool, out) = pool(Policy::default());
    let small: Vec<Memory> = (0..100).map(|i| pool.alloc(i * 10).unwrap()).collect();
    assert!(small.iter().all(is_zero));
    assert_eq!((out.load(Ordering::Relaxed), small[3].bytes), (2 * MIB, 30), "small ones share a segment");
    let large = pool.alloc(5 * MIB).unwrap();
    assert_eq!(out.load(Ordering::Relaxed), 8 * MIB);
    let ticket = pool.ticket(4 * MIB).unwrap();
    assert_eq!((pool.stats().committed, pool.stats().peak), (12 * MIB, 12 * MIB));
    pool.keep(ticket, Box::new(()));
    assert!(pool.reuse(4 * MIB).is_none());
    drop(large);
    assert_eq!((out.load(Ordering::Relaxed), pool.stats().committed), (2 * MIB, 2 * MIB));
    drop(small);
    let stats = pool.stats();
    assert_eq!((out.load(Ordering::Relaxed), stats.committed, stats.in_use), (0, 0, 0));
    assert_eq!(stats.peak, 12 * MIB);
}

#[test]
fn nothing_is_ever_taken_beyond_the_limit() {
    let (pool, out) = pool(Policy { most: Some(10 * MIB), growth: 8.0, trim: 64 * MIB, ..Policy::default() });
    let small = pool.alloc(100).unwrap();
    let ticket = pool.ticket(4 * MIB).unwrap();
    let error = pool.alloc(5 * MIB).err().unwrap();
    for part in ["device 7", "NCCL_CUMEM_MAX_SIZE allows 10 MiB", "6 MiB more", "4.0 MiB in use"] {
        assert!(error.text.contains(part), "{part}: {error}");
    }
    assert_eq!(error.kind, hawser_base::error::ErrorKind::InvalidUsage);
    assert!(pool.ticket(5 * MIB).is_err());
    assert_eq!((pool.stats().refusals, pool.stats().committed), (2, 6 * MIB));
    // What is idle makes room.
    pool.keep(ticket, Box::new(()));
    assert_eq!(pool.stats().committed, 6 * MIB, "kept under the threshold");
    let large = pool.alloc(7 * MIB).unwrap();
    assert_eq!((pool.stats().committed, pool.stats().trims), (10 * MIB, 1));
    assert_eq!(pool.room(), 10 * MIB - pool.stats().in_use);
    drop((large, small));
    assert!(out.load(Ordering::Relaxed) <= 10 * MIB && pool.stats().peak <= 10 * MIB);
}

#[test]
fn growth_takes_more_at_once_but_no_more_than_the_driver_has() {
    let (pool, out) = limited(Policy { growth: 4.0, ..Policy::default() }, 20 * MIB);
    let first = pool.alloc(2 * MIB).unwrap();
    let second = pool.alloc(2 * MIB).unwrap();
    assert_eq!((out.load(Ordering::Relaxed), pool.stats().growths), (8 * MIB, 2));
    let more: Vec<Memory> = (0..2).map(|_| pool.alloc(2 * MIB).unwrap()).collect();
    assert_eq!(pool.stats().growths, 2, "they fit what is there");
    let last = pool.alloc(2 * MIB).unwrap();
    assert_eq!(out.load(Ordering::Relaxed), 10 * MIB, "32 MiB were refused, the need was not");
    drop((first, second, more, last));
    assert_eq!(out.load(Ordering::Relaxed), 0);
}

#[test]
fn idle_memory_goes_back_beyond_the_threshold() {
    let (pool, out) = pool(Policy { trim: 6 * MIB, ..Policy::default() });
    let mut taken: Vec<Memory> = (0..8).map(|_| pool.alloc(2 * MIB).unwrap()).collect();
    for _ in 0..3 {
        taken.pop();
    }
    assert_eq!(out.load(Ordering::Relaxed), 16 * MIB);
    taken.pop();
    assert_eq!((out.load(Ordering::Relaxed), pool.stats().trims), (10 * MIB, 3), "half the threshold stays");
    let again = pool.alloc(2 * MIB).unwrap();
    assert!(is_zero(&again) && out.load(Ordering::Relaxed) == 10 * MIB, "idle memory serves the next user");
    let ticket = pool.ticket(4 * MIB).unwrap();
    pool.keep(ticket.clone(), Box::new(7u8));
    let (same, payload) = pool.reuse(4 * MIB).unwrap();
    assert!(Arc::ptr_eq(&same, &ticket) && payload.downcast_ref() == Some(&7u8));
    drop((same, ticket));
    drop((again, taken));
    assert!(pool.give_back());
    assert_eq!((out.load(Ordering::Relaxed), pool.stats().committed), (0, 0));
    assert!(!pool.give_back());
}

#[test]
fn preallocated_memory_serves_and_stays() {
    let policy = Policy { floor: 16 * MIB, preallocate: true, ..Policy::default() };
    let (pool, out) = pool(policy.clone());
    let ticket = pool.ticket(4 * MIB).unwrap();
    pool.fill().unwrap();
    pool.fill().unwrap();
    assert_eq!((out.load(Ordering::Relaxed), pool.stats().committed), (12 * MIB, 16 * MIB));
    let growths = pool.stats().growths;
    let taken: Vec<Memory> = (0..6).map(|_| pool.alloc(2 * MIB).unwrap()).collect();
    assert_eq!(pool.stats().growths, growths, "no operation allocates below the size");
    drop(taken);
    assert_eq!(pool.stats().committed, 16 * MIB);
    drop((ticket, pool));
    assert_eq!(out.load(Ordering::Relaxed), 0, "the last user gone, all goes");
    let error = limited(policy, 8 * MIB).0.fill().unwrap_err();
    assert!(
        error.text.contains("NCCL_CUMEM_PREALLOC: 16 MiB") && error.text.contains("POOL_SIZE"),
        "{error}"
    );
}

#[test]
fn users_of_many_threads_never_break_the_figures() {
    let (pool, out) = pool(Policy { most: Some(24 * MIB), trim: 4 * MIB, ..Policy::default() });
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut held = Vec::new();
                for i in 0..200u64 {
                    let bytes = (seed * 7919 + i * 104_729) % (3 * MIB);
                    match i % 3 {
                        0 => held.extend(pool.alloc(bytes).ok().inspect(|m| assert!(is_zero(m)))),
                        1 => drop((!held.is_empty()).then(|| held.swap_remove(bytes as usize % held.len()))),
                        _ => {
                            if let Ok(ticket) = pool.ticket(2 * MIB) {
                                pool.keep(ticket, Box::new(()));
                            }
                        }
                    }
                    assert!(pool.stats().committed <= 24 * MIB);
                }
            });
        }
    });
    pool.give_back();
    assert_eq!((pool.stats().committed, pool.stats().in_use, out.load(Ordering::Relaxed)), (0, 0, 0));
}

#[test]
fn one_pool_per_device_while_it_is_used() {
    let source = || -> Result<Box<dyn Source>> { Ok(Box::new(Heap { out: Arc::default(), most: u64::MAX })) };
    let first = of("device one", &Policy::default(), source).unwrap();
    assert!(Arc::ptr_eq(&first, &of("device one", &Policy::default(), source).unwrap()));
    assert!(!Arc::ptr_eq(&first, &of("device two", &Policy::default(), source).unwrap()));
    let memory = first.alloc(10).unwrap();
    drop(first);
    assert_eq!(of("device one", &Policy::default(), source).unwrap().stats().committed, 2 * MIB);
    drop(memory);
    assert_eq!(of("device one", &Policy::default(), source).unwrap().stats().committed, 0);
}
