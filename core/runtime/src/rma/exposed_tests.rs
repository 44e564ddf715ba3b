//! Tests of what a rank exposes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use hawser_device::HeapKind;
use hawser_device::cuda::fake::with_fake_driver;
use hawser_device::host::HostDevice;

const SIGNAL: Signal = Signal { index: 1, context: 0 };

fn exposed() -> Exposed {
    let device = HostDevice::beside().unwrap();
    let control = Arc::new(Control::new(&device).unwrap());
    Exposed::new(2, (Limits { signals: 2, contexts: 1 }, Sums::No), Arc::new(device), control, None)
}

fn put(window: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let fill = |room: &mut [u8]| {
        room.copy_from_slice(bytes);
        Ok(())
    };
    Header::Put { window, offset }.message(bytes.len(), Sums::No, fill).unwrap()
}

fn never(_: &Awaited, missing: u64, _: Instant) -> Result<()> {
    Err(Error::internal(format!("{missing} are missing")))
}

/// Messages that a rank sends before the window is registered keep their order, and hold up nobody else.
#[test]
fn early_messages_wait_for_their_window() {
    let exposed = exposed();
    let memory = vec![0u8; 8];
    let raise = Header::Raise(SIGNAL).message(0, Sums::No, |_| Ok(())).unwrap();
    exposed.serve(0, &put(0, 4, b"rope"));
    exposed.serve(0, &raise);
    exposed.serve(1, &raise);
    let of = |peer, count| [Awaited { peer, signal: SIGNAL, count }];
    exposed.take(&of(1, 1), never).unwrap();
    assert_eq!(exposed.take(&of(0, 1), never).unwrap_err().text, "1 are missing");
    let window = Window { addr: memory.as_ptr() as u64, bytes: 8, is_symmetric: true };
    exposed.register(0, window);
    assert_eq!(memory, *b"\0\0\0\0rope");
    // The wait that failed has its share.
    assert_eq!(exposed.take(&of(0, 1), never).unwrap_err().text, "1 are missing");
    exposed.raise(0, SIGNAL).unwrap();
    exposed.take(&of(0, 0), never).unwrap();
    assert!(exposed.control.fault().is_none());
}

#[test]
fn what_does_not_fit_ends_the_communicator() {
    let memory = [0u8; 8];
    let window = Window { addr: memory.as_ptr() as u64, bytes: 8, is_symmetric: true };
    let wrong_signal =
        Header::Raise(Signal { index: 2, context: 0 }).message(0, Sums::No, |_| Ok(())).unwrap();
    for (message, word) in [
        (put(0, 5, b"rope"), "do not fit window 0 of rank 2"),
        (put(0, u64::MAX, b"rope"), "do not fit window 0"),
        (put(2, 0, b"rope"), "was taken back"),
        (wrong_signal, "has 2 signals"),
        (vec![9], "no put and no signal"),
    ] {
        let exposed = exposed();
        exposed.register(0, window);
        exposed.register(1, window);
        exposed.register(2, window);
        exposed.deregister(2);
        exposed.serve(3, &message);
        let fault = exposed.control.fault().unwrap();
        assert!(fault.text.contains(word) && fault.text.contains("rank 3"), "{fault}");
    }
    assert_eq!(memory, [0; 8]);
}

/// A window goes back to the program when nobody writes into it any more, and nobody begins to.
#[test]
fn who_gives_windows_up_waits_for_puts_that_are_being_written() {
    let (exposed, mut memory) = (exposed(), vec![0u8; 8]);
    let addr = memory.as_mut_ptr() as u64;
    exposed.register(0, Window { addr, bytes: 8, is_symmetric: true });
    let may_not_wait = || Err(Error::internal("may not wait"));
    assert_eq!(exposed.place((0, 4, 4), may_not_wait).unwrap(), addr + 4);
    let has_closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            exposed.close();
            has_closed.store(true, Ordering::SeqCst);
        });
        while !exposed.state().is_closed {
            std::thread::yield_now();
        }
        assert!(!has_closed.load(Ordering::SeqCst), "the put is not over");
        assert_eq!(exposed.place((0, 0, 4), may_not_wait).unwrap_err().text, "may not wait");
        exposed.leave_place();
    });
    assert!(has_closed.into_inner());
    // What comes by messages is dropped, and is no failure.
    exposed.serve(3, &put(0, 0, b"rope"));
    assert_eq!(memory, [0; 8]);
    assert!(exposed.control.fault().is_none());
}

#[test]
fn only_symmetric_windows_hold_buffers() {
    let exposed = exposed();
    exposed.register(0, Window { addr: 1000, bytes: 100, is_symmetric: true });
    exposed.register(1, Window { addr: 2000, bytes: 100, is_symmetric: false });
    assert!(exposed.holds(1000, 100) && exposed.holds(1099, 1) && exposed.holds(1050, 0));
    for (addr, bytes) in [(999, 1), (1000, 101), (1100, 0), (1001, u64::MAX), (2000, 1)] {
        assert!(!exposed.holds(addr, bytes), "{addr} {bytes}");
    }
}

/// Memory that the driver gave to its own device alone, as that of `cudaMallocAsync` is, in a process that
/// has both devices.
#[test]
fn memory_that_no_peer_reaches_is_copied_through_the_host() {
    with_fake_driver(module_path!(), "memory_that_no_peer_reaches_is_copied_through_the_host", &[], || {
        const BYTES: u64 = CHUNK + 100;
        let of = |device: &Arc<dyn Device>| {
            let control = Arc::new(Control::new(&**device).unwrap());
            Exposed::new(2, (Limits { signals: 2, contexts: 1 }, Sums::No), device.clone(), control, None)
        };
        let devices: [Arc<dyn Device>; 2] =
            [0, 1].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap() as Arc<dyn Device>);
        let [own, near] = devices.each_ref().map(of);
        let heaps = devices.each_ref().map(|device| device.alloc_heap(BYTES, HeapKind::Device).unwrap());
        let [from, to] = heaps.each_ref().map(|heap| heap.addr);
        devices[0].upload(from, &[7; BYTES as usize]).unwrap();
        assert!(own.copy(to, from, BYTES).is_err(), "the stand-in refuses it, as the driver does");
        own.copy_into(&near, (to, from, BYTES), true).unwrap();
        let mut read = vec![0; BYTES as usize];
        devices[1].download(to, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
        // What peers may use is reached as it is, unless the devices are no peers.
        let plain = devices[1].alloc_as_user(BYTES).unwrap();
        for (are_peers, value) in [(true, 8), (false, 9)] {
            devices[0].upload(from, &[value; BYTES as usize]).unwrap();
            own.copy_into(&near, (plain.addr, from, BYTES), are_peers).unwrap();
            devices[1].download(plain.addr, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == value));
        }
    });
}
