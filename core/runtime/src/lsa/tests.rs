//! Windows and communicators for kernels on the stand-in for CUDA's driver, whose device memory is memory of
//! the host: these tests find addresses as NVIDIA's device code does, and use them.

mod allocations;
mod graph;
mod multicast;
mod registered;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

use hawser_base::error::ErrorKind;
use hawser_device::cuda::fake::{fake, in_two_processes, with_fake_kernels};

use super::layout::{Family, TableEntry, WindowImage};
use super::resources::{DevComm, Resource, Wanted};
use super::*;
use crate::bootstrap::UniqueId;
use crate::comm::{Comm, Config, group, mem_alloc, mem_free, unique_id};

const ENV: [(&str, &str); 3] =
    [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
const RANKS: usize = 3;

fn comms() -> Vec<Comm> {
    Comm::init_all(&[0, 1, 0][..RANKS]).unwrap()
}

/// Reads what lies at an address of the stand-in.
fn at<T: Copy>(addr: u64) -> T {
    // SAFETY: device memory of the stand-in is memory of this process; the tests pass places that hold a T.
    unsafe { (addr as *const T).read() }
}

/// A word that all ranks share.
fn word(addr: u64) -> &'static AtomicU32 {
    // SAFETY: as in `at`; the tests let go of it before the memory goes.
    unsafe { &*(addr as *const AtomicU32) }
}

/// The address at which device code finds an offset of the window of a rank of the team.
fn lsa_pointer(window: u64, offset: u64, rank: u32) -> u64 {
    let image: WindowImage = at(window);
    image.flat_base + (u64::from(rank * image.stride_4g) << 32) + offset
}

/// A window that collectives use as well.
fn symmetric((addr, bytes): (u64, u64)) -> crate::rma::Window {
    crate::rma::Window { addr, bytes, is_symmetric: true }
}

/// Registers a window on all ranks, in a group. Nobody asks for it by its number.
fn register(comms: &[Comm], buffers: &[(u64, u64)]) -> Vec<Result<Option<u64>>> {
    register_as(0, comms, buffers)
}

/// Registers a window with a number on all ranks, in a group.
fn register_as(number: u64, comms: &[Comm], buffers: &[(u64, u64)]) -> Vec<Result<Option<u64>>> {
    let mut coming: Vec<Receiver<Result<Option<u64>>>> = Vec::new();
    group::start().unwrap();
    for (comm, buffer) in comms.iter().zip(buffers) {
        let (sender, receiver) = channel();
        coming.push(receiver);
        let then = move |made| {
            sender.send(made).unwrap();
            Ok(())
        };
        comm.make_window_for_kernels(number, symmetric(*buffer), then).unwrap();
        assert!(coming.last().unwrap().try_recv().is_err(), "nothing happens before the end of the group");
    }
    group::end().unwrap();
    coming.iter().map(|one| one.recv().unwrap()).collect()
}

fn wanted(family: Family, version: u32) -> Wanted {
    let resources = vec![Resource { bytes: 1000, align: 256, ..Resource::default() }];
    Wanted {
        version,
        family,
        lsa_barriers: 2,
        barriers: 1,
        rail_barriers: 0,
        resources,
        network: None,
        multicast: false,
    }
}

fn make_dev_comms(comms: &[Comm], wanted: &Wanted) -> Result<Vec<DevComm>> {
    let (sender, receiver) = channel();
    group::start()?;
    for (rank, comm) in comms.iter().enumerate() {
        let sender = sender.clone();
        comm.make_dev_comm(wanted.clone(), move |made| {
            sender.send((rank, made)).unwrap();
            Ok(())
        })?;
    }
    group::end()?;
    drop(sender);
    let mut made: Vec<(usize, DevComm)> = receiver.iter().collect();
    made.sort_by_key(|(rank, _)| *rank);
    Ok(made.into_iter().map(|(_, made)| made).collect())
}

