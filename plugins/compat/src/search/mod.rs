//! The search for plugins.
//!
//! NCCL's rules: a variable holds a comma list of names; a name is opened as it is, and if that fails as
//! `libnccl-<kind>-<name>.so`; without the variable it is `libnccl-<kind>.so`; `none` switches a kind off;
//! `STATIC_PLUGIN` means the program itself; tuners and profilers are also looked for in the net libraries.
//! Beyond NCCL: the folder of `libnccl.so.2` is searched too, lists work for all kinds, a list gives all its
//! plugins and not the first, words are compared as a whole, and a library may hold a Rust plugin
//! (`hawser_plugin::export_plugin!`), which is preferred to NCCL's tables of the same kind.
//!
//! Every library is opened once per process and stays open: its code may be on some thread's stack. What
//! failed is remembered and not tried again. Log lines come with the first try only.
//!
//! | file | holds |
//! |---|---|
//! | `names` | from the value of a variable to what is opened |
//! | `open` | dlopen, and why it failed |
//! | `contents` | what a library holds |
//! | [`probe`] | trying a library in a process that may die |

mod contents;
mod names;
mod open;
pub mod probe;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hawser_plugin::builtin::built_in;
use hawser_plugin::{CollNet, Component, Env, Log, Net, Profiler, Subsys, Tuner};

use contents::{Contents, Readers};
use names::{Entry, Wanted, wanted};
use open::Refusal;
use probe::Probe;

/// Kinds of plugins that have a variable of their own. CollNets come with nets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum Kind {
    Net,
    Tuner,
    Profiler,
    Env,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Net, Self::Tuner, Self::Profiler, Self::Env];

    /// As in file names: `net`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Tuner => "tuner",
            Self::Profiler => "profiler",
            Self::Env => "env",
        }
    }

    /// The variable that names plugins.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Net => "NCCL_NET_PLUGIN",
            Self::Tuner => "NCCL_TUNER_PLUGIN",
            Self::Profiler => "NCCL_PROFILER_PLUGIN",
            Self::Env => "NCCL_ENV_PLUGIN",
        }
    }

    /// The subsystem that log lines about the kind belong to.
    pub const fn subsys(self) -> Subsys {
        match self {
            Self::Net => Subsys::NET,
            Self::Tuner => Subsys::TUNING,
            Self::Profiler => Subsys::PROFILE,
            Self::Env => Subsys::ENV,
        }
    }
}

/// The plugins that are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Value of [`Kind::variable`]; None = not set.
    pub value: Option<&'a str>,
    /// Folder of `libnccl.so.2`.
    pub beside: Option<&'a Path>,
    /// The log in which the search tells what it found.
    pub log: &'a Log,
    /// Tries every library in a process of its own first.
    pub probe: Option<Probe<'a>>,
}

impl<'a> Request<'a> {
    /// Without probing.
    pub fn new(value: Option<&'a str>, beside: Option<&'a Path>, log: &'a Log) -> Self {
        Self { value, beside, log, probe: None }
    }
}

/// The origin of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Part of the library.
    BuiltIn,
    /// A file, or `STATIC_PLUGIN`.
    Library(PathBuf),
}

/// A plugin that was found. It was read, not opened: whether it works shows `open`.
pub struct Candidate<T: ?Sized> {
    /// The plugin.
    pub plugin: Arc<T>,
    /// The origin of the plugin.
    pub origin: Origin,
    /// The form in which it was read: a symbol such as `ncclNetPlugin_v9`, `Rust 1.0.0`, or `built in`.
    pub interface: String,
    /// The user named its library in the variable of this kind.
    pub demanded: bool,
}

impl<T: ?Sized> Clone for Candidate<T> {
    fn clone(&self) -> Self {
        let Self { plugin, origin, interface, demanded } = self;
        let (plugin, origin) = (plugin.clone(), origin.clone());
        Self { plugin, origin, interface: interface.clone(), demanded: *demanded }
    }
}

/// A net, and the collnet that its library offers with it.
#[derive(Clone)]
pub struct NetCandidate {
    /// The net.
    pub net: Candidate<dyn Net>,
    /// The collnet.
    pub collnet: Option<Candidate<dyn CollNet>>,
}

/// An answer.
pub struct Plugins<C> {
    /// In the order in which they are to be tried: the list, then what was found without being named, then
    /// built-ins.
    pub candidates: Vec<C>,
    /// The value was `none`: only built-ins are there.
    pub none: bool,
    /// Libraries that the user named and that cannot be used: a line each. They were logged as warnings.
    pub failed: Vec<String>,
}

