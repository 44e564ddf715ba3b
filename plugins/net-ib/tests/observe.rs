//! The signs that can be seen of a connection: counters of its rails, and events for profilers in NCCL's
//! form.

mod common;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use common::{Pair, Stream};
use hawser_plugin::Log;
use hawser_plugin::net::NetConfig;

static OPEN: AtomicI64 = AtomicI64::new(0);
static STARTED: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// NCCL's callback: start (0) and stop (1).
unsafe extern "C" fn profiler(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    id: i64,
    payload: *mut c_void,
) -> c_int {
    assert_eq!(id, 1 << 16 | 1);
    if kind == 0 {
        assert_eq!(parent as u64, common::PARENT);
        // SAFETY: NCCL's payload of 40 bytes: the length is its last word; the event is for us to write.
        unsafe {
            BYTES.fetch_add(*payload.cast::<u64>().add(4), Ordering::Relaxed);
            *event = std::ptr::dangling_mut();
        }
        STARTED.fetch_add(1, Ordering::Relaxed);
        OPEN.fetch_add(1, Ordering::Relaxed);
    } else {
        assert_eq!(kind, 1);
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
    0
}

#[test]
fn rails_count_and_chunks_are_events() {
    let mut config = NetConfig::new(1, Log::silent());
    config.profiler = Some(profiler);
    let mut pair = Pair::with(2, 2, common::settings(), &config);
    let mut stream = Stream::new(3, 200);
    stream.run_to(&mut pair, 60);
    pair.fabric.port(0, false);
    stream.finish(&mut pair);
    let rails: Vec<_> =
        hawser_net_ib::rails().into_iter().filter(|rail| rail.connection.starts_with("sender")).collect();
    assert_eq!(rails.len(), 2);
    let [first, second] = &rails[..] else { unreachable!() };
    assert!((!first.up, first.stopped, second.up, second.stopped) == (true, 1, true, 0), "{rails:?}");
    assert!(
        rails.iter().all(|rail| rail.chunks > 10 && rail.latency.is_some_and(|latency| latency.count > 10))
    );
    assert!(second.bytes > first.bytes);
    let (chunks, bytes) = (first.chunks + second.chunks, first.bytes + second.bytes);
    assert_eq!((STARTED.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed)), (chunks, bytes));
    assert_eq!(hawser_net_ib::stats().resent, first.lost + second.lost);
    drop(pair);
    assert_eq!(OPEN.load(Ordering::Relaxed), 0, "events that never stopped");
    assert!(hawser_net_ib::rails().iter().all(|rail| !rail.connection.starts_with("sender")));
}
