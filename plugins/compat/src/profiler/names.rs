//! Names of functions, types, algorithms: as C strings for plugins that keep the pointers, and as numbers for
//! v1.

use std::ffi::{CString, c_char};
use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;

/// More different names than a host has; beyond it all are "other".
const MOST: usize = 4096;

/// C strings that live as long as the plugin: NCCL's own are constants, so plugins keep the pointers.
#[derive(Default)]
pub(super) struct Strings(RwLock<FxHashMap<Box<str>, CString>>);

impl Strings {
    /// The C string of a text. Valid as long as `self`.
    pub(super) fn of(&self, text: &str) -> *const c_char {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(text) {
            return known.as_ptr();
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(text) {
            return c"other".as_ptr();
        }
        // Moving a CString leaves its bytes where they are.
        all.entry(text.into()).or_insert_with(|| c_string(text)).as_ptr()
    }
}

/// A text without its zero bytes.
pub(super) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// The number that v1 gets for a name without one: `NCCL_ALGO_UNDEF` in eight bits.
pub(super) const NO_NUMBER: u8 = u8::MAX;

/// `ncclFunc_t`.
const FUNCTIONS: [&str; 15] = [
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "SendRecv",
    "Send",
    "Recv",
    "AlltoAll",
    "Scatter",
    "Gather",
    "AllGatherV",
    "PutSignal",
    "Signal",
    "WaitSignal",
];

/// `ncclDataType_t`, without "nccl" in front.
const TYPES: [&str; 12] = [
    "Int8",
    "Uint8",
    "Int32",
    "Uint32",
    "Int64",
    "Uint64",
    "Float16",
    "Float32",
    "Float64",
    "Bfloat16",
    "Float8e4m3",
    "Float8e5m2",
];

const ALGORITHMS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];

/// The number of a function.
pub(super) fn function(name: &str) -> u8 {
    number(&FUNCTIONS, name)
}

/// The number of a type.
pub(super) fn datatype(name: &str) -> u8 {
    number(&TYPES, name)
}

/// The number of an algorithm; our own ones have none.
pub(super) fn algorithm(name: &str) -> u8 {
    number(&ALGORITHMS, name)
}

/// The number of a protocol.
pub(super) fn protocol(name: &str) -> u8 {
    number(&PROTOCOLS, name)
}

fn number(names: &[&str], name: &str) -> u8 {
    let name = name.strip_prefix("nccl").unwrap_or(name);
    let at = names.iter().position(|known| known.eq_ignore_ascii_case(name));
    at.map_or(NO_NUMBER, |at| at as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn names_have_nccls_numbers() {
        assert_eq!(
            ["Broadcast", "AllReduce", "Recv", "WaitSignal", "Dance"].map(function),
            [0, 4, 7, 14, 255]
        );
        let types = ["ncclInt8", "ncclUint8", "ncclFloat8e5m2", "bfloat16", "Unknown"];
        assert_eq!(types.map(datatype), [0, 1, 11, 9, 255]);
        assert_eq!(["TREE", "pat", "one_shot", ""].map(algorithm), [0, 6, 255, 255]);
        assert_eq!(["LL", "LL128", "SIMPLE", "x"].map(protocol), [0, 1, 2, 255]);
    }

    #[test]
    fn a_string_stays_where_it_is() {
        let strings = Strings::default();
        let first = strings.of("AllReduce");
        for number in 0..MOST * 2 {
            strings.of(&format!("name {number}"));
        }
        assert_eq!(strings.of("AllReduce"), first);
        let texts = [first, strings.of("a\0b"), strings.of("name 7")];
        // SAFETY: `strings` is alive.
        let texts = texts.map(|text| unsafe { CStr::from_ptr(text) });
        assert_eq!(texts, [c"AllReduce", c"other", c"name 7"]);
        assert_eq!(strings.0.read().unwrap().len(), MOST);
        assert_eq!(c_string("a\0b").as_c_str(), c"ab");
    }
}