#[test]
fn kernels_find_the_windows_of_all_ranks() {
    with_fake_kernels(module_path!(), "kernels_find_the_windows_of_all_ranks", &ENV, || {
        let comms = comms();
        for comm in &comms {
            let team = comm.load_store_team().unwrap();
            assert_eq!((team.first, team.ranks), (0, RANKS as u32));
        }
        let memory: Vec<u64> = (0..RANKS).map(|_| mem_alloc(3 << 20).unwrap()).collect();
        // A window that begins in the middle of its allocation, longer on some ranks.
        let buffers: Vec<(u64, u64)> =
            memory.iter().zip(0..).map(|(addr, r)| (addr + 4096, 1 << (18 + r))).collect();
        let windows: Vec<u64> =
            register(&comms, &buffers).into_iter().map(|made| made.unwrap().unwrap()).collect();
        for (own, window) in windows.iter().enumerate() {
            let image: WindowImage = at(*window);
            assert_eq!((image.lsa_rank, image.world_rank), (own as i32, own as i32));
            for (peer, (buffer, bytes)) in buffers.iter().enumerate() {
                let (peer, last) = (peer as u32, bytes - 4);
                for offset in [0, last] {
                    let through = lsa_pointer(*window, offset, peer);
                    assert_ne!(through, buffer + offset, "a mapping of its own");
                    assert_eq!(comms[own].window_address(*window, peer, offset).unwrap(), Some(through));
                    let before = word(buffer + offset).load(Ordering::Relaxed);
                    word(through).fetch_add(1, Ordering::Relaxed);
                    assert_eq!(word(buffer + offset).load(Ordering::Relaxed), before + 1);
                }
            }
        }
        // Nothing is left of windows that came and went.
        let before = fake("fake_live");
        for _ in 0..20 {
            assert!(register_as(1, &comms, &buffers).iter().all(Result::is_ok));
            for comm in &comms {
                assert!(comm.drop_window_for_kernels(1).unwrap());
            }
        }
        assert_eq!(fake("fake_live"), before);
        // Memory that its owner frees lives as long as the window.
        mem_free(memory[1]).unwrap();
        let through = lsa_pointer(windows[0], 0, 1);
        assert_eq!(word(through).load(Ordering::Relaxed), RANKS as u32);
        for comm in &comms {
            assert!(comm.drop_window_for_kernels(0).unwrap());
            assert!(!comm.drop_window_for_kernels(0).unwrap());
        }
        comms.iter().for_each(|comm| comm.destroy().unwrap());
        mem_free(memory[0]).unwrap();
        mem_free(memory[2]).unwrap();
    });
}

#[test]
fn processes_map_each_others_memory() {
    const NAME: &str = "processes_map_each_others_memory";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        let identity = || unique_id().unwrap().to_bytes().to_vec();
        in_two_processes((module_path!(), NAME), &[], identity, |identity, rank| {
            of_process(&UniqueId::from_bytes(identity.try_into().unwrap()).unwrap(), rank);
        });
    });
}

/// One of two ranks: it writes into the other's window, and both pass barriers.
fn of_process(id: &UniqueId, rank: u32) {
    let comm = Comm::init(&[*id], 2, rank, 0, Config::default()).unwrap();
    let memory = mem_alloc(1 << 20).unwrap();
    let comms = [comm];
    let window = register(&comms, &[(memory + 256, 1024)]).remove(0).unwrap().unwrap();
    let wanted = Wanted { lsa_barriers: 1, ..wanted(Family::V228, 22809) };
    let made = make_dev_comms(&comms, &wanted).unwrap().remove(0);
    word(lsa_pointer(window, 8, 1 - rank)).store(rank + 10, Ordering::Relaxed);
    // Each tells the other where it finds the other's window.
    let place = lsa_pointer(window, 16, 1 - rank);
    // SAFETY: 8 bytes of the other's window, which nobody else uses.
    unsafe { (place as *mut u64).write(lsa_pointer(window, 0, 1 - rank)) };
    pass_barrier(&made, Family::V228, 0, 3, |_| {});
    assert_eq!(word(memory + 256 + 8).load(Ordering::Relaxed), 1 - rank + 10);
    let state = comms[0].state().unwrap();
    assert!(state.lsa.has_lent_windows());
    let numbers = state.lsa.seen(memory + 256 + 1000, 24).expect("it lies in the window");
    let number: u64 = at(numbers + 8 * u64::from(1 - rank));
    assert_eq!(at::<u64>(memory + 256 + 16), (memory + 256).wrapping_add(number));
    let seen_by = |rank: u32| state.lsa.address_seen_by(rank, memory + 256 + 1000, 24);
    assert_eq!(seen_by(1 - rank), Some((memory + 256 + 1000).wrapping_add(number)));
    assert_eq!((seen_by(2), state.lsa.address_seen_by(1 - rank, memory + 256, 1025)), (None, None));
    for (addr, bytes) in [(memory + 255, 1), (memory + 256, 1025), (memory + 1280, 1)] {
        assert_eq!(state.lsa.seen(addr, bytes), None, "{bytes} bytes {} behind the begin", addr - memory);
    }
    pass_barrier(&made, Family::V228, 0, 1, |_| {});
    comms[0].destroy_dev_comm(Family::resource_window(&made.image)).unwrap();
    assert!(comms[0].drop_window_for_kernels(0).unwrap());
    comms[0].destroy().unwrap();
    mem_free(memory).unwrap();
}

