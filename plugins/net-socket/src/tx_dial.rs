//! The sending end dials: which socket is wanted, what becomes of it, and when the receiver counts as lost.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hawser_oob::seal::SessionKeys;
use hawser_oob::wire::Wire;
use hawser_plugin::Error;

use crate::control::Trouble;
use crate::greeting;
use crate::greeting::{Answer, Hello, Refusal, Socket};
use crate::outbound::{Ended, Start};
use crate::path;
use crate::pool::{Drive, lock};
use crate::service::{Member, Watch};
use crate::stats;
use crate::tx::TxConn;
use crate::tx_pipe::TxPipe;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The sender's knowledge of the ways to the receiver.
pub(crate) struct Paths {
    /// The addresses of the listener: those of the handle, then those that it told itself.
    remotes: Vec<SocketAddr>,
    /// Sockets dialled for control.
    dialled: u32,
    /// Since when the peer refuses.
    refused: Option<Instant>,
    /// The last reason why control could not be dialled.
    reason: String,
    /// Since when there is no data socket.
    no_pipes: Option<Instant>,
}

impl Paths {
    pub fn new(remotes: Vec<SocketAddr>) -> Self {
        Self { remotes, dialled: 0, refused: None, reason: "no answer yet".into(), no_pipes: None }
    }
}

impl TxConn {
    /// Everything that a dial needs; None if the socket is not wanted any more.
    pub fn begin_dial(&self, socket: Socket, attempt: u32) -> Option<Start> {
        let wanted = match socket {
            Socket::Control => !self.link.is_dead() || self.link.is_closed(),
            Socket::Pipe(_) => !self.link.is_dead(),
        };
        if !wanted {
            return None;
        }
        let (generation, consumed) = match socket {
            Socket::Pipe(pipe) => (self.pipes.get(usize::from(pipe))?.next_generation()?, 0),
            Socket::Control => {
                let mut control = lock(&self.control);
                if control.socket().is_some() {
                    return None;
                }
                let mut paths = lock(&self.paths);
                paths.dialled += 1;
                (paths.dialled, control.consumed())
            }
        };
        let (origin, to) = path::choose(&self.members, &lock(&self.paths).remotes, socket, attempt)?;
        let hello = Hello {
            listener: self.info.listener,
            connection: self.number,
            socket,
            pipes: self.pipes.len() as u16,
            generation,
            wire: self.shared.settings.wire,
        };
        let key = greeting::key(&self.info.secret);
        Some(Start { origin, to, hello, key, answer: Answer { consumed } })
    }

    /// A socket is connected and both ends trust it.
    ///
    /// # Errors
    /// Why it cannot be used; it has to be dialled again.
    pub fn dialled(
        &self,
        (fd, keys): (OwnedFd, Option<SessionKeys>),
        hello: &Hello,
        to: SocketAddr,
        consumed: u64,
        addresses: Vec<SocketAddr>,
    ) -> Result<(), String> {
        let keys = keys.filter(|_| hello.wire.is_sealed());
        match hello.socket {
            Socket::Control => {
                let watch = self.watch(&fd, hello.socket);
                self.control_dialled((fd, keys), hello, watch, consumed, addresses);
            }
            Socket::Pipe(pipe) => {
                let index = usize::from(pipe);
                let connection: Weak<dyn Drive> = self.me.clone();
                let ticket =
                    self.shared.pool.attach(fd.as_fd(), connection, index, index + self.number as usize);
                let ticket = ticket.map_err(|error| format!("no thread drives a data socket: {error}"))?;
                let is_far = !path::is_local(to.ip());
                // What is encrypted is a copy already.
                let zero_copy = is_far && self.shared.settings.zero_copy && keys.is_none();
                // The kernel reports the end of zero-copy sends as it does the end of a socket.
                let watch = if zero_copy { None } else { self.watch(&fd, hello.socket) };
                if !self.link.is_dead()
                    && self.pipes[index].attach(
                        (fd, keys),
                        hello.generation,
                        (ticket, watch),
                        is_far,
                        zero_copy,
                    )
                {
                    if hello.generation > 1 {
                        stats::add(&stats::REDIALLED, 1);
                        self.link.info(format!("data socket {index} is back"));
                    }
                    if self.link.is_dead() {
                        self.pipes[index].close();
                    }
                    self.move_chunks(false);
                    // It may have ended before the lane knew it.
                    self.ended(hello.socket);
                }
            }
        }
        Ok(())
    }

