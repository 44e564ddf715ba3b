//! Properties of devices between C and the traits. What a plugin claims is not believed as it stands: absurd
//! values are replaced, and each replacement is a line for the log.

use std::ffi::{c_char, c_int};

use hawser_plugin::net::{MAX_RECVS, MAX_VIRTUAL, MemoryKinds, NetProperties};

use super::abi::properties::{RawMembers, RawProperties};
use crate::common::text;

/// Most devices that a plugin may have.
pub const MAX_DEVICES: u32 = 1024;
/// The largest limit on message sizes that NCCL accepts.
const MAX_BYTES: u64 = 1 << 40;
/// All memory kinds there are.
const KINDS: c_int = 7;

/// Checks what a plugin said about a device. The second result says what was replaced.
///
/// # Safety
/// The strings are NULL or as [`text`] needs them.
pub unsafe fn import(raw: &RawProperties, device: u32, devices: u32) -> (NetProperties, Vec<String>) {
    let mut notes = Notes(Vec::new());
    // SAFETY: the caller's promise.
    let (name, pci_path) = unsafe { (text(raw.name), text(raw.pci_path)) };
    let mut properties =
        NetProperties::new(name.unwrap_or_else(|| notes.replaced("name", "none", "unnamed".into())), device);
    properties.pci_path = pci_path;
    properties.guid = raw.guid;
    properties.memory = notes.memory(raw.ptr_support);
    properties.global_registration = raw.reg_is_global != 0;
    properties.force_flush = raw.force_flush != 0;
    properties.speed_mbps = notes.at_least("speed", raw.speed, 0);
    properties.port = notes.at_least("port", raw.port, 0);
    properties.latency_us = notes.latency(raw.latency);
    properties.max_comms = notes.at_least("maxComms", raw.max_comms, 1);
    properties.max_recvs = notes.at_least("maxRecvs", raw.max_recvs, 1);
    if properties.max_recvs > MAX_RECVS as u32 {
        properties.max_recvs = notes.replaced("maxRecvs", raw.max_recvs, MAX_RECVS as u32);
    }
    properties.members = notes.members(&raw.members, device, devices);
    properties.max_p2p_bytes = notes.bytes("maxP2pBytes", raw.max_p2p_bytes, properties.max_p2p_bytes);
    let default = properties.max_collective_bytes;
    properties.max_collective_bytes = notes.bytes("maxCollBytes", raw.max_collective_bytes, default);
    properties.max_multi_request = notes.at_least("maxMultiRequestSize", raw.max_multi_request, 1);
    properties.rail = notes.id("railId", raw.rail);
    properties.plane = notes.id("planeId", raw.plane);
    properties.offload = (raw.device_type, raw.device_version);
    (properties, notes.0)
}

/// The properties of a device of ours as a host is told them, with strings that the caller keeps alive. A
/// trait's `u32` that is too large for an int becomes the largest one. The data of our plugins moves through
/// host calls, so no offload is named.
pub fn export(
    properties: &NetProperties,
    name: *const c_char,
    pci_path: *const c_char,
    device: c_int,
) -> RawProperties {
    let int = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    let mut devices = [0; MAX_VIRTUAL];
    for (slot, member) in devices.iter_mut().zip(&properties.members) {
        *slot = int(*member);
    }
    let count = properties.members.len().min(MAX_VIRTUAL) as c_int;
    let bytes = |limit: u64| limit.clamp(1, MAX_BYTES) as usize;
    RawProperties {
        name,
        pci_path,
        guid: properties.guid,
        ptr_support: int(properties.memory.0),
        reg_is_global: c_int::from(properties.global_registration),
        force_flush: c_int::from(properties.force_flush),
        speed: int(properties.speed_mbps),
        port: int(properties.port),
        latency: properties.latency_us,
        max_comms: int(properties.max_comms),
        max_recvs: int(properties.max_recvs.clamp(1, MAX_RECVS as u32)),
        members: RawMembers { count, room: MAX_VIRTUAL, devices },
        max_p2p_bytes: bytes(properties.max_p2p_bytes),
        max_collective_bytes: bytes(properties.max_collective_bytes),
        max_multi_request: int(properties.max_multi_request.max(1)),
        rail: properties.rail,
        plane: properties.plane,
        ..RawProperties::absent(device)
    }
}

