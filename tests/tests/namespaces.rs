//! Ranks on hosts with a network of their own (see `netns`): what only shows where hosts are apart. Skipped
//! without root.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hawser_net_socket::{Settings, SocketNet};
use hawser_plugin::net::{
    MemoryKinds, NetConfig, NetContext, Receiver, Region, Registration, Segment, Sender,
};
use hawser_plugin::{Log, Net};
use hawser_runtime::{UniqueId, unique_id};
use hawser_tests::deadline::LIMIT;
use hawser_tests::netns::{Family, Network};
use hawser_tests::process::Process;
use hawser_tests::world::on_host;

const HOSTS: u32 = 4;
const PER_HOST: u32 = 2;
const RANKS: u32 = HOSTS * PER_HOST;
const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// The time for which a cable is out: several times what the plugin needs to notice.
const OUT: Duration = Duration::from_secs(5);

/// A network of all hosts and `more`; None where there can be none.
fn network(more: u32, nics: u32, family: Family) -> Option<Network> {
    on_host().then(|| Network::start(HOSTS + more, nics, family)).flatten()
}

/// Starts a rank on its host.
fn start(network: &Network, id: &UniqueId, rank: u32, steps: &[&str], settings: &[(&str, &str)]) -> Process {
    let host = rank / PER_HOST;
    let name = format!("host {host}");
    let mut all = vec![("NCCL_HOSTID", &*name), ("NCCL_SOCKET_IFNAME", "eth"), ("NCCL_NET", "Socket")];
    all.extend(settings);
    network.on(host, || Process::rank(BINARY, id, (rank, RANKS), steps, &all))
}

/// Starts all ranks on their hosts, with an id that rank 0's host made.
fn start_all(network: &Network, steps: &[&str], settings: &[(&str, &str)]) -> Vec<Process> {
    let id = network.on(0, || unique_id().unwrap());
    (0..RANKS).map(|rank| start(network, &id, rank, steps, settings)).collect()
}

/// Rank 0 answers once all ranks have done a round from its beginning to its end.
fn ask(rank_0: &mut Process, question: &str) {
    rank_0.tell(question);
    rank_0.wait_for(question);
}

fn expect_success(ranks: Vec<Process>) -> String {
    let ended = ranks.into_iter().map(Process::end).inspect(|ended| ended.expect_success());
    ended.map(|ended| ended.output).collect()
}

/// Moves by copy engines, in small slots, so that every message has several.
const WITHOUT_KERNELS: [(&str, &str); 2] = [("NCCL_PASS_SM", "1"), ("NCCL_PSM_BUFFER_SIZE", "12K")];

/// Every rank has failed, and says that one of these is the cause.
fn expect_blame(ranks: Vec<Process>, causes: [u32; 2]) {
    for (rank, process) in ranks.into_iter().enumerate() {
        let ended = process.end();
        let mut errors = ended.output.lines().filter(|line| line.starts_with("error "));
        let is_named = errors.any(|line| causes.iter().any(|cause| line.contains(&format!("rank {cause}"))));
        assert!(!ended.status.success() && is_named, "rank {rank} ({}):\n{}", ended.status, ended.output);
    }
}

#[test]
fn every_collective_on_four_hosts() {
    let Some(network) = network(0, 1, Family::V4) else { return };
    expect_success(start_all(&network, &["matrix", "finalize", "destroy"], &[]));
}

#[test]
fn hosts_that_only_speak_ipv6() {
    let Some(network) = network(0, 1, Family::V6) else { return };
    expect_success(start_all(&network, &["small", "finalize", "destroy"], &[]));
}

/// Without an id that is handed around: rank 0 waits at an address that all know.
#[test]
fn hosts_that_meet_at_a_known_address() {
    let Some(network) = network(0, 1, Family::V6) else { return };
    let place = SocketAddr::new(network.address(0, 0), 4711).to_string();
    let start = |rank: u32| {
        let host = rank.to_string();
        let args = ["rank", "env", "3", &host, "all_reduce", "finalize", "destroy"].map(str::to_owned);
        let settings = [("NCCL_HOSTID", &*host), ("NCCL_NET", "Socket"), ("NCCL_COMM_ID", &place)];
        network.on(rank, || Process::start(BINARY, &args, &settings))
    };
    expect_success((0..3).map(start).collect());
}

/// A cable is out for a while: the job waits, goes on, and no byte is wrong.
#[test]
fn a_cable_is_pulled_and_put_back() {
    let Some(network) = network(0, 1, Family::V4) else { return };
    let steps = ["all_reduce", "mark", "rounds", "finalize", "destroy"];
    let mut ranks = start_all(&network, &steps, &[]);
    ranks[0].wait_for("mark");
    ask(&mut ranks[0], "before");
    network.pull(2, 0);
    std::thread::sleep(OUT);
    network.plug(2, 0);
    ask(&mut ranks[0], "after");
    ranks[0].tell("stop");
    expect_success(ranks);
}

