//! The devices of a machine: capabilities, peers, and the summary for people. Needs no context.

use std::ffi::c_int;

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUuuid};
use hawser_base::env;
use hawser_base::error::Result;
use hawser_plan::topology::{DeviceKind, QUEUES};

use super::context::{Platform, fixed_text, platform};
use super::nvml;
use super::result::installed_version;
use crate::device::Caps;

/// One device, for `hawser doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// Ordinal in this process.
    pub ordinal: u32,
    /// Marketing name.
    pub name: String,
    /// PCI bus id, as in [`Caps::id`].
    pub id: String,
    /// Ten times major plus minor compute capability.
    pub sm: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// Highest CUDA version that the driver supports, such as `CUDA 13.0`.
    pub driver: String,
    /// The way to each visible device, by ordinal (one row of the P2P matrix).
    pub peers: Vec<PeerLink>,
}

impl DeviceSummary {
    /// True if some peer is reached over NVLink.
    pub fn nvlink(&self) -> bool {
        self.peers.contains(&PeerLink::NvLink)
    }
}

/// The ways in which a device reaches another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerLink {
    /// The device itself.
    Itself,
    /// Not directly: peers stage in host memory.
    None,
    /// Loads and stores over PCIe.
    Pcie,
    /// Loads, stores and atomics over NVLink.
    NvLink,
}

/// All visible devices; empty where there is no driver ([`super::count`] says why).
pub fn summary() -> Vec<DeviceSummary> {
    let Ok(platform) = platform() else { return Vec::new() };
    (0..platform.devices.len() as u32).filter_map(|ordinal| summary_of(platform, ordinal).ok()).collect()
}

fn summary_of(platform: &Platform, ordinal: u32) -> Result<DeviceSummary> {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS;
    let device = platform.device(ordinal)?;
    let mut memory: usize = 0;
    // SAFETY: `memory` is valid for the number.
    unsafe { platform.driver.device_total_mem(&mut memory, device) }
        .check(&format_args!("device {ordinal}"))?;
    Ok(DeviceSummary {
        ordinal,
        name: name(platform, device)?,
        id: id(platform, device)?,
        sm: compute_capability(platform, device)?,
        memory_bytes: memory as u64,
        multiprocessors: platform.attribute(MULTIPROCESSORS, device)?.max(1) as u32,
        driver: installed_version(),
        peers: peer_links(platform, device),
    })
}

/// Asks the driver what a device is and can do.
pub fn caps(ordinal: u32) -> Result<Caps> {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS;
    let platform = platform()?;
    let device = platform.device(ordinal)?;
    let id = id(platform, device)?;
    let (peers, nvlink) = peers(platform, device, &id)?;
    Ok(Caps {
        kind: DeviceKind::Cuda { sm: compute_capability(platform, device)? },
        ordinal,
        id,
        name: name(platform, device)?,
        peers,
        nvlink,
        multiprocessors: platform.attribute(MULTIPROCESSORS, device)?.max(1) as u32,
        queues: env::gpu_queues().unwrap_or(QUEUES),
    })
}

/// Identity of a device, as in [`Caps::id`].
pub fn id_of(ordinal: u32) -> Result<String> {
    let platform = platform()?;
    id(platform, platform.device(ordinal)?)
}

/// Identities of the peers, and whether all of them are reached over NVLink. Devices that
/// `CUDA_VISIBLE_DEVICES` hides from this process count too: another process may own them.
fn peers(platform: &Platform, device: CUdevice, id: &str) -> Result<(Vec<String>, bool)> {
    let mut reachable = Vec::new();
    let mut visible = vec![id.to_string()];
    for (peer, link) in platform.devices.iter().zip(peer_links(platform, device)) {
        let peer = self::id(platform, *peer)?;
        if matches!(link, PeerLink::Pcie | PeerLink::NvLink) {
            reachable.push((peer.clone(), link));
        }
        visible.push(peer);
    }
    reachable.extend(nvml::hidden_peers(id, &visible));
    let nvlink = !reachable.is_empty() && reachable.iter().all(|(_, link)| *link == PeerLink::NvLink);
    Ok((reachable.into_iter().map(|(peer, _)| peer).collect(), nvlink))
}

/// Returns the way in which `device` reaches each visible device. What the driver refuses to say counts as no
/// link.
fn peer_links(platform: &Platform, device: CUdevice) -> Vec<PeerLink> {
    platform.devices.iter().map(|peer| peer_link(platform, device, *peer)).collect()
}

fn peer_link(platform: &Platform, device: CUdevice, peer: CUdevice) -> PeerLink {
    use CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as NATIVE_ATOMICS;
    if device == peer {
        return PeerLink::Itself;
    }
    let mut can: c_int = 0;
    // SAFETY: `can` is valid for the number.
    let asked = unsafe { platform.driver.device_can_access_peer(&mut can, device, peer) };
    if !asked.is_ok() || can == 0 {
        return PeerLink::None;
    }
    let mut atomics: c_int = 0;
    // SAFETY: `atomics` is valid for the number.
    let asked = unsafe { platform.driver.device_p2p_attribute(&mut atomics, NATIVE_ATOMICS, device, peer) };
    // Only NVLink carries atomics between GPUs.
    if asked.is_ok() && atomics == 1 { PeerLink::NvLink } else { PeerLink::Pcie }
}

fn compute_capability(platform: &Platform, device: CUdevice) -> Result<u32> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let (major, minor) = (platform.attribute(MAJOR, device)?, platform.attribute(MINOR, device)?);
    Ok((10 * major + minor) as u32)
}

fn name(platform: &Platform, device: CUdevice) -> Result<String> {
    let mut text = [0; 256];
    // SAFETY: the buffer has the length that is given.
    unsafe { platform.driver.device_name(text.as_mut_ptr(), text.len() as c_int, device) }
        .check(&format_args!("device {device}"))?;
    Ok(fixed_text(&text))
}

/// PCI bus id in lower case; a MIG instance adds its UUID, since all instances share the bus id.
fn id(platform: &Platform, device: CUdevice) -> Result<String> {
    let mut text = [0; 32];
    // SAFETY: the buffer has the length that is given.
    unsafe { platform.driver.device_bus_id(text.as_mut_ptr(), text.len() as c_int, device) }
        .check(&format_args!("device {device}"))?;
    let bus_id = fixed_text(&text).to_ascii_lowercase();
    let (mut whole, mut instance) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [0; 16] });
    // SAFETY: the values are valid for the 16 bytes each.
    let both = unsafe {
        platform.driver.device_uuid(&mut whole, device).is_ok()
            && platform.driver.device_uuid_v2(&mut instance, device).is_ok()
    };
    if !both || whole.bytes == instance.bytes {
        return Ok(bus_id);
    }
    let uuid: String = instance.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
    Ok(format!("{bus_id}/mig-{uuid}"))
}
