//! Reproducible reductions: whatever the size of a call, the place of an element in it, addresses, hosts,
//! channels and the algorithms that are allowed, the bits of an element are those of an oracle that adds in
//! the declared order (docs/reproducible.md).
//!
//! An element is known by its number; its value on a rank is a function of both. A call takes some elements
//! at some place, so that the same ones come at other offsets, in other chunks and tiles. Variables make it
//! longer: `HAWSER_TEST_LAYOUTS=500` communicators, `HAWSER_TEST_ELEMENTS=10000000` of a call at most,
//! `HAWSER_TEST_SEED=7`.

use std::sync::OnceLock;

use hawser_plan::{Call, CallOptions, Collective, DataType, ReduceOp, Scalar, Selection};
use hawser_runtime::{Comm, Config, ErrorKind, Stream};
use hawser_tests::deadline::Deadline;
use hawser_tests::oracle::case::in_place_offset;
use hawser_tests::oracle::numbers::{Number, decode, encode};
use hawser_tests::oracle::{Buffer, Case};
use hawser_tests::world::{on_host, on_hosts};

const FLOATS: [DataType; 6] = [
    DataType::Float16,
    DataType::Bfloat16,
    DataType::Float32,
    DataType::Float64,
    DataType::Float8e4m3,
    DataType::Float8e5m2,
];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum];
const COLLECTIVES: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];
const ALLOWED: [&str; 12] = [
    "",
    "Ring",
    "Tree",
    "OneShot",
    "AllPairs",
    "Hierarchical",
    "RecursiveDoubling",
    "HalvingDoubling",
    "Knomial",
    "PAT",
    "DoubleRing",
    "Nested",
];
/// Calls of each communicator.
const CALLS: usize = 12;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// From 1 to `most`, small numbers as often as large ones.
    fn size(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(most.ilog2()) + 1);
        (self.below(1 << bits) + (1 << bits)).min(most)
    }
}

/// One call of all ranks.
struct Trial {
    case: Case,
    level: u8,
    /// The number of the first element.
    first: u64,
    shift: usize,
    in_place: bool,
    options: CallOptions,
    /// The elements that are combined, by the oracle.
    expected: OnceLock<Vec<u8>>,
}

impl Trial {
    fn new(random: &mut Random, ranks: u32, level: u8, most: u64) -> Self {
        let collective = random.one_of(&COLLECTIVES);
        let blocks = if collective == Collective::ReduceScatter { u64::from(ranks) } else { 1 };
        let root = if collective == Collective::Reduce { random.below(ranks.into()) as u32 } else { 0 };
        let count = (random.size(most) / blocks).max(1) as usize;
        let (dtype, op) = (random.one_of(&FLOATS), random.one_of(&OPS));
        let word = random.one_of(&ALLOWED);
        let selection = if word.is_empty() { Selection::default() } else { Selection::parse(word).unwrap() };
        let max_ctas = random.one_of(&[None, Some(1), Some(2), Some(5), Some(16)]);
        Self {
            case: Case { collective, dtype, op, ranks, root, count },
            level,
            first: random.below(1000),
            shift: random.below(4) as usize,
            in_place: random.below(2) == 0,
            options: CallOptions { selection, max_ctas, ..CallOptions::default() },
            expected: OnceLock::new(),
        }
    }

    fn text(&self) -> String {
        let Self { case, level, first, shift, in_place, options, .. } = self;
        format!("{case:?}, level {level}, from {first}, shift {shift}, in place {in_place}, {options:?}")
    }

    /// Runs the call on one rank; the bytes that it got.
    fn run(&self, comm: &Comm) -> hawser_runtime::Result<Vec<u8>> {
        let (case, rank, size) = (&self.case, comm.rank(), self.case.dtype.size());
        let longest = case.output_len().max(if self.in_place { case.input_len() } else { 0 });
        let (mut sent, mut got) = (Buffer::new(0, 0), Buffer::new(longest * size, self.shift * size));
        let (at_input, at_output) = if self.in_place { in_place_offset(case, rank) } else { (0, 0) };
        if !self.in_place {
            sent = Buffer::new(case.input_len() * size, self.shift * size);
        }
        let to = if self.in_place { &mut got } else { &mut sent };
        for (element, bytes) in to.bytes_mut()[at_input * size..].chunks_exact_mut(size).enumerate() {
            if element < case.input_len() {
                encode(
                    case.dtype,
                    Number::Float(value(case.dtype, rank, self.first + element as u64)),
                    bytes,
                );
            }
        }
        let input = if self.in_place { got.addr() + (at_input * size) as u64 } else { sent.addr() };
        let call = Call {
            collective: case.collective,
            count: case.count as u64,
            dtype: case.dtype,
            op: case.op,
            scalar: Scalar::Immediate(bits(case.dtype, factor(case, rank))),
            root: case.root,
            input,
            output: got.addr() + (at_output * size) as u64,
            gap: 0,
        };
        let options = Some(Box::new(self.options)).filter(|options| **options != CallOptions::default());
        comm.collective_with(call, options, Stream(0))?;
        assert!(sent.guards_hold() && got.guards_hold(), "{}: bytes around a buffer", self.text());
        Ok(got.bytes()[at_output * size..(at_output + case.output_len()) * size].to_vec())
    }

