//! `hawser doctor`: what this machine offers, what is missing, and how to get it.

mod net;
mod settings;
mod variables;

use std::fmt;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use hawser_compat::search::probe;
use hawser_device::cuda;
use hawser_kernels::{FATBINS, archs};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::json;

use crate::output::{self, styled};

/// Options of `hawser doctor`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only load a plugin library and try its first steps: net, tuner, profiler or env, and its path.
    /// What the library does with `HAWSER_PLUGIN_PROBE=.../hawser`
    #[arg(long, num_args = 2, value_names = ["KIND", "PATH"], conflicts_with = "json")]
    probe: Vec<String>,
    /// Open every net, list its devices, send some data from each net to itself and show what its rails
    /// counted
    #[arg(long, conflicts_with = "probe")]
    net: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `hawser doctor`. False: something is missing or wrong.
///
/// # Errors
/// The output cannot be written, or a net or a plugin cannot be tried.
pub fn run(options: &Options) -> Result<bool> {
    if options.net {
        return net::run(options.json);
    }
    if let [kind, path] = &options.probe[..] {
        return probe::helper(kind, Path::new(path), std::io::stdout()).map_err(anyhow::Error::msg);
    }
    let sections = [
        ("Device", device_section()),
        ("GPUs", gpus()),
        ("Kernels", kernels()),
        ("Network", network()),
        ("System", system()),
        ("Settings", settings::findings()),
    ];
    let all = || sections.iter().flat_map(|(_, findings)| findings);
    let problems = all().filter(|finding| finding.level == Level::Bad).count();
    if options.json {
        let sections =
            sections.each_ref().map(|(title, findings)| json!({"title": title, "findings": findings}));
        output::print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"), "problems": problems, "sections": sections
        }))?;
        return Ok(problems == 0);
    }
    let mut text = format!("hawser {}\n", env!("CARGO_PKG_VERSION"));
    for (title, findings) in &sections {
        text += &format!("\n{}\n", output::styled(output::HEADING, title));
        for finding in findings {
            text += &format!("{finding}\n");
        }
    }
    text += &match problems {
        0 => "\nno problem found\n".to_owned(),
        1 => "\n1 problem found, marked with !!\n".to_owned(),
        _ => format!("\n{problems} problems found, marked with !!\n"),
    };
    output::print(&text)?;
    Ok(problems == 0)
}

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Good,
    /// Fine, but worth knowing.
    Note,
    /// Something is missing or wrong.
    Bad,
}

/// One line, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    fn good(text: impl Into<String>) -> Self {
        Self { level: Level::Good, text: text.into(), remedy: None }
    }

    fn note(text: impl Into<String>) -> Self {
        Self { level: Level::Note, text: text.into(), remedy: None }
    }

    fn bad(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Bad, text: text.into(), remedy: Some(remedy.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Level::Good => write!(f, "  {}  {}", styled(output::GOOD, "ok"), self.text)?,
            Level::Note => write!(f, "      {}", self.text)?,
            Level::Bad => write!(f, "  {}  {}", styled(output::BAD, "!!"), self.text)?,
        }
        self.remedy.iter().try_for_each(|remedy| write!(f, "\n      -> {remedy}"))
    }
}

fn device_section() -> Vec<Finding> {
    if hawser_device::is_host() {
        vec![Finding::note("collectives run on the CPU, on host memory (the host device)")]
    } else if hawser_device::count() == 0 {
        vec![Finding::bad(
            "collectives cannot run: HAWSER_DEVICE=cuda, and there is no GPU",
            "mend what is wrong under GPUs, or unset HAWSER_DEVICE: then they run on the CPU",
        )]
    } else {
        vec![Finding::good("collectives run on the GPUs")]
    }
}

fn gpus() -> Vec<Finding> {
    let mut findings = match cuda::count() {
        Ok(count) => vec![Finding::good(format!("{count} visible GPUs"))],
        // Without a GPU and without the wish to use one nothing is wrong.
        Err(error) if hawser_device::is_host() && !has_driver() => {
            return vec![Finding::note(format!("no GPU can be used: {error}"))];
        }
        Err(error) => return vec![Finding::bad(format!("no GPU can be used: {error}"), driver_remedy())],
    };
    let gpus = cuda::summary();
    if let Some(first) = gpus.first() {
        findings.push(Finding::good(format!("driver: {}", first.driver)));
    }
    for gpu in &gpus {
        findings.push(Finding::good(format!(
            "GPU {}: {} [{}], sm_{}, {} GiB, {} multiprocessors",
            gpu.ordinal,
            gpu.name,
            gpu.id,
            gpu.sm,
            gpu.memory_bytes >> 30,
            gpu.multiprocessors
        )));
    }
    findings.extend(matrix(&gpus).into_iter().map(Finding::note));
    findings.extend(peer_findings(&gpus));
    findings
}

