//! Dials and listeners against each other, over real sockets: slow, late, lost and hostile ones.

use crate::accept::{Acceptor, Arrival, Limits, Step, Unwanted, Visitor, check_user, first_to_go};
use crate::dial::{self, Dial, Ended, Offer, Retry};
use crate::error::ErrorKind;
use crate::handshake::{Failure, Key, Protocol};
use crate::silent;
use crate::socket::{self, Address, Caller, Moved, Options, Origin};
use crate::strangers::Place;
use crate::stream::Stream;
use crate::wait::{self, Until};
use rustix::event::{PollFd, PollFlags};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const PROTOCOL: Protocol = Protocol { magic: *b"HAWStest", version: 1, greeting: 4, answer: 2, welcome: 3 };
const LIMITS: Limits =
    Limits { pending: 4, grace: Duration::from_millis(50), patience: Duration::from_secs(20) };

/// Asks until there is an answer.
pub(crate) fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing happened");
        std::thread::yield_now();
    }
}

pub(crate) fn patient() -> Until<'static> {
    Until::after(Duration::from_secs(20))
}

/// A listener that hears of all who connect.
fn listen() -> (OwnedFd, Address) {
    let (fd, address) = listen_to_those_that_speak();
    silent::let_in(fd.as_fd());
    (fd, address)
}

fn listen_to_those_that_speak() -> (OwnedFd, Address) {
    let (fd, address) = socket::listen(SocketAddr::from(([127, 0, 0, 1], 0)), &Options::default()).unwrap();
    (fd, Address::Tcp(address))
}

fn raw(to: &Address) -> Stream {
    let fd = socket::begin_connect(&Origin::default(), to, &Options::default()).unwrap();
    until(|| socket::is_connected(fd.as_fd()).unwrap().then_some(()));
    Stream::from(fd)
}

fn arrival(listener: &OwnedFd) -> Stream {
    until(|| socket::accept(listener.as_fd()).unwrap()).0.into()
}

/// Both ends of a connection.
pub(crate) fn stream_pair() -> (Stream, Stream) {
    let (listener, address) = listen();
    let near = raw(&address);
    (near, arrival(&listener))
}

/// Reads `length` bytes, and does something else meanwhile.
fn read_meanwhile(stream: &Stream, length: usize, mut meanwhile: impl FnMut()) -> Vec<u8> {
    let (mut bytes, mut have) = (vec![0; length], 0);
    until(|| {
        meanwhile();
        have += match stream.read_some(&mut bytes[have..]).unwrap() {
            Moved::Bytes(count) => count,
            _ => 0,
        };
        (have == length).then_some(())
    });
    bytes
}

fn key() -> Key {
    Key::derive(&[3; 32], "test")
}

fn offer(key: &Key) -> Offer<'_> {
    Offer { protocol: PROTOCOL, key, greeting: b"rank", answer: b"me" }
}

fn acceptor(limits: Limits) -> (Acceptor, Address) {
    let (listener, address) = listen();
    (Acceptor::new(listener, Options::default(), PROTOCOL, limits), address)
}

fn look(acceptor: &mut Acceptor) -> Vec<Arrival> {
    let admit = |greeting: &[u8]| match greeting {
        b"rank" => Ok(key()),
        b"else" => Err(Unwanted { code: None, why: "not here".into() }),
        _ => Err(Unwanted { code: Some(9), why: "unknown".into() }),
    };
    acceptor.advance(admit, |proved| [&proved.answer[..], b"!"].concat())
}

fn retry(count: u32) -> Retry {
    Retry {
        count,
        sleep: Duration::from_millis(20),
        refused: false,
        when_refused: "nobody listens",
        when_strange: dial::SAME_ID,
    }
}

fn test() -> String {
    "the test".into()
}

