//! A decision allocates nothing: counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use hawser_plugin::Log;
use hawser_plugin::tuner::{
    Algorithm, Answer, Candidate, Decision, Executor, Function, Protocol, Question, TunerContext,
};
use hawser_tuner::engine::Engine;
use hawser_tuner::rule::Job;
use hawser_tuner::schema::parse;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only test of its program, so that nobody else allocates meanwhile.
#[test]
fn no_decision_allocates() {
    let other = "[[rule]]\nmatch = { collective = \"all_reduce\", bytes = \"1T..\", communicator = \"w*\" }\nuse = { algorithm = \"ring\" }\n";
    let impossible = "[[rule]]\nuse = [{ algorithm = \"pat\" }, { algorithm = \"nvls\" }]\n";
    let unknown = "[[rule]]\nmatch.in_graph = true\nuse = { algorithm = \"ring\" }\n";
    let ring = "[[rule]]\nnever_worse = true\nuse = [{ algorithm = \"tree\" }, { algorithm = \"ring\", channels = 4, chunk = \"4K\" }]\n";
    for (text, channels) in [
        (String::new(), None),
        (other.repeat(100), None),
        (format!("{}{impossible}{unknown}{ring}", other.repeat(98)), Some(4)),
    ] {
        let job =
            Job { ranks: 8, hosts: 1, per_host: (8, 8), name: "world".to_owned(), programs: Vec::new() };
        let engine = Engine::new(&parse("r", &text).unwrap(), "r", &job, Log::silent());
        let decision = |algorithm| Decision::new(algorithm, Executor::Interpreter, Protocol::Simple);
        let list = [
            Candidate::predicted(decision(Algorithm::TREE), 90.0),
            Candidate::predicted(decision(Algorithm::RING), 20.0),
            Candidate::refused(decision(Algorithm::PAT), "many ranks"),
        ];
        let questions = [1, 1 << 20, 1 << 30].map(|bytes| Question::new(Function::AllReduce, bytes));
        // What is impossible is said the first time, which takes memory.
        engine.tune(&questions[0], &mut list.clone()).unwrap();
        let before = COUNT.load(Ordering::Relaxed);
        for question in &questions {
            let mut asked = list;
            let answer = engine.tune(question, &mut asked);
            let chunk = engine.chunk_bytes(question, &list[1]);
            let ordered = channels.map_or_else(Answer::default, |_| Answer::ordered(1));
            assert!(answer == Ok(ordered.with_channels(channels)));
            assert!(chunk == Ok(channels.map(|_| 4096)));
        }
        assert_eq!(COUNT.load(Ordering::Relaxed) - before, 0, "allocations of six decisions with {text}");
    }
}
