//! Communicators for kernels: barriers and buffers that a program asks for, in one window of zeroed memory.

use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_device::Memory;

use super::exchange::{Flat, Purpose};
use super::layout::{Barriers, DevCommImage, Family, HANDLE_UNIT};
use super::{Lsa, resource_memory};

/// The contexts of a network that barriers of the rail team have counters for, until 2.29.
const GIN_CONTEXTS: u64 = 4;

/// A buffer that a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Its length.
    pub bytes: u64,
    /// The number of which its place is a multiple; a power of two.
    pub align: u64,
}

/// The needs of a program that makes a communicator for kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The version that it was compiled with.
    pub version: u32,
    /// The layout of its struct.
    pub family: Family,
    /// The number of barriers of the load-store team.
    pub lsa_barriers: u32,
    /// The number of barriers of all kinds.
    pub barriers: u32,
    /// The number of barriers of the rail team.
    pub rail_barriers: u32,
    /// Buffers of its own.
    pub buffers: Vec<Buffer>,
}

/// A communicator for kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevComm {
    /// The struct, as the caller's version has it.
    pub image: Vec<u8>,
    /// The handles of the buffers, in order.
    pub handles: Vec<u32>,
}

/// The places of everything in the resource window.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    rail: u32,
    lsa: Barriers,
    hybrid: Barriers,
    buffers: Vec<u32>,
    bytes: u64,
}

impl Lsa {
    /// Makes a communicator for kernels. Collective; `ranks` is the size of the communicator.
    ///
    /// # Errors
    /// Of the outer result: another rank did not answer. Of the inner one: there is no memory, or what ranks
    /// ask for does not agree.
    pub fn make_dev_comm(&self, wanted: &Wanted, ranks: u32, wait: &Wait) -> Result<Result<DevComm>> {
        let places = Places::new(wanted, self.team.ranks());
        let bytes = places.as_ref().map_or(0, |places| places.bytes);
        let prepared = places.and_then(|places| {
            let room = self.room()?;
            let memory = (bytes > 0).then(|| resource_memory(&*self.device, bytes)).transpose()?;
            Ok((places, room, memory))
        });
        let flat = match self.team.ranks() {
            1 => Ok(None),
            _ => {
                let maps = self.maps()?;
                let addr = prepared.as_ref().ok().and_then(|(.., memory)| Some(memory.as_ref()?.addr));
                let pieces = match &prepared {
                    Ok((.., Some(memory))) => maps.pieces(memory.addr, bytes).map(Some),
                    Ok(_) => Ok(None),
                    Err(error) => Err(error.clone()),
                };
                self.exchange(wait).run(maps, Purpose::Resources, (addr.unwrap_or(0), bytes), pieces)?
            }
        };
        Ok(flat.and_then(|flat| self.dev_comm(wanted, ranks, flat, prepared?)))
    }

    fn dev_comm(
        &self,
        wanted: &Wanted,
        ranks: u32,
        flat: Option<Flat>,
        (places, room, memory): (Places, Memory, Option<Memory>),
    ) -> Result<DevComm> {
        let resources = match memory {
            Some(memory) => self.enter(room, (memory.addr, places.bytes), flat, Some(memory))?,
            None => (0, 0, 0),
        };
        let mut state = self.state();
        // `room` has made the first part.
        let table = state.table.first().map_or(0, |part| part.memory.addr);
        state.dev_comms += 1;
        let image = DevCommImage {
            version: wanted.version,
            world: (self.bootstrap.rank(), ranks),
            lsa: (self.team.rank, self.team.ranks()),
            table,
            resources,
            lsa_barrier: places.lsa,
            rail_buffer: places.rail,
            hybrid_barrier: places.hybrid,
        };
        Ok(DevComm { image: image.bytes(wanted.family), handles: places.buffers })
    }

    /// Frees the resources of a communicator for kernels by the handle of its resource window; 0 if it has
    /// none.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none with this window; the driver refused.
    pub fn destroy_dev_comm(&self, resource_window: u64) -> Result<()> {
        let is_resource = resource_window == 0
            || self.state().windows.get(&resource_window).is_some_and(|window| window.held.is_some());
        if !is_resource || self.state().dev_comms == 0 {
            return Err(Error::invalid_argument(format!(
                "devComm has resource window {resource_window:#x}, which is none of this communicator"
            ))
            .remedy("pass what ncclDevCommCreate stored, and only once"));
        }
        if resource_window != 0 {
            self.deregister(resource_window)?;
        }
        self.state().dev_comms -= 1;
        Ok(())
    }

