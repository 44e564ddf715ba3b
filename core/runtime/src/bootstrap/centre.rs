//! The next centre of the news, when one has gone, and ranks that nobody tells news of.

use std::time::{Duration, Instant};

use super::auth::Role;
use super::fate::{TEXT_LIMIT, cut};
use super::peer::is_own_shortage;
use super::watch::{Watch, over};
use hawser_base::error::ErrorKind;
use hawser_base::liveness::{End, process};
use hawser_base::wait::{LONGEST_SLICE, Wait};

/// The time that a connection to the next centre may take.
const CONNECT: Duration = Duration::from_secs(5);

/// The time within which ranks connect to the next centre, and that the search for one that does not takes
/// at most.
const COME: Duration = Duration::from_millis(800);
const LOOK: Duration = Duration::from_millis(500);

/// The time within which a process whose sockets are closed is over, if it ends.
const ENDING: Duration = Duration::from_millis(300);

/// The pause before the next try where this process has no descriptors left.
const SHORTAGE: Duration = Duration::from_millis(500);

impl Watch {
    /// Looks for the ranks that do not connect to this one, which passes the news on now: one that left at
    /// the same time as the last centre could tell nobody.
    pub fn look_for_the_silent(&self) {
        let begin = Instant::now();
        while begin.elapsed() < COME {
            if self.is_over.is_raised() {
                return;
            }
            std::thread::sleep(LONGEST_SLICE);
        }
        let ranks = 0..self.roster.members().len() as u32;
        let is_silent =
            |rank: &u32| *rank != self.rank && !self.is_linked(*rank) && self.roster.absence(*rank).is_none();
        for rank in ranks.filter(is_silent) {
            self.look_for(rank, &Wait::new(self.is_over.clone(), Some(LOOK)));
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

    /// Notes that a rank has left: one that left at the same time as the last centre could tell nobody. A
    /// rank whose process has ended, or ends now, has died; what is known already stays.
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
        let how = format!("it cannot be reached ({})", cut(why, TEXT_LIMIT / 2));
        self.learn(rank, &End::Left(how), Duration::ZERO, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_threads, patient, settings};
    use super::super::{Bootstrap, UniqueId};

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
