//! The round trip: a Rust tuner through the exported tables and back through the adapters, versions 4 to 6.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hawser_compat::library::Library;
use hawser_compat::tuner::from_table;
use hawser_plugin::tuner::{
    Algorithm, Answer, Candidate, Decision, Executor, Function, Protocol, Question, TunerConfig, TunerContext,
};
use hawser_plugin::{Error, ErrorKind, Log, Result, Tuner};

/// Questions of this size get an error, a panic, nonsense, an order and something left out.
const FAILS: u64 = 13;
const PANICS: u64 = 14;
const NONSENSE: u64 = 15;
const ORDERS: u64 = 16;

/// Tuners made by the export's expression, and contexts alive.
static MADE: AtomicUsize = AtomicUsize::new(0);
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// Tests run one after the other: they count the above, and C tables have one log per process.
static ALONE: Mutex<()> = Mutex::new(());

struct Probe;

struct ProbeContext(TunerConfig);

impl Tuner for Probe {
    fn name(&self) -> &str {
        "probe"
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        match config.ranks {
            500 => return Err(Error::new(ErrorKind::InvalidUsage, "500 ranks are too many")),
            501 => panic!("501 ranks"),
            _ => {}
        }
        config.log.warn(format!("{} ranks on {} hosts", config.ranks, config.nodes));
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(ProbeContext(config.clone())))
    }
}

impl Drop for ProbeContext {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TunerContext for ProbeContext {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        candidates.iter_mut().for_each(|candidate| candidate.estimate(candidate.us + 1.0));
        match question.bytes {
            FAILS => return Err(Error::internal("no answer")),
            PANICS => panic!("at {PANICS} bytes"),
            NONSENSE => candidates.iter_mut().for_each(|candidate| candidate.us = f32::NAN),
            ORDERS => {
                let is_ring = |candidate: &Candidate<'_>| {
                    let Decision { algorithm, protocol, .. } = candidate.decision;
                    candidate.is_possible() && algorithm == Algorithm::RING && protocol != Protocol::Ll
                };
                let ring = candidates.iter().position(is_ring).expect("a ring is possible");
                candidates.iter_mut().for_each(|c| {
                    if c.decision.protocol == Protocol::Ll {
                        c.leave_out()
                    }
                });
                return Ok(Answer::ordered(ring));
            }
            _ => {}
        }
        // Everything that was asked goes into the answer.
        let sum = question.function as u32 + question.pipelined * 10 + u32::from(question.registered) * 1000;
        Ok(Answer::default().with_channels(sum + self.0.domains.1 * 10_000))
    }

    fn chunk_bytes(&self, question: &Question, chosen: &Candidate<'_>) -> Result<Option<u64>> {
        let Decision { algorithm, protocol, channels, .. } = chosen.decision;
        let choice = u64::from(algorithm.0) * 100 + protocol as u64 * 10 + u64::from(channels);
        Ok(Some(question.bytes + choice).filter(|_| question.bytes != NONSENSE))
    }
}

hawser_compat::export_nccl_tuner!(
    {
        MADE.fetch_add(1, Ordering::SeqCst);
        Arc::new(Probe)
    },
    c"exported probe"
);

/// The tables as a C host declares them.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(
        *mut *mut c_void,
        u64,
        usize,
        usize,
        *const c_void,
        *const c_void,
        *const c_void,
    ) -> c_int,
    tune: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        usize,
        c_int,
        *mut f32,
        c_int,
        c_int,
        c_int,
        *mut c_int,
    ) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Version 6 only.
    chunk: unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int,
}

unsafe extern "C" {
    static ncclTunerPlugin_v4: c_void;
    static ncclTunerPlugin_v5: c_void;
    static ncclTunerPlugin_v6: c_void;
}

/// The exported tables behind our trait again, with their versions.
fn imported() -> [(u32, Arc<dyn Tuner>); 3] {
    let tables =
        [&raw const ncclTunerPlugin_v4, &raw const ncclTunerPlugin_v5, &raw const ncclTunerPlugin_v6];
    let mut version = 3;
    tables.map(|table| {
        version += 1;
        // SAFETY: each table is of the version that its name says.
        let found = unsafe { from_table(&format!("ncclTunerPlugin_v{version}"), table, &Library::program()) };
        (version, found.unwrap().plugin)
    })
}

