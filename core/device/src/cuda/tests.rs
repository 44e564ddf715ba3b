//! The device against a stand-in for the driver (`fake/libcuda.c`): which calls are made, in which
//! state, and that everything is given back. What a GPU does with them is tested on GPUs.

mod copies;
mod direct;
mod flat;
mod moment;
mod pool;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_kernels_abi::{DeviceOp, Variant};
use hawser_plan::DataType;
use hawser_plan::Route;
use hawser_plan::topology::DeviceKind;

use super::fake::{assert_passed, fake, set_capturing};
use super::*;

/// As [`fake::with_fake_driver`], for a test below this file.
fn with_fake_driver(test: &str, env: &[(&str, &str)], body: fn()) {
    fake::with_fake_driver(module_path!(), test, env, body);
}

/// A command that runs one test of this file.
fn this_test(test: &str) -> Command {
    fake::this_test(module_path!(), test)
}

fn opened(ordinal: u32) -> Arc<CudaDevice> {
    super::opened(ordinal).expect("a device of the stand-in")
}

fn bytes_at(device: &dyn Device, addr: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; length];
    device.download(addr, &mut bytes).expect("download");
    bytes
}

#[test]
fn a_machine_without_gpu_gets_an_explanation() {
    with_fake_driver("a_machine_without_gpu_gets_an_explanation", &[("FAKE_NO_DEVICE", "1")], || {
        for error in [count().unwrap_err(), current().unwrap_err(), open(0).err().unwrap()] {
            assert!(error.text.contains("no GPU") && error.text.contains("HAWSER_DEVICE=host"), "{error}");
        }
        assert_eq!(summary(), []);
    });
}

