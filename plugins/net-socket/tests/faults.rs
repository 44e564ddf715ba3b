//! Sockets that are lost, peers that leave or die, strangers, handles that lead nowhere.
//!
//! The tests of this file take turns: they cut sockets by their number in the whole process.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Buffer, Stream, connect, open, open_with_log, pattern, settings, until};
use hawser_net_socket::{Help, Settings, connections, cut, stats};
use hawser_oob::wire::Wire;
use hawser_plugin::net::HANDLE_BYTES;
use hawser_plugin::{ErrorKind, Log};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With less patience than a user's, so that the tests are not slow.
fn impatient(threads: usize, sockets: usize) -> Settings {
    let mut settings = settings(threads, sockets);
    settings.timeout = Duration::from_secs(10);
    settings
}

/// A small generator, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % sides
    }
}

fn mixed_sizes(dice: &mut Dice, count: usize) -> Vec<usize> {
    (0..count)
        .map(|_| match dice.roll(4) {
            0 => dice.roll(2000),
            1 => dice.roll(40_000),
            2 => dice.roll(400_000),
            _ => dice.roll(3_000_000),
        })
        .collect()
}

#[test]
fn random_cuts_lose_no_byte() {
    let _turn = turn();
    let (never, always) = (Help::Never, Help::Always);
    let (plain, sealed) = (Wire::Plain, Wire::Encrypt);
    for (threads, sockets, help, wire) in [
        (0, 1, never, plain),
        (0, 2, never, plain),
        (2, 4, never, plain),
        (2, 4, always, plain),
        (1, 2, always, plain),
        (0, 2, never, sealed),
        (2, 4, always, sealed),
    ] {
        let mut settings = settings(threads, sockets);
        (settings.help, settings.wire) = (help, wire);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let mut dice = Dice(threads as u64 * 100 + sockets as u64);
        let before = stats();
        let (cuts, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut dice = Dice(5);
                while !is_over.load(Ordering::SeqCst) {
                    // Coming back may take longer than that: after many cuts there is time for it.
                    let factor = if cuts.load(Ordering::SeqCst) > 400 { 25 } else { 1 };
                    std::thread::sleep(Duration::from_micros(factor * dice.roll(8000) as u64));
                    // Either end's socket, data or control.
                    let done = cut(dice.roll(connections().max(1)), dice.roll(sockets + 1));
                    cuts.fetch_add(usize::from(done), Ordering::SeqCst);
                }
            });
            let moved = catch_unwind(AssertUnwindSafe(|| {
                until("enough cuts", || {
                    let sizes = mixed_sizes(&mut dice, 40);
                    Stream::new(sizes, 16, 0).finish(sender.as_mut(), receiver.as_mut());
                    let now = stats();
                    let all = now.lost > before.lost
                        && now.redialled > before.redialled
                        && now.repeated > before.repeated;
                    (all && cuts.load(Ordering::SeqCst) > 40).then_some(())
                });
            }));
            is_over.store(true, Ordering::SeqCst);
            moved.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }
}

#[test]
fn the_control_socket_alone_may_be_lost_again_and_again() {
    let _turn = turn();
    let settings = settings(1, 1);
    let (from, to) = (open(&settings), open(&settings));
    let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
    let mut stream = Stream::new(vec![700; 400], 8, 0);
    let mut cuts = 0;
    until("moving messages", || {
        stream.step(sender.as_mut(), receiver.as_mut()).unwrap();
        if stream.received > cuts * 20 {
            cuts += usize::from(cut(cuts % connections(), 0));
        }
        stream.is_over().then_some(())
    });
    assert!(cuts > 5);
}

#[test]
fn all_sockets_at_once_may_be_lost_while_nobody_calls() {
    let _turn = turn();
    let settings = settings(2, 3);
    let (from, to) = (open(&settings), open(&settings));
    let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
    for round in 0..3 {
        Stream::new(vec![2_000_000; 4], 2, 0).finish(sender.as_mut(), receiver.as_mut());
        let back = stats().redialled;
        // On a busy machine one may be on its way back for a reason of its own.
        (0..4).for_each(|socket| until("the socket is there", || cut(round % 2, socket).then_some(())));
        // No call of the host is needed to get them back.
        until("all sockets are back", || (stats().redialled >= back + 4).then_some(()));
    }
    Stream::new(vec![2_000_000; 4], 2, 0).finish(sender.as_mut(), receiver.as_mut());
}