#[test]
fn barriers_of_kernels_hold_all_ranks() {
    with_fake_kernels(module_path!(), "barriers_of_kernels_hold_all_ranks", &ENV, || {
        let comms = comms();
        for (version, family) in
            [(22809, Family::V228), (22907, Family::V229), (23007, Family::V230), (23203, Family::V232)]
        {
            let made = make_dev_comms(&comms, &wanted(family, version)).unwrap();
            for index in 0..2 {
                meet(&made, family, index);
            }
            buffers_are_everybodys(&made, family);
            for (comm, made) in comms.iter().zip(&made) {
                let resource_window = Family::resource_window(&made.image);
                comm.destroy_dev_comm(resource_window).unwrap();
                assert_eq!(
                    comm.destroy_dev_comm(resource_window).unwrap_err().kind,
                    ErrorKind::InvalidArgument
                );
            }
        }
        comms.iter().for_each(|comm| comm.destroy().unwrap());
    });
}

/// Fields of an `ncclDevComm`, as device code reads them.
struct Seen<'a>(&'a [u8], Family);

impl Seen<'_> {
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    /// The buffer with a handle on a rank of the team.
    fn buffer(&self, handle: u32, rank: u32) -> u64 {
        let offsets = self.1.offsets();
        let stride = self.u32(offsets.stride);
        self.u64(offsets.flat_base) + (u64::from(rank * stride) << 32) + u64::from(handle) * 128
    }
}

/// Each rank, in a thread, passes one barrier again and again. A count that all add to shows that nobody is
/// ahead.
fn meet(made: &[DevComm], family: Family, index: u32) {
    let (count, ranks) = (AtomicU32::new(0), made.len() as u32);
    let at_step = |step: Step| match step {
        Step::Before => drop(count.fetch_add(1, Ordering::Relaxed)),
        Step::Behind(round) => {
            assert!(count.load(Ordering::Relaxed) >= (round + 1) * ranks, "somebody is behind")
        }
    };
    std::thread::scope(|scope| {
        for made in made {
            scope.spawn(move || pass_barrier(made, family, index, 20, at_step));
        }
    });
}

/// The place of a rank in a round of a barrier.
enum Step {
    Before,
    Behind(u32),
}

/// Passes a barrier as `ncclLsaBarrierSession` does: writes the next epoch into this rank's word of all
/// others' inboxes, and waits for theirs.
fn pass_barrier(made: &DevComm, family: Family, index: u32, rounds: u32, at_step: impl Fn(Step)) {
    let (seen, offsets) = (Seen(&made.image, family), family.offsets());
    let at = |number: usize| seen.u32(offsets.head + 4 * number);
    let (rank, ranks) = (at(3), at(4));
    let (handle, barriers) = (seen.u32(offsets.lsa_barrier), seen.u32(offsets.lsa_barrier + 4));
    assert!(index < barriers && ranks > 1);
    let inbox = |owner: u32, peer: u32| {
        let place = 3 * barriers + index * ranks + peer;
        word(seen.buffer(handle, owner) + 4 * u64::from(place))
    };
    let epochs = word(seen.buffer(handle, rank) + 4 * u64::from(barriers + index));
    let mut epoch = epochs.load(Ordering::Relaxed);
    for round in 0..rounds {
        at_step(Step::Before);
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            inbox(peer, rank).store(epoch + 1, Ordering::Release);
        }
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            while inbox(rank, peer).load(Ordering::Acquire).wrapping_sub(epoch + 1) > u32::MAX >> 1 {
                std::thread::yield_now();
            }
        }
        epoch += 1;
        at_step(Step::Behind(round));
    }
    epochs.store(epoch, Ordering::Relaxed);
}

