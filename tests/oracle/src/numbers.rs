//! Element types as numbers: decoding and encoding of all twelve, fp8 included.
//!
//! fp8 follows the OCP 8-bit floating point specification: e4m3 has bias 7, no infinities and one
//! NaN per sign; e5m2 has bias 15 and IEEE-like infinities and NaNs.

use std::sync::OnceLock;

use half::{bf16, f16};
use hawser_types::DataType;

/// An element's value, exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Of one of the integer types.
    Int(i128),
    /// Of one of the floating-point types.
    Float(f64),
}

/// Significant binary digits of a floating-point type, the hidden one included; 0 for integers.
pub fn digits(dtype: DataType) -> u32 {
    match dtype {
        DataType::Float8e5m2 => 3,
        DataType::Float8e4m3 => 4,
        DataType::Bfloat16 => 8,
        DataType::Float16 => 11,
        DataType::Float32 => 24,
        DataType::Float64 => 53,
        _ => 0,
    }
}

/// The value of the element in `bytes`, which holds exactly one element in native byte order.
pub fn decode(dtype: DataType, bytes: &[u8]) -> Number {
    let raw = widen(bytes);
    match dtype {
        DataType::Int8 => Number::Int(i128::from(raw as i8)),
        DataType::Int32 => Number::Int(i128::from(raw as i32)),
        DataType::Int64 => Number::Int(i128::from(raw as i64)),
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => Number::Int(i128::from(raw)),
        DataType::Float16 => Number::Float(f16::from_bits(raw as u16).to_f64()),
        DataType::Bfloat16 => Number::Float(bf16::from_bits(raw as u16).to_f64()),
        DataType::Float32 => Number::Float(f64::from(f32::from_bits(raw as u32))),
        DataType::Float64 => Number::Float(f64::from_bits(raw)),
        DataType::Float8e4m3 => Number::Float(e4m3().decode(raw as u8)),
        DataType::Float8e5m2 => Number::Float(e5m2().decode(raw as u8)),
    }
}

/// Writes `value` as one element: integers keep their low bits, floats round to nearest even, fp8
/// saturates. A value of the wrong kind is converted first.
pub fn encode(dtype: DataType, value: Number, out: &mut [u8]) {
    let real = match value {
        Number::Int(v) => v as f64,
        Number::Float(v) => v,
    };
    let raw: u64 = match dtype {
        DataType::Float16 => u64::from(f16::from_f32(to_odd(real)).to_bits()),
        DataType::Bfloat16 => u64::from(bf16::from_f32(to_odd(real)).to_bits()),
        DataType::Float32 => u64::from((real as f32).to_bits()),
        DataType::Float64 => real.to_bits(),
        DataType::Float8e4m3 => u64::from(e4m3().encode(real)),
        DataType::Float8e5m2 => u64::from(e5m2().encode(real)),
        _ => match value {
            Number::Int(v) => v as u64,
            Number::Float(v) => v as i128 as u64,
        },
    };
    let size = dtype.size();
    out[..size].copy_from_slice(&raw.to_le_bytes()[..size]);
}

/// The value as a float whose last digit is 1 where digits were cut off, so that rounding it to fewer digits
/// is as good as rounding the value. (`from_f64` of the half types looks at half of the bits only.)
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if value.is_nan() || f64::from(near) == value {
        return near;
    }
    let is_larger = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(is_larger)) | 1)
}

/// Little-endian bytes (all supported hosts are) as an unsigned number.
fn widen(bytes: &[u8]) -> u64 {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(raw)
}

/// One of the fp8 formats as a table.
struct Fp8 {
    values: [f64; 256],
    /// The largest finite positive code; codes below it are in order of value.
    top: u8,
    nan: u8,
}

fn e4m3() -> &'static Fp8 {
    static TABLE: OnceLock<Fp8> = OnceLock::new();
    TABLE.get_or_init(|| {
        Fp8::new(3, 7, 0x7e, |exponent, mantissa| (exponent == 15 && mantissa == 7).then_some(f64::NAN))
    })
}

fn e5m2() -> &'static Fp8 {
    static TABLE: OnceLock<Fp8> = OnceLock::new();
    TABLE.get_or_init(|| {
        Fp8::new(2, 15, 0x7b, |exponent, mantissa| {
            (exponent == 31).then_some(if mantissa == 0 { f64::INFINITY } else { f64::NAN })
        })
    })
}

