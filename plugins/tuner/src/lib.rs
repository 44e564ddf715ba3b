//! Tuner plugin that reads rules in NCCL's CSV form.
