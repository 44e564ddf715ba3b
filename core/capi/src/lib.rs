//! Hawser's C interface: what a program finds in `libnccl.so.2`.
//!
//! ```text
//! ncclX, pncclX ─► guard (panics, last error, trace) ─► body: check arguments ─► hawser-runtime
//! ```
//!
//! A program in C sees NCCL's header and links `libnccl.so.2`:
//!
//! ```c
//! ncclUniqueId id;
//! ncclComm_t comm;
//! ncclGetUniqueId(&id);                                /* on rank 0, which hands it to the others */
//! ncclCommInitRank(&comm, ranks, id, rank);
//! ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream);
//! cudaStreamSynchronize(stream);
//! ncclCommDestroy(comm);
//! ```
//!
//! A program in Rust that links this crate finds the same names:
//!
//! ```
//! use nccl as _; // nothing but its exported functions
//! use std::ffi::c_int;
//!
//! unsafe extern "C" {
//!     fn ncclGetVersion(version: *mut c_int) -> c_int;
//! }
//!
//! let mut version = 0;
//! // SAFETY: the function writes one integer.
//! assert_eq!(unsafe { ncclGetVersion(&mut version) }, 0);
//! assert_eq!(version, 2_32_03, "2.32.3");
//! ```
//!
//! Every name that NCCL 2.32.3 exports is here, as `ncclX` and `pncclX` (a profiler interposes the first,
//! which is weak, and forwards to the second), with the names of `hawser.h`, and nothing else. Both are names
//! of one function. A function that this API level does not offer returns `ncclInvalidUsage` and leaves a
//! text.
//!
//! | file | holds |
//! |---|---|
//! | `macros` | how a function is declared; the guard at the C boundary |
//! | `args` | pointers and numbers from C, checked where they are used |
//! | `handle` | the table of live communicators |
//! | `types`, `config` | layouts, and how versioned structs are read |
//! | `init`, `comm`, `elastic` | communicators: make, split, end, ask; revoke, shrink, grow |
//! | `coll`, `p2p`, `rma`, `redop` | work on a stream, groups, one-sided transfers, reductions of the user |
//! | `vector`, `decision` | functions of our own (`hawser.h`): parts of different lengths; what ran and why |
//! | `partitioned` | functions of our own: collectives whose buffers are filled and used in parts |
//! | `mem`, `info` | buffers and windows; version and errors |
//! | `param` | settings by name |
//! | `teams`, `requirements` | teams of ranks, addresses of windows, needs of the device API |
//! | `encryption` | the pre-shared key |
//! | `dev_comm` | communicators for kernels, by the version of the program |
//! | `device_api` | what a communicator can do; counted transfers, which there are none of |
//! | `gin` | the network in kernels, as a program asks for it |

#[macro_use]
mod macros;

mod args;
mod coll;
mod comm;
mod config;
mod decision;
mod dev_comm;
mod device_api;
mod elastic;
mod encryption;
mod gin;
mod handle;
mod info;
mod init;
mod mem;
mod p2p;
mod param;
mod partitioned;
mod redop;
mod requirements;
mod rma;
mod teams;
mod types;
mod vector;

// Built-in plugins: named here, or the linker would leave them out.
use hawser_net_ib as _;
use hawser_net_socket as _;
use hawser_tuner as _;

#[cfg(test)]
mod tests {
    #[test]
    fn the_built_in_plugins_are_linked() {
        let names: Vec<&str> = hawser_plugin::builtin::built_in().iter().map(|b| b.name).collect();
        assert_eq!(names, ["rules", "ib", "socket"]);
    }
}
