//! Communicators for kernels: what a program asks for, read by its version, and what it gets.
//!
//! Load-store teams are offered (barriers, buffers and windows), a network in kernels (`gin`), and multicast
//! within the team where a setting asks for it. What needs counted transfers is refused.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_runtime::lsa::layout::{Family, LEAST_DEV_COMM};
use hawser_runtime::lsa::resources::{Resource, Wanted};
use hawser_runtime::{Error, Result};

use crate::args::{self, In, Out};
use crate::gin::{self, Teams};
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;
use crate::requirements::Requirement;
use crate::teams;
use crate::types::{API_MAGIC, DevCommRequirements, Team, TeamRequirement, UNDEF_INT, VERSION_CODE};

/// The version that a struct without a header is taken for: 2.28.9 is the last one.
const HEADLESS: u32 = 22809;
/// Length of that struct.
const HEADLESS_BYTES: usize = 56;
/// Bytes of a resource's needs that all versions have: what follows is about the network.
const LEAST_REQUIREMENT: usize = 32;
/// Most entries of a list: more is a list that bites its tail.
const MOST_ENTRIES: usize = 1 << 16;

nccl_api! {
    /// Makes a communicator for kernels. All ranks call it; in a group its end makes it.
    fn ncclDevCommCreate / pncclDevCommCreate(comm: CommPtr, reqs: In<DevCommRequirements>,
        outDevComm: Out<u8>) {
        grouped(comm.ready().and_then(|handle| handle.name(create(&handle, reqs, outDevComm))))
    }

    /// Frees a communicator for kernels.
    fn ncclDevCommDestroy / pncclDevCommDestroy(comm: CommPtr, devComm: In<[u8; LEAST_DEV_COMM]>) {
        let handle = comm.ready()?;
        let bytes = devComm.read("devComm")?;
        handle.name(handle.comm.destroy_dev_comm(Family::resource_window(&bytes)))
    }
}

/// The length of an `ncclDevComm` of this library's version.
pub fn own_bytes() -> usize {
    Family::of(VERSION_CODE.unsigned_abs()).map_or(0, |family| family.offsets().bytes)
}

fn create(handle: &Arc<Handle>, reqs: In<DevCommRequirements>, out: Out<u8>) -> Result<()> {
    let (given, version, has_header) = read(reqs)?;
    out.check("outDevComm")?;
    let family = Family::of(version).ok_or_else(|| unknown(version))?;
    let lists = Lists(&given);
    refuse_counted(&given)?;
    let team = teams::load_store(handle)?;
    let (has_multicast, multicast_of) = lists.multicast(team, handle.comm.offers_multicast()?)?;
    let resources = lists.resources(has_header || asks_for_network(&given))?;
    let uses_network = resources.iter().any(|resource| resource.signals != 0 || resource.counters != 0);
    let (rails, ranks) = (teams::rails(handle)?, handle.comm.ranks());
    let teams = Teams { rails, near: ranks / rails.max(1), ranks };
    let network = gin::wanted(&given, version, teams, uses_network)?;
    let wanted = Wanted {
        version,
        family,
        lsa_barriers: count("lsaBarrierCount", given.lsa_barriers)?,
        barriers: count("barrierCount", given.barriers)?,
        rail_barriers: count("railGinBarrierCount", given.rail_barriers)?,
        resources: resources.iter().map(resource).collect::<Result<_>>()?,
        network,
        multicast: has_multicast,
    };
    let out_of = |address: *const c_void| Out::<u32>::inside(address.cast_mut().cast());
    let places: Vec<[Out<u32>; 3]> = resources
        .iter()
        .map(|resource| [resource.out_buffer, resource.out_signals, resource.out_counters].map(out_of))
        .collect();
    handle.comm.make_dev_comm(wanted, move |made| {
        for ([buffer, signal, counter], part) in places.iter().zip(made.parts) {
            buffer.set_if_given(part.buffer);
            if network.is_some() {
                signal.set_if_given(part.signal);
                counter.set_if_given(part.counter);
            }
        }
        for out in multicast_of {
            out.set_if_given(made.multicast);
        }
        out.set_bytes("outDevComm", &made.image)
    })?;
    handle.progress()
}

/// The resources that a program asks for, the version that it was compiled with, and whether its struct says
/// so.
fn read(reqs: In<DevCommRequirements>) -> Result<(DevCommRequirements, u32, bool)> {
    if let Some(given) = reqs.read_headless("reqs", NOTHING, API_MAGIC, HEADLESS_BYTES)? {
        return Ok((without_garbage(given), HEADLESS, false));
    }
    let given = reqs.read_versioned("reqs", NOTHING, API_MAGIC)?;
    let version = if given.use_runtime_version != 0 { VERSION_CODE.unsigned_abs() } else { given.version };
    Ok((given, version, true))
}

/// A struct without a header is shorter in 2.28.3, which has no network: what lies behind it is left out if
/// no program would ask so.
fn without_garbage(given: DevCommRequirements) -> DevCommRequirements {
    let numbers = [given.gin_contexts, given.gin_signals, given.gin_counters];
    let is_sane = given.gin_force_enable <= 1 && numbers.iter().all(|number| (0..1 << 20).contains(number));
    if is_sane {
        return given;
    }
    DevCommRequirements { gin_force_enable: 0, gin_contexts: 0, gin_signals: 0, gin_counters: 0, ..given }
}