/// The names of the values that were replaced.
struct Notes(Vec<String>);

impl Notes {
    /// `new`, noted.
    fn replaced<T>(&mut self, what: &str, old: impl std::fmt::Display, new: T) -> T
    where
        T: std::fmt::Debug,
    {
        self.0.push(format!("{what} {old} -> {new:?}"));
        new
    }

    fn at_least(&mut self, what: &str, number: c_int, least: u32) -> u32 {
        match u32::try_from(number) {
            Ok(number) if number >= least => number,
            _ => self.replaced(what, number, least),
        }
    }

    fn memory(&mut self, kinds: c_int) -> MemoryKinds {
        match kinds & KINDS {
            0 => self.replaced("ptrSupport", kinds, MemoryKinds::HOST),
            known if known == kinds => MemoryKinds(known as u32),
            known => self.replaced("ptrSupport", kinds, MemoryKinds(known as u32)),
        }
    }

    fn latency(&mut self, latency: f32) -> f32 {
        if latency.is_finite() && latency >= 0.0 { latency } else { self.replaced("latency", latency, 0.0) }
    }

    fn bytes(&mut self, what: &str, bytes: usize, default: u64) -> u64 {
        match bytes as u64 {
            0 => self.replaced(what, 0, default),
            bytes if bytes > MAX_BYTES => self.replaced(what, bytes, MAX_BYTES),
            bytes => bytes,
        }
    }

    fn id(&mut self, what: &str, id: i16) -> i16 {
        if id >= -1 { id } else { self.replaced(what, id, -1) }
    }

    /// The devices behind a device. A number of them that cannot be says that the list was not filled in.
    fn members(&mut self, raw: &RawMembers, device: u32, devices: u32) -> Vec<u32> {
        let room = raw.room.min(MAX_VIRTUAL);
        let Some(count) = usize::try_from(raw.count).ok().filter(|count| (1..=room).contains(count)) else {
            return self.replaced("vProps.ndevs", raw.count, vec![device]);
        };
        let listed = &raw.devices[..count];
        let known = |number: &c_int| u32::try_from(*number).ok().filter(|number| *number < devices);
        let members: Vec<u32> = listed.iter().filter_map(known).collect();
        if members.len() == count {
            return members;
        }
        let members = if members.is_empty() { vec![device] } else { members };
        self.replaced("vProps.devs", format!("{listed:?}"), members)
    }
}

#[cfg(test)]
mod tests {
    use super::super::abi::properties::Properties;
    use super::super::abi::{v6, v7, v8, v9, v11, v12};
    use super::*;
    use proptest::prelude::*;
    use std::ptr::null;

    fn import_unnamed(raw: &RawProperties, device: u32, devices: u32) -> (NetProperties, Vec<String>) {
        // SAFETY: the strings of these tests are NULL or literals.
        unsafe { import(raw, device, devices) }
    }

    fn sane() -> RawProperties {
        RawProperties {
            name: c"mlx5_0".as_ptr(),
            ptr_support: 3,
            max_comms: 9,
            max_recvs: 8,
            ..RawProperties::absent(1)
        }
    }

