//! The settings of the library, read once.
//!
//! An env plugin (`NCCL_ENV_PLUGIN`), if there is one, is the only source. Without it: process environment,
//! then the file named by `NCCL_CONF_FILE` (else `~/.nccl.conf`), then `/etc/nccl.conf`; what names a setting
//! first counts, also in a file, and an empty value counts as none. A value that does not parse is reported
//! once and the default kept; an unknown `NCCL_*` name is reported with the nearest known one. `table` has
//! all settings. This is the only file of the library that reads the environment.

mod kind;
mod parameter;
mod source;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use hawser_compat::search;
use hawser_plugin::env::EnvContext;

use crate::error::{Error, Result};
use crate::files::{MOST_SETTINGS, keep_standard_descriptors, read_text};
use crate::{library, log};
pub use kind::Form;
pub use parameter::{Parameter, Value, parameter, parameters};
use source::Source;
pub use table::{CheckMode, Explain, Reader, Setting, Settings, TABLE};

impl Settings {
    /// The settings that a process has where these names have these values, and no others.
    pub fn of(values: &[(&str, &str)]) -> Self {
        Source::of(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))).settings()
    }

    /// Checks that all values that must mean something do.
    ///
    /// # Errors
    /// `InvalidUsage` with the name, the value and the accepted form of each that does not.
    pub fn check(&self) -> Result<()> {
        if self.faults.is_empty() { Ok(()) } else { Err(Error::invalid_usage(self.faults.join("; "))) }
    }

    /// The checks of every call.
    pub fn check_mode(&self) -> CheckMode {
        let pointers = if self.check_pointers { CheckMode::Local } else { CheckMode::Default };
        self.check_mode.max(pointers)
    }

    /// The time for which each step of bring-up may last, once all ranks are there.
    pub fn init_timeout(&self) -> Duration {
        self.init_seconds.unwrap_or(Duration::from_secs(120))
    }

    /// The time for which ranks wait for those that have not come to init or split. Unset it is long, since
    /// programs load data or compile before, each rank in its time.
    pub fn join_timeout(&self) -> Duration {
        self.init_seconds.unwrap_or(Duration::from_secs(1800))
    }

    /// The form in which the log is written.
    fn log(&self) -> log::Wanted<'_> {
        log::Wanted {
            level: self.debug.as_deref(),
            subsystems: &self.debug_subsys,
            file: self.debug_file.as_deref(),
            times: (&self.timestamp_format, self.timestamp_levels),
            json: self.log_json.as_deref(),
            lines_apart: self.explain != Explain::No || self.pool_monitor || self.sm_free_verbose > 0,
        }
    }

    /// The rule files that count anew when they change: those of `HAWSER_RULES_WATCH`, and that of
    /// `NCCL_TUNER_CONFIG_FILE` if that is meant for the tuner by rules.
    pub fn watched_files(&self) -> Vec<PathBuf> {
        let Some(files) = self.watched_rules() else { return Vec::new() };
        let files = files.split(',').map(str::trim).filter(|file| !file.is_empty()).map(PathBuf::from);
        // Counts as well, and would not after a change of the others.
        let is_ours = self.tuner_plugin.as_deref().is_none_or(|name| name == "none");
        let csv = self.tuner_config_file.as_ref().filter(|_| is_ours).map(PathBuf::from);
        files.chain(csv.filter(|path| path.is_file())).collect()
    }

    fn watched_rules(&self) -> Option<&str> {
        match self.rules_watch.as_deref().filter(|text| *text != "0")? {
            "1" => self.rules.as_deref().filter(|text| *text != "none"),
            files => Some(files),
        }
    }

    /// Returns the name by which `hawser rules apply --job` finds this process.
    pub fn job(&self) -> Option<String> {
        self.job_name.clone().or_else(|| std::env::var("SLURM_JOB_ID").ok())
    }

    /// A sentence about each value that is right by itself and has no effect beside the others.
    fn idle_values(&self) -> Vec<String> {
        let watches_nothing = self.rules_watch.as_deref() == Some("1") && self.watched_rules().is_none();
        let text = "HAWSER_RULES_WATCH=1 is ignored: HAWSER_RULES names no file to watch";
        Vec::from_iter(watches_nothing.then(|| text.to_owned()))
    }
}

/// The settings, read at first use.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        keep_standard_descriptors();
        let source = Source::read();
        hawser_plugin::settings::set_source(value);
        let settings = source.settings();
        log::configure(&settings.log());
        for complaint in source.complaints().iter().chain(&settings.idle_values()).chain(&settings.faults) {
            log::warn(complaint);
        }
        // Where a plugin is, that stays.
        let _ = ORIGIN.set(Origin::Found(source.values));
        settings
    })
}

/// Returns true if a tool asks for ranges of NVTX: it names its library to NVTX by a variable.
pub fn has_nvtx_tool() -> bool {
    std::env::var_os("NVTX_INJECTION64_PATH").is_some_and(|path| !path.is_empty())
}

