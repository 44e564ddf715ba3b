//! Windows whose handles kernels follow, through the C interface, on the stand-in for CUDA's driver. Its
//! device memory is memory of the host, so the test reads what kernels would read.

mod support;

/// A test of its own process has a module in its name.
mod on_the_stand_in {
    use std::ptr::null;

    use hawser_device::cuda::fake::{fake, with_fake_kernels};

    use crate::support::*;

    const ENV: [(&str, &str); 3] =
        [("NCCL_SOCKET_IFNAME", "lo"), ("HAWSER_RUNTIME_DIR", "none"), ("HAWSER_DEVICE", "cuda")];
    const BYTES: usize = 1 << 20;
    /// `NCCL_WIN_STRICT_ORDERING`.
    const STRICT_ORDERING: i32 = 2;

    /// A word of memory of the stand-in.
    fn word<T: Copy>(address: Ptr, offset: usize) -> T {
        // SAFETY: memory of this process; the test passes places that hold a T.
        unsafe { address.cast::<u8>().add(offset).cast::<T>().read() }
    }

    /// Registers the windows of all ranks in one thread, in a group.
    fn register(comms: &[Comm], buffers: &[Ptr], flags: i32) -> Vec<Ptr> {
        let mut windows = vec![null(); comms.len()];
        ok(ncclGroupStart());
        for ((&comm, &buffer), window) in comms.iter().zip(buffers).zip(&mut windows) {
            ok(ncclCommWindowRegister(comm, buffer, BYTES, window, flags));
        }
        ok(ncclGroupEnd());
        windows
    }

    #[test]
    fn handles_are_addresses_and_host_functions_know_them() {
        let name = "handles_are_addresses_and_host_functions_know_them";
        with_fake_kernels(module_path!(), name, &ENV, || {
            let comms = several(2);
            let mut properties = [0u64; 19];
            (properties[0], properties[1]) = (152, 0xcafe_beef | 23203 << 32);
            ok(ncclCommQueryProperties(comms[0], properties.as_mut_ptr().cast()));
            assert_eq!(properties[4] & 0xffff, 1, "the device API, and no multicast");
            assert_eq!((ncclTeamLsa(comms[1]), properties[5] >> 32), (Team(2, 1, 1), 1), "one team");
            let (kind, railed, connection) = (properties[4] >> 32, properties[6] as u32, properties[8] >> 32);
            assert_eq!((kind, railed, connection), (2, 2, 1), "the proxy, to all ranks");
            let buffers: Vec<Ptr> = comms.iter().map(|_| allocated()).collect();
            let windows = register(&comms, &buffers, 1);
            for (rank, &window) in (0..).zip(&windows) {
                let (base, stride): (u64, u32) = (word(window, 8), word(window, 24));
                assert_eq!((word::<i32>(window, 16), word::<i32>(window, 20)), (rank, rank));
                for peer in 0..2 {
                    let (mut near, mut by_peer) = (null(), null());
                    ok(ncclGetLsaDevicePointer(window, 8, peer, &mut near));
                    ok(ncclGetPeerDevicePointer(window, 8, peer, &mut by_peer));
                    let expected = base + (u64::from(stride * peer.unsigned_abs()) << 32) + 8;
                    assert_eq!((near as u64, by_peer as u64), (expected, expected));
                }
                let mut user = null();
                ok(ncclWinGetUserPtr(comms[rank as usize], window, &mut user));
                assert_eq!(user, buffers[rank as usize]);
            }
            // Kernels follow the handles of windows without the flag, too: DeepEP has only those. Puts of the
            // host do not take them.
            let plain = register(&comms, &buffers, STRICT_ORDERING);
            for (&window, peer) in plain.iter().zip([1, 0]) {
                let (mut near, base): (Ptr, u64) = (null(), word(window, 8));
                ok(ncclGetLsaDevicePointer(window, 8, peer, &mut near));
                let stride: u32 = word(window, 24);
                assert_eq!(near as u64, base + (u64::from(stride * peer.unsigned_abs()) << 32) + 8);
                assert!(!windows.contains(&window));
            }
            let put = ncclPutSignal(buffers[0], 8, 1, 1, plain[0], 0, 0, 0, 0, comms[0], null());
            assert_eq!(put, INVALID_ARGUMENT);
            for (rank, &comm) in comms.iter().enumerate() {
                ok(ncclCommWindowDeregister(comm, windows[rank]));
                assert_eq!(ncclCommWindowDeregister(comm, windows[rank]), INVALID_ARGUMENT);
                ok(ncclCommWindowDeregister(comm, plain[rank]));
            }
            made_and_destroyed(&comms);
            comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
            buffers.into_iter().for_each(|buffer| ok(ncclMemFree(buffer)));
            ncclResetDebugInit();
            hawser_base::log::set_last_error("");
        });
    }

