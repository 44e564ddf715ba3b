//! The settings of memory and of moving data without multiprocessors. A value that means nothing is a fault: a limit that
//! silently does not hold would be worse than a communicator that does not come up.

use std::time::Duration;

use super::source::{Source, parse_size};
use crate::pool::Policy;

const SIZE: &str = "a number of bytes such as 33554432, 512MB or 1.5GB";

impl Source {
    /// The limits of the memory that the library takes.
    pub(super) fn pool(&self) -> Policy {
        let size = |name| self.demanded(name, SIZE, parse_size);
        let monitor = self.choice("NCCL_CUMEM_MONITOR").unwrap_or(false);
        let interval = self.demanded(
            "NCCL_CUMEM_MONITOR_INTERVAL",
            "0 or a number of seconds from 0.1 on, such as 10, 500ms or 2m",
            |text| parse_time(text).filter(|time| time.is_zero() || *time >= Duration::from_millis(100)),
        );
        Policy {
            floor: size("NCCL_CUMEM_POOL_SIZE").unwrap_or(0),
            preallocate: self.choice("NCCL_CUMEM_PREALLOC").unwrap_or(false),
            growth: self
                .demanded("NCCL_CUMEM_GROWTH_FACTOR", "a number from 1.0 to 8.0", |text| {
                    text.parse().ok().filter(|factor| (1.0..=8.0).contains(factor))
                })
                .unwrap_or(1.0),
            most: size("NCCL_CUMEM_MAX_SIZE").filter(|most| *most > 0),
            trim: size("NCCL_CUMEM_TRIM_THRESHOLD").unwrap_or(0),
            monitor: monitor.then(|| interval.unwrap_or(Duration::from_secs(10))),
        }
    }

    pub(super) fn sm_free_verbose(&self) -> u8 {
        let level = |text: &str| text.parse().ok().filter(|level| *level <= 2);
        self.demanded("NCCL_SM_FREE_VERBOSE", "0, 1 or 2", level).unwrap_or(0)
    }

    /// Most CTAs of what reduces beside copy engines.
    pub(super) fn reducing_ctas(&self) -> Option<u32> {
        let most = |text: &str| text.parse().ok().filter(|ctas| (1..=64).contains(ctas));
        self.demanded("HAWSER_SM_FREE_CTAS", "a number from 1 to 64", most)
    }

    /// `NCCL_CTA_POLICY`: a number or names joined with `|`.
    pub(super) fn no_ctas(&self) -> Option<bool> {
        self.demanded("NCCL_CTA_POLICY", "DEFAULT, EFFICIENCY and ZERO joined with |, or 0 to 3", |text| {
            if let Ok(bits) = text.parse::<u8>() {
                return (bits <= 3).then_some(bits & 2 != 0);
            }
            let is = |word: &str, name: &str| word.trim().eq_ignore_ascii_case(name);
            let known = |word: &str| ["DEFAULT", "EFFICIENCY", "ZERO"].iter().any(|name| is(word, name));
            text.split('|').all(known).then(|| text.split('|').any(|word| is(word, "ZERO")))
        })
    }

    /// What was found wrong. Looks at the settings that are accepted and change nothing here, too.
    pub(super) fn faults(&self) -> Vec<String> {
        let of_host = |text: &str| text.parse::<i64>().ok().filter(|value| (-2..=1).contains(value));
        self.demanded("NCCL_CUMEM_HOST_ENABLE", "0, 1 or -1 (auto)", of_host);
        self.choice("NCCL_PXN_DISABLE");
        self.choice("NCCL_ENABLE_FAULT_TOLERANCE");
        self.faults.borrow().clone()
    }
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
    use super::super::source::tests::source;
    use super::*;

