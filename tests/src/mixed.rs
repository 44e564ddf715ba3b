//! Groups that mix collectives and messages, checked against what every byte must be.

use hawser_plan::Collective;
use hawser_runtime::{Comm, Error, Result, Stream, group};

use crate::world::{Issued, issue, plain};

/// Lengths of the messages of a group: nothing, one, unaligned, many tiles.
const LENGTHS: [usize; 4] = [0, 1, 4_099, 150_001];

fn byte(from: u32, to: u32, index: usize) -> u8 {
    (from * 37 + to * 11) as u8 ^ (index as u8).wrapping_mul(29) ^ (index >> 8) as u8
}

/// Everybody sends everybody messages of several lengths, beside three collectives, all in one group.
///
/// # Errors
/// The library's; `Internal` with the difference when a result is wrong.
pub fn run(comm: &Comm) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let collectives = [Collective::AllGather, Collective::AllToAll, Collective::Broadcast];
    let length = |from: u32, to: u32, number: usize| LENGTHS[number] + (from * to % 3) as usize;
    let pairs: Vec<(u32, usize)> =
        (0..ranks).flat_map(|peer| (0..LENGTHS.len()).map(move |number| (peer, number))).collect();
    let message = |&(to, number): &(u32, usize)| -> Vec<u8> {
        (0..length(rank, to, number)).map(|i| byte(rank, to, i)).collect()
    };
    let out: Vec<Vec<u8>> = pairs.iter().map(message).collect();
    let mut into: Vec<Vec<u8>> = pairs.iter().map(|(from, n)| vec![0; length(*from, rank, *n)]).collect();
    group::start()?;
    let called = (|| {
        let issued: Vec<Issued> = collectives
            .iter()
            .map(|c| issue(comm, plain(*c, ranks, 20_011), false, 1))
            .collect::<Result<_>>()?;
        for (((peer, _), out), into) in pairs.iter().zip(&out).zip(&mut into) {
            comm.send(out.as_ptr() as u64, out.len() as u64, *peer, Stream(0))?;
            comm.recv(into.as_mut_ptr() as u64, into.len() as u64, *peer, Stream(0))?;
        }
        Ok::<_, Error>(issued)
    })();
    let ended = group::end();
    let issued = called?;
    ended?;
    if let Some(fault) = issued.iter().find_map(Issued::fault) {
        return Err(Error::internal(format!("wrong result: {fault}")));
    }
    for ((from, _), into) in pairs.iter().zip(&into) {
        if let Some(at) = (0..into.len()).find(|i| into[*i] != byte(*from, rank, *i)) {
            let text = format!("wrong result: byte {at} of {} from rank {from} to rank {rank}", into.len());
            return Err(Error::internal(text));
        }
    }
    Ok(())
}