/// Nets for a communicator: see [`Finder::nets`]. One finder serves the process.
pub fn find_nets(request: &Request<'_>) -> Plugins<NetCandidate> {
    Finder::process().nets(request)
}

/// Tuners: see [`Finder::tuners`].
pub fn find_tuners(request: &Request<'_>) -> Plugins<Candidate<dyn Tuner>> {
    Finder::process().tuners(request)
}

/// Profilers: see [`Finder::profilers`].
pub fn find_profilers(request: &Request<'_>) -> Plugins<Candidate<dyn Profiler>> {
    Finder::process().profilers(request)
}

/// Env plugins: see [`Finder::envs`].
pub fn find_envs(request: &Request<'_>) -> Plugins<Candidate<dyn Env>> {
    Finder::process().envs(request)
}

/// Finds plugins and remembers what it found and what failed.
///
/// Blocking: as long as opening libraries takes. Thread: any, one at a time.
pub struct Finder {
    readers: Readers,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tried: BTreeMap<(Kind, Entry), Result<Arc<Contents>, Refusal>>,
    /// By the address of what they export.
    libraries: BTreeMap<usize, Arc<Contents>>,
    /// The net libraries in the order in which they were found.
    net_libraries: Vec<Arc<Contents>>,
    built_in: Option<Vec<(&'static str, Component)>>,
}

impl Default for Finder {
    fn default() -> Self {
        Self::new()
    }
}

impl Finder {
    /// A finder that knows nothing yet.
    pub fn new() -> Self {
        Self { readers: contents::READERS, state: Mutex::default() }
    }

    /// The one of this process.
    pub fn process() -> &'static Self {
        static FINDER: OnceLock<Finder> = OnceLock::new();
        FINDER.get_or_init(Self::new)
    }

    /// Nets with their collnets.
    pub fn nets(&self, request: &Request<'_>) -> Plugins<NetCandidate> {
        let mut found = self.find(
            Kind::Net,
            request,
            |contents| &contents.nets,
            |net, demanded| {
                net.net.demanded = demanded;
                net.collnet.iter_mut().for_each(|collnet| collnet.demanded = demanded);
            },
        );
        let built_in = self.built_in(request.log);
        for (name, component) in &built_in {
            let Component::Net(net) = component else { continue };
            let collnet = built_in.iter().find_map(|(other, component)| match component {
                Component::CollNet(collnet) if other == name => Some(own(collnet)),
                _ => None,
            });
            found.candidates.push(NetCandidate { net: own(net), collnet });
        }
        found
    }

    /// Tuners; also those in the net libraries that were found before.
    pub fn tuners(&self, request: &Request<'_>) -> Plugins<Candidate<dyn Tuner>> {
        let mut found = self.find(Kind::Tuner, request, |contents| &contents.tuners, demand);
        let built_in = self.built_in(request.log);
        found.candidates.extend(built_in.iter().filter_map(|(_, component)| match component {
            Component::Tuner(tuner) => Some(own(tuner)),
            _ => None,
        }));
        found
    }

    /// Profilers; also those in the net libraries that were found before.
    pub fn profilers(&self, request: &Request<'_>) -> Plugins<Candidate<dyn Profiler>> {
        let mut found = self.find(Kind::Profiler, request, |contents| &contents.profilers, demand);
        let built_in = self.built_in(request.log);
        found.candidates.extend(built_in.iter().filter_map(|(_, component)| match component {
            Component::Profiler(profiler) => Some(own(profiler)),
            _ => None,
        }));
        found
    }

    /// Env plugins.
    pub fn envs(&self, request: &Request<'_>) -> Plugins<Candidate<dyn Env>> {
        let mut found = self.find(Kind::Env, request, |contents| &contents.envs, demand);
        let built_in = self.built_in(request.log);
        found.candidates.extend(built_in.iter().filter_map(|(_, component)| match component {
            Component::Env(env) => Some(own(env)),
            _ => None,
        }));
        found
    }

