//! The table of settings: one entry for each variable that the library reads.
//!
//! An entry gives the type of the field in [`Settings`], the name of the variable (behind it older names that
//! are read as well), the kind of its value ([`kind`]), the default, and perhaps the page of `docs` that
//! tells more and who reads it. The doc comment is the meaning, for readers of the code and of
//! docs/settings.md alike. Parsing, the list of known names, that page and what `hawser doctor` says come
//! from here. After a change, `BLESS=1 cargo test -p hawser-base --lib env` writes the page anew.

use std::path::PathBuf;
use std::time::Duration;

use hawser_oob::wire::Wire;
use hawser_types::Class;

use super::kind::{self, Form};
use super::source::Source;

/// The part of the library that acts on the value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The library itself.
    Library,
    /// The plugin of this name, which is built into the library.
    Plugin(&'static str),
    /// Nobody: the value is checked and has no effect.
    Nobody,
}

/// One entry of the table of settings.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The heading that the setting stands under in docs/settings.md.
    pub section: &'static str,
    /// The name of the variable.
    pub name: &'static str,
    /// Older names that are read where `name` has no value.
    pub older_names: &'static [&'static str],
    /// The values that are accepted, in words that continue "it must be".
    pub accepted: &'static str,
    /// True if communicators refuse to come up with a value that is not accepted. Otherwise the value is
    /// ignored with a warning.
    pub is_strict: bool,
    /// The default: a value, or words for what happens where the setting has none.
    pub default: &'static str,
    /// True if `default` is a value, false if it is words.
    pub has_default: bool,
    /// The form in which programs read the value by name.
    pub form: Form,
    /// Returns whether a text is a value of this setting.
    pub accepts: fn(&str) -> bool,
    /// A description of what the setting does, in Markdown.
    pub meaning: &'static str,
    /// The page of `docs` that tells more.
    pub page: Option<&'static str>,
    /// The part of the library that acts on the value.
    pub reader: Reader,
}

