//! Communicators for kernels: what programs of all versions ask for, and what is refused. On the host device,
//! which runs no kernels, everything else ends with that answer.

mod support;

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use support::*;

/// `ncclDevCommRequirements_t` of 2.32 as words, all zero but the header.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Needs([u32; 30]);

/// Words of single fields.
const RESOURCES: usize = 4;
const TEAMS: usize = 6;
const LSA_MULTIMEM: usize = 8;
const BARRIERS: usize = 9;
const LSA_BARRIERS: usize = 10;
const GIN_FORCE: usize = 14;

/// A resource or team as words: its list goes on where the first two point.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Entry([u32; 14]);

impl Needs {
    fn of(version: u32) -> Self {
        let mut words = [0; 30];
        words[..4].copy_from_slice(&[120, 0, 0xcafe_beef, version]);
        Self(words)
    }

    fn with(mut self, word: usize, value: u32) -> Self {
        self.0[word] = value;
        self
    }

    fn list(mut self, word: usize, entry: *const Entry) -> Self {
        let address = entry as u64;
        (self.0[word], self.0[word + 1]) = (address as u32, (address >> 32) as u32);
        self
    }

    /// The struct as it was until 2.28: without a header, and shorter.
    fn headless(&self) -> [u64; 7] {
        let word = |at: usize| u64::from(self.0[4 + 2 * at]) | u64::from(self.0[5 + 2 * at]) << 32;
        [0, 1, 2, 3, 4, 5, 6].map(word)
    }

    fn create(&self, comm: Comm) -> c_int {
        let mut out = [0x5555_5555u32; 64];
        let code = ncclDevCommCreate(comm, self.0.as_ptr().cast(), out.as_mut_ptr().cast());
        assert_eq!(out, [0x5555_5555; 64], "nothing is written after a refusal");
        code
    }
}

