//! What SymBulk asks of the driver.

use super::*;

#[test]
fn bulk_kernels_get_their_shared_memory() {
    with_fake_driver("bulk::bulk_kernels_get_their_shared_memory", &[], || {
        let device = opened(0);
        let key = |protocol| KernelKey::new(DeviceOp::Sum, DataType::Float32, protocol);
        let shared_bytes = hawser_plan::bulk::SHARED_BYTES;
        let launch = ExchangeLaunch { args: Default::default(), blocks: 8, threads: 512, shared_bytes };
        if hawser_kernels::FATBINS.is_empty() {
            assert!(device.launch_exchange(key(Protocol::SymBulk), &launch, Stream(0)).is_err());
            return;
        }
        let refused = device.launch_exchange(key(Protocol::SymSimple), &launch, Stream(0));
        assert!(refused.is_err(), "nobody has asked the driver");
        device.launch_exchange(key(Protocol::SymBulk), &launch, Stream(0)).unwrap();
        assert_eq!((fake("fake_grid"), fake("fake_shared")), (8, 192 << 10));
    });
}

#[test]
fn ordinary_memory_is_reached_and_other_memory_if_it_was_shared() {
    with_fake_driver("bulk::ordinary_memory_is_reached_and_other_memory_if_it_was_shared", &[], || {
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
