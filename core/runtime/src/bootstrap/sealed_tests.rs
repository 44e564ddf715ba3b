//! Meetings of ranks whose connections are sealed, and of ranks that differ in it.

use super::tests::{in_threads, patient, settings};
use super::*;
use hawser_base::error::ErrorKind;
use std::thread;

fn sealed() -> Settings {
    Settings { wire: Wire::Encrypt, ..settings() }
}

/// The outcome of a meeting for each rank, where rank `rank` has the settings `of(rank)` and the id was made
/// with `root`.
fn meet(nranks: u32, root: &Settings, of: impl Fn(u32) -> Settings + Sync) -> Vec<Result<Bootstrap>> {
    let id = UniqueId::create(root).unwrap();
    let outcomes = in_threads(nranks, |rank| Bootstrap::join(&[id], rank, nranks, &of(rank), &patient()));
    // One that failed still tells those who come late.
    stop_root(&id);
    outcomes
}

#[test]
fn sealed_ranks_do_all_that_others_do() {
    for nranks in [1, 2, 5, 16] {
        let id = UniqueId::create(&sealed()).unwrap();
        in_threads(nranks, |rank| {
            let boot = Bootstrap::join(&[id], rank, nranks, &sealed(), &patient()).unwrap();
            assert_eq!(boot.wire(), Wire::Encrypt);
            for bytes in [0, 1, 1000, 70_000, 3 << 20] {
                let all = boot.all_gather(&vec![rank as u8; bytes], &patient()).unwrap();
                assert!(all.iter().enumerate().all(|(of, part)| *part == vec![of as u8; bytes]));
            }
            let next = (rank + 1) % nranks;
            for bytes in [0, 9, 20 << 20] {
                boot.send(next, 7, &vec![rank as u8; bytes], &patient()).unwrap();
                let before = (rank + nranks - 1) % nranks;
                assert!(boot.recv(before, 7, &patient()).unwrap() == vec![before as u8; bytes]);
            }
            let pair: Vec<u32> =
                [rank / 2 * 2, rank / 2 * 2 + 1].into_iter().filter(|r| *r < nranks).collect();
            let child = boot.split(&pair, &patient()).unwrap().unwrap();
            child.barrier(&patient()).unwrap();
            assert_eq!(child.wire(), Wire::Encrypt);
            boot.barrier(&patient()).unwrap();
        });
    }
}

#[test]
fn ranks_that_differ_are_named_to_all() {
    for (root, other) in [(settings(), sealed()), (sealed(), settings())] {
        let own = root.wire;
        // Whoever comes first.
        let late = |rank| thread::sleep(Duration::from_millis(if rank == 2 { 0 } else { 50 }));
        let outcomes = meet(3, &root, |rank| {
            late(rank);
            if rank == 2 { other.clone() } else { root.clone() }
        });
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            let text = format!(
                "rank 2 has HAWSER_WIRE={}, the process that made the unique id has {own}",
                other.wire
            );
            assert_eq!(error.kind, ErrorKind::InvalidUsage, "{error}");
            assert!(error.text.contains(&text) && error.text.contains("ncclSetEncryption"), "{error}");
        }
    }
}

#[test]
fn a_pre_shared_key_is_needed_beside_the_id() {
    let with = |key: u8| Settings { pre_shared: Some([key; 32]), ..sealed() };
    let outcomes = meet(3, &with(1), |_| with(1));
    assert!(outcomes.iter().all(Result::is_ok));
    drop(outcomes);
    // Another key, and none.
    let short = Settings { init_timeout: Duration::from_millis(500), ..with(1) };
    for stranger in [with(2), sealed()] {
        let own = stranger.clone();
        let outcomes = meet(2, &short, |rank| if rank == 1 { own.clone() } else { short.clone() });
        let error = outcomes.into_iter().nth(1).unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidUsage, "{error}");
        assert!(error.text.contains("wrong secret"), "{error}");
    }
}

#[test]
fn an_address_that_is_no_secret_is_refused() {
    let with = Settings { comm_id: Some("127.0.0.1:9".into()), ..sealed() };
    let error = UniqueId::create(&with).unwrap_err();
    assert!(error.text.contains("HAWSER_COMM_ID_KEY_FILE"), "{error}");
    assert!(UniqueId::create(&Settings { pre_shared: Some([1; 32]), ..with }).is_ok());
}
