//! The two 8-bit floating-point types (OCP 8-bit Floating Point Specification, revision 1.0).
//!
//! Conversions from `f32` round to nearest even and saturate to the largest finite value, as CUDA's
//! `__nv_cvt_float_to_fp8(…, __NV_SATFINITE, …)`.

/// 4 bits of exponent, 3 of mantissa, bias 7; no infinities, NaN is `S.1111.111`, largest value 448.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

/// 5 bits of exponent, 2 of mantissa, bias 15; infinities and NaN as IEEE, largest value 57344.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct E5m2(pub u8);

impl E4m3 {
    /// The exact value.
    pub fn to_f32(self) -> f32 {
        if self.0 & 0x7f == 0x7f {
            return f32::NAN;
        }
        decode(self.0, 3, 7)
    }

    /// The nearest value.
    pub fn from_f32(x: f32) -> Self {
        if x.is_nan() {
            return Self(0x7f);
        }
        Self(encode(x, 3, 7, 0x7e))
    }
}

impl E5m2 {
    /// The exact value.
    pub fn to_f32(self) -> f32 {
        match self.0 & 0x7f {
            0x7c => f32::INFINITY.copysign(if self.0 & 0x80 == 0 { 1.0 } else { -1.0 }),
            0x7d..=0x7f => f32::NAN,
            _ => decode(self.0, 2, 15),
        }
    }

    /// The nearest value.
    pub fn from_f32(x: f32) -> Self {
        if x.is_nan() {
            return Self(0x7f);
        }
        Self(encode(x, 2, 15, 0x7b))
    }
}

fn decode(bits: u8, mantissa_bits: u32, bias: i32) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((bits & 0x7f) >> mantissa_bits);
    let mantissa = f32::from(bits & ((1 << mantissa_bits) - 1)) / f32::from(1u8 << mantissa_bits);
    let (lead, power) = if exponent == 0 { (0.0, 1 - bias) } else { (1.0, exponent - bias) };
    sign * (lead + mantissa) * power_of_two(power)
}

/// 2 to a power within the normal numbers, exactly: `powi` promises no precision.
fn power_of_two(power: i32) -> f32 {
    f32::from_bits(((127 + power) as u32) << 23)
}

/// Codes of non-negative finite values ascend with the value, so the nearest is found among neighbours.
fn encode(x: f32, mantissa_bits: u32, bias: i32, largest: u8) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let x = x.abs();
    if x >= decode(largest, mantissa_bits, bias) {
        return sign | largest;
    }
    let exponent = ((x.to_bits() >> 23) as i32 - 127).max(1 - bias);
    // One unit in the last place at this exponent; the division is exact (a power of two).
    let units = x / power_of_two(exponent - mantissa_bits as i32);
    let rounded = units.round_ties_even() as u32;
    let base = ((exponent + bias - 1) as u32) << mantissa_bits;
    // Normal numbers have `1 << mantissa_bits <= rounded`, so a carry moves into the exponent by itself.
    sign | (base + rounded).min(u32::from(largest)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_survive_a_round_trip() {
        for code in 0..=255u8 {
            let (a, b) = (E4m3(code), E5m2(code));
            if !a.to_f32().is_nan() {
                assert_eq!(E4m3::from_f32(a.to_f32()), a, "e4m3 {code:#x}");
            }
            if b.to_f32().is_finite() {
                assert_eq!(E5m2::from_f32(b.to_f32()), b, "e5m2 {code:#x}");
            }
        }
    }

    #[test]
    fn known_values_ties_and_saturation() {
        assert_eq!(E4m3(0x7e).to_f32(), 448.0);
        assert_eq!(E5m2(0x7b).to_f32(), 57344.0);
        assert_eq!(E4m3(1).to_f32(), 1.0 / 512.0);
        assert_eq!(E4m3::from_f32(1e9).0, 0x7e);
        assert_eq!(E5m2::from_f32(f32::NEG_INFINITY).0, 0xfb);
        // 17 lies between 16 and 18 (step 2): ties go to the even code, 16.
        assert_eq!(E4m3::from_f32(17.0).to_f32(), 16.0);
        assert_eq!(E4m3::from_f32(19.0).to_f32(), 20.0);
        assert_eq!(E4m3::from_f32(1.0 / 1024.0).to_f32(), 0.0);
        assert!(E4m3::from_f32(f32::NAN).to_f32().is_nan());
    }
}
