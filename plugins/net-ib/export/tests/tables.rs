//! The conformance suite through each of NCCL's C tables, v8 to v12, over the test double.

use std::ffi::c_void;
use std::sync::Arc;

use hawser_net_ib::soft::Fabric;
use hawser_net_ib::{IbNet, Settings};
use hawser_plugin::Net;

hawser_compat::export_nccl_net!("HawserIB", {
    let mut settings = Settings::default();
    settings.ifname = Some("=lo".into());
    Arc::new(IbNet::on_soft(settings, Fabric::new(2).host(0..2))) as Arc<dyn Net>
});

fn through<T: Sync>(symbol: &str, table: &'static T) -> Arc<dyn Net> {
    let table: *const c_void = (&raw const *table).cast();
    // SAFETY: the table is a static of this program, and of the version that the symbol names.
    unsafe { hawser_compat::net::from_table(symbol, table) }.unwrap().plugin
}

macro_rules! versions {
    ($($module:ident = $symbol:ident)*) => { $(
        mod $module {
            // NCCL's codes have no "unsupported".
            hawser_plugin_testkit::net_suite!(
                super::through(stringify!($symbol), &super::$symbol),
                known_failures: ["other_memory_is_refused"]
            );
        }
    )* };
}

versions! {
    v8 = ncclNetPlugin_v8
    v9 = ncclNetPlugin_v9
    v10 = ncclNetPlugin_v10
    v11 = ncclNetPlugin_v11
    v12 = ncclNetPlugin_v12
}