/// Returns whether the kernel has NVIDIA's driver.
fn has_driver() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
}

fn driver_remedy() -> String {
    if has_driver() {
        "the kernel driver is loaded but libcuda.so.1 does not work here: in a container, start it with \
         the NVIDIA container toolkit (--gpus all)"
            .into()
    } else {
        "install NVIDIA's driver (Debian: apt install nvidia-driver from non-free); without a GPU nothing \
         is missing"
            .into()
    }
}

/// The P2P matrix, one text line per row.
fn matrix(gpus: &[cuda::DeviceSummary]) -> Vec<String> {
    if gpus.len() < 2 {
        return Vec::new();
    }
    let cells = |cells: Vec<String>| cells.iter().map(|c| format!("{c:>8}")).collect::<String>();
    let head = cells(gpus.iter().map(|g| format!("GPU {}", g.ordinal)).collect());
    let rows = gpus.iter().map(|gpu| {
        let names = gpu.peers.iter().map(|link| link_name(*link).to_owned()).collect();
        format!("GPU {:<3}{}", gpu.ordinal, cells(names))
    });
    std::iter::once(format!("P2P    {head}")).chain(rows).collect()
}

fn link_name(link: cuda::PeerLink) -> &'static str {
    match link {
        cuda::PeerLink::Itself => "-",
        cuda::PeerLink::None => "none",
        cuda::PeerLink::Pcie => "PCIe",
        cuda::PeerLink::NvLink => "NVLink",
    }
}

fn peer_findings(gpus: &[cuda::DeviceSummary]) -> Option<Finding> {
    let apart = gpus.iter().any(|gpu| gpu.peers.contains(&cuda::PeerLink::None));
    apart.then(|| {
        Finding::bad(
            "some GPUs cannot reach each other directly: they exchange data through host memory, slowly",
            "check `nvidia-smi topo -p2p r`; on virtual machines, pass GPUs of one NVLink domain; IOMMU and \
             ACS settings may block P2P",
        )
    })
}

fn kernels() -> Vec<Finding> {
    if FATBINS.is_empty() {
        let text = "this build holds no CUDA kernels: only the host device works";
        let remedy =
            "install the CUDA compiler (nvcc on PATH, or `make` fetches it from PyPI) and build again";
        return match hawser_device::is_host() && !has_driver() {
            true => vec![Finding::note(text)],
            false => vec![Finding::bad(text, remedy)],
        };
    }
    let describe = |(name, image): &(&str, &[u8])| {
        let archs: Vec<String> = archs(image).iter().map(ToString::to_string).collect();
        Finding::good(format!("{name}: {} ({} KiB)", archs.join(" "), image.len() >> 10))
    };
    FATBINS.iter().map(describe).collect()
}

fn network() -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in entries("/sys/class/net") {
        let read = |file: &str| read(&format!("/sys/class/net/{name}/{file}"));
        let speed = read("speed").and_then(|s| s.parse::<i64>().ok()).filter(|s| *s > 0);
        let speed = speed.map_or(String::new(), |s| format!(", {s} Mb/s"));
        findings.push(Finding::note(format!(
            "interface {name}: {}{speed}",
            read("operstate").unwrap_or_default()
        )));
    }
    if findings.is_empty() {
        findings.push(Finding::bad(
            "no network interface",
            "ranks meet over TCP: bring up at least lo (ip link set lo up)",
        ));
    }
    let hcas = entries("/sys/class/infiniband");
    for hca in &hcas {
        for port in entries(&format!("/sys/class/infiniband/{hca}/ports")) {
            findings.push(hca_port(hca, &port));
        }
    }
    if hcas.is_empty() {
        findings.push(Finding::note("no RDMA devices (/sys/class/infiniband)"));
    } else if !loads("libibverbs.so.1") {
        findings.push(Finding::bad(
            "RDMA devices, but no libibverbs.so.1",
            "apt install libibverbs1 ibverbs-providers",
        ));
    }
    findings
}

