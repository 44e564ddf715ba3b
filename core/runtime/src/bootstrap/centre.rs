//! The next centre of the news, when one has gone, and ranks that nobody tells news of.

use std::time::{Duration, Instant};

use super::auth::Role;
use super::fate::{TEXT_LIMIT, cut};
use super::peer::is_own_shortage;
use super::search::Search;
use super::watch::{Watch, over};
use hawser_base::error::ErrorKind;
use hawser_base::liveness::{End, process};
use hawser_base::wait::{LONGEST_SLICE, Wait};

/// The time that a connection to the next centre may take.
const CONNECT: Duration = Duration::from_secs(5);

/// The time within which ranks connect to the next centre. Those that do not are looked for from half a
/// second later on.
const COME: Duration = Duration::from_millis(300);

/// The time that one look at a rank takes at most.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// The time within which a process whose sockets are closed is over, if it ends.
const ENDING: Duration = Duration::from_millis(300);

/// The pause before the next try where this process has no descriptors left.
const SHORTAGE: Duration = Duration::from_millis(500);

impl Watch {
    /// Looks for the ranks that do not connect to this one, which passes the news on now: one that left at
    /// the same time as the last centre could tell nobody. A rank that is stopped answers later, and its host
    /// may end instead, so all are looked for until they come or have gone.
    pub fn look_for_the_silent(&self) {
        let begin = Instant::now();
        while begin.elapsed() < COME {
            if self.is_over.is_raised() {
                return;
            }
            std::thread::sleep(LONGEST_SLICE);
        }
        let is_silent =
            |rank: &u32| *rank != self.rank && !self.is_linked(*rank) && self.roster.absence(*rank).is_none();
        let mut search = Search::new(self.heartbeat);
        while !self.is_over.is_raised() {
            let silent: Vec<u32> = (0..self.roster.members().len() as u32).filter(is_silent).collect();
            if silent.is_empty() {
                return;
            }
            match search.step(&self.dialer, &silent) {
                Some((rank, why)) => self.is_out_of_reach(rank, &why),
                None => std::thread::sleep(LONGEST_SLICE),
            }
        }
    }

    /// Connects to the lowest rank that is there.
    pub fn connect_to_the_next_centre(&self) {
        loop {
            let centre = self.roster.first_present();
            if self.is_over.is_raised() {
                return;
            }
            if centre == self.rank {
                return self.look_for_the_silent();
            }
            let describe =
                || format!("rank {} connects to rank {centre}, which tells the news now", self.rank);
            let wait = Wait::new(self.is_over.clone(), Some(CONNECT));
            match self.dialer.dial(Role::Watch, centre, &wait, &describe) {
                Ok(stream) => return self.connect(centre, stream),
                Err(error) if error.kind == ErrorKind::Aborted => return,
                // Its process is stopped or busy.
                Err(error) if error.kind == ErrorKind::Timeout => {}
                Err(error) if is_own_shortage(&error) => std::thread::sleep(SHORTAGE),
                Err(error) => self.is_out_of_reach(centre, &error.text),
            }
        }
    }

    /// Looks whether a rank that is not known to have gone can be reached, for as long as `wait` allows.
    pub fn look_for(&self, rank: u32, wait: &Wait) {
        let describe = || format!("rank {} looks for rank {rank}", self.rank);
        match self.dialer.dial(Role::Look, rank, wait, &describe) {
            Err(error)
                if !matches!(error.kind, ErrorKind::Timeout | ErrorKind::Aborted)
                    && !is_own_shortage(&error) =>
            {
                self.is_out_of_reach(rank, &error.text);
            }
            _ => {}
        }
    }

