//! Windows: memory that others put into.

use crate::transport::net::Area;

/// A registered window of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub bytes: u64,
    /// All ranks use the same offsets in it (`NCCL_WIN_COLL_SYMMETRIC`), so that collectives and puts of the
    /// host may use it. Kernels of the user may use every window.
    pub is_symmetric: bool,
}

impl Window {
    /// Its memory, as the net knows it.
    pub fn area(&self) -> Area {
        Area { addr: self.addr, bytes: self.bytes }
    }

    /// True if these bytes lie in it.
    pub fn holds(&self, addr: u64, bytes: u64) -> bool {
        let at = addr.checked_sub(self.addr);
        at.is_some_and(|at| at < self.bytes && bytes <= self.bytes - at)
    }
}
