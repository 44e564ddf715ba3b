//! The contents of a library: which plugins it holds.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use hawser_plugin::abi::{self, LoadErrorKind, Manifest};
use hawser_plugin::{CollNet, Component, Env, Level, Log, Net, Profiler, Subsys, Tuner};

use super::{Candidate, Kind, NetCandidate, Origin};
use crate::Found;
use crate::library::Library;

/// Reads one of NCCL's tables; None if the library has none of this kind.
type Reader<T> = fn(&Arc<Library>) -> Option<Result<Found<T>, String>>;

/// The function that reads NCCL's tables of a kind.
pub struct Readers {
    pub net: Reader<dyn Net>,
    pub collnet: Reader<dyn CollNet>,
    pub tuner: Reader<dyn Tuner>,
    pub profiler: Reader<dyn Profiler>,
    pub env: Reader<dyn Env>,
}

/// The adapters of this crate.
pub const READERS: Readers = Readers {
    net: crate::net::from_library,
    collnet: crate::collnet::from_library,
    tuner: crate::tuner::from_library,
    profiler: crate::profiler::from_library,
    env: crate::env::from_library,
};

/// Versions of NCCL's tables that a library may hold, newest first: prefix of the symbol and its versions.
const TABLES: [(&str, std::ops::RangeInclusive<u32>); 7] = [
    ("ncclNetPlugin_v", 1..=20),
    ("ncclCollNetPlugin_v", 1..=20),
    ("ncclTunerPlugin_v", 1..=16),
    ("ncclProfiler_v", 1..=16),
    ("ncclEnvPlugin_v", 1..=8),
    ("ncclGinPlugin_v", 11..=20),
    ("ncclRmaPlugin_v", 13..=20),
];

/// A library that is open for good, and its plugins.
pub struct Contents {
    /// The file; `STATIC_PLUGIN` for the program.
    pub path: PathBuf,
    pub nets: Vec<NetCandidate>,
    pub tuners: Vec<Candidate<dyn Tuner>>,
    pub profilers: Vec<Candidate<dyn Profiler>>,
    pub envs: Vec<Candidate<dyn Env>>,
    /// The tables that were found and are not used, and why.
    unused: Vec<String>,
}

/// The address of something that the library exports as a plugin: equal for two handles of one library.
pub fn identity(library: &Library) -> Option<usize> {
    let table = |symbol: String| library.data(&symbol);
    let header = library.data(abi::SYMBOL);
    header.or_else(|| symbols().find_map(table)).map(|address| address as usize)
}

/// All names of tables.
fn symbols() -> impl Iterator<Item = String> {
    TABLES
        .into_iter()
        .flat_map(|(prefix, versions)| versions.rev().map(move |version| format!("{prefix}{version}")))
}

impl Contents {
    /// Reads a library and keeps it open for good. Rust plugins come first; NCCL's tables are read for the
    /// kinds that those leave out.
    pub fn read(library: &Arc<Library>, readers: &Readers, log: &Log) -> Self {
        std::mem::forget(library.clone());
        let path = file(library).unwrap_or_else(|| library.path().to_owned());
        let mut contents = Self {
            path,
            nets: Vec::new(),
            tuners: Vec::new(),
            profilers: Vec::new(),
            envs: Vec::new(),
            unused: Vec::new(),
        };
        if let Some(header) = library.data(abi::SYMBOL) {
            contents.read_rust(header, log);
        }
        contents.read_tables(library, readers);
        contents.note_unsupported(library);
        contents
    }

