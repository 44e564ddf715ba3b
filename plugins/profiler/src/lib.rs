//! Profiler plugin that counts events and writes a Chrome trace.
