//! Arithmetic of the host device: reduces the operands of a step, for the 12 data types.
//!
//! Half, bfloat16 and fp8 are reduced in `f32` and rounded once per step, as on the GPU.

mod fp8;

use std::mem::MaybeUninit;

use half::{bf16, f16};
use hawser_kernels_abi::DeviceOp;
use hawser_plan::DataType;

use self::fp8::{E4m3, E5m2};

/// Elements that are reduced at a time: two lists of them stay in the first cache.
const TILE: usize = 512;

/// One operand of a step: `len` elements at `addr` (not necessarily aligned).
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Host address.
    pub addr: u64,
    /// Elements that may be read.
    pub len: usize,
    /// Multiply by the factor first.
    pub scaled: bool,
}

/// The rule by which values are reduced.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The operation of the reduction.
    pub op: DeviceOp,
    /// Factor bits as in `Args::scalar`, or its address.
    pub scalar: u64,
    /// See `scalar`.
    pub scalar_is_address: bool,
    /// Divide at the end by this (integer averages); 1 = no.
    pub divisor: u32,
    /// Combine along the balanced tree over the operands, which splits behind the largest power of two below
    /// its width, and round each node to the type; otherwise one after the other, rounded at the end.
    pub is_nested: bool,
}

/// Reduces `operands` in order, or along a tree over it, and writes the first `len` elements of the value to
/// each of `to` (address, elements). Elements past an operand's end are as if the operand were absent.
///
/// # Safety
/// Every operand must be readable and every destination writable for its length; destinations must not
/// overlap operands except where they are equal.
pub unsafe fn reduce(dtype: DataType, rule: &Rule, operands: &[Operand], to: &[(u64, usize)]) {
    macro_rules! by_type {
        ($($name:ident => $element:ty),*) => {
            match dtype {
                // SAFETY: passed on to the caller.
                $(DataType::$name => unsafe { run::<$element>(rule, operands, to) },)*
            }
        };
    }
    by_type!(Int8 => i8, Uint8 => u8, Int32 => i32, Uint32 => u32, Int64 => i64, Uint64 => u64,
        Float16 => f16,
        Float32 => f32, Float64 => f64, Bfloat16 => bf16, Float8e4m3 => E4m3, Float8e5m2 => E5m2);
}

/// # Safety
/// As [`reduce`].
unsafe fn run<T: Element>(rule: &Rule, operands: &[Operand], to: &[(u64, usize)]) {
    // SAFETY: passed on to the caller.
    let factor = unsafe { factor::<T>(rule) };
    let zero = T::factor(0);
    // Not made zeros: for a few bytes that would take longer than all else here.
    let mut value = [MaybeUninit::uninit(); TILE];
    let len = to.iter().map(|(_, n)| *n).max().unwrap_or(0);
    for at in (0..len).step_by(TILE) {
        let here = |n: usize| n.saturating_sub(at).min(TILE);
        let tile = Tile::<T> { rule, factor, at };
        // SAFETY: passed on to the caller. So many elements have a value then.
        let have = unsafe {
            match rule.is_nested {
                true => tile.node(operands, &mut value),
                false => tile.in_turn(operands, &mut value),
            }
        };
        if have < here(len) {
            value[have..here(len)].fill(MaybeUninit::new(zero));
        }
        // SAFETY: the first `have` elements have values, and those behind them were just made zeros.
        let value = unsafe { value[..here(len)].assume_init_mut() };
        if rule.divisor > 1 {
            value.iter_mut().for_each(|v| *v = T::divide(*v, rule.divisor));
        }
        for &(addr, n) in to {
            // SAFETY: `at + here(n) <= n`, writable by the caller's promise.
            unsafe { write(addr as *mut T, at, &value[..here(n)]) };
        }
    }
}

/// The values of some elements that follow each other, the first of which there are.
type Values<T> = [MaybeUninit<<T as Element>::Wide>; TILE];

/// A tile of a reduction, from element `at` on.
struct Tile<'a, T: Element> {
    rule: &'a Rule,
    factor: T::Wide,
    at: usize,
}

