//! A program that has closed its standard descriptors, and whose log reaches the limit of a file's size.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use hawser_base::files::{keep_standard_descriptors, write_within_limit};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors and limits are the process's, so this is one test.
#[test]
fn descriptors_0_to_2_are_the_programs_and_a_full_file_does_not_kill() {
    let kept: Vec<OwnedFd> = [std::io::stdin().as_raw_fd(), 1, 2].map(duplicate).into();
    // SAFETY: they are put back below, and nothing is printed meanwhile.
    (0..3).for_each(|number| assert_eq!(unsafe { libc::close(number) }, 0));
    keep_standard_descriptors();
    let opened = File::open("/proc/self/exe").unwrap();
    let leads_to = |number: i32| std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    let found: Vec<_> = (0..3).map(leads_to).collect();
    for (number, fd) in (0..).zip(&kept) {
        // SAFETY: both are open.
        unsafe { libc::dup2(fd.as_raw_fd(), number) };
    }
    assert!(opened.as_raw_fd() > 2, "a file of the library got descriptor {}", opened.as_raw_fd());
    assert!(found.iter().all(|path| path.as_os_str() == "/dev/null"), "{found:?}");

    let path = std::env::temp_dir().join(format!("hawser-limit-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: Some(1000), maximum }).unwrap();
    write_within_limit(&file, &[b'x'; 1000]).unwrap();
    for _ in 0..3 {
        let error = write_within_limit(&file, b"more").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    }
    setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
    write_within_limit(&file, b"more").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1004);
    std::fs::remove_file(path).unwrap();
}

/// A copy of a descriptor, above those that are closed.
fn duplicate(number: i32) -> OwnedFd {
    // SAFETY: the descriptor is one of the standard ones, which the test's process has.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(fd, 10).unwrap()
}
