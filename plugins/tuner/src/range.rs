//! Ranges of sizes and counts, as rule files write them: `64K`, `..64K`, `1M..16M`, `1M..=16M`, `2..`.
//!
//! As in Rust, the end does not belong to the range unless `=` stands before it. So `..64K` and `64K..` leave
//! nothing out and share nothing.

use std::ops::RangeInclusive;

/// Suffixes of sizes: powers of 1024.
const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Reads a range. `sizes`: numbers may have a suffix.
///
/// # Errors
/// A sentence that says what is wrong and what would be right.
pub fn parse(text: &str, sizes: bool) -> Result<RangeInclusive<u64>, String> {
    let Some((first, last)) = text.split_once("..") else {
        let number = number(text, sizes)?;
        return Ok(number..=number);
    };
    let start = if first.trim().is_empty() { 0 } else { number(first, sizes)? };
    let end = match last.trim().strip_prefix('=') {
        Some(last) => number(last, sizes)?,
        None if last.trim().is_empty() => u64::MAX,
        None => {
            let end = number(last, sizes)?;
            if end <= start {
                return Err(format!(
                    "\"{text}\" holds nothing: the end does not belong to it (write ..= for that)"
                ));
            }
            end - 1
        }
    };
    if start > end {
        return Err(format!("\"{text}\" holds nothing: exchange its ends"));
    }
    Ok(start..=end)
}

/// Reads a number; with `sizes`, one with a suffix: 64K, 1.5M, 2G (powers of 1024; `KiB` and the like are
/// fine too).
///
/// # Errors
/// A sentence that says what is wrong and what would be right.
pub fn number(text: &str, sizes: bool) -> Result<u64, String> {
    let text = text.trim();
    let wrong = || match sizes {
        true => format!("\"{text}\" is no size: write a number of bytes, or 64K, 1.5M, 2G"),
        false => format!("\"{text}\" is no number"),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_' && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let (digits, fraction) = digits.split_once('.').map_or((digits, None), |(d, f)| (d, Some(f)));
    let number: u64 = digits.replace('_', "").parse().map_err(|_| wrong())?;
    let shift = if unit.trim().is_empty() { 0 } else { shift(unit.trim(), sizes).ok_or_else(wrong)? };
    let whole = u128::from(number) << shift;
    let bytes = match fraction {
        None => whole,
        // Nine digits are more than a fraction of a terabyte can have.
        Some(digits) if shift > 0 && (1..=9).contains(&digits.len()) => {
            let part: u128 = digits.parse().map_err(|_| wrong())?;
            let (part, all) = (part << shift, 10_u128.pow(digits.len() as u32));
            if !part.is_multiple_of(all) {
                return Err(format!("\"{text}\" is no whole number of bytes"));
            }
            whole + part / all
        }
        Some(_) => return Err(wrong()),
    };
    u64::try_from(bytes).map_err(|_| format!("\"{text}\" is more than 64 bits hold"))
}

/// The power of two of a unit: `K`, `KB` or `KiB`, and `B`.
fn shift(unit: &str, sizes: bool) -> Option<u32> {
    if sizes && unit.eq_ignore_ascii_case("B") {
        return Some(0);
    }
    let letter = unit.chars().next().map(|c| c.to_ascii_uppercase());
    let (_, shift) = UNITS.iter().find(|(name, _)| sizes && Some(*name) == letter)?;
    let rest = unit.get(1..).unwrap_or_default();
    ["", "B", "iB"].iter().any(|end| end.eq_ignore_ascii_case(rest)).then_some(*shift)
}

/// The shortest text that [`parse`] reads as this range.
pub fn text(range: &RangeInclusive<u64>, sizes: bool) -> String {
    let number = |number: u64| if sizes { size(number) } else { number.to_string() };
    let (start, end) = range.clone().into_inner();
    let first = if start == 0 { String::new() } else { number(start) };
    match end {
        _ if start == end => number(start),
        u64::MAX => format!("{first}.."),
        // 0..64K is nicer than 0..=65535, and 1..=100 than 1..101.
        _ if sizes && (end + 1).trailing_zeros() >= 10 => format!("{first}..{}", number(end + 1)),
        _ => format!("{first}..={}", number(end)),
    }
}

/// A size with the largest unit that needs no fraction.
pub fn size(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_are_left_out_unless_they_are_demanded() {
        for (text, range) in [
            ("..64K", 0..=65535),
            ("64K..", 65536..=u64::MAX),
            ("1M..16M", 1 << 20..=(16 << 20) - 1),
            ("1M..=16M", 1 << 20..=16 << 20),
            ("4KiB .. 8kb", 4096..=8191),
            ("..", 0..=u64::MAX),
            ("10_000", 10_000..=10_000),
            ("1.5M", 3 << 19..=3 << 19),
            ("0.25K..1.50 MiB", 256..=(3 << 19) - 1),
            ("0..1", 0..=0),
        ] {
            assert_eq!(parse(text, true), Ok(range), "{text}");
        }
    }

    #[test]
    fn what_is_no_range_is_told() {
        for (text, sizes, words) in [
            ("", true, "is no size"),
            ("64X", true, "write a number of bytes, or 64K"),
            ("1.3K", true, "is no whole number of bytes"),
            ("1.5", true, "is no size"),
            ("1.5B", true, "is no size"),
            ("1.M", true, "is no size"),
            (".5M", true, "is no size"),
            ("1.2.3M", true, "is no size"),
            ("1.5M", false, "is no number"),
            ("4K", false, "is no number"),
            ("-1", false, "is no number"),
            ("8..8", false, "holds nothing"),
            ("9..=8", false, "exchange its ends"),
            ("..0", true, "holds nothing"),
            ("99999999999999999999", true, "is no size"),
            ("99999999T", true, "more than 64 bits"),
            ("KB", true, "is no size"),
            ("1..2..3", true, "is no size"),
            ("5é", true, "is no size"),
        ] {
            let error = parse(text, sizes).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_range_is_read_as_it_is_written(
            (a, b) in any::<(u64, u64)>(), shift in 0..64u32, sizes: bool
        ) {
            let (a, b) = (a >> shift << (shift / 2), b >> shift);
            let range = a.min(b)..=a.max(b);
            prop_assert_eq!(parse(&text(&range, sizes), sizes), Ok(range));
        }

        #[test]
        fn any_text_is_a_range_or_an_error(text: String, sizes: bool) {
            if let Ok(range) = parse(&text, sizes) {
                prop_assert!(!range.is_empty());
            }
        }
    }
}
