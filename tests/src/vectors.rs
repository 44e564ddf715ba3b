//! Collectives whose parts differ in length, checked against what every element must be.

use hawser_plan::DataType;
use hawser_plan::vector::{Parts, Vector};
use hawser_runtime::{Comm, Error, Result, Stream, group};

/// An element that no rank sends.
const NOTHING: i32 = i32::MIN;
/// Elements before, between and behind the parts of an output that nothing may touch.
const GAP: u64 = 3;

/// The lengths of what goes from one rank to another.
pub type Length = fn(u32, u32) -> u64;

/// Lengths of all kinds: all equal, none at all, uneven with zeros, one large.
pub const LENGTHS: [Length; 4] = [
    |_, _| 100,
    |_, _| 0,
    |from, to| u64::from((from * 5 + to * 3) % 4 * (from + 10 * to)),
    |from, to| if (from, to) == (0, 1) { 300_000 } else { u64::from(to) },
];

fn element(from: u32, to: u32, index: u64) -> i32 {
    (from as i32 * 31 + to as i32 * 7 + 1) * 1_000_000 + index as i32
}

fn part(from: u32, to: u32, count: u64) -> impl Iterator<Item = i32> {
    (0..count).map(move |index| element(from, to, index))
}

/// An output with gaps, and what it must hold.
struct Output {
    data: Vec<i32>,
    expected: Vec<i32>,
    displs: Vec<u64>,
}

impl Output {
    /// Parts in falling order of their ranks, with gaps.
    fn new(counts: &[u64], to: impl Fn(u32) -> u32) -> Self {
        let (mut expected, mut displs) = (vec![NOTHING; GAP as usize], vec![0; counts.len()]);
        for (from, &count) in counts.iter().enumerate().rev() {
            displs[from] = expected.len() as u64;
            expected.extend(part(from as u32, to(from as u32), count));
            expected.extend([NOTHING; GAP as usize]);
        }
        Self { data: vec![NOTHING; expected.len()], expected, displs }
    }

    fn address(&mut self) -> u64 {
        self.data.as_mut_ptr() as u64
    }

    fn check(&self, what: &str) -> Result<()> {
        let wrong = self.data.iter().zip(&self.expected).position(|(a, b)| a != b);
        wrong.map_or(Ok(()), |at| {
            Err(Error::internal(format!(
                "wrong result: {what}: element {at} of {} is {} instead of {}",
                self.data.len(),
                self.data[at],
                self.expected[at]
            )))
        })
    }
}

/// Runs all four with lengths of all kinds, alone and in groups, in place where that is possible.
///
/// # Errors
/// The library's; `Internal` with the difference when a result is wrong.
pub fn run_all(comm: &Comm) -> Result<()> {
    for length in LENGTHS {
        all_to_all(comm, length)?;
        for root in 0..comm.ranks() {
            gather(comm, root, length, false)?;
            gather(comm, root, length, true)?;
            scatter(comm, root, length)?;
        }
        all_gather(comm, length, false)?;
        all_gather(comm, length, true)?;
    }
    grouped(comm)
}

fn call(comm: &Comm, vector: &Vector<'_>) -> Result<()> {
    comm.vector(vector, DataType::Int32, Stream(0))
}

fn address(data: &[i32]) -> u64 {
    data.as_ptr() as u64
}

fn counts(comm: &Comm, length: impl Fn(u32) -> u64) -> Vec<u64> {
    (0..comm.ranks()).map(length).collect()
}

fn all_to_all(comm: &Comm, length: Length) -> Result<()> {
    let rank = comm.rank();
    let (sends, recvs) = (counts(comm, |to| length(rank, to)), counts(comm, |from| length(from, rank)));
    let input: Vec<i32> = (0..comm.ranks()).flat_map(|to| part(rank, to, length(rank, to))).collect();
    let mut output = Output::new(&recvs, |_| rank);
    let to = output.address();
    call(
        comm,
        &Vector::AllToAll {
            input: address(&input),
            sends: Parts { counts: &sends, displs: None },
            output: to,
            recvs: Parts { counts: &recvs, displs: Some(&output.displs) },
        },
    )?;
    output.check("alltoallv")
}

