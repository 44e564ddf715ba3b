//! Parameters by name: the settings of the library, NCCL's and our own, and the values that they have.
//!
//! Settings are read once, so what is handed out stays valid, and the same, as long as the process lives.
//! NCCL's own parameters are read in exactly the type that they have, as from NCCL; a number of ours in any
//! integer type that holds it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use hawser_base::env::{self, Form, Parameter, Value};
use hawser_base::log;
use hawser_runtime::{Error, Result};

use crate::args::{In, Out};

/// An `ncclParamHandle_t` as it comes from C: the address of an [`Entry`].
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct ParamPtr(*const c_void);

/// A parameter with what C gets of it.
struct Entry {
    parameter: &'static Parameter,
    key: CString,
    text: CString,
}

/// All parameters, and the keys that lists give.
struct Entries {
    all: Vec<Entry>,
    listed: Vec<*const c_char>,
}

// SAFETY: the pointers lead into texts that are never changed or freed.
unsafe impl Send for Entries {}
// SAFETY: as above.
unsafe impl Sync for Entries {}

nccl_api! {
    /// A handle for a parameter such as `NCCL_DEBUG`. The library keeps it.
    fn ncclParamBind / pncclParamBind(out: Out<ParamPtr>, key: In<c_char>) {
        out.check("out")?;
        out.set("out", ParamPtr((&raw const *named(key)?).cast()))
    }

    /// A parameter as `int8_t`.
    fn ncclParamGetI8 / pncclParamGetI8(h: ParamPtr, out: Out<i8>) {
        get_number(h, out)
    }

    /// A parameter as `int16_t`.
    fn ncclParamGetI16 / pncclParamGetI16(h: ParamPtr, out: Out<i16>) {
        get_number(h, out)
    }

    /// A parameter as `int32_t`.
    fn ncclParamGetI32 / pncclParamGetI32(h: ParamPtr, out: Out<i32>) {
        get_number(h, out)
    }

    /// A parameter as `int64_t`.
    fn ncclParamGetI64 / pncclParamGetI64(h: ParamPtr, out: Out<i64>) {
        get_number(h, out)
    }

    /// A parameter as `uint8_t`.
    fn ncclParamGetU8 / pncclParamGetU8(h: ParamPtr, out: Out<u8>) {
        get_number(h, out)
    }

    /// A parameter as `uint16_t`.
    fn ncclParamGetU16 / pncclParamGetU16(h: ParamPtr, out: Out<u16>) {
        get_number(h, out)
    }

    /// A parameter as `uint32_t`.
    fn ncclParamGetU32 / pncclParamGetU32(h: ParamPtr, out: Out<u32>) {
        match h.entry()?.parameter.value {
            Some(Value::Levels(bits)) => out.set("out", bits),
            _ => get_number(h, out),
        }
    }

    /// A parameter as `uint64_t`.
    fn ncclParamGetU64 / pncclParamGetU64(h: ParamPtr, out: Out<u64>) {
        match h.entry()?.parameter.value {
            Some(Value::Subsystems(bits)) => out.set("out", bits),
            _ => get_number(h, out),
        }
    }

    /// A parameter that is a text, or a number of ours, as text.
    fn ncclParamGetStr / pncclParamGetStr(h: ParamPtr, out: Out<*const c_char>) {
        let entry = h.entry()?;
        match entry.parameter.setting.form {
            Form::Text | Form::Number => out.set("out", entry.text.as_ptr()),
            _ => Err(wrong_type(entry.parameter, "a text")),
        }
    }

    /// A parameter as bytes: a text with its NUL, else the bytes of its type.
    fn ncclParamGet / pncclParamGet(h: ParamPtr, out: Out<u8>, maxLen: c_int, len: Out<c_int>) {
        out.check("out")?;
        len.check("len")?;
        let entry = h.entry()?;
        let room = usize::try_from(maxLen).ok().filter(|room| *room > 0).ok_or_else(|| {
            Error::invalid_argument(format!("maxLen is {maxLen}")).remedy("pass the bytes that out has")
        })?;
        len.set("len", 0)?;
        let bytes = entry.bytes()?;
        if bytes.len() > room {
            return Err(Error::invalid_argument(format!(
                "{} has {} bytes, more than maxLen {maxLen}", entry.parameter.setting.name, bytes.len()
            ))
            .remedy("pass a longer buffer"));
        }
        len.set("len", c_int::try_from(bytes.len()).unwrap_or(c_int::MAX))?;
        out.set_all("out", bytes)
    }

    /// A parameter as text, by name.
    fn ncclParamGetParameter / pncclParamGetParameter(key: In<c_char>, value: Out<*const c_char>,
        valueLen: Out<c_int>) {
        value.check("value")?;
        valueLen.check("valueLen")?;
        value.set("value", std::ptr::null())?;
        valueLen.set("valueLen", 0)?;
        let text = &named(key)?.text;
        valueLen.set("valueLen", c_int::try_from(text.count_bytes()).unwrap_or(c_int::MAX))?;
        value.set("value", text.as_ptr())
    }

    /// Names of all parameters, with the private ones if `NCCL_PARAM_DUMP_ALL` is set.
    fn ncclParamGetAllParameterKeys / pncclParamGetAllParameterKeys(
        table: Out<*const *const c_char>, tableLen: Out<c_int>,
    ) {
        table.check("table")?;
        tableLen.check("tableLen")?;
        let keys = &entries().listed;
        tableLen.set("tableLen", c_int::try_from(keys.len()).unwrap_or(c_int::MAX))?;
        table.set("table", keys.as_ptr())
    }

    /// Writes all parameters to the log, with the private ones if `NCCL_PARAM_DUMP_ALL` is set.
    fn ncclParamDumpAll / pncclParamDumpAll() -> (), else (), {
        log::dump(&dumped(), env::settings().debug_file.as_deref());
        Ok(())
    }
}

