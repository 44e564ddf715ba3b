//! The env interface: where the library's settings come from.

use crate::error::Result;
use crate::host::Log;

/// An env plugin.
pub trait Env: Send + Sync {
    /// Name for logs. Constant.
    fn name(&self) -> &str;

    /// Makes the plugin ready, once per process, before any setting is read. `version` is the NCCL version
    /// that the library stands for: major, minor, patch.
    fn open(&self, version: (u8, u8, u8), log: &Log) -> Result<Box<dyn EnvContext>>;
}

/// An env plugin that is ready. Thread: any, also several at once.
pub trait EnvContext: Send + Sync {
    /// The value of a variable; None = not set. **The only source**: a plugin that wants the process
    /// environment to count looks there itself.
    fn value(&self, name: &str) -> Option<String>;
}
