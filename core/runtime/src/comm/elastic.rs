//! Communicators that outlive their members: revoke, shrink, grow.
//!
//! What ends an operation is not what ends the control connections: ranks whose parent has failed, was
//! aborted by a shrink or was revoked still reach each other over them, and form the next communicator.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::liveness::forked;
use hawser_base::lock::lock;
use hawser_base::wait::{AbortFlag, Wait};

use super::bringup::Joining;
use super::{Busy, Comm, Config, Place, Starting, State};
use crate::bootstrap::{Bootstrap, Offer, Settings, Tag, UniqueId, cannot_join};
use crate::comm::group::{self, Job};
use crate::comm_state::CommState;
use crate::planted::{Bug, is_planted};
use crate::record;

/// The choice between letting the parent's operations go on and ending them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrink {
    /// They go on; the parent can be used afterwards.
    Keep,
    /// They end, and the parent can only be shrunk, split and destroyed afterwards: for after an error.
    Abort,
}

/// Whom the new communicator of a job is made of.
enum Members {
    /// These ranks of the parent, in ascending order.
    Listed(Vec<u32>, Shrink),
    /// Those of the parent's ranks that are still there and have the same color.
    Colored { color: i32, key: i32 },
    /// The ranks of the parent, and new ones that join by an id.
    Grown { nranks: u32, offer: Option<Offer> },
}

impl Comm {
    /// Ends every operation of this communicator on this rank, and refuses further ones. It waits for
    /// nobody. Afterwards the communicator can be shrunk, split and destroyed. Other ranks, as far as they
    /// wait for this one, end with an error that says so.
    ///
    /// # Errors
    /// What made bring-up fail; `InvalidUsage` during bring-up or after finalize; `InvalidArgument` after
    /// destroy or abort.
    pub fn revoke(&self) -> Result<()> {
        let state = self.state_even_failed()?;
        let error = self.name_error(revoked());
        self.0.is_revoked.store(true, Ordering::Release);
        // Who revokes it since a rank has died is not to blame: that rank is.
        let missed = state.bootstrap.roster().first_missed();
        state.bootstrap.report(&missed.map_or_else(|| error.clone(), |rank| error.clone().with_peer(rank)));
        self.end_operations(&state, error);
        Ok(())
    }

    /// Makes a communicator of all ranks but the `excluded`, which do not call this and may be dead. The
    /// others keep their order. Collective over the ranks that are left; in groups and without blocking as
    /// [`Comm::split`]. `config == None` takes this communicator's options.
    ///
    /// # Errors
    /// `InvalidArgument` when nobody, this rank, or something that is no rank is excluded; `Remote` with the
    /// name of a rank that has died and is not excluded; otherwise as [`Comm::split`].
    pub fn shrink(&self, excluded: &[i32], config: Option<Config>, mode: Shrink) -> Result<Self> {
        self.prepare_shrink(excluded, config, mode).inspect_err(group::record)
    }

    fn prepare_shrink(&self, excluded: &[i32], config: Option<Config>, mode: Shrink) -> Result<Self> {
        let state = self.state_even_failed()?;
        let members = Members::Listed(self.all_but(excluded)?, mode);
        match mode {
            Shrink::Keep => self.refuse_if_busy("shrink")?,
            Shrink::Abort => self.end_operations(&state, self.name_error(shrunk())),
        }
        self.derive(state, members, config, "shrink")
    }

    /// An id by which new ranks join those of this communicator: see [`Comm::grow`]. It serves one growth.
    ///
    /// # Errors
    /// As [`Comm::state`], and [`UniqueId::create`].
    pub fn grow_id(&self) -> Result<UniqueId> {
        self.state()?.bootstrap.grow_id().map_err(|error| self.name_error(error))
    }

    /// Makes a communicator of all ranks of this one, which keep their numbers, and of new ones behind them.
    /// The rank that made the id with [`Comm::grow_id`] may pass it; the new ranks call [`Comm::init`] with
    /// it. Collective over old and new ranks; in groups and without blocking as [`Comm::split`].
    ///
    /// # Errors
    /// `InvalidArgument` when `nranks` is not more than there are; otherwise as [`Comm::split`].
    pub fn grow(&self, nranks: u32, id: Option<UniqueId>, config: Option<Config>) -> Result<Self> {
        self.prepare_grow(nranks, id, config).inspect_err(group::record)
    }

    fn prepare_grow(&self, nranks: u32, id: Option<UniqueId>, config: Option<Config>) -> Result<Self> {
        let state = self.state()?;
        let (most, old) = (hawser_plan::algo::MAX_RANKS, self.ranks());
        if nranks <= old || nranks > most {
            let text = format!("grow to {nranks} ranks: there are {old}");
            let error = Error::invalid_argument(text).remedy(format!("use {} to {most}", old + 1));
            return Err(self.name_error(error));
        }
        self.refuse_if_busy("grow")?;
        let offer = state.bootstrap.offer(id);
        self.derive(state, Members::Grown { nranks, offer }, config, "grow")
    }