#[test]
fn a_dropped_receiver_is_an_error_for_the_sender() {
    let _turn = turn();
    for bytes in [10, 1_000_000] {
        let settings = impatient(1, 2);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        let into = Buffer::at_receiver(receiver.as_mut(), vec![0; bytes]);
        // SAFETY: the buffer outlives the receiver.
        unsafe { receiver.irecv(&[into.segment(0)], false) }.unwrap().unwrap();
        drop(receiver);
        let buffer = Buffer::at_sender(sender.as_mut(), vec![1; bytes]);
        let error = until("the error", || {
            // SAFETY: the buffer outlives the sender.
            match unsafe { sender.isend(&buffer.segment(0)) } {
                Err(error) => Some(error),
                Ok(None) => None,
                Ok(Some(request)) => loop {
                    match sender.test(request) {
                        Err(error) => break Some(error),
                        Ok(Some(_)) => break None,
                        Ok(None) => std::thread::yield_now(),
                    }
                },
            }
        });
        assert_eq!(error.kind, ErrorKind::Remote);
        assert!(error.text.contains("127.0.0.1"), "{error}");
        drop(sender);
        assert!(into.bytes.iter().all(|&byte| byte == 0 || byte == 1));
    }
}

#[test]
fn a_dropped_sender_is_an_error_for_the_receiver() {
    let _turn = turn();
    let settings = impatient(1, 2);
    let (from, to) = (open(&settings), open(&settings));
    let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
    let into = Buffer::at_receiver(receiver.as_mut(), vec![0; 3_000_000]);
    // SAFETY: the buffer outlives the receiver.
    let request = unsafe { receiver.irecv(&[into.segment(0)], false) }.unwrap().unwrap();
    let buffer = Buffer::at_sender(sender.as_mut(), vec![1; 3_000_000]);
    until("a credit", || {
        // SAFETY: the buffer outlives the sender.
        unsafe { sender.isend(&buffer.segment(0)) }.unwrap()
    });
    drop(sender);
    let outcome = until("an outcome", || match receiver.test(request, &mut [0]) {
        Ok(false) => None,
        other => Some(other),
    });
    // Either the message had arrived as a whole before the sender was dropped, or the receiver is told.
    match outcome {
        Ok(_) => assert!(into.bytes.iter().all(|&byte| byte == 1)),
        Err(error) => assert!(error.kind == ErrorKind::Remote && error.text.contains("127.0.0.1"), "{error}"),
    }
}

#[test]
fn a_dead_process_is_an_error_long_before_the_timeout() {
    let _turn = turn();
    let settings = impatient(1, 2);
    let to = open(&settings);
    let (handle, listener) = to.listen(0).unwrap();
    let from = open(&settings);
    let mut connector = from.connect(0, &handle).unwrap();
    let mut sender = until("connecting", || connector.poll().unwrap());
    // What a dead process leaves: its sockets are closed and nobody listens any more.
    drop(listener);
    drop(to);
    let buffer = Buffer::at_sender(sender.as_mut(), vec![1; 10]);
    let error = until("the error", || {
        // SAFETY: the buffer outlives the sender.
        unsafe { sender.isend(&buffer.segment(0)) }.err()
    });
    assert_eq!(error.kind, ErrorKind::Remote);
}

#[test]
fn a_receiver_whose_sender_died_without_a_word_is_told() {
    let _turn = turn();
    let settings = impatient(1, 1);
    let to = open(&settings);
    let (handle, mut listener) = to.listen(0).unwrap();
    // A sender in a process of its own, which is killed.
    let mut child = common::child("be_a_sender", &handle);
    let mut receiver = until("accepting", || listener.accept().unwrap());
    let into = Buffer::at_receiver(receiver.as_mut(), vec![0; 100]);
    // SAFETY: the buffer outlives the receiver.
    let request = unsafe { receiver.irecv(&[into.segment(0)], false) }.unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = until("the error", || receiver.test(request, &mut [0]).err());
    assert_eq!(error.kind, ErrorKind::Remote);
    assert!(error.text.contains("127.0.0.1"), "{error}");
}