    #[test]
    fn sane_properties_stay_as_they_are() {
        let raw = RawProperties {
            pci_path: c"/sys/devices/pci0".as_ptr(),
            guid: u64::MAX,
            reg_is_global: 1,
            force_flush: 7,
            speed: 400_000,
            port: 2,
            latency: 1.5,
            device_type: 1,
            device_version: 7,
            members: RawMembers { count: 2, room: 8, devices: [1, 0, -9, 0, 0, 0, 0, 0] },
            max_p2p_bytes: 1 << 40,
            max_collective_bytes: 1,
            max_multi_request: 2,
            rail: 0,
            plane: 3,
            ..sane()
        };
        let (properties, notes) = import_unnamed(&raw, 1, 2);
        assert_eq!(notes, [""; 0]);
        let mut expected = NetProperties::new("mlx5_0", 1);
        expected.pci_path = Some("/sys/devices/pci0".into());
        expected.guid = u64::MAX;
        expected.memory = MemoryKinds(3);
        expected.global_registration = true;
        expected.force_flush = true;
        expected.speed_mbps = 400_000;
        expected.port = 2;
        expected.latency_us = 1.5;
        expected.max_comms = 9;
        expected.max_recvs = 8;
        expected.members = vec![1, 0];
        expected.max_p2p_bytes = 1 << 40;
        expected.max_collective_bytes = 1;
        expected.max_multi_request = 2;
        (expected.rail, expected.plane, expected.offload) = (0, 3, (1, 7));
        assert_eq!(properties, expected);
    }

    #[test]
    fn absurd_properties_are_replaced_and_said() {
        let raw = RawProperties {
            name: null(),
            ptr_support: 0x70,
            speed: -1,
            port: c_int::MIN,
            latency: f32::NAN,
            max_comms: 0,
            max_recvs: 9,
            members: RawMembers { count: 4, room: 4, devices: [1, -1, 5, 0, 1, 1, 1, 1] },
            max_p2p_bytes: 0,
            max_collective_bytes: usize::MAX,
            max_multi_request: -3,
            rail: i16::MIN,
            plane: -2,
            ..sane()
        };
        let (properties, notes) = import_unnamed(&raw, 1, 2);
        assert_eq!(properties.name, "unnamed");
        assert_eq!(properties.memory, MemoryKinds::HOST);
        assert_eq!((properties.speed_mbps, properties.port, properties.latency_us), (0, 0, 0.0));
        assert_eq!((properties.max_comms, properties.max_recvs), (1, 8));
        assert_eq!(properties.members, [1, 0]);
        assert_eq!((properties.max_p2p_bytes, properties.max_collective_bytes), (1 << 30, 1 << 40));
        assert_eq!((properties.max_multi_request, properties.rail, properties.plane), (1, -1, -1));
        assert_eq!(notes.len(), 13, "{notes:?}");
        assert!(notes.contains(&"maxRecvs 9 -> 8".to_owned()), "{notes:?}");
        assert!(notes.contains(&"vProps.devs [1, -1, 5, 0] -> [1, 0]".to_owned()), "{notes:?}");
        for count in [c_int::MIN, -1, 0, 5, c_int::MAX] {
            let members = RawMembers { count, room: 4, devices: [0; 8] };
            let (properties, notes) = import_unnamed(&RawProperties { members, ..sane() }, 1, 2);
            assert_eq!(properties.members, [1]);
            assert_eq!(notes, [format!("vProps.ndevs {count} -> [1]")]);
        }
    }

    /// Writes all fields in the layout of a version and reads them back.
    fn through<P: Properties>(properties: &NetProperties, device: u32) -> NetProperties {
        let name = std::ffi::CString::new(properties.name.clone()).unwrap();
        let path = properties.pci_path.clone().map(|path| std::ffi::CString::new(path).unwrap());
        let path = path.as_ref().map_or(null(), |path| path.as_ptr());
        let raw = P::from_raw(&export(properties, name.as_ptr(), path, device as c_int)).raw(device as c_int);
        let (read, notes) = import_unnamed(&raw, device, MAX_DEVICES);
        assert_eq!(notes, [""; 0]);
        read
    }