impl<T: Element> Tile<'_, T> {
    /// Combines operands one after the other. Returns how many elements have a value.
    ///
    /// # Safety
    /// As [`reduce`].
    unsafe fn in_turn(&self, operands: &[Operand], sum: &mut Values<T>) -> usize {
        let (mut have, mut next) = (0, [MaybeUninit::uninit(); TILE]);
        for operand in operands {
            // SAFETY: passed on to the caller; `load` and `join` say how many elements have values.
            have = unsafe {
                match have {
                    0 => self.load(operand, sum),
                    _ => {
                        let count = self.load(operand, &mut next);
                        self.join((sum, have), (&next, count))
                    }
                }
            };
        }
        have
    }

    /// Combines operands along the balanced tree, whose nodes are rounded. Returns how many elements have a
    /// value.
    ///
    /// # Safety
    /// As [`reduce`].
    unsafe fn node(&self, operands: &[Operand], sum: &mut Values<T>) -> usize {
        // SAFETY: passed on to the caller; every call says how many elements have values.
        unsafe {
            match operands {
                [] => 0,
                [one] => self.load(one, sum),
                _ => {
                    let (left, right) = operands.split_at(operands.len().next_power_of_two() / 2);
                    let have = self.node(left, sum);
                    let mut other = [MaybeUninit::uninit(); TILE];
                    let count = self.node(right, &mut other);
                    let have = self.join((sum, have), (&other, count));
                    round::<T>(sum[..have].assume_init_mut());
                    have
                }
            }
        }
    }

    /// Reads an operand. Returns how many elements it has here.
    ///
    /// # Safety
    /// As [`reduce`].
    unsafe fn load(&self, operand: &Operand, values: &mut Values<T>) -> usize {
        let count = operand.len.saturating_sub(self.at).min(TILE);
        // SAFETY: `at + count <= operand.len`, readable by the caller's promise.
        let values = unsafe { read(operand.addr as *const T, self.at, &mut values[..count]) };
        if operand.scaled {
            // Rounded to the type, as a peer would receive it: all ranks reduce the same values.
            values.iter_mut().for_each(|x| *x = T::times(*x, self.factor));
            round::<T>(values);
        }
        count
    }

    /// Combines others onto values. Returns how many elements have a value then: those that only one of both
    /// has are as they are.
    ///
    /// # Safety
    /// As many elements have values as the numbers say.
    unsafe fn join(
        &self,
        (sum, have): (&mut Values<T>, usize),
        (others, count): (&Values<T>, usize),
    ) -> usize {
        let (both, all) = (have.min(count), have.max(count));
        // SAFETY: by the caller's promise.
        let (values, more) = unsafe { (sum[..both].assume_init_mut(), others[..both].assume_init_ref()) };
        T::combine(self.rule.op, values, more);
        sum[have..all].copy_from_slice(&others[have..all]);
        all
    }
}

/// Rounds values to the element type.
fn round<T: Element>(values: &mut [T::Wide]) {
    values.iter_mut().for_each(|x| *x = T::narrow(*x).widen());
}

/// The factor of a pre-multiplied sum.
///
/// # Safety
/// As [`reduce`].
unsafe fn factor<T: Element>(rule: &Rule) -> T::Wide {
    match (rule.op, rule.scalar_is_address) {
        // SAFETY: the caller of the operation promised one readable element at this address.
        (DeviceOp::PreMulSum, true) => unsafe { (rule.scalar as *const T).read_unaligned() }.widen(),
        (DeviceOp::PreMulSum, false) => T::factor(rule.scalar),
        _ => T::factor(0),
    }
}

/// Reads elements, and returns them.
///
/// # Safety
/// So many elements must be readable behind the first `at`.
unsafe fn read<T: Element>(from: *const T, at: usize, values: &mut [MaybeUninit<T::Wide>]) -> &mut [T::Wide] {
    for (e, value) in values.iter_mut().enumerate() {
        // SAFETY: readable by the caller's promise.
        value.write(unsafe { from.add(at + e).read_unaligned() }.widen());
    }
    // SAFETY: each was written just now.
    unsafe { values.assume_init_mut() }
}

/// # Safety
/// So many elements must be writable behind the first `at`.
unsafe fn write<T: Element>(to: *mut T, at: usize, values: &[T::Wide]) {
    for (e, value) in values.iter().enumerate() {
        // SAFETY: writable by the caller's promise.
        unsafe { to.add(at + e).write_unaligned(T::narrow(*value)) };
    }
}

