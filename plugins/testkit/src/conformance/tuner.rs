//! The cases of a tuner: what it has to do right.

use std::sync::Arc;

use hawser_plugin::tuner::{
    Algorithm, Answer, Candidate, Decision, Executor, Function, Protocol, Question, Status, Tuner,
    TunerConfig, TunerContext,
};
use hawser_plugin::{Log, Result};

use super::case::{Case, Options, Outcome, Trial, check_name, only, want};

/// The cases, in the order in which they run.
pub const CASES: &[Case<dyn Tuner>] = &[
    Case { name: "name_is_constant", wants: "one name that fits into a log line", run: name_is_constant },
    Case {
        name: "every_question_is_answered",
        wants: "times and orders that make sense for all functions, sizes and candidates, \
                or an error with a text",
        run: every_question_is_answered,
    },
    Case {
        name: "ranks_agree",
        wants: "equal answers to equal questions, at all ranks and each time",
        run: ranks_agree,
    },
    Case {
        name: "impossible_stays_impossible",
        wants: "candidates that are refused to stay so, and no order for them",
        run: impossible_stays_impossible,
    },
    Case { name: "chunks_are_sane", wants: "a chunk size above 0, or none", run: chunks_are_sane },
    Case {
        name: "many_threads_ask",
        wants: "the same answers to several threads at once",
        run: many_threads_ask,
    },
    Case {
        name: "opened_again_and_again",
        wants: "many communicators, at once and one after the other",
        run: opened_again_and_again,
    },
];

/// Runs one case.
///
/// # Panics
/// If it does not come out as expected.
pub fn one(name: &str, plugin: Arc<dyn Tuner>, options: &Options) {
    only(CASES, name, plugin, options);
}

type Told = std::result::Result<Box<dyn TunerContext>, String>;

impl Trial<dyn Tuner> {
    fn open(&self, ranks: u32, nodes: u32) -> Told {
        let config = TunerConfig::new(77, ranks, nodes, Log::silent());
        self.plugin.open(&config).map_err(|error| format!("open for {ranks} ranks on {nodes} hosts: {error}"))
    }
}

const SHAPES: [(u32, u32); 7] = [(1, 1), (2, 1), (8, 1), (2, 2), (16, 2), (9, 3), (4096, 512)];

/// All algorithms that have a name, and one that nobody knows, with all executors and protocols, in every
/// status.
fn candidates() -> Vec<Candidate<'static>> {
    let algorithms = Algorithm::NAMES.iter().map(|(algorithm, _)| *algorithm).chain([Algorithm(999)]);
    let ways = Executor::ALL.map(|executor| Protocol::ALL.map(|protocol| (executor, protocol)));
    let ways = ways.as_flattened();
    let decisions =
        algorithms.flat_map(|algorithm| ways.iter().map(move |way| Decision::new(algorithm, way.0, way.1)));
    let candidate = |(n, decision): (usize, Decision)| {
        let (decision, us) = (decision.with_channels(1 + n as u32 % 8), 10.0 + n as f32);
        match n % 7 {
            2 => Candidate { decision, us, status: Status::Unmeasured },
            4 => Candidate::refused(decision, "impossible here"),
            5 => {
                let status = Status::HeldBack { why: "a setting", is_measured: n % 2 == 0 };
                Candidate { decision, us, status }
            }
            _ => Candidate::predicted(decision, us),
        }
    };
    decisions.enumerate().map(candidate).collect()
}

fn questions() -> Vec<Question> {
    let sizes = [0, 1, 4, 1000, 4096, 65_536, 1 << 20, 100_000_000, 1 << 34, u64::MAX];
    let mut questions = Vec::new();
    for function in Function::ALL {
        for bytes in sizes {
            for (pipelined, registered) in [(1, false), (8, true)] {
                let mut question = Question::new(function, bytes);
                (question.pipelined, question.registered) = (pipelined, registered);
                questions.push(question);
            }
        }
    }
    questions
}

/// Answer, times, and what is possible. Errors are allowed: the host uses its own times then.
type Asked = (Result<Answer>, Vec<(u32, bool)>);

fn ask(context: &dyn TunerContext, question: &Question, mut candidates: Vec<Candidate<'_>>) -> Asked {
    let answer = context.tune(question, &mut candidates);
    (answer, candidates.iter().map(|candidate| (candidate.us.to_bits(), candidate.is_possible())).collect())
}

