//! Networks in kernels through the C interface, on the stand-in for CUDA's driver, whose device memory is
//! memory of the host: these tests write descriptors and wait for signals as NVIDIA's device code does.

mod support;

/// A test of its own process has a module in its name.
mod on_the_stand_in {
    use std::ptr::null;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::thread::{panicking, scope, yield_now};

    use hawser_base::figures::{self, Reading};
    use hawser_device::cuda::fake::{fake, in_two_processes, with_fake_kernels};
    use hawser_runtime::gin::Form;
    use hawser_runtime::gin::descriptor::{SHORT_WORDS, WORDS, op};
    use hawser_runtime::lsa::layout::Family;

    use crate::support::*;

    const ENV: [(&str, &str); 4] = [
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("HAWSER_RUNTIME_DIR", "none"),
        ("HAWSER_DEVICE", "cuda"),
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
    ];

    /// Bytes that are put: the first part of a window is sent, and the others are for each sender's.
    const PART: u64 = 4096;
    /// The part that values and words are in.
    const VALUES: u64 = 14 * PART;
    const BYTES: u64 = 15 * PART;
    /// Rounds of an exchange: more than a queue has places.
    const ROUNDS: u64 = 30;

    /// Signals of the program: two of exchanges, and one by which all meet. Those of its resource follow.
    const PUTS: u64 = 0;
    const VALUE_SIGNAL: u64 = 1;
    const MEETING: u64 = 2;
    const SIGNALS: u64 = 3;
    const OF_RESOURCE: u64 = 4;

    fn at<T: Copy>(addr: u64) -> T {
        // SAFETY: device memory of the stand-in is memory of this process; callers pass places that hold a T.
        unsafe { (addr as *const T).read_unaligned() }
    }