#[test]
fn a_connector_and_a_listener_meet_and_tell_each_other_who_they_are() {
    let (mut acceptor, address) = acceptor(LIMITS);
    std::thread::scope(|scope| {
        let dialled = scope
            .spawn(move || dial::connect(&address, &offer(&key()), retry(0), &patient(), &test).unwrap());
        let Arrival::Accepted(accepted) = until(|| look(&mut acceptor).pop()) else { panic!("a stranger") };
        assert_eq!((&accepted.greeting[..], &accepted.answer[..]), (&b"rank"[..], &b"me"[..]));
        let (stream, welcome) = dialled.join().unwrap();
        assert_eq!(welcome, b"me!");
        // What follows at once is not swallowed by the handshake.
        accepted.stream.write_all(b"data", false, &patient(), &test).unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes, &patient(), &test).unwrap();
        assert_eq!(&bytes, b"data");
    });
}

/// Dials until the end, with a listener that looks all the time.
fn outcome(acceptor: &mut Acceptor, address: &Address, offer: &Offer<'_>) -> Result<Vec<u8>, Ended> {
    let mut dial = Dial::begin(&Origin::default(), address, &Options::default(), offer).unwrap();
    until(|| {
        look(acceptor);
        dial.advance().transpose()
    })
}

#[test]
fn a_connector_learns_why_it_is_not_wanted() {
    let (mut acceptor, address) = acceptor(LIMITS);
    let (key, wrong) = (key(), Key::derive(&[4; 32], "test"));
    let refused = outcome(&mut acceptor, &address, &Offer { greeting: b"none", ..offer(&key) });
    assert_eq!(refused, Err(Ended::Handshake(Failure::Refused(9))));
    let dropped = outcome(&mut acceptor, &address, &Offer { greeting: b"else", ..offer(&key) });
    assert!(matches!(dropped, Err(Ended::Closed | Ended::Broken(_))), "{dropped:?}");
    let stranger = outcome(&mut acceptor, &address, &Offer { key: &wrong, ..offer(&key) });
    assert_eq!(stranger, Err(Ended::Handshake(Failure::WrongSecret)));
    assert_eq!(outcome(&mut acceptor, &address, &offer(&key)), Ok(b"me!".to_vec()));
}

#[test]
fn a_connection_that_is_refused_says_what_that_means() {
    let (listener, address) = listen();
    drop(listener);
    let error = dial::connect(&address, &offer(&key()), retry(2), &patient(), &test).unwrap_err();
    assert_eq!(error.kind, ErrorKind::System);
    assert!(error.text.contains("connect to ") && error.text.ends_with("; nobody listens"), "{error}");
    let short = Until::after(Duration::from_millis(30));
    let again = Retry { refused: true, ..retry(1000) };
    let error = dial::connect(&address, &offer(&key()), again, &short, &test).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(error.text.contains("of 1000"), "{error}");
}

#[test]
fn a_listener_of_another_program_is_recognized() {
    let (listener, address) = listen();
    std::thread::scope(|scope| {
        let dialled = scope.spawn(|| dial::connect(&address, &offer(&key()), retry(0), &patient(), &test));
        let far = arrival(&listener);
        far.write_all(&[b'x'; 200], false, &patient(), &test).unwrap();
        let error = dialled.join().unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.text.contains("another program"), "{error}");
    });
}