/// An element type with the wide type it is reduced in.
trait Element: Copy {
    type Wide: Copy;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn factor(bits: u64) -> Self::Wide;
    fn times(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn divide(a: Self::Wide, n: u32) -> Self::Wide;
    fn combine(op: DeviceOp, values: &mut [Self::Wide], others: &[Self::Wide]);
}

/// The loops are inside: what to do is not asked again for every element.
macro_rules! combine {
    ($product:expr, $sum:expr) => {
        fn combine(op: DeviceOp, values: &mut [Self::Wide], others: &[Self::Wide]) {
            let pairs = values.iter_mut().zip(others);
            match op {
                DeviceOp::Prod => pairs.for_each(|(a, b)| *a = $product(*a, *b)),
                DeviceOp::Max => pairs.for_each(|(a, b)| *a = (*a).max(*b)),
                DeviceOp::Min => pairs.for_each(|(a, b)| *a = (*a).min(*b)),
                DeviceOp::Copy | DeviceOp::Sum | DeviceOp::PreMulSum | DeviceOp::SumDiv => {
                    pairs.for_each(|(a, b)| *a = $sum(*a, *b));
                }
            }
        }
    };
}

macro_rules! integers {
    ($($t:ty),*) => { $(impl Element for $t {
        type Wide = $t;
        fn widen(self) -> $t { self }
        fn narrow(wide: $t) -> $t { wide }
        fn factor(bits: u64) -> $t { bits as $t }
        fn times(a: $t, b: $t) -> $t { a.wrapping_mul(b) }
        fn divide(a: $t, n: u32) -> $t { <$t>::try_from(n).map_or(0, |n| a.wrapping_div(n)) }
        combine!(<$t>::wrapping_mul, <$t>::wrapping_add);
    })* };
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($t:ty, $wide:ty, $bits:expr, $widen:expr, $narrow:expr;)*) => { $(impl Element for $t {
        type Wide = $wide;
        fn widen(self) -> $wide { let f: fn($t) -> $wide = $widen; f(self) }
        fn narrow(wide: $wide) -> $t { let f: fn($wide) -> $t = $narrow; f(wide) }
        fn factor(bits: u64) -> $wide { let f: fn(u64) -> $wide = $bits; f(bits) }
        fn times(a: $wide, b: $wide) -> $wide { a * b }
        fn divide(a: $wide, n: u32) -> $wide { a / n as $wide }
        combine!(|a: $wide, b: $wide| a * b, |a: $wide, b: $wide| a + b);
    })* };
}
floats! {
    f32, f32, |b| f32::from_bits(b as u32), |x| x, |x| x;
    f64, f64, f64::from_bits, |x| x, |x| x;
    f16, f32, |b| f32::from_bits(b as u32), f16::to_f32, f16::from_f32;
    bf16, f32, |b| f32::from_bits(b as u32), bf16::to_f32, bf16::from_f32;
    E4m3, f32, |b| f32::from_bits(b as u32), E4m3::to_f32, E4m3::from_f32;
    E5m2, f32, |b| f32::from_bits(b as u32), E5m2::to_f32, E5m2::from_f32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once_per_step() {
        // 2048 + 1 + 1: in half arithmetic each addition rounds back to 2048, in f32 the sum is 2050.
        let parts = [f16::from_f32(2048.0), f16::ONE, f16::ONE];
        let operands: Vec<Operand> = parts
            .iter()
            .map(|p| Operand { addr: std::ptr::from_ref(p) as u64, len: 1, scaled: false })
            .collect();
        let rule =
            Rule { op: DeviceOp::Sum, scalar: 0, scalar_is_address: false, divisor: 1, is_nested: false };
        let mut out = f16::ZERO;
        // SAFETY: all addresses are of live locals of one element.
        unsafe { reduce(DataType::Float16, &rule, &operands, &[(std::ptr::from_mut(&mut out) as u64, 1)]) };
        assert_eq!(out.to_f32(), 2050.0);
    }

    #[test]
    fn nodes_of_a_tree_are_rounded_and_split_behind_powers_of_two() {
        // In half arithmetic 2048 + 1 is 2048 again: the tree tells which values met first.
        let of = |parts: &[f32]| {
            let parts: Vec<f16> = parts.iter().map(|part| f16::from_f32(*part)).collect();
            let operand = |p: &f16| Operand { addr: std::ptr::from_ref(p) as u64, len: 1, scaled: false };
            let operands: Vec<Operand> = parts.iter().map(operand).collect();
            let op = DeviceOp::Sum;
            let rule = Rule { op, scalar: 0, scalar_is_address: false, divisor: 1, is_nested: true };
            let mut out = f16::ZERO;
            let to = [(std::ptr::from_mut(&mut out) as u64, 1)];
            // SAFETY: all addresses are of live values of one element.
            unsafe { reduce(DataType::Float16, &rule, &operands, &to) };
            out.to_f32()
        };
        assert_eq!(of(&[2048.0, 1.0, 1.0]), 2048.0, "((0 1) 2)");
        assert_eq!(of(&[2048.0, 0.0, 1.0, 1.0]), 2050.0, "((0 1) (2 3))");
        assert_eq!(of(&[1.0, 2048.0, 1.0, 1.0, 2.0]), 2052.0, "(((0 1) (2 3)) 4)");
        assert_eq!(of(&[2048.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]), 2050.0, "(((0 1) (2 3)) ((4 5) 6))");
    }

    #[test]
    fn elements_past_an_operand_are_folded_without_it() {
        let lens = [3, TILE + 7, 0, 2 * TILE + 1];
        let of = |i: usize| (0..lens[i]).map(|e| (i + 2) as i64 + e as i64 % 5).collect::<Vec<i64>>();
        let parts: Vec<Vec<i64>> = (0..lens.len()).map(of).collect();
        let operand =
            |part: &Vec<i64>| Operand { addr: part.as_ptr() as u64, len: part.len(), scaled: false };
        let operands: Vec<Operand> = parts.iter().map(operand).collect();
        let total = 2 * TILE + 9;
        for op in [DeviceOp::Sum, DeviceOp::Prod, DeviceOp::Max, DeviceOp::Min] {
            let reduction_of = |e: usize| {
                let present = parts.iter().filter_map(|part| part.get(e).copied());
                present.reduce(|a, b| match op {
                    DeviceOp::Prod => a * b,
                    DeviceOp::Max => a.max(b),
                    DeviceOp::Min => a.min(b),
                    _ => a + b,
                })
            };
            let expected: Vec<i64> = (0..total).map(|e| reduction_of(e).unwrap_or(0)).collect();
            let (mut all, mut some) = (vec![-1_i64; total], vec![-1_i64; TILE + 1]);
            let to = [(all.as_mut_ptr() as u64, total), (some[..TILE].as_mut_ptr() as u64, TILE)];
            let rule = Rule { op, scalar: 0, scalar_is_address: false, divisor: 1, is_nested: false };
            // SAFETY: all addresses are of live lists of at least so many elements.
            unsafe { reduce(DataType::Int64, &rule, &operands, &to) };
            assert_eq!(all, expected, "{op:?}");
            assert_eq!((&some[..TILE], some[TILE]), (&expected[..TILE], -1), "{op:?}");
        }
    }

    #[test]
    fn integer_averages_truncate_and_factors_apply_to_marked_operands() {
        let (a, b, mut out) = ([-7i32, 5], [0i32, 6], [0i32; 2]);
        let operand = |x: &[i32; 2], scaled| Operand { addr: x.as_ptr() as u64, len: 2, scaled };
        let mut rule =
            Rule { op: DeviceOp::SumDiv, scalar: 0, scalar_is_address: false, divisor: 2, is_nested: false };
        let to = [(out.as_mut_ptr() as u64, 2)];
        // SAFETY: all addresses are of live locals of two elements.
        unsafe { reduce(DataType::Int32, &rule, &[operand(&a, false), operand(&b, false)], &to) };
        assert_eq!(out, [-3, 5]);
        rule = Rule {
            op: DeviceOp::PreMulSum,
            scalar: 10,
            scalar_is_address: false,
            divisor: 1,
            is_nested: false,
        };
        // SAFETY: as above.
        unsafe { reduce(DataType::Int32, &rule, &[operand(&a, true), operand(&b, false)], &to) };
        assert_eq!(out, [-70, 56]);
    }
}
