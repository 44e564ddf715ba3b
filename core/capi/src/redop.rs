//! Reductions: NCCL's built-in ones and the pre-multiplied sums that users make.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use half::{bf16, f16};
use hawser_plan::Scalar;
use hawser_plan::{DataType, ReduceOp};
use hawser_runtime::{Error, Result};

use crate::args::{self, In, Out};
use crate::handle::{self, CommPtr};
use crate::types::BUILT_IN_OPS;

/// `ncclScalarDevice`: the factor lies in memory that the device reads while the operation runs.
const RESIDENCE_DEVICE: c_int = 0;
/// `ncclScalarHostImmediate`: the factor is read before the create call returns.
const RESIDENCE_HOST: c_int = 1;

nccl_api! {
    /// Makes a sum whose inputs are multiplied by `scalar` first, for one type and one communicator.
    fn ncclRedOpCreatePreMulSum / pncclRedOpCreatePreMulSum(
        op: Out<c_int>, scalar: *const c_void, datatype: c_int, residence: c_int, comm: CommPtr,
    ) {
        let handle = comm.ready()?;
        op.check("op")?;
        let dtype = args::data_type(datatype)?;
        args::buffer("scalar", scalar, dtype.size())?;
        op.set("op", handle.ops.insert(dtype, factor(scalar, dtype, residence)?))
    }

    /// Gives a reduction back; calls that were issued with it are not concerned.
    fn ncclRedOpDestroy / pncclRedOpDestroy(op: c_int, comm: CommPtr) {
        let handle = comm.ready()?;
        if (0..BUILT_IN_OPS).contains(&op) {
            let error = Error::invalid_argument(format!("op {op} is built in"));
            return Err(error.remedy("destroy only what you created"));
        }
        handle.name(handle.ops.remove(op))
    }
}

/// The users' reductions of one communicator, with their numbers: a few.
#[derive(Default)]
pub struct UserOps(Mutex<Vec<(c_int, DataType, Scalar)>>);

impl UserOps {
    /// The reduction with number `op` for elements of type `dtype`, and its factor.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that is none, for another communicator's, and for another type's.
    pub fn find(&self, op: c_int, dtype: DataType) -> Result<(ReduceOp, Scalar)> {
        let built_in = usize::try_from(op).ok().filter(|_| op < BUILT_IN_OPS);
        if let Some(index) = built_in {
            return Ok((ReduceOp::ALL[index], Scalar::Immediate(0)));
        }
        let made = self.table().iter().find(|(number, ..)| *number == op).copied();
        // What is not known is looked up in all tables, this one too: it is unlocked here.
        match made {
            Some((_, made_for, scalar)) if made_for == dtype => Ok((ReduceOp::PreMulSum, scalar)),
            Some((_, made_for, _)) => Err(wrong_type(op, made_for, dtype)),
            None => Err(unknown(op)),
        }
    }

    fn insert(&self, dtype: DataType, scalar: Scalar) -> c_int {
        // Numbers are unique in the process as long as they last, so that another communicator's is noticed.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut table = self.table();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % (c_int::MAX - BUILT_IN_OPS).unsigned_abs();
            let op = BUILT_IN_OPS + number.cast_signed();
            if table.iter().all(|(taken, ..)| *taken != op) {
                table.push((op, dtype, scalar));
                return op;
            }
        }
    }

    fn has(&self, op: c_int) -> bool {
        self.table().iter().any(|(number, ..)| *number == op)
    }

    fn remove(&self, op: c_int) -> Result<()> {
        let mut table = self.table();
        let at = table.iter().position(|(number, ..)| *number == op);
        let removed = at.map(|at| table.swap_remove(at));
        drop(table);
        removed.map(drop).ok_or_else(|| unknown(op))
    }

    fn table(&self) -> MutexGuard<'_, Vec<(c_int, DataType, Scalar)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn factor(scalar: *const c_void, dtype: DataType, residence: c_int) -> Result<Scalar> {
    match residence {
        RESIDENCE_DEVICE => Ok(Scalar::Device(scalar as u64)),
        RESIDENCE_HOST => immediate(scalar, dtype).map(Scalar::Immediate),
        _ => Err(Error::invalid_argument(format!("residence {residence} is not a place for a scalar"))
            .remedy("use ncclScalarDevice (0) or ncclScalarHostImmediate (1)")),
    }
}

