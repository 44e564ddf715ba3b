//! [`hawser_profiler`] for NVIDIA's NCCL: `libnccl-profiler-hawser.so`, loaded with
//! `NCCL_PROFILER_PLUGIN=hawser`. Hawser finds it too, by its own interface, which carries what NCCL's has no
//! place for: how long the planner thinks a collective takes.
//!
//! A crate of its own, because the exported symbols end up in every library that links it.

use std::sync::Arc;

hawser_compat::export_nccl_profiler!(Arc::new(hawser_profiler::TraceProfiler::from_env()), c"hawser");

hawser_plugin::export_plugin! { profiler: hawser_profiler::TraceProfiler::from_env() }
