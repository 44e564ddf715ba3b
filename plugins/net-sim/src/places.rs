//! Places that the ends of connections are at, such as simulated hosts, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;

/// The number of a place.
pub type Place = u64;

/// The end of all that is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its process has ended: the kernel closes its connections.
    Ended,
    /// It is silent: nothing goes there and nothing comes from there, and nobody is told.
    Silent,
}

/// The end of what joins two sets of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both ends of each connection get an error.
    Told,
    /// Nobody is told.
    Silent,
}

/// The state that all ends at one place share.
#[derive(Debug, Default)]
pub(crate) struct Site {
    state: Mutex<State>,
    /// Its calls fail, once it has come to its end.
    lets_go: AtomicBool,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    fate: Option<Fate>,
    /// The side of the cut that it is at.
    side: Option<(usize, Cut)>,
}

impl Site {
    pub fn fate(&self) -> Option<Fate> {
        lock(&self.state).fate
    }

    /// True if those that are there may clean up.
    pub fn lets_go(&self) -> bool {
        self.lets_go.load(Ordering::Relaxed)
    }

    /// The cut that lies between two sites, if one does.
    pub fn cut_from(&self, other: &Self) -> Option<Cut> {
        let (own, other) = (lock(&self.state).side?, lock(&other.state).side?);
        (own.0 != other.0).then_some(own.1)
    }
}

/// The sites of a network, by place.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<BTreeMap<Place, Arc<Site>>>);

impl Places {
    /// The site of a place.
    pub fn site(&self, place: Place) -> Arc<Site> {
        lock(&self.0).entry(place).or_default().clone()
    }

    pub fn end(&self, places: &[Place], fate: Fate) {
        for place in places {
            lock(&self.site(*place).state).fate = Some(fate);
        }
    }

    pub fn cut(&self, sides: [&[Place]; 2], cut: Cut) {
        for (number, places) in sides.into_iter().enumerate() {
            for place in places {
                lock(&self.site(*place).state).side = Some((number, cut));
            }
        }
    }

    pub fn let_go(&self) {
        lock(&self.0).values().for_each(|site| site.lets_go.store(true, Ordering::Relaxed));
    }
}
