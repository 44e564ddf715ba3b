//! [`hawser_tuner`] for NVIDIA's NCCL: `libnccl-tuner-hawser.so`, loaded with `NCCL_TUNER_PLUGIN=hawser`.
//!
//! A crate of its own, because the exported symbols end up in every library that links it.

use std::sync::Arc;

hawser_compat::export_nccl_tuner!(Arc::new(hawser_tuner::RuleTuner::from_env()), c"hawser");
