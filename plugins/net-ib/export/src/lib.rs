//! [`hawser_net_ib`] for NVIDIA's NCCL: `libnccl-net-hawser-ib.so`, loaded with `NCCL_NET_PLUGIN=hawser-ib`.
//! Hawser's own plugin search finds it too.
//!
//! A crate of its own, because the exported symbols end up in every library that links it. There the net is
//! called `HawserIB`, since NCCL has an `IB` of its own.

use std::sync::Arc;

use hawser_net_ib::IbNet;
use hawser_plugin::net::{Net, NetConfig, NetContext};

hawser_compat::export_nccl_net!("HawserIB", Arc::new(HawserIb(IbNet::new())));

hawser_plugin::export_plugin! { net: HawserIb(IbNet::new()) }

struct HawserIb(IbNet);

impl Net for HawserIb {
    fn name(&self) -> &str {
        "HawserIB"
    }

    fn open(&self, config: &NetConfig) -> hawser_plugin::Result<Box<dyn NetContext>> {
        self.0.open_anyway(config)
    }
}
