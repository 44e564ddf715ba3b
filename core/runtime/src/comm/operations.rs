//! Operations: what a program asks of a communicator is checked and goes to its group.

use std::sync::Arc;

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_device::Stream;
use hawser_plan::algo;
use hawser_plan::executor::launch::PACK_BYTES;
use hawser_plan::imported::{self, Handle};
use hawser_plan::p2p::Message;
use hawser_plan::vector::{self, Vector};
use hawser_plan::{Call, CallOptions, Class, Collective, DataType, PlanError, ReduceOp, Scalar};

use super::{Comm, group, one_sided};
use crate::call_check;
use crate::comm_state::CommState;
use crate::resolve::Item;
use crate::rma::RmaOp;

impl Comm {
    /// Puts a collective on a stream, or into the open group.
    pub fn collective(&self, call: Call, stream: Stream) -> Result<()> {
        self.collective_with(call, None, stream)
    }

    /// The same, with options of this call, which all ranks have alike. Exchanges of more ranks than programs
    /// are offered for are messages.
    pub fn collective_with(
        &self,
        call: Call,
        options: Option<Box<CallOptions>>,
        stream: Stream,
    ) -> Result<()> {
        let checked = self.check_call(&call).inspect_err(|error| group::refused(self, error));
        let names_program = options.as_ref().is_some_and(|options| options.program.is_some());
        if checked.is_ok() && !names_program && algo::most_ranks(call.collective) < self.ranks() {
            let counts = vec![call.count; self.ranks() as usize];
            if let Some(vector) = vector::of_many_ranks(&call, &counts) {
                return self.vector(&vector, call.dtype, stream);
            }
        }
        group::add(self, checked.map(|comm_state| (comm_state, Item::Call(call, options, stream))))
    }

    /// Gives the operations that are called from now on a class, unless the environment says one
    /// (`HAWSER_CLASS`). A call or a rule may say another one. Other ranks are not asked: a class decides
    /// when an operation runs, not how.
    ///
    /// # Errors
    /// The communicator is not up.
    pub fn set_class(&self, class: Class) -> Result<()> {
        self.state()?.class.set(env::settings().class.unwrap_or(class));
        Ok(())
    }

