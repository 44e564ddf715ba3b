//! Whole meetings: many ranks in threads, over real sockets.

use super::*;
use hawser_base::error::ErrorKind;
use hawser_base::wait::AbortFlag;
use std::io::{Read, Seek, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::thread::{self, Builder};

pub(crate) fn settings() -> Settings {
    Settings {
        ifname: Some("=lo".into()),
        family: Some(hawser_oob::interface::Family::V4),
        ..Settings::default()
    }
}

pub(crate) fn patient() -> Wait {
    Wait::new(AbortFlag::new(), Some(Duration::from_secs(60)))
}

/// Runs `body` once per rank, each in a thread, and returns what they returned, by rank.
pub(crate) fn in_threads<T: Send>(nranks: u32, body: impl Fn(u32) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let spawn =
            |rank| Builder::new().stack_size(256 << 10).spawn_scoped(scope, move || body(rank)).unwrap();
        let threads: Vec<_> = (0..nranks).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A world of `nranks` ranks, each running `body`.
fn world<T: Send>(nranks: u32, body: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let id = UniqueId::create(&settings()).unwrap();
    in_threads(nranks, |rank| body(Bootstrap::join(&[id], rank, nranks, &settings(), &patient()).unwrap()))
}

/// Some bytes whose length depends on the rank.
fn letter(rank: u32, salt: u8) -> Vec<u8> {
    vec![salt.wrapping_add(rank as u8); (rank as usize * 37) % 100]
}

#[test]
fn collectives_give_everybody_everything() {
    for nranks in 1..=16 {
        world(nranks, |boot| {
            assert_eq!((boot.nranks(), boot.label()), (nranks, "world"));
            for round in 0..4 {
                let all = boot.all_gather(&letter(boot.rank(), round), &patient()).unwrap();
                let expected: Vec<_> = (0..nranks).map(|rank| letter(rank, round)).collect();
                assert_eq!(all, expected);
                boot.barrier(&patient()).unwrap();
            }
        });
    }
}

#[test]
fn large_contributions_pass_and_larger_ones_are_refused() {
    world(3, |boot| {
        let mine = vec![boot.rank() as u8; 3 << 20];
        let all = boot.all_gather(&mine, &patient()).unwrap();
        assert!(all.iter().enumerate().all(|(rank, part)| part.len() == 3 << 20 && part[99] == rank as u8));
        let error = boot.all_gather(&vec![0; MAX_CONTRIBUTION + 1], &patient()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        boot.barrier(&patient()).unwrap();
    });
}

#[test]
fn messages_reach_every_rank_in_order_and_by_tag() {
    for nranks in [1, 2, 5, 16] {
        world(nranks, |boot| {
            let me = boot.rank();
            for peer in 0..nranks {
                for (tag, salt) in [(7, 1), (u64::MAX, 2), (7, 3)] {
                    boot.send(peer, tag, &letter(me, salt), &patient()).unwrap();
                }
            }
            for peer in (0..nranks).rev() {
                assert_eq!(boot.recv(peer, u64::MAX, &patient()).unwrap(), letter(peer, 2));
                assert_eq!(boot.recv(peer, 7, &patient()).unwrap(), letter(peer, 1));
                assert_eq!(boot.recv(peer, 7, &patient()).unwrap(), letter(peer, 3));
            }
            assert_eq!(boot.send(nranks, 0, &[], &patient()).unwrap_err().kind, ErrorKind::InvalidArgument);
            boot.barrier(&patient()).unwrap();
        });
    }
}

#[test]
fn a_large_message_both_ways_at_once() {
    world(2, |boot| {
        let (me, peer) = (boot.rank(), 1 - boot.rank());
        boot.send(peer, 1, &vec![me as u8; 20 << 20], &patient()).unwrap();
        assert!(boot.recv(peer, 1, &patient()).unwrap() == vec![peer as u8; 20 << 20]);
        boot.barrier(&patient()).unwrap();
    });
}

#[test]
fn a_receiver_learns_that_the_sender_left() {
    world(2, |boot| {
        if boot.rank() == 0 {
            boot.send(1, 1, b"last", &patient()).unwrap();
        } else {
            assert_eq!(boot.recv(0, 1, &patient()).unwrap(), b"last");
            let error = boot.recv(0, 1, &patient()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Remote);
            assert!(error.text.contains("rank 1 waits for a message from rank 0"), "{error}");
        }
    });
}

/// As where a child of a dead process holds its connections open.
#[test]
fn a_dead_rank_has_left_though_its_connections_are_open() {
    let together = std::sync::Barrier::new(2);
    world(2, |boot| {
        let other = 1 - boot.rank();
        boot.send(other, 1, b"hello", &patient()).unwrap();
        boot.recv(other, 1, &patient()).unwrap();
        together.wait();
        assert!(!boot.has_left(other));
        if boot.rank() == 0 {
            boot.roster().note(1, &hawser_base::liveness::End::Died("killed".into()), Duration::ZERO);
            assert!(boot.has_left(1));
        }
        together.wait();
    });
}

#[test]
fn splits_of_splits_with_reversed_order_and_no_color() {
    for nranks in [1, 2, 6, 16] {
        world(nranks, |boot| {
            let me = boot.rank();
            // Even ranks, reversed; odd ranks; the last rank of all stays out when there are more than two.
            let outside = nranks > 2 && me == nranks - 1;
            let mut members: Vec<u32> = (0..nranks).filter(|rank| rank % 2 == me % 2).collect();
            members.retain(|rank| nranks <= 2 || *rank != nranks - 1);
            if me % 2 == 0 {
                members.reverse();
            }
            let child = boot.split(if outside { &[] } else { &members }, &patient()).unwrap();
            let Some(child) = child else { return assert!(outside) };
            assert_eq!(members[child.rank() as usize], me);
            let all = child.all_gather(&me.to_le_bytes(), &patient()).unwrap();
            let expected: Vec<_> = members.iter().map(|rank| rank.to_le_bytes().to_vec()).collect();
            assert_eq!(all, expected);
            let same: Vec<u32> = (0..child.nranks()).collect();
            let grandchild = child.split(&same, &patient()).unwrap().unwrap();
            drop((boot, child));
            grandchild.send(0, 1, &[grandchild.rank() as u8], &patient()).unwrap();
            grandchild.barrier(&patient()).unwrap();
            if grandchild.rank() == 0 {
                same.iter().for_each(|rank| {
                    assert_eq!(grandchild.recv(*rank, 1, &patient()).unwrap(), [*rank as u8])
                });
            }
        });
    }
}

#[test]
fn wrong_splits_are_errors_on_all_members_and_leave_the_parent_usable() {
    world(3, |boot| {
        let members: &[u32] = [&[0u32, 1, 2][..], &[0, 2, 1], &[0, 1, 2]][boot.rank() as usize];
        let error = boot.split(members, &patient()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidUsage, "{error}");
        let members: &[u32] = [&[0u32, 1][..], &[0, 0], &[]][boot.rank() as usize];
        match (boot.rank(), boot.split(members, &patient())) {
            (0, Err(error)) => assert!(error.text.contains("rank 1 failed"), "{error}"),
            (1, Err(error)) => assert!(error.text.contains("rank 0 is listed twice"), "{error}"),
            (2, Ok(None)) => {}
            (rank, other) => panic!("rank {rank}: {other:?}"),
        }
        boot.barrier(&patient()).unwrap();
    });
}

/// The errors of all ranks when each joins with its own arguments (ids, rank, nranks).
fn failing_join(nranks: u32, arguments: impl Fn(u32) -> (Vec<UniqueId>, u32, u32) + Sync) -> Vec<Error> {
    in_threads(nranks, |thread| {
        let (ids, rank, nranks) = arguments(thread);
        Bootstrap::join(&ids, rank, nranks, &settings(), &patient()).unwrap_err()
    })
}

#[test]
fn different_rank_counts_are_named_to_all() {
    let id = UniqueId::create(&settings()).unwrap();
    let errors = failing_join(3, |rank| (vec![id], rank, if rank == 2 { 4 } else { 3 }));
    for error in &errors {
        let numbers = error.text.contains("says nranks = ")
            && ["says 4", "says 3"].iter().any(|n| error.text.contains(n));
        assert!(error.kind == ErrorKind::InvalidUsage && numbers, "{errors:?}");
    }
}

#[test]
fn two_claims_of_one_rank_are_refused() {
    let id = UniqueId::create(&settings()).unwrap();
    let errors = failing_join(2, |_| (vec![id], 1, 3));
    let twice = errors.iter().filter(|error| error.text.contains("both say they are rank 1 of 3")).count();
    assert_eq!(twice, 2, "{errors:?}");
}

#[test]
fn a_foreign_secret_is_refused_and_the_others_meet() {
    let id = UniqueId::create(&settings()).unwrap();
    let mut foreign = id;
    foreign.secret[0] ^= 1;
    let error = Bootstrap::join(&[foreign], 1, 2, &settings(), &patient()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidUsage);
    assert!(error.text.contains("wrong secret"), "{error}");
    in_threads(2, |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap());
}

#[test]
fn a_rank_that_never_comes_is_named_by_all() {
    let id = UniqueId::create(&settings()).unwrap();
    let errors = in_threads(3, |rank| {
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_millis(700)));
        Bootstrap::join(&[id], [0, 1, 3][rank as usize], 4, &settings(), &wait).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error.kind, ErrorKind::Timeout | ErrorKind::Remote), "{error:?}");
        assert!(error.text.contains("rank 2 ") && !error.text.contains("ranks"), "{error}");
    }
}

