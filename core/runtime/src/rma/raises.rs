//! The signals that a rank raises at others: how often so far, and by which way.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Signal;
use super::message::Header;
use super::words::{SignalWord, SignalWords};

/// The way by which ranks that share words raise signals; later ones replace earlier ones for good.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manner {
    /// Streams write numbers that are known when the operation is called, and wait for such.
    #[default]
    Written,
    /// Words are counted up by the host when streams come to it: replays of graphs know no number.
    Counted,
    /// Everything goes by the thread of the communicator, in the order of its messages: some window is not
    /// mapped by all ranks of the team.
    Told,
}

/// The signals that this rank has raised.
#[derive(Default)]
pub struct Raises {
    /// By rank and signal: the raises so far, but for those of replayed graphs.
    made: FxHashMap<(u32, Signal), u32>,
    /// The rank itself and the words of its team, once they are shared.
    words: Option<(u32, Arc<SignalWords>)>,
    manner: Manner,
}

/// A raise that is to be carried out.
pub enum Raise {
    /// By this message.
    Tell(Header),
    /// By counting the word of the peer up.
    Count(SignalWord),
    /// By writing this number into the word of the peer.
    Write(SignalWord, u32),
}

impl Raises {
    /// From now on signals of ranks of the team are raised in their words, which begin with what was raised
    /// before.
    pub fn share(&mut self, rank: u32, words: Arc<SignalWords>) {
        for ((peer, signal), made) in &self.made {
            if let Some(word) = words.word(*peer, rank, *signal) {
                word.store(*made);
            }
        }
        self.words = Some((rank, words));
    }

    /// The words, if they are shared.
    pub fn words(&self) -> Option<Arc<SignalWords>> {
        self.words.as_ref().map(|(_, words)| words.clone())
    }

    /// From now on signals are raised in this manner, or a later one.
    pub fn change(&mut self, manner: Manner) {
        self.manner = self.manner.max(manner);
    }

    /// The manner for a rank; None where its words are not shared.
    pub fn manner(&self, peer: u32) -> Option<Manner> {
        self.words.as_ref().filter(|(_, words)| words.covers(peer)).map(|_| self.manner)
    }

    /// Raises a signal at the moment of the call, in the order of messages to ranks of other processes.
    pub fn now(&mut self, peer: u32, signal: Signal, is_elsewhere: bool) -> Raise {
        self.count(peer, signal);
        match self.word(peer, signal) {
            None => Raise::Tell(Header::Raise(signal)),
            Some(_) if is_elsewhere && self.manner == Manner::Told => Raise::Tell(Header::Count(signal)),
            Some(word) => Raise::Count(word),
        }
    }

    /// Raises a signal when a stream comes to it. None where the thread of the communicator has to.
    pub fn on_stream(&mut self, peer: u32, signal: Signal) -> Option<Raise> {
        let word = self.word(peer, signal)?;
        match self.manner {
            Manner::Written => Some(Raise::Write(word, self.count(peer, signal))),
            Manner::Counted => Some(Raise::Count(word)),
            Manner::Told => None,
        }
    }

    fn count(&mut self, peer: u32, signal: Signal) -> u32 {
        let made = self.made.entry((peer, signal)).or_default();
        *made = made.wrapping_add(1);
        *made
    }

    fn word(&self, peer: u32, signal: Signal) -> Option<SignalWord> {
        let (rank, words) = self.words.as_ref()?;
        words.word(peer, *rank, signal)
    }
}

#[cfg(test)]
mod tests {
    use hawser_device::host::HostDevice;
    use hawser_device::{HeapKind, SharedMemory};

    use super::super::Limits;
    use super::*;

    #[test]
    fn numbers_go_on_whatever_way_a_raise_takes() {
        let (device, limits) = (HostDevice::beside().unwrap(), Limits { signals: 1, contexts: 1 });
        let signal = Signal { index: 0, context: 0 };
        let mut raises = Raises::default();
        assert!(raises.on_stream(1, signal).is_none() && raises.manner(1).is_none());
        assert!(matches!(raises.now(1, signal, true), Raise::Tell(Header::Raise(_))));
        let memory = (0..2).map(|_| device.alloc_heap(64, HeapKind::Host).unwrap()).collect();
        let words = Arc::new(SignalWords::new(&device, 0, limits, memory).unwrap());
        raises.share(0, words.clone());
        let word = words.word(1, 0, signal).unwrap();
        assert_eq!(word.load(), 1, "what was told before");
        match raises.on_stream(1, signal) {
            Some(Raise::Write(word, number)) => word.store(number),
            _ => panic!("a stream writes"),
        }
        match raises.now(1, signal, true) {
            Raise::Count(word) => word.count(),
            _ => panic!("the host counts"),
        }
        assert_eq!(word.load(), 3);
        assert!(matches!(raises.on_stream(1, signal), Some(Raise::Write(_, 4))));
        raises.change(Manner::Counted);
        assert!(matches!(raises.on_stream(1, signal), Some(Raise::Count(_))));
        raises.change(Manner::Told);
        raises.change(Manner::Counted);
        assert_eq!((raises.manner(1), raises.manner(2)), (Some(Manner::Told), None));
        assert!(raises.on_stream(1, signal).is_none());
        assert!(matches!(raises.now(1, signal, true), Raise::Tell(Header::Count(_))));
        assert!(matches!(raises.now(1, signal, false), Raise::Count(_)), "nothing is told in a process");
    }
}