    /// The children of a communicator that was revoked: the ranks that are still there form them, and those
    /// that have gone are left out.
    pub(super) fn split_what_is_left(
        &self,
        color: i32,
        key: i32,
        config: Option<Config>,
    ) -> Result<Option<Self>> {
        let state = self.state_even_failed()?;
        let child = self.derive(state, Members::Colored { color, key }, config, "split")?;
        Ok((color >= 0).then_some(child))
    }

    /// Begins the job that makes a communicator of this one's ranks.
    fn derive(
        &self,
        state: Arc<CommState>,
        members: Members,
        config: Option<Config>,
        what: &'static str,
    ) -> Result<Self> {
        let mut config = config.unwrap_or_else(|| Config { name: None, ..self.0.config.clone() });
        config.name.get_or_insert_with(|| format!("{}/{what}", state.name));
        let config = config.placed_as(&self.0.config);
        // Waits of the job do not end by what has happened to this communicator, unless it needs all ranks.
        let is_over = self.0.abort.is_raised() || !state.bootstrap.roster().is_quiet();
        let needs_all = matches!(members, Members::Grown { .. });
        let abort = if is_over && !needs_all { AbortFlag::new() } else { self.0.abort.child() };
        let child = Self::new(None, self.0.ordinal, config, abort.clone());
        let (job, starting) = (Derive { state, abort, members, what }, Starting(child.clone()));
        let work = Box::new(move |busy| job.carry_out(starting, busy));
        group::create(Job { owner: self.clone(), blocking: self.is_blocking(), work })?;
        Ok(child)
    }

    /// The ranks that are left.
    fn all_but(&self, excluded: &[i32]) -> Result<Vec<u32>> {
        let refuse = |what: String, remedy: &str| {
            Err(self.name_error(Error::invalid_argument(format!("shrink: {what}")).remedy(remedy)))
        };
        let (rank, ranks) = (self.rank().cast_signed(), self.ranks().cast_signed());
        if excluded.is_empty() {
            return refuse("no rank is excluded".into(), "exclude at least one, or use ncclCommSplit");
        }
        if let Some(wrong) = excluded.iter().find(|excluded| !(0..ranks).contains(excluded)) {
            return refuse(format!("excluded rank {wrong} does not exist"), "use ranks of this communicator");
        }
        if excluded.contains(&rank) {
            return refuse(
                "this rank is excluded itself".into(),
                "excluded ranks do not call ncclCommShrink",
            );
        }
        Ok((0..ranks).filter(|rank| !excluded.contains(rank)).map(i32::cast_unsigned).collect())
    }

    /// The live part, also of a communicator whose operations have failed.
    pub(super) fn state_even_failed(&self) -> Result<Arc<CommState>> {
        forked::refuse()?;
        let refuse = |text: &str| Err(self.name_error(Error::invalid_usage(text)));
        match &*lock(&self.0.state)? {
            State::Ready { finalized: true, .. } => refuse("the communicator was finalized"),
            State::Ready { comm_state, .. } => Ok(comm_state.clone()),
            State::Failed(error) => Err(error.clone()),
            State::Starting => refuse("bring-up is still in progress; poll ncclCommGetAsyncError first"),
            State::Ending | State::Gone => Err(self.gone()),
        }
    }

    fn end_operations(&self, state: &CommState, error: Error) {
        self.0.is_ended_by_program.store(true, Ordering::Release);
        // The first reason stays: who is shrunk after a failure keeps the failure.
        state.peer_memory.control.fail(error);
        if let Some(copy_engines) = &state.copy_engines {
            copy_engines.release();
        }
        if let Some(net) = &state.net {
            net.give_up_buffers();
        }
        self.0.abort.raise();
    }

    /// # Errors
    /// A call on this communicator is in progress.
    pub(super) fn refuse_if_busy(&self, what: &str) -> Result<()> {
        if !self.is_busy()? {
            return Ok(());
        }
        let text = format!("{what}: another call on this communicator is in progress");
        Err(self.name_error(Error::invalid_usage(text).remedy("poll ncclCommGetAsyncError first")))
    }
}

fn revoked() -> Error {
    Error::invalid_usage("the communicator was revoked by ncclCommRevoke")
        .remedy("make the next one with ncclCommShrink or ncclCommSplit, then destroy this one")
}

fn shrunk() -> Error {
    Error::invalid_usage("the communicator's operations were ended by ncclCommShrink with NCCL_SHRINK_ABORT")
        .remedy("use the new communicator, and destroy this one")
}

/// One rank's part in making a communicator of another one's ranks.
struct Derive {
    state: Arc<CommState>,
    abort: AbortFlag,
    members: Members,
    what: &'static str,
}