fn candidates() -> Vec<Candidate<'static>> {
    let decision =
        |algorithm, protocol| Decision::new(algorithm, Executor::Interpreter, protocol).with_channels(5);
    let candidate = |algorithm, protocol, us| Candidate::predicted(decision(algorithm, protocol), us);
    vec![
        candidate(Algorithm::RING, Protocol::Simple, 10.0),
        candidate(Algorithm::TREE, Protocol::Ll, 5.0),
        candidate(Algorithm::ALL_PAIRS, Protocol::Ll, 3.0),
        Candidate::refused(decision(Algorithm::PAT, Protocol::Ll128), "many ranks"),
    ]
}

/// The time of each candidate; -1 if it is impossible.
fn times(candidates: &[Candidate<'_>]) -> Vec<f32> {
    candidates.iter().map(|candidate| if candidate.is_possible() { candidate.us } else { -1.0 }).collect()
}

fn listening() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    (Log::new(move |_, _, line| keep.lock().unwrap().push(line.to_owned())), lines)
}

#[test]
fn a_rust_tuner_survives_the_trip_through_c() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for (version, adapter) in imported() {
        assert_eq!(adapter.name(), "exported probe");
        let (log, lines) = listening();
        let context = adapter.open(&TunerConfig::new(7, 8, 2, log)).unwrap();
        assert!(lines.lock().unwrap().iter().any(|line| line == "8 ranks on 2 hosts"), "{lines:?}");

        let mut list = candidates();
        let mut question = Question::new(Function::ReduceScatter, 1 << 33);
        (question.pipelined, question.registered) = (6, true);
        let answer = context.tune(&question, &mut list).unwrap();
        assert_eq!(times(&list), [11.0, 6.0, 3.0, -1.0], "v{version}");
        assert_eq!(answer.channels, Some(3 + 60 + 1000 + 40_000), "v{version}");

        question.bytes = 1 << 20;
        let chunk = context.chunk_bytes(&question, &list[0]).unwrap();
        assert_eq!(chunk, (version == 6).then_some((1 << 20) + 125), "v{version}");
        let foreign = context.chunk_bytes(&question, &list[2]).unwrap();
        assert_eq!(foreign, None);
        let none = context.chunk_bytes(&Question::new(Function::Reduce, NONSENSE), &list[0]).unwrap();
        assert_eq!(none, None);
        let mut list = candidates();
        let answer = context.tune(&Question::new(Function::AllReduce, ORDERS), &mut list).unwrap();
        assert_eq!((answer.order, answer.channels), (Some(0), None), "v{version}");
        assert_eq!(times(&list), [10.0, -1.0, 3.0, -1.0], "v{version}");
        assert_eq!(ALIVE.load(Ordering::SeqCst), 1);
        drop(context);
        assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    }
    assert_eq!(MADE.load(Ordering::SeqCst), 1);
}

#[test]
fn errors_stay_the_tuners_own_affair() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for (version, adapter) in imported() {
        let (log, lines) = listening();
        let context = adapter.open(&TunerConfig::new(7, 8, 2, log)).unwrap();
        for bytes in [FAILS, FAILS, NONSENSE] {
            let mut list = candidates();
            let answer = context.tune(&Question::new(Function::AllReduce, bytes), &mut list).unwrap();
            assert_eq!(times(&list), times(&candidates()), "v{version}");
            assert_eq!(answer.channels.is_some(), bytes == NONSENSE);
        }
        let said = |what: &str| lines.lock().unwrap().iter().filter(|line| line.contains(what)).count();
        assert_eq!(said("no answer"), 1, "{lines:?}");

        let mut list = candidates();
        let panicked = context.tune(&Question::new(Function::AllReduce, PANICS), &mut list).unwrap_err();
        assert!(panicked.text.contains("ncclInternalError"), "{panicked}");
        assert_eq!(said("at 14 bytes"), 1, "{lines:?}");
        let answer = context.tune(&Question::new(Function::AllReduce, 1), &mut list).unwrap();
        assert_eq!(
            (times(&list), answer.channels),
            (times(&candidates()), None),
            "a dead tuner says nothing"
        );
        drop(context);
        assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_tuner_that_does_not_open_fails_init() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for (_, adapter) in imported() {
        let (log, lines) = listening();
        let refused = adapter.open(&TunerConfig::new(7, 500, 2, log.clone())).err().unwrap();
        assert_eq!(refused.kind, ErrorKind::InvalidUsage);
        let panicked = adapter.open(&TunerConfig::new(7, 501, 2, log)).err().unwrap();
        assert_eq!(panicked.kind, ErrorKind::Internal);
        let lines = lines.lock().unwrap().join("\n");
        assert!(lines.contains("500 ranks are too many") && lines.contains("501 ranks"), "{lines}");
    }
}

