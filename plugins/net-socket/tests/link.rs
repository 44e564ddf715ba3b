//! Links that go down and come back, in network namespaces of their own: needs the rights of root, says so
//! otherwise.

mod common;

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{Stream, connect, open, settings, until};
use hawser_net_socket::stats;
use hawser_plugin::ErrorKind;
use hawser_plugin::net::{NetContext, Receiver, Sender};

/// Runs `test` in a thread with a network of its own, if this process may make one.
fn in_own_network(test: impl FnOnce() + Send) {
    // In turns, because the counters are the process's.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if enter_new_network() && shell("ip link set lo up") {
                test();
            } else {
                eprintln!("not run: it needs CAP_NET_ADMIN and the program `ip`");
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn enter_new_network() -> bool {
    // SAFETY: this only changes the network of the calling thread.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// Child processes live in the network of the thread that starts them.
fn shell(commands: &str) -> bool {
    Command::new("sh").args(["-ec", commands]).status().is_ok_and(|status| status.success())
}

/// Moves messages for a while. True: all of them.
fn move_for(
    stream: &mut Stream,
    sender: &mut dyn Sender,
    receiver: &mut dyn Receiver,
    time: Duration,
) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end && !stream.is_over() {
        stream.step(sender, receiver).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    stream.is_over()
}

#[test]
fn a_link_may_be_away_for_a_while() {
    in_own_network(|| {
        for (threads, sockets, forced) in [(0, 1, None), (2, 3, Some("::1"))] {
            let mut settings = settings(threads, sockets);
            if let Some(address) = forced {
                settings.forced = vec![("lo".into(), address.parse().unwrap())];
            }
            let (from, to) = (open(&settings), open(&settings));
            let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
            let sizes = [900_000, 3000, 10, 200_000].repeat(4000);
            let mut stream = Stream::new(sizes, 8, 0);
            move_for(&mut stream, sender.as_mut(), receiver.as_mut(), Duration::from_millis(100));
            let before = stream.received;
            assert!(before > 0 && shell("ip link set lo down"));
            let all = move_for(&mut stream, sender.as_mut(), receiver.as_mut(), Duration::from_millis(2500));
            assert!(!all && shell("ip link set lo up"));
            let stalled = stream.received;
            until("traffic goes on", || {
                stream.step(sender.as_mut(), receiver.as_mut()).unwrap();
                (stream.received > stalled + 50).then_some(())
            });
            // Before the buffers of messages under way.
            drop((sender, receiver));
        }
    });
}

#[test]
fn a_link_that_stays_away_is_an_error_that_names_the_peer() {
    in_own_network(|| {
        let mut settings = settings(1, 2);
        settings.timeout = Duration::from_secs(3);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let mut stream = Stream::new(vec![900_000; 4000], 8, 0);
        move_for(&mut stream, sender.as_mut(), receiver.as_mut(), Duration::from_millis(100));
        assert!(shell("ip link set lo down"));
        let error = until("the error", || stream.step(sender.as_mut(), receiver.as_mut()).err());
        assert_eq!(error.kind, ErrorKind::Remote);
        assert!(error.text.contains("127.0.0.1"), "{error}");
        drop((sender, receiver));
    });
}

/// Two hosts with two cables: namespaces of two threads, joined by pairs of virtual Ethernet devices.
fn two_hosts(test: impl FnOnce(&dyn NetContext, &dyn NetContext) + Send, zero_copy: bool) {
    in_own_network(|| {
        let (give_pid, take_pid) = std::sync::mpsc::channel();
        let (give_end, take_end) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                assert!(enter_new_network());
                // SAFETY: no arguments, no failure.
                give_pid.send(unsafe { libc::gettid() }).unwrap();
                let _ = take_end.recv();
            });
            let other = take_pid.recv().unwrap();
            let cable = |i: u8| {
                format!(
                    "ip link add near{i} type veth peer name far{i}; ip link set far{i} netns {other}
                     ip addr add 10.77.{i}.1/24 dev near{i}; ip link set near{i} up
                     nsenter -t {other} -n ip addr add 10.77.{i}.2/24 dev far{i}
                     nsenter -t {other} -n ip link set far{i} up"
                )
            };
            assert!(shell(&format!("{}\n{}", cable(1), cable(2))));
            let settings_for = |name: &str| {
                let mut settings = settings(2, 4);
                settings.ifname = Some(name.into());
                settings.zero_copy = zero_copy;
                settings
            };
            let from = open(&settings_for("near"));
            let to = std::thread::scope(|scope| {
                let join = || {
                    let path = format!("/proc/{other}/ns/net");
                    let file = std::fs::File::open(path).unwrap();
                    // SAFETY: this only changes the network of the calling thread.
                    let result =
                        unsafe { libc::setns(std::os::fd::AsRawFd::as_raw_fd(&file), libc::CLONE_NEWNET) };
                    assert_eq!(result, 0);
                    let to = open(&settings_for("far"));
                    assert_eq!(to.make_virtual(&[0, 1]).unwrap(), 2);
                    // The first listener starts the threads and opens the sockets, which stay in this
                    // network.
                    drop(to.listen(2).unwrap());
                    to
                };
                scope.spawn(join).join().unwrap()
            });
            assert_eq!(from.make_virtual(&[0, 1]).unwrap(), 2);
            test(from.as_ref(), to.as_ref());
            drop(give_end);
        });
    });
}

/// Bytes that left through an interface of the calling thread's network.
fn sent_bytes(interface: &str) -> u64 {
    let table = Command::new("cat").arg("/proc/net/dev").output().unwrap().stdout;
    let table = String::from_utf8(table).unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

#[test]
fn one_of_two_cables_may_be_pulled() {
    let test = |from: &dyn NetContext, to: &dyn NetContext| {
        let (mut sender, mut receiver) = connect(from, to, 2);
        until("both cables carry data", || {
            Stream::new(vec![2_000_000; 10], 4, 0).finish(sender.as_mut(), receiver.as_mut());
            ["near1", "near2"].iter().all(|cable| sent_bytes(cable) > 10_000_000).then_some(())
        });
        let before = stats();
        // Quiet: packets vanish, nobody is told.
        assert!(shell("tc qdisc add dev near2 root netem loss 100% 2>/dev/null || ip link set near2 down"));
        Stream::new(vec![2_000_000; 60], 4, 0).finish(sender.as_mut(), receiver.as_mut());
        assert!(shell("tc qdisc del dev near2 root 2>/dev/null || ip link set near2 up"));
        until("its sockets come back", || {
            Stream::new(vec![2_000_000; 4], 4, 0).finish(sender.as_mut(), receiver.as_mut());
            let now = stats();
            (now.lost > before.lost && now.redialled > before.redialled).then_some(())
        });
    };
    two_hosts(test, false);
}

#[test]
fn zero_copy_sends_arrive() {
    let test = |from: &dyn NetContext, to: &dyn NetContext| {
        let (mut sender, mut receiver) = connect(from, to, 2);
        let sizes = [2_000_000, 70_000, 10, 65_537, 900_000].repeat(20);
        Stream::new(sizes, 8, 0).finish(sender.as_mut(), receiver.as_mut());
    };
    two_hosts(test, true);
}
