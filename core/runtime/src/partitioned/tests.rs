//! Partitioned collectives on the stand-in for CUDA's driver: what goes to which stream. Launches do nothing
//! there, and waits for words are over at once.

use std::sync::Barrier;

use hawser_device::cuda::fake::{fake, with_fake_kernels};
use hawser_plan::{CallOptions, Collective, DataType, Selection};

use super::calls::Way;
use super::*;
use crate::comm::{Config, unique_id};

#[test]
fn a_stream_waits_for_each_partition_and_marks_it_afterwards() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    let name = "a_stream_waits_for_each_partition_and_marks_it_afterwards";
    with_fake_kernels(module_path!(), name, &env, || {
        let (id, both) = (unique_id().unwrap(), &Barrier::new(2));
        std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || of_rank(id, rank, both)));
            for rank in ranks {
                let [by_host, by_words] = rank.join().unwrap();
                // The host marked 0, whose turn is last, and let a stream wait for 1, which was not there.
                assert_eq!(by_host, [(0, 0, 0), (0, 0, 0), (0, 1, 0), (2, 0, 2), (0, 0, 1)]);
                // Two launches behind two words; a rank's own stream waits for a third.
                assert_eq!(by_words, [(2, 2, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0), (0, 1, 0)]);
            }
        });
    });
}

#[test]
fn a_round_that_ends_without_a_partition_names_it() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    let name = "a_round_that_ends_without_a_partition_names_it";
    with_fake_kernels(module_path!(), name, &env, || {
        let comm = Comm::init(&[unique_id().unwrap()], 1, 0, 0, Config::default()).unwrap();
        let device = hawser_device::cuda::open(0).unwrap();
        let buffer = device.alloc_as_user(4_000).unwrap();
        let stream = device.stream().unwrap();
        let mut call = hawser_plan::Call::of_bytes(Collective::AllReduce, 4_000, DataType::Float32, 0, 1);
        (call.input, call.output) = (buffer.addr, buffer.addr);
        let shape = Shape { call, counts: vec![400, 600], order: vec![], arrivals: 1, options: None };
        let partitioned = Partitioned::init(&comm, shape).unwrap();
        partitioned.start(stream.stream).unwrap();
        partitioned.ready(0, stream.stream).unwrap();
        let error = partitioned.finish(stream.stream).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidUsage);
        let text = error.to_string();
        assert!(
            text.contains("partition 1 is not ready") && text.contains("hawserPartitionedReady"),
            "{text}"
        );
        assert!(partitioned.start(stream.stream).is_err(), "the communicator is aborted");
        drop(partitioned);
        comm.destroy().unwrap();
    });
}

#[test]
fn a_partition_of_blocks_is_one_launch_where_kernels_serve_it() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    let name = "a_partition_of_blocks_is_one_launch_where_kernels_serve_it";
    with_fake_kernels(module_path!(), name, &env, || {
        let (id, both) = (unique_id().unwrap(), &Barrier::new(2));
        std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || blocks_of_rank(id, rank, both)));
            for rank in ranks {
                rank.join().unwrap();
            }
        });
    });
}

