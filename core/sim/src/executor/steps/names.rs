//! The numbers of connections, by who sends to whom on which lane.

use rustc_hash::FxHashMap;

use super::load::Connection;
use crate::executor::Members;

/// Numbers that were given to connections.
pub enum Names {
    /// One by one: by lane, sender and receiver.
    OneByOne(FxHashMap<(u8, u32, u32), u32>),
    /// In rows: where few members stand for all, their programs differ only in the place from which peers are
    /// counted. What one of them has, most have: all connections of one lane and one distance have numbers in
    /// a row. An all-to-all of thousands of ranks has millions of connections but only thousands of
    /// distances, and those that are used at about the same time lie beside each other.
    InRows {
        /// The number of the first connection of a lane and a distance.
        first: FxHashMap<(u8, u32), u32>,
        /// All members.
        all: u32,
        /// Members that act: the length of a row.
        acting: u32,
    },
}

impl Names {
    /// No numbers yet.
    pub fn new(members: Members<'_>) -> Self {
        let (all, acting) = (members.ranks.len() as u32, members.count());
        if acting < all {
            Self::InRows { first: FxHashMap::default(), all, acting }
        } else {
            Self::OneByOne(FxHashMap::default())
        }
    }

    /// The number of a connection: lane, sender, which acts, and receiver. Makes room for it if it is new.
    pub fn number(&mut self, (lane, from, to): (u8, u32, u32), connections: &mut Vec<Connection>) -> u32 {
        let next = connections.len() as u32;
        let mut add = |many: u32| {
            connections.resize(connections.len() + many as usize, Connection::UNUSED);
            next
        };
        match self {
            Self::OneByOne(numbers) => *numbers.entry((lane, from, to)).or_insert_with(|| add(1)),
            Self::InRows { first, all, acting } => {
                let distance = (to + *all - from) % *all;
                from + *first.entry((lane, distance)).or_insert_with(|| add(*acting))
            }
        }
    }
}
