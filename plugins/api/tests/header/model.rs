//! The parts of the header, and its general section.

/// A piece of the header.
pub enum Item {
    /// A heading with a text.
    Section(&'static str, &'static str),
    /// Numbers of one family: prefix, and name and value of each.
    Numbers(&'static str, &'static str, &'static [(&'static str, &'static str)]),
    /// Something as it stands.
    Code(&'static str, &'static str),
    Struct(Struct),
    /// A table that a plugin exports: symbol and type.
    Export(&'static str, &'static str),
}

/// A struct, or a union if all its fields begin at 0 and there are several.
pub struct Struct {
    pub name: &'static str,
    pub text: &'static str,
    pub size: usize,
    pub fields: &'static [Field],
}

/// A field: what stands before its name and behind it, where it lies, and what it means.
pub struct Field {
    pub before: &'static str,
    pub name: &'static str,
    pub after: &'static str,
    pub at: usize,
    pub text: &'static str,
}

pub const fn field(
    before: &'static str,
    name: &'static str,
    after: &'static str,
    at: usize,
    text: &'static str,
) -> Field {
    Field { before, name, after, at, text }
}

/// A function of a table, by its parameters.
pub const fn call(name: &'static str, after: &'static str, at: usize, text: &'static str) -> Field {
    Field { before: "int (*", name, after, at, text }
}

pub const COMMON: &[Item] = &[
    Item::Section(
        "Common",
        "Functions return one of the result codes. Everything is called through C: no C++ exception and no longjmp may \
         leave a function. A table is a constant that is exported under the name that its section gives; the host reads \
         it once, when it opens the library.",
    ),
    Item::Numbers(
        "HAWSER_",
        "Results. System: the OS or the hardware failed. Internal: the host misused the plugin. Usage: the user's fault, \
         a size that the receiver did not expect included. Remote: the other side is lost.",
        &[
            ("SUCCESS", "0"),
            ("CUDA_ERROR", "1"),
            ("SYSTEM_ERROR", "2"),
            ("INTERNAL_ERROR", "3"),
            ("INVALID_ARGUMENT", "4"),
            ("INVALID_USAGE", "5"),
            ("REMOTE_ERROR", "6"),
            ("IN_PROGRESS", "7"),
        ],
    ),
    Item::Numbers(
        "HAWSER_LOG_",
        "Levels of log lines.",
        &[("VERSION", "1"), ("WARN", "2"), ("INFO", "3"), ("ABORT", "4"), ("TRACE", "5")],
    ),
    Item::Numbers(
        "HAWSER_SUBSYS_",
        "What a log line is about: bits, so that users can choose (NCCL_DEBUG_SUBSYS).",
        &[
            ("INIT", "0x1ul"),
            ("COLL", "0x2ul"),
            ("P2P", "0x4ul"),
            ("SHM", "0x8ul"),
            ("NET", "0x10ul"),
            ("GRAPH", "0x20ul"),
            ("TUNING", "0x40ul"),
            ("ENV", "0x80ul"),
            ("ALLOC", "0x100ul"),
            ("CALL", "0x200ul"),
            ("PROXY", "0x400ul"),
            ("NVLS", "0x800ul"),
            ("BOOTSTRAP", "0x1000ul"),
            ("REG", "0x2000ul"),
            ("PROFILE", "0x4000ul"),
            ("RAS", "0x8000ul"),
            ("ALL", "(~0ul)"),
        ],
    ),
    Item::Code(
        "Writes a line to the host's log. It can be called at any time, from any thread, until finalize returns.",
        "typedef void (*hawser_logger_t)(int level, unsigned long subsys, const char *file, int line,
                                const char *format, ...);",
    ),
    Item::Numbers(
        "HAWSER_TYPE_",
        "Types of elements.",
        &[
            ("INT8", "0"),
            ("UINT8", "1"),
            ("INT32", "2"),
            ("UINT32", "3"),
            ("INT64", "4"),
            ("UINT64", "5"),
            ("FLOAT16", "6"),
            ("FLOAT32", "7"),
            ("FLOAT64", "8"),
            ("BFLOAT16", "9"),
            ("FLOAT8E4M3", "10"),
            ("FLOAT8E5M2", "11"),
        ],
    ),
    Item::Numbers(
        "HAWSER_OP_",
        "Reductions.",
        &[("SUM", "0"), ("PROD", "1"), ("MAX", "2"), ("MIN", "3"), ("AVG", "4")],
    ),
];
