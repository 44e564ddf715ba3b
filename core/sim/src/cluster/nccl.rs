//! A host by the topology that NCCL wrote of it (`NCCL_TOPO_DUMP_FILE`).
//!
//! GPUs, NVLink, PCIe switches and NICs are taken from there. What such a file does not say (memory, the
//! number of processors) is that of `hgx-h200`.

use std::collections::BTreeSet;

use hawser_plan::link_constants::Constants;
use hawser_types::{DeviceKind, Link};
use roxmltree::{Document, Node, ParsingOptions};

use super::file::HostsFile;
use crate::error::{Result, SimError, wrong};

/// Class of PCI bridges.
const BRIDGE: &str = "0x0604";
/// The share of a PCIe way's raw rate that data reach: 55 GB/s by 16 lanes of PCIe 5.
const PCIE_SHARE: f64 = 0.86;
/// GB/s each way of the NVLinks of an H100 or H200, of which the cost model's constants were measured.
const HOPPER_GBS: f64 = 18.0 * 25.0;

/// The figures of a host from NCCL's topology.
///
/// # Errors
/// `Syntax` for what is no XML, `Cluster` for a topology without GPUs that NCCL has seen.
pub fn host(xml: &str) -> Result<HostsFile> {
    // NCCL writes no document type, and one could make a small file large.
    let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    let document =
        Document::parse_with_options(xml, options).map_err(|error| SimError::Syntax(error.to_string()))?;
    let root = document.root_element();
    if root.tag_name().name() != "system" {
        return Err(wrong(
            format!("<{}> is no topology of NCCL", root.tag_name().name()),
            "name a file that NCCL wrote by NCCL_TOPO_DUMP_FILE, which begins with <system>",
        ));
    }
    let of_kind = |kind: &'static str| root.descendants().filter(move |node| node.has_tag_name(kind));
    let gpus: Vec<Node<'_, '_>> = of_kind("gpu").collect();
    // RCCL writes such files too.
    let sm_of = |gpu: &Node<'_, '_>| number(*gpu, "sm").filter(|_| !gpu.has_attribute("gcn"));
    let all: Option<Vec<f64>> = gpus.iter().map(sm_of).collect();
    let sm = all.map(|all| all.into_iter().fold(f64::INFINITY, f64::min));
    let (Some(sm), Some(first)) = (sm.filter(|sm| (30.0..1000.0).contains(sm)), gpus.first()) else {
        return Err(wrong(
            "the topology has no GPUs of NVIDIA (gpu with sm)",
            "let NCCL write it on a host with GPUs: NCCL_TOPO_DUMP_FILE=topology.xml",
        ));
    };
    let links = gpus.iter().map(|gpu| nvlinks(*gpu)).min().unwrap_or(0);
    let nics: Vec<Node<'_, '_>> = of_kind("net").collect();
    let slowest = nics.iter().filter_map(|nic| number(*nic, "speed")).fold(f64::INFINITY, f64::min);
    let switches: BTreeSet<&str> = gpus.iter().filter_map(|gpu| switch(*gpu)).collect();
    let has_switches = gpus.iter().all(|gpu| switch(*gpu).is_some());
    Ok(HostsFile {
        device: Some(DeviceKind::Cuda { sm: sm as u32 }.to_string()),
        link: Some(if links > 0 { Link::NvLink } else { Link::Pcie }.name().into()),
        ranks: Some(gpus.len() as u32),
        wire_gbs: (links > 0).then(|| nvlink_gbs(sm, links)),
        pcie_switches: Some(if has_switches { switches.len() as u32 } else { 0 }),
        pcie_gbs: pcie_gbs(*first),
        nics: (!nics.is_empty()).then_some(nics.len() as u32),
        nic_gbps: (slowest.is_finite() && slowest > 0.0).then_some(slowest / 1e3),
        gpu_direct: (!nics.is_empty()).then(|| nics.iter().all(|nic| nic.attribute("gdr") == Some("1"))),
        ..HostsFile::default()
    })
}

fn number(node: Node<'_, '_>, name: &str) -> Option<f64> {
    let value = node.attribute(name)?.trim();
    // Speeds of PCIe stand before their unit: "32.0 GT/s PCIe".
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    value[..end].parse().ok().filter(|number: &f64| number.is_finite())
}

/// The NVLinks of a GPU, to whatever is at their other end.
fn nvlinks(gpu: Node<'_, '_>) -> u32 {
    let links = gpu.children().filter(|node| node.has_tag_name("nvlink"));
    links.filter_map(|link| number(link, "count")).fold(0.0, |sum, count| sum + count.min(1000.0)) as u32
}

/// GB/s that so many NVLinks reach each way: as good a share of the raw rate as those of an H200.
fn nvlink_gbs(sm: f64, links: u32) -> f64 {
    let each = if sm >= 100.0 {
        50.0
    } else if sm >= 70.0 {
        25.0
    } else {
        20.0
    };
    let hopper = Constants::builtin(DeviceKind::Cuda { sm: 90 }, Link::NvLink).wire_gbs;
    f64::from(links) * each / HOPPER_GBS * hopper
}