    prop_compose! {
        fn possible_properties()(
            name in "[a-z0-9_]{1,20}",
            pci_path in proptest::option::of("/[a-z0-9:./]{1,40}"),
            guid: u64,
            kinds in 1u32..8,
            flags: (bool, bool),
            numbers in (0u32..1 << 31, 0u32..1 << 31, 1u32..1 << 31, 1u32..=8, 1u32..1 << 31),
            latency in 0f32..1e9,
            members in proptest::collection::vec(0..MAX_DEVICES, 1..=8),
            limits in (1..=MAX_BYTES, 1..=MAX_BYTES),
            ids in (-1i16..=i16::MAX, -1i16..=i16::MAX),
        ) -> NetProperties {
            let mut made = NetProperties::new(name, 0);
            made.pci_path = pci_path;
            made.guid = guid;
            made.memory = MemoryKinds(kinds);
            (made.global_registration, made.force_flush) = flags;
            (made.speed_mbps, made.port, made.max_comms, made.max_recvs, made.max_multi_request) = numbers;
            made.latency_us = latency;
            made.members = members;
            (made.max_p2p_bytes, made.max_collective_bytes) = limits;
            (made.rail, made.plane) = ids;
            made
        }
    }

    proptest! {
        #[test]
        fn whatever_a_plugin_says_the_result_is_usable(
            numbers: [c_int; 10],
            bits: u32,
            wide: (u64, usize, usize),
            ids: (i16, i16),
            count in -2..12,
            members in proptest::array::uniform8(-2..MAX_DEVICES as c_int + 2),
            room in 0usize..=8,
            devices in 1u32..=MAX_DEVICES,
        ) {
            let raw = RawProperties {
                name: null(),
                pci_path: null(),
                guid: wide.0,
                ptr_support: numbers[0],
                reg_is_global: numbers[1],
                force_flush: numbers[2],
                speed: numbers[3],
                port: numbers[4],
                latency: f32::from_bits(bits),
                max_comms: numbers[5],
                max_recvs: numbers[6],
                device_type: numbers[7],
                device_version: numbers[8],
                members: RawMembers { count, room, devices: members },
                max_p2p_bytes: wide.1,
                max_collective_bytes: wide.2,
                max_multi_request: numbers[9],
                rail: ids.0,
                plane: ids.1,
            };
            let device = devices - 1;
            let (properties, _) = import_unnamed(&raw, device, devices);
            prop_assert!((1..8).contains(&properties.memory.0));
            prop_assert!(properties.latency_us >= 0.0 && properties.latency_us.is_finite());
            prop_assert!(properties.max_comms >= 1 && (1..=8).contains(&properties.max_recvs));
            prop_assert!(!properties.members.is_empty() && properties.members.len() <= room.max(1));
            prop_assert!(properties.members.iter().all(|member| *member < devices));
            prop_assert!((1..=MAX_BYTES).contains(&properties.max_p2p_bytes));
            prop_assert!((1..=MAX_BYTES).contains(&properties.max_collective_bytes));
            prop_assert!(properties.max_multi_request >= 1 && properties.rail >= -1 && properties.plane >= -1);
            // What is left needs no replacement.
            prop_assert_eq!(through::<v12::NetProperties>(&properties, device).members, properties.members);
        }

        #[test]
        fn versions_lose_only_what_they_lack(full in possible_properties(), device in 0..MAX_DEVICES) {
            prop_assert_eq!(&through::<v12::NetProperties>(&full, device), &full);
            let mut less = full.clone();
            (less.rail, less.plane) = (-1, -1);
            less.members.truncate(4);
            prop_assert_eq!(&through::<v11::NetProperties>(&full, device), &less);
            less.max_multi_request = 1;
            prop_assert_eq!(&through::<v9::NetProperties>(&full, device), &less);
            less.members = vec![device];
            less.force_flush = false;
            (less.max_p2p_bytes, less.max_collective_bytes) = (1 << 30, 512 << 20);
            prop_assert_eq!(&through::<v8::NetProperties>(&full, device), &less);
            less.global_registration = false;
            prop_assert_eq!(&through::<v7::NetProperties>(&full, device), &less);
            prop_assert_eq!(&through::<v6::NetProperties>(&full, device), &less);
        }
    }
}
