//! Requests that a rank has made to its net plugin, and that the plugin has not carried out for a while.

use serde::{Deserialize, Serialize};

use super::journal::now_ms;
use super::operation::seconds;

/// A request that a net plugin has not carried out, as a rank reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The plugin's name.
    pub net: String,
    /// The rank at the other end; `None` where no connection is known.
    pub peer: Option<u32>,
    /// The request.
    pub request: NetRequest,
    /// The number of such requests in hand.
    pub count: u32,
    /// Milliseconds since anything moved on that connection.
    pub age_ms: u64,
}

/// The kinds of requests that a net plugin may leave open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NetRequest {
    /// A connection that this rank makes.
    Connect,
    /// A connection that the other rank makes.
    Accept,
    /// Messages to the other rank.
    Send,
    /// A flush of what was received.
    Flush,
    /// Reductions that the network does.
    Reduce,
    /// A call that has not returned, of whatever kind.
    Call,
    /// None: this rank has no room for more from its peer, which cannot send therefore.
    NoRoom,
}

impl Stall {
    /// The sentence's part behind the name of a rank: "its net IB has ended none of 3 sends to rank 2 for
    /// 12.0 s".
    pub fn text(&self) -> String {
        let Self { net, count, age_ms, .. } = self;
        let age = seconds(*age_ms);
        let peer = self.peer.map_or_else(|| "a rank".into(), |peer| format!("rank {peer}"));
        match self.request {
            NetRequest::Connect => format!("its net {net} has been connecting to {peer} for {age}"),
            NetRequest::Accept => {
                format!("its net {net} has not accepted the connection of {peer} for {age}")
            }
            NetRequest::Send => format!("its net {net} has ended none of {count} sends to {peer} for {age}"),
            NetRequest::Flush => format!("its net {net} has not flushed what came from {peer} for {age}"),
            NetRequest::Reduce => {
                format!("its net has ended none of {count} reductions with {peer} and others for {age}")
            }
            NetRequest::Call => format!("its net {net} has not come back from a call for {age}"),
            NetRequest::NoRoom => format!("it has had no room for what comes from {peer} for {age}"),
        }
    }
}

/// A clock that runs while a connection has a request in hand and nothing moves.
#[derive(Debug, Default)]
pub struct Stopwatch {
    /// The time at which it began to run, in milliseconds of the coarse clock; 0 while it stands.
    since_ms: u64,
}

impl Stopwatch {
    /// Notes a look at the connection: whether something moved, and whether there is a request. Costs a
    /// comparison and a store but for the first look in vain.
    #[inline]
    pub fn note(&mut self, has_moved: bool, has_request: bool) {
        if has_moved {
            self.since_ms = 0;
        } else if self.since_ms == 0 && has_request {
            self.since_ms = now_ms();
        }
    }

    /// The time for which it has been running, in milliseconds; `None` if it stands.
    pub fn age_ms(&self) -> Option<u64> {
        (self.since_ms > 0).then(|| now_ms().saturating_sub(self.since_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_while_nothing_moves_and_something_is_asked_for() {
        let mut watch = Stopwatch::default();
        watch.note(false, false);
        assert_eq!(watch.age_ms(), None);
        watch.note(false, true);
        let age = watch.age_ms();
        watch.note(false, true);
        assert!(age.is_some() && watch.age_ms() >= age);
        watch.note(true, true);
        assert_eq!(watch.age_ms(), None);
    }

    #[test]
    fn every_request_has_a_sentence() {
        let stall = |request| Stall { net: "IB".into(), peer: Some(2), request, count: 3, age_ms: 12_000 };
        let text = stall(NetRequest::Send).text();
        assert_eq!(text, "its net IB has ended none of 3 sends to rank 2 for 12.0 s");
        for request in [NetRequest::Connect, NetRequest::Accept, NetRequest::Flush, NetRequest::Reduce] {
            let text = stall(request).text();
            assert!(text.contains("rank 2") && text.ends_with("for 12.0 s"), "{text}");
        }
        let nobody = Stall { peer: None, ..stall(NetRequest::Call) };
        assert_eq!(nobody.text(), "its net IB has not come back from a call for 12.0 s");
    }
}
