//! Rails that are lost, on hosts with a network of their own (see `netns`): whoever is asked names them.
//! Skipped without root.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hawser_runtime::progress::verdict::{Cause, Verdict};
use hawser_runtime::rules_update::client;
use hawser_tests::deadline::LIMIT;
use hawser_tests::netns::{Family, Network};
use hawser_tests::process::Process;
use hawser_tests::world::on_host;

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
const STEPS: [&str; 5] = ["all_reduce", "mark", "rounds", "finalize", "destroy"];

/// Two ranks, each on a host of its own, that meet at an address of `eth0`. Their data take these NICs.
fn start(network: &Network, nics: &str, settings: &[(&str, &str)]) -> Vec<Process> {
    let place = SocketAddr::new(network.address(0, 0), 4711).to_string();
    let start = |rank: u32| {
        let host = rank.to_string();
        let args = ["rank", "env", "2", &host].into_iter().chain(STEPS).map(str::to_owned);
        let args: Vec<String> = args.collect();
        let mut all = vec![("NCCL_HOSTID", &*host), ("NCCL_NET", "Socket"), ("NCCL_SOCKET_IFNAME", nics)];
        all.push(("NCCL_COMM_ID", &place));
        all.extend(settings);
        network.on(rank, || Process::start(BINARY, &args, &all))
    };
    let mut ranks: Vec<Process> = (0..2).map(start).collect();
    ranks[0].wait_for("mark");
    ranks
}

/// Asks the rank of a host, on that host, until a verdict fits.
fn expect(network: &Network, host: u32, rank: &mut Process, fits: impl Fn(&Verdict) -> bool) -> Verdict {
    let until = Instant::now() + LIMIT;
    let mut seen = Vec::new();
    loop {
        let pid = rank.id();
        let verdicts = network.on(host, || client::hang(pid));
        if let Some(found) = verdicts.as_ref().ok().and_then(|all| all.iter().find(|verdict| fits(verdict))) {
            return found.clone();
        }
        let text = verdicts.map(|all| all.iter().map(Verdict::text).collect::<String>());
        seen.push(text.unwrap_or_else(|error| error.to_string()));
        assert!(Instant::now() < until && !rank.has_ended(), "{}\n{}", seen.join("\n"), rank.written());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn go_on_and_end(mut ranks: Vec<Process>) {
    ranks[0].tell("after");
    ranks[0].wait_for("after");
    ranks[0].tell("stop");
    ranks.into_iter().for_each(|rank| rank.end().expect_success());
}

/// The data of one rank do not come to the other, while control connections, which the other has made, carry
/// on: the net is to blame, and no rank.
#[test]
fn a_path_that_is_silent_is_to_blame() {
    let Some(network) = on_host().then(|| Network::start(2, 1, Family::V4)).flatten() else { return };
    let mut ranks = start(&network, "eth0", &[]);
    let ports: Vec<u16> = network.listening(1).iter().map(SocketAddr::port).collect();
    assert!(!ports.is_empty(), "nobody listens");
    network.block(0, &ports, true);
    let found = expect(&network, 0, &mut ranks[0], |verdict| verdict.cause == Cause::RailDown);
    for part in ["a net has lost a rail: the net of rank 0", "lost data socket 0 of eth0"] {
        assert!(found.sentence.contains(part), "no {part}: {}", found.sentence);
    }
    assert!(found.guilty == [0] && found.remedy.contains("ip -s link"), "{found:?}");
    network.block(0, &ports, false);
    go_on_and_end(ranks);
}

/// One of two rails goes, and the job goes on over the other one: whoever asks is told.
#[test]
fn a_rail_that_is_lost_beside_another_is_told() {
    let Some(network) = on_host().then(|| Network::start(2, 2, Family::V4)).flatten() else { return };
    let mut ranks = start(&network, "eth", &[]);
    network.pull(1, 1);
    expect(&network, 0, &mut ranks[0], |verdict| {
        verdict.sentence.contains("lost data socket") && verdict.sentence.contains("of eth1")
    });
    go_on_and_end(ranks);
}

/// The only cable of a host is out: its rank does not answer, and the net of the other one says why.
#[test]
fn a_host_that_is_cut_off_is_told_by_its_peer() {
    let Some(network) = on_host().then(|| Network::start(2, 1, Family::V4)).flatten() else { return };
    let mut ranks = start(&network, "eth0", &[]);
    network.pull(1, 0);
    let found = expect(&network, 0, &mut ranks[0], |verdict| {
        verdict.cause == Cause::Silent && verdict.sentence.contains("eth0")
    });
    assert_eq!(found.guilty, [1], "{}", found.sentence);
    assert!(found.sentence.contains("beside that, the net of rank 0"), "{}", found.sentence);
    network.plug(1, 0);
    go_on_and_end(ranks);
}
