//! The state machines of both ends, as the driver of a connection sees them.

use crate::proto::rails::{Fault, Rails};
use crate::proto::rx::Rx;
use crate::proto::tx::Tx;
use crate::proto::wire::Message;
use crate::proto::{Epoch, Path, Time};

/// A state machine as the driver sees it.
pub(crate) trait Machine {
    fn rails(&mut self) -> &mut Rails;
    fn arrived(&mut self, rail: u8, epoch: Epoch, imm: u32, bytes: u64, now: Time);
    fn completed(&mut self, rail: u8, epoch: Epoch, wr: u64, now: Time);
    fn fenced(&mut self, rail: u8, epoch: Epoch, now: Time);
    fn message(&mut self, path: Path, message: Message, now: Time);
    fn tick(&mut self, now: Time);
    /// The host waits for something.
    fn is_busy(&self) -> bool;
    /// The message that the peer must hear before this end goes.
    fn last_words(&self) -> Option<Message>;
    fn has_peer_left(&self) -> bool;
}

macro_rules! machine {
    ($type:ty, $arrived:expr, $words:expr) => {
        impl Machine for $type {
            fn rails(&mut self) -> &mut Rails {
                &mut self.rails
            }
            fn arrived(&mut self, rail: u8, epoch: Epoch, imm: u32, bytes: u64, now: Time) {
                $arrived(self, rail, epoch, imm, bytes, now);
            }
            fn completed(&mut self, rail: u8, epoch: Epoch, wr: u64, now: Time) {
                self.completed(rail, epoch, wr, now);
            }
            fn fenced(&mut self, rail: u8, epoch: Epoch, now: Time) {
                self.fenced(rail, epoch, now);
            }
            fn message(&mut self, path: Path, message: Message, now: Time) {
                self.message(path, message, now);
            }
            fn tick(&mut self, now: Time) {
                self.tick(now);
            }
            fn is_busy(&self) -> bool {
                self.open() > 0 || self.opening
            }
            fn last_words(&self) -> Option<Message> {
                $words(self)
            }
            fn has_peer_left(&self) -> bool {
                self.left
            }
        }
    };
}

machine!(
    Tx,
    |tx: &mut Tx, _, _, _, _, _| {
        tx.rails.fault.get_or_insert(Fault::Protocol("the receiver wrote data"));
    },
    |_: &Tx| None
);
machine!(Rx, Rx::arrived, |rx: &Rx| Some(rx.last_words()));
