//! The cases of an env plugin: what it has to do right.

use std::sync::Arc;

use hawser_plugin::Log;
use hawser_plugin::env::{Env, EnvContext};

use super::case::{Case, Options, Outcome, Trial, check_name, only, want};

/// The cases, in the order in which they run.
pub const CASES: &[Case<dyn Env>] = &[
    Case { name: "name_is_constant", wants: "one name that fits into a log line", run: name_is_constant },
    Case {
        name: "answers_are_constant",
        wants: "the same value for a name, however often and in which order it is asked",
        run: answers_are_constant,
    },
    Case {
        name: "odd_names_are_not_set",
        wants: "no value for names that no variable has",
        run: odd_names_are_not_set,
    },
    Case {
        name: "many_threads_ask",
        wants: "the same values to several threads at once",
        run: many_threads_ask,
    },
    Case {
        name: "opened_again",
        wants: "that it can be opened again after it was dropped",
        run: opened_again,
    },
];

/// Runs one case.
///
/// # Panics
/// If it does not come out as expected.
pub fn one(name: &str, plugin: Arc<dyn Env>, options: &Options) {
    only(CASES, name, plugin, options);
}

/// Some of the variables that the host asks for.
const NAMES: [&str; 8] = [
    "NCCL_DEBUG",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NET",
    "NCCL_SOCKET_IFNAME",
    "NCCL_CONF_FILE",
    "NCCL_SURELY_NOT_A_VARIABLE",
    "PATH",
];

fn open(trial: &Trial<dyn Env>) -> Result<Box<dyn EnvContext>, String> {
    trial.plugin.open((2, 32, 3), &Log::silent()).map_err(|error| format!("open: {error}"))
}

fn values(context: &dyn EnvContext) -> Vec<Option<String>> {
    NAMES.iter().map(|name| context.value(name)).collect()
}

fn name_is_constant(trial: &Trial<dyn Env>) -> Outcome {
    let first = trial.plugin.name().to_owned();
    drop(open(trial)?);
    check_name(&first, trial.plugin.name())
}

fn answers_are_constant(trial: &Trial<dyn Env>) -> Outcome {
    let context = open(trial)?;
    let first = values(&*context);
    for name in NAMES.iter().rev() {
        context.value(name);
    }
    for _ in 0..100 {
        let again = values(&*context);
        want!(again == first, "{first:?} becomes {again:?} (of {NAMES:?})");
    }
    let odd = first.iter().flatten().find(|value| value.contains('\0'));
    want!(odd.is_none(), "{odd:?} cannot be a value");
    Ok(())
}

fn odd_names_are_not_set(trial: &Trial<dyn Env>) -> Outcome {
    let context = open(trial)?;
    let long = "N".repeat(10_000);
    for name in ["", "=", "NCCL_DEBUG=INFO", " NCCL_DEBUG", "%s%n", long.as_str()] {
        let value = context.value(name);
        want!(value.is_none(), "{name:?} has the value {value:?}");
    }
    Ok(())
}

fn many_threads_ask(trial: &Trial<dyn Env>) -> Outcome {
    let context = open(trial)?;
    let alone = values(&*context);
    std::thread::scope(|scope| {
        let ask = || (0..200).all(|_| values(&*context) == alone);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for thread in threads {
            let same = thread.join().map_err(|_| "value panicked".to_owned())?;
            want!(same, "values change when several threads ask");
        }
        Ok(())
    })
}

fn opened_again(trial: &Trial<dyn Env>) -> Outcome {
    let first = values(&*open(trial)?);
    for _ in 0..3 {
        let again = values(&*open(trial)?);
        want!(again == first, "opened again, {first:?} becomes {again:?} (of {NAMES:?})");
    }
    Ok(())
}
