use hawser_plan::Algorithm;
use hawser_plan::topology::Link;
use hawser_plugin::collnet::DataType;
use hawser_plugin::tuner::Reduction;

use super::*;

/// The error of ranks with these records.
fn text(records: &[SharedRecord]) -> Option<String> {
    check(records).err().map(|error| error.to_string())
}

/// The record of a rank with these tuners: name, digest and source.
fn tuners(all: &[(&str, u64, &str)]) -> SharedRecord {
    let one = |&(name, digest, source): &(&str, u64, &str)| Shared {
        name: name.to_owned(),
        digest,
        source: source.to_owned(),
    };
    Ok(all.iter().map(one).collect())
}

/// Orders trees, in chunks of so many bytes.
struct Trees(u64);

impl TunerContext for Trees {
    fn tune(&self, _: &Question, table: &mut [tuner::Candidate<'_>]) -> hawser_plugin::Result<Answer> {
        let is_tree = |c: &tuner::Candidate<'_>| c.decision.algorithm == tuner::Algorithm::TREE;
        let tree = table.iter().position(|c| is_tree(c) && c.is_possible());
        Ok(tree.map_or_else(Answer::default, Answer::ordered))
    }

    fn chunk_bytes(
        &self,
        question: &Question,
        chosen: &tuner::Candidate<'_>,
    ) -> hawser_plugin::Result<Option<u64>> {
        assert_eq!((question.data_type, question.op), (Some(DataType::Float16), Some(Reduction::Max)));
        assert_eq!(chosen.decision.to_string(), "tree/host/simple channels 2");
        assert!(chosen.us > 0.0);
        Ok(Some(self.0))
    }
}

fn call() -> Call {
    Call {
        collective: Collective::AllReduce,
        count: 1000,
        dtype: hawser_plan::DataType::Float16,
        op: ReduceOp::Max,
        scalar: hawser_plan::Scalar::Immediate(0),
        root: 0,
        input: 16,
        output: 16,
        gap: 0,
    }
}

#[test]
fn an_order_keeps_the_predicted_time_and_gets_its_chunks() {
    let topology = Topology::single_host(4, hawser_plan::topology::DeviceKind::Host, Link::HostMemory);
    let plan_config = PlanConfig { slot_bytes: [0, 0, 32 << 10], lanes: 8, ..PlanConfig::default() };
    let call = call();
    for (chunk, expected) in [(4096, 4096), (1, 512), (u64::MAX, 32 << 10)] {
        let mut tuners = Tuners::default();
        tuners.add(None, "trees", Box::new(Trees(chunk)));
        let TunedDecision { choice, notes, .. } =
            tuners.choose(&call, CallAttributes::default(), &topology, &plan_config).unwrap();
        assert!(choice.key.algorithm == Algorithm::Tree && choice.predicted_us > 0.0 && notes.is_empty());
        assert_eq!(
            tuners.plan_config(&call, CallAttributes::default(), &topology, &choice, &plan_config).slot_bytes
                [2],
            expected
        );
    }
    let nobody = Tuners::default();
    let choice = nobody.choose(&call, CallAttributes::default(), &topology, &plan_config).unwrap().choice;
    assert_eq!(
        *nobody.plan_config(&call, CallAttributes::default(), &topology, &choice, &plan_config),
        plan_config
    );
}

/// A tuner that answers or changes whatever this function does.
struct Odd(fn(&mut [tuner::Candidate<'_>]) -> Answer);

impl TunerContext for Odd {
    fn tune(&self, _: &Question, table: &mut [tuner::Candidate<'_>]) -> hawser_plugin::Result<Answer> {
        Ok((self.0)(table))
    }
}

#[test]
fn what_is_impossible_cannot_be_ordered_or_brought_back() {
    let topology = Topology::single_host(4, hawser_plan::topology::DeviceKind::Host, Link::HostMemory);
    let plan_config = PlanConfig { slot_bytes: [0, 0, 32 << 10], lanes: 8, ..PlanConfig::default() };
    let own =
        Tuners::default().choose(&call(), CallAttributes::default(), &topology, &plan_config).unwrap().choice;
    let with = |odd: fn(&mut [tuner::Candidate<'_>]) -> Answer| {
        let mut tuners = Tuners::default();
        tuners.add(None, "odd", Box::new(Odd(odd)));
        tuners.choose(&call(), CallAttributes::default(), &topology, &plan_config).unwrap().choice
    };
    for odd in [
        |table: &mut [tuner::Candidate<'_>]| {
            Answer::ordered(table.iter().position(|c| !c.is_possible()).unwrap())
        },
        |table: &mut [tuner::Candidate<'_>]| Answer::ordered(table.len()),
        |table: &mut [tuner::Candidate<'_>]| {
            let refused = table.iter_mut().filter(|c| !c.is_possible());
            refused.for_each(|c| *c = tuner::Candidate::predicted(c.decision, 0.0));
            Answer::default()
        },
        |table: &mut [tuner::Candidate<'_>]| {
            table.iter_mut().for_each(|c| c.us = f32::NAN);
            Answer::default()
        },
    ] {
        assert_eq!(with(odd).key, own.key);
    }
    let other = with(|table| {
        let tree = table.iter_mut().find(|c| c.is_possible() && c.decision.algorithm.name() == "tree");
        tree.unwrap().estimate(0.5);
        Answer::default()
    });
    assert_eq!((other.key.algorithm, other.predicted_us), (Algorithm::Tree, 0.5));
}

#[test]
fn equal_ranks_agree() {
    assert_eq!(text(&[tuners(&[]), tuners(&[]), tuners(&[])]), None);
    let of = |file| tuners(&[("rules", 0xff, file), ("x", 0, "")]);
    assert_eq!(text(&[of("2 of 3 rules in a"), of("2 of 3 rules in a")]), None);
    assert_eq!(text(&[of("in a"), of("in b")]), None, "only what counts is compared");
}

#[test]
fn other_rules_name_ranks_and_files() {
    let of = |digest, source| tuners(&[("other", 1, ""), ("rules", digest, source)]);
    let (a, b) = (of(0xaa, "1 of 1 rules in a.toml"), of(0xbb, "no rules"));
    let text = text(&[a.clone(), b.clone(), a, b]).unwrap();
    for part in [
        "the rules of tuner rules differ",
        "ranks 0, 2: 1 of 1 rules in a.toml; ranks 1, 3: no rules",
        "HAWSER_RULES",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn other_tuners_and_failures_are_told() {
    let text = |records: &[SharedRecord]| text(records).unwrap();
    let one = tuners(&[("a", 1, "")]);
    let names = text(&[tuners(&[("a", 1, ""), ("b", 2, "")]), one.clone()]);
    assert!(names.contains("rank 0 has the tuners \"a, b\", rank 1 has \"a\""), "{names}");
    let alike = text(&[tuners(&[("a, b", 1, "")]), tuners(&[("a", 1, ""), ("b", 1, "")])]);
    assert!(alike.contains("rank 1 has"), "{alike}");
    let broken = text(&[one, Err("r.toml:1:2: no\nsecond line".into()), Err("x".into())]);
    assert!(broken.contains("rank 1 (and 1 more ranks): r.toml:1:2: no\nsecond line"), "{broken}");
}