#[test]
fn the_root_names_missing_ranks_when_its_own_patience_ends() {
    let id = UniqueId::create(&Settings { init_timeout: Duration::from_millis(200), ..settings() }).unwrap();
    let error = Bootstrap::join(&[id], 1, 3, &settings(), &patient()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(error.text.contains("ranks 0, 2 did not join"), "{error}");
}

#[test]
fn a_rank_missing_in_a_collective_is_named_by_all() {
    world(4, |boot| {
        if boot.rank() == 2 {
            let error = boot.recv(0, 1, &patient()).unwrap_err();
            return assert_eq!(error.kind, ErrorKind::Remote);
        }
        if boot.rank() == 0 {
            boot.send(2, 0, b"connected", &patient()).unwrap();
        }
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_millis(600)));
        let error = boot.all_gather(&[1], &wait).unwrap_err();
        assert!(error.text.contains("all_gather 'world'"), "{error}");
        assert!(error.text.contains("rank 2"), "{error}");
        assert!(boot.barrier(&patient()).unwrap_err().text.contains("impossible after"));
    });
}

#[test]
fn an_abort_from_another_thread_ends_every_wait() {
    let flag = AbortFlag::new();
    let abortable = Wait::new(flag.clone(), None);
    let id = UniqueId::create(&settings()).unwrap();
    let errors = thread::scope(|scope| {
        let joining = scope.spawn(|| Bootstrap::join(&[id], 0, 2, &settings(), &abortable).unwrap_err());
        let receiving = scope.spawn(|| {
            let errors = world(2, |boot| match boot.rank() {
                0 => boot.recv(1, 5, &abortable).unwrap_err(),
                _ => boot.recv_fd(0, 5, &abortable).unwrap_err(),
            });
            assert!(errors.iter().all(|error| error.kind == ErrorKind::Aborted), "{errors:?}");
        });
        let gathering = scope.spawn(|| {
            // The bootstraps outlive the waits: else one rank's end could be seen before the abort.
            let ends = world(3, |boot| {
                let end = if boot.rank() == 2 {
                    boot.recv(0, 1, &abortable).map(drop)
                } else {
                    boot.barrier(&abortable)
                };
                (end.unwrap_err(), boot)
            });
            for (error, _) in &ends {
                let told = error.text.contains("rank 0 reports: aborted while rank 0 waits for rank 2");
                assert!(error.kind == ErrorKind::Aborted || told, "{error}");
            }
        });
        thread::sleep(Duration::from_millis(100));
        flag.raise();
        receiving.join().unwrap();
        gathering.join().unwrap();
        joining.join().unwrap()
    });
    assert_eq!(errors.kind, ErrorKind::Aborted);
    assert!(errors.text.contains("rank 0 waits"), "{errors}");
}

