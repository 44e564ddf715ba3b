//! [`hawser_net_socket`] for NVIDIA's NCCL: `libnccl-net-hawser-socket.so`, loaded with
//! `NCCL_NET_PLUGIN=hawser-socket`. Hawser's own plugin search finds it too.
//!
//! A crate of its own, because the exported symbols end up in every library that links it. There the net is
//! called `HawserSocket`, since NCCL and Hawser have a `Socket` of their own.

use std::sync::Arc;

use hawser_net_socket::SocketNet;
use hawser_plugin::net::{Net, NetConfig, NetContext};

hawser_compat::export_nccl_net!("HawserSocket", Arc::new(HawserSocket(SocketNet::new())));

hawser_plugin::export_plugin! { net: HawserSocket(SocketNet::new()) }

struct HawserSocket(SocketNet);

impl Net for HawserSocket {
    fn name(&self) -> &str {
        "HawserSocket"
    }

    fn open(&self, config: &NetConfig) -> hawser_plugin::Result<Box<dyn NetContext>> {
        self.0.open(config)
    }
}
