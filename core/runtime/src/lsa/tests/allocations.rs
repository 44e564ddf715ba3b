//! Windows of memory of `cudaMalloc`, which each rank finds somewhere: calls and puts use them, kernels of
//! the user do not.

use super::*;

const BYTES: u64 = 1 << 20;

/// Registers a window that kernels of the user cannot use.
fn plain(number: u64, comms: &[Comm], buffers: &[(u64, u64)]) {
    for made in register_as(number, comms, buffers) {
        assert_eq!(made.unwrap(), None, "no handle for kernels");
    }
}

/// The address at which a rank finds the begin of a window of another one, if it is mapped.
fn row(comm: &Comm, number: u64, rank: u32) -> Option<u64> {
    comm.state().unwrap().lsa.row((number, 0, 8), rank).ok().flatten()
}

/// Runs both ranks, each in a process, and ends their communicators.
pub(super) fn of_both_processes((module, test): (&str, &str), env: &[(&str, &str)], as_rank: fn(&Comm, u32)) {
    let identity = || unique_id().unwrap().to_bytes().to_vec();
    in_two_processes((module, test), env, identity, |identity, rank| {
        let id = UniqueId::from_bytes(identity.try_into().unwrap()).unwrap();
        let comm = Comm::init(&[id], 2, rank, 0, Config::default()).unwrap();
        as_rank(&comm, rank);
        comm.destroy().unwrap();
        assert_eq!(fake("fake_opened"), 0, "nothing is left open");
    });
}

#[test]
fn an_end_of_the_other_rank_leaves_nothing_open() {
    const NAME: &str = "an_end_of_the_other_rank_leaves_nothing_open";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], |comm, rank| {
            let device = hawser_device::cuda::open(0).unwrap();
            let memory = device.alloc_as_user(BYTES).unwrap();
            let buffer = (memory.addr, BYTES);
            plain(0, std::slice::from_ref(comm), &[buffer]);
            let before = fake("fake_opened");
            let (sender, receiver) = channel();
            if rank == 0 {
                // The other one ends while this one waits for it.
                let then = move |made: Result<_>| {
                    sender.send(made.is_err()).unwrap();
                    Ok(())
                };
                assert!(
                    comm.make_window_for_kernels(1, symmetric(buffer), then).is_err()
                        || receiver.recv().unwrap()
                );
            }
            assert_eq!(fake("fake_opened"), before);
        });
    });
}

/// Collectives and puts use symmetric windows alone, and kernels those that lie side by side.
#[test]
fn what_nobody_would_use_is_not_opened() {
    const NAME: &str = "what_nobody_would_use_is_not_opened";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], |comm, rank| {
            let device = hawser_device::cuda::open(0).unwrap();
            let memory = device.alloc_as_user(BYTES).unwrap();
            let other = crate::rma::Window { is_symmetric: false, ..symmetric((memory.addr, BYTES)) };
            let before = fake("fake_opened");
            comm.make_window_for_kernels(0, other, |made| made.map(|made| assert_eq!(made, None))).unwrap();
            assert_eq!((fake("fake_opened"), row(comm, 0, 1 - rank)), (before, None));
            assert!(!comm.state().unwrap().lsa.has_lent_windows());
        });
    });
}

#[test]
fn processes_open_an_allocation_once() {
    const NAME: &str = "processes_open_an_allocation_once";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], opens_once)
    });
}

/// Two windows in one allocation, of different lengths and at different places of both ranks.
fn opens_once(comm: &Comm, rank: u32) {
    let (comms, other) = (std::slice::from_ref(comm), 1 - rank);
    let device = hawser_device::cuda::open(0).unwrap();
    let before = fake("fake_opened");
    let memory = device.alloc_as_user(BYTES).unwrap();
    let places = [64 + 4096 * u64::from(rank), BYTES / 2];
    plain(0, comms, &[(memory.addr + places[0], 1024 << rank)]);
    plain(1, comms, &[(memory.addr + places[1], 1024)]);
    assert_eq!(fake("fake_opened") - before, 1, "both lie in one allocation");
    // Each tells the other where it finds the other's window, in that window.
    for number in [0, 1] {
        let there = row(comm, number, other).expect("it is mapped");
        // SAFETY: 8 bytes of the other's window, which nobody else uses.
        unsafe { (there as *mut u64).write(there) };
        assert_eq!(row(comm, number, rank), Some(memory.addr + places[number as usize]));
    }
    let state = comm.state().unwrap();
    assert!(state.lsa.has_lent_windows());
    let row_of = |bytes| state.lsa.row((0, 0, bytes), other);
    assert!(row_of(1024 << other).is_ok() && row_of((1024 << other) + 1).is_err(), "the other's length");
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
    for place in places {
        let addr = memory.addr + place;
        assert_eq!(state.lsa.address_seen_by(other, addr + 100, 24), Some(at::<u64>(addr) + 100));
        let numbers = state.lsa.seen(addr + 1000, 24).expect("it lies in the window");
        let number: u64 = at(numbers + 8 * u64::from(other));
        assert_eq!(addr.wrapping_add(number), at::<u64>(addr), "kernels find it there too");
    }
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
    assert!(comm.drop_window_for_kernels(0).unwrap() && !comm.drop_window_for_kernels(0).unwrap());
    assert_eq!((fake("fake_opened") - before, row(comm, 0, other)), (1, None), "the other window has it");
    assert!(comm.drop_window_for_kernels(1).unwrap());
    assert_eq!(fake("fake_opened"), before);
    // The communicator closes what is left.
    plain(2, comms, &[(memory.addr, BYTES)]);
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
}