#[test]
fn every_tag_has_a_server_of_its_own() {
    let id = UniqueId::create(&settings()).unwrap();
    in_threads(2, |rank| {
        let boot = Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        for tag in [7, 8, 8] {
            let heard = heard.clone();
            boot.serve(tag, move |from, bytes| heard.lock().unwrap().push((tag, from, bytes.to_vec())));
        }
        boot.barrier(&patient()).unwrap();
        let peer = 1 - rank;
        (7..10).for_each(|tag| boot.send(peer, tag, b"rope", &patient()).unwrap());
        assert_eq!(boot.recv(peer, 9, &patient()).unwrap(), b"rope", "nobody serves this one");
        let all = [7, 8].map(|tag| (tag, peer, b"rope".to_vec()));
        assert_eq!(*heard.lock().unwrap(), all, "in order, and the first of a tag alone");
        boot.barrier(&patient()).unwrap();
    });
}

#[test]
fn an_id_serves_one_communicator() {
    let id = UniqueId::create(&settings()).unwrap();
    in_threads(2, |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap());
    let error = Bootstrap::join(&[id], 0, 2, &settings(), &patient()).unwrap_err();
    assert!(error.text.contains("the id was used already"), "{error}");
    assert_eq!(error.kind, ErrorKind::System);
}

