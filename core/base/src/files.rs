//! Files and descriptors, with care: what a user names may be a pipe or have no end, descriptors 0 to 2 are
//! the program's, and a file may reach the limit of its size.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};

/// The most bytes of a file with settings.
pub const MOST_SETTINGS: u64 = 1 << 20;

/// The most bytes of a file with a key.
const MOST_KEY: u64 = 4096;

/// The fewest bytes of a key.
const LEAST_KEY: usize = 16;

/// The time that reading a file may take, whatever its file system does.
const PATIENCE: Duration = Duration::from_secs(30);

/// The text of a regular file of at most so many bytes. A pipe or a device is an error, and so is a file
/// system that does not answer in 30 s.
///
/// # Errors
/// The file cannot be opened or read, is no regular file or too long, or its text is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read_bytes(path, most)?).map_err(|_| io::Error::other("its text is not UTF-8"))
}

/// Does what a slow file system may hold up in a thread of its own, and waits for at most so long: a system
/// call cannot be given up. A thread that is held goes on alone.
///
/// # Errors
/// As `work`; `TimedOut` where it takes longer; the thread cannot be started.
pub fn in_time<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = mpsc::sync_channel(1);
    let run = move || drop(done.send(work()));
    std::thread::Builder::new().name("hawser-file".into()).spawn(run)?;
    outcome.recv_timeout(limit).unwrap_or_else(|_| {
        let text = format!("its file system has not answered for {} s", limit.as_secs_f32());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

/// The key of a file, for a secret that ranks share: all its bytes but the white space at its ends.
///
/// # Errors
/// The file cannot be opened or read, is no regular file, or too short or long for a key; the text says what
/// to do.
pub fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_bytes(path, MOST_KEY)?;
    let key = bytes.trim_ascii();
    if key.len() < LEAST_KEY {
        return Err(io::Error::other(format!(
            "its key has {} bytes, which can be guessed; {LEAST_KEY} are the least. Make one with \
             'openssl rand -hex 32'",
            key.len()
        )));
    }
    Ok(key.to_vec())
}

/// Tells whether others than its owner and group may read a file.
pub fn is_readable_by_others(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.mode() & 0o004 != 0)
}

/// The bytes of a regular file, at most so many.
///
/// # Errors
/// As [`read_text`].
pub fn read_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    in_time(PATIENCE, move || read_at_once(&path, most))
}

fn read_at_once(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for somebody to write.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

/// Keeps descriptors 0 to 2 out of use: one that the program has closed leads to `/dev/null` from now on, so
/// that what is printed never goes into a connection. Asked before anything is opened for a communicator.
pub fn keep_standard_descriptors() {
    for _ in 0..3 {
        let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
        let number = null.as_raw_fd();
        if number > 2 {
            return;
        }
        // Programs that are started later expect the three as well.
        let _ = fcntl_setfd(&null, FdFlags::empty());
        let _ = null.into_raw_fd();
    }
}

/// Writes all bytes to a file; where that reaches the limit of a file's size (`ulimit -f`) it is an error,
/// and not the end of the process (SIGXFSZ).
///
/// # Errors
/// As [`io::Write::write_all`].
pub fn write_within_limit(mut file: &std::fs::File, bytes: &[u8]) -> io::Result<()> {
    let mut meant = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are written before they are read, and the mask is this thread's alone.
    unsafe {
        libc::sigemptyset(meant.as_mut_ptr());
        libc::sigaddset(meant.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, meant.as_ptr(), before.as_mut_ptr());
    }
    let written = io::Write::write_all(&mut file, bytes);
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the sets were written above; the signal that the write raised for this thread is taken before
    // it is let through again.
    unsafe {
        if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFBIG)) {
            libc::sigtimedwait(meant.as_ptr(), std::ptr::null_mut(), &raw const no_time);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_no_file_with_settings_and_neither_is_one_without_end() {
        let folder = std::env::temp_dir().join(format!("hawser-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (pipe, file) = (folder.join("pipe"), folder.join("file"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "text");
        assert!(read_text(&file, 3).unwrap_err().to_string().contains("longer than 3"));
        for endless in [&pipe, Path::new("/dev/zero"), &folder] {
            assert!(read_text(endless, MOST_SETTINGS).unwrap_err().to_string().contains("no regular file"));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_an_error() {
        let (held, holds) = mpsc::channel::<()>();
        let error = in_time(Duration::from_millis(20), move || holds.recv().map_err(io::Error::other));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("has not answered"), "{error}");
        drop(held);
        assert_eq!(in_time(PATIENCE, || Ok(7)).unwrap(), 7);
        assert_eq!(in_time(PATIENCE, || Err::<(), _>(io::Error::other("no"))).unwrap_err().to_string(), "no");
    }

    #[test]
    fn a_key_is_any_bytes_without_the_end_of_the_line_and_not_a_few() {
        let file = std::env::temp_dir().join(format!("hawser-key-{}", std::process::id()));
        std::fs::write(&file, b"\xff123456789abcdef\n").unwrap();
        assert_eq!(read_key(&file).unwrap(), b"\xff123456789abcdef");
        for (wrong, why) in
            [(&b"15 bytes, no key\n"[..15], "15 bytes"), (b" \n", "0 bytes"), (&[7; 4097], "longer")]
        {
            std::fs::write(&file, wrong).unwrap();
            let error = read_key(&file).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read_key(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
