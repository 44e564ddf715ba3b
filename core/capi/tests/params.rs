//! Parameters by name (`ncclParam…`): types, values, keys and the dump. What is expected of NCCL's own
//! parameters is what NVIDIA's library 2.32.3 answers.

mod support;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::process::Command;
use std::ptr::{null, null_mut};

use support::*;

/// The keys that NVIDIA's library 2.32.3 lists, and those that it adds with `NCCL_PARAM_DUMP_ALL`.
const PUBLIC: [&str; 7] = [
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_TIMESTAMP_FORMAT",
    "NCCL_DEBUG_TIMESTAMP_LEVELS",
    "NCCL_SET_THREAD_NAME",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_LEVELS",
    "NCCL_DEBUG",
];
const PRIVATE: [&str; 3] = ["NCCL_PARAM_DUMP_ALL", "NCCL_NO_CACHE", "NCCL_WARN_ENABLE_DEBUG_INFO"];

fn bind(key: &str) -> Ptr {
    let (key, mut handle) = (CString::new(key).unwrap(), null());
    ok(ncclParamBind(&mut handle, key.as_ptr()));
    assert!(!handle.is_null());
    handle
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: a text that the library stored.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

/// The value of a parameter as text, by name.
fn by_name(key: &str) -> String {
    let (key, mut value, mut bytes) = (CString::new(key).unwrap(), null(), -1);
    ok(ncclParamGetParameter(key.as_ptr(), &mut value, &mut bytes));
    let value = text(value);
    assert_eq!(usize::try_from(bytes), Ok(value.len()));
    value
}

/// The bytes of a parameter, or the code of the refusal.
fn raw(handle: Ptr, room: c_int) -> Result<Vec<u8>, c_int> {
    let (mut bytes, mut len) = ([0xaa; 64], -7);
    match ncclParamGet(handle, bytes.as_mut_ptr(), room, &mut len) {
        SUCCESS => Ok(bytes[..usize::try_from(len).unwrap()].to_vec()),
        code => {
            assert!(bytes.iter().all(|byte| *byte == 0xaa), "refused, and written all the same");
            Err(code)
        }
    }
}

fn keys() -> Vec<String> {
    let (mut table, mut count) = (null(), -1);
    ok(ncclParamGetAllParameterKeys(&mut table, &mut count));
    // SAFETY: the library's table has that many keys.
    (0..usize::try_from(count).unwrap()).map(|i| text(unsafe { *table.add(i) })).collect()
}

/// Runs one of the tests below in a process of its own, with these variables.
fn in_a_process_with(test: &str, variables: &[(&str, &str)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env("HAWSER_TEST_CHILD", "1");
    child.env_remove("NCCL_DEBUG").envs(variables.iter().copied());
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    said
}

fn is_child() -> bool {
    std::env::var_os("HAWSER_TEST_CHILD").is_some()
}

#[test]
fn nccls_parameters_have_their_types_and_no_others() {
    let _turn = turn();
    if !is_child() {
        let variables = [("NCCL_DEBUG_FILE", "/dev/null"), ("NCCL_CONF_FILE", "/dev/null")];
        in_a_process_with("nccls_parameters_have_their_types_and_no_others", &variables);
        return;
    }
    let subsystems = bind("NCCL_DEBUG_SUBSYS");
    let mut wide = 0;
    ok(ncclParamGetU64(subsystems, &mut wide));
    assert_eq!(wide, 0x1081);
    assert_eq!(by_name("NCCL_DEBUG_SUBSYS"), "INIT,ENV,BOOTSTRAP");
    assert_eq!(raw(subsystems, 8), Ok(vec![0x81, 0x10, 0, 0, 0, 0, 0, 0]));
    assert_eq!(raw(subsystems, 7), Err(INVALID_ARGUMENT));

    let levels = bind("NCCL_DEBUG_TIMESTAMP_LEVELS");
    let mut bits = 0;
    ok(ncclParamGetU32(levels, &mut bits));
    assert_eq!((bits, by_name("NCCL_DEBUG_TIMESTAMP_LEVELS").as_str()), (68, "WARN,ATTN"));

    assert_eq!(raw(bind("NCCL_SET_THREAD_NAME"), 1), Ok(vec![0]));
    assert_eq!(by_name("NCCL_SET_THREAD_NAME"), "FALSE");
    assert_eq!((raw(bind("NCCL_DEBUG"), 4), by_name("NCCL_DEBUG").as_str()), (Ok(vec![0; 4]), "<unknown>"));

    let mut pointer = null();
    ok(ncclParamGetStr(bind("NCCL_DEBUG_TIMESTAMP_FORMAT"), &mut pointer));
    assert_eq!(text(pointer), "[%F %T] ");
    assert_eq!(raw(bind("NCCL_DEBUG_TIMESTAMP_FORMAT"), 64), Ok(b"[%F %T] \0".to_vec()));
    assert_eq!(raw(bind("NCCL_DEBUG_FILE"), 64), Ok(b"/dev/null\0".to_vec()));

    for (key, has) in [
        ("NCCL_DEBUG_SUBSYS", "U64"),
        ("NCCL_DEBUG_LEVELS", "U32"),
        ("NCCL_DEBUG_FILE", "Str"),
        ("NCCL_SET_THREAD_NAME", ""),
        ("NCCL_DEBUG", ""),
    ] {
        let handle = bind(key);
        let codes = [
            ("I8", ncclParamGetI8(handle, &mut 0)),
            ("I16", ncclParamGetI16(handle, &mut 0)),
            ("I32", ncclParamGetI32(handle, &mut 0)),
            ("I64", ncclParamGetI64(handle, &mut 0)),
            ("U8", ncclParamGetU8(handle, &mut 0)),
            ("U16", ncclParamGetU16(handle, &mut 0)),
            ("U32", ncclParamGetU32(handle, &mut 0)),
            ("U64", ncclParamGetU64(handle, &mut 0)),
            ("Str", ncclParamGetStr(handle, &mut null())),
        ];
        for (name, code) in codes {
            assert_eq!(code, if name == has { SUCCESS } else { INVALID_ARGUMENT }, "{key} as {name}");
        }
    }
    assert!(last_error().contains("NCCL_DEBUG (type ncclDebugLogLevel"), "{}", last_error());
}

#[test]
fn numbers_of_ours_are_read_in_every_type_that_holds_them() {
    let _turn = turn();
    if !is_child() {
        let variables = [
            ("NCCL_MAX_NCHANNELS", "300"),
            ("NCCL_CUMEM_MAX_SIZE", "8GB"),
            ("NCCL_CUMEM_ENABLE", "-1"),
            ("HAWSER_OP_TIMEOUT", "0.5"),
            ("NCCL_BUFFSIZE", "many"),
            ("NCCL_DEBUG", "warn"),
            ("NCCL_DEBUG_FILE", "/dev/null"),
        ];
        in_a_process_with("numbers_of_ours_are_read_in_every_type_that_holds_them", &variables);
        return;
    }
    // By an older name, too: it is the same parameter.
    let ctas = bind("NCCL_MAX_CTAS");
    assert_eq!(ctas, bind("NCCL_MAX_NCHANNELS"));
    let (mut short, mut long, mut byte) = (0, 0, 7);
    ok(ncclParamGetI16(ctas, &mut short));
    ok(ncclParamGetU64(ctas, &mut long));
    assert_eq!((short, long, by_name("NCCL_MAX_CTAS").as_str()), (300, 300, "300"));
    assert_eq!((ncclParamGetI8(ctas, &mut byte), byte), (INVALID_ARGUMENT, 7));
    assert!(last_error().contains("NCCL_MAX_CTAS is 300"), "{}", last_error());

    let mut value = 0;
    ok(ncclParamGetI64(bind("NCCL_CUMEM_MAX_SIZE"), &mut value));
    assert_eq!((value, by_name("NCCL_CUMEM_MAX_SIZE").as_str()), (8 << 30, "8GB"));
    ok(ncclParamGetI64(bind("NCCL_CUMEM_ENABLE"), &mut value));
    assert_eq!(value, -1);
    assert_eq!(ncclParamGetU64(bind("NCCL_CUMEM_ENABLE"), &mut 0), INVALID_ARGUMENT);
    assert_eq!(raw(bind("NCCL_CUMEM_ENABLE"), 8), Ok(vec![0xff; 8]));

    let seconds = bind("HAWSER_OP_TIMEOUT");
    assert_eq!(
        (ncclParamGetI64(seconds, &mut 0), raw(seconds, 64)),
        (INVALID_ARGUMENT, Err(INVALID_ARGUMENT))
    );
    let mut pointer = null();
    ok(ncclParamGetStr(seconds, &mut pointer));
    assert_eq!(text(pointer), "0.5");

    // A value that is ignored is not the parameter's; the setting has no default that is a number.
    assert_eq!((by_name("NCCL_BUFFSIZE").as_str(), by_name("NCCL_DEBUG").as_str()), ("", "WARN"));
    assert_eq!(raw(bind("NCCL_DEBUG"), 4), Ok(vec![2, 0, 0, 0]));
}

#[test]
fn keys_are_nccls_and_ours() {
    let _turn = turn();
    let listed: BTreeSet<String> = keys().into_iter().collect();
    let has = |name: &str| listed.contains(name);
    assert!(PUBLIC.iter().all(|name| has(name)), "{listed:?}");
    assert!(["NCCL_ALGO", "NCCL_MAX_CTAS", "HAWSER_EXPLAIN"].iter().all(|name| has(name)));
    let is_all = is_child();
    assert_eq!(PRIVATE.iter().filter(|name| has(name)).count(), if is_all { 3 } else { 0 });
    for key in &listed {
        assert!(bind(key) == bind(key) && by_name(key).len() < 4096);
    }
    // Private ones are found by name all the same.
    for name in PRIVATE {
        bind(name);
    }
    if !is_all {
        in_a_process_with("keys_are_nccls_and_ours", &[("NCCL_PARAM_DUMP_ALL", "true")]);
    }
}

#[test]
fn the_dump_names_every_listed_parameter_whatever_the_log_is() {
    let _turn = turn();
    if is_child() {
        ncclParamDumpAll();
        return;
    }
    let place = std::env::temp_dir().join(format!("hawser-dump-{}", std::process::id()));
    for level in ["", "INFO"] {
        let variables =
            [("NCCL_DEBUG", level), ("NCCL_DEBUG_FILE", place.to_str().unwrap()), ("NCCL_ALGO", "Ring")];
        in_a_process_with("the_dump_names_every_listed_parameter_whatever_the_log_is", &variables);
        let dump = std::fs::read_to_string(&place).unwrap();
        std::fs::remove_file(&place).unwrap();
        assert!(dump.contains("NCCL_ALGO (const char*) value=Ring set_by=Environment"), "{level}: {dump}");
        for key in keys() {
            assert!(dump.contains(&format!("{key} (")), "{level}: no {key} in {dump}");
        }
        assert!(!dump.contains("NCCL_NO_CACHE"));
    }
}

#[test]
fn what_is_no_parameter_is_refused() {
    let _turn = turn();
    let untouched: Ptr = 0x1234 as Ptr;
    for key in [c"NCCL_NONSENSE".as_ptr(), c"".as_ptr(), c"nccl_debug".as_ptr(), c"DEBUG".as_ptr(), null()] {
        let mut handle = untouched;
        assert_eq!((ncclParamBind(&mut handle, key), handle), (INVALID_ARGUMENT, untouched));
        let (mut value, mut bytes) = (c"zz".as_ptr(), -7);
        assert_eq!(ncclParamGetParameter(key, &mut value, &mut bytes), INVALID_ARGUMENT);
        assert!(value.is_null() && bytes == 0);
        assert!(last_error().starts_with("ncclParamGetParameter: key"), "{}", last_error());
    }
    let debug = c"NCCL_DEBUG".as_ptr();
    let file = bind("NCCL_DEBUG_FILE");
    let codes = [
        ncclParamBind(null_mut(), debug),
        ncclParamGetParameter(debug, null_mut(), &mut 0),
        ncclParamGetParameter(debug, &mut null(), null_mut()),
        ncclParamGetAllParameterKeys(null_mut(), &mut 0),
        ncclParamGetAllParameterKeys(&mut null(), null_mut()),
        ncclParamGetI64(null(), &mut 0),
        ncclParamGetI64(untouched, &mut 0),
        ncclParamGetStr(null(), &mut null()),
        ncclParamGetStr(file, null_mut()),
        ncclParamGetU32(bind("NCCL_DEBUG_LEVELS"), null_mut()),
        ncclParamGet(file, null_mut(), 8, &mut 0),
        ncclParamGet(file, [0; 8].as_mut_ptr(), 8, null_mut()),
        ncclParamGet(file, [0; 8].as_mut_ptr(), 0, &mut 0),
        ncclParamGet(file, [0; 8].as_mut_ptr(), -1, &mut 0),
        ncclParamGet(null(), [0; 8].as_mut_ptr(), 8, &mut 0),
    ];
    assert_eq!(codes, [INVALID_ARGUMENT; 15]);
}
