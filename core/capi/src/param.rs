//! Parameters by name: not offered yet. What the caller reads afterwards is zero, empty or NULL.

use std::ffi::{c_char, c_int, c_void};

use hawser_runtime::Error;

use crate::args::{In, Out};
use crate::later::not_offered;

nccl_api! {
    /// A handle for a parameter such as `NCCL_ALGO`.
    fn ncclParamBind / pncclParamBind(out: Out<*const c_void>, _key: In<c_char>) {
        out.set_if_given(std::ptr::null());
        Err(refusal())
    }

    /// A parameter as `int8_t`.
    fn ncclParamGetI8 / pncclParamGetI8(_h: *const c_void, out: Out<i8>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `int16_t`.
    fn ncclParamGetI16 / pncclParamGetI16(_h: *const c_void, out: Out<i16>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `int32_t`.
    fn ncclParamGetI32 / pncclParamGetI32(_h: *const c_void, out: Out<i32>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `int64_t`.
    fn ncclParamGetI64 / pncclParamGetI64(_h: *const c_void, out: Out<i64>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `uint8_t`.
    fn ncclParamGetU8 / pncclParamGetU8(_h: *const c_void, out: Out<u8>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `uint16_t`.
    fn ncclParamGetU16 / pncclParamGetU16(_h: *const c_void, out: Out<u16>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `uint32_t`.
    fn ncclParamGetU32 / pncclParamGetU32(_h: *const c_void, out: Out<u32>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as `uint64_t`.
    fn ncclParamGetU64 / pncclParamGetU64(_h: *const c_void, out: Out<u64>) {
        out.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as text.
    fn ncclParamGetStr / pncclParamGetStr(_h: *const c_void, out: Out<*const c_char>) {
        out.set_if_given(c"".as_ptr());
        Err(refusal())
    }

    /// A parameter as bytes.
    fn ncclParamGet / pncclParamGet(_h: *const c_void, _out: *const c_void, _maxLen: c_int, len: Out<c_int>) {
        len.set_if_given(0);
        Err(refusal())
    }

    /// A parameter as text, by name.
    fn ncclParamGetParameter / pncclParamGetParameter(_key: In<c_char>, value: Out<*const c_char>,
        valueLen: Out<c_int>) {
        value.set_if_given(c"".as_ptr());
        valueLen.set_if_given(0);
        Err(refusal())
    }

    /// Names of all parameters.
    fn ncclParamGetAllParameterKeys / pncclParamGetAllParameterKeys(
        table: Out<*const *const c_char>, tableLen: Out<c_int>,
    ) {
        table.set_if_given(std::ptr::null());
        tableLen.set_if_given(0);
        Err(refusal())
    }

    /// Writes all parameters to the log.
    fn ncclParamDumpAll / pncclParamDumpAll() -> (), else (), {
        Err(refusal())
    }
}

fn refusal() -> Error {
    not_offered("set parameters through NCCL_ environment variables; hawser doctor judges them")
}