#[test]
fn allocations_at_one_address_are_told_apart() {
    const NAME: &str = "allocations_at_one_address_are_told_apart";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[], told_apart)
    });
}

/// Rank 1 takes its window back, frees its memory, and has another at the same address; rank 0 still has the
/// window.
fn told_apart(comm: &Comm, rank: u32) {
    let comms = std::slice::from_ref(comm);
    let device = hawser_device::cuda::open(0).unwrap();
    let mut memory = device.alloc_as_user(BYTES).unwrap();
    plain(0, comms, &[(memory.addr, BYTES)]);
    if rank == 1 {
        assert!(comm.drop_window_for_kernels(0).unwrap());
        let addr = memory.addr;
        drop(memory);
        memory = device.alloc_as_user(BYTES).unwrap();
        assert_eq!(memory.addr, addr, "the test needs an address that is used again");
    }
    plain(1, comms, &[(memory.addr, BYTES)]);
    let state = comm.state().unwrap();
    if rank == 0 {
        word(row(comm, 1, 1).unwrap()).store(77, Ordering::Relaxed);
    }
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
    assert!(rank == 0 || at::<u32>(memory.addr) == 77, "rank 0 writes into memory that is gone");
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
}

#[test]
fn nobody_maps_what_one_rank_cannot_open() {
    const NAME: &str = "nobody_maps_what_one_rank_cannot_open";
    with_fake_kernels(module_path!(), NAME, &ENV, || {
        of_both_processes((module_path!(), NAME), &[("FAKE_NO_IPC", "1")], nobody_maps);
    });
}

/// Rank 1 runs where the driver opens nothing.
fn nobody_maps(comm: &Comm, rank: u32) {
    let device = hawser_device::cuda::open(0).unwrap();
    let memory = device.alloc_as_user(BYTES).unwrap();
    let before = fake("fake_opened");
    plain(0, std::slice::from_ref(comm), &[(memory.addr, BYTES)]);
    let state = comm.state().unwrap();
    assert!(!state.lsa.has_lent_windows() && row(comm, 0, 1 - rank).is_none());
    assert_eq!((state.lsa.seen(memory.addr, 8), fake("fake_opened")), (None, before));
    let why = state.lsa.host_only().unwrap();
    assert!(why.contains("IPC") && why.contains(if rank == 0 { "rank 1" } else { "rank 0" }), "{why}");
    assert!(!comm.drop_window_for_kernels(0).unwrap());
    state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
}

#[test]
fn ranks_of_a_process_use_the_address_itself() {
    with_fake_kernels(module_path!(), "ranks_of_a_process_use_the_address_itself", &ENV, || {
        let comms = comms();
        let devices = [0, 1, 0].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap());
        let memory = devices.each_ref().map(|device| device.alloc_as_user(BYTES).unwrap());
        plain(0, &comms, &memory.each_ref().map(|memory| (memory.addr + 64, 1024)));
        for comm in &comms {
            for (rank, memory) in (0..).zip(&memory) {
                assert_eq!(row(comm, 0, rank), Some(memory.addr + 64));
            }
            assert!(comm.window_address(1, 0, 0).unwrap().is_none());
        }
        // What leaves its allocation, and memory of two kinds, stays with the host.
        plain(1, &comms, &memory.each_ref().map(|memory| (memory.addr + 64, BYTES)));
        let vmm = mem_alloc(BYTES).unwrap();
        plain(2, &comms, &[(vmm, 64), (memory[1].addr, 64), (memory[2].addr, 64)]);
        for comm in &comms {
            assert_eq!((row(comm, 1, 0), row(comm, 2, 0)), (None, None));
        }
        // Kernels would follow the handle of a window.
        let made = make_dev_comms(&comms, &wanted(Family::V230, 23004)).unwrap();
        assert!(log::last_error().contains("kernels cannot use a window that is registered"));
        log::set_last_error("");
        let refused = register_as(3, &comms, &memory.each_ref().map(|memory| (memory.addr, 64)));
        assert!(refused.iter().all(Result::is_err), "all ranks alike");
        for (comm, made) in comms.iter().zip(&made) {
            comm.destroy_dev_comm(Family::resource_window(&made.image)).unwrap();
            comm.destroy().unwrap();
        }
        mem_free(vmm).unwrap();
    });
}

#[test]
fn devices_of_a_process_are_not_opened_against_a_setting() {
    let env = [ENV[0], ENV[1], ENV[2], ("NCCL_P2P_DIRECT_DISABLE", "1")];
    with_fake_kernels(module_path!(), "devices_of_a_process_are_not_opened_against_a_setting", &env, || {
        let comms = comms();
        let devices = [0, 1, 0].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap());
        let memory = devices.each_ref().map(|device| device.alloc_as_user(BYTES).unwrap());
        plain(0, &comms, &memory.each_ref().map(|memory| (memory.addr, BYTES)));
        for comm in &comms {
            assert_eq!(row(comm, 0, 0), None);
            let why = comm.state().unwrap().lsa.host_only().unwrap();
            assert!(why.contains("NCCL_P2P_DIRECT_DISABLE"), "{why}");
            comm.destroy().unwrap();
        }
    });
}
