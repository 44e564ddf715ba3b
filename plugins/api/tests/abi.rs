//! Plugins across a library boundary: what goes in comes out, and nothing panics out of it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_plugin::abi::{LoadErrorKind, Manifest, load};
use hawser_plugin::collnet::{CollNetSegment, DataType, ReduceOp};
use hawser_plugin::learner::{Learner, Measured};
use hawser_plugin::net::{MemoryKinds, NetConfig, Receiver, Region, Registration, Request, Segment, Sender};
use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, ProfilerConfig, StateArgs, What};
use hawser_plugin::tuner::{
    Algorithm, Answer, Candidate, Decision, Executor, Function, Protocol, Question, Reduction, SettingsFile,
    Status, TunerConfig, rule_id,
};
use hawser_plugin::{Component, ErrorKind, Log};

/// Cargo builds the examples before it runs the tests of a package.
fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(2).unwrap();
    target.join("examples").join(name)
}

fn all_kinds() -> Manifest {
    load(&example("liball_kinds.so")).unwrap()
}

macro_rules! component {
    ($kind:ident) => {
        all_kinds().components.into_iter().find_map(|c| match c {
            Component::$kind(found) => Some(found),
            _ => None,
        })
    };
}

/// A log that can be read.
fn log() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    (Log::new(move |level, _, text| keep.lock().unwrap().push(format!("{level:?} {text}"))), lines)
}

#[test]
fn a_library_says_what_it_holds() {
    let found = all_kinds();
    assert_eq!((found.name.as_str(), found.interface.as_str()), ("hawser-plugin", "1.0.0"));
    assert_eq!(found.version, "1.0.0");
    assert_eq!((found.components.len(), found.unknown), (5, 0));
    assert!(matches!(&found.components[0], Component::Net(net) if net.name() == "loopback"));
    assert!(matches!(&found.components[4], Component::Env(env) if env.name() == "fixed"));
    assert_eq!(all_kinds().components.len(), 5, "the same path once more");
}

#[test]
fn messages_pass_through_a_net() {
    let net = component!(Net).unwrap();
    let context = net.open(&NetConfig::new(7, Log::silent())).unwrap();
    assert_eq!(context.devices(), Ok(1));
    let properties = context.properties(0).unwrap();
    assert_eq!((properties.name.as_str(), properties.max_recvs), ("loopback", 8));
    assert_eq!((properties.latency_us, properties.rail, &properties.members[..]), (1.0, -1, &[0][..]));
    let error = context.properties(3).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(error.text.contains("device 3"), "{error}");
    assert_eq!(context.make_virtual(&[0]).unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(context.connect(0, &[1; 128]).err().unwrap().kind, ErrorKind::InvalidArgument);

    let (handle, mut listener) = context.listen(0).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let mut sender = context.connect(0, &handle).unwrap().poll().unwrap().unwrap();
    let mut receiver = listener.accept().unwrap().unwrap();
    exchange(&mut *sender, &mut *receiver);
    drop(sender);
    let error = receiver.test(Request(1 << 40), &mut []).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Remote);
}

/// Two messages into one grouped receive, crossed by their tags.
fn exchange(sender: &mut dyn Sender, receiver: &mut dyn Receiver) {
    let (from, to) = (*b"first second", [0_u8; 12]);
    let region = |bytes: &[u8]| Region {
        addr: bytes.as_ptr() as u64,
        bytes: bytes.len(),
        kind: MemoryKinds::HOST,
        dmabuf: None,
    };
    let segment = |registration, base: &[u8], at: usize, bytes, tag| Segment {
        addr: base.as_ptr() as u64 + at as u64,
        bytes,
        registration,
        tag,
        profile: 0,
    };
    // SAFETY: both arrays live until the end of this function, when everything is done.
    let (mine, theirs) =
        unsafe { (sender.register(&region(&from)).unwrap(), receiver.register(&region(&to)).unwrap()) };
    let places = [segment(theirs, &to, 0, 6, 1), segment(theirs, &to, 6, 6, 2)];
    // SAFETY: as above.
    let receive = unsafe { receiver.irecv(&places, false) }.unwrap().unwrap();
    // SAFETY: as above.
    let too_many = unsafe { receiver.irecv(&[places[0]; 9], false) };
    assert!(too_many.unwrap_err().text.contains("9 receives"));
    // SAFETY: as above.
    let first = unsafe { sender.isend(&segment(mine, &from, 0, 6, 2)) }.unwrap().unwrap();
    let mut sizes = [7; 2];
    assert_eq!(receiver.test(receive, &mut sizes), Ok(false));
    // SAFETY: as above.
    let second = unsafe { sender.isend(&segment(mine, &from, 6, 6, 1)) }.unwrap().unwrap();
    assert_eq!(receiver.test(receive, &mut sizes), Ok(true));
    assert_eq!((sender.test(first), sender.test(second)), (Ok(Some(6)), Ok(Some(6))));
    assert_eq!((sizes, &to), ([6, 6], b"secondfirst "));
    // SAFETY: as above.
    assert_eq!(unsafe { receiver.flush(&places) }, Ok(None));
    assert_eq!(sender.deregister(mine), Ok(()));
    assert_eq!(sender.deregister(mine).unwrap_err().kind, ErrorKind::Internal);
    assert_eq!(receiver.deregister(theirs), Ok(()));
}