/// A sentence about each value that means nothing.
pub fn wrong_values() -> Vec<String> {
    let source = Source::read();
    let settings = source.settings();
    [source.wrong_values(), settings.idle_values(), settings.faults].concat()
}

/// The entry of the table for a name, which may be an older name of a setting.
pub fn table_entry(name: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name || setting.older_names.contains(&name))
}

/// All names of settings, older ones too.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|setting| std::iter::once(&setting.name).chain(setting.older_names)).copied()
}

/// Names that NCCL 2.32 and its plugins know. Not all have an effect here.
pub fn nccl_names() -> impl Iterator<Item = &'static str> {
    include_str!("env/nccl_names.txt").lines()
}

/// The name that looks most like this one, of the settings and of what NCCL and its plugins know; None if
/// this one is known.
fn nearest(name: &str) -> Option<&'static str> {
    let nearest = names().chain(nccl_names()).min_by_key(|known| distance(name, known))?;
    (nearest != name).then_some(nearest)
}

/// Insertions, deletions and replacements of bytes that turn `a` into `b`.
pub fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The origin of values that the library has no use for itself.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// The place that built-in plugins get their settings from.
enum Origin {
    /// An env plugin, and nothing else.
    Plugin(Box<dyn EnvContext>),
    /// The values that were found when settings were read, else the environment.
    Found(BTreeMap<String, String>),
}

/// A value for a built-in plugin.
fn value(name: &str) -> Option<OsString> {
    let found = match ORIGIN.get() {
        Some(Origin::Plugin(plugin)) => return plugin.value(name).map(OsString::from),
        Some(Origin::Found(values)) => values.get(name),
        None => None,
    };
    found.map(OsString::from).or_else(|| std::env::var_os(name))
}

/// Returns whether a value of a setting is the environment's.
fn is_in_environment(setting: &Setting, text: &str) -> bool {
    let mut names = std::iter::once(&setting.name).chain(setting.older_names);
    names.any(|name| std::env::var(name).is_ok_and(|found| found.trim() == text))
}

impl Source {
    fn read() -> Self {
        let named = std::env::var("NCCL_ENV_PLUGIN").ok();
        if let Some(plugin) = open_plugin(named.as_deref()) {
            let values: Vec<_> =
                names().filter_map(|name| Some((name.to_owned(), plugin.value(name)?))).collect();
            let _ = ORIGIN.set(Origin::Plugin(plugin));
            return Self::of(values.into_iter());
        }
        let home = std::env::var("HOME").map(|h| format!("{h}/.nccl.conf")).ok();
        let own = std::env::var("NCCL_CONF_FILE").ok().filter(|path| !path.is_empty()).or(home);
        let files = [own, Some("/etc/nccl.conf".to_owned())].into_iter().flatten();
        let mut texts = Vec::new();
        let mut unusable = Vec::new();
        for path in files {
            match read_text(Path::new(&path), MOST_SETTINGS) {
                Ok(text) => texts.push(text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => unusable.push(format!("settings of the file {path} are not read: {error}")),
            }
        }
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| ["NCCL_", "HAWSER_", "MSCCL_"].iter().any(|p| name.starts_with(p)));
        let source = Self::of(environment.chain(texts.iter().flat_map(|text| source::parse_file(text))));
        source.complain(unusable);
        source
    }
}

/// The env plugin, if there is one. Called while settings are read, so it asks for none.
fn open_plugin(value: Option<&str>) -> Option<Box<dyn EnvContext>> {
    let log = log::for_plugins();
    let found = search::find_envs(&search::Request::new(value, library::folder(), &log));
    found.candidates.into_iter().find_map(|candidate| {
        let opened = candidate.plugin.open(library::NCCL_VERSION, &log);
        let complain = |error: &hawser_plugin::Error| {
            log::warn(&format!("env plugin {} is left out: {error}", candidate.plugin.name()));
        };
        opened.inspect_err(complain).ok()
    })
}

/// The user's folder for caches. Only an absolute `XDG_CACHE_HOME` counts, as its specification demands.
fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}

/// Hardware queues of a context on a GPU, 1 to 32, if the environment tells the driver how many there are to
/// be.
pub fn gpu_queues() -> Option<u32> {
    let asked = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|text| text.trim().parse().ok());
    asked.map(|queues: u32| queues.clamp(1, 32))
}

/// Reads the text of a settings file as the library would: for a fuzz target.
#[cfg(feature = "fuzzing")]
pub fn fuzz_settings_file(text: &str) {
    let source = Source::of(source::parse_file(text));
    let _ = (source.settings(), source.complaints());
}

/// Returns whether tests are to write the files that they compare with.
#[cfg(test)]
fn is_to_bless() -> bool {
    std::env::var_os("BLESS").is_some()
}

#[cfg(test)]
mod tests;