impl Derive {
    /// The parent is busy until the child is up: programs that poll the parent use the child then.
    fn carry_out(self, child: Starting, _busy: Option<Busy>) -> Result<()> {
        let met = self.meet().map_err(|error| error.context(self.what));
        let is_grown = matches!(self.members, Members::Grown { .. });
        let growth = is_grown.then(|| Growth::of(&self));
        drop(self);
        match met {
            Ok(Some((joining, place))) => {
                let _ = child.0.0.place.set(place);
                child.bring_up(joining, growth.as_ref())
            }
            // This rank has no part in a child.
            Ok(None) => Ok(()),
            Err(error) => {
                let own = Some(error.clone());
                let agreed = growth.map_or(Ok(()), |growth| growth.agree(own));
                Err(child.fail(agreed.err().unwrap_or(error)))
            }
        }
    }

    fn meet(&self) -> Result<Option<(Joining, Place)>> {
        let wait = Wait::new(self.abort.clone(), Some(env::settings().join_timeout()));
        let (bootstrap, rank) = (&self.state.bootstrap, self.state.rank);
        match &self.members {
            Members::Listed(members, mode) => {
                if is_planted(Bug::LonelyShrink) && rank == 0 {
                    let child = bootstrap.subset(members, *mode == Shrink::Abort, &wait);
                    return child.and_then(|_| Err(Error::remote("rank 0 gives up")));
                }
                let child = bootstrap.subset(members, *mode == Shrink::Abort, &wait);
                child.map(child_of).map(Some).map_err(|error| bootstrap.name_the_guilty(error))
            }
            Members::Colored { color, key } => Ok(self.split(*color, *key, &wait)?.map(child_of)),
            Members::Grown { nranks, offer } => {
                let agreed = bootstrap.agree_to_grow(offer.as_ref(), *nranks, &wait);
                let id = agreed.map_err(|error| {
                    let error = bootstrap.blame(error);
                    // New ranks may wait already, and no old one comes.
                    if let Some(Offer { id, .. }) = offer {
                        cannot_join(&[*id], rank, &error, &Settings::of_process());
                    }
                    error
                })?;
                let joining = Joining::Ids { ids: vec![id], nranks: *nranks };
                Ok(Some((joining, Place { rank, ranks: *nranks })))
            }
        }
    }

    fn split(&self, color: i32, key: i32, wait: &Wait) -> Result<Option<Bootstrap>> {
        let mine = record::encode(&(color, key));
        let mut members = Vec::new();
        let given = self.state.bootstrap.all_gather_of_present(Tag::Present, &mine, wait)?;
        for (rank, bytes) in given.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            let Some((theirs, key)) = record::decode::<(i32, i32)>(bytes) else {
                return Err(Error::remote(format!("rank {rank} sent a malformed split request")));
            };
            if theirs == color {
                members.push((key, rank as u32));
            }
        }
        if color < 0 {
            return Ok(None);
        }
        members.sort_unstable();
        let members: Vec<u32> = members.into_iter().map(|(_, rank)| rank).collect();
        self.state.bootstrap.subset(&members, false, wait).map(Some)
    }
}

/// The part of a growth that is left once the old ranks have agreed to grow: they agree on its outcome too.
///
/// A new rank may die when the growth is over for some of the old ranks and not for others. Those would use a
/// communicator that these do not have, and the next growth would find ranks that do not wait for it.
pub(super) struct Growth {
    /// The old ranks. They meet the new ones at another place, where nobody knows which old ones have died.
    parent: Arc<Bootstrap>,
    abort: AbortFlag,
}

impl Growth {
    fn of(job: &Derive) -> Self {
        // The death of a new rank ends its communicator's waits, not those for the old ranks, which end when
        // one of those dies: some may have the outcome already, and answer no more.
        Self { parent: job.state.bootstrap.clone(), abort: job.abort.hopeful_child() }
    }

    /// Agrees on the outcome; `own` says why the growth has failed on this rank, if it has. All old ranks
    /// that have begun the growth come here, whatever has become of it: the others wait for them.
    ///
    /// # Errors
    /// The growth has failed on this rank or on another one.
    pub(super) fn agree(&self, own: Option<Error>) -> Result<()> {
        if is_planted(Bug::UnagreedGrowth) {
            return own.map_or(Ok(()), Err);
        }
        let wait = Wait::new(self.abort.clone(), Some(env::settings().join_timeout()));
        let own = own.map(|error| self.parent.name_the_guilty(error));
        let agreed = self.parent.agree_on_growth(own.as_ref(), &wait);
        match (agreed, own) {
            (Ok(None), None) => Ok(()),
            // It could not tell the others, or not in time.
            (Ok(None) | Err(_), Some(own)) => Err(own),
            (Ok(Some(error)) | Err(error), _) => Err(error),
        }
    }
}

fn child_of(bootstrap: Bootstrap) -> (Joining, Place) {
    let place = Place { rank: bootstrap.rank(), ranks: bootstrap.nranks() };
    (Joining::Child { bootstrap: Box::new(bootstrap) }, place)
}