/// The buffer that was asked for is zero, lies behind the barriers, and is the same for all ranks.
fn buffers_are_everybodys(made: &[DevComm], family: Family) {
    for (own, from) in made.iter().enumerate() {
        let seen = Seen(&from.image, family);
        let handle = from.parts[0].buffer;
        assert_eq!((handle % 2, handle > 0), (0, true), "256 bytes, behind the barriers");
        for (peer, to) in made.iter().enumerate() {
            let there = word(seen.buffer(handle, peer as u32) + 4 * own as u64);
            assert_eq!(there.swap(own as u32 + 1, Ordering::Relaxed), 0);
            let theirs = Seen(&to.image, family).buffer(handle, peer as u32) + 4 * own as u64;
            assert_eq!(word(theirs).load(Ordering::Relaxed), own as u32 + 1);
        }
    }
}

#[test]
fn the_table_names_all_windows() {
    with_fake_kernels(module_path!(), "the_table_names_all_windows", &ENV, || {
        let comm = Comm::init_all(&[0]).unwrap();
        let made = make_dev_comms(
            &comm,
            &Wanted { resources: vec![], lsa_barriers: 0, barriers: 0, ..wanted(Family::V232, 23203) },
        );
        let made = made.unwrap();
        assert_eq!(Family::resource_window(&made[0].image), 0, "nothing was asked for");
        let table = Seen(&made[0].image, Family::V232).u64(32);
        let entries = || {
            let (mut part, mut found) = (table, Vec::new());
            while part != 0 {
                let all: [TableEntry; TABLE_ENTRIES] = at(part);
                found.extend(all.into_iter().filter(|entry| entry.window != 0));
                part = at(part + NEXT_PART);
            }
            found
        };
        let memory = mem_alloc(1 << 20).unwrap();
        let windows: Vec<u64> = (0..TABLE_ENTRIES as u64 + 2)
            .map(|number| {
                let buffer = [(memory + number * 64, 64)];
                register_as(number, &comm, &buffer).remove(0).unwrap().unwrap()
            })
            .collect();
        let expected = |numbers: &[u64]| -> Vec<TableEntry> {
            let entry = |number: &u64| {
                let window = windows[*number as usize];
                TableEntry { base: memory + number * 64, bytes: 64, window }
            };
            numbers.iter().map(entry).collect()
        };
        assert_eq!(entries(), expected(&(0..TABLE_ENTRIES as u64 + 2).collect::<Vec<_>>()));
        // A rank that is alone finds its memory where it is.
        assert_eq!(lsa_pointer(windows[5], 8, 0), memory + 5 * 64 + 8);
        for number in [0, 33] {
            assert!(comm[0].drop_window_for_kernels(number).unwrap());
        }
        assert_eq!(entries(), expected(&(1..33).collect::<Vec<_>>()));
        comm[0].destroy_dev_comm(0).unwrap();
        comm[0].destroy().unwrap();
        mem_free(memory).unwrap();
    });
}

#[test]
fn memory_that_others_cannot_map_stays_with_the_host() {
    with_fake_kernels(module_path!(), "memory_that_others_cannot_map_stays_with_the_host", &ENV, || {
        let comms = comms();
        let device = hawser_device::cuda::open(1).unwrap();
        let plain = device.alloc_as_user(1 << 20).unwrap();
        let memory: Vec<u64> = (0..RANKS).map(|_| mem_alloc(1 << 20).unwrap()).collect();
        let mut buffers: Vec<(u64, u64)> = memory.iter().map(|addr| (*addr, 1 << 20)).collect();
        buffers[1] = (plain.addr, 1 << 20);
        for made in register(&comms, &buffers) {
            assert_eq!(made.unwrap(), None, "all ranks alike");
        }
        let made = make_dev_comms(&comms, &wanted(Family::V228, 22809)).unwrap();
        assert!(log::last_error().contains("kernels cannot use a window that is registered"));
        log::set_last_error("");
        for (rank, made) in register(&comms, &buffers).into_iter().enumerate() {
            let error = made.unwrap_err();
            let names = error.text.contains("rank 1") && error.text.contains("ncclMemAlloc");
            assert!(names && error.kind == ErrorKind::InvalidUsage, "rank {rank}: {error}");
        }
        // Windows whose places differ.
        let places: Vec<(u64, u64)> =
            memory.iter().zip(0..).map(|(addr, rank)| (addr + rank * 64, 64)).collect();
        for made in register(&comms, &places) {
            let error = made.unwrap_err();
            assert!(error.text.contains("rank 1: its window begins 0x40"), "{error}");
        }
        // The communicators go on.
        let good: Vec<(u64, u64)> = memory.iter().map(|addr| (*addr, 64)).collect();
        assert!(register(&comms, &good).into_iter().all(|made| made.unwrap().is_some()));
        for (comm, made) in comms.iter().zip(&made) {
            comm.destroy_dev_comm(Family::resource_window(&made.image)).unwrap();
            comm.destroy().unwrap();
        }
        memory.into_iter().for_each(|addr| mem_free(addr).unwrap());
        drop(plain);
    });
}

