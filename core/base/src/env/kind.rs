//! The kinds of values that settings have: what is accepted, what it means, and what becomes of anything
//! else.

use std::time::Duration;

use hawser_oob::wire::Wire;
use hawser_types::Class;

use super::parameter::LEVELS;
use super::table::{CheckMode, Explain};

/// The form in which programs read the value of a setting (`ncclParam…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// An integer of any width that holds it.
    Number,
    /// NCCL's `bool`: one byte.
    Flag,
    /// NCCL's `ncclDebugLogLevel`.
    Level,
    /// Levels of the log, as bits of a `uint32_t`.
    Levels,
    /// Parts of the log, as bits of a `uint64_t`.
    Subsystems,
}

/// The longest deadline that can be set, in seconds (30 years): clocks can count that far.
const MOST_SECONDS: u32 = 1_000_000_000;

/// A kind of value, which means a `T`.
pub(super) struct Kind<T> {
    /// The values that are accepted, in words that continue "it must be".
    pub accepted: &'static str,
    /// Gives what a text means, or None if it is not accepted.
    pub parse: fn(&str) -> Option<T>,
    /// True if a value that is not accepted is a fault with which no communicator comes up. A limit that
    /// silently does not hold would be worse. Values of other kinds are ignored with a warning.
    pub is_strict: bool,
    /// The form in which programs read it.
    pub form: Form,
}

impl<T> Kind<T> {
    /// A kind whose wrong values are ignored with a warning.
    const fn lenient(accepted: &'static str, parse: fn(&str) -> Option<T>) -> Self {
        Self { accepted, parse, is_strict: false, form: Form::Number }
    }

    /// A kind whose wrong values are faults.
    const fn strict(accepted: &'static str, parse: fn(&str) -> Option<T>) -> Self {
        Self { accepted, parse, is_strict: true, form: Form::Number }
    }

