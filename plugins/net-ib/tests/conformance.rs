//! The conformance suite over the test double, and over the machine's verbs where there are devices.

use std::sync::Arc;

use hawser_net_ib::soft::Fabric;
use hawser_net_ib::{IbNet, Pairing, Settings};

fn net(devices: usize, qps: u8, pairing: Pairing) -> Arc<IbNet> {
    let mut settings = Settings::default();
    settings.qps = qps;
    settings.pairing = pairing;
    settings.ifname = Some("=lo".into());
    Arc::new(IbNet::on_soft(settings, Fabric::new(devices).host(0..devices)))
}

mod one_device {
    hawser_plugin_testkit::net_suite!(super::net(1, 1, super::Pairing::Same));
}

mod two_devices_with_two_pairs_each {
    hawser_plugin_testkit::net_suite!(super::net(2, 2, super::Pairing::All));
}
