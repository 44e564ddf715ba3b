//! Multicast addresses of windows, on the stand-in, whose objects count who joins and what is bound.

use super::allocations::of_both_processes;
use super::*;

const BYTES: u64 = 4 << 20;

/// With multicast asked for, on devices that have it.
const WITH: [(&str, &str); 5] = [ENV[0], ENV[1], ENV[2], ("HAWSER_MULTICAST", "1"), ("FAKE_MULTICAST", "1")];

/// A communicator for kernels that asks for multicast.
fn asking(family: Family, version: u32) -> Wanted {
    Wanted { multicast: true, ..wanted(family, version) }
}

/// A word of the struct of a communicator for kernels.
fn word_at<const N: usize>(image: &[u8], at: usize) -> [u8; N] {
    image[at..at + N].try_into().unwrap()
}

#[test]
fn device_code_finds_windows_and_resources_by_multicast() {
    const NAME: &str = "device_code_finds_windows_and_resources_by_multicast";
    with_fake_kernels(module_path!(), NAME, &WITH, || {
        let comms = comms();
        assert!(comms.iter().all(|comm| comm.offers_multicast().unwrap()));
        let memory: Vec<u64> = (0..RANKS).map(|_| mem_alloc(BYTES).unwrap()).collect();
        let buffers: Vec<(u64, u64)> = memory.iter().map(|addr| (addr + 4096, BYTES - 4096)).collect();
        let windows: Vec<u64> =
            register(&comms, &buffers).into_iter().map(|made| made.unwrap().unwrap()).collect();
        assert_eq!(fake("fake_bound"), RANKS as i32, "one piece of each rank");
        let families = [
            (Family::V228, 22809, 112, 68),
            (Family::V229, 22907, 112, 68),
            (Family::V230, 23004, 120, 76),
            (Family::V232, 23203, 72, 60),
        ];
        for (family, version, base_at, place_at) in families {
            let made = make_dev_comms(&comms, &asking(family, version)).unwrap();
            assert_eq!(fake("fake_bound"), 2 * RANKS as i32, "resources as well");
            for ((comm, window), made) in comms.iter().zip(&windows).zip(&made) {
                let base = u64::from_ne_bytes(word_at(&made.image, base_at));
                assert!(base != 0 && base == made.multicast, "{family:?}");
                let place: WindowImage = at(*window);
                let found = base + u64::from(place.multicast_4k) * 4096 + 100;
                assert_eq!(comm.multicast_address(*window, 100).unwrap(), Some(found));
                // What lies there is mapped, and a page of the object is in front of the buffer.
                let _: u32 = at(found - 100);
                assert_eq!(found % 4096, 100);
                let resources = u32::from_ne_bytes(word_at(&made.image, place_at));
                assert!(resources != 0 && resources != place.multicast_4k, "{family:?}");
                let handle = Family::resource_window(&made.image);
                let resources = base + u64::from(resources) * 4096;
                assert_eq!(comm.multicast_address(handle, 0).unwrap(), Some(resources));
                comm.destroy_dev_comm(handle).unwrap();
            }
        }
        for comm in &comms {
            assert!(comm.drop_window_for_kernels(0).unwrap());
        }
        assert_eq!(fake("fake_bound"), 0);
        // Device code counts places in pages.
        let buffers: Vec<(u64, u64)> = memory.iter().map(|addr| (addr + 64, 64)).collect();
        for made in register_as(1, &comms, &buffers) {
            let window: WindowImage = at(made.unwrap().unwrap());
            assert_eq!(window.multicast_4k, 0);
        }
        let error = make_dev_comms(&comms, &asking(Family::V230, 23004)).err().unwrap().to_string();
        assert!(error.contains("no multicast address") && error.contains("0x40 behind"), "{error}");
        hawser_base::log::set_last_error("");
        comms.into_iter().for_each(|comm| comm.destroy().unwrap());
        memory.into_iter().for_each(|addr| mem_free(addr).unwrap());
    });
}

/// Registers a window of memory that others can map. The address that it has on both ranks, and its struct.
fn window(comm: &Comm, memory: u64) -> (Option<u64>, WindowImage) {
    let made = register(std::slice::from_ref(comm), &[(memory, BYTES)]).remove(0);
    let handle = made.unwrap().expect("kernels have the window");
    (comm.multicast_address(handle, 0).unwrap(), at(handle))
}

#[test]
fn processes_share_an_object() {
    const NAME: &str = "processes_share_an_object";
    with_fake_kernels(module_path!(), NAME, &WITH, || {
        of_both_processes((module_path!(), NAME), &[], |comm, rank| {
            let memory = mem_alloc(BYTES).unwrap();
            let (found, image) = window(comm, memory);
            assert!(found.is_some() && image.multicast_4k != 0, "rank {rank}");
            assert_eq!(fake("fake_bound"), 1);
            assert!(comm.drop_window_for_kernels(0).unwrap());
            assert_eq!(fake("fake_bound"), 0);
            // One that the communicator takes back.
            window(comm, memory);
            let state = comm.state().unwrap();
            state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
        });
        assert_eq!(fake("fake_bound"), 0);
    });
}

/// The body of tests in which rank 1 cannot join, as where it shares its GPU, or rank 0 can make no object.
fn nobody_has_one(comm: &Comm, _rank: u32) {
    let memory = mem_alloc(BYTES).unwrap();
    let (found, image) = window(comm, memory);
    assert_eq!((found, image.multicast_4k, fake("fake_bound")), (None, 0, 0));
    assert_ne!(image.flat_base, 0, "the window is there all the same");
    let error = make_dev_comms(std::slice::from_ref(comm), &asking(Family::V232, 23203)).err().unwrap();
    assert!(error.to_string().contains("no multicast address: rank "), "{error}");
    hawser_base::log::set_last_error("");
    let made = make_dev_comms(std::slice::from_ref(comm), &wanted(Family::V232, 23203)).unwrap();
    assert_eq!(made[0].multicast, 0);
    comm.destroy_dev_comm(Family::resource_window(&made[0].image)).unwrap();
}

#[test]
fn where_one_rank_cannot_join_nobody_has_it() {
    const NAME: &str = "where_one_rank_cannot_join_nobody_has_it";
    with_fake_kernels(module_path!(), NAME, &WITH, || {
        of_both_processes((module_path!(), NAME), &[("FAKE_SHARED_GPU", "1")], nobody_has_one);
    });
}

#[test]
fn where_no_object_is_left_nobody_has_it() {
    const NAME: &str = "where_no_object_is_left_nobody_has_it";
    let env = [WITH[0], WITH[1], WITH[2], WITH[3], WITH[4], ("FAKE_NO_OBJECTS", "1")];
    with_fake_kernels(module_path!(), NAME, &env, || {
        of_both_processes((module_path!(), NAME), &[], nobody_has_one);
    });
}

#[test]
fn nobody_calls_multicast_unasked() {
    const NAME: &str = "nobody_calls_multicast_unasked";
    let env = [ENV[0], ENV[1], ENV[2], ("FAKE_MULTICAST", "1")];
    with_fake_kernels(module_path!(), NAME, &env, || {
        of_both_processes((module_path!(), NAME), &[], |comm, _| {
            assert!(!comm.offers_multicast().unwrap());
            let memory = mem_alloc(BYTES).unwrap();
            let (found, image) = window(comm, memory);
            assert_eq!((found, image.multicast_4k, fake("fake_bound")), (None, 0, 0));
            let state = comm.state().unwrap();
            state.bootstrap.barrier(&Wait::new(state.abort.clone(), None)).unwrap();
        });
    });
}
