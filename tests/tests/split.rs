//! Children of communicators: who belongs to which, in which order, and that they work beside their parents,
//! from one thread per rank and from one thread for all ranks.

use hawser_plan::Collective;
use hawser_runtime::{Comm, ErrorKind, Stream, group, unique_id};
use hawser_tests::deadline::Deadline;
use hawser_tests::world::{
    all_reduce, in_threads, issue, non_blocking, on_host, plain, settled, wait_until_ready,
};

/// Colors of six ranks: two children and one rank in none.
const COLORS: [i32; 6] = [7, 0, 7, -1, 0, 7];

/// The new number of rank `rank`, and the new size, when keys turn the order around.
fn place(rank: u32) -> Option<(u32, u32)> {
    match rank {
        0 => Some((2, 3)),
        2 => Some((1, 3)),
        5 => Some((0, 3)),
        1 => Some((1, 2)),
        4 => Some((0, 2)),
        _ => None,
    }
}

#[test]
fn colors_and_keys_decide() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(6, |comm| {
        let rank = comm.rank();
        let child = comm.split(COLORS[rank as usize], -(rank as i32), None).unwrap();
        assert_eq!(child.as_ref().map(|c| (c.rank(), c.ranks())), place(rank));
        for _ in 0..3 {
            all_reduce(comm, 3_001).unwrap();
            if let Some(child) = &child {
                all_reduce(child, 2_003).unwrap();
            }
        }
        if let Some(child) = child {
            child.destroy().unwrap();
        }
    });
}

#[test]
fn equal_keys_keep_the_order() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(4, |comm| {
        let child = comm.split(0, 5, None).unwrap().unwrap();
        assert_eq!((child.rank(), child.ranks()), (comm.rank(), 4));
        all_reduce(&child, 100).unwrap();
    });
}

/// Down to communicators of one rank; each works while its ancestors do, and after they are gone.
#[test]
fn splits_of_splits() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(8, |world| {
        let half = world.split(world.rank() as i32 / 4, 0, None).unwrap().unwrap();
        let pair = half.split(half.rank() as i32 % 2, 0, None).unwrap().unwrap();
        let own = pair.split(pair.rank() as i32, 0, None).unwrap().unwrap();
        assert_eq!([half.ranks(), pair.ranks(), own.ranks()], [4, 2, 1]);
        for comm in [&own, world, &pair, &half] {
            all_reduce(comm, 1_009).unwrap();
        }
        half.destroy().unwrap();
        for comm in [&pair, &own] {
            all_reduce(comm, 1_009).unwrap();
        }
    });
}

/// One thread drives all ranks: the splits of a group run side by side, children work with their parents in
/// one group.
#[test]
fn one_thread_splits_in_a_group() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let parents = Comm::init_all(&[0, 1, 2, 3, 4, 5]).unwrap();
    group::start().unwrap();
    let split = |(rank, comm): (usize, &Comm)| comm.split(COLORS[rank], -(rank as i32), None).unwrap();
    let children: Vec<Option<Comm>> = parents.iter().enumerate().map(split).collect();
    let early = |child: &Comm| child.send(8, 8, 0, Stream(0)).is_err();
    assert!(children.iter().flatten().all(early), "not before the group's end");
    assert!(group::end().is_err(), "the calls on unfinished children count");
    // Nothing was carried out: such children are of no use but to be destroyed.
    for child in children.into_iter().flatten() {
        assert_eq!(child.async_error().map(|e| e.kind), Some(ErrorKind::InvalidUsage));
        child.destroy().unwrap();
    }

    group::start().unwrap();
    let children: Vec<Option<Comm>> = parents.iter().enumerate().map(split).collect();
    group::end().unwrap();
    for (rank, child) in (0..).zip(&children) {
        assert_eq!(child.as_ref().map(|c| (c.rank(), c.ranks())), place(rank));
    }
    group::start().unwrap();
    let mut all = Vec::new();
    for comm in parents.iter().chain(children.iter().flatten()).chain(&parents) {
        all.push(issue(comm, plain(Collective::AllReduce, comm.ranks(), 4_001), false, 0).unwrap());
    }
    group::end().unwrap();
    assert_eq!(all.iter().find_map(|one| one.fault()), None);
}