/// Graphs of ranks that share a GPU and its queues may wait for each other there.
#[test]
fn rounds_are_captured_where_ranks_share_no_queues() {
    let env =
        [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    let name = "rounds_are_captured_where_ranks_share_no_queues";
    with_fake_kernels(module_path!(), name, &env, || {
        /// A stream that the stand-in takes for one in a capture.
        const CAPTURED: Stream = Stream(0x101);
        for (gpus, is_refused) in [([0, 1], false), ([0, 0], true)] {
            on_gpus(gpus, |comm, shape| {
                let partitioned = Partitioned::init(comm, shape).unwrap();
                let refused = partitioned.start(CAPTURED).err();
                assert_eq!(refused.is_some_and(|e| e.text.contains("share a GPU")), is_refused);
                if is_refused {
                    let device = hawser_device::cuda::open(gpus[comm.rank() as usize]).unwrap();
                    partitioned.start(device.stream().unwrap().stream).expect("no round was begun");
                }
            });
        }
    });
}

/// Copy engines of ranks that share a GPU and its queues may wait for each other there; those of ranks with a
/// GPU each do not.
#[test]
fn copy_engines_carry_partitions_where_ranks_share_no_queues() {
    let env = [
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("HAWSER_RUNTIME_DIR", "none"),
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
        ("NCCL_PASS_SM", "1"),
    ];
    let name = "copy_engines_carry_partitions_where_ranks_share_no_queues";
    with_fake_kernels(module_path!(), name, &env, || {
        for (gpus, is_refused) in [([0, 1], false), ([0, 0], true)] {
            on_gpus(gpus, |comm, shape| match Partitioned::init(comm, shape) {
                Ok(partitioned) => {
                    assert!(!is_refused && partitioned.child.state().unwrap().copy_engines.is_some());
                }
                Err(error) => assert!(is_refused && error.text.contains("share a GPU"), "{error}"),
            });
        }
    });
}

/// Lets both ranks of a communicator on these GPUs act, with the shape of an all-gather in one partition.
fn on_gpus(gpus: [u32; 2], act: impl Fn(&Comm, Shape) + Sync) {
    let (id, act) = (unique_id().unwrap(), &act);
    let of_rank = move |rank: u32| {
        let gpu = gpus[rank as usize];
        let comm = Comm::init(&[id], 2, rank, gpu, Config::default()).unwrap();
        let buffer = hawser_device::cuda::open(gpu).unwrap().alloc_as_user(8_000).unwrap();
        let mut call = hawser_plan::Call::of_bytes(Collective::AllGather, 4_000, DataType::Float32, 0, 2);
        (call.input, call.output) = (buffer.addr + 4_000 * u64::from(rank), buffer.addr);
        act(&comm, Shape { call, counts: vec![call.count], order: vec![], arrivals: 1, options: None });
        let _ = comm.destroy();
    };
    std::thread::scope(|scope| [0, 1].map(|rank| scope.spawn(move || of_rank(rank))).map(drop));
}

/// Partitions of a rank that go in one launch, in two, and as a collective's only block.
fn blocks_of_rank(id: crate::UniqueId, rank: u32, both: &Barrier) {
    let comm = Comm::init(&[id], 2, rank, rank, Config::default()).unwrap();
    let device = hawser_device::cuda::open(rank).unwrap();
    let buffer = device.alloc_as_user(16_000).unwrap();
    let stream = device.stream().unwrap();
    let interpreted = CallOptions {
        selection: Selection::default().by_executor("interpreter").unwrap(),
        ..CallOptions::default()
    };
    for (collective, options, way) in [
        (Collective::ReduceScatter, None, Way::Apart),
        (
            Collective::AllGather,
            Some(CallOptions { max_ctas: Some(4), ..CallOptions::default() }),
            Way::Apart,
        ),
        (Collective::AllToAll, None, Way::Apart),
        (Collective::ReduceScatter, Some(interpreted), Way::Several),
        (Collective::AllReduce, None, Way::Whole),
    ] {
        let mut call = hawser_plan::Call::of_bytes(collective, 8_000, DataType::Float32, 0, 2);
        (call.input, call.output) = (buffer.addr, buffer.addr + 8_000);
        let counts = vec![call.count - 400, 400];
        let options = options.map(Box::new);
        let shape = Shape { call, counts, order: vec![], arrivals: 1, options };
        let partitioned = Partitioned::init(&comm, shape.clone()).unwrap();
        assert_eq!(shape.ways(&partitioned.child).unwrap(), [way; 2], "{collective:?}");
        static TURN: Mutex<()> = Mutex::new(());
        both.wait();
        let turn = TURN.lock().unwrap();
        partitioned.start(stream.stream).unwrap();
        for partition in 0..2 {
            let before = fake("fake_launches");
            partitioned.ready(partition, stream.stream).unwrap();
            let launches = fake("fake_launches") - before;
            assert!(
                if way == Way::Several { launches > 1 } else { launches == 1 },
                "{collective:?}: {launches}"
            );
        }
        partitioned.finish(stream.stream).unwrap();
        drop(turn);
        both.wait();
        drop(partitioned);
    }
    comm.destroy().unwrap();
}

/// Launches, waits for words and waits for events of a step.
type Put = (i32, i32, i32);

/// Two rounds of one rank: marked by the host, and by words.
fn of_rank(id: crate::UniqueId, rank: u32, both: &Barrier) -> [[Put; 5]; 2] {
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
    let by_host = round(&partitioned, stream.stream);
    let Words { ready, arrived, arrivals } = partitioned.words();
    let by_words = round(&partitioned, stream.stream);
    assert_eq!((word(ready), word(ready + 4), arrivals), (5, 5, 5));
    assert_eq!((word(arrived), word(arrived + 4)), (1, 1));
    partitioned.start(stream.stream).unwrap();
    assert_eq!((word(ready), word(ready + 4)), (0, 0));
    partitioned.ready(0, stream.stream).unwrap();
    assert_eq!((word(ready), word(ready + 4)), (5, 0));
    partitioned.ready(1, stream.stream).unwrap();
    partitioned.finish(stream.stream).unwrap();
    drop(turn);
    both.wait();
    drop(partitioned);
    comm.destroy().unwrap();
    [by_host, by_words]
}

/// The steps of a round, with what each puts on streams: its start, the first mark, a wait before the second
/// mark, that mark, and a wait behind it.
fn round(partitioned: &Partitioned, stream: Stream) -> [Put; 5] {
    let step = |run: &dyn Fn()| {
        let counts = || ["fake_launches", "fake_value_waits", "fake_waits"].map(fake);
        let before = counts();
        run();
        let after = counts();
        (after[0] - before[0], after[1] - before[1], after[2] - before[2])
    };
    // The start puts the two streams in order as well.
    let (launches, words, _) = step(&|| partitioned.start(stream).unwrap());
    let all = [
        (launches, words, 0),
        step(&|| partitioned.ready(0, stream).unwrap()),
        step(&|| partitioned.wait(1, stream).unwrap()),
        step(&|| partitioned.ready(1, stream).unwrap()),
        step(&|| partitioned.wait(1, stream).unwrap()),
    ];
    assert!(partitioned.has_arrived(1).unwrap());
    partitioned.finish(stream).unwrap();
    all
}

/// A word of the stand-in's memory.
fn word(addr: u64) -> u32 {
    // SAFETY: device memory of the stand-in is memory of this process, and these words live as long as the
    // partitioned collective that the tests hold.
    unsafe { (addr as *const u32).read_volatile() }
}