    fn control_dialled(
        &self,
        (fd, keys): (OwnedFd, Option<SessionKeys>),
        hello: &Hello,
        watch: Option<Watch>,
        consumed: u64,
        addresses: Vec<SocketAddr>,
    ) {
        let mut control = lock(&self.control);
        {
            let mut paths = lock(&self.paths);
            if control.socket().is_some() || paths.dialled != hello.generation {
                return;
            }
            paths.remotes = addresses;
            paths.refused = None;
        }
        let reported = self.shared.ready.report(fd.as_fd(), &self.readable);
        if let Err(text) = control.attach((fd, keys), watch, Some(reported), hello.generation, consumed) {
            drop(control);
            return self.handle(Err(Trouble::Peer(text)));
        }
        self.pump_locked(control);
        if self.is_up.swap(true, Ordering::AcqRel) {
            stats::add(&stats::REDIALLED, 1);
            self.link.info("the control socket is back");
        } else {
            (0..self.pipes.len()).for_each(|pipe| self.redial(Socket::Pipe(pipe as u16)));
        }
    }

    /// A dial failed. The pause before the next one; None if there is none.
    pub fn dial_failed(&self, socket: Socket, attempt: u32, ended: &Ended) -> Option<Duration> {
        if socket == Socket::Control {
            self.judge(ended);
        }
        if self.link.is_dead() && !(self.link.is_closed() && socket == Socket::Control) {
            return None;
        }
        Some((FIRST_PAUSE * 2u32.saturating_pow(attempt.min(8))).min(LONGEST_PAUSE))
    }

    /// Decides whether the peer is gone for good.
    fn judge(&self, ended: &Ended) {
        let mut paths = lock(&self.paths);
        let own = self.shared.settings.wire;
        let (reason, is_refusal) = match ended {
            Ended::Refused => ("its process is gone (connection refused)".to_string(), true),
            Ended::Unwanted(Refusal::Unknown) => ("it has closed its end".into(), true),
            Ended::Unwanted(Refusal::OtherWire) => {
                let theirs = if own.is_sealed() { Wire::Plain } else { Wire::Encrypt };
                let text =
                    format!("this end has HAWSER_WIRE={own}, the receiver {theirs}: give both the same");
                (text, true)
            }
            Ended::Unwanted(Refusal::Taken) => ("another sender has used the handle".into(), true),
            Ended::Wrong => ("what listens there does not know the secret of the handle".into(), true),
            Ended::Unwanted(Refusal::Stale) => ("an older connection is still there".into(), false),
            Ended::Failed(reason) => (reason.clone(), false),
            Ended::Well { .. } => return,
        };
        paths.reason.clone_from(&reason);
        if !is_refusal {
            paths.refused = None;
            return;
        }
        let since = *paths.refused.get_or_insert_with(Instant::now);
        drop(paths);
        if since.elapsed() >= self.shared.settings.patience_with_refusals() {
            self.link.fail(Error::remote(format!("the receiver is lost: {reason}")));
        }
    }

    /// Fails the connection when there has been no path for too long.
    pub(crate) fn watch_deadline(&self, control_down: Option<Duration>, busy: bool) {
        let limit = self.shared.settings.timeout;
        let pipes_down = {
            let mut paths = lock(&self.paths);
            if !busy || self.pipes.iter().any(TxPipe::is_up) {
                paths.no_pipes = None;
            } else {
                paths.no_pipes.get_or_insert_with(Instant::now);
            }
            paths.no_pipes.map(|since| since.elapsed())
        };
        if control_down.max(pipes_down).is_some_and(|down| down >= limit) {
            let reason = lock(&self.paths).reason.clone();
            let seconds = limit.as_secs();
            self.link.fail(Error::remote(format!(
                "no path to the receiver for {seconds} s (HAWSER_SOCKET_TIMEOUT): {reason}; check network \
                 and peer"
            )));
        }
    }

    fn watch(&self, fd: &OwnedFd, socket: Socket) -> Option<Watch> {
        let member: Weak<dyn Member> = self.me.clone();
        self.shared.service.watch(fd.as_fd(), member, socket)
    }
}
