//! The ways out for figures: a file that node_exporter's textfile collector reads, and an HTTP endpoint for
//! Prometheus itself, on loopback or a socket of the file system.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hawser_plugin::{Error, Log, Result, Subsys};
use rustix::event::{PollFd, PollFlags, poll};

use crate::metrics::Metrics;
use crate::settings::Listen;

/// The longest time for which a client may take to ask, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest question.
const MOST_BYTES: usize = 8 << 10;
/// Time between two looks whether the endpoint is to end.
const LOOK: i64 = 200_000_000;

/// The figures of a process with the thread that writes the file, and the one that answers; they end when
/// this is dropped.
pub struct Figures {
    /// The figures.
    pub metrics: Arc<Metrics>,
    file: Option<PathBuf>,
    log: Log,
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    /// The socket's name in the file system.
    socket: Option<PathBuf>,
}

impl Figures {
    /// Begins to write a file every so often, and to answer.
    ///
    /// # Errors
    /// The file cannot be written, the address is taken, or the system has no thread left.
    pub fn start(
        metrics: Arc<Metrics>,
        (file, every): (Option<PathBuf>, Duration),
        listen: Option<&Listen>,
        log: &Log,
    ) -> Result<Self> {
        let (stop, threads) = (Vec::new(), Vec::new());
        let mut exposed = Self { metrics, file: None, log: log.clone(), stop, threads, socket: None };
        if let Some(file) = file {
            exposed.write_file(file, every)?;
        }
        if let Some(listen) = listen {
            exposed.listen(listen)?;
        }
        Ok(exposed)
    }

    fn write_file(&mut self, file: PathBuf, every: Duration) -> Result<()> {
        let failed = |error| Error::system(format!("profiler: writing metrics to {}", file.display()), error);
        write(&self.metrics, &file).map_err(failed)?;
        self.file = Some(file.clone());
        let (metrics, log) = (self.metrics.clone(), self.log.clone());
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            let mut said = false;
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                match write(&metrics, &file) {
                    Err(error) if !said => {
                        log.warn(format!("profiler: writing metrics to {} failed: {error}", file.display()));
                        said = true;
                    }
                    outcome => said &= outcome.is_err(),
                }
            }
        };
        self.thread(stop, run)
    }

    fn listen(&mut self, listen: &Listen) -> Result<()> {
        let failed = |error| Error::system(format!("profiler: offering metrics at {listen}"), error);
        let listener = Listener::bind(listen).map_err(failed)?;
        let place = listener.place();
        self.log.info(Subsys::PROFILE, format!("profiler: metrics at {place}"));
        if let Listen::Unix(path) = listen {
            self.socket = Some(path.clone());
        }
        let metrics = self.metrics.clone();
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                if listener.is_ready() {
                    listener.serve(&metrics);
                }
            }
        };
        self.thread(stop, run)
    }

    fn thread(&mut self, stop: Sender<()>, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name("hawser-metrics".into()).spawn(run);
        let thread =
            thread.map_err(|error| Error::system("profiler: starting a thread for metrics", error))?;
        self.stop.push(stop);
        self.threads.push(thread);
        Ok(())
    }
}

/// Writes the file a last time.
impl Drop for Figures {
    fn drop(&mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(file) = &self.file
            && let Err(error) = write(&self.metrics, file)
        {
            self.log.warn(format!("profiler: writing metrics to {} failed: {error}", file.display()));
        }
        if let Err(error) = self.metrics.flush() {
            self.log.warn(format!("profiler: the last figures for OpenTelemetry: pushing failed: {error}"));
        }
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
    }
}

