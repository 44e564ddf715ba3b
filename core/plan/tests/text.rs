//! The text form: what is printed is read back, errors name the place, golden files stay as they are.
//! `BLESS=1 cargo test -p hawser-plan --test text` rewrites the golden files.

use std::path::PathBuf;

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Algorithm, Collective};
use hawser_program::text::{from_text, to_text};
use hawser_program::{Buf, Channel, Dep, Op, Program, RankProgram, Ref, Shape, Step};
use proptest::prelude::*;

fn generators() -> impl Iterator<Item = (Collective, Algorithm)> {
    Collective::ALL.into_iter().flat_map(|c| algo::algorithms(c).iter().map(move |&a| (c, a)))
}

#[test]
fn generators_are_read_back() {
    for (collective, algorithm) in generators() {
        for ranks in [1, 2, 3, 8, 9, 13] {
            let Ok(program) = algo::program(&ProgramKey::new(collective, algorithm, ranks, 0)) else {
                assert!(ranks > algo::max_ranks(collective, algorithm));
                continue;
            };
            assert_eq!(from_text(&to_text(&program)).unwrap(), program);
        }
    }
}

#[test]
fn golden_files() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("BLESS").is_some();
    for (collective, algorithm) in generators() {
        for ranks in 2..=4 {
            let root = if collective.rooted() { 1 } else { 0 };
            let program = algo::program(&ProgramKey::new(collective, algorithm, ranks, root)).unwrap();
            let path = folder.join(format!("{}_{ranks}.plan", program.shape.name));
            let text = to_text(&program);
            if bless {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let golden = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(golden == text, "{} differs: if that is meant, run with BLESS=1", path.display());
        }
    }
}

const HEADER: &str =
    "hawser-plan 1\nname x\ncollective all_reduce\nranks 2\nroot 0\nper_block 1\nscratch 0\n";

#[test]
fn errors_name_line_and_column() {
    let cases = [
        ("", "1:1:"),
        ("hawser-plan 2\n", "1:1:"),
        ("hawser-plan 1\nname x\ncollective everything\n", "3:12:"),
        ("hawser-plan 1\nname x\ncollective all_reduce\nranks two\n", "4:7:"),
        (&format!("{HEADER}rank 1\n"), "8:1:"),
        (&format!("{HEADER}channel 0\n"), "8:1:"),
        (&format!("{HEADER}rank 0\n  channel 1\n"), "9:1:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    jump\n"), "10:5:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    send src in:x to 1\n"), "10:14:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    send src in:0 to 1,b\n"), "10:24:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    send src in:0 to 1 to 1\n"), "10:24:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    send src in:0 by 1\n"), "10:19:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    send src\n"), "10:13:"),
        (&format!("{HEADER}rank 0\n  channel 0\n    recv from 1 dst out:0 after 1\n"), "10:33:"),
        (&format!("{HEADER}rank 0 1\n"), "8:8:"),
    ];
    for (text, place) in cases {
        let error = from_text(text).unwrap_err();
        assert!(error.text.starts_with(place), "{text:?}: {error}, expected {place}");
    }
}

#[test]
fn comments_and_blank_lines_are_skipped() {
    let text = format!(
        "# a program\n{HEADER}\nrank 0 # first\n\n  channel 0\n    copy dst out:0 src in:0 # any order\n"
    );
    let program = from_text(&text).unwrap();
    assert_eq!(program.ranks[0].channels[0].steps[0].dst, Some(Ref { buf: Buf::Output, chunk: 0 }));
}

fn reference() -> impl Strategy<Value = Option<Ref>> {
    let buf = prop_oneof![Just(Buf::Input), Just(Buf::Output), Just(Buf::Scratch)];
    proptest::option::of((buf, any::<u32>()).prop_map(|(buf, chunk)| Ref { buf, chunk }))
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        Just(Op::Copy),
        Just(Op::Reduce),
        Just(Op::RecvReduceCopySend),
        any::<u32>().prop_map(Op::Native)
    ];
    let peers = || proptest::collection::vec(any::<u32>(), 0..9);
    let deps = proptest::collection::vec((any::<u32>(), any::<u32>()), 0..3);
    let numbers = (any::<u32>(), any::<u32>(), any::<i32>(), any::<bool>());
    (op, peers(), peers(), reference(), reference(), numbers, deps).prop_map(
        |(op, recv, send, src, dst, (order, times, stride, finish), deps)| Step {
            op,
            recv,
            send,
            src,
            dst,
            order,
            times,
            stride,
            finish,
            after: deps.into_iter().map(|(channel, step)| Dep { channel, step }).collect(),
        },
    )
}

fn program() -> impl Strategy<Value = Program> {
    let channel = proptest::collection::vec(step(), 0..4).prop_map(|steps| Channel { steps });
    let rank = proptest::collection::vec(channel, 0..3).prop_flat_map(|channels| {
        let count = channels.len();
        let own = proptest::collection::vec(0..9u32, count)
            .prop_filter("the usual", |l| l.iter().zip(0..).any(|(a, b)| *a != b));
        let lanes =
            if count == 0 { Just(Vec::new()).boxed() } else { prop_oneof![Just(Vec::new()), own].boxed() };
        let long = proptest::collection::vec(0..9u32, count)
            .prop_filter("the usual", |runs| runs.iter().any(|run| *run != 1));
        let runs =
            if count == 0 { Just(Vec::new()).boxed() } else { prop_oneof![Just(Vec::new()), long].boxed() };
        (lanes, runs).prop_map(move |(lanes, runs)| RankProgram { channels: channels.clone(), lanes, runs })
    });
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let collective = proptest::sample::select(Collective::ALL.to_vec());
    ("[a-z_0-9]{1,12}( [a-z]{1,5})?", collective, numbers, proptest::collection::vec(rank, 0..4)).prop_map(
        |(name, collective, (ranks, root, per_block, scratch), programs)| Program {
            shape: Shape { name, collective, ranks, root, per_block, scratch },
            ranks: programs,
        },
    )
}

proptest! {
    #[test]
    fn any_program_is_read_back(program in program()) {
        prop_assert_eq!(from_text(&to_text(&program)).unwrap(), program);
    }

    #[test]
    fn garbage_is_refused_and_never_panics(text in "[a-z0-9 :.,#\n-]{0,200}") {
        prop_assert!(from_text(&text).is_err());
        let _ = from_text(&format!("{HEADER}rank 0\n channel 0\n{text}"));
    }
}
