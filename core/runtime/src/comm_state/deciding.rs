//! The decisions that a communicator would take now, for those who ask from outside.

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_plan::executor::{self, Decided};
use hawser_plan::{Call, Collective, DataType, Executor};

use super::CommState;
use crate::progress::decision::{Asked, Choice, MOST_SIZES, Told};
use crate::tuning::{CallAttributes, Tuners};

impl CommState {
    /// Decides calls that nobody has made, by the rules that count now. Nothing is kept, so the plans of the
    /// calls that are made stay.
    ///
    /// # Errors
    /// `InvalidArgument`: the question is not one; or what the calls themselves would be refused with.
    pub fn decide(&self, asked: &Asked) -> Result<Told> {
        let collective = Collective::from_name(&asked.collective).filter(|c| *c != Collective::SendRecv);
        let Some(collective) = collective else {
            let known = Collective::ALL.map(Collective::name).join(", ");
            let text = format!("{} has no algorithm to choose; known are {known}", asked.collective);
            return Err(Error::invalid_argument(text));
        };
        let dtype = DataType::ALL.into_iter().find(|dtype| dtype.name() == asked.datatype);
        let Some(dtype) = dtype else {
            return Err(Error::invalid_argument(format!("{} is no element type", asked.datatype)));
        };
        let ranks = self.topology.size();
        if asked.root >= ranks {
            let text = format!("root {} is not a rank of this communicator (0..{})", asked.root, ranks - 1);
            return Err(Error::invalid_argument(text));
        }
        if asked.bytes.len() > MOST_SIZES {
            let text = format!("{} sizes are more than the {MOST_SIZES} of a question", asked.bytes.len());
            return Err(Error::invalid_argument(text));
        }
        let tuners = lock(&self.choices)?.tuners.clone();
        let call = |bytes: &u64| Call::of_bytes(collective, *bytes, dtype, asked.root, ranks);
        let choices = asked.bytes.iter().map(|bytes| self.choice(&call(bytes), &tuners));
        Ok(Told {
            communicator: format!("{:016x}", self.comm_id),
            name: self.name.clone(),
            rank: self.rank,
            ranks,
            hosts: self.topology.hosts(),
            device: self.topology.device.to_string(),
            link: self.topology.link.name().to_owned(),
            begun: self.epoch.begun(),
            rules: tuners.sources(),
            choices: choices.collect::<Result<_>>()?,
        })
    }

    fn choice(&self, call: &Call, tuners: &Tuners) -> Result<Choice> {
        let (topology, attributes) = (&self.topology, CallAttributes::default());
        let chosen = tuners.choose(call, attributes, topology, &self.plan_config)?;
        let config = tuners.plan_config(call, attributes, topology, &chosen.choice, &self.plan_config);
        let decision = &chosen.choice;
        let decided = Decided { call, decision, rank: self.rank, topology, config: &config };
        let blocks = if call.count > 0 { executor::blocks(&decided)?.into() } else { decision.channels };
        let route = decision.route;
        let has_threads = matches!(route.executor, Executor::Interpreter | Executor::Fused);
        Ok(Choice {
            bytes: call.total_bytes(topology.size()),
            algorithm: decision.key.algorithm.name().into(),
            executor: route.executor.name().to_owned(),
            protocol: route.protocol.name().to_owned(),
            zero_copy: route.zero_copy,
            channels: blocks,
            threads: if has_threads { decision.threads } else { 0 },
            predicted_us: decision.predicted_us,
            rule: decision.why.rule.clone(),
            why: chosen.to_string(),
        })
    }
}