    /// The same kind, which programs read in this form.
    const fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

/// Any text.
pub(super) const TEXT: Kind<String> =
    Kind::lenient("a text", |text| Some(text.to_owned())).in_form(Form::Text);

/// A level of NCCL's log.
pub(super) const LOG_LEVEL: Kind<String> = TEXT.in_form(Form::Level);

/// Parts of NCCL's log.
pub(super) const LOG_PARTS: Kind<String> = TEXT.in_form(Form::Subsystems);

/// Levels of NCCL's log, in any number.
pub(super) const LOG_LEVELS: Kind<u32> =
    Kind::lenient("VERSION, WARN, ATTN, INFO, ABORT, TRACE or ALL, with commas between them", |text| {
        u32::try_from(LEVELS.bits(text)?).ok()
    })
    .in_form(Form::Levels);

/// Yes or no as NCCL's newer parameters have it.
pub(super) const NCCL_FLAG: Kind<bool> =
    Kind::lenient("1, T, TRUE, 0, F or FALSE", |text| match text.to_ascii_uppercase().as_str() {
        "1" | "T" | "TRUE" => Some(true),
        "0" | "F" | "FALSE" => Some(false),
        _ => None,
    })
    .in_form(Form::Flag);

/// 0 for no, 1 for yes, or the program that tries plugins first.
pub(super) const PROBE: Kind<Option<String>> =
    Kind::lenient("0, 1 or a path", |text| Some((text != "0").then(|| text.to_owned()))).in_form(Form::Text);

/// Yes or no as a number: all but 0 is yes.
pub(super) const FLAG: Kind<bool> = Kind::lenient("0 or 1", |text| Some(text.parse::<i64>().ok()? != 0));

/// The opposite of a [`FLAG`], for variables that forbid something.
pub(super) const UNLESS: Kind<bool> = Kind::lenient(FLAG.accepted, |text| Some(!(FLAG.parse)(text)?));

/// Yes, no or, by a negative number, as it comes.
pub(super) const MEMORY: Kind<Option<bool>> = Kind::lenient("0, 1 or -1", |text| {
    let value = text.parse::<i64>().ok()?;
    Some((value >= 0).then_some(value != 0))
});

/// A number from 0 on.
pub(super) const NUMBER: Kind<u32> = Kind::lenient("a number", |text| text.parse().ok());

/// A count.
pub(super) const COUNT: Kind<u32> = Kind::lenient("a positive number", |text| text.parse().ok());

/// Bytes without a unit.
pub(super) const BYTES: Kind<u64> = Kind::lenient("a number of bytes", |text| text.parse().ok());

/// A time without a unit, in milliseconds.
pub(super) const MILLISECONDS: Kind<Duration> =
    Kind::lenient("milliseconds", |text| text.parse().ok().map(Duration::from_millis));

/// A time in seconds.
pub(super) const SECONDS: Kind<Duration> =
    Kind::lenient("a number of seconds from 0 to 1000000000", |text| seconds(text, MOST_SECONDS));

/// A time in seconds where 0 means no limit.
pub(super) const DEADLINE: Kind<Option<Duration>> = Kind::lenient(SECONDS.accepted, |text| {
    Some((SECONDS.parse)(text)?).map(|time| (!time.is_zero()).then_some(time))
});

/// A signal that means nothing by itself, as its number.
pub(super) const SIGNAL: Kind<i32> =
    Kind::lenient("USR1, USR2 or the number of a real-time signal (34 to 64)", |text| {
        match text.to_ascii_uppercase().trim_start_matches("SIG") {
            "USR1" => Some(libc::SIGUSR1),
            "USR2" => Some(libc::SIGUSR2),
            number => number.parse().ok().filter(|number| (34..=64).contains(number)),
        }
    })
    .in_form(Form::Text);

/// A time in seconds for a step of a change of rules; 0 means the default.
pub(super) const RULES_SECONDS: Kind<Duration> =
    Kind::lenient("a number of seconds from 0 to 86400", |text| {
        let time = seconds(text, 86_400)?;
        Some(if time.is_zero() { Duration::from_secs(10) } else { time })
    });

/// A kind of devices, which run collectives.
pub(super) const DEVICE: Kind<String> = Kind::lenient("one of auto, host, cuda", |text| {
    let word = text.to_ascii_lowercase();
    ["auto", "host", "cuda"].contains(&word.as_str()).then_some(word)
})
.in_form(Form::Text);

/// A family of network addresses, as the number of its version.
pub(super) const FAMILY: Kind<u8> =
    Kind::lenient("one of AF_INET, AF_INET6", |text| match text.to_ascii_uppercase().as_str() {
        "AF_INET" => Some(4),
        "AF_INET6" => Some(6),
        _ => None,
    })
    .in_form(Form::Text);

/// The distance at which a NIC may read and write GPU memory. Only "never" means something here.
pub(super) const GPU_DIRECT: Kind<bool> = Kind::lenient("a distance such as LOC or SYS", |text| {
    Some(text != "0" && !text.eq_ignore_ascii_case("LOC"))
})
.in_form(Form::Text);

/// The checks of calls.
pub(super) const CHECK_MODE: Kind<CheckMode> =
    Kind::lenient("one of DEFAULT, DEBUG_LOCAL, DEBUG_GLOBAL", |text| {
        match text.to_ascii_uppercase().as_str() {
            "DEFAULT" => Some(CheckMode::Default),
            "DEBUG_LOCAL" => Some(CheckMode::Local),
            "DEBUG_GLOBAL" => Some(CheckMode::Global),
            _ => None,
        }
    })
    .in_form(Form::Text);

/// The ranks that explain calls.
pub(super) const EXPLAIN: Kind<Explain> =
    Kind::lenient("one of 0, 1, all", |text| match text.to_ascii_lowercase().as_str() {
        "0" => Some(Explain::No),
        "1" => Some(Explain::First),
        "all" => Some(Explain::All),
        _ => None,
    })
    .in_form(Form::Text);

/// Yes, no or as it comes.
pub(super) const SWITCH: Kind<Option<bool>> = Kind::strict("0, 1 or auto", switch);

/// Yes or no, where `auto` is yes.
pub(super) const SWITCH_ON: Kind<bool> =
    Kind::strict("0, 1 or auto", |text| Some(switch(text)?.unwrap_or(true)));

/// Yes or no, where `auto` is no.
pub(super) const SWITCH_OFF: Kind<bool> =
    Kind::strict("0, 1 or auto", |text| Some(switch(text)?.unwrap_or(false)));

/// A protection of connections.
pub(super) const WIRE: Kind<Wire> = Kind::strict("plain or encrypt", Wire::parse).in_form(Form::Text);

/// A class of operations.
pub(super) const CLASS: Kind<Class> =
    Kind::strict("urgent, normal or best_effort", Class::named).in_form(Form::Text);

/// One of three levels.
pub(super) const LEVEL: Kind<u8> =
    Kind::strict("0, 1 or 2", |text| text.parse().ok().filter(|level| *level <= 2));

/// A number of CTAs, as many as an operation may have.
pub(super) const CTAS: Kind<u32> =
    Kind::strict("a number from 1 to 64", |text| text.parse().ok().filter(|ctas| (1..=64).contains(ctas)));

/// Bytes, with a unit if wanted.
pub(super) const SIZE: Kind<u64> =
    Kind::strict("a number of bytes such as 33554432, 512MB or 1.5GB", parse_size);

/// Bytes, with a unit if wanted; 0 means no limit.
pub(super) const LIMIT: Kind<Option<u64>> =
    Kind::strict(SIZE.accepted, |text| Some(Some(parse_size(text)?).filter(|bytes| *bytes > 0)));

/// A factor by which the pool grows.
pub(super) const GROWTH: Kind<f64> = Kind::strict("a number from 1.0 to 8.0", |text| {
    text.parse().ok().filter(|factor| (1.0..=8.0).contains(factor))
})
.in_form(Form::Text);

/// A time between two lines of a monitor.
pub(super) const INTERVAL: Kind<Duration> =
    Kind::strict("0 or a number of seconds from 0.1 on, such as 10, 500ms or 2m", |text| {
        parse_time(text).filter(|time| time.is_zero() || *time >= Duration::from_millis(100))
    })
    .in_form(Form::Text);

/// NCCL's choice of host memory, which has no effect here.
pub(super) const HOST_MEMORY: Kind<i64> =
    Kind::strict("0, 1 or -1 (auto)", |text| text.parse().ok().filter(|value| (-2..=1).contains(value)));

/// NCCL's policies of CTAs: a number of bits, or names joined with `|`. True if ZERO is one of them.
pub(super) const CTA_POLICY: Kind<bool> =
    Kind::strict("DEFAULT, EFFICIENCY and ZERO joined with |, or 0 to 3", |text| {
        if let Ok(bits) = text.parse::<u8>() {
            return (bits <= 3).then_some(bits & 2 != 0);
        }
        let is = |word: &str, name: &str| word.trim().eq_ignore_ascii_case(name);
        let known = |word: &str| ["DEFAULT", "EFFICIENCY", "ZERO"].iter().any(|name| is(word, name));
        text.split('|').all(known).then(|| text.split('|').any(|word| is(word, "ZERO")))
    })
    .in_form(Form::Text);

/// Yes, no or, by `auto`, as it comes.
pub(super) fn switch(text: &str) -> Option<Option<bool>> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "off" | "no" | "false" => Some(Some(false)),
        "1" | "on" | "yes" | "true" => Some(Some(true)),
        "auto" => Some(None),
        _ => None,
    }
}

