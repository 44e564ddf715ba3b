//! Buffers that kernels of other ranks use where they are, without staging: zero_copy.

use hawser_base::error::Result;
use hawser_base::log::{self, Subsys};
use hawser_plan::executor::fused::{self, FusedPlan, zero_copy};
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::{Call, Decision, Executor, Route, Topology};

use super::CommState;
use crate::tuning::CallAttributes;

/// The places at which kernels of other ranks find the buffers of a launch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reached {
    /// [`zero_copy::READY`] if they find them, else 0.
    pub direct: u8,
    /// As [`hawser_kernels_abi::fused::FusedArgs::src_seen`].
    pub src_seen: u64,
    /// As [`hawser_kernels_abi::fused::FusedArgs::dst_seen`].
    pub dst_seen: u64,
}

impl CommState {
    /// The topology that a call is chosen and planned for: kernels of all ranks reach buffers in windows.
    pub(super) fn topology_of(&self, attributes: CallAttributes) -> &Topology {
        match &self.with_windows {
            Some(topology) if attributes.has_windows => topology,
            _ => &self.topology,
        }
    }

    /// The places at which other ranks find the buffers of a call's launch, if they do.
    pub fn reach(&self, plan: &FusedPlan, call: &Call, number: u64) -> Result<Reached> {
        let Some([input, output]) = plan.to_reach(call.input, call.output) else {
            return Ok(Reached::default());
        };
        let Some(src_seen) = self.seen(input)? else { return self.staged("input", input, number) };
        let Some(dst_seen) = self.seen(output)? else { return self.staged("output", output, number) };
        Ok(Reached { direct: zero_copy::READY, src_seen, dst_seen })
    }

    /// Enters the landings of messages into a launch, if it is one of those that land. Those that are sent
    /// wait for one where some memory of other ranks is reached at all.
    ///
    /// # Errors
    /// The driver does not answer what a buffer is.
    pub fn enter_landings(&self, plan: &mut LaunchPlan, number: u64) -> Result<()> {
        if plan.kernel.route != Route::LANDING {
            return Ok(());
        }
        let reaches_memory = self.reaches_memory();
        let args = &mut plan.args;
        for (work, step) in args.works.iter_mut().zip(&args.inline_steps).take(args.n_inline.into()) {
            work.landing = match step.n_recv {
                1 if reaches_memory => {
                    self.landing((work.base[1], work.count), step.recv[0].into(), number)?
                }
                0 => reaches_memory.into(),
                _ => 0,
            };
        }
        Ok(())
    }

    /// True if this rank reaches any memory of users of other ranks, so that messages may land there.
    pub fn reaches_memory(&self) -> bool {
        self.topology.direct || self.lsa.has_lent_windows() || self.lsa.maps_registered()
    }

    /// The address at which rank `peer` finds a buffer of this rank, if a message may be stored there by
    /// packs of 16 bytes; else 0, and a line of the log that says why.
    fn landing(&self, (addr, bytes): (u64, u64), peer: u32, number: u64) -> Result<u64> {
        let found = match self.topology.direct {
            true => self.device.needs_kernels()?.is_reached(addr, bytes)?.then_some(addr),
            false => self.lsa.address_seen_by(peer, addr, bytes),
        };
        let why = match found {
            Some(landing) if landing.is_multiple_of(16) => return Ok(landing),
            Some(_) => "it begins at no multiple of 16 bytes",
            None => self.why_unreached(),
        };
        self.tell_staged("buffer", (addr, bytes), number, why);
        Ok(0)
    }

    /// The numbers by which other ranks find a buffer ([`hawser_kernels_abi::fused::FusedArgs::src_seen`]);
    /// None if they do not.
    fn seen(&self, (addr, bytes): (u64, u64)) -> Result<Option<u64>> {
        if bytes == 0 {
            return Ok(Some(0));
        }
        if !self.topology.direct {
            return Ok(self.lsa.seen(addr, bytes));
        }
        Ok(self.device.needs_kernels()?.is_reached(addr, bytes)?.then_some(0))
    }

    /// A launch whose buffer of this name others do not find, and a line of the log that says why.
    fn staged(&self, name: &str, buffer: (u64, u64), number: u64) -> Result<Reached> {
        self.tell_staged(name, buffer, number, self.why_unreached());
        Ok(Reached::default())
    }

    /// The reason why other ranks do not find a buffer.
    fn why_unreached(&self) -> &'static str {
        match self.topology.direct {
            true => "other GPUs cannot use it in place (memory of cudaMalloc and ncclMemAlloc can be)",
            false => {
                "it lies in no symmetric window (ncclCommWindowRegister, NCCL_WIN_COLL_SYMMETRIC), and in no \
                 registered buffer that the others have mapped (ncclCommRegister)"
            }
        }
    }

    /// Says why what could go without staging does not.
    fn tell_staged(&self, name: &str, (addr, bytes): (u64, u64), number: u64, why: &str) {
        log::info(Subsys::Coll, || {
            format!(
                "{} rank {} op {number}: staged, as the {name} of {bytes} bytes at {addr:#x} is not reached: \
                 {why}",
                self.name, self.rank
            )
        });
    }

    /// The reason why data of a call go through staging, if they do and could go without on this device.
    pub(super) fn why_staged(&self, call: &Call, choice: &Decision) -> Option<String> {
        let (route, is_staged) = (choice.route, self.device.kernels().is_some() && call.count > 0);
        if !is_staged || route.executor == Executor::CopyEngine || route.zero_copy {
            return None;
        }
        let attributes =
            CallAttributes { has_windows: self.lsa.calls_reach_buffers(), ..CallAttributes::default() };
        Some(fused::why_staged(call, self.topology_of(attributes)))
    }
}