impl ParamPtr {
    /// The parameter of a handle.
    ///
    /// # Errors
    /// `InvalidArgument` for NULL and for what `ncclParamBind` did not store.
    fn entry(self) -> Result<&'static Entry> {
        let is_it = |entry: &&Entry| std::ptr::from_ref(*entry).cast() == self.0;
        entries().all.iter().find(is_it).ok_or_else(|| {
            Error::invalid_argument(format!("h {:?} is no handle of a parameter", self.0))
                .remedy("pass what ncclParamBind stored")
        })
    }
}

impl Entry {
    fn new(parameter: &'static Parameter) -> Self {
        // Neither the table nor the environment has texts with a NUL inside.
        let text = |text: &str| CString::new(text).unwrap_or_default();
        Self { parameter, key: text(parameter.setting.name), text: text(&parameter.text) }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        Ok(match self.parameter.value {
            Some(Value::Text) => self.text.to_bytes_with_nul().to_vec(),
            Some(Value::Number(number)) => {
                let number = i64::try_from(number).map_err(|_| wrong_type(self.parameter, "an int64_t"))?;
                number.to_ne_bytes().to_vec()
            }
            Some(Value::Flag(is_on)) => vec![u8::from(is_on)],
            Some(Value::Level(level)) => level.to_ne_bytes().to_vec(),
            Some(Value::Levels(bits)) => bits.to_ne_bytes().to_vec(),
            Some(Value::Subsystems(bits)) => bits.to_ne_bytes().to_vec(),
            None => return Err(wrong_type(self.parameter, "a number")),
        })
    }
}

fn entries() -> &'static Entries {
    static ENTRIES: OnceLock<Entries> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        let all: Vec<Entry> = env::parameters().iter().map(Entry::new).collect();
        let listed = all.iter().filter(|entry| is_listed(entry.parameter)).map(|entry| entry.key.as_ptr());
        Entries { listed: listed.collect(), all }
    })
}

fn is_listed(parameter: &Parameter) -> bool {
    env::settings().param_dump_all || !parameter.is_private()
}

/// The parameter that a key names, perhaps by an older name.
fn named(key: In<c_char>) -> Result<&'static Entry> {
    let key = key.text().ok_or_else(|| crate::args::null("key"))?;
    let parameter = env::parameter(&key);
    let found = parameter.and_then(|it| entries().all.iter().find(|entry| std::ptr::eq(entry.parameter, it)));
    found.ok_or_else(|| {
        Error::invalid_argument(format!("key \"{key}\" is no parameter of this library"))
            .remedy("use one of those that ncclParamGetAllParameterKeys gives")
    })
}

fn get_number<T: Copy + TryFrom<i128>>(handle: ParamPtr, out: Out<T>) -> Result<()> {
    let parameter = handle.entry()?.parameter;
    out.check("out")?;
    let wanted = std::any::type_name::<T>();
    let Some(Value::Number(number)) = parameter.value else {
        return Err(wrong_type(parameter, &format!("a number ({wanted})")));
    };
    let value = T::try_from(number).map_err(|_| {
        Error::invalid_argument(format!("{} is {number}, which no {wanted} holds", parameter.setting.name))
            .remedy("read it with ncclParamGetI64 or as text")
    })?;
    out.set("out", value)
}

fn wrong_type(parameter: &Parameter, wanted: &str) -> Error {
    let (name, type_name, text) = (parameter.setting.name, parameter.type_name(), &parameter.text);
    Error::invalid_argument(format!("{name} (type {type_name}, value \"{text}\") is not {wanted}"))
        .remedy("read it in its own type, or as text with ncclParamGetParameter")
}

fn dumped() -> String {
    let mut lines = String::from("Parameters of Hawser:\n");
    for entry in entries().all.iter().filter(|entry| is_listed(entry.parameter)) {
        let Parameter { setting, text, set_by, .. } = entry.parameter;
        let (name, kind, default) = (setting.name, entry.parameter.type_name(), setting.default);
        let shown = if text.is_empty() { "<unset>" } else { text };
        lines += &format!("{name} ({kind}) value={shown} set_by={set_by} default={default}\n");
    }
    lines
}
