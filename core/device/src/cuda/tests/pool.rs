//! The pool over the stand-in: what it takes of the driver, what it gives back, and what is never used twice.

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn private_memory_shares_segments_without_handles_for_others() {
    with_fake_driver(
        "pool::private_memory_shares_segments_without_handles_for_others",
        &[("FAKE_NO_VMM", "1")],
        || {
            let device = opened(0);
            let before = fake("fake_live");
            let memory: Vec<Memory> = (0..50).map(|_| device.alloc(1000).unwrap()).collect();
            // A handle, an address range and a mapping for all of them, though handles that can be shared are
            // forbidden.
            assert_eq!(fake("fake_live") - before, 3);
            assert_eq!(device.pool().stats().committed, 2 * MIB);
            for pair in memory.windows(2) {
                assert!(pair[1].addr >= pair[0].addr + 1000);
            }
            drop(memory);
            assert_eq!((fake("fake_live"), device.pool().stats().committed), (before, 0));
        },
    );
}

#[test]
fn the_pool_works_without_vmm() {
    with_fake_driver("pool::the_pool_works_without_vmm", &[("NCCL_CUMEM_ENABLE", "0")], || {
        let device = opened(0);
        let before = fake("fake_live");
        let memory = [device.alloc(10).unwrap(), device.alloc(3 * MIB).unwrap()];
        assert_eq!(bytes_at(&*device, memory[1].addr, 3 * MIB as usize), vec![0; 3 * MIB as usize]);
        assert_eq!((fake("fake_live") - before, device.pool().stats().committed), (2, 6 * MIB));
        drop(memory);
        assert_eq!(fake("fake_live"), before);
    });
}

#[test]
fn heaps_are_used_again_unless_a_peer_may_have_them() {
    let env = [("NCCL_CUMEM_TRIM_THRESHOLD", "64MB")];
    with_fake_driver("pool::heaps_are_used_again_unless_a_peer_may_have_them", &env, || {
        let (device, peer) = (opened(0), opened(1));
        let heap = device.alloc_heap(3 * MIB, HeapKind::Device).unwrap();
        let addr = heap.addr;
        device.upload(addr, b"old").unwrap();
        drop(heap);
        assert_eq!((device.pool().stats().committed, device.pool().stats().in_use), (4 * MIB, 0));
        let heap = device.alloc_heap(4 * MIB, HeapKind::Device).unwrap();
        assert_eq!((heap.addr, bytes_at(&*device, addr, 3)), (addr, vec![0; 3]), "the same memory, cleared");
        // In this process, an importer is known; in others, exporting is what is known.
        let token = device.export(&heap, HeapKind::Device).unwrap().token;
        let import = peer.import(&token, None, HeapKind::Device).unwrap();
        drop(heap);
        assert_eq!(device.pool().stats().committed, 4 * MIB, "the importer keeps it");
        drop(import);
        assert_eq!(device.pool().stats().committed, 0, "exported memory goes back to the driver");
        let (a, b) = (
            device.alloc_heap(MIB, HeapKind::Device).unwrap(),
            device.alloc_heap(MIB, HeapKind::Host).unwrap(),
        );
        assert_eq!(device.pool().stats().committed, 2 * MIB, "host memory does not count");
        drop((a, b));
        drop((device, peer));
        assert_eq!(fake("fake_live"), 0, "idle memory goes with the last user of the device");
    });
}

#[test]
fn the_limit_holds_for_all_memory_of_a_device() {
    let env = [("NCCL_CUMEM_MAX_SIZE", "16MB"), ("NCCL_CUMEM_TRIM_THRESHOLD", "1GB")];
    with_fake_driver("pool::the_limit_holds_for_all_memory_of_a_device", &env, || {
        let device = opened(0);
        let heap = device.alloc_heap(10 * MIB, HeapKind::Device).unwrap();
        let table = device.alloc(100).unwrap();
        for error in [device.alloc(5 * MIB).err(), device.alloc_heap(5 * MIB, HeapKind::Device).err()] {
            let error = error.unwrap();
            assert!(error.text.contains("NCCL_CUMEM_MAX_SIZE allows 16 MiB"), "{error}");
            assert!(
                error.text.contains("device 0 (0000:1B:00.0)") || error.text.contains("0000:1b:00.0"),
                "{error}"
            );
        }
        assert_eq!((device.pool().room(), opened(1).pool().room()), (6 * MIB - 512, 16 * MIB));
        drop(heap);
        let large = device.alloc(12 * MIB).unwrap();
        assert!(device.pool().stats().peak <= 16 * MIB, "the idle heap made room");
        drop((large, table));
        drop(device);
        assert_eq!(fake("fake_live"), 0);
    });
}

#[test]
fn a_full_device_gets_idle_memory_back_before_it_refuses() {
    let env = [("NCCL_CUMEM_TRIM_THRESHOLD", "4GB")];
    with_fake_driver("pool::a_full_device_gets_idle_memory_back_before_it_refuses", &env, || {
        let device = opened(0);
        drop(device.alloc_heap(8 * MIB, HeapKind::Device).unwrap());
        assert_eq!(device.pool().stats().committed, 8 * MIB);
        // The stand-in has 1 GiB for one allocation.
        assert!(device.alloc_heap(2 << 30, HeapKind::Device).err().unwrap().text.contains("asked for 2 GiB"));
        assert_eq!(device.pool().stats().committed, 0);
        assert!(device.alloc(2 << 30).err().unwrap().text.contains("out of memory"));
    });
}