    /// The bytes that a rank must get, if it gets any.
    fn expected(&self, rank: u32) -> Option<&[u8]> {
        let case = &self.case;
        let all = self.expected.get_or_init(|| {
            let size = case.dtype.size();
            let mut all = vec![0; case.input_len() * size];
            for (element, bytes) in (self.first..).zip(all.chunks_exact_mut(size)) {
                let operand = |rank| scaled(case, rank, value(case.dtype, rank, element));
                let sum = match self.level {
                    1 if case.ranks <= 8 => {
                        let sum =
                            (1..case.ranks).fold(operand(0), |sum, rank| add(case.dtype, sum, operand(rank)));
                        rounded(case.dtype, sum)
                    }
                    _ => nested(case.dtype, 0, case.ranks, &operand),
                };
                encode(case.dtype, Number::Float(sum), bytes);
            }
            all
        });
        let length = case.output_len() * case.dtype.size();
        match case.collective {
            Collective::Reduce if rank != case.root => None,
            Collective::ReduceScatter => Some(&all[rank as usize * length..][..length]),
            _ => Some(all),
        }
    }
}

/// The value of an element on a rank: of many sizes, and every other one of an odd rank cancels that of the
/// rank before it, so that the order of additions shows.
fn value(dtype: DataType, rank: u32, element: u64) -> f64 {
    let mut random = Random(element.wrapping_mul(0x1_0001) ^ u64::from(rank) << 40);
    let draw = random.next();
    if rank % 2 == 1 && draw & 1 == 0 {
        return -value(dtype, rank - 1, element);
    }
    let most = if dtype.size() == 1 { 8 } else { 20 };
    let exponent = (draw >> 8) as i32 % most - most / 2;
    let mantissa = 1.0 + (draw >> 12) as f64 / (1_u64 << 52) as f64;
    let sign = if draw & 2 == 0 { 1.0 } else { -1.0 };
    rounded(dtype, sign * mantissa * f64::from(exponent).exp2())
}

/// The value as the type can hold it.
fn rounded(dtype: DataType, value: f64) -> f64 {
    let mut bytes = [0; 8];
    encode(dtype, Number::Float(value), &mut bytes);
    match decode(dtype, &bytes[..dtype.size()]) {
        Number::Float(value) => value,
        Number::Int(_) => unreachable!("a type of floats"),
    }
}

/// The sum in the type in which the library combines: float, or double for doubles.
fn add(dtype: DataType, a: f64, b: f64) -> f64 {
    if dtype == DataType::Float64 { a + b } else { f64::from(a as f32 + b as f32) }
}

/// The sum of the ranks `first..end`: each half by itself, where a half is the largest power of two below the
/// whole; every sum is rounded to the type.
fn nested(dtype: DataType, first: u32, end: u32, operand: &dyn Fn(u32) -> f64) -> f64 {
    if end - first == 1 {
        return operand(first);
    }
    let mut half = 1;
    while 2 * half < end - first {
        half *= 2;
    }
    let left = nested(dtype, first, first + half, operand);
    rounded(dtype, add(dtype, left, nested(dtype, first + half, end, operand)))
}

fn factor(case: &Case, rank: u32) -> f64 {
    match case.op {
        ReduceOp::Avg if case.dtype == DataType::Float64 => 1.0 / f64::from(case.ranks),
        ReduceOp::Avg => f64::from(1.0 / case.ranks as f32),
        _ => [0.5, 1.5, 0.75, -1.25][rank as usize % 4],
    }
}

/// The factor as the library takes it: a double for doubles, else a float.
fn bits(dtype: DataType, factor: f64) -> u64 {
    if dtype == DataType::Float64 { factor.to_bits() } else { u64::from((factor as f32).to_bits()) }
}

/// The operand of a rank: times the factor, if there is one, and rounded.
fn scaled(case: &Case, rank: u32, value: f64) -> f64 {
    let factor = factor(case, rank);
    match (case.op, case.dtype) {
        (ReduceOp::Sum, _) => value,
        (_, DataType::Float64) => value * factor,
        (_, dtype) => rounded(dtype, f64::from(value as f32 * factor as f32)),
    }
}

/// Elements that differ.
fn differing(size: usize, one: &[u8], other: &[u8]) -> usize {
    one.chunks_exact(size).zip(other.chunks_exact(size)).filter(|(one, other)| one != other).count()
}