/// A cable is out while ranks make connections, for longer than listeners wait for a proof of identity.
#[test]
fn a_cable_is_out_while_ranks_connect() {
    let Some(network) = network(0, 1, Family::V4) else { return };
    let steps = ["mark", "rounds", "finalize", "destroy"];
    let mut ranks = start_all(&network, &steps, &[("HAWSER_HANDSHAKE_TIMEOUT", "1")]);
    ranks[0].wait_for("mark");
    network.pull(2, 0);
    std::thread::sleep(OUT);
    network.plug(2, 0);
    ask(&mut ranks[0], "after");
    ranks[0].tell("stop");
    expect_success(ranks);
}

/// Both processes of a host die at once.
#[test]
fn a_host_dies() {
    lose_a_host("again", &[]);
}

/// The same while copy engines and proxies move data.
#[test]
fn a_host_dies_under_copy_engines() {
    lose_a_host("gathers", &WITHOUT_KERNELS);
}

fn lose_a_host(step: &str, settings: &[(&str, &str)]) {
    let Some(network) = network(0, 1, Family::V4) else { return };
    let mut ranks = start_all(&network, &["all_reduce", "mark", step], settings);
    ranks.iter_mut().for_each(|rank| rank.wait_for("mark"));
    let mut victims = ranks.split_off(RANKS as usize - 2);
    victims.iter_mut().for_each(Process::kill);
    expect_blame(ranks, [6, 7]);
}

/// A host is cut off for good. Its own ranks cannot know who is to blame, but they end too.
#[test]
fn a_host_is_cut_off() {
    let Some(network) = network(0, 1, Family::V4) else { return };
    let mut ranks = start_all(&network, &["all_reduce", "mark", "again"], &[("HAWSER_SOCKET_TIMEOUT", "5")]);
    ranks.iter_mut().for_each(|rank| rank.wait_for("mark"));
    network.pull(3, 0);
    let victims = ranks.split_off(RANKS as usize - 2);
    expect_blame(ranks, [6, 7]);
    let ended: Vec<_> = victims.into_iter().map(Process::end).collect();
    ended.iter().for_each(|victim| victim.expect_error("Remote", &["rank"]));
    // The first to notice says so and ends, which the other may see before it notices by itself.
    let knows = ended.iter().any(|victim| victim.output.contains("no path"));
    assert!(knows, "{}\n{}", ended[0].output, ended[1].output);
}

/// A host vanishes, its cables out, and `HAWSER_HEARTBEAT` is shorter than all that connections endure.
#[test]
fn a_host_vanishes_without_a_word() {
    let Some(network) = network(0, 1, Family::V4) else { return };
    let mut ranks = start_all(&network, &["all_reduce", "mark", "again"], &[("HAWSER_HEARTBEAT", "2")]);
    ranks.iter_mut().for_each(|rank| rank.wait_for("mark"));
    network.pull(3, 0);
    let victims = ranks.split_off(RANKS as usize - 2);
    for process in ranks {
        process.end().expect_error("Remote", &["(process", "has died"]);
    }
    victims.into_iter().for_each(|victim| victim.end().expect_error("Remote", &["rank"]));
}

/// Somebody on another host connects to everything that listens, from the meeting to the end, and sends
/// garbage.
#[test]
fn a_stranger_knocks_at_every_door() {
    let Some(network) = network(1, 1, Family::V4) else { return };
    let id = network.on(0, || unique_id().unwrap());
    let knock = || {
        let doors: Vec<SocketAddr> = (0..HOSTS).flat_map(|host| network.listening(host)).collect();
        network.on(HOSTS, || doors.iter().for_each(|&door| annoy(door)));
        doors
    };
    let mut seen: HashSet<SocketAddr> = knock().into_iter().collect();
    assert!(seen.contains(&id.address()), "nobody is at the meeting point: {seen:?}");
    let steps = ["matrix", "finalize", "destroy"];
    let ranks =
        (0..RANKS).map(|rank| start(&network, &id, rank, &steps, &[("NCCL_DEBUG", "WARN")])).collect();
    let over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                seen.extend(knock());
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| expect_success(ranks)));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    });
    assert!(seen.len() as u32 > 2 * RANKS, "a rank has more doors than: {seen:?}");
    let noticed = format!("dropped a connection from {}", network.address(HOSTS, 0));
    assert!(output.contains(&noticed), "nobody noticed:\n{output}");
}

/// Connects several times: says nothing, sends garbage, hangs up in the middle, sends much.
fn annoy(door: SocketAddr) {
    let garbage: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
    let limit = Duration::from_millis(500);
    let connect = || TcpStream::connect_timeout(&door, limit).ok();
    // Held until the end.
    let _silent = connect();
    for bytes in [&garbage[..1], &garbage[..70], b"GET / HTTP/1.1\r\n\r\n", &[0; 4096], &[0xff; 64], &garbage]
    {
        let Some(mut stream) = connect() else { continue };
        let _ = stream.set_write_timeout(Some(limit)).and_then(|()| stream.write_all(bytes));
        let _ = stream.shutdown(Shutdown::Write);
        let _ =
            stream.set_read_timeout(Some(Duration::from_millis(1))).and_then(|()| stream.read(&mut [0; 64]));
    }
}