/// Makes [`Settings`], [`TABLE`] and [`Source::settings`] from the entries.
///
/// `default "0"` gives the field the value that the text has; `unset "words"` makes it `None` where the
/// variable has no value.
macro_rules! settings {
    ($($section:literal {$(
        $(#[doc = $meaning:literal])+
        $field:ident: $type:ty = $name:literal $(| $older:literal)*, $kind:ident,
            $absent:ident $default:literal
            $(, page $page:literal)? $(, reader $reader:expr)?;
    )+})+) => {
        /// The settings of this process: a field for each entry of the table.
        #[derive(Debug, Clone)]
        pub struct Settings {
            $($(
                $(#[doc = $meaning])+
                pub $field: $type,
            )+)+
            /// The user's folder for caches: `$XDG_CACHE_HOME`, else `~/.cache`.
            pub cache: Option<PathBuf>,
            /// A sentence about each value that means nothing and that communicators refuse to come up with.
            pub faults: Vec<String>,
        }

        /// Every setting of the library.
        pub static TABLE: &[Setting] = &[$($(Setting {
            section: $section,
            name: $name,
            older_names: &[$($older),*],
            accepted: kind::$kind.accepted,
            is_strict: kind::$kind.is_strict,
            default: $default,
            has_default: is_value!($absent),
            form: kind::$kind.form,
            accepts: |text| (kind::$kind.parse)(text).is_some(),
            meaning: concat!($($meaning),+),
            page: first!($(Some($page),)? None),
            reader: first!($($reader,)? Reader::Library),
        },)+)+];

        impl Source {
            /// Reads every setting.
            pub(super) fn settings(&self) -> Settings {
                Settings {
                    $($($field: self.$absent(&[$name $(, $older)*], &kind::$kind, $default),)+)+
                    cache: super::cache_folder(),
                    // Last, since the lines above find them.
                    faults: self.faults(),
                }
            }
        }
    };
}

/// Tells whether an entry gives its default as a value.
macro_rules! is_value {
    (default) => {
        true
    };
    (unset) => {
        false
    };
}

/// The first of its arguments.
macro_rules! first {
    ($first:expr $(, $other:expr)*) => {
        $first
    };
}

settings! {
    "Devices and the log" {
        /// Devices that collectives run on: `cuda`, `host` (the CPU), or `auto`, which means GPUs if there
        /// are any.
        device: String = "HAWSER_DEVICE", DEVICE, default "auto";
        /// The log's level: `VERSION`, `WARN`, `INFO` or `TRACE`. Any other word is `INFO`.
        debug: Option<String> = "NCCL_DEBUG", LOG_LEVEL, unset "nothing is written";
        /// Parts of the log that are written, with commas between them; `^` in front inverts the list.
        debug_subsys: String = "NCCL_DEBUG_SUBSYS", LOG_PARTS, default "INIT,BOOTSTRAP,ENV";
        /// File of the log. `%h` stands for the host, `%p` for the process.
        debug_file: Option<String> = "NCCL_DEBUG_FILE", TEXT, unset "standard output";
        /// Levels that are written besides those of `NCCL_DEBUG`. Hawser's log has the levels of
        /// `NCCL_DEBUG`.
        debug_levels: Option<u32> = "NCCL_DEBUG_LEVELS", LOG_LEVELS, unset "none", reader Reader::Nobody;
        /// Form of the time in front of lines of the log, in the words of strftime(3); `%3f` gives the first
        /// three digits of the second's parts, and so on up to `%9f`. The time of `HAWSER_LOG_JSON` has a
        /// form of its own.
        timestamp_format: String = "NCCL_DEBUG_TIMESTAMP_FORMAT", TEXT, default "[%F %T] ";
        /// Levels of the log whose lines have the time.
        timestamp_levels: u32 = "NCCL_DEBUG_TIMESTAMP_LEVELS", LOG_LEVELS, default "WARN,ATTN";
        /// 1: calls are no ranges of NVTX. Else they are where a tool asks for ranges.
        nvtx_disable: bool = "NCCL_NVTX_DISABLE", FLAG, default "0", page "operate.md#ranges";
        /// 1: everything is written from the first warning on.
        warn_enables_info: bool = "NCCL_WARN_ENABLE_DEBUG_INFO", NCCL_FLAG, default "FALSE",
            reader Reader::Nobody;
        /// 1: NCCL names its threads. Hawser's threads have names for both values.
        set_thread_name: bool = "NCCL_SET_THREAD_NAME", NCCL_FLAG, default "FALSE", reader Reader::Nobody;
        /// Settings that NCCL reads anew at each use. Hawser reads settings once.
        no_cache: Option<String> = "NCCL_NO_CACHE", TEXT, unset "none", reader Reader::Nobody;
        /// 1: `ncclParamGetAllParameterKeys` and `ncclParamDumpAll` give NCCL's private parameters too.
        param_dump_all: bool = "NCCL_PARAM_DUMP_ALL", NCCL_FLAG, default "FALSE";
        /// File of a second log: an object of JSON per line for every event of level INFO and above, whatever
        /// `NCCL_DEBUG` is, with the communicator, operation and connection that it concerns. `%h` and `%p`
        /// as above.
        log_json: Option<String> = "HAWSER_LOG_JSON", TEXT, unset "none";
        /// File with settings, one `NAME=value` a line, which count where the environment has none.
        conf_file: Option<String> = "NCCL_CONF_FILE", TEXT, unset "`~/.nccl.conf`";
        /// Names or paths of libraries with an env plugin, from which all settings come then.
        env_plugin: Option<String> = "NCCL_ENV_PLUGIN", TEXT, unset "none", page "plugin-guide.md";
    }
    "Choice" {
        /// Algorithms that may run, per collective if wanted.
        algo: Option<String> = "NCCL_ALGO", TEXT, unset "all", page "programs.md";
        /// Protocols that may run, per collective if wanted.
        proto: Option<String> = "NCCL_PROTO", TEXT, unset "all", page "programs.md";
        /// Fewest CTAs of an operation, cut to 1 to 64. Overrules the communicator's configuration.
        min_ctas: Option<u32> = "NCCL_MIN_CTAS" | "NCCL_MIN_NCHANNELS" | "NCCL_MIN_NRINGS", COUNT,
            unset "the configuration's, else 1";
        /// Most CTAs of an operation, cut to 1 to 64. Overrules the communicator's configuration.
        max_ctas: Option<u32> = "NCCL_MAX_CTAS" | "NCCL_MAX_NCHANNELS" | "NCCL_MAX_NRINGS", COUNT,
            unset "the configuration's, else 64";
        /// Contexts of signals for one-sided transfers. Overrules the communicator's configuration.
        num_rma_ctx: Option<u32> = "NCCL_NUM_RMA_CTX", COUNT, unset "the configuration's, else 1",
            page "one-sided.md";
        /// 1: the bits of a reduction depend on the operands and the number of ranks alone. 2: sums nest, so
        /// that those over 8 ranks equal the sum over 2 of those over 4. 0: they may change with the size of
        /// a call, the hosts and all else that a choice depends on. Overrules the communicator's
        /// configuration.
        reproducible: Option<u8> = "HAWSER_REPRODUCIBLE", LEVEL, unset "the configuration's, else 0",
            page "reproducible.md";
        /// The class of operations: `urgent`, `normal` or `best_effort`. Best-effort ones give way to the
        /// others. Overrules the communicator's configuration; a call or a rule may say another class.
        class: Option<Class> = "HAWSER_CLASS", CLASS, unset "the configuration's, else `normal`",
            page "priorities.md";
        /// 0: small collectives of a group do not share launches.
        fuse: bool = "HAWSER_FUSE", SWITCH_ON, default "1";
        /// The ranks that write why calls run as they do, once per call that differs. 0: nobody, 1: rank 0,
        /// `all`: every rank.
        explain: Explain = "HAWSER_EXPLAIN", EXPLAIN, default "0";
        /// File with what the cost model knows of the machine, as `hawser measure` writes it; `none`:
        /// built-in values.
        links: Option<String> = "HAWSER_LINKS", TEXT,
            unset "rank 0's file in `hawser` of `XDG_CACHE_HOME`, else of `~/.cache`";
        /// Files with programs of your own (MSCCL's XML, or `.plan`), with `:` between them. They compete by
        /// predicted time with the built-in ones.
        msccl_files: Option<String> = "MSCCL_XML_FILES", TEXT, unset "none", page "programs.md";
        /// Folder with files of programs, which come after those of `MSCCL_XML_FILES`.
        msccl_folder: Option<String> = "MSCCL_ALGO_DIR", TEXT, unset "none", page "programs.md";
        /// Files with rules that choose algorithms, with commas between them; `none`: no rules.
        rules: Option<String> = "HAWSER_RULES", TEXT, unset "none", page "rules.md",
            reader Reader::Plugin("tuner");
        /// File with rules in the form of NCCL's example tuner (CSV).
        tuner_config_file: Option<String> = "NCCL_TUNER_CONFIG_FILE", TEXT, unset "none", page "rules.md",
            reader Reader::Plugin("tuner");
        /// Rule files that count anew when they change, with commas between them; 1: those of `HAWSER_RULES`.
        rules_watch: Option<String> = "HAWSER_RULES_WATCH", TEXT, unset "0", page "rules.md";
        /// Seconds that ranks may take for each step of a change of rules.
        rules_timeout: Duration = "HAWSER_RULES_TIMEOUT", RULES_SECONDS, default "10", page "rules.md";
        /// Folder of the sockets through which the rules of a process can be changed; unset: they have names
        /// instead of files (unix(7), abstract); `none`: no socket.
        runtime_dir: Option<String> = "HAWSER_RUNTIME_DIR", TEXT, unset "no files", page "rules.md";
        /// Name by which `hawser rules apply --job` finds this process.
        job_name: Option<String> = "HAWSER_JOB", TEXT, unset "`SLURM_JOB_ID`", page "rules.md";
    }
    "Bring-up and deadlines" {
        /// Seconds that ranks wait for those that have not come to init or split (a warning names them every
        /// minute), and for each step once all are there.
        init_seconds: Option<Duration> = "HAWSER_INIT_TIMEOUT", SECONDS, unset "1800, 120";
        /// Seconds that a stranger who connects may stay silent.
        handshake_timeout: Duration = "HAWSER_HANDSHAKE_TIMEOUT", SECONDS, default "5";
        /// Seconds that an operation may wait for a peer; 0: for ever.
        op_timeout: Option<Duration> = "HAWSER_OP_TIMEOUT", DEADLINE, default "0";
        /// Seconds after which an operation that is still open makes its ranks compare what each has called
        /// and whom it waits for; one sentence names who is to blame, at every level of `NCCL_DEBUG`. Nothing
        /// is ended by it. 0: nobody asks by itself (`hawser trace hang` does).
        hang_after: Option<Duration> = "HAWSER_HANG_AFTER", DEADLINE, default "60", page "hangs.md";
        /// Signal upon which a process has its ranks compared and writes what was found, whatever the age of
        /// an operation. Not one that the program handles itself.
        hang_signal: Option<i32> = "HAWSER_HANG_SIGNAL", SIGNAL, unset "none", page "hangs.md";
        /// Folder where the last operations of each process stay when it has ended. Without it other
        /// processes of the user read them while the process lives.
        progress_dir: Option<String> = "HAWSER_PROGRESS_DIR", TEXT, unset "memory", page "hangs.md";
        /// `DEBUG_LOCAL`: a call whose buffers the device cannot use is an error. `DEBUG_GLOBAL`: besides, a
        /// collective that ranks call with another count, type, reduction or root, or another collective, is
        /// an error on all of them before anything runs; ranks wait for each other in every call for it. All
        /// ranks need the same value.
        check_mode: CheckMode = "NCCL_CHECK_MODE", CHECK_MODE, default "DEFAULT", page "hangs.md#mismatches";
        /// 1: as `NCCL_CHECK_MODE=DEBUG_LOCAL`, where that says nothing else.
        check_pointers: bool = "NCCL_CHECK_POINTERS", FLAG, default "0", page "hangs.md#mismatches";
        /// 0: the process does not listen for clients of RAS (`ncclras`), which are told what its job does.
        ras_enable: bool = "NCCL_RAS_ENABLE", FLAG, default "1", page "operate.md#ras";
        /// Address `host:port` where clients of RAS are answered; all processes of a user on a host may have
        /// the same one. Whoever reaches it can read the state of the job.
        ras_addr: String = "NCCL_RAS_ADDR", TEXT, default "localhost:28028", page "operate.md#ras";
        /// Factor of NCCL's deadlines of RAS. Hawser's processes have 2 s to answer, or as long as the client
        /// says.
        ras_timeout_factor: u32 = "NCCL_RAS_TIMEOUT_FACTOR", COUNT, default "1", page "operate.md#ras",
            reader Reader::Nobody;
        /// Seconds without a sign of life after which another host counts as dead, 2 at least; 0: as the
        /// kernel has it. As long as connections of the TCP plugin do without any path by default. The end
        /// of a process is noticed at once, whatever the value. A process that is stopped or slow is not
        /// dead.
        heartbeat: Option<Duration> = "HAWSER_HEARTBEAT", DEADLINE, default "60";
        /// 1: what crosses the network between hosts has checksums from one rank's memory to the other's;
        /// data that were changed on the way end the communicator with an error that names the NIC. Slots of
        /// GPUs lie in host memory then. All ranks need the same value.
        checksum: bool = "HAWSER_CHECKSUM", SWITCH_OFF, default "0", page "../SECURITY.md";
        /// Protection of what goes over TCP between ranks, control connections and data: `plain` (none after
        /// the proof of the unique id) or `encrypt` (AES-256-GCM, with keys of their own for each
        /// connection). Nets that cannot encrypt, such as InfiniBand, are refused with it. All ranks need the
        /// same value, and so does the process that makes the unique id.
        wire: Wire = "HAWSER_WIRE", WIRE, default "plain", page "../SECURITY.md";
        /// 0: communicators do not block, 1: they do, whatever their configuration says.
        comm_blocking: Option<bool> = "NCCL_COMM_BLOCKING", FLAG, unset "the configuration's";
        /// Address `host:port` where rank 0 listens, instead of the unique id's. It is no secret: without
        /// `HAWSER_COMM_ID_KEY_FILE` whoever reaches the port can take a rank's place.
        comm_id: Option<String> = "NCCL_COMM_ID", TEXT, unset "the unique id's", page "../SECURITY.md";
        /// File with a random key of 16 bytes or more, the same for all ranks (each host may have a copy),
        /// which lets ranks in where they meet at `NCCL_COMM_ID`. `hawser perf` lets its processes in by it
        /// too. `openssl rand -hex 32` makes one; only its owner should be able to read it. A file that
        /// cannot be read is an error.
        comm_id_key_file: Option<String> = "HAWSER_COMM_ID_KEY_FILE", TEXT, unset "none",
            page "../SECURITY.md";
        /// Identity of the host: ranks with the same one share memory.
        host_id: Option<String> = "NCCL_HOSTID", TEXT, unset "host name and boot id";
        /// Interfaces of bring-up and of the TCP plugin.
        socket_ifname: Option<String> = "NCCL_SOCKET_IFNAME", TEXT, unset "those that are up",
            page "running-on-many-hosts.md";
        /// Addresses of bring-up and of the TCP plugin: `AF_INET` or `AF_INET6`.
        socket_family: Option<u8> = "NCCL_SOCKET_FAMILY", FAMILY, unset "both",
            page "running-on-many-hosts.md";
        /// The number of times that a connection of bring-up that was refused is tried again.
        socket_retry_count: u32 = "NCCL_SOCKET_RETRY_CNT", NUMBER, default "34";
        /// Milliseconds between two attempts to connect at bring-up.
        socket_retry_sleep: Duration = "NCCL_SOCKET_RETRY_SLEEP_MSEC", MILLISECONDS, default "100";
        /// 1: several ranks of a communicator may share a GPU and its multiprocessors. Each takes at most its
        /// part of them.
        multi_rank_gpu: bool = "NCCL_MULTI_RANK_GPU_ENABLE", FLAG, default "0";
    }
    "Paths" {
        /// 1: no peer access between GPUs; data goes through host memory.
        p2p_disable: bool = "NCCL_P2P_DISABLE", FLAG, default "0";
        /// 1: GPUs of one process do not use each other's user buffers, and their memory is not opened to
        /// each other.
        direct: bool = "NCCL_P2P_DIRECT_DISABLE", UNLESS, default "0",
            page "adr/0011-direct-in-one-process.md";
        /// 1: most memory between the GPUs of a host is made when an operation first needs it. 0, or a limit
        /// in `NCCL_CUMEM_MAX_SIZE`: all of it at init, so that what fits then will always fit.
        runtime_connect: bool = "NCCL_RUNTIME_CONNECT", SWITCH_ON, default "1";
        /// 0: buffers of captured calls are not mapped for other ranks of the host, each in a process of its
        /// own; calls in graphs are staged then, unless their buffers lie in windows.
        graph_register: bool = "NCCL_GRAPH_REGISTER", SWITCH_ON, default "1", page "zero-copy.md#graphs";
        /// 0: buffers of `ncclCommRegister` are not mapped by other processes of the host, and the network
        /// never reads or writes those and windows itself: what copy engines move between hosts is staged.
        local_register: bool = "NCCL_LOCAL_REGISTER", SWITCH_ON, default "1",
            page "zero-copy.md#registered-buffers";
        /// 1: windows of CUDA's VMM get multicast addresses on GPUs with NVSwitch, for kernels of the program
        /// (`ncclGetLsaMultimemPointer`). No hardware has run this yet.
        multicast: bool = "HAWSER_MULTICAST", SWITCH_OFF, default "0", page "device-api.md";
        /// 1: ranks of a host share no host memory; without peer access they talk over the net.
        shm_disable: bool = "NCCL_SHM_DISABLE", FLAG, default "0";
        /// Bytes of a FIFO of the Simple protocol, per lane and peer.
        buffsize: Option<u64> = "NCCL_BUFFSIZE", BYTES, unset "524288; 2097152 where there are several hosts";
        /// Bytes from which on a put to a rank on another host (`ncclPutSignal`, GIN) goes over the net
        /// plugin; shorter ones, and all with 0, are messages over the control connection.
        put_net: Option<u64> = "HAWSER_PUT_NET", SIZE, unset "65536; 2097152 over TCP", page "one-sided.md";
        /// The greatest distance at which NICs read and write GPU memory; 0 or `LOC`: they never do.
        gpu_direct: bool = "NCCL_NET_GDR_LEVEL", GPU_DIRECT, default "SYS";
        /// 0: the program itself puts a graph's replay in order with other replays of the communicator and
        /// calls outside of graphs, by events or one stream; else the communicator's counters go wrong. Saves
        /// about 1 µs per replay, and 0.3 µs per call once anything was captured. Where graphs may not have
        /// nodes for events (bodies of conditional nodes, graphs that a GPU launches) it has to be 0.
        /// `graphUsageMode` of `ncclConfig_t` (2 = 1, 0 and 1 = 0) says it for one communicator.
        mixes_graphs: Option<bool> = "NCCL_GRAPH_MIXING_SUPPORT", FLAG, unset "the configuration's, else 1",
            page "adr/0016-replays-in-order.md";
        /// 0: InfiniBand does not go on over other rails when one fails.
        fault_tolerance: Option<bool> = "NCCL_ENABLE_FAULT_TOLERANCE", SWITCH, default "1", page "net-ib.md",
            reader Reader::Plugin("net-ib");
        /// 1: no rank sends what others of its host have for other hosts (`RailRelay`, for small all-to-alls
        /// where ranks have NICs of their own). Messages of programs are never sent so.
        pxn_disable: Option<bool> = "NCCL_PXN_DISABLE", SWITCH, default "0",
            page "running-on-many-hosts.md";
    }
    "Copy engines" {
        /// 0: kernels do everything, 1: copy engines do what they can, 2: a move that copy engines cannot do
        /// is an error.
        pass_sm: u8 = "NCCL_PASS_SM", LEVEL, default "0", page "sm-free.md";
        /// `ZERO`: communicators do without multiprocessors where they can, as with `NCCL_PASS_SM=1`.
        no_ctas: Option<bool> = "NCCL_CTA_POLICY", CTA_POLICY, unset "the configuration's", page "sm-free.md";
        /// Bytes of staging for copy engines, per peer; 0: as many as fit.
        staging_bytes: u64 = "NCCL_PSM_BUFFER_SIZE", SIZE, default "0", page "sm-free.md#memory";
        /// 0: copy engines may move nothing. With `NCCL_PASS_SM=1` kernels do everything and a line says so,
        /// with 2 init fails.
        dma_enable: bool = "NCCL_DMA_ENABLE", SWITCH_ON, default "1", page "sm-free.md";
        /// 0: copy engines move everything through staging. auto: straight from user buffer to user buffer
        /// between processes, where peers can map it; nothing has to be registered. 1: between threads of a
        /// process too: for trials, it has hung on four GPUs.
        zero_copy: Option<bool> = "NCCL_ZERO_COPY", SWITCH, default "auto", page "sm-free.md";
        /// 0: through host memory even where GPUs reach each other, as `NCCL_P2P_DISABLE=1`, to find faults
        /// of the path between them; copy engines are out then. 1 and auto: peer access wherever there is
        /// any.
        direct_path: Option<bool> = "NCCL_DIRECT_PATH", SWITCH, default "auto", page "sm-free.md";
        /// 1: a line with `SM_FREE` at the first operation of each kind and power of two of bytes says
        /// whether copy engines run it, or why not. 2: for every operation. Written without `NCCL_DEBUG` too.
        sm_free_verbose: u8 = "NCCL_SM_FREE_VERBOSE", LEVEL, default "0", page "sm-free.md";
        /// The most CTAs at once of an all-reduce, reduce-scatter or reduce with `NCCL_PASS_SM=1`: what
        /// computing loses to them, and what bandwidth they have.
        reducing_ctas: Option<u32> = "HAWSER_SM_FREE_CTAS", CTAS, unset "2", page "sm-free.md";
        /// 1: with at most 2 CTAs, sums that memory makes bit for bit (float, double, integers of 32 and 64
        /// bits; half and bfloat16 of two ranks) are made by it: one block of one thread in 5 KiB of shared
        /// memory moves tiles there, 16 for each CTA. They begin beside a GEMM instead of after it. On trial:
        /// an all-reduce takes two thirds of its time, beside a GEMM and alone, and the GEMM loses 5 %
        /// instead of 3 (bench/README.md).
        memory_adds: bool = "HAWSER_SM_FREE_ADD", SWITCH_OFF, default "0", page "sm-free.md";
    }
    "Memory of a GPU" {
        /// 1: memory by CUDA's virtual memory management, 0: by `cudaMalloc` and IPC handles, -1: the first
        /// where it can be shared.
        cumem_enable: Option<bool> = "NCCL_CUMEM_ENABLE", MEMORY, default "-1", page "sm-free.md#the-pool";
        /// Shared host memory is an anonymous file that has no name in `/dev/shm`, for every value.
        cumem_host_enable: i64 = "NCCL_CUMEM_HOST_ENABLE", HOST_MEMORY, default "-1",
            page "sm-free.md#the-pool",
            reader Reader::Nobody;
        /// Bytes that stay with the pool while it lives, idle or not.
        pool_size: u64 = "NCCL_CUMEM_POOL_SIZE", SIZE, default "0", page "sm-free.md#the-pool";
        /// 1: a communicator's init fills the pool up to `NCCL_CUMEM_POOL_SIZE`, and no operation allocates
        /// while that suffices.
        pool_preallocate: bool = "NCCL_CUMEM_PREALLOC", SWITCH_OFF, default "0", page "sm-free.md#the-pool";
        /// Shared memory grows to this multiple of the pool at once, or by the need if that is more.
        pool_growth: f64 = "NCCL_CUMEM_GROWTH_FACTOR", GROWTH, default "1.0", page "sm-free.md#the-pool";
        /// The most bytes that are ever taken of a GPU; 0: no limit.
        pool_max: Option<u64> = "NCCL_CUMEM_MAX_SIZE", LIMIT, default "0", page "sm-free.md#the-pool";
        /// The idle bytes above which memory goes back to the driver until half of them are.
        pool_trim: u64 = "NCCL_CUMEM_TRIM_THRESHOLD", SIZE, default "0", page "sm-free.md#the-pool";
        /// 1: lines with `MEMORY_POOL` and the figures of each pool, without `NCCL_DEBUG` too.
        pool_monitor: bool = "NCCL_CUMEM_MONITOR", SWITCH_OFF, default "0", page "sm-free.md#the-pool";
        /// Time between these lines; 0: one whenever memory is taken, goes back or is refused, and at the
        /// end.
        pool_monitor_interval: Duration = "NCCL_CUMEM_MONITOR_INTERVAL", INTERVAL, default "10",
            page "sm-free.md#the-pool";
    }
    "Plugins" {
        /// Name of the net to use, whatever `netName` of a communicator's `ncclConfig_t` says.
        net: Option<String> = "NCCL_NET", TEXT, unset "the first that works", page "plugin-guide.md";
        /// Names or paths of libraries with net plugins.
        net_plugin: Option<String> = "NCCL_NET_PLUGIN", TEXT, unset "built-in ones", page "plugin-guide.md";
        /// Names or paths of libraries with tuner plugins.
        tuner_plugin: Option<String> = "NCCL_TUNER_PLUGIN", TEXT, unset "built-in \
            ones", page "plugin-guide.md";
        /// Names or paths of libraries with profiler plugins.
        profiler_plugin: Option<String> = "NCCL_PROFILER_PLUGIN", TEXT, unset "none", page "plugin-guide.md";
        /// File with figures for Prometheus, which the profiler plugin writes anew (`%h` host, `%p` process,
        /// `%r` rank): give it the ending that node_exporter's textfile collector reads (`.prom`).
        metrics_file: Option<String> = "HAWSER_METRICS_FILE", TEXT, unset "none", page "operate.md#metrics",
            reader Reader::Plugin("profiler");
        /// Seconds between two writings of that file.
        metrics_interval: Option<String> = "HAWSER_METRICS_INTERVAL", TEXT, unset "15",
            page "operate.md#metrics",
            reader Reader::Plugin("profiler");
        /// Address at which the profiler plugin answers Prometheus: `127.0.0.1:9400`, with a range of ports
        /// (`127.0.0.1:9400-9463`) of which each process takes the first that is free, or `unix:PATH`. Only
        /// loopback is accepted.
        metrics_listen: Option<String> = "HAWSER_METRICS_LISTEN", TEXT, unset "none",
            page "operate.md#metrics",
            reader Reader::Plugin("profiler");
        /// 1: a collnet plugin may reduce in the network.
        collnet: bool = "NCCL_COLLNET_ENABLE", FLAG, default "0", page "plugin-guide.md";
        /// Plugins are tried in a process of their own first, so that one that crashes is named. 1: in a
        /// forked child; the path of the `hawser` program: in that (a fork does not suit every process).
        plugin_probe: Option<String> = "HAWSER_PLUGIN_PROBE", PROBE, default "0", page "plugin-guide.md";
    }
}

/// Values of `NCCL_CHECK_MODE`: the checks of every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckMode {
    /// Arguments that are wrong by themselves are refused.
    Default,
    /// So are buffers that the device cannot use.
    Local,
    /// So are collectives that differ between ranks.
    Global,
}

/// Values of `HAWSER_EXPLAIN`: which ranks write why calls run as they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Explain {
    /// No rank (0).
    No,
    /// Rank 0 of every communicator (1).
    First,
    /// Every rank (`all`).
    All,
}
