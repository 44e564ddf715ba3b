//! The conformance suite: without threads, with threads, and with threads that the calling thread helps.

use std::sync::Arc;

use hawser_net_socket::{Help, Settings, SocketNet};

fn net(threads: usize, sockets: usize, help: Help) -> Arc<SocketNet> {
    let mut settings = Settings::new(2);
    settings.help = help;
    settings.threads = threads;
    settings.sockets = sockets;
    // Two devices of one host, for the cases about virtual ones.
    settings.forced = [("lo:1", "127.0.0.1"), ("lo:2", "127.0.0.2")]
        .map(|(name, address)| (name.to_string(), address.parse().unwrap()))
        .to_vec();
    Arc::new(SocketNet::with_settings(settings))
}

mod without_threads {
    hawser_plugin_testkit::net_suite!(super::net(0, 1, super::Help::Never));
}

mod with_threads {
    hawser_plugin_testkit::net_suite!(super::net(2, 4, super::Help::Never));
}

mod with_threads_that_are_helped {
    hawser_plugin_testkit::net_suite!(super::net(2, 4, super::Help::Always));
}