/// The bus id of the highest PCI bridge above a GPU: what it shares with others on their way to the
/// processors.
fn switch<'a>(gpu: Node<'a, '_>) -> Option<&'a str> {
    let is_bridge = |node: &Node<'a, '_>| {
        node.has_tag_name("pci") && node.attribute("class").is_some_and(|class| class.starts_with(BRIDGE))
    };
    gpu.ancestors().filter(is_bridge).last().and_then(|node| node.attribute("busid"))
}

/// GB/s of the PCIe way of a GPU, if the topology says.
fn pcie_gbs(gpu: Node<'_, '_>) -> Option<f64> {
    let card = gpu.parent().filter(|node| node.has_tag_name("pci"))?;
    let (rate, lanes) = (number(card, "link_speed")?, number(card, "link_width")?);
    let gbs = rate * lanes / 8.0 * PCIE_SHARE;
    (gbs > 0.0).then_some(gbs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, File};

    /// A host whose GPUs hang in pairs on switches, with a NIC on each.
    fn xml(sm: u32, nvlink: &str) -> String {
        let gpu = |at: u32| {
            format!(
                "<pci busid=\"0000:{at:02x}:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" \
                 link_width=\"16\"><gpu dev=\"{at}\" sm=\"{sm}\" rank=\"{at}\" gdr=\"1\">{nvlink}</gpu></pci>"
            )
        };
        let switch = |at: u32| {
            format!(
                "<pci busid=\"0000:{at}0:00.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" \
                 link_width=\"16\">{}{}<pci busid=\"0000:{at}9:00.0\" class=\"0x020700\"><nic><net \
                 name=\"mlx5_{at}\" dev=\"{at}\" speed=\"200000\" port=\"1\" gdr=\"1\"/></nic></pci></pci>",
                gpu(2 * at),
                gpu(2 * at + 1)
            )
        };
        let cpu = |numa: u32| {
            format!(
                "<cpu numaid=\"{numa}\" arch=\"x86_64\">{}{}</cpu>",
                switch(2 * numa),
                switch(2 * numa + 1)
            )
        };
        format!("<?xml version=\"1.0\"?><system version=\"1\">{}{}</system>", cpu(0), cpu(1))
    }

    #[test]
    fn gpus_switches_and_nics_are_those_of_the_topology() {
        let nvlink = "<nvlink target=\"0000:c7:00.0\" count=\"12\" tclass=\"0x068000\"/>";
        let found = host(&xml(80, nvlink)).unwrap();
        assert_eq!((found.device.as_deref(), found.link.as_deref()), (Some("cuda:80"), Some("nvlink")));
        assert_eq!((found.ranks, found.pcie_switches, found.nics), (Some(8), Some(4), Some(4)));
        assert_eq!((found.nic_gbps, found.gpu_direct), (Some(200.0), Some(true)));
        // As the preset of such hosts has it.
        let near = |value: Option<f64>, expected: f64| (value.unwrap() / expected - 1.0).abs() < 0.12;
        assert!(near(found.wire_gbs, 243.0) && near(found.pcie_gbs, 25.0), "{found:?}");
        let hopper = host(&xml(90, &nvlink.replace("12", "18"))).unwrap();
        let builtin = Constants::builtin(DeviceKind::Cuda { sm: 90 }, Link::NvLink).wire_gbs;
        assert!((hopper.wire_gbs.unwrap() - builtin).abs() < 1e-9);
        let pcie = host(&xml(80, "")).unwrap();
        assert_eq!((pcie.link.as_deref(), pcie.wire_gbs), (Some("pcie"), None));
    }

    #[test]
    fn such_hosts_make_a_cluster() {
        let mut file = File::parse("[[hosts]]\ncount = 4\nnics = 8\n").unwrap();
        file.hosts[0] = file.hosts[0].over(host(&xml(90, "<nvlink count=\"18\"/>")).unwrap());
        let cluster = Cluster::new(&file, None).unwrap();
        let host = cluster.host(3);
        assert_eq!((cluster.topology.size(), host.nics, host.nic_gbps), (32, 8, 200.0), "own figures count");
        assert_eq!(host.near_nics(2), 2..4);
    }

    #[test]
    fn other_files_are_errors_that_say_what_to_name() {
        for (text, words) in [
            ("", "root"),
            ("<system>", "never closed"),
            ("<algo/>", "<algo> is no topology of NCCL"),
            ("<system/>", "no GPUs"),
            ("<system><gpu/></system>", "no GPUs"),
            ("<system><gpu sm='x'/></system>", "no GPUs"),
            ("<system><gpu sm='64' gcn='906'/></system>", "no GPUs"),
            ("<!DOCTYPE a><system/>", "DTD"),
        ] {
            let error = host(text).unwrap_err().to_string();
            assert!(error.to_lowercase().contains(&words.to_lowercase()), "{text}: {error}");
        }
    }
}
