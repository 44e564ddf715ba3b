//! Env plugins of libraries.

use super::raw_host;
use crate::abi::raw::env::{RawEnvBox, RawEnvContextBox, RawVersion};
use crate::abi::raw::plain;
use crate::env::{Env, EnvContext};
use crate::error::Result;
use crate::host::Log;

pub struct LoadedEnv {
    name: String,
    raw: RawEnvBox,
}

impl LoadedEnv {
    pub fn new(raw: RawEnvBox) -> Result<Self> {
        let name: String = plain(raw.name())?;
        #[cfg(feature = "next")]
        let name = format!("{name}, added {}", raw.added());
        Ok(Self { name, raw })
    }
}

impl Env for LoadedEnv {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, (major, minor, patch): (u8, u8, u8), log: &Log) -> Result<Box<dyn EnvContext>> {
        let version = RawVersion { major, minor, patch };
        Ok(Box::new(LoadedContext(plain(self.raw.open(version, raw_host(log)))?)))
    }
}

struct LoadedContext(RawEnvContextBox);

impl EnvContext for LoadedContext {
    fn value(&self, name: &str) -> Option<String> {
        self.0.value(name.into()).into_option().map(String::from)
    }
}
