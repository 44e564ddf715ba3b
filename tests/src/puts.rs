//! One-sided transfers that check their own results.

use hawser_runtime::rma::{Awaited, Put, RmaOp, Signal, Window};
use hawser_runtime::{Comm, Error, Result, Stream, group};

/// Lengths of what is put, in bytes: nothing, little, odd, and more than one message.
const BYTES: [usize; 5] = [0, 1, 1_000, 70_001, 2_500_003];

/// The signal that most tests use.
pub const FIRST: Signal = Signal { index: 0, context: 0 };

/// Two windows of a rank, the same on all ranks: what is put comes from one and goes into the other. Each has
/// a part for every rank.
pub struct Windows {
    comm: Comm,
    part: usize,
    from: Vec<u8>,
    into: Vec<u8>,
    first: u64,
}

impl Windows {
    /// Registers windows whose parts have so many bytes, as number `first` and the next.
    ///
    /// # Errors
    /// The library's.
    pub fn new(comm: &Comm, part: usize, first: u64) -> Result<Self> {
        let bytes = part * comm.ranks() as usize + 1;
        let windows = Self { comm: comm.clone(), part, from: vec![0; bytes], into: vec![0xee; bytes], first };
        for (number, memory) in (first..).zip([&windows.from, &windows.into]) {
            let window = Window { addr: memory.as_ptr() as u64, bytes: bytes as u64, is_symmetric: true };
            comm.expose(number, window)?;
        }
        Ok(windows)
    }

    fn byte(from: u32, to: u32, round: usize, at: usize) -> u8 {
        (at * 7 + from as usize * 31 + to as usize * 57 + round * 3) as u8
    }

    /// Puts the first `bytes` bytes of the part of `to` there, and raises a signal.
    ///
    /// # Errors
    /// The library's.
    pub fn put(&mut self, to: u32, bytes: usize, round: usize, signal: Signal) -> Result<()> {
        let (rank, at) = (self.comm.rank(), to as usize * self.part);
        let part = self.from[at..at + bytes].iter_mut().enumerate();
        part.for_each(|(i, byte)| *byte = Self::byte(rank, to, round, i));
        let put = Put {
            from: self.from[at..].as_ptr() as u64,
            bytes: bytes as u64,
            window: self.first + 1,
            offset: u64::from(rank) * self.part as u64,
        };
        self.comm.one_sided(RmaOp::Signal { peer: to, put: Some(put), signal }, Stream(0))
    }

    /// Looks for the first `bytes` bytes that a rank has put.
    ///
    /// # Errors
    /// `Internal`: they are not.
    pub fn check(&self, from: u32, bytes: usize, round: usize) -> Result<()> {
        let (rank, at) = (self.comm.rank(), from as usize * self.part);
        let wrong = (0..bytes).find(|i| self.into[at + i] != Self::byte(from, rank, round, *i));
        match wrong {
            None => Ok(()),
            Some(i) => Err(Error::internal(format!(
                "wrong result: byte {i} of {bytes} that rank {from} put to rank {rank} in round {round}"
            ))),
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.comm.hide(self.first);
        self.comm.hide(self.first + 1);
    }
}

/// Raises a signal at a rank.
///
/// # Errors
/// The library's.
pub fn signal(comm: &Comm, peer: u32, signal: Signal) -> Result<()> {
    comm.one_sided(RmaOp::Signal { peer, put: None, signal }, Stream(0))
}

/// Waits for so many raises of a signal by each of these ranks.
///
/// # Errors
/// The library's.
pub fn wait(comm: &Comm, peers: impl Iterator<Item = u32>, count: u64, signal: Signal) -> Result<()> {
    let awaited = peers.map(|peer| Awaited { peer, signal, count }).collect();
    comm.one_sided(RmaOp::Wait(awaited), Stream(0))
}

/// Every rank puts to every rank, several times: alone and in groups, also in one group with the wait.
///
/// # Errors
/// The library's; `Internal` if a result is wrong.
pub fn run_all(comm: &Comm) -> Result<()> {
    let most = BYTES.into_iter().max().unwrap_or(0);
    let mut windows = Windows::new(comm, most, 0)?;
    BYTES.into_iter().enumerate().try_for_each(|(round, bytes)| exchange(comm, &mut windows, bytes, round))
}

/// Puts of little and of much until one fails.
///
/// # Errors
/// The first failure.
pub fn looped(comm: &Comm) -> Result<()> {
    let mut windows = Windows::new(comm, 2_500_003, 0)?;
    for round in 0.. {
        exchange(comm, &mut windows, [5, 2_500_003][round % 2], round)?;
    }
    Ok(())
}

/// Every rank puts to every rank, waits for what comes, and tells the others that it has read it.
///
/// # Errors
/// The library's; `Internal` if a result is wrong.
pub fn exchange(comm: &Comm, windows: &mut Windows, bytes: usize, round: usize) -> Result<()> {
    let ranks = comm.ranks();
    if round % 2 == 1 {
        group::start()?;
        let waited = wait(comm, 0..ranks, 1, FIRST);
        let put = (0..ranks).try_for_each(|to| windows.put(to, bytes, round, FIRST));
        group::end().and(waited).and(put)?;
    } else {
        (0..ranks).try_for_each(|to| windows.put(to, bytes, round, FIRST))?;
        wait(comm, (0..ranks).rev(), 1, FIRST)?;
    }
    (0..ranks).try_for_each(|from| windows.check(from, bytes, round))?;
    (0..ranks).try_for_each(|to| signal(comm, to, FIRST))?;
    wait(comm, 0..ranks, 1, FIRST)
}