#[test]
fn what_a_host_must_not_pass_is_refused() {
    // SAFETY: the table has version 6, and every pointer is NULL or lives here.
    unsafe {
        let table = &*(&raw const ncclTunerPlugin_v6).cast::<Table>();
        let none = ptr::null();
        assert_eq!((table.init)(ptr::null_mut(), 0, 8, 1, none, none, none), 4);
        let mut context = ptr::null_mut();
        assert_eq!((table.init)(&mut context, 0, usize::MAX, 1, none, none, none), 4);
        assert!(context.is_null());
        let mut channels: c_int = 7;
        assert_eq!((table.tune)(context, 0, 1, 1, ptr::null_mut(), 7, 3, 0, &mut channels), 4);
        assert_eq!((table.chunk)(context, 0, 1, 1, 0, 1, ptr::null_mut()), 4);
        assert_eq!((table.finalize)(context), 0);
        assert_eq!(channels, 7);
        let error = from_table("ncclTunerPlugin_v1", ptr::from_ref(table).cast(), &Library::program());
        assert!(error.err().unwrap().contains("ncclTunerPlugin_v1"));
    }
}

#[test]
fn odd_tables_and_questions_change_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: the table has version 6, and every pointer is NULL or lives here.
    unsafe {
        let table = &*(&raw const ncclTunerPlugin_v6).cast::<Table>();
        assert_eq!(CStr::from_ptr(table.name), c"exported probe");
        let (none, tune, chunk) = (ptr::null(), table.tune, table.chunk);
        let mut context = ptr::null_mut();
        assert_eq!((table.init)(&mut context, 0, 8, 1, none, none, none), 0);
        let mut cells = [4.0_f32; 24];
        let base = cells.as_mut_ptr();
        let mut channels: c_int = 7;
        for (function, rows, columns) in [(5, 7, 3), (-1, 7, 3), (4, 0, 3), (4, 7, -1)] {
            assert_eq!(tune(context, function, 1, 1, base, rows, columns, 0, &mut channels), 0);
        }
        assert_eq!(tune(context, 4, 1, 1, ptr::null_mut(), 7, 3, 0, &mut channels), 0);
        assert_eq!((cells, channels), ([4.0; 24], 7));
        // A row more than we know, and a column more: only our part is tuned. `channels` may be NULL.
        assert_eq!(tune(context, 4, 1, 1, base, 8, 3, 0, ptr::null_mut()), 0);
        assert_eq!((&cells[..21], &cells[21..]), (&[5.0; 21][..], &[4.0; 3][..]));
        assert_eq!(tune(context, 4, 1, 1, base, 6, 4, 0, &mut channels), 0);
        assert_eq!(cells[..8], [6.0, 6.0, 6.0, 5.0, 6.0, 6.0, 6.0, 5.0]);
        // NCCL takes what has 0, and leaves out what has -1.
        cells = [4.0; 24];
        assert_eq!(tune(context, 4, ORDERS as usize, 1, base, 7, 3, 0, &mut channels), 0);
        assert_eq!(cells[..8], [-1.0, 5.0, 5.0, -1.0, 0.0, 5.0, -1.0, 5.0]);
        let mut bytes = 9;
        for (function, algorithm, protocol) in [(9, 1, 1), (4, -1, 1), (4, 1, 3), (4, 1, -1)] {
            assert_eq!(chunk(context, function, 1, algorithm, protocol, 2, &mut bytes), 0);
        }
        assert_eq!(chunk(context, 4, 1, 1, 1, 2, ptr::null_mut()), 0);
        assert_eq!(bytes, 9);
        assert_eq!((table.finalize)(context), 0);
    }
}