fn refused(code: c_int, expected: c_int, words: &[&str]) {
    let text = last_error();
    assert_eq!(code, expected, "{text}");
    assert!(text.starts_with("ncclDevCommCreate: "), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}

#[test]
fn all_known_versions_are_understood() {
    let _turn = turn();
    let comm = single();
    let no_kernels = ["no communicators for kernels", "host device"];
    for version in [22902, 22907, 23003, 23004, 23007, 23203] {
        refused(Needs::of(version).with(LSA_BARRIERS, 4).create(comm), INVALID_USAGE, &no_kernels);
    }
    let needs = Needs::of(0).with(LSA_BARRIERS, 4).headless();
    let mut out = [0u32; 64];
    let code = ncclDevCommCreate(comm, needs.as_ptr().cast(), out.as_mut_ptr().cast());
    refused(code, INVALID_USAGE, &no_kernels);
    for (version, words) in [(23102, "NCCL 2.31.2"), (23206, "NCCL 2.32.6"), (22803, "NCCL 2.28.3")] {
        refused(Needs::of(version).create(comm), INVALID_USAGE, &[words, "2.32.3"]);
    }
    // A program that compiles its kernels when it runs has this library's layout, whatever its own.
    refused(Needs::of(23102).with(26, 1).create(comm), INVALID_USAGE, &no_kernels);
    ok(ncclCommDestroy(comm));
}

#[test]
fn what_needs_counted_transfers_multicast_or_an_unasked_network_is_refused() {
    let _turn = turn();
    let comm = single();
    let needs = Needs::of(23203);
    refused(needs.with(27, 1).create(comm), INVALID_USAGE, &["cftCaps"]);
    // What needs the network has to ask for connections, and only some versions have it.
    let is_none = "ginConnectionType is NONE";
    for (word, name) in [(16, "ginSignalCount"), (17, "ginCounterCount")] {
        refused(needs.with(word, 1).create(comm), INVALID_ARGUMENT, &[name, is_none]);
    }
    for (word, name) in [(GIN_FORCE, "ginConnectionType"), (16, "ginSignalCount")] {
        refused(Needs::of(22907).with(word, 1).create(comm), INVALID_USAGE, &[name, "2.29.7", "2.30.3"]);
    }
    let no_kernels = ["no communicators for kernels", "host device"];
    refused(needs.with(GIN_FORCE, 1).with(16, 1).create(comm), INVALID_USAGE, &no_kernels);
    refused(needs.with(18, 1).with(25, 3).create(comm), INVALID_USAGE, &["ginType is 3"]);
    refused(needs.with(LSA_MULTIMEM, 1).create(comm), INVALID_ARGUMENT, &["lsaMultimem", "multimemSupport"]);
    let mut team = Entry([0; 14]);
    team.0[5] = 1;
    refused(needs.list(TEAMS, &team).create(comm), INVALID_ARGUMENT, &["teamRequirementsList"]);
    let mut resource = Entry([0; 14]);
    resource.0[8] = 1;
    refused(
        needs.list(RESOURCES, &resource).create(comm),
        INVALID_ARGUMENT,
        &["resourceRequirementsList", is_none],
    );
    // A C bool is any byte.
    refused(needs.with(LSA_MULTIMEM, 0x80).create(comm), INVALID_ARGUMENT, &["lsaMultimem"]);
    ok(ncclCommDestroy(comm));
}

#[test]
fn bad_arguments_are_refused() {
    let _turn = turn();
    let comm = single();
    let needs = Needs::of(23007);
    let at = needs.0.as_ptr().cast();
    refused(ncclDevCommCreate(comm, null(), at), INVALID_ARGUMENT, &["reqs is NULL"]);
    refused(ncclDevCommCreate(comm, at, null()), INVALID_ARGUMENT, &["outDevComm is NULL"]);
    refused(needs.with(BARRIERS, u32::MAX).create(comm), INVALID_ARGUMENT, &["barrierCount is -1"]);
    refused(needs.with(LSA_BARRIERS, u32::MAX).create(comm), INVALID_ARGUMENT, &["lsaBarrierCount is -1"]);
    let mut resource = Entry([0; 14]);
    resource.0[4] = 3;
    refused(needs.list(RESOURCES, &resource).create(comm), INVALID_ARGUMENT, &["bufferAlign is 3"]);
    resource.0[4] = 0;
    (resource.0[2], resource.0[3]) = (u32::MAX, u32::MAX);
    refused(needs.list(RESOURCES, &resource).create(comm), INVALID_ARGUMENT, &["bufferSize"]);
    // Lists that bite their tails.
    let (mut resource, mut team) = (Entry([0; 14]), Entry([0; 14]));
    for (list, entry) in [(RESOURCES, &mut resource), (TEAMS, &mut team)] {
        let address = &raw const *entry as u64;
        (entry.0[0], entry.0[1]) = (address as u32, (address >> 32) as u32);
        refused(needs.list(list, entry).create(comm), INVALID_ARGUMENT, &["has no end"]);
    }
    let nothing = [0u64; 31];
    assert_eq!(ncclDevCommDestroy(comm, null()), INVALID_ARGUMENT);
    assert_eq!(ncclDevCommDestroy(comm, nothing.as_ptr().cast()), INVALID_ARGUMENT);
    assert!(last_error().contains("none of this communicator"), "{}", last_error());
    ok(ncclCommDestroy(comm));
}

#[test]
fn properties_tell_what_is_offered() {
    let _turn = turn();
    let comm = single();
    let mut properties = [0u64; 19];
    (properties[0], properties[1]) = (152, 0xcafe_beef | 23203 << 32);
    ok(ncclCommQueryProperties(comm, properties.as_mut_ptr().cast()));
    assert_eq!(properties[4] & 0xffff, 0, "no kernels of programs on the host device, no multicast");
    assert_eq!(properties[17], 248, "length of an ncclDevComm of 2.32.3");
    assert_eq!(ncclDevCommCreate(null_mut(), null(), null()), INVALID_ARGUMENT);
    ok(ncclCommDestroy(comm));
}
