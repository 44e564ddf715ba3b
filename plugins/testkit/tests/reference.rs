//! The suites pass on plugins that are right.

#[path = "reference/collnet.rs"]
mod collnet_in_process;

use std::sync::Arc;

mod net {
    use super::Arc;
    use hawser_plugin_testkit::loopback::Loopback;

    hawser_plugin_testkit::net_suite!(Arc::new(Loopback::default()));
}

mod net_without_groups {
    use super::Arc;
    use hawser_plugin_testkit::loopback::Loopback;

    hawser_plugin_testkit::net_suite!(Arc::new(Loopback { max_recvs: 1 }));
}

mod collnet {
    hawser_plugin_testkit::collnet_suite!(super::Arc::new(super::collnet_in_process::InProcess));
}

mod tuner {
    use super::Arc;
    use hawser_plugin::tuner::{Answer, Candidate, Question, Tuner, TunerConfig, TunerContext};
    use hawser_plugin::{Error, Result};

    hawser_plugin_testkit::tuner_suite!(Arc::new(Plain));

    struct Plain;

    impl Tuner for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        fn open(&self, _: &TunerConfig) -> Result<Box<dyn TunerContext>> {
            Ok(Box::new(Plain))
        }
    }

    impl TunerContext for Plain {
        fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
            if question.bytes == 1 {
                return Err(Error::unsupported("one byte"));
            }
            candidates.iter_mut().for_each(|c| c.estimate(c.us + c.decision.algorithm.0 as f32));
            let held = candidates.iter().position(Candidate::is_held_back);
            Ok(held.map_or_else(Answer::default, Answer::ordered).with_channels(2))
        }
    }
}

mod profiler {
    use super::Arc;
    use hawser_plugin::Result;
    use hawser_plugin::profiler::{Event, EventHandle, EventMask, Profiler, ProfilerConfig, ProfilerContext};

    hawser_plugin_testkit::profiler_suite!(Arc::new(Plain));

    struct Plain;

    impl Profiler for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        fn open(&self, _: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
            Ok(Box::new(Plain))
        }
    }

    impl ProfilerContext for Plain {
        fn mask(&self) -> EventMask {
            EventMask(0x7fff)
        }
        fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
            Some(EventHandle(event.what.kind().0))
        }
        fn stop(&self, _: EventHandle) {}
    }
}

mod env {
    use super::Arc;
    use hawser_plugin::env::{Env, EnvContext};
    use hawser_plugin::{Log, Result};

    hawser_plugin_testkit::env_suite!(Arc::new(Plain));

    struct Plain;

    impl Env for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        fn open(&self, _: (u8, u8, u8), _: &Log) -> Result<Box<dyn EnvContext>> {
            Ok(Box::new(Plain))
        }
    }

    impl EnvContext for Plain {
        fn value(&self, name: &str) -> Option<String> {
            (name == "NCCL_ALGO").then(|| "ring".to_owned())
        }
    }
}

#[test]
fn all_cases_run_in_one_call_too() {
    hawser_plugin_testkit::conformance::net(Arc::new(hawser_plugin_testkit::loopback::Loopback::default()));
}
