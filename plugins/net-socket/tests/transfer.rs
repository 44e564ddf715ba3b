//! Every byte arrives: sizes, numbers in flight, groups, families, several interfaces.

mod common;

use common::{Buffer, Stream, connect, open, pattern, settings, until};
use hawser_net_socket::{Help, stats};
use hawser_plugin::ErrorKind;
use hawser_plugin::net::{MAX_RECVS, MAX_REQUESTS, NetContext, Segment};

const SIZES: [usize; 20] = [
    0, 1, 2, 63, 64, 65, 4095, 4096, 16_384, 16_385, 65_535, 65_537, 131_072, 200_001, 262_145, 1_000_003,
    1_048_576, 3_000_017, 4_194_304, 9,
];

fn all_sizes(from: &dyn NetContext, to: &dyn NetContext, device: u32) {
    let (mut sender, mut receiver) = connect(from, to, device);
    for in_flight in [1, MAX_REQUESTS] {
        Stream::new(SIZES.to_vec(), in_flight, 0).finish(sender.as_mut(), receiver.as_mut());
    }
    Stream::new(SIZES.to_vec(), 5, 1000).finish(sender.as_mut(), receiver.as_mut());
}

#[test]
fn all_sizes_pass_with_threads_and_without() {
    let all =
        [(0, 1), (0, 3), (1, 1), (2, 4), (4, 8)].map(|(threads, sockets)| (threads, sockets, Help::Never));
    for (threads, sockets, help) in all.into_iter().chain([(1, 1, Help::Always), (2, 4, Help::Always)]) {
        let mut settings = settings(threads, sockets);
        settings.help = help;
        let (from, to) = (open(&settings), open(&settings));
        all_sizes(from.as_ref(), to.as_ref(), 0);
    }
}

#[test]
fn both_ends_may_choose_differently() {
    let mut near = settings(2, 3);
    near.inline = 0;
    let mut far = settings(0, 1);
    far.chunk = 4096;
    let (near, far) = (open(&near), open(&far));
    all_sizes(near.as_ref(), far.as_ref(), 0);
    all_sizes(far.as_ref(), near.as_ref(), 0);
}

#[test]
fn ipv6_passes() {
    let mut settings = settings(1, 2);
    settings.family = Some(hawser_oob::interface::Family::V6);
    settings.ifname = None;
    settings.forced = vec![("lo".into(), "::1".parse().unwrap())];
    let (from, to) = (open(&settings), open(&settings));
    all_sizes(from.as_ref(), to.as_ref(), 0);
}

#[test]
fn a_virtual_device_uses_all_of_its_interfaces() {
    let mut settings = settings(2, 2);
    settings.forced = (1..=3).map(|i| (format!("lo:{i}"), format!("127.0.0.{i}").parse().unwrap())).collect();
    let (from, to) = (open(&settings), open(&settings));
    for context in [&from, &to] {
        assert_eq!(context.devices().unwrap(), 3);
        assert_eq!(context.make_virtual(&[0, 1, 2]).unwrap(), 3);
        assert_eq!(context.properties(3).unwrap().members, [0, 1, 2]);
    }
    all_sizes(from.as_ref(), to.as_ref(), 3);
    let (_sender, _receiver) = connect(from.as_ref(), to.as_ref(), 3);
    for i in 1..=3 {
        let address = format!("{:08X}:", u32::from_le_bytes([127, 0, 0, i]));
        until("a socket on each interface", || {
            let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
            let both_ends = |line: &str| line.matches(&address).count() == 2 && line.contains(" 01 ");
            table.lines().any(both_ends).then_some(())
        });
    }
}

#[test]
fn many_connections_share_the_threads() {
    let settings = settings(2, 2);
    let (from, to) = (open(&settings), open(&settings));
    let mut pairs: Vec<_> = (0..24)
        .map(|i| {
            let sizes = (0..6).map(|n| SIZES[(i + n * 5) % SIZES.len()]).collect();
            (connect(from.as_ref(), to.as_ref(), 0), Stream::new(sizes, 4, 0))
        })
        .collect();
    until("moving messages", || {
        for ((sender, receiver), stream) in &mut pairs {
            stream.step(sender.as_mut(), receiver.as_mut()).unwrap();
        }
        pairs.iter().all(|pair| pair.1.is_over()).then_some(())
    });
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let ours = threads.filter_map(|thread| {
        let name = std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()?;
        name.starts_with("hawser-sock-").then_some(())
    });
    // Other tests run beside this one; none of them needs a thread per connection.
    assert!(ours.count() < 24 * 2);
}