    /// Notes that a rank is out of reach: it may have died, or left at the same time as the last centre, when
    /// it could tell nobody. A rank whose process has ended, or ends now, has died; what is known already
    /// stays.
    pub fn is_out_of_reach(&self, rank: u32, why: &str) {
        let members = self.roster.members();
        if let Some((own, process)) = members.get(self.rank as usize).zip(members.get(rank as usize))
            && process.is_near(own)
            && process::ends_within(process, ENDING)
        {
            over(self, &[rank]);
        }
        if self.roster.absence(rank).is_some() {
            return;
        }
        self.learn(rank, &End::OutOfReach(cut(why, TEXT_LIMIT / 2).into()), Duration::ZERO, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::meet::PeerAddress;
    use super::super::peer::Dialer;
    use super::super::tests::{in_threads, patient, settings};
    use super::super::{Bootstrap, UniqueId};
    use super::*;
    use hawser_base::error::Error;
    use hawser_base::liveness::Identity;
    use std::net::TcpListener;
    use std::sync::Arc;

    /// The watch of rank 1 of three, and the place at which rank 2 listens.
    fn watch_and_place() -> (Arc<Watch>, TcpListener) {
        let place = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = place.local_addr().unwrap();
        let peer = |rank| PeerAddress { tcp, unix: [rank as u8; 16], process: Identity::own(rank, None) };
        let peers: Vec<PeerAddress> = (0..3).map(peer).collect();
        let dialer = Arc::new(Dialer::new(1, &[7; 32], &peers, &settings()));
        let members = peers.iter().map(|peer| peer.process).collect();
        (Watch::new(1, members, dialer, &settings()).unwrap(), place)
    }

    /// The centre has left, and rank 2 never connects to the next one: its process is stopped when it is
    /// looked for first, and ends later.
    #[test]
    fn one_that_ends_after_the_first_look_is_missed() {
        let (watch, place) = watch_and_place();
        watch.roster.note(0, &End::Left("it destroyed it".into()), Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(|| watch.look_for_the_silent());
            // The kernel takes the call of the first look, which nobody answers.
            let call = place.accept().unwrap();
            std::thread::sleep(LOOK * 2);
            assert_eq!(watch.roster.absence(2), None);
            drop((call, place));
            let is_known = || watch.roster.absence(2).is_some().then_some(());
            patient().until(is_known, || "rank 1 does not miss rank 2".to_owned()).unwrap();
        });
    }

    /// Nobody tells of the end of rank 2, since the centre is stopped, say.
    #[test]
    fn a_rank_looks_for_the_other_one_before_it_blames_nobody() {
        let (watch, place) = watch_and_place();
        let refused = || Error::remote("connect to rank 2 failed").with_peer(2);
        let because_of = |watch: &Watch| {
            watch.roster.all().into_iter().find_map(|(_, end, _)| match end {
                End::Failed { because_of, .. } => Some(because_of),
                _ => None,
            })
        };
        // It is there, though it does not answer.
        watch.blame(refused());
        assert_eq!(because_of(&watch), Some(None));
        drop((watch, place));
        let (watch, place) = watch_and_place();
        drop(place);
        assert_eq!(watch.blame(refused()).peer, Some(2));
        assert_eq!(because_of(&watch), Some(Some(2)));
    }

    /// A rank that finds nobody where another one listened does not know that it has died. One on the same
    /// host does, and is believed later on, too.
    #[test]
    fn a_death_that_others_know_of_is_not_hidden_by_one_who_finds_nobody() {
        let (watch, place) = watch_and_place();
        drop(place);
        let wait = Wait::new(watch.is_over.clone(), Some(LOOK));
        watch.look_for(2, &wait);
        assert!(watch.roster.absence(2).is_some() && !watch.roster.has_died(2));
        watch.learn(2, &End::Died("its process ended".into()), Duration::ZERO, None);
        assert!(watch.roster.has_died(2));
        let is_named = || watch.roster.verdict().filter(|error| error.peer == Some(2)).map(drop);
        patient().until(is_named, || "nobody names rank 2".to_owned()).unwrap();
    }

    /// A rank that leaves when the centre has gone, and the next one has not been connected to, tells nobody.
    #[test]
    fn one_that_left_beside_the_centre_is_missed() {
        let id = UniqueId::create(&settings()).unwrap();
        let join = |rank| Bootstrap::join(&[id], rank, 4, &settings(), &patient()).unwrap();
        let mut world = in_threads(4, join);
        let (centre, other) = (world.remove(0), world.remove(1));
        assert_eq!((centre.rank(), other.rank()), (0, 2));
        drop(centre);
        drop(other);
        for boot in &world {
            let is_known = || boot.roster().absence(2).is_some().then_some(());
            patient().until(is_known, || format!("rank {} does not miss rank 2", boot.rank())).unwrap();
        }
    }
}
