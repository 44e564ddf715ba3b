//! MSCCL++'s JSON plans: those of every operation that programs have are proved, broken ones are refused with
//! class and place, no text makes the reader fail in another way.

mod plans;

use std::sync::LazyLock;

use hawser_msccl::{Class, Dialect, ImportError, Window};
use hawser_plan::{Collective, Protocol};
use hawser_program::Buf;
use hawser_program::verify::verify;
use proptest::prelude::*;

#[test]
fn plans_are_proved_and_come_back_as_xml() {
    for (name, text) in plans::all() {
        let import =
            hawser_msccl::read_mscclpp(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        let found = &import.imported;
        assert_eq!(import.dialect, Dialect::Mscclpp);
        assert!(found.right_in_place || name.starts_with("scatter"), "{name}");
        assert!(
            found.program.ranks.iter().all(|rank| rank.channels.len() <= 7),
            "{name}: a block for each peer"
        );
        let window = Window { protocol: found.protocol, bytes: found.bytes };
        let again = hawser_msccl::read(&hawser_msccl::to_xml(&found.program, &window).unwrap());
        let again = again.unwrap_or_else(|error| panic!("{name}: {error}")).imported;
        assert_eq!((again.bytes, again.protocol), (found.bytes, found.protocol), "{name}");
        assert_eq!(again.program.shape.collective, found.program.shape.collective, "{name}");
    }
    let reads = hawser_msccl::read_mscclpp(&plans::named("reads_4")).unwrap().imported;
    assert_eq!((reads.bytes, reads.protocol), ((0, 1 << 20), Protocol::Simple));
    // What two threadblocks did for half of the data each is done for all at once.
    assert_eq!(reads.program.shape.per_block, 4);
    let packets = hawser_msccl::read_mscclpp(&plans::named("packets_4")).unwrap().imported;
    assert_eq!((packets.bytes, packets.protocol), ((0, u64::MAX), Protocol::Ll));
    let rotate = hawser_msccl::read_mscclpp(&plans::named("rotate_3")).unwrap();
    assert!(rotate.changes[0].text.contains("inplace does not count"), "{:?}", rotate.changes);
    let rotate = &rotate.imported.program.shape;
    assert_eq!((rotate.collective, rotate.chunks(Buf::Input)), (Collective::SendRecv, 3));
    let gets = hawser_msccl::read_mscclpp(&plans::named("gets_3")).unwrap().imported;
    assert_eq!(gets.program.shape.collective, Collective::AllToAll);
}

/// A plan with parts of its text replaced, once each.
fn broken(name: &str, changes: &[(&str, &str)]) -> ImportError {
    let plan: serde_json::Value = serde_json::from_str(&plans::named(name)).unwrap();
    let mut text = plan.to_string();
    for (old, new) in changes {
        assert!(text.contains(old), "{name} has no {old}: {text}");
        text = text.replacen(old, new, 1);
    }
    match hawser_msccl::read_mscclpp(&text) {
        Ok(_) => panic!("{name} with {changes:?} is taken"),
        Err(error) => error,
    }
}

/// Plan, changes of its text, class of the fault, part of what is said.
type Broken = (&'static str, &'static [(&'static str, &'static str)], Class, &'static str);

const BROKEN: [Broken; 29] = [
    ("reads_4", &[(r#""rres""#, r#""glres""#)], Class::Operation, "gpu 0 threadblock 0 op 3 (glres)"),
    ("reads_4", &[(r#""rres""#, r#""multiply""#)], Class::Operation, "op 3 (multiply)"),
    ("scatter_2", &[(r#""reduce_op":"sum""#, r#""reduce_op":"max""#)], Class::Operation, "op 2 (re)"),
    ("reads_4", &[(r#""allreduce""#, r#""sendrecv""#)], Class::Collective, "(rres): combines values"),
    (
        "rotate_3",
        &[(r#""type":"i""#, r#""type":"o""#)],
        Class::Undefined,
        "op 0 (ppkt): reads chunk 0 of the output",
    ),
    ("next_3", &[(r#""pws""#, r#""put""#)], Class::Deadlock, "waits for a signal of gpu 0"),
    ("reads_4", &[(r#""allreduce""#, r#""allrestore""#)], Class::Attribute, "allgather"),
    ("reads_4", &[(r#""Simple""#, r#""simple""#)], Class::Attribute, "LL128"),
    ("reads_4", &[(r#""gpus""#, r#""cpus""#)], Class::Attribute, "\"gpus\" is missing"),
    ("reads_4", &[(r#""id":2"#, r#""id":7"#)], Class::Ranks, "gpu"),
    ("packets_2", &[(r#","id":1,"ops""#, r#","id":3,"ops""#)], Class::Numbering, "threadblock"),
    ("reads_4", &[(r#""connected_to":[1,2,3"#, r#""connected_to":[1,9,3"#)], Class::Attribute, "0 to 3"),
    ("reads_4", &[(r#""channel_ids":[0,1,2]"#, r#""channel_ids":[0,1,6]"#)], Class::Connection, "channel 6"),
    ("reads_4", &[(r#""buffer_id":2"#, r#""buffer_id":3"#)], Class::Connection, "buffer_id 3"),
    ("reads_4", &[(r#""size":1"#, r#""size":2"#)], Class::Mismatch, "of 1 and of 2 chunks"),
    ("reads_4", &[(r#""size":1"#, r#""size":4294967296"#)], Class::Attribute, "4294967296"),
    ("reads_4", &[(r#""index":0"#, r#""index":-1"#)], Class::Attribute, "-1"),
    ("reads_4", &[(r#""index":0"#, r#""index":65536"#)], Class::Limit, "chunks"),
    ("gets_2", &[(r#""index":1"#, r#""index":2"#)], Class::Bounds, "chunks 2 to 2"),
    ("reads_4", &[(r#""name":"rlxwait""#, r#""name":"nop""#)], Class::Race, "does not wait for it"),
    (
        "reads_4",
        &[(r#""name":"rlxsignal""#, r#""name":"nop""#)],
        Class::Deadlock,
        "waits for a signal of gpu",
    ),
    (
        "gets_2",
        &[(r#""num_threadblocks":2"#, r#""num_threadblocks":3"#)],
        Class::Mismatch,
        "barrier 0 is for",
    ),
    ("scatter_2", &[(r#""init_value":1"#, r#""init_value":0"#)], Class::Deadlock, "semaphore 1"),
    ("packets_2", &[(r#""ppkt""#, r#""cpkt""#)], Class::Attribute, "\"type\""),
    ("forward_4", &[(r#""name":"cpkt""#, r#""name":"copy""#)], Class::Deadlock, "packets of chunk 0"),
    ("old_reads_2", &[(r#""name":"rrcs""#, r#""name":"rrc""#)], Class::WrongResult, "lacks"),
    ("old_packets_2", &[(r#""id":0,"off":1"#, r#""id":0,"off":0"#)], Class::Race, "nothing orders"),
    (
        "forward_4",
        &[(r#""buffer_id":1,"index":1"#, r#""buffer_id":1,"index":0"#)],
        Class::Race,
        "of gpu 2 again",
    ),
    ("groups_2", &[(r#""tb_id":0"#, r#""tb_id":2"#)], Class::Attribute, "0 to 1"),
];

#[test]
fn broken_plans_are_refused_by_name() {
    let nop = r#"{"name":"nop"}"#;
    for (name, changes, class, part) in BROKEN {
        let error = broken(name, changes);
        assert!(error.class == class && error.text.contains(part), "{name} {changes:?}: {error}");
    }
    // Without the last wait the kernel could end before its output is there.
    let reads = plans::named("reads_2");
    let compact: serde_json::Value = serde_json::from_str(&reads).unwrap();
    let last = r#"{"channel_ids":[0],"channel_type":"memory","name":"wait"}"#;
    let error = hawser_msccl::read_mscclpp(&compact.to_string().replace(last, nop)).unwrap_err();
    assert!(error.class == Class::Race && error.text.contains("does not wait for it"), "{error}");
    // The place is that of the operation.
    let at = reads.lines().position(|line| line.contains("\"rres\"")).unwrap();
    let error = hawser_msccl::read_mscclpp(&reads.replacen("\"rres\"", "\"gstore\"", 1)).unwrap_err();
    assert!((1..=at as u32 + 1).contains(&error.line) && error.column > 1, "{error}");
    assert!(reads.lines().nth(error.line as usize - 1).unwrap().trim_start().starts_with('{'), "{error}");
}

#[test]
fn texts_that_were_cut_anywhere_are_refused() {
    for name in ["packets_2", "ring_3", "old_packets_2"] {
        let text = plans::named(name);
        for cut in (0..text.trim_end().len()).step_by(11) {
            assert!(hawser_msccl::read_mscclpp(&text[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
    for text in ["", "{", "[]", "{}", "nothing", "{\"gpus\": []}", "\u{feff}{}"] {
        assert!(hawser_msccl::read_mscclpp(text).is_err(), "{text}");
    }
}

static SMALL: LazyLock<Vec<(String, String)>> =
    LazyLock::new(|| plans::all().into_iter().filter(|(name, _)| name.ends_with(['2', '3'])).collect());

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Values are exchanged at random: what is accepted has been proved, whatever it is.
    #[test]
    fn plans_with_other_values_are_refused_or_right(
        file in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec(
            (any::<proptest::sample::Index>(), any::<proptest::sample::Index>()), 1..4
        ),
    ) {
        const VALUES: [&str; 22] = [
            "-1", "0", "1", "2", "3", "65536", "4294967295", "18446744073709551616", "1e3", "null", "[]",
            "{}", "[0,0]",
            "\"i\"", "\"o\"", "\"s\"", "\"wait\"", "\"put\"", "\"re\"", "\"upkt\"", "\"barrier\"",
            "\"signal\"",
        ];
        let mut text = SMALL[file.index(SMALL.len())].1.clone();
        for (place, value) in changes {
            // Every value that ends its line: the last byte but a comma.
            let lines: Vec<&str> = text.lines().collect();
            let at = place.index(lines.len());
            let line = lines[at].trim_end_matches(',');
            let start = line.find(": ").map_or(line.len() - line.trim_start().len(), |colon| colon + 2);
            if line[start..].ends_with(['{', '[', '}', ']']) {
                continue;
            }
            let comma = if lines[at].ends_with(',') { "," } else { "" };
            let new = format!("{}{}{comma}", &line[..start], VALUES[value.index(VALUES.len())]);
            let changed = |(number, line): (usize, &&str)| {
                let line: &str = if number == at { &new } else { line };
                format!("{line}\n")
            };
            text = lines.iter().enumerate().map(changed).collect();
        }
        match hawser_msccl::read_mscclpp(&text) {
            Ok(import) => {
                let verdict = verify(&import.imported.program, hawser_msccl::MOST_SLOTS, false);
                prop_assert!(verdict.is_ok_and(|verdict| verdict.min_depth == import.imported.min_depth),
                    "{text}");
            }
            Err(error) => prop_assert!(error.line > 0 && !error.text.is_empty(), "{error}"),
        }
    }
}

/// Plans of other people's generators, from the folder that a variable names: right, or refused for what
/// programs lack.
#[test]
fn corpus() {
    let Some(folder) = std::env::var_os("HAWSER_MSCCLPP_DIR") else { return };
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let multicast = name.contains("nvls") || name.contains("allreduce_pipeline");
        match hawser_msccl::read_mscclpp(&std::fs::read_to_string(&path).unwrap()) {
            Ok(import) => assert!(import.imported.right_in_place && !multicast, "{name}"),
            Err(error) if multicast => assert_eq!(error.class, Class::Operation, "{name}: {error}"),
            // Half of a chunk is read without a signal of the threadblock that wrote it.
            Err(error) if name.contains("reduce_tbg") => {
                assert_eq!(error.class, Class::Race, "{name}: {error}")
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}