#[test]
fn a_stopped_root_tells_who_waits() {
    let id = UniqueId::create(&settings()).unwrap();
    thread::scope(|scope| {
        let rank = scope.spawn(|| Bootstrap::join(&[id], 0, 2, &settings(), &patient()).unwrap_err());
        thread::sleep(Duration::from_millis(50));
        assert!(stop_root(&id));
        assert!(!stop_root(&id));
        let error = rank.join().unwrap();
        assert!(error.text.contains("was stopped") || error.text.contains("is gone"), "{error}");
    });
}

#[test]
fn several_ids_meet_at_the_first_and_release_the_others() {
    let ids: Vec<UniqueId> = (0..3).map(|_| UniqueId::create(&settings()).unwrap()).collect();
    in_threads(4, |rank| {
        let boot = Bootstrap::join(&ids, rank, 4, &settings(), &patient()).unwrap();
        boot.barrier(&patient()).unwrap();
    });
    let gone = || ids.iter().all(|id| TcpStream::connect(id.address()).is_err()).then_some(());
    patient().until(gone, || "roots are still there").unwrap();
}

#[test]
fn ids_that_differ_in_order_or_number_are_errors() {
    let make = |count: u32| (0..count).map(|_| UniqueId::create(&settings()).unwrap()).collect::<Vec<_>>();
    let ids = make(2);
    let errors =
        failing_join(2, |rank| (if rank == 0 { ids.clone() } else { vec![ids[1], ids[0]] }, rank, 2));
    assert!(errors.iter().all(|error| error.kind != ErrorKind::Timeout), "{errors:?}");
    let ids = make(2);
    let errors = failing_join(2, |rank| (ids[..=rank as usize].to_vec(), rank, 2));
    assert!(errors.iter().any(|error| error.text.contains("unique ids")), "{errors:?}");
    assert!(errors.iter().all(|error| error.kind != ErrorKind::Timeout), "{errors:?}");
    let error = Bootstrap::join(&[ids[0], ids[0]], 0, 2, &settings(), &patient()).unwrap_err();
    assert!(error.text.contains("given twice"), "{error}");
}

