//! The conformance suite, with threads and without.

use std::sync::Arc;

use hawser_net_socket::{Settings, SocketNet};

fn net(threads: usize, sockets: usize) -> Arc<SocketNet> {
    let mut settings = Settings::new(2);
    settings.threads = threads;
    settings.sockets = sockets;
    // Two devices of one host, for the cases about virtual ones.
    settings.forced = [("lo:1", "127.0.0.1"), ("lo:2", "127.0.0.2")]
        .map(|(name, address)| (name.to_string(), address.parse().unwrap()))
        .to_vec();
    Arc::new(SocketNet::with_settings(settings))
}

mod without_threads {
    hawser_plugin_testkit::net_suite!(super::net(0, 1));
}

mod with_threads {
    hawser_plugin_testkit::net_suite!(super::net(2, 4));
}