    fn word32(addr: u64) -> &'static AtomicU32 {
        // SAFETY: as in `at`; the tests let go of it before the memory goes.
        unsafe { &*(addr as *const AtomicU32) }
    }

    fn word64(addr: u64) -> &'static AtomicU64 {
        // SAFETY: as in `at`; the tests let go of it before the memory goes.
        unsafe { &*(addr as *const AtomicU64) }
    }

    /// Ends the process when a thread fails that others wait for.
    struct Alarm;

    impl Drop for Alarm {
        fn drop(&mut self) {
            if panicking() {
                std::process::abort();
            }
        }
    }

    /// A context of a network, as device code has it.
    struct Kernel {
        is_short: bool,
        depth: u32,
        queues: u64,
        written: u64,
        done: u64,
        counters: u64,
        signals: u64,
    }

    impl Kernel {
        /// The context of an `ncclDevComm`.
        fn new(made: &[u8], (family, form): (Family, Form), context: u64) -> Self {
            let word = |at: usize| u64::from_ne_bytes(made[at..][..8].try_into().unwrap());
            let of = match family.offsets().network {
                Some(offsets) => {
                    let kinds = (made[offsets.connections], made[offsets.first_type]);
                    assert_eq!(kinds, (1, 2), "one proxy");
                    word(offsets.handle) + context * form.bytes() as u64
                }
                None => {
                    assert_eq!(made[136..139], [2, 2, 2], "two contexts of proxies");
                    assert_eq!(word(176) >> 32, SIGNALS + OF_RESOURCE, "from 0 on");
                    word(144 + 8 * context as usize)
                }
            };
            let [queues, written, done, counters, signals] = [1, 2, 3, 4, 5].map(|field| at(of + 8 * field));
            let is_short = form == Form::Short;
            Self { is_short, depth: at(of + 4), queues, written, done, counters, signals }
        }

        /// A descriptor as 2.28 has it.
        fn shortened(long: &[u64; WORDS]) -> [u64; SHORT_WORDS] {
            let mut short: [u64; SHORT_WORDS] = long[..SHORT_WORDS].try_into().unwrap();
            let of = long[5];
            short[0] |= (long[7] >> 8 & 0x3f) << 1;
            short[5] = 1 | (of >> 1 & 0xffff) << 8 | (of >> 24 & 0xffff) << 24 | (of >> 48) << 40;
            short[7] = 1;
            short
        }

        /// Writes a descriptor into the queue of a peer, once there is a place.
        fn post(&self, peer: u32, operation: u64, size: u64, words: &[(usize, u64)]) {
            let [written, done] = [self.written, self.done].map(|all| word32(all + 4 * u64::from(peer)));
            let index = written.fetch_add(1, Ordering::Relaxed);
            while index.wrapping_sub(done.load(Ordering::Acquire)) >= self.depth {
                yield_now();
            }
            let mut descriptor = [1u64; WORDS];
            descriptor[0] |= size << 7;
            descriptor[7] |= operation << 8;
            words.iter().for_each(|(at, word)| descriptor[*at] |= *word);
            let descriptor = if self.is_short { &Self::shortened(&descriptor)[..] } else { &descriptor };
            let place = u64::from(peer * self.depth + index % self.depth) * 8 * descriptor.len() as u64;
            // The words may be seen in any order.
            for (number, word) in descriptor.iter().enumerate().rev() {
                word64(self.queues + place + 8 * number as u64).store(*word, Ordering::Release);
            }
        }

        /// Waits until everything that was written for a peer is done.
        fn flush(&self, peer: u32) {
            let [written, done] = [self.written, self.done].map(|all| word32(all + 4 * u64::from(peer)));
            let last = written.load(Ordering::Relaxed);
            while done.load(Ordering::Acquire).wrapping_sub(last).cast_signed() < 0 {
                yield_now();
            }
        }

        /// Puts with a counter, and adds 3 to a signal.
        fn put(&self, peer: u32, (from, to): ([u64; 2], [u64; 2]), size: u64, signal: u64) {
            let words = [&place(1, from)[..], &place(3, to), &[(5, signal << 24 | 3 << 48)]].concat();
            self.post(peer, op::PUT | op::COUNTER | op::SIGNAL_ADD, size, &words);
        }

        /// Puts a value, and raises a signal by one.
        fn put_value(&self, peer: u32, to: [u64; 2], value: u64, signal: u64) {
            let parts = [(1, (value & 0xffff_ffff_ffff) << 8), (2, (value >> 48) << 8), (5, signal << 24)];
            self.post(peer, op::PUT | op::INLINE | op::SIGNAL_INC, 8, &[&place(3, to)[..], &parts].concat());
        }

        fn wait(&self, signal: u64, least: u64) {
            while word64(self.signals + 8 * signal).load(Ordering::Acquire) < least {
                yield_now();
            }
        }
    }

    /// The words of a place: its offset, and the number that device code finds in the struct of the window.
    fn place(at_word: usize, [window, offset]: [u64; 2]) -> [(usize, u64); 2] {
        let (first_4k, number): (u32, u64) = (at(window + 32), at(window + 40));
        assert!(first_4k == 0 && number > 0);
        [(at_word, offset << 1), (at_word + 1, number << 1)]
    }

    /// One rank.
    struct Rank {
        comm: usize,
        rank: u32,
        ranks: u32,
        memory: u64,
        window: u64,
        made: Vec<u8>,
        /// The buffer, the first signal and the first counter of its resource.
        part: [u32; 3],
        layout: (Family, Form),
    }

    impl Rank {
        fn comm(&self) -> Comm {
            self.comm as Comm
        }

        /// Puts to all ranks, itself among them, and looks at what all put, in both contexts.
        fn exchange(&self, meetings: &mut u64) {
            let (rank, ranks) = (u64::from(self.rank), u64::from(self.ranks));
            for context in 0..2 {
                let kernel = Kernel::new(&self.made, self.layout, context);
                let value = |of: u64, round: u64| of << 32 | context << 16 | round;
                for round in 1..=ROUNDS {
                    for at in 0..PART / 8 {
                        word64(self.memory + 8 * at).store(value(rank, round) + at, Ordering::Release);
                    }
                    for peer in 0..self.ranks {
                        let to = [self.window, PART * (rank + 1)];
                        kernel.put(peer, ([self.window, 0], to), PART, PUTS);
                        let to = [self.window, VALUES + 8 * rank];
                        kernel.put_value(peer, to, value(rank, round), VALUE_SIGNAL);
                    }
                    kernel.wait(PUTS, 3 * round * ranks);
                    kernel.wait(VALUE_SIGNAL, round * ranks);
                }
                for peer in 0..ranks {
                    let from = self.memory + PART * (peer + 1);
                    for at in [0, 1, PART / 8 - 1] {
                        let found = word64(from + 8 * at).load(Ordering::Acquire);
                        assert_eq!(found, value(peer, ROUNDS) + at, "word {at} that rank {peer} put");
                    }
                    let said = word64(self.memory + VALUES + 8 * peer).load(Ordering::Acquire);
                    assert_eq!(said, value(peer, ROUNDS), "the value that rank {peer} put");
                }
                (0..self.ranks).for_each(|peer| kernel.flush(peer));
                let counted = word64(kernel.counters).load(Ordering::Acquire);
                assert_eq!(counted, ROUNDS * ranks, "a counter for all puts");
                self.meet(meetings);
            }
        }

        /// Gets a part of each rank, adds to a word of each, and puts into the resources of each.
        fn get(&self, meetings: &mut u64) {
            let (rank, ranks) = (u64::from(self.rank), u64::from(self.ranks));
            let kernel = Kernel::new(&self.made, self.layout, 0);
            let sum = VALUES + 2048;
            for peer in 0..self.ranks {
                let to = PART * (ranks + 1 + u64::from(peer));
                let words = [place(1, [self.window, 0]), place(3, [self.window, to])].concat();
                kernel.post(peer, op::GET, PART, &words);
                kernel.flush(peer);
                let found = word64(self.memory + to).load(Ordering::Acquire);
                assert_eq!(found, u64::from(peer) << 32 | 1 << 16 | ROUNDS, "what rank {peer} has");
                let words = [&place(1, [self.window, sum])[..], &[(5, 5 << 48)]].concat();
                kernel.post(peer, op::WINDOW_SIGNAL | op::SIGNAL_ADD, 0, &words);
            }
            kernel.post(self.rank, op::FLUSH, 0, &[]);
            let resources = Family::resource_window(&self.made);
            let [buffer, signal, _] = self.part.map(u64::from);
            let buffer = buffer * 128;
            for peer in 0..self.ranks {
                kernel.put_value(peer, [resources, buffer + 8 * rank], 1000 + rank, signal + 3);
            }
            kernel.wait(signal + 3, ranks);
            let found = word64(self.memory + sum).load(Ordering::Acquire);
            assert_eq!(found, 5 * ranks, "what all ranks add to a word");
            let (base, stride, row): (u64, u32, u32) =
                (at(resources + 8), at(resources + 24), at(resources + 16));
            let own = base + (u64::from(row * stride) << 32) + buffer;
            for peer in 0..ranks {
                assert_eq!(word64(own + 8 * peer).load(Ordering::Acquire), 1000 + peer);
            }
            self.meet(meetings);
        }

        /// Nobody goes on before all are here.
        fn meet(&self, meetings: &mut u64) {
            let kernel = Kernel::new(&self.made, self.layout, 1);
            for peer in 0..self.ranks {
                kernel.put_value(peer, [self.window, VALUES + 3072 + 8 * u64::from(self.rank)], 0, MEETING);
            }
            *meetings += 1;
            kernel.wait(MEETING, *meetings * u64::from(self.ranks));
            (0..self.ranks).for_each(|peer| kernel.flush(peer));
        }

        fn run(&self) {
            let _alarm = Alarm;
            let mut meetings = 0;
            let before = fake("fake_copies_within");
            self.exchange(&mut meetings);
            if self.layout.1 != Form::Short {
                self.get(&mut meetings);
            }
            let after = fake("fake_copies_within");
            assert_eq!(after, before, "copies for which kernels would have to make room");
        }

        /// The same by a call of the host, and the way of its bytes.
        fn put_and_signal(&self, way: &str) {
            let peer = 1 - self.rank;
            let to = |rank: u32| PART * (10 + u64::from(rank));
            let before = bytes_put(way);
            let (from, window, to_peer) = (self.memory as Ptr, self.window as Ptr, to(self.rank) as usize);
            let peer = peer.cast_signed();
            ok(ncclPutSignal(
                from,
                PART as usize / 4,
                7,
                peer,
                window,
                to_peer,
                0,
                0,
                0,
                self.comm(),
                null(),
            ));
            let awaited = [1, peer, 0, 0];
            ok(ncclWaitSignal(1, awaited.as_ptr().cast(), self.comm(), null()));
            let at = self.memory + to(peer.unsigned_abs());
            let value = u64::from(peer.unsigned_abs()) << 32 | 1 << 16 | ROUNDS;
            for word in 0..PART / 8 {
                while word64(at + 8 * word).load(Ordering::Acquire) != value + word {
                    yield_now();
                }
            }
            while bytes_put(way) - before < PART {
                yield_now();
            }
        }

        fn end(self) {
            ok(ncclDevCommDestroy(self.comm(), self.made.as_ptr().cast()));
            ok(ncclCommWindowDeregister(self.comm(), self.window as Ptr));
            ok(ncclCommDestroy(self.comm()));
            ok(ncclMemFree(self.memory as Ptr));
        }
    }

    /// `ncclDevResourceRequirements_t`.
    #[repr(C)]
    struct Resource {
        next: u64,
        bytes: u64,
        align: u64,
        out_buffer: *mut u32,
        signals: i32,
        counters: i32,
        out_signal: *mut u32,
        out_counter: *mut u32,
    }

    /// Makes windows and communicators for kernels of a version, all in one thread.
    fn ranks(comms: Vec<Comm>, version: u32, layout: (Family, Form)) -> Vec<Rank> {
        let mut all: Vec<Rank> = comms.iter().map(|&comm| with_memory(comm, layout)).collect();
        let mut windows = vec![std::ptr::null(); all.len()];
        ok(ncclGroupStart());
        for (rank, window) in all.iter().zip(&mut windows) {
            ok(ncclCommWindowRegister(rank.comm(), rank.memory as Ptr, BYTES as usize, window, 1));
        }
        ok(ncclGroupEnd());
        let mut resources = Vec::new();
        for rank in &mut all {
            let part = rank.part.as_mut_ptr();
            // SAFETY: three numbers, of which each gets one.
            let [out_buffer, out_signal, out_counter] = [0, 1, 2].map(|number| unsafe { part.add(number) });
            let (signals, counters) = (OF_RESOURCE as i32, 2);
            let (next, bytes, align) = (0, 256, 128);
            resources.push(Resource {
                next,
                bytes,
                align,
                out_buffer,
                signals,
                counters,
                out_signal,
                out_counter,
            });
        }
        ok(ncclGroupStart());
        for (rank, resource) in all.iter_mut().zip(&resources) {
            let mut needs = [0u32; 30];
            needs[..4].copy_from_slice(&[120, 0, 0xcafe_beef, version]);
            let address = &raw const *resource as u64;
            (needs[4], needs[5]) = (address as u32, (address >> 32) as u32);
            // Contexts, signals, counters, all ranks connected, and places in a queue.
            (needs[15], needs[16], needs[17], needs[18], needs[20]) = (2, SIGNALS as u32, 1, 1, 8);
            // In 2.28 they have no header, and end with the counters.
            let from = if layout.1 == Form::Short { 4 } else { 0 };
            let needs = needs[from..].as_ptr();
            ok(ncclDevCommCreate(rank.comm(), needs.cast(), rank.made.as_mut_ptr().cast()));
        }
        ok(ncclGroupEnd());
        for (rank, window) in all.iter_mut().zip(windows) {
            rank.window = window as u64;
            assert_eq!(rank.part[1..], [SIGNALS as u32, 1], "behind those of the program");
        }
        all
    }

    fn with_memory(comm: Comm, layout: (Family, Form)) -> Rank {
        let (mut rank, mut ranks, mut memory) = (0, 0, std::ptr::null_mut());
        ok(ncclCommUserRank(comm, &mut rank));
        ok(ncclCommCount(comm, &mut ranks));
        ok(ncclMemAlloc(&mut memory, BYTES as usize));
        let (rank, ranks) = (rank.unsigned_abs(), ranks.unsigned_abs());
        let made = vec![0; 256];
        let (comm, memory) = (comm as usize, memory as u64);
        Rank { comm, rank, ranks, memory, window: 0, made, part: [0; 3], layout }
    }

    #[test]
    fn ranks_of_a_load_store_team_put_and_get() {
        with_fake_kernels(module_path!(), "ranks_of_a_load_store_team_put_and_get", &ENV, || {
            for (version, layout) in [
                (22809, (Family::V228, Form::Short)),
                (23004, (Family::V230, Form::Bare)),
                (23007, (Family::V230, Form::Counted)),
                (23203, (Family::V232, Form::Promising)),
            ] {
                let ranks = ranks(several(2), version, layout);
                scope(|scope| ranks.iter().for_each(|rank| drop(scope.spawn(|| rank.run()))));
                ranks.into_iter().for_each(Rank::end);
            }
            ncclResetDebugInit();
            hawser_base::log::set_last_error("");
        });
    }

    #[test]
    fn ranks_of_two_hosts_put_and_get() {
        const NAME: &str = "ranks_of_two_hosts_put_and_get";
        with_fake_kernels(module_path!(), NAME, &ENV, || of_two_processes(NAME, Some("another"), "messages"));
    }

    /// All that is put, and what is got, goes over the net plugin, through slots in memory of the host.
    #[test]
    fn ranks_of_two_hosts_put_and_get_over_the_net() {
        const NAME: &str = "ranks_of_two_hosts_put_and_get_over_the_net";
        let env: Vec<_> = ENV.into_iter().chain([("HAWSER_PUT_NET", "1")]).collect();
        with_fake_kernels(module_path!(), NAME, &env, || {
            of_two_processes(NAME, Some("another"), "net");
            let [memory, net, messages] = ["memory", "net", "messages"].map(bytes_put);
            // In two contexts and all rounds, a part that the other one got, and that of the call.
            assert_eq!((net, messages), ((2 * ROUNDS + 2) * PART, 0));
            assert!(memory >= 2 * ROUNDS * PART, "{memory}");
        });
    }

    /// Bytes that were put in some way, of this process.
    fn bytes_put(way: &str) -> u64 {
        let label = [("way".to_owned(), way.to_owned())];
        let is_it = |figure: &Reading| figure.name == "put_bytes_total" && figure.labels[..] == label;
        figures::all().into_iter().find(is_it).map_or(0, |figure| figure.value)
    }

    #[test]
    fn ranks_of_two_processes_of_a_host_put_and_get() {
        const NAME: &str = "ranks_of_two_processes_of_a_host_put_and_get";
        with_fake_kernels(module_path!(), NAME, &ENV, || of_two_processes(NAME, None, "memory"));
    }

    /// Starts the test `name` once more as the second rank, on a host with this name, if any.
    fn of_two_processes(name: &str, host: Option<&str>, way: &str) {
        let team = if host.is_some() { 1 } else { 2 };
        let identity = || {
            let mut id = Id([0; 128]);
            ok(ncclGetUniqueId(&mut id));
            id.0.to_vec()
        };
        let env: Vec<(&str, &str)> = host.map(|host| ("NCCL_HOSTID", host)).into_iter().collect();
        in_two_processes((module_path!(), name), &env, identity, |identity, rank| {
            of_process(Id(identity.try_into().unwrap()), rank.cast_signed(), (team, way));
        });
    }

    fn of_process(id: Id, rank: i32, (team, way): (i32, &str)) {
        let _alarm = Alarm;
        let mut comm = std::ptr::null_mut();
        ok(ncclCommInitRank(&mut comm, 2, id, rank));
        assert_eq!(ncclTeamLsa(comm).0, team, "ranks of the load-store team");
        let rank = ranks(vec![comm], 23007, (Family::V230, Form::Counted)).remove(0);
        rank.run();
        rank.put_and_signal(way);
        rank.end();
        ncclResetDebugInit();
        hawser_base::log::set_last_error("");
    }

    /// A descriptor that cannot be carried out ends the communicator, and sets the word that kernels look at.
    #[test]
    fn what_cannot_be_carried_out_ends_kernels() {
        const NAME: &str = "what_cannot_be_carried_out_ends_kernels";
        with_fake_kernels(module_path!(), NAME, &ENV, || {
            let last = format!("a signal behind the last of {}", SIGNALS + OF_RESOURCE);
            for (signal, size, text) in
                [(SIGNALS + OF_RESOURCE, PART, &*last), (PUTS, BYTES, "do not fit window 0")]
            {
                let layout = (Family::V230, Form::Counted);
                let ranks = ranks(several(2), 23007, layout);
                let flag = layout.0.offsets().abort_flag.unwrap();
                let flag = u64::from_ne_bytes(ranks[0].made[flag..][..8].try_into().unwrap());
                assert_eq!(word32(flag).load(Ordering::Acquire), 0);
                let window = ranks[0].window;
                let kernel = Kernel::new(&ranks[0].made, layout, 1);
                kernel.put(1, ([window, 0], [window, PART]), size, signal);
                while word32(flag).load(Ordering::Acquire) == 0 {
                    yield_now();
                }
                let mut state = 0;
                ok(ncclCommGetAsyncError(ranks[0].comm(), &mut state));
                let error = last_error();
                assert!(
                    state != 0 && error.contains(text) && error.contains("a transfer of a kernel"),
                    "{error}"
                );
                for rank in ranks {
                    ok(ncclCommAbort(rank.comm()));
                    ok(ncclMemFree(rank.memory as Ptr));
                }
                ncclResetDebugInit();
                hawser_base::log::set_last_error("");
            }
        });
    }
}
