//! Windows: memory that others put into.

use crate::transport::net::Area;

/// A registered window of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub bytes: u64,
    /// All ranks have made it alike (`NCCL_WIN_COLL_SYMMETRIC`), so that others may put into it.
    pub is_symmetric: bool,
}

impl Window {
    /// Its memory, as the net knows it.
    pub fn area(&self) -> Area {
        Area { addr: self.addr, bytes: self.bytes }
    }
}
