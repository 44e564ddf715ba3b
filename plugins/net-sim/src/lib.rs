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
//!
//! A program that runs several simulated hosts says by [`set_place`] on which of them a thread is. It can
//! then end the process of a host, the host, or a switch between hosts ([`end`], [`cut`]).

mod conditions;
mod endpoint;
mod link;
mod places;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hawser_plugin::net::{Net, NetConfig, NetContext};
use hawser_plugin::{BuiltIn, Component, Error, ErrorKind, Result, inventory, settings};

pub use conditions::{Conditions, Draws};
use places::Places;
pub use places::{Cut, Fate, Place};

/// The time since some moment, as a function.
pub type Clock = fn() -> Duration;

// Behind all others: nobody gets it who does not ask for it.
inventory::submit! {
    BuiltIn { name: "sim", priority: 1_000, make: || Component::Net(Arc::new(SimNet { own: None })) }
}

/// Conditions, and how many draws have been made under them.
#[derive(Clone)]
pub(crate) struct Fabric {
    pub conditions: Arc<Conditions>,
    pub parts: Arc<AtomicU64>,
    pub clock: Clock,
    pub places: Arc<Places>,
}

impl Fabric {
    fn new(conditions: Conditions, clock: Clock) -> Self {
        Self { conditions: Arc::new(conditions), parts: Arc::default(), clock, places: Arc::default() }
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

/// Sets the function that says at which place the calling thread is, for communicators that open the net from
/// now on. Without it all are at place 0.
pub fn set_place(place: fn() -> Place) {
    *lock(&PLACE) = Some(place);
}

static PLACE: Mutex<Option<fn() -> Place>> = Mutex::new(None);

/// Ends all that is at some places of the built-in net.
pub fn end(places: &[Place], fate: Fate) {
    if let Some(fabric) = &*lock(&CURRENT) {
        fabric.places.end(places, fate);
    }
}

/// Ends the connections of the built-in net between one set of places and another one.
pub fn cut(sides: [&[Place]; 2], cut: Cut) {
    if let Some(fabric) = &*lock(&CURRENT) {
        fabric.places.cut(sides, cut);
    }
}

/// Calls from places that have come to their end fail from now on: who made them may clean up.
pub fn let_go() {
    if let Some(fabric) = &*lock(&CURRENT) {
        fabric.places.let_go();
    }
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
        let fabric = self.own.clone().map_or_else(current, Ok)?;
        let place = lock(&PLACE).map_or(0, |place| place());
        Ok(Box::new(endpoint::Context::new(fabric, place)))
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
    use hawser_plugin::net::*;

    /// Both ends of a connection between two places.
    fn connection(net: &SimNet, places: [Place; 2]) -> (Box<dyn Sender>, Box<dyn Receiver>) {
        let fabric = net.own.clone().unwrap();
        let [near, far] = places.map(|place| endpoint::Context::new(fabric.clone(), place));
        let (handle, mut listener) = far.listen(0).unwrap();
        let mut connector = near.connect(0, &handle).unwrap();
        let sender = connector.poll().unwrap().unwrap();
        (sender, listener.accept().unwrap().unwrap())
    }

    /// Begins a send of a byte, or says why not.
    fn send(sender: &mut Box<dyn Sender>, byte: &u8) -> Result<Option<Request>> {
        let addr = std::ptr::from_ref(byte) as u64;
        let region = Region { addr, bytes: 1, kind: MemoryKinds::HOST, dmabuf: None };
        // SAFETY: the byte outlives the connection.
        let registration = unsafe { sender.register(&region)? };
        // SAFETY: as above.
        unsafe { sender.isend(&Segment { addr, bytes: 1, tag: 0, registration, profile: 0 }) }
    }

    #[test]
    fn ends_of_places_are_told_or_not() {
        let byte = 7;
        for (fate, cut, is_told) in [
            (Some(Fate::Ended), None, true),
            (Some(Fate::Silent), None, false),
            (None, Some(Cut::Told), true),
            (None, Some(Cut::Silent), false),
        ] {
            let net = SimNet::with(Conditions::default());
            let (mut sender, _receiver) = connection(&net, [1, 2]);
            let (mut other, _other) = connection(&net, [3, 3]);
            assert!(send(&mut sender, &byte).unwrap().is_some());
            let places = &net.own.as_ref().unwrap().places;
            fate.inspect(|fate| places.end(&[2], *fate));
            cut.inspect(|cut| places.cut([&[1], &[2]], *cut));
            assert_eq!(send(&mut sender, &byte).is_err(), is_told, "{fate:?} {cut:?}");
            assert!(send(&mut other, &byte).unwrap().is_some());
        }
    }

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
