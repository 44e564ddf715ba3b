//! Where settings come from, and how one value is read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::HONOURED;

/// Where values come from: names to values, the environment already laid over the files.
pub(super) struct Source {
    pub(super) values: BTreeMap<String, String>,
    complaints: RefCell<Vec<String>>,
    /// Like complaints, but nothing comes up with them.
    pub(super) faults: RefCell<Vec<String>>,
}

impl Source {
    /// The first of several values of a name counts, also if it is empty: an empty variable takes back what a file sets.
    pub(super) fn of(pairs: impl Iterator<Item = (String, String)>) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in pairs {
            values.entry(name).or_insert(value);
        }
        values.retain(|_, value| !value.trim().is_empty());
        Self { values, complaints: Default::default(), faults: Default::default() }
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        // An env plugin is asked for those names only.
        debug_assert!(HONOURED.contains(&name), "{name} is missing from HONOURED");
        self.values.get(name).map(|v| v.trim().to_owned())
    }

    pub(super) fn parsed<T: std::str::FromStr>(&self, name: &str, accepted: &str) -> Option<T> {
        let text = self.text(name)?;
        let value = text.parse().ok();
        if value.is_none() {
            self.complain(format!("{name}={text} is ignored: it must be {accepted}"));
        }
        value
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.parsed::<i64>(name, "0 or 1").is_some_and(|v| v != 0)
    }

    /// Seconds, at most so many.
    pub(super) fn seconds(&self, name: &str, most: u32) -> Option<Duration> {
        let accepted = format!("a number of seconds from 0 to {most}");
        let seconds = self.parsed::<f64>(name, &accepted)?;
        // What is no number is in no range.
        if !(0.0..=f64::from(most)).contains(&seconds) {
            self.complain(format!("{name}={seconds} is ignored: it must be {accepted}"));
            return None;
        }
        Some(Duration::from_secs_f64(seconds))
    }

    /// 0 or 1, or a word for them; None if unset or `auto`.
    pub(super) fn choice(&self, name: &str) -> Option<bool> {
        self.demanded(name, "0, 1 or auto", |text| {
            Some(match text.to_ascii_lowercase().as_str() {
                "0" | "off" | "no" | "false" => Some(false),
                "1" | "on" | "yes" | "true" => Some(true),
                "auto" => None,
                _ => return None,
            })
        })
        .flatten()
    }

    /// A value that must parse: another one is a fault.
    pub(super) fn demanded<T>(
        &self,
        name: &str,
        accepted: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let value = parse(&text);
        if value.is_none() {
            let fault = format!("{name}={text} means nothing: it must be {accepted}");
            let mut faults = self.faults.borrow_mut();
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        value
    }

    /// 0, 1 or 2.
    pub(super) fn level(&self, name: &str) -> u8 {
        self.demanded(name, "0, 1 or 2", |text| text.parse().ok().filter(|level| *level <= 2)).unwrap_or(0)
    }

    /// Bytes: a number, perhaps with K, M, G or T (binary), perhaps followed by B or iB.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        self.demanded(name, "a number of bytes such as 33554432, 512MB or 1.5GB", parse_size)
    }

    pub(super) fn word(&self, name: &str, accepted: &[&str]) -> Option<String> {
        let text = self.text(name)?;
        let found = accepted.iter().find(|a| a.eq_ignore_ascii_case(&text)).map(|a| (*a).to_owned());
        if found.is_none() {
            self.complain(format!("{name}={text} is ignored: it must be one of {}", accepted.join(", ")));
        }
        found
    }

    pub(super) fn complain(&self, text: String) {
        self.complaints.borrow_mut().push(text);
    }

    /// Values that did not parse.
    pub(super) fn wrong_values(&self) -> Vec<String> {
        self.complaints.borrow().clone()
    }

    /// Values that did not parse, and names that look like typing errors of honoured ones.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut all = self.wrong_values();
        for name in self.values.keys().filter(|n| !HONOURED.contains(&n.as_str())) {
            let near = HONOURED.iter().min_by_key(|h| distance(name, h)).filter(|h| distance(name, h) <= 2);
            if let Some(near) = near {
                all.push(format!("{name} is not a setting of this library; did you mean {near}?"));
            }
        }
        all
    }
}

pub(super) fn parse_file(text: &str) -> impl Iterator<Item = (String, String)> {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('='))
        .map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned()))
}

/// See [`Source::size`].
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

/// Edit distance between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for j in 0..b.len() {
            let next = (diagonal + usize::from(ca != b[j])).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::env) fn source(pairs: &[(&str, &str)]) -> Source {
        Source::of(pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
    }

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
        let faults =
            source(&[("NCCL_PASS_SM", "3"), ("NCCL_PSM_BUFFER_SIZE", "12 parsecs")]).settings().faults;
        assert!(faults.iter().any(|fault| fault.contains("NCCL_PASS_SM=3") && fault.contains("0, 1 or 2")));
        assert!(faults.iter().any(|fault| fault.contains("12 parsecs") && fault.contains("512MB")));
    }

    #[test]
    fn files_are_trimmed_and_comments_skipped() {
        let pairs: Vec<_> = parse_file("# NCCL_ALGO=Tree\nNCCL_ALGO = Ring \nnonsense\n").collect();
        assert_eq!(pairs, [("NCCL_ALGO".to_owned(), "Ring".to_owned())]);
    }

    #[test]
    fn the_first_value_of_a_name_counts() {
        let environment = [("NCCL_PROTO", ""), ("NCCL_ALGO", "Tree")];
        let file = parse_file("NCCL_ALGO=Ring\nNCCL_PROTO=LL\nNCCL_NET=Socket\nNCCL_NET=IB\n");
        let pairs = environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let settings = Source::of(pairs.chain(file)).settings();
        assert_eq!(
            [settings.algo.as_deref(), settings.proto.as_deref(), settings.net.as_deref()],
            [Some("Tree"), None, Some("Socket")]
        );
    }
}