/// The element behind `scalar` in the form that [`Scalar::Immediate`] describes.
fn immediate(scalar: *const c_void, dtype: DataType) -> Result<u64> {
    fn read<T: Copy>(scalar: *const c_void) -> Result<T> {
        In::inside(scalar.cast::<T>()).read("scalar")
    }
    let float = |value: f32| u64::from(value.to_bits());
    Ok(match dtype {
        DataType::Int8 => i64::from(read::<i8>(scalar)?).cast_unsigned(),
        DataType::Uint8 => read::<u8>(scalar)?.into(),
        DataType::Int32 => i64::from(read::<i32>(scalar)?).cast_unsigned(),
        DataType::Uint32 => read::<u32>(scalar)?.into(),
        DataType::Int64 | DataType::Uint64 => read(scalar)?,
        DataType::Float16 => float(f16::from_bits(read(scalar)?).to_f32()),
        DataType::Bfloat16 => float(bf16::from_bits(read(scalar)?).to_f32()),
        DataType::Float32 => float(read(scalar)?),
        DataType::Float64 => read::<f64>(scalar)?.to_bits(),
        DataType::Float8e4m3 => float(e4m3(read(scalar)?)),
        // e5m2 is the upper byte of a half.
        DataType::Float8e5m2 => float(f16::from_bits(u16::from(read::<u8>(scalar)?) << 8).to_f32()),
    })
}

/// OCP 8-bit float, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, NaN is all ones.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

fn wrong_type(op: c_int, made_for: DataType, used_with: DataType) -> Error {
    Error::invalid_argument(format!(
        "op {op} was created for {}, not for {}",
        made_for.name(),
        used_with.name()
    ))
    .remedy("create one reduction per data type")
}

fn unknown(op: c_int) -> Error {
    let foreign = handle::all().iter().any(|other| other.ops.has(op));
    let why =
        if foreign { "belongs to another communicator" } else { "is not a reduction, or was destroyed" };
    Error::invalid_argument(format!("op {op} {why}"))
        .remedy("use ncclSum (0) to ncclAvg (4) or what ncclRedOpCreatePreMulSum gave for this communicator")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_has_the_values_of_the_ocp_table() {
        for (bits, value) in [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(bits), value, "{bits:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn immediate_factors_are_converted_per_type() {
        fn bits<T>(value: T, dtype: DataType) -> u64 {
            immediate((&raw const value).cast(), dtype).unwrap()
        }
        let two_and_a_half = u64::from(2.5f32.to_bits());
        assert_eq!(bits(f16::from_f32(2.5), DataType::Float16), two_and_a_half);
        assert_eq!(bits(bf16::from_f32(2.5), DataType::Bfloat16), two_and_a_half);
        assert_eq!(bits(2.5f32, DataType::Float32), two_and_a_half);
        assert_eq!(bits(0x42u8, DataType::Float8e4m3), two_and_a_half);
        assert_eq!(bits(0x41u8, DataType::Float8e5m2), two_and_a_half);
        assert_eq!(bits(2.5f64, DataType::Float64), 2.5f64.to_bits());
        assert_eq!(bits(-3i8, DataType::Int8), -3i64 as u64);
        assert_eq!(bits(253u8, DataType::Uint8), 253);
        assert_eq!(bits(-3i32, DataType::Int32), -3i64 as u64);
        assert_eq!(bits(u32::MAX, DataType::Uint32), u64::from(u32::MAX));
        assert_eq!(bits(-3i64, DataType::Int64), -3i64 as u64);
        assert_eq!(bits(u64::MAX, DataType::Uint64), u64::MAX);
    }

    #[test]
    fn a_reduction_is_known_until_it_is_destroyed() {
        let (ops, others) = (UserOps::default(), UserOps::default());
        let op = ops.insert(DataType::Float32, Scalar::Immediate(9));
        assert!(op >= BUILT_IN_OPS);
        assert_ne!(op, others.insert(DataType::Float32, Scalar::Immediate(9)));
        assert_eq!(ops.find(op, DataType::Float32).unwrap(), (ReduceOp::PreMulSum, Scalar::Immediate(9)));
        assert!(ops.find(op, DataType::Float64).unwrap_err().text.contains("created for float"));
        assert!(others.find(op, DataType::Float32).is_err());
        ops.remove(op).unwrap();
        assert!(ops.remove(op).is_err() && ops.find(op, DataType::Float32).is_err());
    }

    #[test]
    fn built_in_reductions_keep_their_numbers() {
        let ops = UserOps::default();
        let names: Vec<_> = (0..5).map(|op| ops.find(op, DataType::Int8).unwrap().0.name()).collect();
        assert_eq!(names, ["sum", "prod", "max", "min", "avg"]);
        assert!(ops.find(-1, DataType::Int8).is_err() && ops.find(5_000_000, DataType::Int8).is_err());
    }
}