#[test]
fn wrong_arguments_are_refused_at_once() {
    let id = UniqueId::create(&settings()).unwrap();
    for (ids, rank, nranks) in [(vec![id], 2, 2), (vec![id], 0, 0), (vec![], 0, 1), (vec![id], 0, u32::MAX)] {
        let error = Bootstrap::join(&ids, rank, nranks, &settings(), &patient()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
    }
    assert!(stop_root(&id));
}

#[test]
fn a_fixed_address_serves_one_communicator_after_the_other() {
    // A loopback address of its own: other tests could otherwise take the port while it is free.
    let [.., high, low] = std::process::id().to_be_bytes();
    let free = socket::listen(([127, 77, high, low], 0).into(), &socket::Options::default()).unwrap().1;
    let settings =
        Settings { comm_id: Some(free.to_string()), retry_sleep: Duration::from_millis(5), ..settings() };
    in_threads(4, |rank| {
        for _ in 0..3 {
            let id = UniqueId::create(&settings).unwrap();
            let boot = Bootstrap::join(&[id], rank, 4, &settings, &patient()).unwrap();
            assert_eq!(boot.all_gather(&[], &patient()).unwrap().len(), 4);
        }
    });
}

#[test]
fn a_fixed_address_with_a_key_is_for_ranks_that_have_it() {
    let [.., high, low] = std::process::id().to_be_bytes();
    let free = socket::listen(([127, 78, high, low], 0).into(), &socket::Options::default()).unwrap().1;
    let file = |name: &str| std::env::temp_dir().join(format!("hawser-key-{name}-{}", std::process::id()));
    let with = |key_file: Option<PathBuf>| Settings {
        comm_id: Some(free.to_string()),
        comm_id_key_file: key_file,
        retry_count: 1000,
        retry_sleep: Duration::from_millis(1),
        ..settings()
    };
    let join = |rank: u32, settings: &Settings| {
        let id = UniqueId::create(settings).unwrap();
        Bootstrap::join(&[id], rank, 2, settings, &patient())
    };
    let (right, wrong) = (file("right"), file("wrong"));
    std::fs::write(&right, "the key of this job\n").unwrap();
    std::fs::write(&wrong, "the key of another job\n").unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0, &with(Some(right.clone()))).map(drop));
        for key_file in [Some(wrong.clone()), None] {
            let error = join(1, &with(key_file)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidUsage);
            let text = error.into_text();
            assert!(text.contains("wrong secret") && text.contains("HAWSER_COMM_ID_KEY_FILE"), "{text}");
        }
        join(1, &with(Some(right.clone()))).unwrap();
        first.join().unwrap().unwrap();
    });
    for file in [right, wrong] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn descriptors_travel_between_ranks() {
    world(4, |boot| {
        let me = boot.rank();
        for peer in 0..4 {
            for number in 0..3u8 {
                let mut memory = memory_file();
                memory.write_all(&[me as u8, peer as u8, number]).unwrap();
                boot.send_fd(peer, 9, memory.as_fd(), &patient()).unwrap();
            }
        }
        for peer in 0..4 {
            for number in 0..3u8 {
                let mut text = Vec::new();
                let mut file = std::fs::File::from(boot.recv_fd(peer, 9, &patient()).unwrap());
                file.rewind().unwrap();
                file.read_to_end(&mut text).unwrap();
                assert_eq!(text, [peer as u8, me as u8, number]);
                let flags = rustix::io::fcntl_getfd(&file).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            }
        }
        boot.barrier(&patient()).unwrap();
    });
}

fn memory_file() -> std::fs::File {
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"hawser-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just made and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }.into()
}

static REMARKS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Garbage, one byte, half a handshake, and one that leaves at once.
fn strangers(at: std::net::SocketAddr) -> Vec<TcpStream> {
    let stranger = |text: &[u8]| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(text).unwrap();
        stream
    };
    drop(stranger(b""));
    vec![
        stranger(b"GET / HTTP/1.1\r\n\r\n"),
        stranger(b"H"),
        stranger(b"HAWSboot\x01\x01"),
        stranger(&[0; 4096]),
    ]
}