/// Every host has two NICs, one of which dies for good: the job goes on over the other one.
#[test]
fn one_of_two_nics_dies() {
    lose_one_of_two_nics(&[]);
}

/// The same without kernels: what the plugin mends is mended under copy engines too.
#[test]
fn one_of_two_nics_dies_under_copy_engines() {
    lose_one_of_two_nics(&WITHOUT_KERNELS);
}

fn lose_one_of_two_nics(settings: &[(&str, &str)]) {
    let Some(network) = network(0, 2, Family::V4) else { return };
    let steps = ["all_reduce", "mark", "rounds", "finalize", "destroy"];
    let mut ranks = start_all(&network, &steps, settings);
    ranks[0].wait_for("mark");
    ask(&mut ranks[0], "before");
    network.pull(2, 1);
    ask(&mut ranks[0], "without it");
    ask(&mut ranks[0], "and again");
    ranks[0].tell("stop");
    expect_success(ranks);
}

/// A connection of a virtual device has all its NICs: whichever is there carries it.
#[test]
fn a_virtual_device_loses_one_nic_after_the_other() {
    let Some(network) = network(0, 2, Family::V4) else { return };
    let mut cable = Cable::new(&network, [0, 1]);
    cable.carry(20);
    for nic in [0, 1] {
        network.pull(1, nic);
        cable.carry(60);
        network.plug(1, nic);
        cable.carry(20);
    }
}

/// A connection of the Socket plugin between virtual devices of all NICs of two hosts.
struct Cable {
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
    memory: [Vec<u8>; 2],
    registrations: [Registration; 2],
    number: u64,
    _contexts: [Box<dyn NetContext>; 2],
}

impl Cable {
    const BYTES: usize = 300_000;

    fn new(network: &Network, hosts: [u32; 2]) -> Self {
        let open = || {
            let mut settings = Settings::new(2);
            settings.ifname = Some("eth".into());
            (settings.threads, settings.sockets) = (1, 4);
            let context = SocketNet::with_settings(settings).open(&NetConfig::new(1, Log::silent())).unwrap();
            let device = context.make_virtual(&[0, 1]).unwrap();
            (context, device)
        };
        let [(from, near), (to, far)] = hosts.map(|host| network.on(host, open));
        let (handle, mut listener) = network.on(hosts[1], || to.listen(far).unwrap());
        let mut connector = network.on(hosts[0], || from.connect(near, &handle).unwrap());
        let (mut sender, mut receiver) = (None, None);
        until("the connection", || {
            sender = sender.take().or_else(|| connector.poll().unwrap());
            receiver = receiver.take().or_else(|| listener.accept().unwrap());
            (sender.is_some() && receiver.is_some()).then_some(())
        });
        let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
        let memory = [(); 2].map(|()| vec![0; Self::BYTES]);
        let region = |m: &Vec<u8>| Region {
            addr: m.as_ptr() as u64,
            bytes: m.len(),
            kind: MemoryKinds::HOST,
            dmabuf: None,
        };
        // SAFETY: the memory is neither moved nor freed before the connection is closed.
        let registrations = unsafe {
            [sender.register(&region(&memory[0])).unwrap(), receiver.register(&region(&memory[1])).unwrap()]
        };
        Self { sender, receiver, memory, registrations, number: 0, _contexts: [from, to] }
    }

    /// Messages, one after the other; every byte is checked.
    fn carry(&mut self, messages: u64) {
        for _ in 0..messages {
            self.number += 1;
            let number = self.number;
            let expected = (0..Self::BYTES as u64).map(|i| ((i * number) >> 3) as u8);
            expected.zip(&mut self.memory[0]).for_each(|(value, byte)| *byte = value);
            self.memory[1].fill(0);
            let segments = [0, 1].map(|end| Segment {
                addr: self.memory[end].as_mut_ptr() as u64,
                bytes: Self::BYTES,
                registration: self.registrations[end],
                tag: 0,
                profile: 0,
            });
            // SAFETY: nobody touches the memory until the requests are over.
            let received = unsafe { self.receiver.irecv(&segments[1..], false) }.unwrap().expect("room");
            // SAFETY: as above.
            let sent = until("a credit", || unsafe { self.sender.isend(&segments[0]) }.unwrap());
            until("a send", || self.sender.test(sent).unwrap());
            let mut sizes = [0];
            until("a receive", || self.receiver.test(received, &mut sizes).unwrap().then_some(()));
            assert_eq!(sizes, [Self::BYTES]);
            assert!(self.memory[0] == self.memory[1], "message {number} is damaged");
        }
    }
}

/// Asks until there is an answer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "{what}: nothing happened for {LIMIT:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Packets are late and lost.
#[test]
fn bad_cables() {
    let Some(network) = network(0, 1, Family::V4) else { return };
    if network.spoil().is_none() {
        return;
    }
    expect_success(start_all(&network, &["small", "finalize", "destroy"], &[]));
    assert!(network.lost() > 0, "the cables were good");
}
