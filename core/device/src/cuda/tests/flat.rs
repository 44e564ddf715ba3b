//! Memory of several ranks side by side.

use std::os::fd::AsFd;

use super::*;

/// A row of all pieces.
fn row(at: u64, of: &Pieces) -> Row<'_> {
    Row { at, pieces: of.pieces.iter().map(|(bytes, descriptor)| (*bytes, descriptor.as_fd())).collect() }
}

#[test]
fn rows_hold_the_memory_of_their_owners() {
    with_fake_driver("flat::rows_hold_the_memory_of_their_owners", &[], || {
        const STRIDE: u64 = 1 << 32;
        const PAGE: u64 = 2 << 20;
        let (device, peer) = (opened(0), opened(1));
        let own = device.alloc_heap(PAGE, HeapKind::Device).unwrap();
        let other = peer.alloc_heap(2 * PAGE, HeapKind::Device).unwrap();
        let maps = device.flat_maps().unwrap();
        let here = maps.pieces(own.addr + 100, 50).unwrap();
        let there = peer.flat_maps().unwrap().pieces(other.addr + PAGE, PAGE).unwrap();
        let lengths = |pieces: &Pieces| pieces.pieces.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>();
        assert_eq!((here.base, here.granularity, lengths(&here)), (own.addr, PAGE, vec![PAGE]));
        assert_eq!((there.base, lengths(&there)), (other.addr, vec![2 * PAGE]));
        let before = fake("fake_live");
        let rows = [row(PAGE, &here), row(0, &there)];
        let flat = maps.lay_out(STRIDE, &rows).unwrap();
        device.upload(own.addr + 100, b"here").unwrap();
        peer.upload(other.addr + PAGE, b"there").unwrap();
        assert_eq!(bytes_at(&*device, flat.addr + PAGE + 100, 4), b"here");
        assert_eq!(bytes_at(&*device, flat.addr + STRIDE + PAGE, 5), b"there");
        device.upload(flat.addr + STRIDE, b"back").unwrap();
        assert_eq!(bytes_at(&*peer, other.addr, 4), b"back");
        drop(flat);
        assert_eq!(fake("fake_live"), before, "nothing stays mapped or reserved");
    });
}

#[test]
fn memory_of_other_kinds_is_refused_with_advice() {
    with_fake_driver("flat::memory_of_other_kinds_is_refused_with_advice", &[], || {
        let device = opened(0);
        let plain = device.alloc_as_user(1 << 20).unwrap();
        let before = fake("fake_live");
        for addr in [plain.addr, 4096] {
            let error = device.flat_maps().unwrap().pieces(addr, 64).err().unwrap();
            assert!(error.text.contains("cuMemCreate") && error.text.contains("ncclMemAlloc"), "{error}");
        }
        let heap = device.alloc_heap(2 << 20, HeapKind::Device).unwrap();
        assert!(
            device.flat_maps().unwrap().pieces(heap.addr, 3 << 20).is_err(),
            "longer than its allocation"
        );
        drop(heap);
        assert_eq!(fake("fake_live"), before, "what was found is let go");
    });
}
