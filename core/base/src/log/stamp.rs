//! The time in front of lines of NCCL's form (`NCCL_DEBUG_TIMESTAMP_FORMAT`, `NCCL_DEBUG_TIMESTAMP_LEVELS`).

use std::ffi::CString;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The room for a time, in bytes, with the zero at its end.
const LONGEST: usize = 256;

/// A time of some form in front of lines of some levels.
#[derive(Debug, Clone)]
pub(super) struct Stamp {
    /// The form in the words of strftime(3), where `%3f` stands for three digits of the second's parts.
    format: String,
    /// The levels, as bits with NCCL's numbers.
    levels: u32,
}

impl Stamp {
    /// A stamp of this form for these levels.
    pub fn new(format: &str, levels: u32) -> Self {
        Self { format: format.to_owned(), levels }
    }

    /// The time in front of a line of a level, by NCCL's number; empty where it has none.
    pub fn text(&self, level: u32, now: SystemTime) -> String {
        match self.levels & 1 << level {
            0 => String::new(),
            _ => written(&self.format, now.duration_since(UNIX_EPOCH).unwrap_or_default()),
        }
    }
}

/// A time since 1970 in a form and in local time; empty if the form gives nothing, or too much.
fn written(format: &str, since: Duration) -> String {
    let Ok(format) = CString::new(with_parts(format, since.subsec_nanos())) else { return String::new() };
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or(0);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both places are valid, and the function writes nothing else.
    if unsafe { libc::localtime_r(&seconds, parts.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    let mut text = [0u8; LONGEST];
    let place = text.as_mut_ptr().cast();
    // SAFETY: the place has that length, the form is terminated, and the time was filled above.
    let length = unsafe { libc::strftime(place, LONGEST, format.as_ptr(), parts.as_ptr()) };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// The form with digits where it says `%1f` to `%9f`; all else is left to strftime.
fn with_parts(format: &str, nanoseconds: u32) -> String {
    let digits = format!("{nanoseconds:09}");
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match rest.as_bytes() {
            [_, count @ b'1'..=b'9', b'f', ..] => {
                out.push_str(&digits[..usize::from(count - b'0')]);
                3
            }
            _ => {
                // What follows belongs to this sign, so that `%%3f` is a text.
                let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&rest[..length]);
                length
            }
        };
        rest = &rest[length..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_time_in_the_form_that_is_wanted() {
        let now = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        let stamp = Stamp::new("[%F %T.%3f] ", 1 << 2 | 1 << 6);
        let text = stamp.text(2, now);
        assert!(text.starts_with("[2023-11-1") && text.ends_with(":20.123] "), "{text}");
        assert_eq!(stamp.text(3, now), "");
        assert_eq!(Stamp::new("%6f|%9f|%1f", 1 << 3).text(3, now), "123456|123456789|1");
        assert_eq!(Stamp::new("%%3f é%", 1 << 3).text(3, now)[.."%3f é".len()], *"%3f é");
    }

    #[test]
    fn a_form_that_gives_too_much_gives_no_time() {
        assert_eq!(written(&"%F".repeat(200), Duration::ZERO), "");
        assert_eq!(written("a\0b", Duration::ZERO), "");
        assert_eq!(written("", Duration::ZERO), "");
    }
}
