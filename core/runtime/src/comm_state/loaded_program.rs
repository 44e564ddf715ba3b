//! Programs that a communicator has in use.

use hawser_device::Memory;
use hawser_kernels_abi::Step;
use hawser_plan::executor::interpreter::Lowered;

/// A program lowered for this rank, with its image on the device if it does not travel in the arguments.
pub struct LoadedProgram {
    pub(super) lowered: Lowered,
    pub(super) image: Option<Memory>,
    /// Channels wait for each other.
    pub(super) has_waits: bool,
}

impl LoadedProgram {
    /// The steps, on the host.
    pub fn steps(&self) -> &[Step] {
        &self.lowered.steps
    }
}