fn all_gather(comm: &Comm, length: Length, in_place: bool) -> Result<()> {
    let rank = comm.rank();
    let recvs = counts(comm, |from| length(from, 0));
    let (input, mut output) = gathered(&recvs, rank, 0, in_place);
    let (at, to) = (output.displs[rank as usize], output.address());
    call(
        comm,
        &Vector::AllGather {
            input: if in_place { to + 4 * at } else { address(&input) },
            count: recvs[rank as usize],
            output: to,
            recvs: Parts { counts: &recvs, displs: Some(&output.displs) },
        },
    )?;
    output.check("all_gatherv")
}

fn gather(comm: &Comm, root: u32, length: Length, in_place: bool) -> Result<()> {
    let rank = comm.rank();
    let recvs = counts(comm, |from| length(from, root));
    let in_place = in_place && rank == root;
    let (input, mut output) = gathered(&recvs, rank, root, in_place);
    if rank != root {
        output.expected.fill(NOTHING);
    }
    let (at, to) = (output.displs[rank as usize], output.address());
    call(
        comm,
        &Vector::Gather {
            input: if in_place { to + 4 * at } else { address(&input) },
            count: recvs[rank as usize],
            output: if rank == root { to } else { 0 },
            recvs: (rank == root).then_some(Parts { counts: &recvs, displs: Some(&output.displs) }),
            root,
        },
    )?;
    output.check("gatherv")
}

/// Input and output of a gather; the own part lies in the output for one in place.
fn gathered(recvs: &[u64], rank: u32, to: u32, in_place: bool) -> (Vec<i32>, Output) {
    let own = recvs[rank as usize];
    let mut output = Output::new(recvs, |_| to);
    if in_place {
        let at = output.displs[rank as usize] as usize;
        output.data[at..at + own as usize].iter_mut().zip(part(rank, to, own)).for_each(|(a, b)| *a = b);
    }
    (part(rank, to, own).collect(), output)
}

fn scatter(comm: &Comm, root: u32, length: Length) -> Result<()> {
    let rank = comm.rank();
    let sends = counts(comm, |to| length(root, to));
    let input: Vec<i32> = (0..comm.ranks()).flat_map(|to| part(root, to, length(root, to))).collect();
    let count = sends[rank as usize];
    let mut data = vec![NOTHING; count as usize + 1];
    call(
        comm,
        &Vector::Scatter {
            input: address(&input),
            sends: (rank == root).then_some(Parts { counts: &sends, displs: None }),
            output: data.as_mut_ptr() as u64,
            count,
            root,
        },
    )?;
    let expected = part(root, rank, count).chain([NOTHING]).collect();
    Output { data, expected, displs: Vec::new() }.check("scatterv")
}

/// Several in one group, with a collective and messages around them.
fn grouped(comm: &Comm) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let length = LENGTHS[2];
    let (sends, recvs) = (counts(comm, |to| length(rank, to)), counts(comm, |from| length(from, rank)));
    let input: Vec<i32> = (0..ranks).flat_map(|to| part(rank, to, length(rank, to))).collect();
    let mut outputs = [Output::new(&recvs, |_| rank), Output::new(&recvs, |_| rank)];
    let (token, mut arrived) = ([rank as i32], [NOTHING]);
    group::start()?;
    for output in &mut outputs {
        let to = output.address();
        let vector = Vector::AllToAll {
            input: address(&input),
            sends: Parts { counts: &sends, displs: None },
            output: to,
            recvs: Parts { counts: &recvs, displs: Some(&output.displs) },
        };
        call(comm, &vector)?;
    }
    comm.send(address(&token), 4, (rank + 1) % ranks, Stream(0))?;
    comm.recv(arrived.as_mut_ptr() as u64, 4, (rank + ranks - 1) % ranks, Stream(0))?;
    group::end()?;
    outputs.iter().try_for_each(|output| output.check("alltoallv in a group"))?;
    let expected = vec![((rank + ranks - 1) % ranks) as i32];
    Output { data: arrived.to_vec(), expected, displs: Vec::new() }.check("a message beside it")
}