#[test]
fn a_collnet_reduces() {
    let (log, lines) = log();
    let context = component!(CollNet).unwrap().open(4, &log).unwrap();
    assert_eq!(lines.lock().unwrap()[..], ["Info alone in 4"]);
    assert_eq!(context.supports(DataType::Uint8, ReduceOp::Sum), Ok(true));
    assert_eq!(context.supports(DataType::Float32, ReduceOp::Sum), Ok(false));
    let (handle, listener) = context.listen(0).unwrap();
    let error = listener.connect(&[handle; 2], 0).err().unwrap();
    assert_eq!((error.kind, error.text.as_str()), (ErrorKind::InvalidUsage, "2 ranks, one is all"));
    let mut comm = context.listen(0).unwrap().1.connect(&[handle], 0).unwrap();
    let (from, to) = ([3_u8; 16], [0_u8; 16]);
    let none = Registration(0);
    let (send, recv) = ((from.as_ptr() as u64, none), (to.as_ptr() as u64, none));
    // SAFETY: both arrays live on, and the plugin is done when it returns.
    let request = unsafe { comm.iall_reduce(send, recv, 16, DataType::Uint8, ReduceOp::Sum) };
    assert_eq!(comm.test(request.unwrap().unwrap()), Ok(Some(16)));
    assert_eq!(to, from);
    let part = CollNetSegment { registration: none, addr: recv.0, bytes: 5 };
    // SAFETY: the plugin touches none of it.
    let request = unsafe { comm.iall_gather(send, &[part, part], 100, (1000, 10000)) };
    assert_eq!(comm.test(request.unwrap().unwrap()), Ok(Some(11110)));
    // SAFETY: refused before anything is touched.
    let request = unsafe { comm.ireduce_scatter(&[part], recv, 1, (0, 1), DataType::Int8, ReduceOp::Max) };
    assert_eq!(request.unwrap_err().kind, ErrorKind::Unsupported);
}

#[test]
fn a_tuner_says_what_it_depends_on_and_why() {
    let tuner = component!(Tuner).unwrap();
    let mut config = TunerConfig::new(1, 8, 2, Log::silent());
    config.name = "tensor 3".to_owned();
    config.programs = vec!["a".to_owned(), "b".to_owned()];
    let context = tuner.open(&config).unwrap();
    let agreement = context.agreement().unwrap();
    assert_eq!((agreement.digest, agreement.source.as_str()), (u64::MAX - 1, "halves of tensor 3 a+b"));
    assert!(context.wants_every_collective());
    let ring = Decision::new(Algorithm::RING, Executor::Interpreter, Protocol::Simple);
    let candidate = Candidate::predicted(ring, 1.0);
    for function in Function::EVERY {
        assert!(context.tune(&Question::new(function, 1), &mut [candidate]).is_ok(), "{function:?}");
    }
    let why = |question: &Question| context.why(question, &[candidate; 2]).unwrap();
    let mut question = Question::new(Function::AllReduce, 4096);
    assert_eq!(why(&question), "None None None None None 2");
    assert!(context.wants_in_graph() && context.wants_times());
    assert_eq!((context.trial(4), context.trial(5)), (Some(4), None));
    for (data_type, op, in_graph) in [
        (DataType::Int8, Reduction::Sum, false),
        (DataType::Float8e5m2, Reduction::PreMulSum, true),
        (DataType::Float32, Reduction::Avg, false),
    ] {
        (question.data_type, question.op, question.in_graph) = (Some(data_type), Some(op), Some(in_graph));
        let (trial, rule) = (op as u32, rule_id("mine") + u64::from(in_graph));
        (question.trial, question.rule) = (Some(trial), Some(rule));
        assert_eq!(
            why(&question),
            format!("Some({data_type:?}) Some({op:?}) Some({in_graph}) Some({trial}) Some({rule}) 2")
        );
    }
}

