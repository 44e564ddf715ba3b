//! The numbers of the cost model: built-in ones by device and link, and their form as text.
//!
//! The text is a small part of TOML: comments, `[section]` and `key = value`. What a text leaves out keeps
//! its built-in value, so a file may hold one line. `hawser measure` writes such files.

use std::fmt::Write as _;

use hawser_types::{DeviceKind, Digest, Link, PlanError, Result, Route};

/// The figures of one route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Fixed time of an operation, µs.
    pub fixed_us: f64,
    /// One hop (from a sender's load to the receiver's next step), or one exchange of a fused kernel, µs.
    pub hop_us: f64,
    /// The same for each further tile or round, µs.
    pub round_us: f64,
    /// The rate that one block streams at, GB/s of payload.
    pub block_gbs: f64,
    /// Share of [`Constants::wire_gbs`] that its payload reaches.
    pub wire_share: f64,
    /// Cost of one more block, µs.
    pub block_us: f64,
}

/// All numbers of the cost model for one kind of device and link. All are finite; rates and shares are above
/// 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// Plain stores out of one rank when all ranks send to one peer each, GB/s.
    pub wire_gbs: f64,
    /// Share of it that is left when all ranks send to all.
    pub all_to_all: f64,
    /// One hop from a FIFO slot on one host to one on another, µs.
    pub net_hop_us: f64,
    /// The same for each further tile, µs.
    pub net_round_us: f64,
    /// The cost of one more message to or from another host for a rank that has several of them at a time, µs
    /// of its proxy.
    pub net_message_us: f64,
    /// The numbers of each route, in the order of [`Route::ALL`].
    pub paths: [Path; Route::ALL.len()],
}

/// The numbers of the routes of GPUs over NVLink, in the order of [`Route::ALL`] without the last: fixed µs,
/// µs of a hop, µs of a further round, GB/s of a block, share of the wire, µs of a block. Measured on H200
/// GPUs without multicast, calls one by one (in a graph about 0.6 µs less).
const NVLINK: [[f64; 6]; 8] = [
    [5.6, 1.25, 1.25, 3.5, 0.5, 0.04],
    [5.6, 1.5, 1.5, 14.0, 0.9375, 0.04],
    [5.6, 2.5, 0.75, 18.0, 0.94, 0.04],
    [2.0, 1.45, 2.0, 60.0, 0.44, 0.005],
    [2.1, 1.7, 1.4, 14.0, 0.78, 0.005],
    [2.4, 4.2, 3.0, 10.3, 0.9, 0.005],
    [14.0, 9.0, 2.0, 180.0, 1.0, 1.0],
    [9.5, 0.8, 1.0, 42.0, 1.0, 0.005],
];
/// The same over PCIe, roughly.
const PCIE: [[f64; 6]; 8] = [
    [7.3, 2.0, 2.0, 2.0, 0.5, 0.04],
    [7.3, 3.0, 3.0, 4.0, 0.9375, 0.04],
    [7.3, 4.0, 1.2, 12.0, 1.0, 0.04],
    [1.4, 3.0, 3.0, 8.0, 0.44, 0.005],
    [2.0, 4.0, 2.0, 14.0, 0.797, 0.005],
    [2.6, 7.0, 8.0, 20.0, 0.9, 0.005],
    [20.0, 12.0, 4.0, 12.0, 1.0, 1.0],
    [12.0, 2.0, 2.0, 12.0, 0.9, 0.005],
];
/// The same for GPUs that meet in host memory, roughly.
const HOST_MEMORY: [[f64; 6]; 8] = [
    [7.3, 3.0, 3.0, 1.0, 0.5, 0.04],
    [7.3, 4.0, 4.0, 2.0, 0.9375, 0.04],
    [7.3, 6.0, 1.8, 5.0, 1.0, 0.04],
    [1.4, 5.0, 5.0, 8.0, 0.44, 0.005],
    [2.0, 6.0, 4.0, 14.0, 0.797, 0.005],
    [2.6, 9.0, 10.0, 20.0, 0.9, 0.005],
    [20.0, 12.0, 4.0, 12.0, 1.0, 1.0],
    [12.0, 2.0, 2.0, 12.0, 0.9, 0.005],
];
/// The same for what moves between CPUs, roughly: by the host's threads, or by what stands in for copy
/// engines there.
const CPU: [f64; 6] = [20.0, 5.0, 1.5, 3.0, 1.0, 10.0];

