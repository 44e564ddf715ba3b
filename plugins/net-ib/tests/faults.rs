//! Traffic over the test double while ports die, links go silent, acknowledgements vanish and queue pairs
//! break.
//!
//! Every message is checked byte for byte when its receive is over; then its buffer is poisoned, and looked
//! at again when many more messages have passed: a late write would show.

mod common;

use common::{Pair, Stream, until};
use hawser_net_ib::IbNet;
use hawser_net_ib::soft::Fabric;
use hawser_plugin::net::{MemoryKinds, NetConfig, Region};
use hawser_plugin::{ErrorKind, Log, Net};

#[test]
fn a_port_that_dies_costs_nothing_but_time() {
    for (device, sender) in [(0, true), (1, true), (2, false), (3, false)] {
        let mut pair = Pair::new(2, common::settings());
        let mut stream = Stream::new(device, 120);
        stream.run_to(&mut pair, 30);
        pair.fabric.port(device, false);
        stream.finish(&mut pair);
        assert!(pair.stopped() > 0, "device {device}, of the sender: {sender}");
    }
}

#[test]
fn a_silent_link_is_left_and_used_again() {
    let mut pair = Pair::new(2, common::settings());
    let mut stream = Stream::new(7, 5000);
    stream.run_to(&mut pair, 30);
    pair.fabric.mute(0, true);
    let before = pair.stopped();
    until("the rail is stopped", || {
        stream.step(&mut pair).unwrap();
        (pair.stopped() > before).then_some(())
    });
    let resumed = stream.received();
    stream.run_to(&mut pair, resumed + 30);
    pair.fabric.mute(0, false);
    let raised = pair.raised();
    until("the rail is back", || {
        stream.more(&mut pair);
        (pair.raised() > raised).then_some(())
    });
    stream.finish(&mut pair);
}

#[test]
fn lost_acknowledgements_double_nothing() {
    let mut pair = Pair::new(2, common::settings());
    let mut stream = Stream::new(8, 200);
    stream.run_to(&mut pair, 20);
    pair.fabric.lose_acks(1, true);
    stream.run_to(&mut pair, 120);
    pair.fabric.lose_acks(1, false);
    stream.finish(&mut pair);
}

#[test]
fn one_rail_may_flap() {
    let mut pair = Pair::new(1, common::settings());
    let mut stream = Stream::new(9, 200);
    for flap in 0..4 {
        stream.run_to(&mut pair, 20 + flap * 30);
        pair.fabric.port(flap % 2, false);
        std::thread::sleep(std::time::Duration::from_millis(20));
        pair.fabric.port(flap % 2, true);
    }
    stream.finish(&mut pair);
}

#[test]
fn queue_pairs_may_break_at_any_time() {
    let (mut late, resent) = (0, hawser_net_ib::stats().resent);
    for seed in 0..6 {
        let mut settings = common::settings();
        settings.qps = 2;
        let mut pair = Pair::new(1 + seed as usize % 3, settings);
        pair.fabric.chaos(60, seed);
        let mut stream = Stream::new(seed as usize, 300);
        stream.finish(&mut pair);
        pair.fabric.chaos(0, seed);
        late += pair.fabric.landed_late();
    }
    // The fabric did what the rules are there for.
    assert!(late > 0 && hawser_net_ib::stats().resent > resent, "{late} late writes");
}

#[test]
fn without_any_rail_both_ends_fail_and_say_why() {
    let mut settings = common::settings();
    settings.deadline = std::time::Duration::from_secs(1);
    let mut pair = Pair::new(2, settings);
    let mut stream = Stream::new(3, 1000);
    stream.run_to(&mut pair, 20);
    pair.fabric.port(0, false);
    pair.fabric.port(1, false);
    // Which end is first is chance, and so is whether the other one is told or finds out itself.
    until("an error", || stream.step(&mut pair).err());
    let sender = until("the sender's error", || stream.error_of_sender(&mut pair));
    let receiver = until("the receiver's error", || stream.error_of_receiver(&mut pair));
    for error in [&sender, &receiver] {
        assert_eq!(error.kind, ErrorKind::Remote);
        for word in ["soft0:1", "soft1:1", "soft2:1", "soft3:1", "HAWSER_IB_DEADLINE"] {
            assert!(error.text.contains(word), "{word}: {error}");
        }
    }
    assert!(sender.text.contains("its port went down"), "{sender}");
}

#[test]
fn without_failover_a_dead_port_is_an_error() {
    let mut settings = common::settings();
    settings.failover = false;
    let mut pair = Pair::new(2, settings);
    let mut stream = Stream::new(4, 1000);
    stream.run_to(&mut pair, 20);
    pair.fabric.port(1, false);
    let error = until("the error", || stream.step(&mut pair).err());
    assert!(error.text.contains("failover is off"), "{error}");
}