/// True if a program without a header asks for the network, so that its resources may as well.
fn asks_for_network(given: &DevCommRequirements) -> bool {
    given.gin_force_enable != 0 || given.gin_signals != 0 || given.gin_counters != 0
}

/// Nothing is asked for.
pub const NOTHING: DevCommRequirements = DevCommRequirements {
    size: 0,
    magic: 0,
    version: 0,
    resources: std::ptr::null(),
    teams: std::ptr::null(),
    lsa_multimem: 0,
    barriers: 0,
    lsa_barriers: 0,
    rail_barriers: 0,
    lla2a_blocks: 0,
    lla2a_slots: 0,
    gin_force_enable: 0,
    gin_contexts: 0,
    gin_signals: 0,
    gin_counters: 0,
    gin_connection_type: 0,
    gin_exclusive_contexts: 0,
    gin_queue_depth: 0,
    gin_traffic_class: UNDEF_INT,
    world_barriers: 0,
    gin_strong_signals: 0,
    gin_va_signals: 0,
    gin_custom_stride: 1,
    gin_type: 0,
    use_runtime_version: 0,
    cft_caps: 0,
    cft_barriers: 0,
};

/// Refuses what would need counted transfers.
fn refuse_counted(given: &DevCommRequirements) -> Result<()> {
    if given.cft_caps != 0 || given.cft_barriers != 0 {
        let text = "cftCaps or cftBarrierCount asks for counted transfers, which there are none of \
                    (ncclCommQueryProperties says cftSupport = false)";
        return Err(Error::invalid_usage(text).remedy("use the load-store team"));
    }
    Ok(())
}

/// The lists of needs.
struct Lists<'a>(&'a DevCommRequirements);

impl Lists<'_> {
    /// The needs of resources. What they say of the network is looked at if the version has one.
    fn resources(&self, has_network: bool) -> Result<Vec<Requirement>> {
        let (mut found, mut next) = (Vec::new(), self.0.resources.cast::<c_void>());
        while !next.is_null() {
            check_length(found.len(), "resourceRequirementsList")?;
            let least = In::inside(next.cast::<[u8; LEAST_REQUIREMENT]>());
            let one = match has_network {
                true => In::inside(next.cast::<Requirement>()).read("resourceRequirementsList")?,
                false => Requirement::of_least(least.read("resourceRequirementsList")?),
            };
            next = one.next;
            found.push(one);
        }
        Ok(found)
    }

    /// True if the program asks for multicast, and where it wants the begins of addresses for teams that ask.
    /// Refuses it where there is none, with NVIDIA's code, and for other teams than the load-store team.
    fn multicast(&self, own: Team, is_offered: bool) -> Result<(bool, Vec<Out<u64>>)> {
        let refuse = |name: &str| {
            Err(Error::invalid_argument(format!(
                "{name} asks for multicast, which there is none of (ncclCommQueryProperties says \
                 multimemSupport = false)"
            ))
            .remedy("use the pointers of single ranks (ncclGetLsaPointer)"))
        };
        let mut is_wanted = self.0.lsa_multimem != 0;
        if is_wanted && !is_offered {
            return refuse("lsaMultimem");
        }
        let (mut next, mut seen, mut places) = (self.0.teams, 0, Vec::new());
        while !next.is_null() {
            check_length(seen, "teamRequirementsList")?;
            let one: TeamRequirement = In::inside(next).read("teamRequirementsList")?;
            if one.multimem != 0 {
                if !is_offered {
                    return refuse("teamRequirementsList");
                }
                if one.team != own {
                    return Err(Error::invalid_argument(format!(
                        "teamRequirementsList asks for multicast to {} ranks, which there is for the \
                         load-store team of {} alone",
                        one.team.ranks, own.ranks
                    ))
                    .remedy("ask for the team of ncclTeamLsa"));
                }
                is_wanted = true;
                places.push(Out::inside(one.out_multimem.cast_mut().cast()));
            }
            (next, seen) = (one.next, seen + 1);
        }
        Ok((is_wanted, places))
    }
}

fn check_length(seen: usize, name: &str) -> Result<()> {
    if seen < MOST_ENTRIES {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("{name} has no end")).remedy("end the list with next = NULL"))
}

fn resource(given: &Requirement) -> Result<Resource> {
    let align = given.buffer_alignment.max(1);
    if !align.is_power_of_two() {
        return Err(Error::invalid_argument(format!("bufferAlign is {align}")).remedy("pass a power of two"));
    }
    args::buffer("bufferSize", align as *const c_void, given.buffer_bytes)?;
    Ok(Resource {
        bytes: given.buffer_bytes as u64,
        align: align as u64,
        signals: count("ginSignalCount", given.signals)?,
        counters: count("ginCounterCount", given.counters)?,
    })
}

fn count(name: &str, value: c_int) -> Result<u32> {
    u32::try_from(value).map_err(|_| {
        Error::invalid_argument(format!("{name} is {value}")).remedy("pass a number that is not negative")
    })
}

fn unknown(version: u32) -> Error {
    let (major, minor, patch) = (version / 10000, version / 100 % 100, version % 100);
    Error::invalid_usage(format!(
        "reqs is of NCCL {major}.{minor}.{patch}, whose ncclDevComm Hawser does not know"
    ))
    .remedy("compile the program with NCCL 2.28.7 to 2.29.3, 2.29.7, 2.30 up to 2.30.7, or 2.32.3")
}
