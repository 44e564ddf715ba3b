//! Constants of the cost model from a file: rank 0 reads it, all ranks take what it read.
//!
//! `HAWSER_LINKS` names the file. Without it, the one that `hawser measure` left in the user's cache for this
//! device and number of ranks counts if it is there. Ranks never compare files: rank 0's text is everybody's.

use std::path::{Path, PathBuf};

use hawser_plan::Topology;
use hawser_plan::cost::Constants;

use hawser_base::env::Settings;
use hawser_base::error::{Error, Result};
use hawser_base::files;
use hawser_base::log::{self, Subsys};

/// Longest file that is read, in bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Value of `HAWSER_LINKS` that stands for no file.
const NONE: &str = "none";
/// First words of what rank 0 sends: the text of a file that was named, or found in the cache, or what went
/// wrong.
const NAMED: &str = "named";
const CACHED: &str = "cached";
const FAILED: &str = "failed";

/// The record of this rank: of rank 0 a heading line and the text of its file, the others nothing.
pub fn offer(rank: u32, settings: &Settings, device: &str, topology: &Topology) -> Vec<u8> {
    if rank != 0 {
        return Vec::new();
    }
    let text = match &settings.links {
        Some(name) if name == NONE => String::new(),
        Some(name) => match read(Path::new(name)) {
            Ok(text) => format!("{NAMED} {}\n{text}", one_line(name)),
            Err(error) => format!("{FAILED} {}\n", one_line(&format!("HAWSER_LINKS={name}: {error}"))),
        },
        None => cached(settings, device, topology).unwrap_or_default(),
    };
    text.into_bytes()
}

/// Gives `topology` the constants that rank 0 offered: the same on every rank.
///
/// # Errors
/// The file that rank 0's `HAWSER_LINKS` names cannot be read or understood.
pub fn take(offered: &[u8], topology: &mut Topology) -> Result<()> {
    if offered.is_empty() {
        return Ok(());
    }
    let text =
        std::str::from_utf8(offered).map_err(|_| Error::remote("rank 0 sent constants that are no text"))?;
    let (heading, text) = text.split_once('\n').unwrap_or((text, ""));
    let (kind, path) = heading.split_once(' ').unwrap_or((heading, ""));
    let remedy = "correct the file, or unset HAWSER_LINKS; hawser measure writes a new one";
    if kind == FAILED {
        return Err(Error::invalid_usage(format!("rank 0: {path}")).remedy(remedy));
    }
    let parsed = Constants::parse(text, topology.device, topology.link);
    let parsed = parsed.map_err(|error| Error::from(error).context(format!("rank 0: HAWSER_LINKS={path}")));
    match parsed.map_err(|error| error.remedy(remedy))? {
        Some(constants) => {
            topology.constants = constants;
            log::info(Subsys::Init, || format!("constants of the cost model: {path} ({kind} by rank 0)"));
        }
        None => {
            let (device, link) = (topology.device, topology.link.name());
            log::info(Subsys::Init, || {
                format!("constants of the cost model: built-in; {path} is not for {device} over {link}")
            });
        }
    }
    Ok(())
}

/// The file in which `hawser measure` leaves its constants for so many ranks of a host on a device of this
/// name; None where the user has no folder for caches.
pub fn cache_file(settings: &Settings, device: &str, ranks: u32) -> Option<PathBuf> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let device: String = device.chars().map(plain).collect();
    Some(settings.cache.as_ref()?.join("hawser").join(format!("links-{device}-{ranks}.toml")))
}

/// The text to send of the file in the cache. One that is broken is a warning and does not count.
fn cached(settings: &Settings, device: &str, topology: &Topology) -> Option<String> {
    let first = topology.ranks.first()?.host;
    let ranks = topology.ranks.iter().filter(|rank| rank.host == first).count() as u32;
    let path = cache_file(settings, device, ranks)?;
    if !path.is_file() {
        return None;
    }
    let checked =
        read(&path).and_then(|text| match Constants::parse(&text, topology.device, topology.link) {
            Ok(_) => Ok(text),
            Err(error) => Err(error.into_text()),
        });
    match checked {
        Ok(text) => Some(format!("{CACHED} {}\n{text}", one_line(&path.display().to_string()))),
        Err(error) => {
            log::warn(&format!("{} is left out: {error}; hawser measure writes it anew", path.display()));
            None
        }
    }
}

