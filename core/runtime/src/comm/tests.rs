//! Groups of several ranks in one thread, the short way and the long one.

use hawser_plan::{Call, Collective, ReduceOp, Scalar};

use hawser_device::cuda::fake::{fake, set_busy, with_fake_kernels};
use hawser_plan::DataType;

use crate::comm::{Comm, group};

#[test]
fn every_rank_of_a_group_launches_once_whichever_way_it_goes() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    with_fake_kernels(
        module_path!(),
        "every_rank_of_a_group_launches_once_whichever_way_it_goes",
        &env,
        || {
            let devices = [0, 1].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap());
            let comms = Comm::init_all(&[0, 1]).unwrap();
            let buffers = devices.each_ref().map(|device| device.alloc_as_user(1 << 12).unwrap());
            let streams = devices.each_ref().map(|device| device.stream().unwrap());
            let reduce = |rank: usize| {
                comms[rank].collective(all_reduce(buffers[rank].addr), streams[rank].stream).unwrap();
            };
            let swap = |rank: usize, bytes: u64| {
                let (peer, stream) = (1 - rank as u32, streams[rank].stream);
                comms[rank].send(buffers[rank].addr, bytes, peer, stream).unwrap();
                comms[rank].recv(buffers[rank].addr + 2048, bytes, peer, stream).unwrap();
            };
            // Launches of a group, and the number of the last operation of each rank.
            let run = |calls: &dyn Fn(usize)| {
                let before = fake("fake_launches");
                group::start().unwrap();
                [1, 0].into_iter().for_each(calls);
                group::end().unwrap();
                let last = comms.iter().map(|comm| comm.last_decision().unwrap().unwrap().operation);
                (fake("fake_launches") - before, last.collect::<Vec<_>>())
            };
            for number in 0..3 {
                assert_eq!(run(&reduce), (2, vec![number; 2]));
            }
            for number in 0..3 {
                assert_eq!(run(&|rank| swap(rank, 512)), (2, vec![number; 2]), "planned, then kept");
            }
            // Calls have their numbers when it shows that messages need the long way, and keep them.
            let both = |rank| {
                reduce(rank);
                swap(rank, 512);
            };
            assert_eq!(run(&both), (4, vec![3; 2]));
            assert_eq!(run(&|rank| if rank == 0 { reduce(0) } else { both(1) }).0, 3);
            assert_eq!(run(&reduce), (2, vec![5; 2]));
            comms.iter().for_each(|comm| comm.destroy().unwrap());
        },
    );
}

/// A group is as if it were on each of its streams: the others join before its launches and go on after them.
#[test]
fn streams_of_a_group_meet_before_and_after_it() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    with_fake_kernels(module_path!(), "streams_of_a_group_meet_before_and_after_it", &env, || {
        let device = hawser_device::cuda::open(0).unwrap();
        let comms = Comm::init_all(&[0, 1]).unwrap();
        let buffer = device.alloc_as_user(1 << 12).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let waits = || ["fake_waits", "fake_value_waits", "fake_launches"].map(fake);
        let before = waits();
        group::start().unwrap();
        streams.iter().for_each(|own| comms[0].collective(all_reduce(buffer.addr), own.stream).unwrap());
        comms[0].send(buffer.addr, 512, 1, streams[1].stream).unwrap();
        assert_eq!(waits(), before, "nothing before the end");
        group::end().unwrap();
        let after = waits();
        let [events, words, launches] = [0, 1, 2].map(|i| after[i] - before[i]);
        assert_eq!((events, words), (2, 0), "one stream for all {launches} launches");
        comms.iter().for_each(|comm| comm.abort().unwrap());
    });
}

