//! Env plugins.

use std::sync::Arc;

use abi_stable::std_types::{RNone, ROption, RResult, RStr, RString};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::Shield;
use crate::abi::raw::env::{RawEnv, RawEnvContext, RawEnvContext_TO, RawEnvContextBox, RawVersion};
use crate::abi::raw::{RawError, RawHostBox, plain_log};
use crate::env::{Env, EnvContext};

impl RawEnv for Shield<Arc<dyn Env>> {
    fn name(&self) -> RResult<RString, RawError> {
        self.call(|env| Ok(env.name().into()))
    }

    fn open(&self, version: RawVersion, host: RawHostBox) -> RResult<RawEnvContextBox, RawError> {
        let log = plain_log(host);
        self.guard.log_to(&log);
        self.call(|env| {
            let context = self.child(env.open((version.major, version.minor, version.patch), &log)?);
            Ok(RawEnvContext_TO::from_value(context, TD_Opaque))
        })
    }

    #[cfg(feature = "next")]
    fn added(&self) -> u32 {
        11
    }
}

impl RawEnvContext for Shield<Box<dyn EnvContext>> {
    fn value(&self, name: RStr<'_>) -> ROption<RString> {
        self.call_or(RNone, |context| Some(context.value(name.as_str()).map(RString::from).into()))
    }
}
