//! Splitting: children of a communicator.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::wait::{AbortFlag, Wait};

use super::bringup::Joining;
use super::{Busy, Comm, Config, Place, Starting};
use crate::bootstrap::Bootstrap;
use crate::comm::group::{self, Job};
use crate::comm_state::CommState;
use crate::record;

impl Comm {
    /// Makes children: ranks with the same `color` form one, ordered by (`key`, rank). Collective over all
    /// ranks of this communicator; `color == -1` takes part but gets none. In an open group the work is done
    /// at its end; if this communicator does not block, it goes on in the background. Until then this
    /// communicator is in progress, and the child does not know its rank. `config == None` takes this
    /// communicator's options. After [`Comm::revoke`] the ranks that are still there form the children.
    ///
    /// # Errors
    /// `InvalidArgument` for a color below -1; `InvalidUsage` while another call on this communicator is in
    /// progress; otherwise as [`Comm::init`].
    pub fn split(&self, color: i32, key: i32, config: Option<Config>) -> Result<Option<Self>> {
        self.prepare_split(color, key, config).inspect_err(group::record)
    }

    fn prepare_split(&self, color: i32, key: i32, config: Option<Config>) -> Result<Option<Self>> {
        if color < -1 {
            let text = format!("color {color} must be -1 (none) or not negative");
            return Err(self.name_error(Error::invalid_argument(text)));
        }
        if self.0.is_revoked.load(Ordering::Acquire) {
            return self.split_what_is_left(color, key, config);
        }
        let state = self.state()?;
        self.refuse_if_busy("split")?;
        let mut config = config.unwrap_or_else(|| Config { name: None, ..self.0.config.clone() });
        config.name.get_or_insert_with(|| format!("{}/{color}", state.name));
        let config = config.placed_as(&self.0.config);
        let blocking = self.is_blocking();
        let child = (color >= 0).then(|| Self::new(None, self.0.ordinal, config, self.0.abort.child()));
        let split = Split { state, abort: self.0.abort.clone(), color, key };
        let starting = child.clone().map(Starting);
        let work = Box::new(move |busy| split.carry_out(starting, busy));
        group::create(Job { owner: self.clone(), blocking, work })?;
        Ok(child)
    }
}

/// One rank's part in a split.
struct Split {
    state: Arc<CommState>,
    /// The parent's flag: meeting the other ranks goes over its connections.
    abort: AbortFlag,
    color: i32,
    key: i32,
}

impl Split {
    /// The parent is busy until the child is up: programs that poll the parent use the child then.
    fn carry_out(self, child: Option<Starting>, _busy: Option<Busy>) -> Result<()> {
        let met = self.meet().map_err(|error| self.state.bootstrap.blame(error));
        drop(self);
        match (met, child) {
            (Ok(Some((bootstrap, place))), Some(child)) => {
                let _ = child.0.0.place.set(place);
                child.bring_up(Joining::Child { bootstrap: Box::new(bootstrap) }, None)
            }
            (Err(error), Some(child)) => Err(child.fail(error)),
            (met, _) => met.map(drop),
        }
    }

    /// Learns who has the same color and connects to them; None without a color.
    fn meet(&self) -> Result<Option<(Bootstrap, Place)>> {
        let wait = Wait::new(self.abort.clone(), Some(env::settings().join_timeout()));
        let mine = record::encode(&(self.color, self.key));
        let all = self.state.bootstrap.all_gather(&mine, &wait)?;
        let mut members = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            let Some((color, key)) = record::decode::<(i32, i32)>(bytes) else {
                return Err(Error::remote(format!("rank {rank} sent a malformed split request")));
            };
            if self.color >= 0 && color == self.color {
                members.push((key, rank as u32));
            }
        }
        members.sort_unstable();
        let members: Vec<u32> = members.into_iter().map(|(_, rank)| rank).collect();
        let rank = members.iter().position(|m| *m == self.state.rank).unwrap_or(0) as u32;
        let place = Place { rank, ranks: members.len() as u32 };
        Ok(self.state.bootstrap.split(&members, &wait)?.map(|bootstrap| (bootstrap, place)))
    }
}