    /// The reason why kernels cannot use some symmetric window that was registered, if so.
    pub fn host_only(&self) -> Option<String> {
        self.state().host_only.clone()
    }
}

impl Places {
    /// Places one behind the other, in the order in which NVIDIA's library has them: barriers of the rail
    /// team, of the load-store team, of both kinds, then buffers.
    fn new(wanted: &Wanted, team: u32) -> Result<Self> {
        let has_hybrid = wanted.family.offsets().hybrid_barrier.is_some();
        // Before 2.30 barriers of both kinds are those of the two teams.
        let (lsa, rail, hybrid) = match has_hybrid {
            true => (wanted.lsa_barriers, wanted.rail_barriers, wanted.barriers),
            false => (wanted.lsa_barriers.max(wanted.barriers), wanted.rail_barriers.max(wanted.barriers), 0),
        };
        let barrier = |count: u32| Buffer { bytes: u64::from(count) * (3 + u64::from(team)) * 4, align: 4 };
        let counters = if wanted.family == Family::V228 { GIN_CONTEXTS * 4 } else { 0 };
        let rail = Buffer { bytes: u64::from(rail) * counters, align: 4 };
        let mut bytes = 0u64;
        let mut place = |buffer: Buffer| -> Result<u32> {
            let align = buffer.align.max(HANDLE_UNIT);
            let at = bytes.checked_next_multiple_of(align).ok_or_else(too_much)?;
            bytes = at.checked_add(buffer.bytes).ok_or_else(too_much)?;
            u32::try_from(at / HANDLE_UNIT).map_err(|_| too_much())
        };
        let rail = place(rail)?;
        let lsa = Barriers { buffer: place(barrier(lsa))?, count: lsa };
        let hybrid = Barriers { buffer: place(barrier(hybrid))?, count: hybrid };
        let buffers = wanted.buffers.iter().map(|buffer| place(*buffer)).collect::<Result<_>>()?;
        Ok(Self { rail, lsa, hybrid, buffers, bytes })
    }
}

fn too_much() -> Error {
    Error::invalid_argument("the buffers that are asked for exceed what handles can name")
        .remedy("ask for smaller ones, or register a window")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(family: Family) -> Wanted {
        let buffers = vec![Buffer { bytes: 100, align: 16 }, Buffer { bytes: 1, align: 4096 }];
        Wanted { version: 0, family, lsa_barriers: 2, barriers: 3, rail_barriers: 0, buffers }
    }

    #[test]
    fn everything_has_a_place_of_its_own() {
        // Four ranks: a barrier takes 28 bytes.
        let old = Places::new(&wanted(Family::V228), 4).unwrap();
        let barriers = |buffer, count| Barriers { buffer, count };
        assert_eq!(
            (old.rail, old.lsa, old.hybrid.count),
            (0, barriers(1, 3), 0),
            "48 bytes for the rail team"
        );
        assert_eq!((&old.buffers[..], old.bytes), (&[2, 32][..], 4097));
        let new = Places::new(&wanted(Family::V232), 4).unwrap();
        assert_eq!((new.rail, new.lsa, new.hybrid), (0, barriers(0, 2), barriers(1, 3)));
        assert_eq!((&new.buffers[..], new.bytes), (&[2, 32][..], 4097));
    }

    #[test]
    fn nothing_takes_nothing_and_too_much_is_refused() {
        let none = Wanted { lsa_barriers: 0, barriers: 0, buffers: vec![], ..wanted(Family::V230) };
        assert_eq!(Places::new(&none, 8).unwrap().bytes, 0);
        for bytes in [u64::MAX, 1 << 40] {
            let buffers = vec![Buffer { bytes, align: 1 }, Buffer { bytes: 1, align: 1 }];
            assert!(Places::new(&Wanted { buffers, ..none.clone() }, 8).is_err());
        }
    }
}
