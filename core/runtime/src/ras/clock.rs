//! The time as clients of RAS are told it: local, in the form of NCCL.

use std::time::{SystemTime, UNIX_EPOCH};

/// A moment as `2026-01-31 23:59:59` in the time zone of the process.
pub fn local(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = libc::time_t::try_from(seconds).unwrap_or(0);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both places are valid, and the function writes nothing else.
    let is_known = !unsafe { libc::localtime_r(&seconds, parts.as_mut_ptr()) }.is_null();
    // SAFETY: zeroed before, and all its fields are numbers or a pointer that may be null.
    let tm = unsafe { parts.assume_init() };
    if !is_known {
        return "1970-01-01 00:00:00".into();
    }
    let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
    format!("{year:04}-{month:02}-{:02} {:02}:{:02}:{:02}", tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_have_a_form_that_sorts() {
        let days = |days: u64| local(UNIX_EPOCH + Duration::from_secs(86_400 * days));
        // A day or more after each other, whatever the time zone.
        assert!(days(366).starts_with("1971-01-0"), "{}", days(366));
        assert!(days(366) < days(400) && days(20_000).starts_with("2024-10-0"));
        assert_eq!(days(0).len(), "2026-01-31 23:59:59".len());
    }
}
