//! The questions of zero_copy to the driver, and the kernels that combine beside copy engines.

use hawser_plan::executor::copy_engine::{ReduceArgs, ReduceKernel, reduce_kernel};

use super::*;

#[test]
fn reductions_get_their_shared_memory() {
    with_fake_driver("direct::reductions_get_their_shared_memory", &[("HAWSER_SM_FREE_ADD", "1")], || {
        let device = opened(0);
        let mut args = ReduceArgs { n: 2, to: 1 << 24, bytes: 9 << 20, ..ReduceArgs::default() };
        args.from[..2].copy_from_slice(&[1 << 25, 1 << 26]);
        let of = |op| {
            let kernel = KernelKey::new(op, DataType::Float32, Route::COPY_ENGINE);
            device.reduce(&ReduceKernel { kernel, blocks: 2, args }, Stream(0))
        };
        let launched = of(DeviceOp::Max);
        if hawser_kernels::FATBINS.is_empty() {
            assert!(launched.is_err());
            return;
        }
        launched.unwrap();
        assert_eq!((fake("fake_grid"), fake("fake_shared")), (2, reduce_kernel::SHARED_BYTES as i32));
        device.prepare(KernelKey::new(DeviceOp::Sum, DataType::Float32, Route::COPY_ENGINE)).unwrap();
        let (before, loaded) = (fake("fake_launches"), fake("fake_loaded"));
        of(DeviceOp::Sum).unwrap();
        assert_eq!(fake("fake_loaded"), loaded, "streams may wait for one another by then");
        let pieces = fake("fake_launches") - before;
        assert_eq!(
            (fake("fake_grid"), fake("fake_shared"), pieces),
            (32, reduce_kernel::ADD_SHARED_BYTES as i32, 2)
        );
    });
}

#[test]
fn whoever_is_reached_has_loaded_all_kernels() {
    with_fake_driver("direct::whoever_is_reached_has_loaded_all_kernels", &[], || {
        let (device, peer) = (opened(0), opened(1));
        let loaded = || fake("fake_loaded");
        assert_eq!(loaded(), 0);
        device.reach(0).unwrap();
        assert_eq!(loaded(), 0, "nobody else is reached");
        device.reach(1).unwrap();
        let (all, some) = (loaded(), !hawser_kernels::FATBINS.is_empty());
        assert_eq!(all > 300, some, "{all} kernels");
        device.reach(1).unwrap();
        device.prepare(KernelKey::new(DeviceOp::Sum, DataType::Float32, Route::LL)).ok();
        assert_eq!(loaded(), all);
        peer.reach(0).unwrap();
        assert_eq!(loaded(), 2 * all, "each for itself");
    });
}

#[test]
fn ordinary_memory_is_reached_and_other_memory_if_it_was_shared() {
    with_fake_driver("direct::ordinary_memory_is_reached_and_other_memory_if_it_was_shared", &[], || {
        let (device, peer) = (opened(0), opened(1));
        let ids = [device.caps().id.clone(), peer.caps().id.clone()];
        let ids = [ids[0].as_str(), ids[1].as_str()];
        assert!(
            device.reach_all(&ids).unwrap()
                && device.reach_all(&ids).unwrap()
                && peer.reach_all(&ids).unwrap()
        );
        let (own, foreign) = (device.alloc_as_user(4096).unwrap(), peer.alloc_as_user(4096).unwrap());
        assert!(device.is_reached(own.addr + 64, 64).unwrap());
        assert!(!device.is_reached(foreign.addr, 64).unwrap(), "another device's");
        assert!(!device.is_reached(&raw const own as u64, 8).unwrap());
        let pinned = device.host_words(64).unwrap();
        assert!(!device.is_reached(pinned.memory.addr, 64).unwrap());
        let heap = device.alloc_heap(4096, HeapKind::Device).unwrap();
        assert!(!device.is_reached(heap.addr, 4096).unwrap(), "no peer may use it yet");
        device.share(&heap).unwrap();
        assert!(
            device.is_reached(heap.addr, 4096).unwrap() && device.is_reached(heap.addr + 96, 4000).unwrap()
        );
        assert!(!device.is_reached(heap.addr + 96, 4001).unwrap() && !peer.is_reached(heap.addr, 1).unwrap());
        let addr = heap.addr;
        drop(heap);
        assert!(!device.is_reached(addr, 1).unwrap());
        drop((own, foreign, pinned));
        drop((device, peer));
        assert_eq!(fake("fake_live"), 0);
    });
}
