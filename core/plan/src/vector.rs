//! Collectives whose parts differ in length: which messages carry them. Only moves are possible, one message
//! for each part.

use crate::algo;
use crate::p2p::Message;
use hawser_types::{Call, Collective, DataType, PlanError, Result};

/// Lengths and places of the parts of a buffer, one for each rank, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Elements of each part.
    pub counts: &'a [u64],
    /// The element at which each begins; None = one behind the other, in rank order.
    pub displs: Option<&'a [u64]>,
}

/// A call. Buffers are opaque addresses; counts are elements. What one rank sends to another must be as long
/// as what that one receives from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vector<'a> {
    /// Part `p` of the input goes to rank `p`; part `p` of the output comes from it.
    AllToAll {
        /// Address of the input.
        input: u64,
        /// Its parts.
        sends: Parts<'a>,
        /// Address of the output, not the input's.
        output: u64,
        /// Its parts.
        recvs: Parts<'a>,
    },
    /// The input goes to everybody; part `p` of the output comes from rank `p`.
    AllGather {
        /// Address of the input; that of the own part of the output for a call in place.
        input: u64,
        /// Elements of the input: those of the own part.
        count: u64,
        /// Address of the output.
        output: u64,
        /// Its parts.
        recvs: Parts<'a>,
    },
    /// The input goes to the root.
    Gather {
        /// Address of the input; at the root that of the own part of the output for a call in place.
        input: u64,
        /// Elements of the input.
        count: u64,
        /// Address of the output; looked at on the root only.
        output: u64,
        /// Its parts; None on other ranks than the root.
        recvs: Option<Parts<'a>>,
        /// The root.
        root: u32,
    },
    /// Part `p` of the root's input goes to rank `p`.
    Scatter {
        /// Address of the input; looked at on the root only.
        input: u64,
        /// Its parts; None on other ranks than the root.
        sends: Option<Parts<'a>>,
        /// Address of the output; at the root that of the own part of the input for a call in place.
        output: u64,
        /// Elements of the output.
        count: u64,
        /// The root.
        root: u32,
    },
}

/// A call of so many ranks as there are counts, each of them [`Call::count`], as messages; None where
/// programs are offered for so many ([`algo::most_ranks`]).
pub fn of_many_ranks<'a>(call: &Call, counts: &'a [u64]) -> Option<Vector<'a>> {
    let Call { input, output, count, root, .. } = *call;
    let parts = Parts { counts, displs: None };
    let is_large = counts.len() > algo::most_ranks(call.collective) as usize;
    match call.collective {
        _ if !is_large => None,
        Collective::AllToAll => Some(Vector::AllToAll { input, sends: parts, output, recvs: parts }),
        Collective::Gather => Some(Vector::Gather { input, count, output, recvs: Some(parts), root }),
        Collective::Scatter => Some(Vector::Scatter { input, sends: Some(parts), output, count, root }),
        _ => None,
    }
}

