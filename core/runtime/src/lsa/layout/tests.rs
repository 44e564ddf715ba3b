//! The layouts against numbers; `tests/tests/device_api_layout.rs` has them against NVIDIA's headers.

use super::*;

const ALL: [(u32, Family); 5] = [
    (22809, Family::V228),
    (22902, Family::V228),
    (22907, Family::V229),
    (23007, Family::V230),
    (23203, Family::V232),
];

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn only_versions_whose_layout_is_known_have_a_family() {
    for (version, family) in ALL {
        assert_eq!(Family::of(version), Some(family));
    }
    for version in [22803, 22905, 22908, 23008, 23102, 23204, 23206, 0] {
        assert_eq!(Family::of(version), None, "{version}");
    }
}

#[test]
fn fields_are_where_device_code_reads_them() {
    let image = DevCommImage {
        version: 23203,
        world: (5, 8),
        lsa: (1, 4),
        table: 0x1111_2222_3333,
        resources: (0x4444_5555_6666, 0x7777_8888_9999, 3),
        multicast: (0xbbbb_cccc_dddd, 15),
        lsa_barrier: Barriers { buffer: 10, count: 11 },
        rail_buffer: 12,
        hybrid_barrier: Barriers { buffer: 13, count: 14 },
        abort_flag: 0xaaaa_bbbb_cccc,
        network: None,
    };
    for (_, family) in ALL {
        let (bytes, offsets) = (image.bytes(family), family.offsets());
        assert_eq!(bytes.len(), offsets.bytes);
        let numbers: Vec<u32> = (0..6).map(|at| word(&bytes, offsets.head + 4 * at)).collect();
        assert_eq!(numbers, [5, 8, 1 << 29, 1, 4, 1 << 30]);
        assert_eq!(Family::resource_window(&bytes), 0x4444_5555_6666);
        let at = |at: usize| word(&bytes, at);
        assert_eq!((at(offsets.stride), at(offsets.lsa_barrier), at(offsets.lsa_barrier + 4)), (3, 10, 11));
        assert_eq!(at(offsets.rail_barrier + 4), 12);
        let base = u64::from(at(offsets.lsa_barrier - 8)) | u64::from(at(offsets.lsa_barrier - 4)) << 32;
        assert_eq!((at(offsets.stride + 4), base), (15, 0xbbbb_cccc_dddd));
        assert_eq!(
            offsets.hybrid_barrier.map(|hybrid| (at(hybrid), at(hybrid + 4))).unwrap_or((13, 14)),
            (13, 14)
        );
        if offsets.head > 0 {
            assert_eq!((at(0), at(4)), (0xcafe_beef, 23203));
        }
    }
}

/// The last fields of an `ncclDevComm` of 2.28.9: the numbers of contexts, of signals and of counters are not
/// side by side.
#[test]
fn each_context_of_2_28_has_a_type_and_an_address() {
    let (barriers, context_bytes) = (NetworkBarriers { rail: 9, ..NetworkBarriers::default() }, 48);
    let network = NetworkImage {
        handle: 0x1_0000_1000,
        contexts: 3,
        signals: [7, 8],
        shadows: 0x2_0000_2000,
        barriers,
        stride: 1,
        has_strong_signals: true,
        context_bytes,
    };
    let image = DevCommImage { network: Some(network), ..DevCommImage::default() };
    let bytes = image.bytes(Family::V228);
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(bytes[136..141], [3, 2, 2, 2, 0]);
    assert_eq!([144, 152, 160, 168].map(long), [0x1_0000_1000, 0x1_0000_1030, 0x1_0000_1060, 0]);
    assert_eq!([128, 176, 180, 184, 188].map(|at| word(&bytes, at)), [9, 0, 7, 0, 8]);
    assert_eq!(long(192), 0x2_0000_2000);
}

/// Device code divides by the high half of a product, and mends the quotient by one.
#[test]
fn reciprocals_divide() {
    for divisor in (1..300).chain([1 << 20, 77_777]) {
        for value in [0, 1, divisor - 1, divisor, divisor + 1, 12345, 1 << 30] {
            let product = u64::from(value) * u64::from(reciprocal(divisor));
            let (quotient, exact) = ((product >> 32) as u32, value / divisor);
            // A divisor of 1 has a reciprocal that does not fit; device code knows.
            assert!(divisor == 1 || quotient == exact || quotient + 1 == exact, "{value} / {divisor}");
        }
    }
}