#[test]
fn strangers_neither_stop_nor_delay_the_ranks() {
    // With this time limit only a concurrent handshake lets the ranks meet within their deadline.
    let settings = Settings { handshake_timeout: Duration::from_secs(3600), ..settings() };
    let id = UniqueId::create(&settings).unwrap();
    let _at_the_root = strangers(id.address());
    in_threads(4, |rank| {
        let boot = Bootstrap::join(&[id], rank, 4, &settings, &patient()).unwrap();
        let _at_the_rank = strangers(boot.peers[rank as usize].tcp);
        boot.barrier(&patient()).unwrap();
        let next = (rank + 1) % 4;
        boot.send(next, 1, b"hello", &patient()).unwrap();
        assert_eq!(boot.recv((rank + 3) % 4, 1, &patient()).unwrap(), b"hello");
        boot.barrier(&patient()).unwrap();
    });
}

#[test]
fn strangers_are_logged_and_dropped_in_time() {
    set_log(|_, text| lock(&REMARKS).push(text.to_string()));
    let id =
        UniqueId::create(&Settings { handshake_timeout: Duration::from_millis(100), ..settings() }).unwrap();
    for mut stranger in strangers(id.address()) {
        let from = stranger.local_addr().unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A reset or the end of the stream, but no answer and no timeout.
        match stranger.read(&mut [0; 64]) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        let logged = || lock(&REMARKS).iter().any(|text| text.contains(&format!("at {from}:"))).then_some(());
        patient().until(logged, || format!("no remark about {from}")).unwrap();
    }
    in_threads(2, |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap());
}

#[test]
fn more_silent_strangers_than_slots_do_not_keep_ranks_out() {
    let id =
        UniqueId::create(&Settings { handshake_timeout: Duration::from_secs(3600), ..settings() }).unwrap();
    let _crowd: Vec<_> = (0..140).map(|_| TcpStream::connect(id.address()).unwrap()).collect();
    in_threads(2, |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap());
}

#[test]
fn a_large_world_in_threads() {
    raise_file_limit();
    world(256, |boot| {
        let all = boot.all_gather(&boot.rank().to_le_bytes(), &patient()).unwrap();
        assert!(all.iter().enumerate().all(|(rank, part)| *part == (rank as u32).to_le_bytes()));
    });
}

fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only touch the live local.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

const CHILD: &str = "HAWSER_TEST_LEAK_CHILD";

/// Runs itself again in a process of its own: other tests of this process open descriptors and threads too.
#[test]
fn two_hundred_rounds_leave_no_thread_and_no_descriptor() {
    if std::env::var_os(CHILD).is_some() {
        return count_leaks();
    }
    let name = "bootstrap::tests::two_hundred_rounds_leave_no_thread_and_no_descriptor";
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}

fn count_leaks() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let counts = || (count("fd"), count("task"));
    // Of a sanitizer too.
    let alone = count("task");
    world(2, drop);
    stop_all_roots();
    // A thread may still be leaving the process when its result is there; its descriptors are closed before.
    patient()
        .until(|| (count("task") == alone).then_some(()), || "threads of the first round remain")
        .unwrap();
    let before = counts();
    for round in 0..200 {
        let ids: Vec<UniqueId> = (0..1 + round % 2).map(|_| UniqueId::create(&settings()).unwrap()).collect();
        in_threads(2, |rank| {
            let boot = Bootstrap::join(&ids, rank, 2, &settings(), &patient()).unwrap();
            boot.send(1 - rank, 1, b"x", &patient()).unwrap();
            let (reader, _writer) = std::io::pipe().unwrap();
            boot.send_fd(1 - rank, 1, reader.as_fd(), &patient()).unwrap();
            let child = boot.split(&[0, 1], &patient()).unwrap().unwrap();
            child.barrier(&patient()).unwrap();
            if round % 3 == 0 {
                boot.recv(1 - rank, 1, &patient()).unwrap();
                boot.recv_fd(1 - rank, 1, &patient()).unwrap();
            }
        });
        let unused = UniqueId::create(&settings()).unwrap();
        drop(Bootstrap::join(&[unused], 0, 1, &settings(), &patient()).unwrap());
    }
    let settled = || (counts() == before).then_some(());
    patient()
        .until(settled, || format!("{before:?} descriptors and threads before, now {:?}", counts()))
        .unwrap();
}