/// Garbage, half a greeting, silence and one that leaves: none delays a friend who sends one byte at a time.
#[test]
fn strangers_do_not_delay_a_slow_friend() {
    let limits = Limits { pending: 16, ..LIMITS };
    let (mut acceptor, address) = acceptor(limits);
    let say = |bytes: &[u8]| {
        let stream = raw(&address);
        stream.write_all(bytes, false, &patient(), &test).unwrap();
        stream
    };
    drop(say(b""));
    let _strangers = [say(b"GET / HTTP/1.1\r\n"), say(b"HAWStest\x01"), say(b""), say(&[0; 4096])];
    let newer = [&b"HAWStest\x02\x00"[..], &[0; 36]].concat();
    let _other_version = say(&newer);
    let mut reasons = Vec::new();
    let mut friend = crate::handshake::Connector::new(PROTOCOL, &key(), [1; 32], b"rank");
    let stream = raw(&address);
    let mut slowly = |acceptor: &mut Acceptor, bytes: &[u8]| {
        for byte in bytes {
            stream.write_all(&[*byte], false, &patient(), &test).unwrap();
            for arrival in look(acceptor) {
                match arrival {
                    Arrival::Stranger(_, why) => reasons.push(why),
                    Arrival::Foreign(_, protocol) => reasons.push(protocol.into()),
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    slowly(&mut acceptor, friend.greeting());
    let challenge = read_meanwhile(&stream, PROTOCOL.challenge_bytes(), || {
        assert!(look(&mut acceptor).iter().all(|one| matches!(one, Arrival::Stranger(..))));
    });
    let answer = friend.answer(&challenge, b"me").unwrap();
    slowly(&mut acceptor, &answer[..answer.len() - 1]);
    stream.write_all(&answer[answer.len() - 1..], false, &patient(), &test).unwrap();
    until(|| look(&mut acceptor).iter().any(|one| matches!(one, Arrival::Accepted(_))).then_some(()));
    let mut welcome = vec![0; PROTOCOL.welcome_bytes()];
    stream.read_exact(&mut welcome, &patient(), &test).unwrap();
    assert_eq!(friend.welcomed(&welcome), Ok(&b"me!"[..]));
    for reason in ["it left", "does not speak", "an HTTP request", "speaks version 2"] {
        assert!(reasons.iter().any(|why| why.contains(reason)), "{reason}: {reasons:?}");
    }
}

/// Whoever records a connection cannot come in with the recording.
#[test]
fn a_recorded_handshake_opens_nothing() {
    let (mut acceptor, address) = acceptor(LIMITS);
    let mut friend = crate::handshake::Connector::new(PROTOCOL, &key(), [1; 32], b"rank");
    let greeting = friend.greeting().to_vec();
    let mut talk = |answer: Option<Vec<u8>>| {
        let stream = raw(&address);
        stream.write_all(&greeting, false, &patient(), &test).unwrap();
        let challenge = read_meanwhile(&stream, PROTOCOL.challenge_bytes(), || drop(look(&mut acceptor)));
        let answer = answer.unwrap_or_else(|| friend.answer(&challenge, b"me").unwrap());
        stream.write_all(&answer, false, &patient(), &test).unwrap();
        (until(|| look(&mut acceptor).pop()), answer)
    };
    let (first, answer) = talk(None);
    assert!(matches!(first, Arrival::Accepted(_)), "{first:?}");
    let (second, _) = talk(Some(answer));
    assert!(matches!(&second, Arrival::WrongKey(_, greeting) if greeting == b"rank"), "{second:?}");
}

/// A connector that has another key believes nothing of the listener's, and yet the listener learns of it.
#[test]
fn both_ends_learn_of_different_keys() {
    let (mut acceptor, address) = acceptor(LIMITS);
    let other = Key::derive(&[77; 32], "test");
    let origin = Origin::default();
    let mut dial = Dial::begin(&origin, &address, &Options::default(), &offer(&other)).unwrap();
    let mut seen = Vec::new();
    let ended = until(|| {
        seen.extend(look(&mut acceptor));
        dial.advance().err()
    });
    assert_eq!(ended, Ended::Handshake(Failure::WrongSecret));
    let told = until(|| seen.pop().or_else(|| look(&mut acceptor).pop()));
    assert!(matches!(&told, Arrival::WrongKey(_, greeting) if greeting == b"rank"), "{told:?}");
}

#[test]
fn silent_strangers_give_way_and_end_in_time() {
    let (mut full, address) = acceptor(LIMITS);
    let _crowd: Vec<Stream> = (0..LIMITS.pending + 2).map(|_| raw(&address)).collect();
    let mut dropped = 0;
    until(|| {
        dropped += look(&mut full).len();
        (dropped >= 2).then_some(())
    });
    assert!(full.next_deadline().is_some());
    let (mut impatient, address) = acceptor(Limits { patience: Duration::from_millis(20), ..LIMITS });
    let _silent = raw(&address);
    let gone = until(|| look(&mut impatient).pop());
    assert!(matches!(&gone, Arrival::Stranger(_, why) if why.contains("time limit")), "{gone:?}");
}

/// Silent connections never come to a listener; one that speaks comes with its words and then works as
/// any other, and so does one that leaves.
#[test]
fn those_that_say_nothing_never_come() {
    let (listener, address) = listen_to_those_that_speak();
    let crowd: Vec<Stream> = (0..20).map(|_| raw(&address)).collect();
    let friend = raw(&address);
    friend.write_all(b"word", false, &patient(), &test).unwrap();
    let accepted = arrival(&listener);
    let mut word = [0; 4];
    accepted.read_exact(&mut word, &patient(), &test).unwrap();
    assert_eq!(&word, b"word");
    assert!(socket::accept(listener.as_fd()).unwrap().is_none(), "a silent one came");
    // More than the buffers of both ends: it arrives if the acknowledgements that have no data do.
    let data = vec![7; 32 << 20];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; data.len()];
            friend.read_exact(&mut bytes, &patient(), &test).unwrap();
            bytes
        });
        accepted.write_all(&data, false, &patient(), &test).unwrap();
        assert!(reader.join().unwrap() == data);
    });
    drop(crowd);
    let gone = arrival(&listener);
    assert!(matches!(until(|| gone.read_some(&mut word).ok()), Moved::Closed));
}