/// The kinds of numbers, by the values that they may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// µs, not negative.
    Time,
    /// GB/s, above 0.
    Rate,
    /// Above 0, at most 1.
    Share,
}

/// Section, key, kind and place of a number.
type Entry<'a> = (&'static str, &'static str, Kind, &'a mut f64);

/// No time or rate is larger: predictions stay finite.
const MOST: f64 = 1e9;

impl Constants {
    /// The built-in numbers.
    pub fn builtin(device: DeviceKind, link: Link) -> Self {
        let (wire_gbs, all_to_all, table) = match (device, link) {
            (DeviceKind::Host, _) => (3.0, 0.9, &[CPU; 8]),
            (_, Link::NvLink) => (364.0, 0.85, &NVLINK),
            (_, Link::Pcie) => (20.0, 0.7, &PCIE),
            (_, Link::HostMemory) => (10.0, 0.85, &HOST_MEMORY),
        };
        let path = |&[fixed_us, hop_us, round_us, block_gbs, wire_share, block_us]: &[f64; 6]| Path {
            fixed_us,
            hop_us,
            round_us,
            block_gbs,
            wire_share,
            block_us,
        };
        let paths = std::array::from_fn(|i| path(table.get(i).unwrap_or(&CPU)));
        Self { wire_gbs, all_to_all, net_hop_us: 20.0, net_round_us: 6.0, net_message_us: 7.5, paths }
    }

    /// Reads a text for a device and a link; None if the text says that it is for another.
    ///
    /// # Errors
    /// `InvalidUsage` that names line and key.
    pub fn parse(text: &str, device: DeviceKind, link: Link) -> Result<Option<Self>> {
        Self::builtin(device, link).with(text, device, link)
    }

