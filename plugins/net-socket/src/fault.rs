//! Cuts live sockets, as a failing network would: for tests of this crate and others.

use std::sync::{Mutex, MutexGuard, Weak};

use crate::pool::lock;

/// A connection whose sockets can be cut: 0 is the control connection, then the data sockets.
pub(crate) trait Cut: Send + Sync {
    fn cut(&self, socket: usize) -> bool;
}

static ALL: Mutex<Vec<Weak<dyn Cut>>> = Mutex::new(Vec::new());

/// Lets tests cut the sockets of this connection.
pub(crate) fn register(connection: Weak<dyn Cut>) {
    alive().push(connection);
}

/// The connections that there are: one that a thread still held when the next was made may have gone since.
fn alive() -> MutexGuard<'static, Vec<Weak<dyn Cut>>> {
    let mut all = lock(&ALL);
    all.retain(|one| one.strong_count() > 0);
    all
}

/// Number of connections of this process, both ends counted, whose sockets can be cut.
#[doc(hidden)]
pub fn connections() -> usize {
    alive().len()
}

/// Shuts down a socket: number 0 of a connection carries control, the others data. False if it is not there
/// (now).
#[doc(hidden)]
pub fn cut(connection: usize, socket: usize) -> bool {
    let found = alive().get(connection).and_then(Weak::upgrade);
    found.is_some_and(|connection| connection.cut(socket))
}
