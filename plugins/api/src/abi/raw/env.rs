//! Mirror of [`crate::env`].

use abi_stable::std_types::{RBox, ROption, RResult, RStr, RString};
use abi_stable::{StableAbi, sabi_trait};

use super::{RawError, RawHostBox};

// The macro sees no `cfg`, hence the detour for the imagined addition.
macro_rules! env_trait {
    ($($added:tt)*) => {
        #[sabi_trait]
        pub trait RawEnv: Send + Sync {
            fn name(&self) -> RResult<RString, RawError>;
            #[sabi(last_prefix_field)]
            fn open(&self, version: RawVersion, host: RawHostBox) -> RResult<RawEnvContextBox, RawError>;
            $($added)*
        }
    };
}

#[cfg(not(feature = "next"))]
env_trait! {}

#[cfg(feature = "next")]
env_trait! {
    fn added(&self) -> u32 {
        10
    }
}

#[sabi_trait]
pub trait RawEnvContext: Send + Sync {
    #[sabi(last_prefix_field)]
    fn value(&self, name: RStr<'_>) -> ROption<RString>;
}

/// Major, minor, patch of the NCCL version.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawVersion {
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

pub type RawEnvBox = RawEnv_TO<'static, RBox<()>>;
pub type RawEnvContextBox = RawEnvContext_TO<'static, RBox<()>>;