#[test]
fn each_direction_has_its_thread() {
    let settings = settings(1, 2);
    let (a, b) = (open(&settings), open(&settings));
    let (forth, back) = (connect(a.as_ref(), b.as_ref(), 0), connect(b.as_ref(), a.as_ref(), 0));
    std::thread::scope(|scope| {
        for (mut sender, mut receiver) in [forth, back] {
            scope.spawn(move || {
                let sizes = SIZES.iter().cycle().take(60).copied().collect();
                Stream::new(sizes, 8, 0).finish(sender.as_mut(), receiver.as_mut());
            });
        }
    });
}

#[test]
fn tags_pick_the_buffers_of_a_group() {
    for threads in [0, 2] {
        let settings = settings(threads, 2);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let tags = [4, 9, 4, 1, 2, 3, 5, 6];
        assert_eq!(tags.len(), MAX_RECVS);
        let sizes = [100, 300_000, 0, 20_000, 5, 70_000, 1, 1_000_000];
        let first: Vec<Buffer> =
            sizes.iter().map(|&n| Buffer::at_receiver(receiver.as_mut(), vec![0; n + 1])).collect();
        let second = Buffer::at_receiver(receiver.as_mut(), vec![0; 64]);
        let segments: Vec<Segment> = first.iter().zip(tags).map(|(b, tag)| b.segment(tag)).collect();
        // SAFETY: the buffers live until the requests are done.
        let group = unsafe { receiver.irecv(&segments, false) }.unwrap().unwrap();
        // SAFETY: as above.
        let single = unsafe { receiver.irecv(&[second.segment(9)], false) }.unwrap().unwrap();
        // The two messages with tag 4 keep their order, the others come in any.
        let order = [7, 0, 3, 2, 1, 6, 5, 4];
        let mut requests = Vec::new();
        for index in order {
            let buffer = Buffer::at_sender(sender.as_mut(), pattern(index, sizes[index]));
            let request = until("a credit", || {
                // SAFETY: the buffer lives until the request is done.
                unsafe { sender.isend(&buffer.segment(tags[index])) }.unwrap()
            });
            if index != 4 {
                // The group has a place for it no more, and the next receive has to wait for the whole group.
                let early = buffer.segment(77);
                // SAFETY: as above.
                assert_eq!(unsafe { sender.isend(&early) }.unwrap(), None);
            }
            requests.push((buffer, request));
        }
        let last = Buffer::at_sender(sender.as_mut(), pattern(99, 64));
        let request = until("a credit", || {
            // SAFETY: the buffer lives until the request is done.
            unsafe { sender.isend(&last.segment(123)) }.unwrap()
        });
        let mut got = [usize::MAX; MAX_RECVS];
        until("the group", || receiver.test(group, &mut got).unwrap().then_some(()));
        assert_eq!(got, sizes);
        for (index, buffer) in first.iter().enumerate() {
            assert!(buffer.bytes[..sizes[index]] == pattern(index, sizes[index]), "segment {index}");
        }
        until("the single receive", || receiver.test(single, &mut []).unwrap().then_some(()));
        assert!(second.bytes == pattern(99, 64));
        for (_, request) in requests.iter().chain([&(last, request)]) {
            until("the sends", || sender.test(*request).unwrap());
        }
    }
}

#[test]
fn a_send_longer_than_its_receive_fails_at_both_ends() {
    for bytes in [101, 2_000_000] {
        let settings = settings(1, 1);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let into = Buffer::at_receiver(receiver.as_mut(), vec![0; 100]);
        // SAFETY: the buffer lives until the connection is gone.
        let request = unsafe { receiver.irecv(&[into.segment(0)], false) }.unwrap().unwrap();
        let buffer = Buffer::at_sender(sender.as_mut(), vec![1; bytes]);
        let error = until("the refusal", || {
            // SAFETY: as above.
            unsafe { sender.isend(&buffer.segment(0)) }.err()
        });
        assert_eq!(error.kind, ErrorKind::InvalidUsage);
        assert!(error.text.contains(&bytes.to_string()) && error.text.contains("100"), "{error}");
        let error = until("the refusal", || receiver.test(request, &mut [0]).err());
        assert_eq!(error.kind, ErrorKind::InvalidUsage);
        assert!(into.bytes.iter().all(|&byte| byte == 0));
        // SAFETY: as above.
        assert!(unsafe { sender.isend(&buffer.segment(0)) }.is_err());
    }
}