#[test]
fn ranks_that_make_different_calls_are_told_and_what_is_left_goes_with_the_communicator() {
    const NAME: &str = "ranks_that_make_different_calls_are_told_and_what_is_left_goes_with_the_communicator";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        let memory: Vec<u64> = (0..RANKS).map(|_| mem_alloc(1 << 20).unwrap()).collect();
        let buffers: Vec<(u64, u64)> = memory.iter().map(|addr| (*addr, 4096)).collect();
        let round = || {
            let comms = comms();
            let windows = register(&comms, &buffers);
            assert!(windows.into_iter().all(|made| made.unwrap().is_some()));
            let made = make_dev_comms(&comms, &wanted(Family::V230, 23004)).unwrap();
            assert_eq!(made.len(), RANKS);
            // One rank registers a window while the others make a communicator for kernels.
            let (sender, receiver) = channel();
            group::start().unwrap();
            let then = move |made| {
                sender.send(made).unwrap();
                Ok(())
            };
            comms[0].make_window_for_kernels(0, symmetric(buffers[0]), then).unwrap();
            for comm in &comms[1..] {
                comm.make_dev_comm(wanted(Family::V230, 23004), |_| Ok(())).unwrap();
            }
            let error = group::end().unwrap_err();
            assert!(
                error.text.contains("ncclCommWindowRegister") && error.text.contains("rank 0"),
                "{error}"
            );
            let error = receiver.recv().unwrap().unwrap_err();
            assert!(error.text.contains("rank 1: it calls ncclDevCommCreate"), "{error}");
            // They go on; and nobody takes anything back.
            assert!(register(&comms, &buffers).into_iter().all(|made| made.unwrap().is_some()));
            comms.iter().for_each(|comm| comm.destroy().unwrap());
        };
        round();
        let before = fake("fake_live");
        round();
        assert_eq!(fake("fake_live"), before, "nothing is left");
        memory.into_iter().for_each(|addr| mem_free(addr).unwrap());
    });
}

#[test]
fn without_vmm_there_are_no_windows_for_kernels() {
    let env = [ENV[0], ENV[1], ENV[2], ("NCCL_CUMEM_ENABLE", "0")];
    with_fake_kernels(module_path!(), "without_vmm_there_are_no_windows_for_kernels", &env, || {
        let comms = comms();
        assert!(comms[0].kernels_cannot_have_windows().unwrap().is_some());
        let error = comms[0].make_dev_comm(wanted(Family::V228, 22809), |_| Ok(())).unwrap_err();
        assert!(error.text.contains("VMM") && error.kind == ErrorKind::InvalidUsage, "{error}");
        comms.iter().for_each(|comm| comm.destroy().unwrap());
    });
}

#[test]
fn teams_are_neighbours_of_one_size() {
    let team = |rank, hosts: &[u32]| {
        let team = Team::of(rank, hosts, &vec![7; hosts.len()]);
        (team.first, team.rank, team.ranks())
    };
    assert_eq!(team(2, &[0, 0, 0, 0]), (0, 2, 4));
    assert_eq!(team(5, &[0, 0, 0, 0, 1, 1, 1, 1]), (4, 1, 4));
    assert_eq!(team(5, &[0, 0, 0, 0, 1, 1]), (4, 1, 2), "4 and 2 ranks: teams of 2");
    assert_eq!(team(1, &[0, 1, 0, 1]), (1, 0, 1), "no neighbours");
    assert_eq!(Team::of(1, &[0, 0], &[4, 5]).is_elsewhere, [true, false]);
}