/// Seconds, at most so many.
fn seconds(text: &str, most: u32) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok()?;
    // What is no number is in no range.
    (0.0..=f64::from(most)).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Bytes: a number, perhaps with K, M, G or T (binary), perhaps followed by B or iB.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let (shift, rest) = match unit.chars().next() {
        Some(letter @ ('k' | 'm' | 'g' | 't')) => {
            (10 * (1 + "kmgt".find(letter).unwrap_or(0) as i32), &unit[1..])
        }
        _ => (0, unit),
    };
    let bytes = number.parse::<f64>().ok()? * f64::from(shift).exp2();
    (matches!(rest, "" | "b") || rest == "ib" && shift > 0).then_some(())?;
    (bytes.fract() == 0.0 && bytes < 2f64.powi(60)).then_some(bytes as u64)
}

/// Seconds: a number, perhaps with `ms`, `s` or `m`.
fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_units() {
        let sizes = [
            ("33554432", 32 << 20),
            ("512MB", 512 << 20),
            ("2GB", 2 << 30),
            ("2 GiB", 2 << 30),
            ("1.5g", 3 << 29),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for wrong in ["", "MB", "12X", "1.3", "-1", "5iB", "1e9", "9999999TB", "1..2"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_take_units() {
        let times = [("10", 10_000), ("0.5", 500), ("250ms", 250), ("2 s", 2000), ("1.5m", 90_000)];
        for (text, millis) in times {
            assert_eq!(parse_time(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "s", "1h", "-1", "1..2"] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
    }
}
