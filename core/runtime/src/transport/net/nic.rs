//! The choice of NICs of a net plugin for a rank: those nearest to its device, as one device if the plugin
//! then survives the loss of a NIC, else spread over lanes and the ranks of the host.

use std::path::{Path, PathBuf};

use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_plugin::net::{MAX_VIRTUAL, MemoryKinds, NetContext, NetProperties};

use hawser_device::Caps;

/// Most devices that a plugin may have.
const MOST_DEVICES: u32 = 1024;

/// The NICs of a rank.
pub struct Nics {
    /// Numbers of the plugin's devices that this rank uses.
    pub near: Vec<u32>,
    /// Their properties.
    pub properties: Vec<NetProperties>,
}

impl Nics {
    /// Looks at all devices of the plugin and keeps those nearest to `caps`.
    ///
    /// # Errors
    /// The plugin has no device that can be used here.
    pub fn of(context: &dyn NetContext, caps: &Caps) -> Result<Self> {
        let count = context.devices()?;
        if count == 0 || count > MOST_DEVICES {
            let text = format!("it has {count} devices, 1 to {MOST_DEVICES} can be used");
            return Err(Error::invalid_usage(text));
        }
        let mut all = Vec::new();
        for device in 0..count {
            let properties = context.properties(device)?;
            let usable = properties.offload.0 == 0 && properties.memory.contains(MemoryKinds::HOST);
            let twin = all
                .iter()
                .any(|(_, p): &(u32, NetProperties)| p.guid == properties.guid && p.port == properties.port);
            if usable && !twin {
                all.push((device, properties));
            } else {
                let why = if twin { "it is a port that was seen already" } else { "it needs device offload" };
                log::info(Subsys::Net, || {
                    format!("net device {device} ({}) is left out: {why}", properties.name)
                });
            }
        }
        let own = Path::new("/sys/bus/pci/devices").join(&caps.id).canonicalize().ok();
        let score = |p: &NetProperties| nearness(own.as_deref(), p.pci_path.as_deref().map(PathBuf::from));
        let best = all.iter().map(|(_, p)| score(p)).max().unwrap_or(0);
        let near: Vec<(u32, NetProperties)> = all.into_iter().filter(|(_, p)| score(p) == best).collect();
        if near.is_empty() {
            return Err(Error::invalid_usage("none of its devices can send from host memory"));
        }
        let (near, properties) = near.into_iter().unzip();
        Ok(Self { near, properties }.merged(context))
    }

    /// All NICs as one, if such a device survives the loss of some of them: then a connection does, too.
    fn merged(self, context: &dyn NetContext) -> Self {
        let survives = self.properties.iter().all(|p| p.outlives_members);
        if !survives || !(2..=MAX_VIRTUAL).contains(&self.near.len()) {
            return self;
        }
        let merge = || {
            let device = context.make_virtual(&self.near)?;
            Ok::<_, hawser_plugin::Error>(Self {
                near: vec![device],
                properties: vec![context.properties(device)?],
            })
        };
        match merge() {
            Ok(merged) => merged,
            Err(error) => {
                log::info(Subsys::Net, || format!("NICs are used side by side, not as one: {error}"));
                self
            }
        }
    }

    /// The device for a lane; `place` is the rank's place on its host.
    pub fn device(&self, place: u32, lane: u32) -> u32 {
        self.near[(place + lane) as usize % self.near.len()]
    }

    /// The name of the device for a lane.
    pub fn name(&self, place: u32, lane: u32) -> &str {
        &self.properties[(place + lane) as usize % self.near.len()].name
    }

    /// The name of each, and its megabits per second; 0 if it does not say.
    pub fn speeds(&self) -> Vec<(String, u32)> {
        self.properties.iter().map(|p| (p.name.clone(), p.speed_mbps)).collect()
    }

    /// The longest message that all of them take.
    pub fn most_bytes(&self) -> u64 {
        self.properties.iter().map(|p| p.max_p2p_bytes.min(p.max_collective_bytes)).min().unwrap_or(0)
    }

    /// True if all of them read and write GPU memory.
    pub fn reach_gpus(&self) -> bool {
        self.properties.iter().all(|p| p.memory.contains(MemoryKinds::CUDA))
    }
}

/// Path components that the device and the NIC share; 0 if one of them is no PCI device.
fn nearness(own: Option<&Path>, nic: Option<PathBuf>) -> usize {
    let (Some(own), Some(nic)) = (own, nic) else { return 0 };
    let nic = nic.canonicalize().unwrap_or(nic);
    own.components().zip(nic.components()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearness_counts_shared_bridges() {
        let gpu = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:00.0");
        let near = PathBuf::from("/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/0000:04:00.0");
        let far = PathBuf::from("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        assert!(nearness(Some(gpu), Some(near.clone())) > nearness(Some(gpu), Some(far)));
        assert_eq!(nearness(None, Some(near)), 0);
        assert_eq!(nearness(Some(gpu), None), 0);
    }
}