/// Several splits of the same parents in one group are carried out in the order of the calls on every rank.
#[test]
fn two_splits_in_one_group() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let parents = Comm::init_all(&[0, 1, 2, 3]).unwrap();
    group::start().unwrap();
    let mut pairs = Vec::new();
    let mut neighbours = Vec::new();
    for (rank, parent) in (0..4).zip(&parents) {
        pairs.push(parent.split(rank / 2, 0, None).unwrap().unwrap());
        neighbours.push(parent.split(if rank == 0 { -1 } else { 3 }, rank, None).unwrap());
    }
    group::end().unwrap();
    assert!(neighbours[0].is_none());
    let neighbours: Vec<Comm> = neighbours.into_iter().flatten().collect();
    assert!(pairs.iter().all(|c| c.ranks() == 2) && neighbours.iter().all(|c| c.ranks() == 3));
    group::start().unwrap();
    let case = |comm: &Comm| plain(Collective::AllReduce, comm.ranks(), 999);
    let issued: Vec<_> =
        neighbours.iter().chain(&pairs).map(|c| issue(c, case(c), true, 0).unwrap()).collect();
    group::end().unwrap();
    assert_eq!(issued.iter().find_map(|one| one.fault()), None);
}

#[test]
fn non_blocking_splits() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let parents = [0, 1, 2].map(|rank| Comm::init(&[id], 3, rank, rank, non_blocking()).unwrap());
    parents.iter().for_each(wait_until_ready);
    // One thread for all: no call waits for another rank.
    let children = [4, -1, 4].into_iter().zip(&parents);
    let children: Vec<_> = children.map(|(color, parent)| parent.split(color, 0, None).unwrap()).collect();
    let use_child = |(parent, child): (&Comm, Option<Comm>)| {
        // The parent says when its part is over, also where it yields no child.
        wait_until_ready(parent);
        let Some(child) = child else { return };
        assert_eq!(child.async_error(), None, "the parent is ready, so the child is");
        assert_eq!((child.rank(), child.ranks()), (parent.rank() / 2, 2));
        let issued = issue(&child, plain(Collective::AllReduce, 2, 10_007), false, 0).unwrap();
        wait_until_ready(&child);
        assert_eq!(issued.fault(), None);
        child.finalize().unwrap();
        wait_until_ready(&child);
        child.destroy().unwrap();
    };
    std::thread::scope(|scope| {
        parents.iter().zip(children).for_each(|pair| drop(scope.spawn(move || use_child(pair))));
    });
}

/// The way in which a split waits is the parent's choice, whatever the child's options say.
#[test]
fn a_split_of_a_blocking_parent_waits() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |parent| {
        let child = parent.split(0, 0, Some(non_blocking())).unwrap().unwrap();
        assert_eq!((child.async_error(), child.ranks()), (None, 2));
        assert!(!child.is_blocking());
        let issued = issue(&child, plain(Collective::AllReduce, 2, 10_007), false, 0).unwrap();
        wait_until_ready(&child);
        assert_eq!(issued.fault(), None);
        child.destroy().unwrap();
    });
}

#[test]
fn bad_splits_are_refused() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    in_threads(2, |parent| {
        let error = parent.split(-2, 0, None).err().unwrap();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(
            error.text.contains(&format!("rank {}", parent.rank())) && error.text.contains("-2"),
            "{error}"
        );
        let child = parent.split(0, 0, None).unwrap().unwrap();
        child.destroy().unwrap();
        assert_eq!(child.split(0, 0, None).err().unwrap().kind, ErrorKind::InvalidArgument);
        all_reduce(parent, 17).unwrap();
    });
}

/// A rank that never comes to a split: an abort of the parent releases those who wait, and the child has
/// failed.
#[test]
fn an_abort_of_the_parent_ends_a_split() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let id = unique_id().unwrap();
    let parents = [0, 1].map(|rank| Comm::init(&[id], 2, rank, rank, non_blocking()).unwrap());
    parents.iter().for_each(wait_until_ready);
    let child = parents[1].split(0, 0, None).unwrap().unwrap();
    assert_eq!(
        parents[1].split(0, 0, None).err().map(|e| e.kind),
        Some(ErrorKind::InvalidUsage),
        "one at a time"
    );
    parents[1].abort().unwrap();
    assert_eq!(settled(&child).map(|e| e.kind), Some(ErrorKind::Aborted));
    assert_eq!(child.ranks(), 0);
    child.destroy().unwrap();
    parents[0].abort().unwrap();
}