fn name_is_constant(trial: &Trial<dyn Tuner>) -> Outcome {
    let first = trial.plugin.name().to_owned();
    drop(trial.open(2, 1)?);
    check_name(&first, trial.plugin.name())
}

fn every_question_is_answered(trial: &Trial<dyn Tuner>) -> Outcome {
    for (ranks, nodes) in SHAPES {
        let context = trial.open(ranks, nodes)?;
        for question in questions() {
            for mut candidates in [candidates(), candidates()[..1].to_vec(), Vec::new()] {
                match context.tune(&question, &mut candidates) {
                    Err(error) => {
                        want!(!error.text.trim().is_empty(), "{question:?}: an error without a text")
                    }
                    Ok(answer) => {
                        want!(answer.channels != Some(0), "{question:?}: 0 channels");
                        let odd = candidates.iter().find(|c| !c.us.is_finite() || c.us < 0.0);
                        want!(odd.is_none(), "{question:?} for {ranks} ranks: {odd:?} has no time");
                        let nowhere = answer.order.filter(|place| *place >= candidates.len());
                        want!(nowhere.is_none(), "{question:?}: orders {nowhere:?}, which is not there");
                    }
                }
            }
        }
    }
    Ok(())
}

fn ranks_agree(trial: &Trial<dyn Tuner>) -> Outcome {
    for (ranks, nodes) in SHAPES {
        let contexts = [trial.open(ranks, nodes)?, trial.open(ranks, nodes)?];
        for question in questions() {
            let first = ask(&*contexts[0], &question, candidates());
            for context in [&contexts[1], &contexts[0]] {
                let other = ask(&**context, &question, candidates());
                want!(first == other, "{question:?}: {first:?} becomes {other:?}");
            }
        }
    }
    Ok(())
}

fn impossible_stays_impossible(trial: &Trial<dyn Tuner>) -> Outcome {
    let context = trial.open(8, 1)?;
    for question in questions() {
        let mut candidates = candidates();
        let Ok(answer) = context.tune(&question, &mut candidates) else { continue };
        let before = self::candidates();
        let mut both = before.iter().zip(&candidates);
        let raised = both.find(|(before, after)| !before.is_possible() && after.is_possible());
        want!(raised.is_none(), "{question:?}: {raised:?}");
        let ordered = answer.order.and_then(|place| before.get(place)).filter(|c| !c.is_possible());
        want!(ordered.is_none(), "{question:?}: orders {ordered:?}");
    }
    Ok(())
}

fn chunks_are_sane(trial: &Trial<dyn Tuner>) -> Outcome {
    let context = trial.open(8, 1)?;
    for question in questions() {
        for chosen in candidates() {
            for channels in [1, 32] {
                let decision = chosen.decision.with_channels(channels);
                let chosen = Candidate { decision, ..chosen };
                if let Ok(Some(bytes)) = context.chunk_bytes(&question, &chosen) {
                    want!(bytes > 0, "{question:?}, {chosen:?}: chunks of 0 bytes");
                }
            }
        }
    }
    Ok(())
}

fn many_threads_ask(trial: &Trial<dyn Tuner>) -> Outcome {
    let context = trial.open(8, 2)?;
    let alone: Vec<Asked> = questions().iter().map(|q| ask(&*context, q, candidates())).collect();
    std::thread::scope(|scope| {
        let together = || questions().iter().map(|q| ask(&*context, q, candidates())).collect::<Vec<Asked>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(together)).collect();
        for thread in threads {
            let answers = thread.join().map_err(|_| "tune panicked".to_owned())?;
            want!(answers == alone, "answers change when several threads ask");
        }
        Ok(())
    })
}

fn opened_again_and_again(trial: &Trial<dyn Tuner>) -> Outcome {
    let kept = trial.open(8, 1)?;
    let question = Question::new(Function::AllReduce, 1 << 20);
    let first = ask(&*kept, &question, candidates());
    for _ in 0..20 {
        for (ranks, nodes) in SHAPES {
            ask(&*trial.open(ranks, nodes)?, &question, candidates()).0.ok();
        }
    }
    want!(
        ask(&*kept, &question, candidates()) == first,
        "other communicators change the answers of this one"
    );
    Ok(())
}