#[test]
fn short_messages_go_before_their_receives() {
    for threads in [0, 2] {
        let settings = settings(threads, 2);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let early = stats().early;
        let mut kept = Vec::new();
        // A few go, then the sender has to wait for the receiver.
        while kept.len() < 1000 {
            let buffer = Buffer::at_sender(sender.as_mut(), pattern(kept.len(), 64));
            // SAFETY: the buffer lives until the request is done.
            let Some(request) = (unsafe { sender.isend(&buffer.segment(3)) }).unwrap() else { break };
            until("the send", || sender.test(request).unwrap());
            kept.push(buffer);
        }
        assert!(stats().early > early && (8..100).contains(&kept.len()), "{}", kept.len());
        for number in 0..kept.len() {
            let into = Buffer::at_receiver(receiver.as_mut(), vec![0; 100]);
            // SAFETY: as above.
            let request = unsafe { receiver.irecv(&[into.segment(3)], false) }.unwrap().unwrap();
            let mut got = [0];
            until("the message", || receiver.test(request, &mut got).unwrap().then_some(()));
            assert!(got == [64] && into.bytes[..64] == pattern(number, 64));
        }
        // Short ones until the receiver is used to them, one at a time; then long ones between them.
        let sizes = (0..200).map(|n| if n > 60 && n % 7 < 2 { 300_000 } else { n }).collect();
        Stream::new(sizes, 1, 5).finish(sender.as_mut(), receiver.as_mut());
    }
}

#[test]
fn an_early_message_longer_than_its_receive_fails_at_both_ends() {
    let settings = settings(1, 1);
    let (from, to) = (open(&settings), open(&settings));
    let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
    let buffer = Buffer::at_sender(sender.as_mut(), vec![1; 101]);
    // SAFETY: the buffer lives until the connection is gone.
    until("an early send", || unsafe { sender.isend(&buffer.segment(0)) }.unwrap());
    let into = Buffer::at_receiver(receiver.as_mut(), vec![0; 100]);
    // SAFETY: as above.
    let request = unsafe { receiver.irecv(&[into.segment(0)], false) }.unwrap().unwrap();
    let error = until("the refusal", || receiver.test(request, &mut [0]).err());
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    assert!(into.bytes.iter().all(|&byte| byte == 0));
    // SAFETY: as above.
    let error = until("the refusal", || unsafe { sender.isend(&buffer.segment(0)) }.err());
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    assert!(error.text.contains("101") && error.text.contains("100"), "{error}");
}

#[test]
fn wrong_arguments_are_errors() {
    let settings = settings(0, 1);
    let context = open(&settings);
    assert!(context.properties(1).is_err() && context.listen(1).is_err());
    let (mut sender, mut receiver) = connect(context.as_ref(), context.as_ref(), 0);
    let buffer = Buffer::at_receiver(receiver.as_mut(), vec![0; 100]);
    let outside = Segment { bytes: 101, ..buffer.segment(0) };
    // SAFETY: refused before the memory is touched.
    assert!(unsafe { receiver.irecv(&[outside], false) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { receiver.irecv(&[], false) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { receiver.irecv(&[buffer.segment(0); MAX_RECVS + 1], false) }.is_err());
    // SAFETY: as above: the sender has no registration.
    assert!(unsafe { sender.isend(&buffer.segment(0)) }.is_err());
    assert!(sender.test(hawser_plugin::net::Request(5)).is_err());
    assert!(receiver.test(hawser_plugin::net::Request(5), &mut []).is_err());
    assert!(receiver.deregister(hawser_plugin::net::Registration(5)).is_err());
}

#[test]
fn short_messages_that_the_host_was_told_of_survive_its_leaving() {
    let settings = settings(1, 1);
    for _ in 0..10 {
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let into: Vec<Buffer> =
            (0..8).map(|_| Buffer::at_receiver(receiver.as_mut(), vec![0; 1000])).collect();
        let post = |buffer: &Buffer| {
            // SAFETY: the buffers live until the requests are done.
            unsafe { receiver.irecv(&[buffer.segment(0)], false) }.unwrap().unwrap()
        };
        let requests: Vec<_> = into.iter().map(post).collect();
        for number in 0..8 {
            let buffer = Buffer::at_sender(sender.as_mut(), pattern(number, 1000));
            let request = until("a credit", || {
                // SAFETY: the buffer lives until the request is done.
                unsafe { sender.isend(&buffer.segment(0)) }.unwrap()
            });
            assert_eq!(until("the send", || sender.test(request).unwrap()), 1000);
        }
        drop(sender);
        drop(from);
        for (number, request) in requests.into_iter().enumerate() {
            until("the message", || receiver.test(request, &mut [0]).unwrap().then_some(()));
            assert!(into[number].bytes == pattern(number, 1000));
        }
    }
}