impl Vector<'_> {
    /// Snake-case name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AllToAll { .. } => "alltoallv",
            Self::AllGather { .. } => "all_gatherv",
            Self::Gather { .. } => "gatherv",
            Self::Scatter { .. } => "scatterv",
        }
    }

    /// The messages of `rank`, in the order of their peers. Those without bytes are left out, as at the other
    /// end.
    ///
    /// # Errors
    /// `InvalidArgument` for a root that is no rank, for too few counts, for lengths that exceed the address
    /// space, for parts of an output that overlap, for a buffer that is NULL, and where the two ends of the
    /// rank's own part differ in length.
    pub fn messages(&self, dtype: DataType, rank: u32, ranks: u32) -> Result<Vec<Message>> {
        let at = |mut error: PlanError| {
            error.text = format!("{}: {}", self.name(), error.text);
            error
        };
        self.planned(dtype.size() as u64, rank, ranks).map_err(at)
    }

    fn planned(&self, size: u64, rank: u32, ranks: u32) -> Result<Vec<Message>> {
        let Ends { sends, recvs } = self.ends(size, rank, ranks)?;
        let own = |ends: &[(u32, Span)]| ends.iter().find(|(peer, _)| *peer == rank).map(|(_, span)| *span);
        let (from, to) = (own(&sends), own(&recvs));
        if let (Some(from), Some(to)) = (from, to)
            && from.bytes != to.bytes
        {
            return Err(PlanError::argument(format!(
                "rank {rank} sends {} elements to itself and receives {}: make them equal",
                from.bytes / size,
                to.bytes / size
            )));
        }
        // In place: the own part is where it should be.
        let is_there = from.zip(to).is_some_and(|(from, to)| from.addr == to.addr);
        let message = |send: bool| {
            move |(peer, span): (u32, Span)| Message { peer, send, addr: span.addr, bytes: span.bytes }
        };
        let all = sends.into_iter().map(message(true)).chain(recvs.into_iter().map(message(false)));
        Ok(all.filter(|m| m.bytes > 0 && !(is_there && m.peer == rank)).collect())
    }

    /// The elements that this rank sends and receives.
    fn ends(&self, size: u64, rank: u32, ranks: u32) -> Result<Ends> {
        let everybody = |span: Span| (0..ranks).map(|peer| (peer, span)).collect();
        let check_root = |root: u32| match root < ranks {
            true => Ok(root),
            false => Err(PlanError::argument(format!(
                "root {root} is not a rank of this communicator (0..{})",
                ranks - 1
            ))),
        };
        let at_root = "the counts are NULL, and the root needs them";
        Ok(match *self {
            Self::AllToAll { input, sends, output, recvs } => {
                let (sends, recvs) =
                    (sends.spans("send", input, size, ranks)?, recvs.spans("receive", output, size, ranks)?);
                if input == output
                    && [&sends, &recvs].iter().any(|ends| ends.iter().any(|(_, s)| s.bytes > 0))
                {
                    return Err(PlanError::argument(
                        "it cannot run in place: give the output a buffer of its own",
                    ));
                }
                distinct(&recvs)?;
                Ends { sends, recvs }
            }
            Self::AllGather { input, count, output, recvs } => {
                let recvs = recvs.spans("receive", output, size, ranks)?;
                distinct(&recvs)?;
                Ends { sends: everybody(span("send", input, count, 0, size)?), recvs }
            }
            Self::Gather { input, count, output, recvs, root } => {
                let sends = vec![(check_root(root)?, span("send", input, count, 0, size)?)];
                let recvs = match (rank == root, recvs) {
                    (false, _) => Vec::new(),
                    (true, None) => return Err(PlanError::argument(at_root)),
                    (true, Some(recvs)) => recvs.spans("receive", output, size, ranks)?,
                };
                distinct(&recvs)?;
                Ends { sends, recvs }
            }
            Self::Scatter { input, sends, output, count, root } => {
                let recvs = vec![(check_root(root)?, span("receive", output, count, 0, size)?)];
                let sends = match (rank == root, sends) {
                    (false, _) => Vec::new(),
                    (true, None) => return Err(PlanError::argument(at_root)),
                    (true, Some(sends)) => sends.spans("send", input, size, ranks)?,
                };
                Ends { sends, recvs }
            }
        })
    }
}

/// Peers and the bytes for or from each.
struct Ends {
    sends: Vec<(u32, Span)>,
    recvs: Vec<(u32, Span)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    addr: u64,
    bytes: u64,
}

impl Parts<'_> {
    /// The part of each rank.
    fn spans(&self, what: &str, base: u64, size: u64, ranks: u32) -> Result<Vec<(u32, Span)>> {
        let given = self.displs.map_or(ranks as usize, <[u64]>::len).min(self.counts.len());
        if given < ranks as usize {
            return Err(PlanError::argument(format!(
                "{given} {what} counts or displacements for {ranks} ranks"
            )));
        }
        let mut end = 0u64;
        let one = |(peer, &count): (u32, &u64)| {
            let at = self.displs.map_or(end, |displs| displs[peer as usize]);
            end = end.saturating_add(count);
            let span = span(what, base, count, at, size);
            span.map(|span| (peer, span))
                .map_err(|e| PlanError::argument(format!("{}, for rank {peer}", e.text)))
        };
        (0..ranks).zip(self.counts).map(one).collect()
    }
}

/// `count` elements, `at` elements behind `base`.
fn span(what: &str, base: u64, count: u64, at: u64, size: u64) -> Result<Span> {
    if count == 0 {
        return Ok(Span { addr: base, bytes: 0 });
    }
    if base == 0 {
        return Err(PlanError::argument(format!("the {what} buffer is NULL")));
    }
    let end =
        at.checked_add(count).and_then(|end| end.checked_mul(size)).filter(|end| *end <= i64::MAX as u64);
    match end.and_then(|end| base.checked_add(end)) {
        Some(_) => Ok(Span { addr: base + at * size, bytes: count * size }),
        None => Err(PlanError::argument(format!(
            "the {what} count {count} at displacement {at} exceeds the address space"
        ))),
    }
}

