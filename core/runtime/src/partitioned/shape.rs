//! The shape of a partitioned collective, and the proof that all ranks mean the same.

use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_plan::{Call, CallOptions, Collective, PlanError};
use serde::{Deserialize, Serialize};

use super::calls::{Range, Way};
use crate::bootstrap::Bootstrap;
use crate::comm::Comm;
use crate::record;

/// The most partitions of a collective.
pub const MOST_PARTITIONS: usize = 4096;

/// A partitioned collective as a rank asks for it.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The whole collective, with this rank's buffers.
    pub call: Call,
    /// Elements of each partition in each block of the collective; they add up to the call's count.
    pub counts: Vec<u64>,
    /// The order in which partitions go on their way; empty for the order of their numbers.
    pub order: Vec<u32>,
    /// Times that the device counts a partition up before it is ready. The host says so once.
    pub arrivals: u32,
    /// Options of the calls that carry the partitions.
    pub options: Option<Box<CallOptions>>,
}

/// A partitioned collective without what belongs to one rank, as ranks send it to each other.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The reason why the rank cannot take part.
    fault: Option<String>,
    /// Collective, type, reduction.
    names: [String; 3],
    root: u32,
    counts: Vec<u64>,
    order: Vec<u32>,
}

impl Shape {
    /// Checks what one rank can check.
    ///
    /// # Errors
    /// `InvalidArgument` with what is wrong.
    pub fn check(&self, ranks: u32, rank: u32) -> Result<()> {
        let refuse = |text: String, remedy: &str| Err(Error::invalid_argument(text).remedy(remedy));
        let (call, partitions) = (&self.call, self.counts.len());
        call.validate(ranks, rank).map_err(|error: PlanError| Error::from(error))?;
        if call.collective == Collective::SendRecv {
            return refuse("messages are not partitioned".into(), "name a collective");
        }
        if !(1..=MOST_PARTITIONS).contains(&partitions) {
            let text = format!("{partitions} partitions: 1 to {MOST_PARTITIONS} are possible");
            return refuse(text, "make partitions longer");
        }
        let sum = self.counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        if sum != Some(call.count) {
            let sum = sum.map_or_else(|| "more than 2^64".to_owned(), |sum| sum.to_string());
            let text = format!("the partitions have {sum} elements, the collective has {}", call.count);
            return refuse(text, "let the counts of the partitions add up to count");
        }
        let mut seen = vec![false; partitions];
        let is_new =
            |index: &u32| seen.get_mut(*index as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        if !self.order.is_empty() && (self.order.len() != partitions || !self.order.iter().all(is_new)) {
            let text = format!("the order of {partitions} partitions does not have each of them once");
            return refuse(text, "pass a permutation, or NULL for the order of the numbers");
        }
        if self.arrivals == 0 || self.arrivals > i32::MAX as u32 {
            return refuse(format!("arrivals is {}", self.arrivals), "pass 1 to 2147483647");
        }
        Ok(())
    }

    /// The partitions in the order in which they go first.
    pub fn order(&self) -> Vec<u32> {
        let partitions = 0..self.counts.len() as u32;
        if self.order.is_empty() { partitions.collect() } else { self.order.clone() }
    }

    /// The way in which each partition goes.
    ///
    /// # Errors
    /// The communicator is gone.
    pub fn ways(&self, comm: &Comm) -> Result<Vec<Way>> {
        let numbers: Vec<u32> = (0..self.counts.len() as u32).collect();
        let way = |(_, range)| Way::new(comm, &self.call, range, self.options.as_deref());
        self.in_order(&numbers).into_iter().map(way).collect()
    }

    /// Partitions in an order: the index of each and its range.
    pub fn in_order(&self, order: &[u32]) -> Vec<(usize, Range)> {
        let mut first = 0;
        let range = |count: &u64| {
            let range = Range { first, count: *count };
            first += count;
            range
        };
        let ranges: Vec<Range> = self.counts.iter().map(range).collect();
        order.iter().map(|index| (*index as usize, ranges[*index as usize])).collect()
    }

    fn record(&self) -> Record {
        let Call { collective, dtype, op, root, .. } = self.call;
        let names = [collective.name().into(), dtype.name().into(), format!("{op:?}")];
        Record { fault: None, names, root, counts: self.counts.clone(), order: self.order.clone() }
    }
}

/// Succeeds on all ranks, if all have the same shape and none an error; fails on all otherwise.
///
/// # Errors
/// `InvalidArgument` with the rank; another rank did not answer.
pub fn agree(bootstrap: &Bootstrap, mine: std::result::Result<&Shape, &Error>, wait: &Wait) -> Result<()> {
    let record = mine.map_or_else(Record::of_fault, Shape::record);
    let all = bootstrap.all_gather(&record::encode(&record), wait)?;
    let mut first: Option<Record> = None;
    for (rank, bytes) in (0u32..).zip(&all) {
        let Some(record) = record::decode::<Record>(bytes) else {
            return Err(Error::remote(format!("rank {rank} sent a malformed partitioned collective")));
        };
        if let Some(fault) = record.fault {
            return Err(Error::invalid_argument(format!("partitioned collective on rank {rank}: {fault}")));
        }
        match &first {
            None => first = Some(record),
            Some(first) if *first == record => {}
            Some(first) => {
                let text = format!(
                    "partitioned collective: rank {rank} asks for {}, rank 0 for {}",
                    record.text(),
                    first.text()
                );
                return Err(Error::invalid_argument(text).remedy("pass the same on all ranks"));
            }
        }
    }
    Ok(())
}

impl Record {
    fn of_fault(error: &Error) -> Self {
        let fault = Some(error.text.clone());
        Self { fault, names: Default::default(), root: 0, counts: Vec::new(), order: Vec::new() }
    }