#[test]
fn every_status_crosses_and_comes_back_as_a_tuner_may_change_it() {
    let (listener, heard) = Stressed::new();
    let context = component!(Tuner).unwrap().open(&TunerConfig::new(1, 8, 2, Log::to(listener))).unwrap();
    assert_eq!(heard.lock().unwrap()[..], ["8 ranks"], "an event is no line");
    let with = |executor, us, status| {
        let decision = Decision::new(Algorithm::ALL_PAIRS, executor, Protocol::Ll).with_channels(3);
        Candidate { decision, us, status }
    };
    let held = |is_measured| Status::HeldBack { why: "NCCL_PASS_SM", is_measured };
    let refused = Status::Refused { why: "many ranks" };
    let before = [
        with(Executor::Interpreter, 8.0, Status::Predicted),
        with(Executor::Fused, 6.0, Status::Unmeasured),
        with(Executor::CopyEngine, 4.0, held(true)),
        with(Executor::Host, 2.0, held(false)),
        with(Executor::Fused, 0.0, refused),
        with(Executor::Fused, 99.0, Status::Predicted),
    ];
    let question = Question::new(Function::AllReduce, 1);
    assert_eq!(context.why(&question, &before).unwrap(), format!("{before:?}"));
    let mut after = before;
    let answer = context.tune(&question, &mut after).unwrap();
    assert_eq!(answer.order, Some(3), "the last one that is held back");
    let mut expected = [
        with(Executor::Interpreter, 4.0, Status::Predicted),
        with(Executor::Fused, 3.0, Status::Predicted),
        with(Executor::CopyEngine, 2.0, held(true)),
        with(Executor::Host, 1.0, held(false)),
        with(Executor::Fused, 0.0, refused),
        before[5],
    ];
    expected[5].leave_out();
    assert_eq!(after, expected);
}

/// A host that keeps what it hears of stress.
struct Stressed(Arc<Mutex<Vec<String>>>);

impl Stressed {
    fn new() -> (Self, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        (Self(heard.clone()), heard)
    }
}

impl hawser_plugin::Listener for Stressed {
    fn line(&self, _: hawser_plugin::Level, _: hawser_plugin::Subsys, _: &str) {}

    fn stress(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }
}

#[test]
fn a_tuner_takes_settings_from_the_host() {
    let tuner = component!(Tuner).unwrap();
    let mut config = TunerConfig::new(1, 8, 2, Log::silent());
    config.name = "tensor 3".to_owned();
    let file = |name: &str, text: &str| SettingsFile { name: name.into(), text: text.into() };
    let context = tuner.open_with(&config, &[file("a", "1\n"), file("b", "")]).unwrap();
    assert_eq!(context.agreement().unwrap().source, "halves of tensor 3 a=1\n+b=");
    let error = tuner.open_with(&config, &[]).err().unwrap();
    assert_eq!((error.kind, error.text.as_str()), (ErrorKind::InvalidUsage, "no files"));
}

#[test]
fn a_tuner_learns_until_it_panics() {
    let tuner = component!(Tuner).unwrap();
    assert!(tuner.learner(&TunerConfig::new(1, 2, 1, Log::silent())).unwrap().is_none());
    let (log, told) = log();
    let mut learner = tuner.learner(&TunerConfig::new(1, 8, 1, log)).unwrap().unwrap();
    let now = Duration::from_nanos(7);
    let measured = |late| Measured {
        function: Function::AllToAll,
        bytes: 1 << 40,
        decision: Decision::new(Algorithm::program(3), Executor::Fused, Protocol::Ll128).with_channels(5),
        trial: true,
        us: 1.5,
        cost_us: 2.25,
        late,
    };
    let file = SettingsFile { name: "x".into(), text: "y".into() };
    let mut text = |tell: &dyn Fn(&mut dyn Learner)| {
        tell(&mut *learner);
        learner.propose(now).map(|proposal| (proposal.why, proposal.files[0].text.clone()))
    };
    for late in [None, Some((7, 2.5))] {
        let (_, seen) = text(&|learner| learner.measured(&measured(late), now)).unwrap();
        assert_eq!(seen, format!("{:?} 7ns", measured(late)));
    }
    let (why, seen) = text(&|learner| learner.rebase(std::slice::from_ref(&file), now)).unwrap();
    assert_eq!((why.as_str(), seen), ("told", format!("{:?} 7ns", [&file])));
    let settled = |outcome: std::result::Result<u64, String>| format!("{outcome:?} 7ns");
    for outcome in [Ok(u64::MAX), Err("why".to_owned())] {
        let (_, seen) = text(&|learner| learner.settled(outcome.clone(), now)).unwrap();
        assert_eq!(seen, settled(outcome));
    }
    assert_eq!(text(&|learner| learner.stressed("rail", now)).unwrap().1, "rail 7ns");
    assert_eq!(text(&|_| ()), None);
    assert_eq!(text(&|learner| learner.stressed("", now)), None);
    assert_eq!(text(&|learner| learner.stressed("rail", now)), None, "it is not asked again");
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("tuner halver does not learn any more: "), "{told:?}");
}

