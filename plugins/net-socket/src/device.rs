//! Devices: the interfaces, and virtual ones made of several.

use std::path::Path;

use hawser_oob::interface::Interface;
use hawser_plugin::net::{MAX_RECVS, MAX_REQUESTS, MAX_VIRTUAL, NetProperties};
use hawser_plugin::{Error, ErrorKind, Result};

/// The speed that an interface which does not say it is taken for (NCCL's number).
const UNKNOWN_MBPS: u32 = 10_000;
/// Longest message: what NCCL accepts.
const MOST_BYTES: u64 = 1 << 40;

/// One device.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    /// The properties that the host is told.
    pub properties: NetProperties,
    /// The interfaces whose addresses it uses.
    pub interfaces: Vec<Interface>,
}

impl Device {
    /// The device of one interface.
    pub fn physical(number: u32, interface: Interface) -> Self {
        let mut properties = NetProperties::new(&interface.name, number);
        let folder = Path::new("/sys/class/net").join(&interface.name);
        let real = std::fs::canonicalize(folder.join("device")).ok();
        properties.pci_path = real.map(|path| path.to_string_lossy().into_owned());
        properties.speed_mbps = speed(std::fs::read_to_string(folder.join("speed")).ok().as_deref());
        common(&mut properties);
        Self { properties, interfaces: vec![interface] }
    }

    /// # Errors
    /// `InvalidUsage` when the members do not fit together.
    pub fn combined(number: u32, members: &[u32], all: &[Device]) -> Result<Self> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidUsage, text));
        if members.is_empty() || members.len() > MAX_VIRTUAL {
            return wrong(format!(
                "a virtual device of {} members; 1 to {MAX_VIRTUAL} can be",
                members.len()
            ));
        }
        let mut parts = Vec::new();
        for (i, &member) in members.iter().enumerate() {
            match all.get(member as usize) {
                Some(device) if device.interfaces.len() == 1 && device.properties.members == [member] => {
                    parts.push(device);
                }
                _ => return wrong(format!("device {member} is not a physical device")),
            }
            if members[..i].contains(&member) {
                return wrong(format!("device {member} is twice in a virtual device"));
            }
        }
        let names: Vec<&str> = parts.iter().map(|device| device.properties.name.as_str()).collect();
        let mut properties = NetProperties::new(names.join("+"), number);
        properties.speed_mbps =
            parts.iter().fold(0, |sum, device| sum.saturating_add(device.properties.speed_mbps));
        properties.members = members.to_vec();
        properties.guid = parts[0].properties.guid;
        common(&mut properties);
        let interfaces = parts.iter().flat_map(|device| device.interfaces.clone()).collect();
        Ok(Self { properties, interfaces })
    }
}

fn common(properties: &mut NetProperties) {
    properties.max_recvs = MAX_RECVS as u32;
    properties.outlives_members = true;
    properties.max_multi_request = MAX_REQUESTS as u32;
    properties.max_p2p_bytes = MOST_BYTES;
    properties.max_collective_bytes = MOST_BYTES;
}

/// Megabits per second as sysfs tells them; -1 or an error for interfaces that do not know.
fn speed(text: Option<&str>) -> u32 {
    let told = text.and_then(|text| text.trim().parse::<i64>().ok());
    told.and_then(|mbps| u32::try_from(mbps).ok()).filter(|&mbps| mbps > 0).unwrap_or(UNKNOWN_MBPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u32) -> Device {
        let address = format!("10.0.{number}.1").parse().unwrap();
        let name = format!("none{number}");
        Device::physical(number, Interface { name, index: 0, address, prefix: 24 })
    }

    #[test]
    fn speeds_that_make_no_sense_become_the_default() {
        assert_eq!(speed(Some("100000\n")), 100_000);
        for text in [None, Some("-1\n"), Some("0"), Some("fast"), Some("99999999999")] {
            assert_eq!(speed(text), UNKNOWN_MBPS);
        }
    }

    #[test]
    fn a_virtual_device_adds_up_its_members() {
        let mut all = vec![device(0), device(1), device(2)];
        let two = Device::combined(3, &[2, 0], &all).unwrap();
        assert_eq!(two.properties.name, "none2+none0");
        assert_eq!((two.properties.speed_mbps, &two.properties.members[..]), (20_000, &[2, 0][..]));
        assert_eq!(two.properties.pci_path, None);
        assert_eq!(two.interfaces[0].name, "none2");
        all.push(two);
        for bad in [&[][..], &[0, 0], &[3], &[9], &[0; 9]] {
            assert_eq!(Device::combined(4, bad, &all).unwrap_err().kind, ErrorKind::InvalidUsage);
        }
    }
}