impl Fp8 {
    fn new(mantissa_bits: u32, bias: i32, top: u8, special: impl Fn(u32, u32) -> Option<f64>) -> Self {
        let values = std::array::from_fn(|code| {
            let code = code as u32;
            let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
            let exponent = (code & 0x7f) >> mantissa_bits;
            let mantissa = code & ((1 << mantissa_bits) - 1);
            let fraction = f64::from(mantissa) / f64::from(1u32 << mantissa_bits);
            let magnitude = special(exponent, mantissa).unwrap_or_else(|| match exponent {
                0 => fraction * 2f64.powi(1 - bias),
                _ => (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
            });
            sign * magnitude
        });
        Self { values, top, nan: 0x7f }
    }

    fn decode(&self, code: u8) -> f64 {
        self.values[usize::from(code)]
    }

    /// The nearest code, the even one of two equally near; beyond the largest finite value that one.
    fn encode(&self, value: f64) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs();
        let finite = &self.values[..=usize::from(self.top)];
        let above = finite.partition_point(|v| *v < magnitude);
        if above > usize::from(self.top) {
            return sign | self.top;
        }
        if above == 0 {
            return sign;
        }
        let (low, high) = (magnitude - finite[above - 1], finite[above] - magnitude);
        let up = high < low || (high == low && above.is_multiple_of(2));
        sign | if up { above as u8 } else { above as u8 - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(dtype: DataType, code: u8) -> f64 {
        match decode(dtype, &[code]) {
            Number::Float(v) => v,
            Number::Int(_) => panic!("not a float"),
        }
    }

    /// A digit far behind the last one decides between two neighbours that are equally near without it.
    #[test]
    fn halves_are_rounded_by_all_digits() {
        for (dtype, digits) in [(DataType::Bfloat16, 8), (DataType::Float16, 11)] {
            let middle = 1.0 + 2f64.powi(-digits);
            for (value, want) in [
                (middle, 1.0),
                (middle + 2f64.powi(-50), 1.0 + 2f64.powi(1 - digits)),
                (middle + 2f64.powi(1 - digits) - 2f64.powi(-50), 1.0 + 2f64.powi(1 - digits)),
                (middle + 2f64.powi(1 - digits), 1.0 + 2f64.powi(2 - digits)),
            ] {
                let mut bytes = [0; 2];
                encode(dtype, Number::Float(value), &mut bytes);
                assert_eq!(decode(dtype, &bytes), Number::Float(want), "{dtype:?} {value}");
            }
        }
    }

    #[test]
    fn fp8_known_codes() {
        let e4m3 = [
            (0x00, 0.0),
            (0x01, 2f64.powi(-9)),
            (0x07, 7.0 / 512.0),
            (0x08, 2f64.powi(-6)),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ];
        for (code, want) in e4m3 {
            assert_eq!(value(DataType::Float8e4m3, code), want, "e4m3 {code:#x}");
        }
        let e5m2 = [
            (0x00, 0.0),
            (0x01, 2f64.powi(-16)),
            (0x04, 2f64.powi(-14)),
            (0x3c, 1.0),
            (0x3e, 1.5),
            (0x7b, 57344.0),
            (0x7c, f64::INFINITY),
            (0xfc, f64::NEG_INFINITY),
        ];
        for (code, want) in e5m2 {
            assert_eq!(value(DataType::Float8e5m2, code), want, "e5m2 {code:#x}");
        }
        let nans = |dtype| (0..=255u8).filter(|c| value(dtype, *c).is_nan()).collect::<Vec<_>>();
        assert_eq!(nans(DataType::Float8e4m3), [0x7f, 0xff]);
        assert_eq!(nans(DataType::Float8e5m2), [0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff]);
    }

    #[test]
    fn fp8_codes_survive_a_round_trip() {
        for dtype in [DataType::Float8e4m3, DataType::Float8e5m2] {
            for code in 0..=255u8 {
                let v = value(dtype, code);
                if v.is_finite() {
                    let mut out = [0];
                    encode(dtype, Number::Float(v), &mut out);
                    assert_eq!(out[0], code, "{dtype:?} {v}");
                }
            }
        }
    }

    #[test]
    fn e5m2_is_the_upper_byte_of_half() {
        for code in 0..=255u8 {
            let wide = f16::from_bits(u16::from(code) << 8).to_f64();
            let ours = value(DataType::Float8e5m2, code);
            assert!(ours == wide || (ours.is_nan() && wide.is_nan()), "{code:#x}: {ours} != {wide}");
        }
    }

    #[test]
    fn fp8_rounds_to_nearest_even_and_saturates() {
        let code = |dtype, v| {
            let mut out = [0];
            encode(dtype, Number::Float(v), &mut out);
            out[0]
        };
        assert_eq!(code(DataType::Float8e4m3, 1e9), 0x7e);
        assert_eq!(code(DataType::Float8e4m3, -1e9), 0xfe);
        assert_eq!(code(DataType::Float8e4m3, f64::NAN), 0x7f);
        assert_eq!(code(DataType::Float8e4m3, 1.0625), 0x38); // half way to 1.125: even stays
        assert_eq!(code(DataType::Float8e4m3, 1.1875), 0x3a); // half way between odd 0x39 and even 0x3a
        assert_eq!(code(DataType::Float8e4m3, 1.07), 0x39);
        assert_eq!(code(DataType::Float8e5m2, 1e9), 0x7b);
        assert_eq!(code(DataType::Float8e5m2, 2f64.powi(-17)), 0x00); // half of the least: even
        assert_eq!(code(DataType::Float8e5m2, 2f64.powi(-17) * 1.01), 0x01);
    }

    #[test]
    fn all_types_keep_small_integers() {
        for dtype in DataType::ALL {
            for v in [0i128, 1, 2, 5, 7] {
                let number = if dtype.is_float() { Number::Float(v as f64) } else { Number::Int(v) };
                let mut out = [0; 8];
                encode(dtype, number, &mut out);
                assert_eq!(decode(dtype, &out[..dtype.size()]), number, "{dtype:?}");
            }
        }
    }

    #[test]
    fn integers_wrap_and_extend() {
        let mut out = [0; 8];
        encode(DataType::Int8, Number::Int(200), &mut out);
        assert_eq!(decode(DataType::Int8, &out[..1]), Number::Int(-56));
        encode(DataType::Uint32, Number::Int(-1), &mut out);
        assert_eq!(decode(DataType::Uint32, &out[..4]), Number::Int(i128::from(u32::MAX)));
        encode(DataType::Int64, Number::Int(i128::from(i64::MIN)), &mut out);
        assert_eq!(decode(DataType::Int64, &out), Number::Int(i128::from(i64::MIN)));
    }
}