/// Checks that nothing is written twice.
fn distinct(recvs: &[(u32, Span)]) -> Result<()> {
    let mut some: Vec<&(u32, Span)> = recvs.iter().filter(|(_, span)| span.bytes > 0).collect();
    some.sort_by_key(|(_, span)| span.addr);
    let overlap = some.windows(2).find(|pair| pair[0].1.addr + pair[0].1.bytes > pair[1].1.addr);
    overlap.map_or(Ok(()), |pair| {
        Err(PlanError::argument(format!(
            "what is received from ranks {} and {} overlaps",
            pair[0].0, pair[1].0
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(vector: &Vector<'_>, rank: u32) -> Result<Vec<(u32, bool, u64, u64)>> {
        let messages = vector.messages(DataType::Float32, rank, 3)?;
        Ok(messages.into_iter().map(|m| (m.peer, m.send, m.addr, m.bytes)).collect())
    }

    fn parts<'a>(counts: &'a [u64], displs: Option<&'a [u64]>) -> Parts<'a> {
        Parts { counts, displs }
    }

    #[test]
    fn parts_lie_where_they_are_said_to_or_one_behind_the_other() {
        let (sends, recvs) = (parts(&[1, 0, 3], None), parts(&[1, 5, 0], Some(&[10, 0, 99])));
        let call = Vector::AllToAll { input: 1000, sends, output: 5000, recvs };
        let expected = [(0, true, 1000, 4), (2, true, 1004, 12), (0, false, 5040, 4), (1, false, 5000, 20)];
        assert_eq!(plan(&call, 0).unwrap(), expected);
    }

    #[test]
    fn the_own_part_stays_where_it_is_in_place() {
        let recvs = parts(&[2, 3, 1], None);
        let gather =
            |input, rank| plan(&Vector::AllGather { input, count: 3, output: 400, recvs }, rank).unwrap();
        assert_eq!(
            gather(408, 1),
            [(0, true, 408, 12), (2, true, 408, 12), (0, false, 400, 8), (2, false, 420, 4)]
        );
        assert_eq!(gather(800, 1).len(), 6);
        let root = |rank| {
            plan(&Vector::Gather { input: 64, count: 2, output: 400, recvs: Some(recvs), root: 2 }, rank)
        };
        assert_eq!(root(0).unwrap(), [(2, true, 64, 8)]);
        assert!(root(2).unwrap_err().text.contains("sends 2 elements to itself and receives 1"));
        let scatter = Vector::Scatter { input: 64, sends: Some(recvs), output: 64, count: 2, root: 0 };
        assert_eq!(plan(&scatter, 0).unwrap(), [(1, true, 72, 12), (2, true, 84, 4)]);
        assert_eq!(plan(&scatter, 1).unwrap(), [(0, false, 64, 8)]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let even = parts(&[1, 1, 1], None);
        let to_all = |sends, recvs, output| Vector::AllToAll { input: 1 << 20, sends, output, recvs };
        let far = [u64::MAX / 4, 1, 1];
        let huge = [1 << 62, 0, 0];
        let cases = [
            (to_all(even, even, 1 << 20), "in place"),
            (to_all(parts(&[1, 1], None), even, 4096), "2 send counts"),
            (to_all(even, parts(&[1, 1, 1], Some(&[0, 1])), 4096), "2 receive counts or displacements"),
            (to_all(even, even, 0), "the receive buffer is NULL"),
            (to_all(even, parts(&[1, 1, 1], Some(&far)), 4096), "exceeds the address space, for rank 0"),
            (to_all(parts(&huge, None), even, 4096), "exceeds the address space"),
            (to_all(even, parts(&[1, 2, 1], Some(&[0, 1, 2])), 4096), "ranks 1 and 2 overlaps"),
            (Vector::Gather { input: 1, count: 1, output: 1, recvs: None, root: 3 }, "root 3 is not a rank"),
            (Vector::Gather { input: 1, count: 1, output: 1, recvs: None, root: 0 }, "the root needs them"),
            (
                Vector::Scatter { input: 1, sends: None, output: 0, count: 1, root: 1 },
                "receive buffer is NULL",
            ),
        ];
        for (call, reason) in cases {
            let error = plan(&call, 0).unwrap_err();
            assert!(
                error.text.contains(call.name()) && error.text.contains(reason),
                "{reason}: {}",
                error.text
            );
        }
        let nothing = parts(&[0, 0, 0], Some(&[u64::MAX; 3]));
        assert_eq!(plan(&to_all(nothing, nothing, 0), 0).unwrap(), []);
    }
}
