//! The choice for a call: what its options leave, and what tuners make of that.

use std::borrow::Cow;

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_plan::choose::{Decision, choose};
use hawser_plan::{Call, CallOptions, PlanConfig, Selection};

use super::CommState;
use crate::tuning::{CallAttributes, TunedDecision, Tuners};

/// The attributes and options that a call has beside its arguments.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The attributes of the call that tuners may ask about.
    pub attributes: CallAttributes,
    /// The options of the call, if it has any.
    pub options: Option<CallOptions>,
}

impl CommState {
    /// True if kernels serve a call whose blocks lie apart ([`Call::gap`]), with these options, whatever
    /// tuners advise. All ranks answer alike.
    pub fn serves_apart(&self, call: &Call, options: Option<&CallOptions>) -> bool {
        let is_free = options.is_none_or(|options| {
            let is_chosen = options.rule.is_some() || options.program.is_some();
            options.selection.is_free() && !is_chosen && options.copy_engines != Some(true)
        });
        let config = match options {
            Some(options) => Cow::Owned(self.plan_config.of_call(call.collective, options)),
            None => Cow::Borrowed(&self.plan_config),
        };
        is_free && config.pass_sm == 0 && choose(call, &self.topology, &config).is_ok()
    }

    /// The choice for a call with options, and the settings that it was made by.
    ///
    /// # Errors
    /// `InvalidArgument` if the call insists on a selection that leaves nothing.
    pub(super) fn choose_by_options(
        &self,
        call: &Call,
        asked: Asked,
        tuners: &Tuners,
    ) -> Result<(TunedDecision, Cow<'_, PlanConfig>)> {
        let (attributes, topology) = (asked.attributes, self.topology_of(asked.attributes));
        let Some(options) = asked.options else {
            let config = Cow::Borrowed(&self.plan_config);
            return Ok((tuners.choose(call, attributes, topology, &config)?, config));
        };
        let config_of = |options: &CallOptions| match options.is_default() {
            true => Cow::Borrowed(&self.plan_config),
            false => Cow::Owned(self.plan_config.of_call(call.collective, options)),
        };
        let config = config_of(&options);
        match tuners.choose(call, attributes, topology, &config) {
            Ok(chosen) if options.rule.is_some() && chosen.choice.why.rule.is_none() => {
                self.choose_without_rule(call, asked, tuners, config)
            }
            Ok(chosen) => Ok((chosen, config)),
            Err(error) if options.selection.is_free() => Err(error),
            Err(error) if options.is_forced => {
                let text = format!("config->algSelection cannot be kept: {error}");
                Err(Error::invalid_argument(text)
                    .remedy("set forceAlgSelection = 0 to let the library choose"))
            }
            Err(error) => {
                log::info(Subsys::Tuning, || {
                    format!("config->algSelection cannot be kept, so the choice is free: {error}")
                });
                let config = config_of(&CallOptions { selection: Selection::default(), ..options });
                Ok((tuners.choose(call, attributes, topology, &config)?, config))
            }
        }
    }

    /// The choice for a call whose rule does not decide: the other rules count, if the call lets them.
    ///
    /// # Errors
    /// `InvalidArgument` if the call insists on its rule.
    fn choose_without_rule<'a>(
        &self,
        call: &Call,
        asked: Asked,
        tuners: &Tuners,
        config: Cow<'a, PlanConfig>,
    ) -> Result<(TunedDecision, Cow<'a, PlanConfig>)> {
        let bytes = call.total_bytes(self.topology.size());
        let text = format!(
            "config->ext: the rule that HAWSER_OPTION_RULE names does not decide {} of {bytes} bytes: it is \
             not there, is for other calls, or is impossible here",
            call.collective.name()
        );
        if asked.options.is_some_and(|options| options.is_forced) {
            return Err(Error::invalid_argument(text)
                .remedy("ask hawser rules explain, or set forceAlgSelection = 0 to let the library choose"));
        }
        log::info(Subsys::Tuning, || format!("{text}, so the choice is free"));
        let attributes = CallAttributes { rule: None, ..asked.attributes };
        let topology = self.topology_of(attributes);
        Ok((tuners.choose(call, attributes, topology, &config)?, config))
    }

    /// The choice for a call, by the cost model and what tuners make of it.
    pub fn choose(&self, call: &Call) -> Result<Decision> {
        let tuners = lock(&self.choices)?.tuners.clone();
        Ok(tuners.choose(call, CallAttributes::default(), &self.topology, &self.plan_config)?.choice)
    }
}
