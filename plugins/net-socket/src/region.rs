//! Registered memory. The kernel reaches all of a process's memory anyway, so this only checks the host's
//! arguments.

use hawser_plugin::net::{MemoryKinds, Region, Registration, Segment};
use hawser_plugin::{Error, Result};

/// The registrations of one end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    all: Vec<Option<Region>>,
    free: Vec<usize>,
}

impl Regions {
    pub fn register(&mut self, region: &Region) -> Result<Registration> {
        if region.kind != MemoryKinds::HOST {
            return Err(Error::unsupported("memory other than the host's"));
        }
        if region.addr.checked_add(region.bytes as u64).is_none() {
            return Err(Error::internal("a region ends beyond the address space"));
        }
        let index = self.free.pop().unwrap_or(self.all.len());
        if index == self.all.len() {
            self.all.push(None);
        }
        self.all[index] = Some(*region);
        Ok(Registration(index as u64))
    }

    pub fn deregister(&mut self, registration: Registration) -> Result<()> {
        let known = usize::try_from(registration.0).ok().and_then(|index| self.all.get_mut(index));
        match known.and_then(Option::take) {
            Some(_) => {
                self.free.push(registration.0 as usize);
                Ok(())
            }
            None => Err(Error::internal(format!("registration {} does not exist", registration.0))),
        }
    }

    /// # Errors
    /// `Internal` when the segment leaves its region.
    pub fn check(&self, segment: &Segment) -> Result<()> {
        let known = usize::try_from(segment.registration.0).ok().and_then(|index| self.all.get(index));
        let Some(Some(region)) = known else {
            let text = format!("registration {} does not exist at this connection", segment.registration.0);
            return Err(Error::internal(text));
        };
        let offset = segment.addr.checked_sub(region.addr);
        let end = offset.and_then(|offset| offset.checked_add(segment.bytes as u64));
        if end.is_some_and(|end| end <= region.bytes as u64) || segment.bytes == 0 {
            return Ok(());
        }
        Err(Error::internal(format!(
            "a segment of {} bytes at {:#x} leaves its region of {} bytes at {:#x}",
            segment.bytes, segment.addr, region.bytes, region.addr
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plugin::ErrorKind;

    fn region(addr: u64, bytes: usize) -> Region {
        Region { addr, bytes, kind: MemoryKinds::HOST, dmabuf: None }
    }

    fn segment(registration: Registration, addr: u64, bytes: usize) -> Segment {
        Segment { addr, bytes, registration, tag: 0, profile: 0 }
    }

    #[test]
    fn segments_stay_inside_their_regions() {
        let mut regions = Regions::default();
        let first = regions.register(&region(1000, 100)).unwrap();
        let second = regions.register(&region(5000, 10)).unwrap();
        regions.check(&segment(first, 1000, 100)).unwrap();
        regions.check(&segment(second, 5009, 1)).unwrap();
        regions.check(&segment(second, 0, 0)).unwrap();
        for bad in [
            segment(first, 1001, 100),
            segment(first, 999, 1),
            segment(second, 1000, 1),
            segment(first, u64::MAX, 2),
            segment(Registration(9), 1000, 1),
        ] {
            assert!(regions.check(&bad).is_err(), "{bad:?}");
        }
        regions.deregister(first).unwrap();
        assert!(regions.deregister(first).is_err());
        assert!(regions.check(&segment(first, 1000, 1)).is_err());
        assert_eq!(regions.register(&region(0, 1)).unwrap(), first);
    }

    #[test]
    fn only_host_memory_is_taken() {
        let mut regions = Regions::default();
        let gpu = Region { kind: MemoryKinds::CUDA, ..region(1000, 100) };
        assert_eq!(regions.register(&gpu).unwrap_err().kind, ErrorKind::Unsupported);
        assert!(regions.register(&region(u64::MAX, 2)).is_err());
    }
}