    /// Ranks that have each other's windows mapped put by copies of the stream, which writes numbers into
    /// words and waits for such: no thread takes part. The stand-in's streams do not wait.
    #[test]
    fn streams_put_and_wait_by_themselves() {
        let name = "streams_put_and_wait_by_themselves";
        with_fake_kernels(module_path!(), name, &ENV, || {
            let buffers: Vec<Ptr> = (0..2).map(|_| allocated()).collect();
            put_and_wait(&buffers);
            buffers.into_iter().for_each(|buffer| ok(ncclMemFree(buffer)));
            // Kernels cannot use windows of this kind, streams can.
            let devices = [0, 1].map(|ordinal| hawser_device::cuda::open(ordinal).unwrap());
            let memory = devices.each_ref().map(|device| device.alloc_as_user(BYTES as u64).unwrap());
            let windows = put_and_wait(&memory.each_ref().map(|memory| memory.addr as Ptr));
            assert!(windows.iter().all(|window| *window as usize & 1 == 1), "no address of a struct");
            ncclResetDebugInit();
        });
    }

    /// Two ranks put into windows of these buffers, and their streams wait. Answers the windows, which are no
    /// more.
    fn put_and_wait(buffers: &[Ptr]) -> Vec<Ptr> {
        let comms = several(2);
        let wait = |count| {
            let awaited = [count, 0, 0, 0];
            ncclWaitSignal(1, awaited.as_ptr().cast(), comms[1], null())
        };
        let windows = register(&comms, buffers, 1);
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let put = |from: usize, to: i32, offset: usize| {
            let comm = comms[from];
            ncclPutSignal(buffers[from], 100, 1, to, windows[from], offset, 0, 0, 0, comm, null())
        };
        let set = |at: Ptr, value: u8| {
            // SAFETY: memory of this process with so many bytes.
            unsafe { at.cast_mut().cast::<u8>().write_bytes(value, 100) };
        };
        let waits = fake("fake_value_waits");
        for (round, value) in (0..3).zip(1u8..) {
            set(buffers[0], value);
            ok(put(0, 1, 200 + 100 * round));
            assert_eq!(word::<[u8; 100]>(buffers[1], 200 + 100 * round), [value; 100]);
        }
        set(buffers[1], 77);
        ok(put(1, 1, 4096));
        assert_eq!(word::<[u8; 100]>(buffers[1], 4096), [77; 100], "into a window of one's own");
        let before = threads();
        ok(wait(2));
        ok(wait(1));
        assert_eq!(fake("fake_value_waits") - waits, 2);
        assert_eq!(threads(), before);
        // The watch ends a communicator whose wait is aborted.
        ok(wait(1));
        ok(ncclCommRevoke(comms[1], 0));
        for comm in comms {
            ok(ncclCommAbort(comm));
        }
        windows
    }

    /// Communicators for kernels of a program of 2.28, whose struct of needs has no header, made in a group.
    fn made_and_destroyed(comms: &[Comm]) {
        const GUARD: u32 = 0x5555_5555;
        // Three barriers of the load-store team.
        let needs = [0u64, 0, 0, 3, 0, 0, 0];
        let mut made = vec![[GUARD; 64]; comms.len()];
        ok(ncclGroupStart());
        for (&comm, made) in comms.iter().zip(&mut made) {
            ok(ncclDevCommCreate(comm, needs.as_ptr().cast(), made.as_mut_ptr().cast()));
            assert_eq!(made[0], GUARD, "nothing before the end of the group");
        }
        ok(ncclGroupEnd());
        for (rank, made) in (0..).zip(&made) {
            assert_eq!(made[..6], [rank, 2, 1 << 31, rank, 2, 1 << 31]);
            assert_eq!((made[31], made[50]), (3, GUARD), "three barriers, and 200 bytes");
        }
        for (&comm, made) in comms.iter().zip(&made) {
            ok(ncclDevCommDestroy(comm, made.as_ptr().cast()));
            assert_eq!(ncclDevCommDestroy(comm, made.as_ptr().cast()), INVALID_ARGUMENT, "only once");
        }
    }