    /// Runs a program of no known collective that the user brought (MSCCL's `custom`), by its name: from an
    /// input of `count` elements to an output of as many, which do not overlap. All ranks call it.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no such program for this number of ranks, or the buffers overlap.
    pub fn custom(
        &self,
        name: &str,
        (input, output): (u64, u64),
        (count, dtype): (u64, DataType),
        stream: Stream,
    ) -> Result<()> {
        let refuse = |text: String, remedy: &str| {
            let error = self.name_error(Error::invalid_argument(format!("program {name}: {text}")));
            let error = error.remedy(remedy);
            group::refused(self, &error);
            Err(error).inspect_err(group::record)
        };
        let state = self.state().inspect_err(group::record)?;
        let is_custom =
            |handle: &&Handle| imported::kept(**handle).program.shape.collective == Collective::SendRecv;
        let custom = state.plan_config.imports.iter().filter(is_custom);
        let Some(&program) = custom.clone().find(|handle| handle.name().eq_ignore_ascii_case(name)) else {
            let names: Vec<&str> = custom.map(|handle| handle.name()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let text =
                format!("no custom program of {} ranks has this name; there are: {known}", self.ranks());
            return refuse(text, "name its file in MSCCL_XML_FILES on all ranks");
        };
        let bytes = count.saturating_mul(dtype.size() as u64);
        if input.max(output) < input.min(output).saturating_add(bytes) {
            return refuse("sendbuff and recvbuff overlap".into(), "give it two buffers");
        }
        let kept = imported::kept(program);
        let chunks = u64::from(kept.program.shape.per_block);
        if !kept.keeps_places && !bytes.is_multiple_of(chunks * PACK_BYTES) {
            let text = format!(
                "{bytes} bytes are not {chunks} chunks of whole {PACK_BYTES} bytes, and it moves chunks to \
                 other places"
            );
            return refuse(text, "pad the buffers");
        }
        let (op, scalar, root) = (ReduceOp::Sum, Scalar::Immediate(0), 0);
        let call =
            Call { collective: Collective::SendRecv, count, dtype, op, scalar, root, input, output, gap: 0 };
        let options = CallOptions { program: Some(program), is_forced: true, ..CallOptions::default() };
        self.collective_with(call, Some(Box::new(options)), stream)
    }

    /// As [`Comm::collective_with`], and records an event of the program, a `cudaEvent_t`, right before the
    /// first launch of the group that the call belongs to.
    ///
    /// # Errors
    /// `InvalidUsage` on the host device, which has no events.
    pub fn collective_recorded(
        &self,
        call: Call,
        options: Option<Box<CallOptions>>,
        event: u64,
        stream: Stream,
    ) -> Result<()> {
        let state = self.state().inspect_err(group::record)?;
        if state.device.graphs().is_none() {
            let error = Error::invalid_usage("launchCompletionEvent: the host device has no events");
            let error = self.name_error(error.remedy("leave it NULL"));
            group::refused(self, &error);
            return Err(error).inspect_err(group::record);
        }
        group::start()?;
        let added = self.collective_with(call, options, stream);
        let recorded = group::add(self, Ok((state, Item::Record(event, stream))));
        group::end().and(added).and(recorded)
    }

    /// Notes that a collective has failed before it came here, for an argument that is not understood. Where
    /// ranks compare their calls (`NCCL_CHECK_MODE=DEBUG_GLOBAL`), the others hear of it instead of waiting.
    pub fn refused(&self, error: &Error) {
        group::refused(self, error);
    }

    /// Sends `bytes` bytes to `peer`, matched by its `recv`.
    pub fn send(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        self.message(Message { peer, send: true, addr, bytes }, stream)
    }

    /// Receives `bytes` bytes from `peer`, matched by its `send`.
    pub fn recv(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        self.message(Message { peer, send: false, addr, bytes }, stream)
    }

    /// Puts a one-sided operation on a stream, or into the open group.
    pub fn one_sided(&self, op: RmaOp, stream: Stream) -> Result<()> {
        let checked = self.check_one_sided(&op);
        group::add(self, checked.map(|comm_state| (comm_state, Item::OneSided(op, stream))))
    }

    /// Puts a collective whose parts differ in length on a stream, or into the open group. It is carried by
    /// messages, which match those of other ranks in the order of the calls.
    pub fn vector(&self, vector: &Vector<'_>, dtype: DataType, stream: Stream) -> Result<()> {
        let planned = || {
            self.state()?;
            let messages = vector.messages(dtype, self.rank(), self.ranks());
            messages.map_err(|e: PlanError| self.name_error(e.into()))
        };
        let messages = planned().inspect_err(group::record)?;
        group::start()?;
        let added = messages.into_iter().try_for_each(|message| self.message(message, stream));
        let ended = group::end();
        added.and(ended)
    }

    fn check_call(&self, call: &Call) -> Result<Arc<CommState>> {
        let comm_state = self.state()?;
        call.validate(self.ranks(), self.rank()).map_err(|e: PlanError| self.name_error(e.into()))?;
        call_check::check_call(&comm_state, call).map_err(|error| self.name_error(error))?;
        Ok(comm_state)
    }

    fn message(&self, message: Message, stream: Stream) -> Result<()> {
        let checked = self.check_message(&message);
        let item = Item::Message(message, stream, group::nested());
        group::add(self, checked.map(|comm_state| (comm_state, item)))
    }

    fn check_message(&self, message: &Message) -> Result<Arc<CommState>> {
        let comm_state = self.state()?;
        let (verb, ranks) = (if message.send { "send to" } else { "recv from" }, self.ranks());
        let fault = if message.peer >= ranks {
            format!("not a rank of this communicator (0..{})", ranks - 1)
        } else if message.bytes > 0 && message.addr == 0 {
            "the buffer is NULL".into()
        } else {
            let checked = call_check::check_message(&comm_state, message);
            return checked.map_err(|error| self.name_error(error)).map(|()| comm_state);
        };
        Err(self.name_error(Error::invalid_argument(format!("{verb} rank {}: {fault}", message.peer))))
    }

    fn check_one_sided(&self, op: &RmaOp) -> Result<Arc<CommState>> {
        let comm_state = self.state()?;
        let exposed = comm_state.rma.exposed();
        let checked = match op {
            RmaOp::Signal { peer, put, signal } => one_sided::check(self.ranks(), exposed, *peer, *signal)
                .and_then(|()| put.map_or(Ok(()), |put| one_sided::check_put(exposed, &put))),
            RmaOp::Wait(awaited) => one_sided::check_wait(self.ranks(), exposed, awaited),
        };
        let checked = checked.and_then(|()| one_sided::check_device(&*comm_state.device));
        checked.map_err(|error| self.name_error(error)).map(|()| comm_state)
    }
}