    /// The contents of all libraries of a kind.
    fn find<C: Clone>(
        &self,
        kind: Kind,
        request: &Request<'_>,
        part: impl Fn(&Contents) -> &Vec<C>,
        demand: impl Fn(&mut C, bool),
    ) -> Plugins<C> {
        let mut found = Plugins { candidates: Vec::new(), none: false, failed: Vec::new() };
        let (entries, demanded) = match wanted(kind, request.value) {
            Wanted::None => {
                found.none = true;
                return found;
            }
            Wanted::Default(entry) => (vec![entry], false),
            Wanted::List(entries) => (entries, true),
        };
        let mut state = self.lock();
        let mut taken: Vec<Arc<Contents>> = Vec::new();
        for entry in entries {
            match self.library(&mut state, kind, &entry, demanded, request) {
                Ok(contents) if taken.iter().any(|other| Arc::ptr_eq(other, &contents)) => {}
                Ok(contents) => {
                    let mut plugins = part(&contents).clone();
                    plugins.iter_mut().for_each(|plugin| demand(plugin, demanded));
                    found.candidates.append(&mut plugins);
                    taken.push(contents);
                }
                Err(refusal) if demanded => found.failed.push(refusal.text),
                Err(_) => {}
            }
        }
        let falls_back = found.candidates.is_empty() && matches!(kind, Kind::Tuner | Kind::Profiler);
        for contents in state.net_libraries.iter().filter(|_| falls_back) {
            found.candidates.extend(part(contents).iter().cloned());
        }
        found
    }

    /// The library of an entry, opened now or before.
    fn library(
        &self,
        state: &mut State,
        kind: Kind,
        entry: &Entry,
        demanded: bool,
        request: &Request<'_>,
    ) -> Result<Arc<Contents>, Refusal> {
        let key = (kind, entry.clone());
        if let Some(known) = state.tried.get(&key) {
            return known.clone();
        }
        let outcome = self.open(state, kind, entry, request);
        tell(kind, entry, demanded, &outcome, request.log);
        if let (Kind::Net, Ok(contents)) = (kind, &outcome)
            && !state.net_libraries.iter().any(|other| Arc::ptr_eq(other, contents))
        {
            state.net_libraries.push(contents.clone());
        }
        state.tried.insert(key, outcome.clone());
        outcome
    }

    fn open(
        &self,
        state: &mut State,
        kind: Kind,
        entry: &Entry,
        request: &Request<'_>,
    ) -> Result<Arc<Contents>, Refusal> {
        let library = open::open(kind, entry, request)?;
        let Some(address) = contents::identity(&library) else {
            return Err(Refusal::other(format!(
                "{} is no plugin: it has no symbol of a {} plugin, neither Hawser's nor one of NCCL's that is supported",
                library.path().display(),
                kind.word()
            )));
        };
        let contents = state
            .libraries
            .entry(address)
            .or_insert_with(|| Arc::new(Contents::read(&library, &self.readers, request.log)));
        if contents.has(kind) {
            return Ok(contents.clone());
        }
        Err(Refusal::other(format!(
            "{} holds no usable {} plugin: {contents}",
            contents.path.display(),
            kind.word()
        )))
    }

    /// The built-in plugins, each made once.
    fn built_in(&self, log: &Log) -> Vec<(&'static str, Component)> {
        let mut state = self.lock();
        let made = state.built_in.get_or_insert_with(|| {
            let make = |plugin: &hawser_plugin::BuiltIn| match catch_unwind(AssertUnwindSafe(plugin.make)) {
                Ok(component) => Some((plugin.name, component)),
                Err(_) => {
                    log.warn(format!(
                        "built-in plugin {} panicked and is left out: a bug, report it",
                        plugin.name
                    ));
                    None
                }
            };
            built_in().into_iter().filter_map(make).collect()
        });
        made.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn demand<T: ?Sized>(candidate: &mut Candidate<T>, demanded: bool) {
    candidate.demanded = demanded;
}

fn own<T: ?Sized>(plugin: &Arc<T>) -> Candidate<T> {
    Candidate {
        plugin: plugin.clone(),
        origin: Origin::BuiltIn,
        interface: "built in".to_owned(),
        demanded: false,
    }
}

/// One line per library: a warning only if the user named it.
fn tell(kind: Kind, entry: &Entry, demanded: bool, outcome: &Result<Arc<Contents>, Refusal>, log: &Log) {
    let word = kind.word();
    match outcome {
        Ok(contents) => {
            log.info(
                kind.subsys(),
                format!("{word} plugin {entry}: {}: {contents}", contents.path.display()),
            );
        }
        Err(refusal) if demanded => {
            log.warn(format!(
                "{word} plugin {entry} (of {}) cannot be used: {}",
                kind.variable(),
                refusal.text
            ));
        }
        Err(refusal) if refusal.missing => {
            log.info(kind.subsys(), format!("no external {word} plugin: {entry} is nowhere"));
        }
        Err(refusal) => {
            log.info(kind.subsys(), format!("{word} plugin {entry} is left out: {}", refusal.text))
        }
    }
}