    /// The struct of needs of 2.32 as words: multicast for the load-store team, and for a team of the list.
    fn asking(team: &mut [u64; 5], (ranks, rank): (u64, u64), out: *mut u64) -> [u64; 15] {
        // The next entry, a team of stride 1, whether it wants multicast, and where its base goes.
        *team = [0, ranks | rank << 32, 1 | 1 << 32, out as u64, 0];
        let mut needs = [0; 15];
        needs[..5].copy_from_slice(&[120, 0xcafe_beef | 23203 << 32, 0, team.as_ptr() as u64, 1]);
        needs
    }

    #[test]
    fn multicast_is_there_where_it_is_asked_for() {
        let name = "multicast_is_there_where_it_is_asked_for";
        let env = [ENV[0], ENV[1], ENV[2], ("HAWSER_MULTICAST", "1"), ("FAKE_MULTICAST", "1")];
        with_fake_kernels(module_path!(), name, &env, || {
            let comms = several(2);
            let mut properties = [0u64; 19];
            (properties[0], properties[1]) = (152, 0xcafe_beef | 23203 << 32);
            ok(ncclCommQueryProperties(comms[0], properties.as_mut_ptr().cast()));
            assert_eq!(properties[4] & 0xffff, 0x101, "the device API, and multicast");
            let buffers: Vec<Ptr> = comms.iter().map(|_| allocated()).collect();
            let windows = register(&comms, &buffers, 1);
            let (mut teams, mut bases, mut made) = ([[0; 5]; 2], [0u64; 2], [[0u32; 64]; 2]);
            ok(ncclGroupStart());
            for (rank, &comm) in comms.iter().enumerate() {
                let needs = asking(&mut teams[rank], (2, rank as u64), &raw mut bases[rank]);
                ok(ncclDevCommCreate(comm, needs.as_ptr().cast(), made[rank].as_mut_ptr().cast()));
            }
            ok(ncclGroupEnd());
            for (rank, &window) in windows.iter().enumerate() {
                let place: u32 = word(window, 28);
                let base = u64::from(made[rank][18]) | u64::from(made[rank][19]) << 32;
                let mut found = null();
                ok(ncclGetLsaMultimemDevicePointer(window, 24, &mut found));
                assert!(place != 0 && found as u64 == base + u64::from(place) * 4096 + 24);
                assert_eq!(bases[rank], base);
                ok(ncclDevCommDestroy(comms[rank], made[rank].as_ptr().cast()));
            }
            // Not for other teams.
            let needs = asking(&mut teams[0], (1, 0), &raw mut bases[0]);
            let code = ncclDevCommCreate(comms[0], needs.as_ptr().cast(), made[0].as_mut_ptr().cast());
            assert_eq!(code, INVALID_ARGUMENT);
            assert!(last_error().contains("load-store team of 2 alone"), "{}", last_error());
            for (rank, &comm) in comms.iter().enumerate() {
                ok(ncclCommWindowDeregister(comm, windows[rank]));
            }
            assert_eq!(fake("fake_bound"), 0);
            comms.into_iter().for_each(|comm| ok(ncclCommDestroy(comm)));
            buffers.into_iter().for_each(|buffer| ok(ncclMemFree(buffer)));
            ncclResetDebugInit();
            hawser_base::log::set_last_error("");
        });
    }

    fn allocated() -> Ptr {
        let mut buffer = std::ptr::null_mut();
        ok(ncclMemAlloc(&mut buffer, BYTES));
        buffer.cast_const().cast()
    }
}