#[test]
fn a_sender_whose_receiver_died_without_a_word_is_told() {
    let _turn = turn();
    let settings = impatient(1, 1);
    let mut child = common::child("be_a_receiver", &[]);
    let handle = common::hear(&mut child, HANDLE_BYTES).try_into().unwrap();
    let from = open(&settings);
    let mut connector = from.connect(0, &handle).unwrap();
    let mut sender = until("connecting", || connector.poll().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    let buffer = Buffer::at_sender(sender.as_mut(), vec![1; 10]);
    let error = until("the error", || {
        // SAFETY: the buffer outlives the sender.
        unsafe { sender.isend(&buffer.segment(0)) }.err()
    });
    assert_eq!(error.kind, ErrorKind::Remote);
    assert!(error.text.contains("refused") || error.text.contains("closed"), "{error}");
}

/// The other process of the tests above.
#[test]
fn be_a_sender() {
    let Some(handle) = common::role("be_a_sender") else { return };
    let from = open(&settings(1, 1));
    let mut connector = from.connect(0, &handle.try_into().unwrap()).unwrap();
    let _sender = until("connecting", || connector.poll().unwrap());
    common::wait_to_be_killed();
}

/// The other process of the tests above.
#[test]
fn be_a_receiver() {
    if common::role("be_a_receiver").is_none() {
        return;
    }
    let to = open(&settings(1, 1));
    let (handle, mut listener) = to.listen(0).unwrap();
    common::tell(&handle);
    let _receiver = until("accepting", || listener.accept().unwrap());
    common::wait_to_be_killed();
}

#[test]
fn strangers_are_dropped_and_block_nobody() {
    let _turn = turn();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    let log = Log::new(move |_, _, text| keep.lock().unwrap().push(text.to_owned()));
    let settings = settings(1, 1);
    let (from, to) = (open(&settings), open_with_log(&settings, log));
    let (handle, mut listener) = to.listen(0).unwrap();
    // Family, port and address of the handle's first address.
    let port = u16::from_be_bytes([handle[50], handle[51]]);
    assert_eq!((handle[49], &handle[52..56]), (4, &[127, 0, 0, 1][..]));
    let dial = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut silent: Vec<TcpStream> = (0..20).map(|_| dial()).collect();
    let mut half = dial();
    half.write_all(b"HAWSsock\x05\x00").unwrap();
    let mut talkative = dial();
    let _ = talkative.write_all(&pattern(1, 100_000));
    let mut end = [0];
    assert!(!matches!(talkative.read(&mut end), Ok(1..)), "a stranger got an answer");
    drop(silent.pop());
    // One that knows the number of the listener but not the secret.
    let mut forged = dial();
    let mut greeting = [0u8; 68];
    greeting[..8].copy_from_slice(b"HAWSsock");
    greeting[8] = 5; // version; then 32 random bytes, listener, connection
    greeting[42..50].copy_from_slice(&handle[8..16]);
    greeting[58] = 1; // generation
    greeting[64] = 1; // data sockets
    forged.write_all(&greeting).unwrap();
    let mut challenge = [0; 73];
    forged.read_exact(&mut challenge).unwrap();
    forged.write_all(&[7; 40]).unwrap();
    assert!(!matches!(forged.read(&mut end), Ok(1..)), "a forger was let in");
    let before = listener.accept().unwrap();
    assert!(before.is_none());
    let mut connector = from.connect(0, &handle).unwrap();
    let mut sender = until("connecting", || connector.poll().unwrap());
    let mut receiver = until("accepting", || listener.accept().unwrap());
    Stream::new(vec![500_000; 4], 2, 0).finish(sender.as_mut(), receiver.as_mut());
    assert!(stats().strangers >= 2);
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("dropped a connection from 127.0.0.1")), "{lines:?}");
    assert!(!silent.is_empty());
}

#[test]
fn handles_that_lead_nowhere_are_errors() {
    let _turn = turn();
    let mut settings = settings(0, 1);
    settings.timeout = Duration::from_secs(4);
    let context = open(&settings);
    for garbage in [[0; HANDLE_BYTES], [0xff; HANDLE_BYTES]] {
        let error = context.connect(0, &garbage).err().unwrap();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
    }
    let fails = |handle: &[u8; HANDLE_BYTES], words: &[&str]| {
        let mut connector = context.connect(0, handle).unwrap();
        let error = until("the error", || connector.poll().err());
        assert_eq!(error.kind, ErrorKind::Remote);
        assert!(words.iter().any(|word| error.text.contains(word)), "{error}");
    };
    // A listener that is gone, in a process that is there.
    let other = open(&settings);
    let (handle, listener) = other.listen(0).unwrap();
    drop(listener);
    fails(&handle, &["closed its end"]);
    // A process that is gone.
    drop(other);
    fails(&handle, &["refused"]);
    // Something else listens there and says nothing, or says something else.
    let other = open(&settings);
    let (handle, _listener) = other.listen(0).unwrap();
    let answers = Arc::new(AtomicBool::new(false));
    let impostor = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = common::redirect(&handle, impostor.local_addr().unwrap().port());
    let serve = {
        let answers = answers.clone();
        move || {
            let mut guests = Vec::new();
            for guest in impostor.incoming() {
                let mut guest = guest.unwrap();
                if answers.load(Ordering::SeqCst) {
                    let _ = guest.write_all(&pattern(3, 500));
                }
                guests.push(guest);
            }
        }
    };
    std::thread::spawn(serve);
    fails(&handle, &["no answer", "HAWSER_SOCKET_TIMEOUT"]);
    answers.store(true, Ordering::SeqCst);
    fails(&handle, &["does not know the secret"]);
}

#[test]
fn a_handle_serves_one_sender() {
    let _turn = turn();
    let settings = impatient(0, 1);
    let (from, to) = (open(&settings), open(&settings));
    let (handle, mut listener) = to.listen(0).unwrap();
    let mut first = from.connect(0, &handle).unwrap();
    let mut sender = until("connecting", || first.poll().unwrap());
    let mut second = from.connect(0, &handle).unwrap();
    let error = until("the error", || second.poll().err());
    assert!(error.kind == ErrorKind::Remote && error.text.contains("another sender"), "{error}");
    let mut receiver = until("accepting", || listener.accept().unwrap());
    Stream::new(vec![100; 4], 2, 0).finish(sender.as_mut(), receiver.as_mut());
}
