//! The doctor's findings about settings: names, values, and whether a communicator comes up with them.

use hawser_base::env;
use hawser_plan::PlanConfig;
use hawser_runtime::comm;
use hawser_tuner::RuleTuner;

use super::{Finding, Level, variables};

/// Findings about the variables that are set, and about what they name.
pub fn findings() -> Vec<Finding> {
    let set = std::env::vars_os()
        .filter_map(|(n, v)| Some((n.into_string().ok()?, v.to_string_lossy().into_owned())));
    let is_ours = |name: &str| ["NCCL_", "HAWSER_", "MSCCL_"].iter().any(|prefix| name.starts_with(prefix));
    let mut set: Vec<_> = set.filter(|(name, _)| is_ours(name)).collect();
    set.sort();
    let mut wrong = wrong_values();
    let is_fine =
        wrong.is_empty() && set.iter().all(|(name, value)| describe(name, value).level != Level::Bad);
    let names: Vec<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
    wrong.extend(is_fine.then(|| bring_up(&names)).flatten());
    let mut findings: Vec<Finding> = Vec::new();
    if set.is_empty() {
        findings.push(Finding::note("no NCCL_*, HAWSER_* or MSCCL_* variables are set"));
    }
    for (name, value) in set {
        // One line for each variable: what is wrong with it, if anything is.
        let own = wrong.iter().position(|problem| problem.variable == name);
        findings.push(own.map_or_else(|| describe(&name, &value), |at| wrong.remove(at).into()));
    }
    // What is left was set in a file.
    findings.extend(wrong.into_iter().map(Finding::from));
    findings
}

/// A variable whose value no communicator comes up with, or that is ignored.
struct Problem {
    variable: String,
    text: String,
    remedy: String,
}

impl Problem {
    fn new(variable: &str, text: String, remedy: &str) -> Self {
        Self { variable: variable.to_owned(), text, remedy: remedy.to_owned() }
    }
}

impl From<Problem> for Finding {
    fn from(problem: Problem) -> Self {
        Self::bad(problem.text, problem.remedy)
    }
}

fn describe(name: &str, value: &str) -> Finding {
    match variables::judge(name) {
        variables::Judgement::Honoured => Finding::good(format!("{name}={value}")),
        variables::Judgement::Known => {
            Finding::note(format!("{name}={value} (a setting of NCCL without effect here yet)"))
        }
        variables::Judgement::Refused(why) => {
            Finding::note(format!("{name}={value} (no effect here: {why})"))
        }
        variables::Judgement::Unknown(near) => Finding::bad(
            format!("{name}={value} is not a known setting"),
            near.map_or("remove it".into(), |near| format!("did you mean {near}?")),
        ),
    }
}

/// All values that are wrong, wherever they were set.
fn wrong_values() -> Vec<Problem> {
    let of_plugins =
        [hawser_net_socket::Settings::from_environment().1, hawser_net_ib::Settings::from_environment().1];
    let texts = env::wrong_values().into_iter().chain(of_plugins.concat());
    let mut problems: Vec<Problem> = texts
        .map(|text| {
            let variable = text.split_once('=').map_or("", |(name, _)| name).to_owned();
            Problem { variable, text, remedy: "mend the value".to_owned() }
        })
        .collect();
    let settings = env::settings();
    if let Some(text) = &settings.algo
        && let Err(error) = PlanConfig::parse_algo_with(text, &comm::program_names())
    {
        problems.push(Problem::new("NCCL_ALGO", error.to_string(), "mend the value"));
    }
    if let Some(text) = &settings.proto
        && let Err(error) = PlanConfig::parse_proto(text)
    {
        problems.push(Problem::new("NCCL_PROTO", error.to_string(), "mend the value"));
    }
    for file in RuleTuner::built_in().files() {
        if let Err(unusable) = file.read() {
            let remedy = format!("hawser rules check {} tells more", file.path.display());
            problems.push(Problem::new("HAWSER_RULES", unusable.to_string(), &remedy));
        }
    }
    problems
}

/// The reason why a communicator of the devices that are here would not come up, if there is one. `names` are
/// the variables that are set.
fn bring_up(names: &[&str]) -> Option<Problem> {
    if hawser_device::count() == 0 {
        return None;
    }
    let error = comm::outlook(&[0]).err()?.to_string();
    let variable = names.iter().find(|name| error.contains(**name)).copied().unwrap_or_default();
    let text = format!("a communicator would not come up: {error}");
    Some(Problem::new(variable, text, "mend the setting that it names"))
}