/// Writes the figures; whoever reads sees the old ones or the new ones, never a part.
fn write(metrics: &Metrics, path: &Path) -> io::Result<()> {
    let text = metrics.text().map_err(io::Error::other)?;
    // The collector reads files that end in `.prom`.
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A socket at which clients ask.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp { address, last_port } => {
                let mut outcome = Err(ErrorKind::AddrInUse.into());
                // Processes of a host share a range of ports: each takes the first that is free.
                for port in address.port()..=*last_port {
                    outcome = TcpListener::bind(SocketAddr::new(address.ip(), port));
                    match &outcome {
                        Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                        _ => break,
                    }
                }
                let listener = outcome?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Listen::Unix(path) => {
                // A socket that a process has left behind answers nobody.
                let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
                if is_socket && UnixStream::connect(path).is_err() {
                    fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener))
            }
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "an unknown address".into(), |address| format!("http://{address}/metrics")),
            Self::Unix(listener) => {
                let path = listener.local_addr().ok();
                let path = path.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(|| "an unknown path".into(), |path| path.display().to_string())
            }
        }
    }

    /// Waits a short time for a client.
    fn is_ready(&self) -> bool {
        let mut waited = match self {
            Self::Tcp(listener) => [PollFd::new(listener, PollFlags::IN)],
            Self::Unix(listener) => [PollFd::new(listener, PollFlags::IN)],
        };
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK };
        match poll(&mut waited, Some(&time)) {
            Ok(count) => count > 0,
            Err(_) => {
                thread::sleep(Duration::from_nanos(LOOK as u64));
                false
            }
        }
    }

    /// Answers one client; what goes wrong with it is its own affair.
    fn serve(&self, metrics: &Metrics) {
        let outcome = match self {
            Self::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(PATIENCE))?;
                exchange(stream, |stream, left| stream.set_read_timeout(Some(left)), metrics)
            }),
            Self::Unix(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(PATIENCE))?;
                exchange(stream, |stream, left| stream.set_read_timeout(Some(left)), metrics)
            }),
        };
        if outcome.is_err() {
            // Without descriptors every client would wake this thread at once.
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads a question within [`PATIENCE`], and makes the answer.
fn answer(
    read: &mut dyn FnMut(&mut [u8], Duration) -> io::Result<usize>,
    metrics: &Metrics,
) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut question = Vec::new();
    let mut part = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let count = read(&mut part, left)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        question.extend_from_slice(&part[..count]);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&question) {
            Ok(httparse::Status::Complete(_)) => {
                return Ok(of_request(request.method.unwrap_or(""), request.path.unwrap_or(""), metrics));
            }
            Ok(httparse::Status::Partial) if question.len() < MOST_BYTES => {}
            Ok(httparse::Status::Partial) => {
                return Ok(response("431 Request Header Fields Too Large", "", true));
            }
            Err(error) => return Ok(response("400 Bad Request", &format!("{error}\n"), true)),
        }
    }
}

fn of_request(method: &str, path: &str, metrics: &Metrics) -> String {
    let has_body = method != "HEAD";
    let path = path.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => match metrics.text() {
            Ok(text) => response("200 OK", &text, has_body),
            Err(error) => response("500 Internal Server Error", &format!("{error}\n"), has_body),
        },
        ("GET" | "HEAD", _) => response("404 Not Found", "the figures are at /metrics\n", has_body),
        _ => response("405 Method Not Allowed", "GET and HEAD are answered\n", has_body),
    }
}

/// Reads a client's question and answers it; `limit` sets how long a read may take.
fn exchange<S: Read + Write>(
    mut stream: S,
    limit: impl Fn(&S, Duration) -> io::Result<()>,
    metrics: &Metrics,
) -> io::Result<()> {
    let mut read = |buffer: &mut [u8], left| {
        limit(&stream, left)?;
        stream.read(buffer)
    };
    let answer = answer(&mut read, metrics)?;
    stream.write_all(answer.as_bytes())
}

fn response(status: &str, body: &str, has_body: bool) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        body.len(),
        if has_body { body } else { "" }
    )
}

/// Reads bytes as what a client sends, in pieces as long as the first byte says, for a fuzz target.
///
/// # Panics
/// An answer is none.
pub fn fuzz_request(bytes: &[u8]) {
    static METRICS: std::sync::LazyLock<Metrics> = std::sync::LazyLock::new(|| {
        Metrics::new(0).unwrap_or_else(|error| panic!("figures without an operation: {error}"))
    });
    let Some((piece, mut rest)) = bytes.split_first() else { return };
    let mut read = |buffer: &mut [u8], _| {
        let count = rest.len().min(usize::from(*piece).max(1)).min(buffer.len());
        let (now, later) = rest.split_at(count);
        buffer[..count].copy_from_slice(now);
        rest = later;
        Ok(count)
    };
    if let Ok(text) = answer(&mut read, &METRICS) {
        assert!(text.starts_with("HTTP/1.1 ") && text.contains("\r\n\r\n"), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(parts: &[&[u8]]) -> io::Result<String> {
        let mut parts = parts.iter();
        let mut read = |buffer: &mut [u8], _| match parts.next() {
            Some(part) => {
                buffer[..part.len()].copy_from_slice(part);
                Ok(part.len())
            }
            None => Ok(0),
        };
        answer(&mut read, &Metrics::new(0).unwrap())
    }

    #[test]
    fn questions_are_answered_or_refused() {
        let good = asked(&[b"GET /metr", b"ics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"]).unwrap();
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n") && good.contains("\nhawser_operations_open{"),
            "{good}"
        );
        let head = asked(&[b"HEAD /metrics HTTP/1.0\r\n\r\n"]).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        for (question, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x00\x01\r\n\r\n", "400"),
        ] {
            let text = asked(&[question]).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        }
        let long = vec![&[b'a'; 1000][..]; 12];
        let mut parts: Vec<&[u8]> = vec![b"GET /metrics HTTP/1.1\r\nX: "];
        parts.extend(long);
        assert!(asked(&parts).unwrap().starts_with("HTTP/1.1 431 "));
        assert!(asked(&[b"GET /metrics"]).is_err(), "it hung up");
    }
}