    /// These constants with those of a text in their places, as [`Constants::parse`] reads it.
    ///
    /// # Errors
    /// `InvalidUsage` that names line and key.
    pub fn with(self, text: &str, device: DeviceKind, link: Link) -> Result<Option<Self>> {
        let mut constants = self;
        let mut is_for_this = true;
        // The section by its name, and by the word that the text has for it.
        let (mut section, mut written) = (String::new(), "");
        let mut seen: Vec<String> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |what: String| PlanError::usage(format!("line {number}: {what}"));
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                written = name.trim();
                section = known_section(written, device).map_err(wrong)?;
                continue;
            }
            let (key, value) =
                line.split_once('=').ok_or_else(|| wrong(format!("\"{line}\" is no key = value")))?;
            let (key, value) = (key.trim(), value.trim());
            let in_section = |section: &str| match section {
                "" => key.to_owned(),
                _ => format!("{section}.{key}"),
            };
            let name = in_section(&section);
            if seen.contains(&name) {
                return Err(wrong(format!("{} is there twice", in_section(written))));
            }
            is_for_this &= match (section.as_str(), key) {
                ("", "device") => unquoted(value) == device.to_string(),
                ("", "link") => unquoted(value) == link.name(),
                ("", "ranks") => true,
                _ => constants
                    .set((&section, key), value)
                    .map_err(|what| wrong(format!("{}{what}", in_section(written))))
                    .map(|()| true)?,
            };
            seen.push(name);
        }
        Ok(is_for_this.then_some(constants))
    }

    /// The inverse of [`Constants::parse`].
    pub fn text(&self, device: DeviceKind, link: Link) -> String {
        let mut text = format!("device = \"{device}\"\nlink = \"{}\"\n", link.name());
        let mut last = "";
        let mut copy = *self;
        for (section, key, _, value) in copy.entries() {
            if section != last {
                let _ = writeln!(text, "\n[{section}]");
                last = section;
            }
            let _ = writeln!(text, "{key} = {value:?}");
        }
        text
    }

    /// The numbers of a route.
    pub fn path(&self, route: Route) -> &Path {
        &self.paths[route.index()]
    }

    /// All numbers with their names (`fused.LL.hop_us`), to compare them.
    pub fn named(&self) -> Vec<(String, f64)> {
        let mut copy = *self;
        copy.entries()
            .into_iter()
            .map(|(section, key, _, value)| (format!("{section}.{key}"), *value))
            .collect()
    }

    /// Bytes per µs.
    pub(crate) fn wire(&self) -> f64 {
        self.wire_gbs * 1e3
    }

    pub(crate) fn add_to(&self, digest: &mut Digest) {
        self.values().into_iter().for_each(|value| digest.add(value.to_bits()));
    }

    /// The numbers in the order of [`Constants::named`].
    pub(crate) fn values(&self) -> Vec<f64> {
        let mut copy = *self;
        copy.entries().into_iter().map(|(.., value)| *value).collect()
    }

    /// Puts values in their places, each moved into what it may be.
    pub(crate) fn with_values(mut self, values: &[f64]) -> Self {
        for ((.., kind, place), &value) in self.entries().into_iter().zip(values) {
            let most = if kind == Kind::Share { 1.0 } else { MOST };
            *place = value.clamp(1e-6, most);
        }
        self
    }

    /// Sets the number of a section and a key. The error is what follows the name in a message.
    fn set(&mut self, (section, key): (&str, &str), value: &str) -> std::result::Result<(), String> {
        let mut entries = self.entries().into_iter();
        let found = entries.find(|entry| (entry.0, entry.1) == (section, key));
        let Some((_, _, kind, place)) = found else {
            let keys: Vec<&str> =
                self.entries().iter().filter(|e| e.0 == section).map(|(_, key, ..)| *key).collect();
            let known = if section.is_empty() { "device, link and ranks".into() } else { keys.join(", ") };
            return Err(format!(" is not known; known are {known}"));
        };
        let accepted = match kind {
            Kind::Time => "a number of µs, at least 0",
            Kind::Rate => "a number of GB/s above 0",
            Kind::Share => "a number above 0, at most 1",
        };
        let number = value.parse::<f64>().ok().filter(|v| match kind {
            Kind::Time => (0.0..=MOST).contains(v),
            Kind::Rate => *v > 1.0 / MOST && *v <= MOST,
            Kind::Share => *v > 1.0 / MOST && *v <= 1.0,
        });
        *place = number.ok_or_else(|| format!(" = {value}: it must be {accepted}"))?;
        Ok(())
    }

    /// Section, key, kind and place of every number.
    fn entries(&mut self) -> Vec<Entry<'_>> {
        let mut all = vec![
            ("link", "wire_gbs", Kind::Rate, &mut self.wire_gbs),
            ("link", "all_to_all", Kind::Share, &mut self.all_to_all),
            ("net", "hop_us", Kind::Time, &mut self.net_hop_us),
            ("net", "round_us", Kind::Time, &mut self.net_round_us),
            ("net", "message_us", Kind::Time, &mut self.net_message_us),
        ];
        for (route, path) in Route::ALL.into_iter().zip(&mut self.paths) {
            let name = section(route);
            all.push((name, "fixed_us", Kind::Time, &mut path.fixed_us));
            all.push((name, "hop_us", Kind::Time, &mut path.hop_us));
            all.push((name, "round_us", Kind::Time, &mut path.round_us));
            all.push((name, "block_gbs", Kind::Rate, &mut path.block_gbs));
            all.push((name, "wire_share", Kind::Share, &mut path.wire_share));
            all.push((name, "block_us", Kind::Time, &mut path.block_us));
        }
        all
    }
}

impl Path {
    /// The rate that one block streams at, bytes per µs.
    pub(crate) fn block(&self) -> f64 {
        self.block_gbs * 1e3
    }
}

/// The section of a route in a text of constants: its words with points between them, without the protocol
/// where there is one only.
pub fn section(route: Route) -> &'static str {
    match route {
        Route::LL => "interpreter.LL",
        Route::LL128 => "interpreter.LL128",
        Route::SIMPLE => "interpreter.Simple",
        Route::FUSED_LL => "fused.LL",
        Route::FUSED_LL128 => "fused.LL128",
        Route::FUSED_SIMPLE => "fused.Simple",
        Route::ZERO_COPY => "fused.zero_copy",
        Route::COPY_ENGINE => "copy_engine",
        _ => "host",
    }
}

/// The section that a text names, by its name or by the one word that files of earlier versions have.
fn known_section(name: &str, device: DeviceKind) -> std::result::Result<String, String> {
    let sections = Route::ALL.map(section);
    let mut known = ["link", "net"].into_iter().chain(sections);
    let simple = Route::simple(device);
    let of_old_name = Route::ALL.into_iter().find(|route| route.old_name() == name);
    let renamed = of_old_name.map(|route| section(if route == Route::SIMPLE { simple } else { route }));
    known.clone().find(|k| *k == name).or(renamed).map(str::to_owned).ok_or_else(|| {
        let names = known.by_ref().collect::<Vec<_>>().join(", ");
        format!("[{name}] is no section; known are {names}")
    })
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}
