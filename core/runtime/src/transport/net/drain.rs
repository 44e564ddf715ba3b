//! The parting of ranks: one that leaves says how many slots it has sent over which lanes, and stays until
//! they have come. Plugins exist whose receivers lose what is on its way when the sender closes the
//! connection.
//!
//! It says too how many slots it has posted receives for, and posts no more; so does its peer when it thanks,
//! since it posted ahead. Both senders send as many empty messages as it takes until no receive is left:
//! plugins exist whose connections cannot be closed with receives in flight, NCCL having none.

use rustc_hash::{FxHashMap, FxHashSet};

use super::end::ConnectionKey;
use crate::record;

/// A link in a goodbye or thanks: its lane, whether it sends, and its slots.
type Entry = (u32, bool, u64);

/// The knowledge of a rank about those that leave.
#[derive(Default)]
pub struct Drain {
    /// Ranks that said goodbye.
    parted: FxHashSet<u32>,
    /// The slots by lane that ranks which said goodbye have sent, until all have come.
    sent: FxHashMap<u32, FxHashMap<u32, u64>>,
    /// Ranks to which all that this rank sent has come.
    thanked: FxHashSet<u32>,
    /// This rank leaves.
    pub is_leaving: bool,
}

/// A goodbye or thanks to a rank: slots that were sent over the links to it, and posted at those from it.
pub fn tell(links: impl Iterator<Item = (ConnectionKey, u64)>) -> Vec<u8> {
    record::encode(&links.map(|(key, slots)| (key.lane, key.send, slots)).collect::<Vec<Entry>>())
}

/// The numbers that rank `peer` told, by this rank's links: of slots that come over those from it, and of
/// receives that those to it have to fill. What does not parse counts as nothing.
pub fn told(peer: u32, bytes: &[u8]) -> impl Iterator<Item = (ConnectionKey, u64)> {
    let entries: Vec<Entry> = record::decode(bytes).unwrap_or_default();
    entries.into_iter().map(move |(lane, sends, slots)| (ConnectionKey { lane, peer, send: !sends }, slots))
}

impl Drain {
    /// A goodbye has come.
    pub fn hear(&mut self, peer: u32, goodbye: &[u8]) {
        let sent = told(peer, goodbye).filter(|(key, _)| !key.send);
        self.parted.insert(peer);
        self.sent.insert(peer, sent.map(|(key, slots)| (key.lane, slots)).collect());
    }

    /// All that this rank sent to `peer` has come.
    pub fn thank(&mut self, peer: u32) {
        self.thanked.insert(peer);
    }

    /// True if `peer` said goodbye.
    pub fn has_parted(&self, peer: u32) -> bool {
        self.parted.contains(&peer)
    }

    /// True if `peer` needs this rank no more. One that leaves has got all that it waited for.
    pub fn is_content(&self, peer: u32) -> bool {
        self.parted.contains(&peer) || self.thanked.contains(&peer)
    }

    /// True if this rank has to look at what others say more often.
    pub fn is_going_on(&self) -> bool {
        self.is_leaving || !self.sent.is_empty()
    }

    /// True if the peer has left and sent more than the `come` slots.
    pub fn is_short(&self, key: ConnectionKey, come: u64) -> bool {
        let sent = self.sent.get(&key.peer).and_then(|lanes| lanes.get(&key.lane));
        !key.send && sent.is_some_and(|sent| *sent > come)
    }

    /// The ranks that have left and whose slots have all come: each once. `come` says how many have.
    pub fn complete(&mut self, come: impl Fn(ConnectionKey) -> u64) -> Vec<u32> {
        let all = |peer: u32, lanes: &FxHashMap<u32, u64>| {
            lanes.iter().all(|(lane, sent)| come(ConnectionKey { lane: *lane, peer, send: false }) >= *sent)
        };
        self.sent.extract_if(|peer, lanes| all(*peer, lanes)).map(|(peer, _)| peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_thanked_once_when_all_its_slots_have_come() {
        let key = |lane| ConnectionKey { lane, peer: 3, send: false };
        let mut drain = Drain::default();
        assert!(!drain.is_content(3) && !drain.is_going_on());
        let theirs = |lane, send| ConnectionKey { lane, peer: 9, send };
        let text =
            tell([(theirs(0, true), 5), (theirs(7, true), 1 << 40), (theirs(4, false), 8)].into_iter());
        let heard: Vec<_> = told(3, &text).collect();
        assert_eq!(heard, [(key(0), 5), (key(7), 1 << 40), (ConnectionKey { send: true, ..key(4) }, 8)]);
        drain.hear(3, &text);
        assert!(drain.has_parted(3) && drain.is_content(3) && drain.is_going_on());
        assert!(drain.is_short(key(0), 4) && !drain.is_short(key(0), 5));
        assert!(!drain.is_short(ConnectionKey { send: true, ..key(0) }, 0) && !drain.is_short(key(1), 0));
        assert!(drain.complete(|key| if key.lane == 0 { 5 } else { 9 }).is_empty());
        assert_eq!(drain.complete(|_| 1 << 40), [3]);
        assert!(drain.complete(|_| u64::MAX).is_empty() && !drain.is_going_on());
        assert!(!drain.is_short(key(7), 0));
    }

    #[test]
    fn any_goodbye_is_one() {
        for text in [&b""[..], b"short", &[0xff; 33]] {
            let mut drain = Drain::default();
            drain.hear(1, text);
            assert!(drain.has_parted(1));
        }
    }
}