/// Ranks on hosts, some neighbours, some not.
fn hosts(random: &mut Random, ranks: u32) -> String {
    let hosts = random.size(4.min(ranks.into())) as u32;
    let each = ranks.div_ceil(hosts);
    let is_mixed = random.below(3) == 0;
    let host = |rank: u32| if is_mixed { rank % hosts } else { rank / each };
    (0..ranks).map(|rank| char::from(b'a' + host(rank) as u8)).collect()
}

#[test]
fn bits_are_those_of_the_declared_order() {
    if !on_host() {
        return;
    }
    let mut random = Random(variable("HAWSER_TEST_SEED", 1));
    let most = variable("HAWSER_TEST_ELEMENTS", 20_000);
    for layout in 0..variable("HAWSER_TEST_LAYOUTS", 24) {
        // The oracle alone takes minutes for calls of millions of elements.
        let _deadline = (most < 1 << 20).then(Deadline::start);
        let ranks = 1 + layout as u32 % 16;
        let hosts = hosts(&mut random, ranks);
        let level = 1 + random.below(2) as u8;
        let mut trials: Vec<Trial> = Vec::new();
        for _ in 0..CALLS {
            trials.push(Trial::new(&mut random, ranks, level, most));
        }
        // By the communicator, or by each call.
        let by_calls = random.below(2) == 0;
        let config = Config { reproducible: if by_calls { 0 } else { level }, ..Config::default() };
        if by_calls {
            trials.iter_mut().for_each(|trial| trial.options.reproducible = Some(level));
        }
        on_hosts(&hosts, &config, |comm| {
            for trial in &trials {
                let got = trial.run(comm).unwrap_or_else(|error| panic!("{}: {error}", trial.text()));
                if let Some(expected) = trial.expected(comm.rank()) {
                    let wrong = differing(trial.case.dtype.size(), &got, expected);
                    assert_eq!(wrong, 0, "rank {} of {hosts}: {}", comm.rank(), trial.text());
                }
            }
        });
    }
}

/// Without the setting a ring gives other bits: the elements tell orders apart, for every type.
#[test]
fn other_orders_have_other_bits() {
    if !on_host() {
        return;
    }
    on_hosts("aaaa", &Config::default(), |comm| {
        for (dtype, level) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 2)]) {
            let mut trial = Trial::new(&mut Random(5), 4, level, 1000);
            trial.case = Case {
                collective: Collective::AllReduce,
                dtype,
                op: ReduceOp::Sum,
                ranks: 4,
                root: 0,
                count: 5000,
            };
            let selection = Selection::parse("Ring").unwrap();
            trial.options = CallOptions { selection, is_forced: true, ..CallOptions::default() };
            let got = trial.run(comm).unwrap();
            let wrong = differing(dtype.size(), &got, trial.expected(comm.rank()).unwrap());
            assert!(wrong > 0, "{dtype:?}, level {level}");
            // A call that insists on the ring is told why it cannot have it.
            trial.options.reproducible = Some(level);
            let error = trial.run(comm).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
            assert!(error.text.contains("it combines in another order"), "{error}");
        }
    });
}

/// The sum over eight ranks is the sum over two of the sums over four, and so on.
#[test]
fn level_2_nests() {
    if !on_host() {
        return;
    }
    for dtype in FLOATS {
        let operand = |rank| value(dtype, rank, 77);
        let four = |first: u32| nested(dtype, 0, 4, &|rank| operand(first + rank));
        assert_eq!(nested(dtype, 0, 8, &operand), rounded(dtype, add(dtype, four(0), four(4))));
    }
    let config = Config { reproducible: 2, ..Config::default() };
    on_hosts("aabbccdd", &config, |comm| {
        for dtype in FLOATS {
            let case = |ranks| Case {
                collective: Collective::AllReduce,
                dtype,
                op: ReduceOp::Sum,
                ranks,
                root: 0,
                count: 3001,
            };
            let child = |color: u32, key: u32| comm.split(color as i32, key as i32, None).unwrap().unwrap();
            let rank = comm.rank();
            let inner = child(rank / 4, rank);
            let sums = |comm: &Comm, data: &[u8], ranks| {
                let mut buffer = Buffer::new(data.len(), 0);
                buffer.bytes_mut().copy_from_slice(data);
                let call = hawser_tests::world::call(&case(ranks), 0, (buffer.addr(), buffer.addr()));
                comm.collective(call, Stream(0)).unwrap();
                buffer.bytes().to_vec()
            };
            let mut own = vec![0; 3001 * dtype.size()];
            for (element, bytes) in own.chunks_exact_mut(dtype.size()).enumerate() {
                encode(dtype, Number::Float(value(dtype, rank, element as u64)), bytes);
            }
            let whole = sums(comm, &own, 8);
            let part = sums(&inner, &own, 4);
            let outer = child(rank % 4, rank);
            assert!(whole == sums(&outer, &part, 2), "{dtype:?}");
            [inner, outer].into_iter().for_each(|comm| comm.destroy().unwrap());
        }
    });
}