fn hca_port(hca: &str, port: &str) -> Finding {
    let read =
        |file: &str| read(&format!("/sys/class/infiniband/{hca}/ports/{port}/{file}")).unwrap_or_default();
    let (state, rate, layer) = (read("state"), read("rate"), read("link_layer"));
    let text = format!("RDMA {hca} port {port}: {state}, {rate}, {layer}");
    if state.contains("ACTIVE") {
        Finding::good(text)
    } else {
        Finding::bad(text, "check the cable and the switch or subnet manager")
    }
}

fn system() -> Vec<Finding> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut findings = vec![Finding::note(format!("{cores} CPU cores"))];
    findings
        .push(memlock(getrlimit(Resource::Memlock).current, !entries("/sys/class/infiniband").is_empty()));
    findings.push(match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => shm(stat.f_blocks * stat.f_frsize),
        Err(error) => Finding::bad(format!("/dev/shm: {error}"), "mount it: mount -t tmpfs tmpfs /dev/shm"),
    });
    findings.push(if on_path("nvcc") {
        Finding::good("nvcc found: kernels can be built")
    } else {
        Finding::note("no nvcc on PATH (only needed to build kernels; `make` fetches it from PyPI)")
    });
    findings
}

fn memlock(limit: Option<u64>, rdma: bool) -> Finding {
    match limit {
        None => Finding::good("locked memory: unlimited"),
        Some(bytes) if rdma => Finding::bad(
            format!("locked memory: {} KiB, too little for RDMA", bytes >> 10),
            "ulimit -l unlimited (docker: --ulimit memlock=-1; Slurm: PropagateResourceLimits)",
        ),
        Some(bytes) => {
            Finding::note(format!("locked memory: {} KiB (RDMA would need unlimited)", bytes >> 10))
        }
    }
}

fn shm(bytes: u64) -> Finding {
    let text = format!("/dev/shm: {} MiB", bytes >> 20);
    if bytes >= 1 << 30 {
        return Finding::good(text);
    }
    // Our own heaps are anonymous files that this limit does not touch; others' are not.
    Finding::note(format!("{text}: small, frameworks' data loaders may fail (docker: --shm-size=1g)"))
}

fn entries(folder: &str) -> Vec<String> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = listed.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn loads(library: &str) -> bool {
    // SAFETY: these are the system's own libraries; their initializers are what any user of them runs.
    unsafe { libloading::Library::new(library) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_judged() {
        assert_eq!(memlock(None, true).level, Level::Good);
        assert_eq!(memlock(Some(65536), false).level, Level::Note);
        let bad = memlock(Some(65536), true);
        assert_eq!(bad.level, Level::Bad);
        assert!(bad.to_string().contains("-> ulimit -l unlimited"));
        assert_eq!(shm(2 << 30).level, Level::Good);
        assert_eq!(shm(64 << 20).level, Level::Note);
    }

    #[test]
    fn the_matrix_names_links() {
        use cuda::PeerLink::{Itself, None, NvLink};
        let gpu = |ordinal, peers: [cuda::PeerLink; 2]| cuda::DeviceSummary {
            ordinal,
            name: "GPU".into(),
            id: "0000:01:00.0".into(),
            sm: 90,
            memory_bytes: 1 << 30,
            multiprocessors: 1,
            driver: "CUDA 13.0".into(),
            peers: peers.to_vec(),
        };
        let gpus = [gpu(0, [Itself, NvLink]), gpu(1, [NvLink, Itself])];
        assert_eq!(
            matrix(&gpus),
            ["P2P       GPU 0   GPU 1", "GPU 0         -  NVLink", "GPU 1    NVLink       -"]
        );
        assert_eq!(peer_findings(&gpus), Option::None);
        assert!(peer_findings(&[gpu(0, [Itself, None])]).is_some());
        assert!(matrix(&gpus[..1]).is_empty());
    }

    #[test]
    fn files_and_libraries_that_do_not_exist_are_no_trouble() {
        assert!(entries("/nonexistent").is_empty());
        assert_eq!(read("/nonexistent"), None);
        assert!(!loads("libhawser-does-not-exist.so.9"));
        assert!(!on_path("hawser-does-not-exist"));
    }
}