#[test]
fn a_tuner_changes_times_until_it_panics() {
    let tuner = component!(Tuner).unwrap();
    assert!(tuner.open(&TunerConfig::new(1, 0, 1, Log::silent())).is_err());
    let context = tuner.open(&TunerConfig::new(1, 8, 2, Log::silent())).unwrap();
    let ring = Decision::new(Algorithm::RING, Executor::Interpreter, Protocol::Simple).with_channels(4);
    let mut candidates =
        [Candidate::predicted(ring, 8.0), Candidate::refused(ring, "no"), Candidate::predicted(ring, 3.0)];
    let mut question = Question::new(Function::AllReduce, 4096);
    question.pipelined = 4;
    let answer = context.tune(&question, &mut candidates).unwrap();
    assert_eq!(answer, Answer::default().with_channels(4));
    assert_eq!(candidates.map(|c| c.us), [4.0, 0.0, 1.5]);
    assert_eq!(context.chunk_bytes(&question, &candidates[0]), Ok(Some(1024)));
    let one = Candidate::predicted(ring.with_channels(1), 1.0);
    assert_eq!(context.chunk_bytes(&question, &one), Ok(None));

    let error = context.tune(&Question::new(Function::Reduce, 13), &mut candidates).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.text.starts_with("panicked: ") && error.text.contains("an unlucky size"), "{error}");
    for refused in [
        context.tune(&question, &mut candidates).err(),
        tuner.open(&TunerConfig::new(1, 1, 1, Log::silent())).err(),
    ] {
        assert!(refused.unwrap().text.contains("panicked before"));
    }
    assert_eq!(candidates.map(|c| c.us), [4.0, 0.0, 1.5]);
    let fresh = component!(Tuner).unwrap();
    assert!(fresh.open(&TunerConfig::new(1, 1, 1, Log::silent())).is_ok(), "loaded anew it works again");
}

#[test]
fn a_profiler_that_panics_is_switched_off() {
    let (log, lines) = log();
    let mut config = ProfilerConfig::new(1, 4, 3, log);
    config.comm_name = Some("world".to_owned());
    let context = component!(Profiler).unwrap().open(&config).unwrap();
    assert_eq!(context.mask(), EventMask(3));
    let event = |what| Event { parent: None, rank: 0, what, tag: 0 };
    let handles: Vec<_> =
        [What::Group, What::ProxyCtrl, What::Group].map(|what| context.start(&event(what))).into();
    assert_eq!(handles, [Some(EventHandle(0)), None, Some(EventHandle(1))]);
    context.record(EventHandle(0), EventState::PROXY_IDLE, StateArgs::None);
    context.stop(EventHandle(0));
    assert_eq!(context.mask(), EventMask(3));

    context.record(EventHandle(1), EventState(99), StateArgs::Bytes(1));
    context.stop(EventHandle(1));
    assert_eq!((context.mask(), context.start(&event(What::Group))), (EventMask::NONE, None));
    let lines = lines.lock().unwrap();
    assert_eq!(lines[0], "Info world: rank 3 of 4");
    assert!(lines[1].starts_with("Warn plugin: panicked: ") && lines[1].contains("not used any further"));
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn an_env_answers_and_a_log_that_panics_stays_at_home() {
    let bad = Log::new(|_, _, _| panic!("the sink is broken"));
    let context = component!(Env).unwrap().open((2, 32, 3), &bad).unwrap();
    assert_eq!(context.value("NCCL_DEBUG").as_deref(), Some("INFO"));
    assert_eq!(context.value("NCCL_NET"), None);
}

#[test]
fn what_is_no_plugin_is_refused_with_a_reason() {
    let missing = load(Path::new("libhawser-nothing.so")).err().unwrap();
    assert_eq!(missing.kind, LoadErrorKind::Open);
    assert!(missing.text.contains("libhawser-nothing.so: cannot open shared object file"), "{missing}");
    let foreign = load(Path::new("libm.so.6")).err().unwrap();
    assert_eq!(foreign.kind, LoadErrorKind::NotAPlugin);
    assert!(foreign.text.starts_with("libm.so.6 is not a Hawser plugin"), "{foreign}");
    let no_library = load(&example("../../../nothing")).err().unwrap();
    assert_eq!(no_library.kind, LoadErrorKind::Open);
    assert!(!missing.text.contains('\n') && !no_library.text.contains('\n'));
}