fn read(path: &Path) -> std::result::Result<String, String> {
    files::read_text(path, MOST_BYTES).map_err(|error| error.to_string())
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plan::topology::{DeviceKind, Link};

    fn topology() -> Topology {
        Topology::single_host(2, DeviceKind::Cuda { sm: 90 }, Link::NvLink)
    }

    fn settings(links: Option<&str>, cache: Option<&Path>) -> Settings {
        let own = hawser_base::env::settings().clone();
        Settings { links: links.map(str::to_owned), cache: cache.map(Path::to_owned), ..own }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hawser-links-{}-{name}", std::process::id()));
        std::fs::create_dir_all(folder.join("hawser")).unwrap();
        folder
    }

    #[test]
    fn the_file_of_rank_0_is_taken_and_only_that() {
        let folder = folder("named");
        let file = folder.join("links.toml");
        std::fs::write(&file, "[link]\nwire_gbs = 123.0\n").unwrap();
        let settings = settings(file.to_str(), Some(&folder));
        assert_eq!(offer(1, &settings, "NVIDIA H200", &topology()), b"");
        let mut taker = topology();
        take(&offer(0, &settings, "NVIDIA H200", &topology()), &mut taker).unwrap();
        assert_eq!(taker.constants.wire_gbs, 123.0);
        // A topology of another link keeps what is built in.
        std::fs::write(&file, "link = \"pcie\"\n[link]\nwire_gbs = 123.0\n").unwrap();
        let mut taker = topology();
        take(&offer(0, &settings, "NVIDIA H200", &topology()), &mut taker).unwrap();
        assert_eq!(taker, topology());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_broken_file_is_an_error_for_all_and_names_line_and_key() {
        let folder = folder("broken");
        let file = folder.join("links.toml");
        for (text, words) in [("[LL]\nhop_us = x\n", "line 2: LL.hop_us = x"), ("\u{1}", "line 1")] {
            std::fs::write(&file, text).unwrap();
            let offered = offer(0, &settings(file.to_str(), None), "x", &topology());
            let error = take(&offered, &mut topology()).unwrap_err();
            let named = error.text.contains(words) && error.text.contains(file.to_str().unwrap());
            assert!(named && error.text.contains("HAWSER_LINKS"), "{error}");
        }
        for (path, words) in [("/nonexistent/links", "No such file"), ("/dev/zero", "no regular file")] {
            let error =
                take(&offer(0, &settings(Some(path), None), "x", &topology()), &mut topology()).unwrap_err();
            assert!(error.text.contains(words) && error.text.contains(path), "{error}");
        }
        std::fs::write(&file, "#".repeat(100_000)).unwrap();
        let error =
            take(&offer(0, &settings(file.to_str(), None), "x", &topology()), &mut topology()).unwrap_err();
        assert!(error.text.contains("longer"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_cache_is_used_if_it_is_there_and_right() {
        let folder = folder("cache");
        let settings = settings(None, Some(&folder));
        let path = cache_file(&settings, "NVIDIA H200", 2).unwrap();
        assert!(path.ends_with("hawser/links-nvidia-h200-2.toml"), "{}", path.display());
        let offered = || offer(0, &settings, "NVIDIA H200", &topology());
        assert_eq!(offered(), b"");
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(offered(), b"");
        std::fs::write(&path, "[link]\nwire_gbs = 5.0\n").unwrap();
        let mut taker = topology();
        take(&offered(), &mut taker).unwrap();
        assert_eq!(taker.constants.wire_gbs, 5.0);
        let without = Settings { links: Some(NONE.into()), ..settings.clone() };
        assert_eq!(offer(0, &without, "NVIDIA H200", &topology()), b"");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
