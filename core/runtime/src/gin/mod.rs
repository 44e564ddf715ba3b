//! The network in kernels (GIN, type "proxy"): kernels of the user write descriptors of transfers into
//! queues, and a thread of the host carries them out.
//!
//! NVIDIA's inline device code fills the queues; its layouts are facts of the headers `nccl_device.h` of
//! 2.28.7 to 2.32.3. [`Descriptor`](descriptor::Action) says what one asks for, [`Network`] is the memory of
//! a communicator for kernels: queues, signals and counters. What is done with them is in
//! `comm_state/kernel_network.rs`.

pub mod descriptor;
mod network;

pub use self::network::{Form, Needs, Network};
