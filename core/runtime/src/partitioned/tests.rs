//! Partitioned collectives on the stand-in for CUDA's driver: what goes to which stream. Launches do nothing
//! there, and waits for words are over at once.

use std::sync::Barrier;

use hawser_device::cuda::fake::{fake, with_fake_driver};
use hawser_plan::{Collective, DataType};

use super::*;
use crate::comm::{Config, unique_id};

#[test]
fn a_stream_waits_for_each_partition_and_marks_it_afterwards() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    let name = "a_stream_waits_for_each_partition_and_marks_it_afterwards";
    with_fake_driver(module_path!(), name, &env, || {
        if hawser_kernels::FATBINS.is_empty() {
            return;
        }
        let (id, both) = (unique_id().unwrap(), &Barrier::new(2));
        std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || of_rank(id, rank, both)));
            // A round puts two launches and two waits on the stream of each rank; each rank waits once more.
            for (launches, waits) in ranks.map(|rank| rank.join().unwrap()) {
                assert_eq!((launches, waits), (2, 3));
            }
        });
    });
}

/// A round of one rank: its launches and waits for words.
fn of_rank(id: crate::UniqueId, rank: u32, both: &Barrier) -> (i32, i32) {
    let comm = Comm::init(&[id], 2, rank, rank, Config::default()).unwrap();
    let device = hawser_device::cuda::open(rank).unwrap();
    let buffer = device.alloc_as_user(4_000).unwrap();
    let stream = device.stream().unwrap();
    let mut call = hawser_plan::Call::of_bytes(Collective::AllReduce, 4_000, DataType::Float32, 0, 2);
    (call.input, call.output) = (buffer.addr, buffer.addr);
    let shape = Shape { call, counts: vec![400, 600], order: vec![1, 0], arrivals: 5, options: None };
    let partitioned = Partitioned::init(&comm, shape).unwrap();
    // The stand-in counts without a lock, so nothing else runs meanwhile: rounds take turns, which they can,
    // since no call waits for one of the other rank.
    static TURN: Mutex<()> = Mutex::new(());
    both.wait();
    let turn = TURN.lock().unwrap();
    let before = ["fake_launches", "fake_value_waits"].map(fake);
    partitioned.start(stream.stream).unwrap();
    let Words { ready, arrived, arrivals } = partitioned.words();
    assert_eq!((word(ready), word(ready + 4), arrivals), (0, 0, 5));
    assert_eq!((word(arrived), word(arrived + 4)), (1, 1), "the stand-in waits for nothing");
    partitioned.ready(0, stream.stream).unwrap();
    assert_eq!((word(ready), word(ready + 4)), (5, 0));
    partitioned.wait(1, stream.stream).unwrap();
    assert!(partitioned.has_arrived(1).unwrap());
    partitioned.ready(1, stream.stream).unwrap();
    partitioned.finish(stream.stream).unwrap();
    let after = ["fake_launches", "fake_value_waits"].map(fake);
    drop(turn);
    both.wait();
    drop(partitioned);
    comm.destroy().unwrap();
    (after[0] - before[0], after[1] - before[1])
}

/// A word of the stand-in's memory.
fn word(addr: u64) -> u32 {
    // SAFETY: device memory of the stand-in is memory of this process, and these words live as long as the
    // partitioned collective that the tests hold.
    unsafe { (addr as *const u32).read_volatile() }
}
