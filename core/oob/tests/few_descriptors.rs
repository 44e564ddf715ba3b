//! A process with few descriptors: strangers take their share of them at most, and are the first to lose it.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hawser_oob::accept::{Acceptor, Arrival, Limits};
use hawser_oob::dial::{Dial, Ended, Offer};
use hawser_oob::handshake::{Key, Protocol};
use hawser_oob::silent;
use hawser_oob::socket::{self, Address, Options, Origin};
use hawser_oob::strangers;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PROTOCOL: Protocol = Protocol { magic: *b"HAWSfew\0", version: 1, greeting: 4, answer: 0, welcome: 0 };
const LIMITS: Limits =
    Limits { pending: 512, grace: Duration::from_secs(1000), patience: Duration::from_secs(1000) };
/// The limit of open files; an eighth of it are places for strangers.
const FILES: u64 = 160;

/// The limit is the process's, so this is one test.
#[test]
fn strangers_take_a_share_and_lose_it_first() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |files| setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }).unwrap();
    limit(FILES);
    let (listener, at) = socket::listen(SocketAddr::from(([127, 0, 0, 1], 0)), &Options::default()).unwrap();
    silent::let_in(listener.as_fd());
    let mut acceptor = Acceptor::new(listener, Options::default(), PROTOCOL, LIMITS);

    // Far more than the share come; they are ours as well, so that each costs this process two.
    let mut crowd: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(at).unwrap()).collect();
    for _ in 0..20 {
        assert!(look(&mut acceptor).is_empty(), "nobody leaves within its grace");
    }
    let mut own = open_all();
    let share = usize::try_from(FILES).unwrap() / 8;
    assert!(own.len() > 160 - 60 - share - 16, "strangers took too many: {} are left", own.len());

    // One descriptor for the dial; the listener has none for it but those of strangers.
    own.pop();
    let mut dial = dial(&Address::Tcp(at));
    let end = Instant::now() + Duration::from_secs(20);
    let mut is_welcome = false;
    while !is_welcome {
        assert!(Instant::now() < end, "the friend waits for ever");
        look(&mut acceptor);
        // A share is full of those that came first; they end, as time or a friend of theirs will have it.
        crowd.pop();
        is_welcome = dial.advance().unwrap().is_some();
    }
    drop((dial, crowd));

    // Without strangers there is nobody to take from: the process knows why nobody comes in.
    while look(&mut acceptor).iter().any(|arrival| matches!(arrival, Arrival::Stranger(..))) {}
    own.extend(open_all());
    own.pop();
    let _one_more = TcpStream::connect(at).unwrap();
    let trouble = look(&mut acceptor);
    assert!(matches!(&trouble[..], [Arrival::Trouble(why)] if why.contains("ulimit -n")), "{trouble:?}");
    assert!(strangers::trouble().is_some_and(|why| why.contains("cannot accept")));
}

fn key() -> Key {
    Key::derive(&[7; 32], "few")
}

fn look(acceptor: &mut Acceptor) -> Vec<Arrival> {
    acceptor.advance(|_| Ok(key()), |_| Vec::new())
}

fn dial(to: &Address) -> Dial {
    let key = key();
    let offer = Offer { protocol: PROTOCOL, key: &key, greeting: b"rank", answer: &[] };
    let begun: Result<Dial, Ended> = Dial::begin(&Origin::default(), to, &Options::default(), &offer);
    begun.unwrap_or_else(|ended| panic!("{ended}"))
}

/// Opens files until there is no descriptor left.
fn open_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}