#[test]
fn hosts_with_different_numbers_of_devices_meet() {
    for (sender, receiver) in [(1, 3), (3, 1), (2, 5)] {
        let mut pair = Pair::between(sender, receiver, common::settings());
        let mut stream = Stream::new(5, 60);
        stream.run_to(&mut pair, 20);
        // All of the sender's but the last.
        (0..sender - 1).for_each(|device| pair.fabric.port(device, false));
        stream.finish(&mut pair);
    }
}

#[test]
fn strangers_are_refused_and_do_no_harm() {
    use std::io::{Read, Write};
    let pair = Pair::new(1, common::settings());
    let (handle, mut listener) = pair.to.listen(0).unwrap();
    let port = u16::from_be_bytes([handle[50], handle[51]]);
    let refused = hawser_net_ib::stats().strangers;
    for opening in
        [&b"GET / HTTP/1.1\r\n\r\n........................................"[..], &handle[..48], &[0; 64]]
    {
        let mut tcp = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_read_timeout(Some(common::LIMIT)).unwrap();
        tcp.write_all(opening).unwrap();
        let before = hawser_net_ib::stats().strangers;
        until("it is refused", || {
            assert!(listener.accept().unwrap().is_none());
            (hawser_net_ib::stats().strangers > before).then_some(())
        });
        let mut rest = Vec::new();
        let _ = tcp.read_to_end(&mut rest);
        assert!(rest.is_empty(), "the listener answered a stranger");
    }
    assert!(hawser_net_ib::stats().strangers >= refused + 3);
    let mut connector = pair.from.connect(0, &handle).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until("the friend gets in", || {
        sender = sender.take().or_else(|| connector.poll().unwrap());
        receiver = receiver.take().or_else(|| listener.accept().unwrap());
        (sender.is_some() && receiver.is_some()).then_some(())
    });
}

/// A second connection between the same hosts.
fn again(pair: &mut Pair, device: u32) {
    let (handle, mut listener) = pair.to.listen(device).unwrap();
    let mut connector = pair.from.connect(device, &handle).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until("connecting again", || {
        sender = sender.take().or_else(|| connector.poll().unwrap());
        receiver = receiver.take().or_else(|| listener.accept().unwrap());
        (sender.is_some() && receiver.is_some()).then_some(())
    });
    (pair.sender, pair.receiver) = (sender.unwrap(), receiver.unwrap());
}

#[test]
fn a_device_that_makes_nothing_is_left_out() {
    // One of the sender's, one of the receiver's.
    for device in [0, 3] {
        let mut pair = Pair::new(2, common::settings());
        pair.fabric.kill(device);
        // It was connected before, and does not register the buffers now.
        Stream::new(10, 60).finish(&mut pair);
        // It has no queue for a new connection.
        again(&mut pair, 2);
        Stream::new(11, 60).finish(&mut pair);
    }
}

#[test]
fn where_no_device_registers_memory_that_is_an_error() {
    let mut pair = Pair::new(2, common::settings());
    (0..2).for_each(|device| pair.fabric.kill(device));
    let bytes = [0u8; 64];
    let region = Region { addr: bytes.as_ptr() as u64, bytes: 64, kind: MemoryKinds::HOST, dmabuf: None };
    // SAFETY: the array outlives the connection's use of it.
    let error = unsafe { pair.sender.register(&region) }.unwrap_err();
    assert!(error.text.contains("registering 64 bytes with soft0:1"), "{error}");
}

#[test]
fn functions_of_one_card_are_different_ports() {
    let open = |fabric: Fabric| {
        let net = IbNet::on_soft(common::settings(), fabric.host(0..2));
        let context = net.open(&NetConfig::new(1, Log::silent())).unwrap();
        [0, 1].map(|device| context.properties(device).map(|p| (p.guid, p.port)).unwrap())
    };
    assert_eq!(open(Fabric::new(2)), [(1, 1), (2, 1)]);
    assert_eq!(open(Fabric::new(2).on_one_card()), [(7, 1), (7, 2)]);
}

/// It is for RoCE: index 3 is not there.
#[test]
fn the_index_of_an_address_does_not_count_on_infiniband() {
    let open = |fabric: Fabric| {
        let mut settings = common::settings();
        settings.gid_index = Some(3);
        IbNet::on_soft(settings, fabric.host(0..1))
            .open(&NetConfig::new(1, Log::silent()))
            .map_or(0, |context| context.devices().unwrap())
    };
    assert_eq!((open(Fabric::new(1).of_infiniband()), open(Fabric::new(1))), (1, 0));
}
