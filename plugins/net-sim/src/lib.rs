//! Net plugin of the twin: a made-up network between the ranks of one process, with latency, bandwidth and
//! faults that follow from a seed (`NCCL_NET=Sim`, `HAWSER_NET_SIM`; the keys stand in the README).
//!
//! It is as awkward as the contract allows, and notes where a host breaks its side ([`take_violations`]).
//!
//! ```
//! use hawser_net_sim::{Conditions, SimNet};
//! use hawser_plugin::{Log, Net, net::NetConfig};
//!
//! let net = SimNet::with(Conditions { seed: 7, stalls: 5, ..Conditions::default() });
//! let context = net.open(&NetConfig::new(1, Log::silent()))?;
//! assert_eq!(context.devices()?, 2);
//! # Ok::<(), hawser_plugin::Error>(())
//! ```

mod conditions;
mod endpoint;
mod link;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hawser_plugin::net::{Net, NetConfig, NetContext};
use hawser_plugin::{BuiltIn, Component, Error, ErrorKind, Result, inventory, settings};

pub use conditions::{Conditions, Draws};

/// The time since some moment, as a function.
pub type Clock = fn() -> Duration;

// Behind all others: nobody gets it who does not ask for it.
inventory::submit! {
    BuiltIn { name: "sim", priority: 1_000, make: || Component::Net(Arc::new(SimNet { own: None })) }
}

/// Conditions, and how many draws have been made under them.
#[derive(Clone)]
struct Fabric {
    conditions: Arc<Conditions>,
    parts: Arc<AtomicU64>,
    clock: Clock,
}

impl Fabric {
    fn new(conditions: Conditions, clock: Clock) -> Self {
        Self { conditions: Arc::new(conditions), parts: Arc::default(), clock }
    }
}

/// The plugin that the module describes.
pub struct SimNet {
    own: Option<Fabric>,
}

impl SimNet {
    /// A net with conditions of its own.
    pub fn with(conditions: Conditions) -> Self {
        Self { own: Some(Fabric::new(conditions, monotonic)) }
    }
}

/// The conditions of the built-in net for the communicators that open it from now on.
static CURRENT: Mutex<Option<Fabric>> = Mutex::new(None);

/// Sets the conditions of the net that is among the plugins, for communicators that open it from now on, and
/// the clock that it goes by.
pub fn set_conditions(conditions: Conditions, clock: Option<Clock>) {
    *lock(&CURRENT) = Some(Fabric::new(conditions, clock.unwrap_or(monotonic)));
}

fn current() -> Result<Fabric> {
    let mut current = lock(&CURRENT);
    if let Some(fabric) = &*current {
        return Ok(fabric.clone());
    }
    let Some(text) = settings::setting("HAWSER_NET_SIM") else {
        let text = "the simulated net is used only where HAWSER_NET_SIM or the program says its conditions";
        return Err(Error::new(ErrorKind::InvalidUsage, text));
    };
    let conditions = Conditions::parse(&text.to_string_lossy())?;
    Ok(current.insert(Fabric::new(conditions, monotonic)).clone())
}

fn monotonic() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}

impl Net for SimNet {
    fn name(&self) -> &str {
        "Sim"
    }

    fn open(&self, _config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let Fabric { conditions, parts, clock } = self.own.clone().map_or_else(current, Ok)?;
        Ok(Box::new(endpoint::Context::new(conditions, parts, clock)))
    }
}

/// The places where hosts broke the contract so far.
static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The places where a host of this process broke its side of the contract since the last call.
pub fn take_violations() -> Vec<String> {
    std::mem::take(&mut lock(&VIOLATIONS))
}

/// Notes that the host broke the contract.
fn violated(text: String) -> Error {
    lock(&VIOLATIONS).push(text.clone());
    Error::internal(format!("the host broke the contract of nets: {text}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    mod calm {
        hawser_plugin_testkit::net_suite!(std::sync::Arc::new(super::SimNet::with(Default::default())));
    }

    /// Everything but deaths.
    mod rough {
        fn net() -> super::SimNet {
            let text = "seed=3,latency_us=50,jitter_us=200,mbytes=2000,not_now=40,stalls=10,stall_us=1000";
            super::SimNet::with(super::Conditions::parse(text).unwrap())
        }

        hawser_plugin_testkit::net_suite!(std::sync::Arc::new(net()));
    }
}
