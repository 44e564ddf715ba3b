//! Encrypted connections: everything passes that passes otherwise, and whoever sits on the path changes,
//! repeats and reads nothing.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use common::{Stream, connect, open, pattern, settings, until};
use hawser_net_socket::{Help, Settings, SocketNet};
use hawser_oob::handle::ConnectInfo;
use hawser_oob::wire::{self, Wire};
use hawser_plugin::net::{Handle, MAX_REQUESTS, NetConfig, NetContext, Receiver, Sender};
use hawser_plugin::{Error, Log, Net};

const MAGIC: [u8; 4] = *b"HwS3";
/// Bytes that a sender says before its first record: greeting and answer.
const HANDSHAKE: usize = 10 + 32 + 26 + 32 + 8;

fn sealed(threads: usize, sockets: usize) -> Settings {
    let mut settings = settings(threads, sockets);
    settings.wire = Wire::Encrypt;
    settings
}

fn net(threads: usize, sockets: usize) -> Arc<SocketNet> {
    let mut settings = sealed(threads, sockets);
    settings.ifname = None;
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

#[test]
fn all_sizes_pass() {
    let sizes = [0, 1, 63, 4096, 65_535, 65_536, 65_537, 131_072, 262_144, 262_145, 1_000_003, 3_000_017, 9];
    for (threads, sockets, inline, help) in [
        (0, 1, 65_536, Help::Never),
        (0, 3, 0, Help::Never),
        (1, 1, 0, Help::Never),
        (2, 4, 65_536, Help::Always),
    ] {
        let mut settings = sealed(threads, sockets);
        (settings.inline, settings.help) = (inline, help);
        let (from, to) = (open(&settings), open(&settings));
        let (mut sender, mut receiver) = connect(from.as_ref(), to.as_ref(), 0);
        for in_flight in [1, MAX_REQUESTS] {
            Stream::new(sizes.to_vec(), in_flight, 100).finish(sender.as_mut(), receiver.as_mut());
        }
    }
}

#[test]
fn the_program_that_opens_the_plugin_says_what_it_wants() {
    let opened = || SocketNet::with_settings(settings(1, 1)).open(&NetConfig::new(7, Log::silent()));
    let (sealed, is_protected) = wire::offer(Wire::Encrypt, opened);
    assert!(is_protected);
    let plain = open(&settings(1, 1));
    let (sealed, to) = (sealed.unwrap(), open(&self::sealed(1, 1)));
    let (mut sender, mut receiver) = connect(sealed.as_ref(), to.as_ref(), 0);
    Stream::new(vec![100_000; 3], 2, 0).finish(sender.as_mut(), receiver.as_mut());
    // Ends that differ say so, and both ways of protection.
    for (from, to, own) in [(&sealed, &plain, "encrypt, the receiver plain"), (&plain, &to, "plain")] {
        let (handle, _listener) = to.listen(0).unwrap();
        let mut connector = from.connect(0, &handle).unwrap();
        let error = until("a refusal", || connector.poll().err());
        assert!(error.text.contains("this end has HAWSER_WIRE=") && error.text.contains(own), "{error}");
    }
}

/// Somebody between sender and receiver, who changes the first connection's way to the receiver.
struct Middle {
    address: SocketAddr,
    /// All that went to the receiver, as it was sent.
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Middle {
    /// `change` is given all bytes that the sender has sent so far and those that are new.
    fn before(to: SocketAddr, change: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let copy = seen.clone();
        std::thread::spawn(move || {
            let (mut near, _) = listener.accept().unwrap();
            let mut far = TcpStream::connect(to).unwrap();
            let (mut back, mut home) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut home);
                let _ = home.shutdown(Shutdown::Both);
            });
            let (mut bytes, mut count) = ([0; 512], 0);
            while let Ok(read @ 1..) = near.read(&mut bytes) {
                copy.lock().unwrap().extend_from_slice(&bytes[..read]);
                if far.write_all(&change(count, bytes[..read].to_vec())).is_err() {
                    break;
                }
                count += read;
            }
            let _ = far.shutdown(Shutdown::Both);
        });
        Self { address, seen }
    }
}

/// Both ends of a connection behind their contexts, and who is between them.
type Through = (Vec<Box<dyn NetContext>>, Box<dyn Sender>, Box<dyn Receiver>, Middle);

/// A connection whose control socket goes through somebody.
fn connect_through(
    settings: &Settings,
    change: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + 'static,
) -> Through {
    let (from, to) = (open(settings), open(settings));
    let (handle, mut listener) = to.listen(0).unwrap();
    let mut info = ConnectInfo::decode(MAGIC, &handle).unwrap();
    let middle = Middle::before(info.addresses[0], change);
    info.addresses = vec![middle.address];
    let handle: Handle = info.encode(MAGIC);
    let mut connector = from.connect(0, &handle).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until("connecting", || {
        sender = sender.take().or_else(|| connector.poll().unwrap());
        receiver = receiver.take().or_else(|| listener.accept().unwrap());
        (sender.is_some() && receiver.is_some()).then_some(())
    });
    (vec![from, to], sender.unwrap(), receiver.unwrap(), middle)
}

/// Moves short messages; what went wrong, if something did. Wrong bytes panic.
fn short_messages(sender: &mut dyn Sender, receiver: &mut dyn Receiver) -> Option<Error> {
    let mut stream = Stream::new(vec![700; 20], 4, 0);
    until("moving messages", || match stream.step(sender, receiver) {
        Ok(()) => stream.is_over().then_some(None),
        Err(error) => Some(Some(error)),
    })
}

/// Changes one bit of the first message.
fn flip(before: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    let at = HANDSHAKE + 300;
    if (before..before + bytes.len()).contains(&at) {
        bytes[at - before] ^= 4;
    }
    bytes
}

#[test]
fn a_changed_bit_passes_in_plain_and_is_refused_when_sealed() {
    let settings = settings(1, 1);
    let (_contexts, mut sender, mut receiver, _middle) = connect_through(&settings, flip);
    let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        short_messages(sender.as_mut(), receiver.as_mut())
    }));
    assert!(wrong.is_err(), "the fault is a real one: a wrong message was taken for a right one");
    let (_contexts, mut sender, mut receiver, _middle) = connect_through(&sealed(1, 1), flip);
    let error = short_messages(sender.as_mut(), receiver.as_mut()).expect("an error");
    assert!(error.text.contains("wrong seal"), "{error}");
}

#[test]
fn a_repeated_record_is_refused() {
    // All that came first behind the handshake comes again.
    let repeat = |before: usize, bytes: Vec<u8>| {
        if before == HANDSHAKE || (before < HANDSHAKE && before + bytes.len() > HANDSHAKE) {
            [&bytes[..], &bytes[HANDSHAKE.saturating_sub(before)..]].concat()
        } else {
            bytes
        }
    };
    let (_contexts, mut sender, mut receiver, _middle) = connect_through(&sealed(1, 1), repeat);
    let error = short_messages(sender.as_mut(), receiver.as_mut()).expect("an error");
    assert!(error.text.contains("wrong seal"), "{error}");
}

#[test]
fn nobody_on_the_path_reads_messages() {
    for (settings, is_readable) in [(settings(1, 1), true), (sealed(1, 1), false)] {
        let (_contexts, mut sender, mut receiver, middle) = connect_through(&settings, |_, bytes| bytes);
        assert!(short_messages(sender.as_mut(), receiver.as_mut()).is_none());
        let (seen, message) = (middle.seen.lock().unwrap(), pattern(0, 700));
        assert_eq!(seen.windows(64).any(|part| part == &message[100..164]), is_readable);
    }
}