#[test]
fn devices_are_described() {
    with_fake_driver("devices_are_described", &[], || {
        assert_eq!((count().unwrap(), current().unwrap()), (2, 0));
        let device = opened(1);
        assert!(Arc::ptr_eq(&device, &opened(1)), "one device per ordinal");
        let caps = device.caps();
        assert_eq!((caps.ordinal, caps.id.as_str(), caps.multiprocessors), (1, "0000:2b:00.0", 132));
        assert_eq!((&caps.kind, caps.nvlink), (&DeviceKind::Cuda { sm: 90 }, true));
        assert_eq!(caps.peers, ["0000:1b:00.0"]);
        assert!(open(2).err().unwrap().text.contains("does not exist"));
        let entered = device.enter().unwrap();
        assert_eq!(current().unwrap(), 1);
        drop(entered);
        assert_eq!(fake("fake_is_current"), 0);
        let summaries = summary();
        assert_eq!(summaries[0].peers, [PeerLink::Itself, PeerLink::NvLink]);
        assert_eq!(
            (summaries[1].id.as_str(), summaries[1].memory_bytes, summaries[1].nvlink()),
            ("0000:2b:00.0", 1 << 30, true)
        );
        drop(device);
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn private_memory_is_zeroed_and_freed_even_during_a_capture() {
    with_fake_driver("private_memory_is_zeroed_and_freed_even_during_a_capture", &[], || {
        let device = opened(0);
        for capturing in [0, 1] {
            set_capturing(capturing);
            let memory = device.alloc(1000).unwrap();
            assert_eq!((memory.bytes, bytes_at(&*device, memory.addr, 1000)), (1000, vec![0; 1000]));
            device.upload(memory.addr + 10, b"hello").unwrap();
            assert_eq!(bytes_at(&*device, memory.addr + 9, 7), b"\0hello\0");
            device.upload(memory.addr, &[]).unwrap();
            let words = device.host_words(40).unwrap();
            // SAFETY: 40 bytes that nobody else uses.
            assert_eq!(unsafe { std::slice::from_raw_parts(words.host, 40) }, [0; 40]);
            assert_ne!(words.memory.addr, 0);
            assert_eq!(fake("fake_is_current"), 0, "the caller's context is as it was");
        }
        set_capturing(0);
        assert_eq!(device.alloc(0).unwrap().bytes, 0);
        let error = device.alloc(2 << 30).err().unwrap();
        for part in [
            "device 0 (0000:1b:00.0)",
            "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory",
            "asked for 2 GiB, 12 MiB of 1 GiB free",
        ] {
            assert!(error.text.contains(part), "{error}");
        }
        assert!(device.upload(0x10, b"x").is_err());
        drop(device);
        assert_eq!(fake("fake_live"), 0);
    });
}

/// The owner and an importer of one process see the same bytes, in any order of release.
fn share_in_process(kind: HeapKind) {
    let (owner, peer) = (opened(0), opened(1));
    set_capturing(1);
    let heap = owner.alloc_heap(5000, kind).unwrap();
    assert_eq!(heap.bytes, 5000);
    let export = owner.export(&heap, kind).unwrap();
    assert!(export.token.len() <= 256);
    let import = peer.import(&export.token, None, kind).unwrap();
    let second = peer.import(&export.token, export.fd, kind).unwrap();
    set_capturing(0);
    assert_eq!(import.bytes, 5000);
    assert_eq!(bytes_at(&*peer, import.addr, 5000), vec![0; 5000]);
    owner.upload(heap.addr + 4000, b"from owner").unwrap();
    assert_eq!(bytes_at(&*peer, second.addr + 4000, 10), b"from owner");
    peer.upload(import.addr, b"from peer").unwrap();
    assert_eq!(bytes_at(&*owner, heap.addr, 9), b"from peer");
    let other = if kind == HeapKind::Host { HeapKind::Device } else { HeapKind::Host };
    assert!(owner.export(&heap, other).is_err());
    assert!(peer.import(&export.token, None, other).err().unwrap().text.contains("NCCL_P2P_DISABLE"));
    assert!(owner.export(&owner.alloc(8).unwrap(), kind).err().unwrap().text.contains("not a heap"));
    drop((heap, second));
    assert_eq!(bytes_at(&*peer, import.addr, 9), b"from peer", "an importer keeps the memory");
    drop(import);
    let error = peer.import(&export.token, None, kind).err().unwrap();
    assert!(error.text.contains("freed") && error.text.contains("0000:1b:00.0"), "{error}");
    drop((owner, peer));
    assert_eq!(fake("fake_live"), 0);
}

#[test]
fn vmm_heaps_are_shared_in_a_process() {
    with_fake_driver("vmm_heaps_are_shared_in_a_process", &[], || {
        share_in_process(HeapKind::Device);
        assert_eq!(fake("fake_records"), 0);
    });
}

#[test]
fn shared_memory_can_be_used_by_peers() {
    with_fake_driver("shared_memory_can_be_used_by_peers", &[], || {
        let (owner, peer) = (opened(0), opened(1));
        let heap = owner.alloc_heap(4096, HeapKind::Device).unwrap();
        assert!(!peer.accepts(heap.addr).unwrap());
        owner.share(&heap).unwrap();
        assert!(peer.accepts(heap.addr).unwrap() && owner.accepts(heap.addr).unwrap());
        drop(heap);
        drop((owner, peer));
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn legacy_heaps_are_shared_in_a_process() {
    with_fake_driver("legacy_heaps_are_shared_in_a_process", &[("NCCL_CUMEM_ENABLE", "0")], || {
        share_in_process(HeapKind::Device);
    });
}

#[test]
fn host_heaps_are_shared_in_a_process() {
    with_fake_driver("host_heaps_are_shared_in_a_process", &[], || share_in_process(HeapKind::Host));
}

#[test]
fn refused_vmm_falls_back_to_legacy() {
    with_fake_driver("refused_vmm_falls_back_to_legacy", &[("FAKE_NO_VMM", "1")], || {
        let device = opened(0);
        let heap = device.alloc_heap(10, HeapKind::Device).unwrap();
        let export = device.export(&heap, HeapKind::Device).unwrap();
        assert!(export.fd.is_none());
        assert_eq!(token::Token::decode(&export.token).unwrap().kind, token::Kind::Legacy);
    });
}

#[test]
fn vmm_that_was_asked_for_does_not_fall_back() {
    let env = [("FAKE_NO_VMM", "1"), ("NCCL_CUMEM_ENABLE", "1")];
    with_fake_driver("vmm_that_was_asked_for_does_not_fall_back", &env, || {
        let error = opened(0).alloc_heap(10, HeapKind::Device).err().unwrap();
        assert!(error.text.contains("(800)") && error.text.contains("NCCL_CUMEM_ENABLE=0"), "{error}");
    });
}

/// As [`share_in_process`], the importer in another process. It runs the same test and knows its
/// role by its standard input: a descriptor number and a token in hexadecimal.
fn share_across_processes(test: &str, kind: HeapKind) {
    let mut order = String::new();
    std::io::stdin().read_to_string(&mut order).expect("reading standard input");
    if let Some((fd, token)) = order.split_once(' ') {
        return import_from_parent(fd, token, kind);
    }
    let device = opened(0);
    let heap = device.alloc_heap(5000, kind).unwrap();
    device.upload(heap.addr + 4000, b"from owner").unwrap();
    let export = device.export(&heap, kind).unwrap();
    let token: String = export.token.iter().map(|b| format!("{b:02x}")).collect();
    let fd = export.fd.as_ref().map_or(-1, |fd| {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).expect("an inheritable descriptor");
        fd.as_raw_fd()
    });
    let mut child = this_test(test);
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("starting the importer");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(format!("{fd} {token}").as_bytes()).expect("writing to the importer");
    drop(stdin);
    assert_passed(&child.wait_with_output().expect("the importer's end"));
    assert_eq!(bytes_at(&*device, heap.addr, 9), b"from peer");
    drop((heap, device));
    assert_eq!(fake("fake_live"), 0);
}

fn import_from_parent(fd: &str, token: &str, kind: HeapKind) {
    let byte = |at: usize| u8::from_str_radix(&token[at..at + 2], 16).expect("hexadecimal");
    let token: Vec<u8> = (0..token.len()).step_by(2).map(byte).collect();
    let fd: i32 = fd.parse().expect("a number");
    // SAFETY: the parent left this descriptor open for us.
    let fd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
    let device = opened(1);
    if fd.is_some() {
        assert!(device.import(&token, None, kind).err().unwrap().text.contains("descriptor"));
    }
    let heap = device.import(&token, fd, kind).unwrap();
    assert_eq!(bytes_at(&*device, heap.addr + 4000, 10), b"from owner");
    device.upload(heap.addr, b"from peer").unwrap();
    drop((heap, device));
    assert_eq!(fake("fake_live"), 0);
}

#[test]
fn vmm_heaps_are_shared_across_processes() {
    with_fake_driver("vmm_heaps_are_shared_across_processes", &[], || {
        share_across_processes("vmm_heaps_are_shared_across_processes", HeapKind::Device);
    });
}

#[test]
fn legacy_heaps_are_shared_across_processes() {
    with_fake_driver("legacy_heaps_are_shared_across_processes", &[("NCCL_CUMEM_ENABLE", "0")], || {
        share_across_processes("legacy_heaps_are_shared_across_processes", HeapKind::Device);
    });
}

#[test]
fn host_heaps_are_shared_across_processes() {
    with_fake_driver("host_heaps_are_shared_across_processes", &[], || {
        share_across_processes("host_heaps_are_shared_across_processes", HeapKind::Host);
    });
}

#[test]
fn order_respects_captures() {
    with_fake_driver("order_respects_captures", &[], || {
        let device = opened(0);
        // The stand-in takes the capture from bits 8 and up of an odd stream.
        let (plain, other, captured, same_capture, other_capture) = (1, 3, 0x101, 0x103, 0x201);
        let done = |earlier, later| {
            let before = (fake("fake_records"), fake("fake_waits"));
            device.order(Stream(earlier), Stream(later)).unwrap();
            (fake("fake_records") - before.0, fake("fake_waits") - before.1)
        };
        assert_eq!(done(plain, plain), (0, 0));
        assert_eq!(done(plain, other), (1, 1));
        assert_eq!(done(0, other), (1, 1));
        assert_eq!(done(captured, same_capture), (1, 1));
        assert_eq!(done(plain, captured), (0, 0));
        assert_eq!(done(captured, other_capture), (0, 0));
        set_capturing(1);
        assert_eq!(done(0, captured), (0, 0), "the legacy stream is in no capture");
        set_capturing(0);
        drop(device);
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn addresses_are_accepted_by_what_they_are() {
    with_fake_driver("addresses_are_accepted_by_what_they_are", &[], || {
        let (device, peer) = (opened(0), opened(1));
        let (own, foreign) = (device.alloc(64).unwrap(), peer.alloc(64).unwrap());
        let pinned = device.host_words(8).unwrap();
        assert!(device.accepts(own.addr + 63).unwrap());
        assert!(device.accepts(pinned.memory.addr).unwrap());
        assert!(!device.accepts(foreign.addr).unwrap());
        assert!(!device.accepts(&raw const own as u64).unwrap());
        assert!(!device.accepts(0).unwrap());
    });
}

#[test]
fn kernels_are_loaded_and_launched() {
    with_fake_driver("kernels_are_loaded_and_launched", &[], || {
        let device = opened(0);
        let key = KernelKey::new(DeviceOp::Sum, DataType::Float16, Route::LL128);
        let args = Args { n_blocks: 3, ..Args::default() };
        device.launch(key, &Args::default(), 512, Stream(0)).unwrap();
        if hawser_kernels::FATBINS.is_empty() {
            assert!(device.prepare(key).unwrap_err().text.contains("make setup"));
            return;
        }
        device.prepare(key).unwrap();
        device.launch(key, &args, 512, Stream(0)).unwrap();
        assert_eq!((fake("fake_launches"), fake("fake_grid"), fake("fake_block")), (1, 3, 512));
        assert_eq!(fake("fake_overlapping"), 1, "it may start early");
        let error = device.launch(key, &args, 2048, Stream(7)).unwrap_err();
        assert!(error.text.contains("hawser_sum_f16_ll128 with 3 x 2048 threads on stream 0x7"), "{error}");
    });
}

#[test]
fn fused_kernels_may_start_early() {
    with_fake_driver("fused_kernels_may_start_early", &[], || {
        let device = opened(0);
        let key = KernelKey::new(DeviceOp::Sum, DataType::Float32, Route::FUSED_LL);
        let launch = FusedKernelLaunch { args: Default::default(), blocks: 5, threads: 256 };
        if hawser_kernels::FATBINS.is_empty() {
            assert!(device.launch_fused(key, &launch, Stream(0)).is_err());
            return;
        }
        device.launch_fused(key, &launch, Stream(0)).unwrap();
        assert_eq!((fake("fake_launches"), fake("fake_grid"), fake("fake_block")), (1, 5, 256));
        assert_eq!(fake("fake_overlapping"), 1);
        let kernel = KernelKey { variant: Variant::Batch, ..key };
        let batch = FusedBatch { args: Default::default(), kernel, blocks: 9, threads: 128 };
        device.launch_batch(&batch, Stream(0)).unwrap();
        assert_eq!((fake("fake_launches"), fake("fake_grid"), fake("fake_block")), (2, 9, 128));
        assert_eq!(fake("fake_overlapping"), 2);
    });
}

#[test]
fn streams_of_our_own_are_destroyed() {
    with_fake_driver("streams_of_our_own_are_destroyed", &[], || {
        let device = opened(0);
        set_capturing(1);
        let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
        set_capturing(0);
        assert!(one.stream != Stream(0) && one.stream != other.stream);
        device.order(one.stream, other.stream).unwrap();
        device.synchronize(other.stream).unwrap();
        drop(device);
        assert_ne!(fake("fake_live"), 0, "a stream keeps its context");
        drop((one, other));
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn graphs_hold_launches_until_they_are_launched() {
    with_fake_driver("graphs_hold_launches_until_they_are_launched", &[], || {
        let key = KernelKey::new(DeviceOp::Sum, DataType::Float16, Route::LL128);
        let args = Args { n_blocks: 3, ..Args::default() };
        let has_kernels = i32::from(!hawser_kernels::FATBINS.is_empty());
        let (device, other) = (opened(0), opened(1));
        let (stream, beside) = (device.stream().unwrap(), device.stream().unwrap());
        device.begin_capture(stream.stream).unwrap();
        device.begin_capture(beside.stream).unwrap();
        for _ in 0..3 * has_kernels {
            device.prepare(key).unwrap();
            device.launch(key, &args, 512, stream.stream).unwrap();
        }
        let memory = device.alloc(64).unwrap();
        device.order(stream.stream, beside.stream).unwrap();
        assert_eq!((fake("fake_launches"), fake("fake_records")), (0, 0));
        // The second stream is still being captured.
        let graph = device.end_capture(stream.stream).unwrap();
        device.end_capture(beside.stream).unwrap();
        for _ in 0..2 {
            device.launch_graph(&graph, stream.stream).unwrap();
        }
        device.synchronize(stream.stream).unwrap();
        assert_eq!((fake("fake_graph_launches"), fake("fake_launches")), (2, 6 * has_kernels));
        let error = other.launch_graph(&graph, stream.stream).unwrap_err();
        assert!(error.text.contains("of another device"), "{error}");
        assert_eq!(fake("fake_is_current"), 0, "the caller's context is as it was");
        drop((graph, memory, stream, beside, device, other));
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn misplaced_captures_are_refused() {
    with_fake_driver("misplaced_captures_are_refused", &[], || {
        let device = opened(0);
        let error = device.begin_capture(Stream(0)).unwrap_err();
        assert!(error.text.contains("capturing stream 0x0") && error.text.contains("(900)"), "{error}");
        let stream = device.stream().unwrap();
        let error = device.end_capture(stream.stream).err().unwrap();
        assert!(error.text.contains("cuStreamEndCapture failed on device 0"), "{error}");
        device.begin_capture(stream.stream).unwrap();
        assert!(device.begin_capture(stream.stream).unwrap_err().text.contains("(401)"));
        let graph = device.end_capture(stream.stream).unwrap();
        let error = device.launch_graph(&graph, Stream(0)).unwrap_err();
        assert!(error.text.contains("launching a graph on stream 0x0"), "{error}");
        drop((graph, stream, device));
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn a_gpu_without_image_is_named() {
    with_fake_driver("a_gpu_without_image_is_named", &[("FAKE_NO_BINARY", "1")], || {
        let key = KernelKey::new(DeviceOp::Copy, DataType::Uint8, Route::SIMPLE);
        let error = opened(0).prepare(key).unwrap_err();
        if !hawser_kernels::FATBINS.is_empty() {
            for part in ["hawser_copy_u8_simple", "sm_90", "HAWSER_CUDA_ARCHS", "CUDA 13.0", "k_copy holds"] {
                assert!(error.text.contains(part), "{error}");
            }
        }
    });
}

/// A check of things that the stand-in cannot know: the same steps with the machine's own driver, if there is
/// one.
#[test]
fn the_machines_own_driver_agrees() {
    if let Err(error) = count() {
        assert!(error.text.contains("HAWSER_DEVICE=host"), "{error}");
        assert_eq!(summary(), []);
        return;
    }
    let device = opened(0);
    let private = device.alloc(5 << 20).unwrap();
    assert_eq!(bytes_at(&*device, private.addr + (5 << 20) - 64, 64), [0; 64]);
    assert!(device.accepts(private.addr).unwrap() && !device.accepts(0).unwrap());
    let words = device.host_words(64).unwrap();
    assert!(device.accepts(words.memory.addr).unwrap());
    device.order(Stream(0), Stream(2)).unwrap();
    device.synchronize(Stream(2)).unwrap();
    let own = device.stream().unwrap();
    device.order(Stream(0), own.stream).unwrap();
    device.begin_capture(own.stream).unwrap();
    let graph = device.end_capture(own.stream).unwrap();
    device.launch_graph(&graph, own.stream).unwrap();
    device.synchronize(own.stream).unwrap();
    let caps = device.caps();
    let peers = (0..count().unwrap()).map(opened).filter(|peer| caps.peers.contains(&peer.caps().id));
    for peer in peers.chain([device.clone()]) {
        for kind in [HeapKind::Device, HeapKind::Host] {
            let heap = device.alloc_heap(3 << 20, kind).unwrap();
            let import = peer.import(&device.export(&heap, kind).unwrap().token, None, kind).unwrap();
            device.upload(heap.addr + (2 << 20), b"from owner").unwrap();
            assert_eq!(
                bytes_at(&*peer, import.addr + (2 << 20), 10),
                b"from owner",
                "{kind:?} {}",
                peer.caps().id
            );
            peer.upload(import.addr, b"from peer").unwrap();
            assert_eq!(bytes_at(&*device, heap.addr, 9), b"from peer", "{kind:?} {}", peer.caps().id);
        }
    }
    if !hawser_kernels::FATBINS.is_empty() {
        // Copy engines have no kernels.
        for route in Route::ALL.into_iter().filter(|p| ![Route::COPY_ENGINE, Route::HOST].contains(p)) {
            device.prepare(KernelKey::new(DeviceOp::Copy, DataType::Uint8, route)).unwrap();
            let fused = route.is_fused();
            let has =
                |dtype: &DataType| !fused || hawser_plan::executor::fused::has_kernel(DeviceOp::Sum, *dtype);
            for dtype in DataType::ALL.into_iter().filter(has) {
                device.prepare(KernelKey::new(DeviceOp::Sum, dtype, route)).unwrap();
            }
        }
    }
}

#[test]
fn streams_above_the_default_priority_are_urgent() {
    with_fake_driver("streams_above_the_default_priority_are_urgent", &[], || {
        let device = opened(0);
        let (urgent, usual) = (device.urgent_stream().unwrap(), device.stream().unwrap());
        let asked = [urgent.stream, usual.stream, Stream(0)].map(|stream| device.is_urgent(stream));
        assert_eq!(asked, [true, false, false]);
    });
}

#[test]
fn words_are_waited_for_and_written_without_a_kernel() {
    with_fake_driver("words_are_waited_for_and_written_without_a_kernel", &[], || {
        let device = opened(0);
        let memory = device.alloc(64).unwrap();
        let (word, other) = (memory.addr, memory.addr + 16);
        let stream = device.urgent_stream().unwrap();
        let ops = [MemoryOp::Write { addr: word, value: 7 }, MemoryOp::Wait { addr: word }];
        // More than the driver takes at once.
        let many: Vec<MemoryOp> = ops.into_iter().cycle().take(600).collect();
        device.memory_ops(stream.stream, &many).unwrap();
        assert_eq!(fake("fake_value_waits"), 300);
        device.copy(stream.stream, other, word, 4).unwrap();
        assert_eq!(bytes_at(&*device, other, 4), [7, 0, 0, 0]);
    });
}

#[test]
fn events_of_programs_are_recorded() {
    with_fake_driver("events_of_programs_are_recorded", &[], || {
        let device = opened(0);
        let stream = device.stream().unwrap();
        let before = fake("fake_records");
        device.record_users_event(stream.stream, 64).unwrap();
        assert_eq!(fake("fake_records"), before + 1);
        assert!(device.record_users_event(stream.stream, 0).is_err(), "no event");
    });
}

#[test]
fn a_stream_calls_the_host() {
    with_fake_driver("a_stream_calls_the_host", &[], || {
        let device = opened(0);
        let stream = device.stream().unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let call = |panics: bool| -> Box<dyn Fn() + Send + Sync> {
            let calls = calls.clone();
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
                assert!(!panics, "the driver does not see this");
            })
        };
        device.call(stream.stream, call(false)).unwrap();
        device.call(stream.stream, call(true)).unwrap();
        assert!(hawser_base::log::last_error().contains("panicked"));
        hawser_base::log::set_last_error("");
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&calls)), (2, 1), "they are freed");
        device.begin_capture(stream.stream).unwrap();
        device.call(stream.stream, call(false)).unwrap();
        device.end_capture(stream.stream).unwrap();
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&calls)), (3, 2), "kept for replays");
    });
}