/// Many silent connections wait before a friend: they make way for it, and for each other.
#[test]
fn a_friend_comes_in_behind_a_crowd() {
    let (mut acceptor, address) = acceptor(LIMITS);
    let _crowd: Vec<Stream> = (0..100).map(|_| raw(&address)).collect();
    assert_eq!(outcome(&mut acceptor, &address, &offer(&key())), Ok(b"me!".to_vec()));
}

/// The order in which connections give way: the silent before those that speak, then the address with the
/// most, then the oldest; nobody within its grace.
#[test]
fn a_crowd_of_one_address_gives_way_before_others() {
    let (listener, address) = listen();
    let mut visitors = Vec::new();
    let mut ends = Vec::new();
    for host in [1, 2, 2, 2, 3] {
        let near = raw(&address);
        let (fd, _) = until(|| socket::accept(listener.as_fd()).unwrap());
        let from = Caller(Some(SocketAddr::from(([10, 0, 0, host], 7))));
        let visitor = Visitor::new(fd, from, PROTOCOL, Place::take(0).unwrap());
        let visitor = if host == 3 || ends.len() == 2 {
            near.write_all(b"HAWS", false, &patient(), &test).unwrap();
            until(|| wait::poll(&mut [PollFd::new(&visitor, PollFlags::IN)], None).ok().filter(|n| *n > 0));
            let Step::Wait(visitor) = visitor.advance(|_| panic!("half a greeting")) else { panic!() };
            visitor
        } else {
            visitor
        };
        visitors.push(visitor);
        ends.push(near);
    }
    let (grace, mut order) = (Duration::from_secs(1000), Vec::new());
    let mut left: Vec<usize> = (0..5).collect();
    let go = |left: &[usize], now| first_to_go(left.iter().map(|at| (*at, &visitors[*at])), now, grace);
    assert_eq!(go(&left, Instant::now()), None, "all are safe");
    while let Some(at) = go(&left, Instant::now() + grace) {
        order.push(at);
        left.retain(|other| *other != at);
    }
    assert_eq!(order, [1, 3, 0, 2, 4]);
}

#[test]
fn a_socket_of_this_host_is_for_this_user() {
    let token = socket::random().unwrap();
    let listener = socket::listen_unix(&token).unwrap();
    let _near = raw(&Address::Unix(token));
    let (fd, from) = until(|| socket::accept(listener.as_fd()).unwrap());
    assert_eq!(check_user(fd.as_fd(), from), Ok(()));
}

