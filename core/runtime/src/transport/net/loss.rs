//! Connections that failed, here or on another rank, and for how long it is asked who is to blame.

use std::time::{Duration, Instant};

use hawser_base::error::{Error, ErrorKind};

use super::drain::Drain;
use super::end::ConnectionKey;

/// The time for which a lost connection waits for its peer's goodbye, which travels another way.
const GRACE: Duration = Duration::from_secs(1);
/// The time for which a connection that the peer closed waits beyond that: a peer that failed tells the cause
/// meanwhile.
const CAUSE_GRACE: Duration = Duration::from_millis(500);
/// The time for which a failure that another rank tells of waits for the news that explain it. They travel
/// another way, and come all at once to a rank that was stopped.
const NEWS_GRACE: Duration = Duration::from_millis(500);

/// A connection that failed.
pub(super) struct Lost {
    pub key: ConnectionKey,
    pub error: Error,
    pub since: Instant,
    /// Slots that had come.
    pub come: u64,
    /// Slots had not been sent.
    pub is_unsent: bool,
}

impl Lost {
    /// True if the connection failed on this rank, and not because the peer closed it.
    pub fn is_cause(&self) -> bool {
        self.error.kind != ErrorKind::Remote
    }

    /// True if not all has come that the peer sent.
    pub fn is_short(&self, drain: &Drain) -> bool {
        drain.is_short(self.key, self.come)
    }

    /// True if neither the peer nor anybody else has said why it closed the connection, though it was time.
    pub fn is_unexplained(&self) -> bool {
        !self.is_cause() && self.since.elapsed() > GRACE
    }

    /// True if nothing more is awaited that could explain the loss.
    pub fn is_due(&self) -> bool {
        let waits = if self.is_cause() { GRACE } else { GRACE + CAUSE_GRACE };
        self.since.elapsed() > waits
    }
}

/// A failure that another rank has told of. That rank may not be to blame for it.
pub(super) struct Told {
    peer: u32,
    /// The rank that closed its connection with that one, which does not know why.
    blamed: Option<u32>,
    text: String,
    since: Instant,
}

/// The words by which a rank tells others of its failure.
pub(super) fn tell(error: &Error) -> Vec<u8> {
    let blamed = error.peer.filter(|_| error.kind == ErrorKind::Remote);
    let text = &error.text.as_bytes()[..error.text.len().min(1024)];
    [&blamed.unwrap_or(u32::MAX).to_le_bytes()[..], text].concat()
}

impl Told {
    /// Takes the words of a rank; none if they cannot be read.
    pub fn new(peer: u32, words: &[u8], own: u32) -> Option<Self> {
        let (blamed, text) = words.split_first_chunk()?;
        // Who is blamed itself knows of nothing.
        let blamed = Some(u32::from_le_bytes(*blamed)).filter(|blamed| ![own, u32::MAX].contains(blamed));
        let text = String::from_utf8_lossy(text).into_owned();
        Some(Self { peer, blamed, text, since: Instant::now() })
    }

    /// The communicator's error: by the verdict on who is to blame, or by the words alone once nothing more
    /// is awaited; none before.
    pub fn outcome(&self, verdict: Option<Error>) -> Option<Error> {
        let words = || format!("rank {} reports: {}", self.peer, self.text);
        match verdict {
            Some(why) if why.text.contains(&self.text) => Some(why),
            Some(why) => {
                let text = format!("{}; it showed as: {}", why.text, words());
                Some(why.with_text(text))
            }
            None if self.since.elapsed() > NEWS_GRACE => {
                Some(Error::remote(words()).with_peer(self.blamed.unwrap_or(self.peer)))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that was stopped while another one died hears first of those that failed in consequence.
    #[test]
    fn who_tells_of_a_failure_is_not_to_blame_while_news_may_come() {
        let failure = Error::remote("rank 5 failed receiving from rank 3: closed").with_peer(3);
        let mut told = Told::new(5, &tell(&failure), 0).unwrap();
        assert_eq!(told.outcome(None), None);
        let dead = || Error::remote("rank 3 has died").with_peer(3);
        let error = told.outcome(Some(dead())).unwrap();
        assert_eq!(error.peer, Some(3));
        assert_eq!(error.text.matches("rank 5 failed receiving").count(), 1, "{error}");
        let same = Error::remote(format!("rank 5 (process 1 on host a) reports: {}", told.text));
        assert_eq!(told.outcome(Some(same.clone())), Some(same));
        told.since = told.since.checked_sub(2 * NEWS_GRACE).unwrap();
        assert_eq!(told.outcome(None).unwrap().peer, Some(3), "it closed its connection");
        told.blamed = None;
        assert_eq!(told.outcome(None).unwrap().peer, Some(5));
        let own_fault = Error::internal("rank 5 failed sending to rank 3").with_peer(3);
        assert_eq!(Told::new(5, &tell(&own_fault), 0).unwrap().blamed, None, "its own NIC may be broken");
        assert_eq!(Told::new(5, &tell(&failure), 3).unwrap().blamed, None);
        assert!(Told::new(5, b"abc", 0).is_none());
    }
}
