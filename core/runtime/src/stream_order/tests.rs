//! Launches of a communicator on streams, in captures, and around replays.

use hawser_device::cuda::fake::{fake, with_fake_driver};

use super::*;

#[test]
fn operations_are_ordered_without_streams_that_may_be_gone() {
    with_fake_driver(module_path!(), "operations_are_ordered_without_streams_that_may_be_gone", &[], || {
        let device = hawser_device::cuda::open(0).unwrap();
        let word = device.alloc(4).unwrap();
        let order = Order::new(word.addr, false);
        // (waits for events, waits for the word, whether the launch counts)
        let put = |stream: u64| {
            let before = (fake("fake_waits"), fake("fake_value_waits"));
            let counts = put_on(&*device, &order, stream, word.addr);
            (fake("fake_waits") - before.0, fake("fake_value_waits") - before.1, counts)
        };
        let (plain, other, captured, same_capture, other_capture) = (1, 3, 0x101, 0x103, 0x201);
        assert_eq!(put(plain), (0, 0, true), "nothing to wait for");
        assert_eq!(put(plain), (0, 0, true), "in stream order");
        assert_eq!(put(captured), (0, 0, false), "replays count nothing");
        assert_eq!(put(same_capture), (1, 0, false));
        assert_eq!(put(other_capture), (0, 0, false));
        assert_eq!(put(captured), (1, 0, false), "captures may take turns");
        assert_eq!(put(plain), (0, 0, true), "captures in between change nothing");
        assert_eq!(put(other), (0, 1, true), "another stream waits for the word, not for the stream");
        let end = order.end(&*device).unwrap();
        assert_eq!((end.is_some(), fake("fake_value_waits")), (true, 2));
        let failed =
            order.put(&*device, Stream(other), 4, |_| Err(hawser_base::error::Error::internal("refused")));
        assert!(failed.is_err());
        assert_eq!(put(other), (0, 0, true));
    });
}

#[test]
fn replays_and_launches_are_ordered_from_the_first_capture_on() {
    with_fake_driver(
        module_path!(),
        "replays_and_launches_are_ordered_from_the_first_capture_on",
        &[],
        || {
            let device = hawser_device::cuda::open(0).unwrap();
            let word = device.alloc(4).unwrap();
            let order = Order::new(word.addr, true);
            // What the launch on that stream waits for and records: the event outside and inside of graphs,
            // the word.
            let put = |stream: u64| {
                let all = ["fake_waits", "fake_records", "fake_external_waits", "fake_value_waits"];
                let before = all.map(fake);
                put_on(&*device, &order, stream, word.addr);
                [0, 1, 2, 3].map(|i| fake(all[i]) - before[i])
            };
            // Nodes of the stand-in are numbers; what is captured comes behind the latest one.
            let is_last = || assert_eq!(fake("fake_recorded_after"), fake("fake_latest_node"));
            let (plain, other, captured, same_capture, other_capture) = (1, 3, 0x101, 0x103, 0x201);
            assert_eq!(put(plain), [0, 0, 0, 0], "no event before the first capture");
            let live = fake("fake_live");
            assert_eq!(put(captured), [0, 1, 1, 1], "the event comes behind all launches so far");
            assert_eq!(fake("fake_live"), live + 1, "the event; the stream that was put behind them is gone");
            is_last();
            assert_eq!(put(captured), [0, 0, 0, 0], "one node waits");
            is_last();
            assert_eq!(put(same_capture), [1, 1, 0, 0], "streams of a capture");
            is_last();
            assert_eq!(put(other_capture), [0, 0, 1, 0]);
            is_last();
            assert_eq!(put(plain), [1, 1, 0, 0]);
            assert_eq!(put(other), [1, 1, 0, 0], "the event says all that the word says");
            let end = order.end(&*device).unwrap();
            assert_eq!((end.is_some(), fake("fake_waits")), (true, 4));

            let untouched = Order::new(word.addr, true);
            assert!(untouched.end(&*device).unwrap().is_none());
            put_on(&*device, &untouched, captured, word.addr);
            assert!(untouched.end(&*device).unwrap().is_some(), "replays may be on their way");
        },
    );
}

/// A launch of four blocks; whether it counts `word`.
fn put_on(device: &dyn Device, order: &Order, stream: u64, word: u64) -> bool {
    let mut counts = false;
    let launch = |done| {
        counts = done == word;
        Ok(())
    };
    order.put(device, Stream(stream), 4, launch).unwrap();
    counts
}
