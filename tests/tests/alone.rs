//! Communicators of one rank: what others move is at most a copy there, at once and also inside a group.

use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_runtime::{Comm, ErrorKind, Stream, group};
use hawser_tests::deadline::Deadline;
use hawser_tests::mail::{Mail, Parcel};
use hawser_tests::oracle::Case;
use hawser_tests::world::{in_threads, issue, on_host, plain, run};

fn alone(work: impl Fn(&Comm) + Sync) {
    if on_host() {
        let _deadline = Deadline::start();
        in_threads(1, work);
    }
}

#[test]
fn every_collective_with_every_reduction() {
    alone(|comm| {
        for collective in Collective::ALL {
            for in_place in [false, true] {
                for count in [0, 1, 77, 100_001] {
                    run(comm, plain(collective, 1, count), in_place, count % 3).unwrap();
                }
                let reductions = if collective.reduces() { &ReduceOp::ALL[..] } else { &[] };
                for &op in reductions {
                    for dtype in [DataType::Float32, DataType::Int32, DataType::Bfloat16] {
                        run(comm, Case { op, dtype, ..plain(collective, 1, 1_001) }, in_place, 0).unwrap();
                    }
                }
            }
        }
        assert!(comm.last_decision().unwrap().is_some(), "what ran last is known");
    });
}

/// A call is over before the group is, as with NCCL; the next one may use what it wrote.
#[test]
fn a_group_does_not_keep_calls_back() {
    alone(|comm| {
        group::start().unwrap();
        let first = issue(comm, plain(Collective::AllReduce, 1, 500), false, 0).unwrap();
        assert_eq!(first.fault(), None);
        let error = comm.send(1, 8, 7, Stream(0)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let second = issue(comm, plain(Collective::Broadcast, 1, 500), true, 0).unwrap();
        assert_eq!(second.fault(), None);
        assert_eq!(group::end().unwrap_err().kind, ErrorKind::InvalidArgument);
    });
}

#[test]
fn messages_to_oneself() {
    alone(|comm| {
        let parcel = |bytes| Parcel { from: 0, to: 0, bytes };
        for _ in 0..3 {
            group::start().unwrap();
            let mail = Mail::post(comm, &[parcel(1_000_000), parcel(0), parcel(3)]).unwrap();
            group::end().unwrap();
            assert_eq!(mail.fault(), None);
        }
        let same = [7u8; 100];
        group::start().unwrap();
        comm.send(same.as_ptr() as u64, 100, 0, Stream(0)).unwrap();
        comm.recv(same.as_ptr() as u64, 100, 0, Stream(0)).unwrap();
        group::end().unwrap();
        assert_eq!(same, [7; 100]);
        comm.send(same.as_ptr() as u64, 100, 0, Stream(0)).unwrap_err();
    });
}