    #[test]
    fn the_examples_mean_what_they_say() {
        let given = [
            ("NCCL_CUMEM_POOL_SIZE", "2GB"),
            ("NCCL_CUMEM_PREALLOC", "1"),
            ("NCCL_CUMEM_GROWTH_FACTOR", "1.5"),
            ("NCCL_CUMEM_MAX_SIZE", "8GB"),
            ("NCCL_CUMEM_TRIM_THRESHOLD", "1gib"),
            ("NCCL_CUMEM_MONITOR", "on"),
            ("NCCL_CUMEM_MONITOR_INTERVAL", "500ms"),
            ("NCCL_SM_FREE_VERBOSE", "2"),
            ("HAWSER_SM_FREE_CTAS", "16"),
            ("HAWSER_SM_FREE_ADD", "1"),
            ("NCCL_ZERO_COPY", "auto"),
            ("NCCL_DMA_ENABLE", "0"),
            ("NCCL_DIRECT_PATH", "0"),
            ("NCCL_PXN_DISABLE", "0"),
            ("NCCL_ENABLE_FAULT_TOLERANCE", "1"),
            ("NCCL_CUMEM_HOST_ENABLE", "-1"),
        ];
        let settings = source(&given).settings();
        assert_eq!(settings.faults, [""; 0]);
        let policy = Policy {
            floor: 2 << 30,
            preallocate: true,
            growth: 1.5,
            most: Some(8 << 30),
            trim: 1 << 30,
            monitor: Some(Duration::from_millis(500)),
        };
        assert_eq!(settings.pool, policy);
        assert_eq!((settings.sm_free_verbose, settings.dma_enable), (2, false));
        assert_eq!((settings.reducing_ctas, settings.memory_adds), (Some(16), true));
        assert_eq!((settings.zero_copy, settings.direct_path), (None, Some(false)));
        let empty = source(&[]).settings();
        assert_eq!((empty.pool, empty.dma_enable, empty.direct_path), (Policy::default(), true, None));
        let unlimited = source(&[("NCCL_CUMEM_MAX_SIZE", "0"), ("NCCL_CUMEM_MONITOR", "1")]).settings().pool;
        assert_eq!((unlimited.most, unlimited.monitor), (None, Some(Duration::from_secs(10))));
    }

    #[test]
    fn what_means_nothing_is_a_fault_with_the_accepted_form() {
        let wrong = [
            ("NCCL_CUMEM_POOL_SIZE", "2 gallons", "512MB"),
            ("NCCL_CUMEM_PREALLOC", "perhaps", "0, 1 or auto"),
            ("HAWSER_SM_FREE_CTAS", "65", "1 to 64"),
            ("HAWSER_SM_FREE_ADD", "2", "0, 1 or auto"),
            ("NCCL_CUMEM_GROWTH_FACTOR", "0.5", "1.0 to 8.0"),
            ("NCCL_CUMEM_GROWTH_FACTOR", "NaN", "1.0 to 8.0"),
            ("NCCL_CUMEM_MAX_SIZE", "-1", "512MB"),
            ("NCCL_CUMEM_TRIM_THRESHOLD", "all", "512MB"),
            ("NCCL_CUMEM_MONITOR", "2", "0, 1 or auto"),
            ("NCCL_CUMEM_MONITOR_INTERVAL", "0.01", "0.1"),
            ("NCCL_CUMEM_MONITOR_INTERVAL", "1e400", "0.1"),
            ("NCCL_SM_FREE_VERBOSE", "3", "0, 1 or 2"),
            ("NCCL_ZERO_COPY", "2", "0, 1 or auto"),
            ("NCCL_DMA_ENABLE", "x", "0, 1 or auto"),
            ("NCCL_DIRECT_PATH", "x", "0, 1 or auto"),
            ("NCCL_PXN_DISABLE", "x", "0, 1 or auto"),
            ("NCCL_ENABLE_FAULT_TOLERANCE", "x", "0, 1 or auto"),
            ("NCCL_CUMEM_HOST_ENABLE", "7", "0, 1"),
            ("NCCL_CTA_POLICY", "ZERO|NONE", "EFFICIENCY"),
            ("NCCL_CTA_POLICY", "4", "EFFICIENCY"),
        ];
        for (name, value, accepted) in wrong {
            let faults = source(&[(name, value)]).settings().faults;
            assert_eq!(faults.len(), 1, "{name}={value}: {faults:?}");
            assert!(
                faults[0].contains(&format!("{name}={value}")) && faults[0].contains(accepted),
                "{faults:?}"
            );
        }
    }

    #[test]
    fn policies_are_numbers_or_names() {
        let policies = [
            ("0", false),
            ("2", true),
            ("3", true),
            ("zero", true),
            ("EFFICIENCY | ZERO", true),
            ("DEFAULT", false),
        ];
        for (text, zero) in policies {
            assert_eq!(source(&[("NCCL_CTA_POLICY", text)]).settings().no_ctas, Some(zero), "{text}");
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
