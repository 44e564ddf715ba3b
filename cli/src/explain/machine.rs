//! The ranks that are asked about: those of a machine that options describe.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_plan::algo::MAX_RANKS;
use hawser_plan::cost::Constants;
use hawser_plan::topology::{DeviceKind, Link, RankInfo};
use hawser_plan::{PlanConfig, Topology};
use hawser_runtime::comm;

use crate::cluster;

/// The ranks that are asked about.
#[derive(Debug, Clone, Args)]
pub struct Machine {
    /// Number of ranks
    #[arg(long, default_value_t = 8, value_parser = crate::ranks::ranks(1))]
    pub(super) ranks: u32,
    /// Hosts, with equally many ranks each
    #[arg(long, default_value_t = 1, value_parser = crate::ranks::ranks(1))]
    pub(super) hosts: u32,
    /// Ranks of each host, with commas between, where hosts have not equally many: 3,1
    #[arg(long, value_delimiter = ',', value_name = "RANKS", conflicts_with_all = ["ranks", "hosts"],
          value_parser = crate::ranks::ranks(1))]
    pub(super) per_host: Vec<u32>,
    /// GPUs of each host, where ranks share them in turns [default: a GPU for each rank]
    #[arg(long, value_name = "GPUS", value_parser = crate::ranks::ranks(1))]
    pub(super) gpus: Option<u32>,
    /// The root rank of collectives that have one
    #[arg(long, default_value_t = 0)]
    pub root: u32,
    /// The device: host, h200, or cuda: and a compute capability, such as cuda:90
    #[arg(long, default_value = "h200", value_parser = parse_device)]
    pub(super) device: DeviceKind,
    /// What joins the ranks of a host: nvlink, pcie or host (memory of the host) [default: the device's best]
    #[arg(long, value_parser = parse_link)]
    pub(super) link: Option<Link>,
    /// All ranks are in one process, and their GPUs reach each other's memory
    #[arg(long)]
    pub(super) one_process: bool,
    /// The buffers lie in symmetric windows, which kernels of all ranks reach
    #[arg(long)]
    pub(super) windows: bool,
    /// File with constants of the cost model, as `hawser measure` writes it, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub(super) links: Option<PathBuf>,
    /// The ranks of this cluster: a file, or a sentence such as "64 hosts of hgx-h200, rail-optimised, 2:1"
    /// (docs/simulate.md)
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["ranks", "hosts", "per_host", "gpus", "device",
          "link", "one_process", "windows", "links"])]
    pub(super) cluster: Option<String>,
}

/// The ranks that are asked about, as a job would see them.
pub struct Asked {
    /// The places of the ranks, and what joins them.
    pub topology: Topology,
    /// The settings of the planner.
    pub plan_config: PlanConfig,
    /// The origin of the constants of the cost model.
    pub source: String,
}

impl Machine {
    /// The topology that is asked about, the settings that its ranks would have, and where the constants are
    /// from.
    ///
    /// # Errors
    /// The options contradict each other, the file of constants is not for this machine, or settings are
    /// wrong.
    pub fn asked(&self) -> Result<Asked> {
        if let Some(name) = &self.cluster {
            let cluster = cluster::read(name)?;
            let plan_config = cluster::settings(&cluster)?;
            return Ok(Asked { topology: cluster.topology, plan_config, source: cluster.constants_from });
        }
        let (mut topology, file) = self.topology()?;
        let plan_config = comm::plan_config_of(&mut topology, file.is_none())?;
        let built_in = topology.constants == Constants::builtin(topology.device, topology.link);
        let source = file.unwrap_or_else(|| if built_in { "built-in".into() } else { "measured".into() });
        Ok(Asked { topology, plan_config, source })
    }

    /// Hosts with as many ranks as `--per-host` says.
    fn uneven(&self, link: Link) -> Result<Topology> {
        let total: u64 = self.per_host.iter().map(|ranks| u64::from(*ranks)).sum();
        if total > u64::from(MAX_RANKS) {
            bail!("--per-host has {total} ranks; a communicator has {} at most", MAX_RANKS);
        }
        let of_host = |(host, ranks): (u32, &u32)| {
            (0..*ranks).map(move |place| RankInfo { host, device: place.to_string() })
        };
        let all = (0..).zip(&self.per_host).flat_map(of_host).collect();
        Ok(Topology::new(all, self.device, link))
    }

    /// The topology, and the file of its constants if one is named.
    pub(super) fn topology(&self) -> Result<(Topology, Option<String>)> {
        let link = match (self.device, self.link) {
            (DeviceKind::Host, Some(Link::NvLink | Link::Pcie)) => {
                bail!("the host device has --link host only")
            }
            (DeviceKind::Host, _) => Link::HostMemory,
            (DeviceKind::Cuda { .. }, link) => link.unwrap_or(Link::NvLink),
        };
        if self.per_host.is_empty() && !self.ranks.is_multiple_of(self.hosts) {
            bail!(
                "{} ranks are not spread evenly over {1} hosts: give --ranks a multiple of {1}, or the \
                 ranks of each host as --per-host 3,1",
                self.ranks,
                self.hosts
            );
        }
        let mut topology = match self.per_host.is_empty() {
            true => Topology::of_hosts(self.ranks, self.ranks / self.hosts, self.device, link),
            false => self.uneven(link)?,
        };
        topology.direct = self.one_process || self.windows;
        if self.gpus.is_some() && self.device == DeviceKind::Host {
            bail!("--gpus says which ranks share a GPU: the host device has none");
        }
        if let Some(gpus) = self.gpus {
            let places = topology.places().0;
            topology
                .ranks
                .iter_mut()
                .zip(places)
                .for_each(|(r, place)| r.device = (place % gpus).to_string());
        }
        let Some(path) = &self.links else { return Ok((topology, None)) };
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("cannot read {name} for --links, which hawser measure -o {name} would write")
        })?;
        let constants = Constants::parse(&text, self.device, link).with_context(|| name.to_string())?;
        let Some(constants) = constants else {
            bail!(
                "{name} is not for {} over {}: give --device and --link as it says",
                self.device,
                link.name()
            )
        };
        topology.constants = constants;
        Ok((topology, Some(format!("{name}'s"))))
    }
}

pub(super) fn parse_device(text: &str) -> Result<DeviceKind, String> {
    let name = if text.eq_ignore_ascii_case("h200") { "cuda:90" } else { text };
    DeviceKind::from_name(name).ok_or_else(|| "known are host, h200 and cuda:NN, such as cuda:90".into())
}

pub(super) fn parse_link(text: &str) -> Result<Link, String> {
    let names = || Link::ALL.map(Link::name).join(", ");
    Link::from_name(text).ok_or_else(|| format!("known are {}", names()))
}