/// The network is away when the proof is on its way, for longer than the acceptor waits.
#[test]
fn a_proof_that_comes_too_late_is_given_again() {
    let (mut acceptor, address) = acceptor(Limits { patience: Duration::from_millis(50), ..LIMITS });
    let (network, entrance) = listen();
    let pass = |from: &Stream, to: &Stream, bytes: usize| {
        let mut bytes = vec![0; bytes];
        from.read_exact(&mut bytes, &patient(), &test).unwrap();
        to.write_all(&bytes, false, &patient(), &test).unwrap();
    };
    std::thread::scope(|scope| {
        let connector = scope.spawn(|| {
            dial::connect(&entrance, &offer(&key()), retry(3), &patient(), &test).map(|done| done.1)
        });
        let (near, far) = (arrival(&network), raw(&address));
        pass(&near, &far, PROTOCOL.greeting_bytes());
        let challenge = read_meanwhile(&far, PROTOCOL.challenge_bytes(), || {
            assert!(look(&mut acceptor).is_empty());
        });
        near.write_all(&challenge, false, &patient(), &test).unwrap();
        let gone = until(|| look(&mut acceptor).pop());
        assert!(matches!(gone, Arrival::Stranger(..)), "{gone:?}");
        drop((near, far));
        let (near, far) = (arrival(&network), raw(&address));
        let network = scope.spawn(move || {
            pass(&near, &far, PROTOCOL.greeting_bytes());
            pass(&far, &near, PROTOCOL.challenge_bytes());
            pass(&near, &far, PROTOCOL.answer_bytes());
            pass(&far, &near, PROTOCOL.welcome_bytes());
        });
        let Arrival::Accepted(accepted) = until(|| look(&mut acceptor).pop()) else { panic!("a stranger") };
        assert_eq!(accepted.greeting, b"rank");
        network.join().unwrap();
        assert_eq!(connector.join().unwrap().unwrap(), b"me!");
    });
}

/// A stranger that waited in silence to be accepted has had its grace; a friend that waited as long is heard
/// before anybody wants its place.
#[test]
fn silence_counts_from_when_one_connects() {
    let grace = Duration::from_secs(10);
    let (mut acceptor, address) = acceptor(Limits { pending: 1, grace, ..LIMITS });
    let _stranger = raw(&address);
    let _other = raw(&address);
    let friend = raw(&address);
    friend
        .write_all(
            crate::handshake::Connector::new(PROTOCOL, &key(), [1; 32], b"rank").greeting(),
            false,
            &patient(),
            &test,
        )
        .unwrap();
    std::thread::sleep(2 * grace / 50);
    // Each is taken, and the two give way to who comes behind them, in one look.
    let arrivals = look(&mut acceptor);
    assert_eq!(arrivals.len(), 2, "{arrivals:?}");
    let mut challenge = vec![0; PROTOCOL.challenge_bytes()];
    friend.read_exact(&mut challenge, &patient(), &test).unwrap();
}

/// A listener that was shut down is always ready, and nobody ever comes: whoever asked it again and again
/// would need a processor for that.
#[test]
fn a_listener_that_was_shut_down_is_told_of_once_and_asked_no_more() {
    let unix = socket::listen_unix(&[5; 16]).unwrap();
    for listener in [listen().0, unix] {
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        let mut acceptor = Acceptor::new(listener, Options::default(), PROTOCOL, LIMITS);
        let arrivals = look(&mut acceptor);
        assert!(matches!(&arrivals[..], [Arrival::Trouble(_)]), "{arrivals:?}");
        assert!(look(&mut acceptor).is_empty());
        let mut waits_for = Vec::new();
        acceptor.register(&mut waits_for);
        assert!(waits_for.is_empty() && acceptor.next_deadline().is_none());
    }
}