/// On one stream the second rank's kernel would begin when the first one's is over, which waits for it.
#[test]
fn ranks_that_share_a_gpu_need_streams_of_their_own() {
    let env =
        [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    with_fake_kernels(module_path!(), "ranks_that_share_a_gpu_need_streams_of_their_own", &env, || {
        let device = hawser_device::cuda::open(0).unwrap();
        let comms = Comm::init_all(&[0, 0]).unwrap();
        let buffer = device.alloc_as_user(1 << 12).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let of_both = |streams: [hawser_device::Stream; 2], call: Call| {
            group::start().unwrap();
            [0, 1]
                .into_iter()
                .try_for_each(|rank: usize| comms[rank].collective(call, streams[rank]))
                .unwrap();
            group::end()
        };
        let reduce = all_reduce(buffer.addr);
        let same = [streams[0].stream; 2];
        let error = of_both(same, reduce).unwrap_err();
        assert!(error.text.contains("ranks 0 and 1 share device 0"), "{error}");
        assert_eq!(error.kind, hawser_base::error::ErrorKind::InvalidUsage);
        let refused = |outcome: hawser_base::error::Result<()>| {
            outcome.is_err_and(|error| error.text.contains("share device 0"))
        };
        assert!(refused(of_both([hawser_device::Stream::default(); 2], reduce)), "nor on the default stream");
        assert!(!refused(of_both(streams.each_ref().map(|own| own.stream), reduce)));
        // A root does not wait for the others.
        assert!(!refused(of_both(same, Call { collective: Collective::Broadcast, ..reduce })));
        comms.iter().for_each(|comm| comm.abort().unwrap());
    });
}

/// A program that has called nothing for a while, on a GPU where the driver's answer is always late.
#[test]
fn what_is_over_is_known_though_the_driver_answers_late() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    with_fake_kernels(module_path!(), "what_is_over_is_known_though_the_driver_answers_late", &env, || {
        let devices = [0, 1].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap());
        let comms = Comm::init_all(&[0, 1]).unwrap();
        let buffers = devices.each_ref().map(|device| device.alloc_as_user(1 << 12).unwrap());
        let streams = devices.each_ref().map(|device| device.stream().unwrap());
        let reduce = || {
            for (rank, comm) in comms.iter().enumerate() {
                comm.collective(all_reduce(buffers[rank].addr), streams[rank].stream).unwrap();
            }
        };
        let state = comms[0].state().unwrap();
        let left = || {
            assert!(state.has_launches(), "the driver has no answer yet");
            state.journal.last_submitted() - state.journal.last_done()
        };
        set_busy(1);
        reduce();
        assert_eq!([left(), left()], [1, 1], "before the operation is over");
        fake("fake_pass");
        assert_eq!(left(), 0);
        // What came since the question is not over with what was there before.
        reduce();
        assert_eq!(left(), 1);
        fake("fake_pass");
        assert_eq!(left(), 1);
        fake("fake_pass");
        assert_eq!(left(), 0);
        set_busy(0);
        fake("fake_pass");
        assert!(!state.has_launches());
        drop(state);
        comms.iter().for_each(|comm| comm.destroy().unwrap());
    });
}

#[test]
fn parts_of_heaps_come_when_an_operation_needs_them() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none")];
    with_fake_kernels(module_path!(), "parts_of_heaps_come_when_an_operation_needs_them", &env, || {
        let devices = [0, 1].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap());
        let comms = Comm::init_all(&[0, 1]).unwrap();
        let buffers = devices.each_ref().map(|device| device.alloc_as_user(8 << 20).unwrap());
        let streams = devices.each_ref().map(|device| device.stream().unwrap());
        let memory = || [0, 1].map(|rank: usize| comms[rank].memory_bytes() >> 20);
        let reduce = |rank: usize, count: u64| {
            let call = Call { count, output: buffers[rank].addr, ..all_reduce(buffers[rank].addr) };
            comms[rank].collective(call, streams[rank].stream).unwrap();
        };
        let first = memory();
        assert!(first[0] < 8, "{first:?} MiB");
        [0, 1].into_iter().for_each(|rank| reduce(rank, 100));
        assert_eq!(memory(), first, "words are there from the first");

        // Rank 0 alone calls: the others serve it without a call of theirs.
        reduce(0, 2 << 20);
        let larger = memory();
        assert!(larger.iter().all(|mib| *mib > first[0] + 8), "{first:?} MiB, then {larger:?}");
        reduce(1, 2 << 20);
        assert_eq!(memory(), larger, "a part is made once");

        // FIFOs come with the first message, whose peer has not called either.
        comms[1].send(buffers[1].addr, 1 << 20, 0, streams[1].stream).unwrap();
        let all = memory();
        assert!(all.iter().all(|mib| *mib > larger[0] + 8), "{larger:?} MiB, then {all:?}");
        comms[0].recv(buffers[0].addr, 1 << 20, 1, streams[0].stream).unwrap();

        // What is given back and taken again is all of it.
        let both = |act: fn(&Comm)| {
            std::thread::scope(|scope| comms.iter().for_each(|comm| drop(scope.spawn(move || act(comm)))));
        };
        both(|comm| comm.suspend().unwrap());
        both(|comm| comm.resume().unwrap());
        assert_eq!(memory(), all);
        [0, 1].into_iter().for_each(|rank| reduce(rank, 2 << 20));
        comms.iter().for_each(|comm| comm.destroy().unwrap());
    });
}

#[test]
fn all_parts_are_there_at_init_where_it_is_asked_for() {
    let env = [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none"), ("NCCL_RUNTIME_CONNECT", "0")];
    with_fake_kernels(module_path!(), "all_parts_are_there_at_init_where_it_is_asked_for", &env, || {
        let device = hawser_device::cuda::open(0).unwrap();
        let comms = Comm::init_all(&[0, 1]).unwrap();
        let before = comms[0].memory_bytes();
        let (buffer, stream) = (device.alloc_as_user(8 << 20).unwrap(), device.stream().unwrap());
        let call = Call { count: 2 << 20, output: buffer.addr, ..all_reduce(buffer.addr) };
        comms[0].collective(call, stream.stream).unwrap();
        comms[0].send(buffer.addr, 1 << 20, 1, stream.stream).unwrap();
        assert_eq!(comms[0].memory_bytes(), before);
        comms.iter().for_each(|comm| comm.abort().unwrap());
    });
}

fn all_reduce(buffer: u64) -> Call {
    Call {
        collective: Collective::AllReduce,
        count: 100,
        dtype: DataType::Float32,
        op: ReduceOp::Sum,
        scalar: Scalar::Immediate(0),
        root: 0,
        input: buffer,
        output: buffer + 2048,
        gap: 0,
    }
}
