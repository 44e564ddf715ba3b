//! Copies that need no multiprocessors.

use super::*;

#[test]
fn copies_beside_kernels_leave_their_gpu_or_pass_through_the_host() {
    const NAME: &str = "copies::copies_beside_kernels_leave_their_gpu_or_pass_through_the_host";
    with_fake_driver(NAME, &[], || {
        let (device, other) = (opened(0), opened(1));
        let words = device.host_words(1000).unwrap();
        let (from, to, there) =
            (device.alloc(5000).unwrap(), device.alloc(5000).unwrap(), other.alloc_as_user(5000).unwrap());
        let sent: Vec<u8> = (0..5000u32).map(|at| (at % 251) as u8).collect();
        device.upload(from.addr, &sent).unwrap();
        let stream = device.urgent_stream().unwrap();
        let bounce = (words.memory.addr, 1000);
        // Another thread captures: copying is allowed all the same.
        set_capturing(1);
        for (to, from, bytes) in [
            (to.addr, from.addr, 5000),
            (to.addr, from.addr, 0),
            (to.addr + 1, from.addr, 999),
            (to.addr, from.addr, 1),
            (there.addr, from.addr, 5000),
        ] {
            device.copy_beside_kernels(&stream, to, from, bytes, bounce).unwrap();
        }
        assert_eq!(fake("fake_copies_within"), 0);
        device.copy_and_wait(&stream, words.memory.addr, from.addr, 8).unwrap();
        set_capturing(0);
        let here = bytes_at(&*device, to.addr, 5000);
        assert_eq!((&here[..1], &here[1..1000], &here[1000..]), (&sent[..1], &sent[..999], &sent[1000..]));
        assert_eq!(bytes_at(&*other, there.addr, 5000), sent);
        device.copy_and_wait(&stream, to.addr, from.addr, 8).unwrap();
        assert_eq!(fake("fake_copies_within"), 1, "a copy of the driver's");
        drop((from, to, there, words, stream, device, other));
        assert_eq!(fake("fake_live"), 0);
    });
}