    fn text(&self) -> String {
        let [collective, dtype, op] = &self.names;
        let Self { root, counts, order, .. } = self;
        let order = if order.is_empty() { "their numbers".to_owned() } else { format!("{order:?}") };
        format!(
            "{collective} of {dtype} ({op}, root {root}) in partitions of {counts:?} in the order of {order}"
        )
    }
}

/// The error of a device whose streams cannot wait for words.
pub fn without_words() -> Error {
    Error::invalid_usage("the streams of this device cannot wait for words of memory")
        .remedy("use a GPU and a driver with stream memory operations, or the host device")
}

#[cfg(test)]
mod tests {
    use hawser_plan::DataType;

    use super::*;

    #[test]
    fn wrong_shapes_are_refused_with_the_reason() {
        let refused = |change: fn(&mut Shape)| {
            let mut shape = shape();
            change(&mut shape);
            shape.check(2, 0).unwrap_err().into_text()
        };
        assert!(shape().check(2, 0).is_ok());
        assert!(refused(|s| s.counts[0] = 5).contains("11 elements, the collective has 10"));
        assert!(refused(|s| s.counts[0] = u64::MAX).contains("more than 2^64"));
        assert!(refused(|s| s.counts.clear()).contains("0 partitions"));
        assert!(refused(|s| s.order = vec![0, 0]).contains("each of them once"));
        assert!(refused(|s| s.order = vec![0, 2]).contains("each of them once"));
        assert!(refused(|s| s.order = vec![1]).contains("each of them once"));
        assert!(refused(|s| s.arrivals = 0).contains("arrivals"));
        assert!(refused(|s| s.call.root = 2).contains("root"));
    }

    #[test]
    fn partitions_go_in_the_order_that_is_asked_for() {
        let ranges = |shape: &Shape| -> Vec<(usize, u64, u64)> {
            shape
                .in_order(&shape.order())
                .into_iter()
                .map(|(index, range)| (index, range.first, range.count))
                .collect()
        };
        assert_eq!(ranges(&shape()), [(0, 0, 4), (1, 4, 6)]);
        assert_eq!(ranges(&Shape { order: vec![1, 0], ..shape() }), [(1, 4, 6), (0, 0, 4)]);
    }

    fn shape() -> Shape {
        let mut call = Call::of_bytes(Collective::AllReduce, 40, DataType::Float32, 0, 2);
        (call.input, call.output) = (64, 64);
        Shape { call, counts: vec![4, 6], order: Vec::new(), arrivals: 1, options: None }
    }
}
