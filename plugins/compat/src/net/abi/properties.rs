//! Properties of a device as the C side has them: the union of all versions, and how a version's struct is
//! read.

use std::ffi::{c_char, c_int};

use super::{Members4, Members8};
use crate::common::SUCCESS;

/// Properties as one version lays them out; made by [`properties!`](crate::net::abi::properties::properties).
///
/// # Safety
/// All zeros is a valid value.
pub unsafe trait Properties: Copy {
    /// The fields of all versions, with NCCL's defaults for those that this version lacks.
    fn raw(&self, device: c_int) -> RawProperties;

    /// As much of `raw` as this version has.
    fn from_raw(raw: &RawProperties) -> Self;
}

/// Defines a version's struct from its size and its fields with their offsets, which the compiler checks. The
/// names are those of [`RawProperties`].
macro_rules! properties {
    ($(#[$doc:meta])* $size:literal bytes: $($offset:literal => $field:ident: $type:ty,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct NetProperties {
            $($field: $type,)+
        }

        // SAFETY: the fields are numbers, arrays of numbers and pointers that may be NULL.
        unsafe impl $crate::net::abi::properties::Properties for NetProperties {
            #[allow(clippy::needless_update)] // the newest version has all fields
            fn raw(&self, device: std::ffi::c_int) -> RawProperties {
                RawProperties { $($field: self.$field.into(),)+ ..RawProperties::absent(device) }
            }

            fn from_raw(raw: &RawProperties) -> Self {
                Self { $($field: raw.$field.into(),)+ }
            }
        }

        const _: () = {
            assert!(size_of::<NetProperties>() == $size);
            $(assert!(std::mem::offset_of!(NetProperties, $field) == $offset);)+
        };
    };
}
pub(crate) use properties;

/// The union of the properties of all versions, unchecked, as a plugin filled them in.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // NCCL's fields
pub struct RawProperties {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub device_type: c_int,
    pub device_version: c_int,
    pub members: RawMembers,
    pub max_p2p_bytes: usize,
    pub max_collective_bytes: usize,
    pub max_multi_request: c_int,
    pub rail: i16,
    pub plane: i16,
}

impl RawProperties {
    /// The value that NCCL assumes of a plugin that does not say.
    pub const fn absent(device: c_int) -> Self {
        Self {
            name: std::ptr::null(),
            pci_path: std::ptr::null(),
            guid: 0,
            ptr_support: 0,
            reg_is_global: 0,
            force_flush: 0,
            speed: 0,
            port: 0,
            latency: 0.0,
            max_comms: 0,
            max_recvs: 0,
            device_type: 0,
            device_version: 0,
            members: RawMembers { count: 1, room: 1, devices: [device, 0, 0, 0, 0, 0, 0, 0] },
            max_p2p_bytes: 1 << 30,
            max_collective_bytes: 512 << 20,
            max_multi_request: 1,
            rail: -1,
            plane: -1,
        }
    }
}

/// The devices behind a device, whatever the version.
#[derive(Debug, Clone, Copy)]
pub struct RawMembers {
    /// The number of members that count, as the plugin says.
    pub count: c_int,
    /// The number of members that the version has room for.
    pub room: usize,
    /// The numbers of the members.
    pub devices: [c_int; 8],
}

impl From<Members4> for RawMembers {
    fn from(members: Members4) -> Self {
        let [a, b, c, d] = members.devices;
        Self { count: members.count, room: 4, devices: [a, b, c, d, 0, 0, 0, 0] }
    }
}

impl From<Members8> for RawMembers {
    fn from(members: Members8) -> Self {
        Self { count: members.count, room: 8, devices: members.devices }
    }
}

impl From<RawMembers> for Members4 {
    fn from(raw: RawMembers) -> Self {
        let [a, b, c, d, ..] = raw.devices;
        Self { count: raw.count.min(4), devices: [a, b, c, d] }
    }
}

impl From<RawMembers> for Members8 {
    fn from(raw: RawMembers) -> Self {
        Self { count: raw.count, devices: raw.devices }
    }
}

/// Asks a plugin for properties, whatever the version.
pub struct PropertiesReader {
    call: Box<PropertiesCall>,
}

/// Asks for the properties of a device; the error is the plugin's code.
type PropertiesCall = dyn Fn(c_int) -> Result<RawProperties, c_int> + Send + Sync;

impl PropertiesReader {
    /// A reader over a version's `getProperties`. The struct is zeroed before each call, so that fields which
    /// a plugin forgets are not garbage.
    ///
    /// # Safety
    /// The function may be called with any device and a valid pointer, for as long as the reader lives.
    pub unsafe fn new<P: Properties + 'static>(function: GetProperties<P>) -> Self {
        let call = move |device| {
            // SAFETY: what `Properties` promises.
            let mut properties: P = unsafe { std::mem::zeroed() };
            // SAFETY: our caller promises a callable function; `properties` is valid for the call.
            match unsafe { function(device, &raw mut properties) } {
                SUCCESS => Ok(properties.raw(device)),
                code => Err(code),
            }
        };
        Self { call: Box::new(call) }
    }

    /// The properties of a device, or the code of the failure.
    pub fn read(&self, device: c_int) -> Result<RawProperties, c_int> {
        (self.call)(device)
    }
}

/// `getProperties`.
pub type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> c_int;