    /// True if it holds plugins of a kind.
    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Net => !self.nets.is_empty(),
            Kind::Tuner => !self.tuners.is_empty(),
            Kind::Profiler => !self.profilers.is_empty(),
            Kind::Env => !self.envs.is_empty(),
        }
    }

    fn read_rust(&mut self, header: *const c_void, log: &Log) {
        let Some(header) = NonNull::new(header.cast_mut()) else { return };
        let label = self.path.display().to_string();
        // SAFETY: the address is that of the symbol, and the library stays open for good.
        match unsafe { abi::from_symbol(header, &label) } {
            Ok(manifest) => self.sort(manifest),
            // The program uses abi_stable for something else.
            Err(error) if error.kind == LoadErrorKind::NotAPlugin => {}
            Err(error) => {
                log.line(Level::Trace, Subsys::INIT, &error.detail);
                self.unused.push(error.text);
            }
        }
    }

    /// Takes the components of a Rust plugin. The first collnet belongs to the net of its name, else to the
    /// first.
    fn sort(&mut self, manifest: Manifest) {
        let origin = Origin::Library(self.path.clone());
        let interface = format!("Rust {}", manifest.interface);
        let mut collnets = Vec::new();
        for component in manifest.components {
            let (origin, interface) = (origin.clone(), interface.clone());
            match component {
                Component::Net(plugin) => {
                    let net = Candidate { plugin, origin, interface, demanded: false };
                    self.nets.push(NetCandidate { net, collnet: None });
                }
                Component::CollNet(plugin) => {
                    collnets.push(Candidate { plugin, origin, interface, demanded: false });
                }
                Component::Tuner(plugin) => {
                    self.tuners.push(Candidate { plugin, origin, interface, demanded: false });
                }
                Component::Profiler(plugin) => {
                    self.profilers.push(Candidate { plugin, origin, interface, demanded: false });
                }
                Component::Env(plugin) => {
                    self.envs.push(Candidate { plugin, origin, interface, demanded: false });
                }
                _ => self.unused.push("a component of a kind that is not supported".to_owned()),
            }
        }
        if manifest.unknown > 0 {
            self.unused.push(format!("{} components of kinds that are not known here", manifest.unknown));
        }
        collnets.into_iter().for_each(|collnet| self.pair(collnet));
    }

    fn pair(&mut self, collnet: Candidate<dyn CollNet>) {
        let name = collnet.plugin.name().to_owned();
        let free = |net: &NetCandidate| net.collnet.is_none();
        let named =
            self.nets.iter().position(|net| free(net) && net.net.plugin.name().eq_ignore_ascii_case(&name));
        match named.or_else(|| self.nets.iter().position(free)) {
            Some(at) => self.nets[at].collnet = Some(collnet),
            None => self.unused.push(format!("collnet {name} by {} has no net", collnet.interface)),
        }
    }

    fn read_tables(&mut self, library: &Arc<Library>, readers: &Readers) {
        if self.nets.is_empty() {
            let net = self.table(library, readers.net);
            self.nets.extend(net.map(|net| NetCandidate { net, collnet: None }));
        }
        if self.nets.iter().all(|net| net.collnet.is_none()) {
            let collnet = self.table(library, readers.collnet);
            collnet.into_iter().for_each(|collnet| self.pair(collnet));
        }
        if self.tuners.is_empty() {
            let tuner = self.table(library, readers.tuner);
            self.tuners.extend(tuner);
        }
        if self.profilers.is_empty() {
            let profiler = self.table(library, readers.profiler);
            self.profilers.extend(profiler);
        }
        if self.envs.is_empty() {
            let env = self.table(library, readers.env);
            self.envs.extend(env);
        }
    }

    fn table<T: ?Sized>(&mut self, library: &Arc<Library>, reader: Reader<T>) -> Option<Candidate<T>> {
        let origin = Origin::Library(self.path.clone());
        match reader(library)? {
            Ok(Found { symbol, plugin }) => {
                Some(Candidate { plugin, origin, interface: symbol.to_owned(), demanded: false })
            }
            Err(why) => {
                self.unused.push(why);
                None
            }
        }
    }

    /// Kinds that are not supported at all, and tables that are too old or too new.
    fn note_unsupported(&mut self, library: &Library) {
        let read =
            [self.has(Kind::Net), true, self.has(Kind::Tuner), self.has(Kind::Profiler), self.has(Kind::Env)];
        for (at, (prefix, versions)) in TABLES.into_iter().enumerate() {
            if read.get(at) == Some(&true) {
                continue;
            }
            let here = |version: &u32| library.data(&format!("{prefix}{version}")).is_some();
            let found: Vec<String> = versions.rev().filter(here).map(|version| version.to_string()).collect();
            let known = self.unused.iter().any(|why| why.contains(prefix));
            if !found.is_empty() && !known {
                self.unused.push(format!("{prefix}{} is not supported", found.join(", _v")));
            }
        }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for NetCandidate { net, collnet } in &self.nets {
            parts.push(format!("net {} by {}", net.plugin.name(), net.interface));
            let collnet = collnet.as_ref();
            parts.extend(collnet.map(|c| format!("collnet {} by {}", c.plugin.name(), c.interface)));
        }
        parts.extend(self.tuners.iter().map(|t| format!("tuner {} by {}", t.plugin.name(), t.interface)));
        parts.extend(
            self.profilers.iter().map(|p| format!("profiler {} by {}", p.plugin.name(), p.interface)),
        );
        parts.extend(self.envs.iter().map(|e| format!("env {} by {}", e.plugin.name(), e.interface)));
        parts.extend(self.unused.iter().map(|why| format!("not used: {why}")));
        f.write_str(&parts.join("; "))
    }
}

/// The file that holds what the library exports. None for the program.
fn file(library: &Library) -> Option<PathBuf> {
    if library.path().as_os_str() == "STATIC_PLUGIN" {
        return None;
    }
    let address = identity(library)? as *const c_void;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr takes any address and fills the structure if it returns non-zero.
    let info = unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }?;
    // SAFETY: a terminated string of the dynamic loader, alive while the library is open.
    let name = (!info.dli_fname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_fname) })?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}
