//! MSCCL's XML: broken files are refused with their class of fault and their line, right ones are proved,
//! exports come back, sizes that are safe elsewhere are found. Files that other runtimes take and that no
//! program can say are changed on import: the changes are told, and what comes out is proved.

mod files;

use std::fmt::Write as _;

use hawser_msccl::{Class, Dialect, Fifos, Import, Window};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Collective, Protocol};
use hawser_program::limits::MAX_CHANNELS;
use hawser_program::text::{from_text, to_text};
use hawser_program::verify::verify;
use proptest::prelude::*;

const WINDOW: Window = Window { protocol: Protocol::Simple, bytes: (0, u64::MAX) };

#[test]
fn broken_files_are_refused_with_class_and_place() {
    let mut classes = Vec::new();
    let mut wrong = Vec::new();
    for (name, text) in files::own() {
        let class = name.split('.').next().unwrap().replace('_', " ");
        let (found, said) = match hawser_msccl::read(&text) {
            Ok(_) => ("right".to_owned(), String::new()),
            Err(error) => {
                (format!("{}:{} {}", error.line, error.column, error.class.name()), error.to_string())
            }
        };
        let note =
            text.lines().next().unwrap().trim_start_matches("<!-- ").trim_end_matches(" -->").to_owned();
        let expected = if class == "valid" { "right".to_owned() } else { note };
        if found != expected || (class != "valid" && !found.ends_with(&class)) {
            wrong.push(format!("{name}: expected {expected}, found {found} {said}"));
        }
        classes.push(class);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    classes.dedup();
    assert_eq!(classes.len(), 18, "every class of fault, and files that are right: {classes:?}");
}

#[test]
fn texts_that_were_cut_anywhere_are_refused() {
    for (name, text) in files::own().into_iter().filter(|(name, _)| name.starts_with("valid")) {
        let end = text.rfind("</algo>").unwrap();
        for cut in (0..end).step_by(7).filter(|cut| text.is_char_boundary(*cut)) {
            assert!(hawser_msccl::read(&text[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Values of attributes are exchanged at random: what is accepted has been proved, whatever it is.
    #[test]
    fn files_with_other_values_are_refused_or_right(
        file in 0..9_usize,
        changes in proptest::collection::vec(
            (any::<proptest::sample::Index>(), any::<proptest::sample::Index>()), 1..4
        ),
    ) {
        const VALUES: [&str; 16] =
            ["-1", "0", "1", "2", "3", "7", "65536", "4294967295", "s", "r", "rrc", "rrs", "re", "i", "o",
                "nop"];
        let own = files::own().into_iter();
        let valid: Vec<(String, String)> = own.filter(|(n, _)| n.starts_with("valid")).collect();
        let mut text = valid[file % valid.len()].1.clone();
        for (place, value) in changes {
            let quotes: Vec<usize> = text.match_indices('"').map(|(at, _)| at).collect();
            if quotes.len() < 2 {
                break;
            }
            let pair = place.index(quotes.len() / 2);
            text.replace_range(quotes[2 * pair] + 1..quotes[2 * pair + 1], VALUES[value.index(VALUES.len())]);
        }
        if let Ok(import) = hawser_msccl::read(&text) {
            let verdict = verify(&import.imported.program, hawser_msccl::MOST_SLOTS, false);
            prop_assert!(verdict.is_ok_and(|verdict| verdict.min_depth == import.imported.min_depth),
                "{text}");
        }
    }
}

#[test]
fn dialects_and_windows() {
    let file = |name: &str| files::own().into_iter().find(|(n, _)| n == name).unwrap().1;
    let read = |text: &str| hawser_msccl::read(text).unwrap();
    assert_eq!(read(&file("valid.pair")).dialect, Dialect::Research);
    assert_eq!(read(&file("valid.azure")).dialect, Dialect::Azure);
    let synthesizer = read(&file("valid.synthesizer"));
    assert_eq!((synthesizer.dialect, synthesizer.imported.bytes), (Dialect::Synthesizer, (0, u64::MAX)));
    assert!(synthesizer.imported.right_in_place);
    let apart = read(&file("valid.only_apart"));
    assert!(apart.imported.right_in_place && apart.changes[0].text.contains("copied to scratch first"));
    let window =
        |text: &str, with: &str| read(&text.replacen("ngpus", &format!("{with} ngpus"), 1)).imported.bytes;
    let pair = file("valid.pair");
    // The research runtime excludes the end of its window.
    assert_eq!(window(&pair, r#"minBytes="8" maxBytes="1024""#), (8, 1023));
    assert_eq!(window(&pair, r#"maxBytes="0""#), (0, u64::MAX));
    let azure = file("valid.azure").replace(r#"minBytes="0" maxBytes="0""#, "");
    assert_eq!(window(&azure, r#"minBytes="8" maxBytes="1024""#), (8, 1024));
    assert_eq!(window(&azure, r#"minBytes="8" maxBytes="0""#), (8, u64::MAX));
}

/// Recursive halving and doubling with `cnt` 4 at most: as a file of eight ranks that sends before it
/// receives.
#[test]
fn the_largest_safe_size_is_found() {
    let mut text = String::from(
        "<algo name=\"swap\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"16\" ngpus=\"2\" \
         coll=\"alltoall\" inplace=\"0\">",
    );
    let step = |s: u32, kind: &str, src: (&str, u32), dst: (&str, u32), cnt: u32| {
        format!(
            "<step s=\"{s}\" type=\"{kind}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" \
             cnt=\"{cnt}\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>",
            src.0, src.1, dst.0, dst.1
        )
    };
    for rank in 0..2 {
        let (own, other) = (8 * rank, 8 * (1 - rank));
        text += &format!(
            "<gpu id=\"{rank}\" i_chunks=\"16\" o_chunks=\"16\" s_chunks=\"0\"><tb id=\"0\" send=\"{0}\" \
             recv=\"{0}\" chan=\"0\">",
            1 - rank
        );
        text += &step(0, "s", ("i", other), ("o", own), 8);
        text += &step(1, "r", ("i", own), ("o", other), 8);
        text += &step(2, "cpy", ("i", own), ("o", own), 8);
        text += "</tb></gpu>";
    }
    text += "</algo>";
    let import = hawser_msccl::read(&text).unwrap();
    // Eight chunks, two slots: at least four must fit a slot.
    assert_eq!(import.safe_bytes(Fifos { slots: 2, bytes: 1 << 20 }), Some(16 * (1 << 20) / 4));
    assert_eq!(import.safe_bytes_of_msccl(), Some(16 * (2 << 20) / 4));
    assert_eq!(import.safe_bytes(Fifos { slots: 8, bytes: 1 << 20 }), None);
    // Here the eight chunks, which always travel together, are one.
    let shape = &import.imported.program.shape;
    assert_eq!((import.imported.min_depth, shape.per_block), (1, 1));
}

/// Every built-in program as XML and back: proved again, for the same collective, and the same text a second
/// time.
#[test]
fn exports_come_back() {
    for collective in Collective::ALL {
        for &algorithm in algo::algorithms(collective) {
            for ranks in [2, 3, 4, 5, 8, 9] {
                let root = if collective.rooted() { ranks - 1 } else { 0 };
                let key = ProgramKey::new(collective, algorithm, ranks, root);
                let program = algo::program(&key).unwrap();
                let xml = hawser_msccl::to_xml(&program, &WINDOW);
                if algo::run(&key) > 1 {
                    assert!(xml.unwrap_err().text.contains("runs of chunks"));
                    continue;
                }
                let xml = xml.unwrap_or_else(|error| panic!("{error}"));
                let import = hawser_msccl::read(&xml)
                    .unwrap_or_else(|e| panic!("{} of {ranks}: {e}\n{xml}", program.shape.name));
                let found = &import.imported;
                let shape = &found.program.shape;
                assert_eq!((shape.collective, shape.ranks, shape.root), (collective, ranks, root));
                assert_eq!(
                    (import.dialect, found.bytes, found.protocol),
                    (Dialect::Azure, (0, u64::MAX), Protocol::Simple)
                );
                assert!(
                    found.right_in_place && found.min_depth <= 2,
                    "{} of {ranks}: {}",
                    shape.name,
                    found.min_depth
                );
                let again =
                    hawser_msccl::read(&hawser_msccl::to_xml(&found.program, &WINDOW).unwrap()).unwrap();
                assert_eq!(again.imported.program.shape.collective, collective);
                let plan = from_text(&to_text(&found.program)).unwrap();
                assert_eq!(plan, found.program);
            }
        }
    }
}

#[test]
fn what_msccl_cannot_say_is_refused() {
    let key = ProgramKey::new(Collective::AllReduce, hawser_plan::Algorithm::Ring, 2, 0);
    let mut program = algo::program(&key).unwrap();
    program.ranks.iter_mut().for_each(|rank| rank.lanes = vec![32]);
    assert!(hawser_msccl::to_xml(&program, &WINDOW).unwrap_err().text.contains("33 channels"));
    let key = ProgramKey {
        per_host: 2,
        ..ProgramKey::new(Collective::AllReduce, hawser_plan::Algorithm::CollNet, 4, 0)
    };
    let network = algo::program(&key).unwrap();
    assert!(hawser_msccl::to_xml(&network, &WINDOW).unwrap_err().text.contains("networks"));
}

/// Files of other people's generators, with the verdicts that their README gives, from the folder that a
/// variable names.
#[test]
fn corpus() {
    let Some(folder) = files::corpus() else { return };
    for (name, text) in folder {
        let found = hawser_msccl::read(&text);
        let class = found.as_ref().map_err(|error| error.class).map(|_| ());
        match name.as_str() {
            "ar_pcie_hier_8_LL_i1" => assert_eq!(class, Err(Class::DoubleCount), "{name}"),
            "pipe_ring_4_c1_i1" | "pipe_ring_8_c8_i1" => assert_eq!(class, Err(Class::WrongResult), "{name}"),
            "cust_alltonext_fwd_2n" => assert_eq!(class, Err(Class::Collective), "{name}"),
            _ => {
                let import = found.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(import.imported.right_in_place, "{name}");
                let safe = if name == "ar_rhd_8_Simple_i1" { Some(8 << 20) } else { None };
                assert_eq!(import.safe_bytes_of_msccl(), safe, "{name}");
                // The owner of a chunk reduces it, but for programs in which everybody reduces all.
                let verdict = verify(&import.imported.program, hawser_msccl::MOST_SLOTS, true).unwrap();
                assert_eq!(verdict.bitwise_equal, !name.starts_with("ar_1step"), "{name}");
            }
        }
        if name == "ar_allpairs_8_LL_i1" || name == "ar_allpairs_8_LL_i2" {
            let import = hawser_msccl::read(&text).unwrap();
            let safe = import.safe_bytes(Fifos::of_msccl(Protocol::Simple));
            assert_eq!(safe, Some(if name.ends_with("i2") { 64 << 20 } else { 32 << 20 }), "{name}");
        }
    }
}

fn own(name: &str) -> String {
    files::own().into_iter().find(|(n, _)| n == name).unwrap().1
}

/// Reads a file that is changed on import, and proves what came out.
fn read(text: &str) -> Import {
    let import = hawser_msccl::read(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let program = &import.imported.program;
    for in_place in [false, true] {
        let verdict = verify(program, import.imported.min_depth, in_place);
        assert!(verdict.is_ok(), "{}: {}", program.shape.name, verdict.unwrap_err());
    }
    import
}

fn texts(import: &Import) -> Vec<String> {
    import.changes.iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_around_a_file_and_in_its_head_is_told_and_left() {
    let import = read(&own("valid.surroundings"));
    assert_eq!(import.imported.program.shape.name, "mine_for_2_GPUs");
    assert_eq!(hawser_msccl::head(&own("valid.surroundings")), Ok(("mine_for_2_GPUs".into(), 2)));
    let said = texts(&import);
    for (found, part) in said.iter().zip([
        "1:1: what stands before <algo>",
        "3:1: the name \"mine, for 2 GPUs\" became mine_for_2_GPUs",
        "3:1: nchannels=\"0\" became 1",
        "12:7: the cnt of 2 nops",
    ]) {
        assert!(found.starts_with(part), "{found}");
    }
    assert_eq!((said.len(), &said), (4, &import.imported.changes));
    assert!(texts(&read(&own("valid.pair"))).is_empty());
}

/// A channel that blocks use must still be there if the file tells their number.
#[test]
fn faults_behind_a_log_have_their_line() {
    let text = own("valid.surroundings").replacen("type=\"re\"", "type=\"rx\"", 1);
    let error = hawser_msccl::read(&text).unwrap_err();
    assert_eq!((error.class, error.line, error.column), (Class::Attribute, 13, 7), "{error}");
    let error = hawser_msccl::read("a log without a program\n").unwrap_err();
    assert_eq!((error.class, error.line), (Class::Syntax, 1), "{error}");
}

/// In place the input lies in the output; out of place somebody has to copy it.
#[test]
fn copies_of_synthesizers_are_left_out_where_nothing_needs_them() {
    let gather =
        all_gather(2, 1, true).replace("<tb id=\"0\"", "<copy i_off=\"0\" o_off=\"0\"/>\n<tb id=\"0\"");
    let said = texts(&read(&gather));
    assert!(said.len() == 1 && said[0].starts_with("3:1: <copy> was left out"), "{said:?}");
    let apart = gather.replace("inplace=\"1\"", "inplace=\"0\" outofplace=\"1\"");
    assert!(hawser_msccl::read(&apart).is_err());
    let elsewhere = own("valid.pair").replacen("<step", "<copy/><step", 1);
    assert_eq!(hawser_msccl::read(&elsewhere).unwrap_err().class, Class::Syntax);
}

#[test]
fn a_block_whose_directions_meet_two_blocks_becomes_two() {
    let import = read(&own("valid.directions"));
    let said = texts(&import);
    assert!(said.len() == 1 && said[0].starts_with("4:5: tb 0 of gpu 0 became two blocks"), "{said:?}");
    let ranks = &import.imported.program.ranks;
    assert_eq!(ranks[0].channels.iter().filter(|channel| !channel.steps.is_empty()).count(), 2);
}

/// An all-gather in which every rank talks to every other one in `instances` blocks. `together`: a block
/// sends and receives.
fn all_gather(ranks: u32, instances: u32, together: bool) -> String {
    let mut text = format!(
        "<algo name=\"direct\" proto=\"LL\" nchannels=\"{instances}\" nchunksperloop=\"{}\" \
         ngpus=\"{ranks}\" coll=\"allgather\" inplace=\"1\">\n",
        ranks * instances
    );
    let step = |kind: &str, number: u32, chunk: u32| {
        format!(
            "<step s=\"{number}\" type=\"{kind}\" srcbuf=\"o\" srcoff=\"{chunk}\" dstbuf=\"o\" \
             dstoff=\"{chunk}\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n"
        )
    };
    for rank in 0..ranks {
        let chunks = ranks * instances;
        writeln!(text, "<gpu id=\"{rank}\" i_chunks=\"0\" o_chunks=\"{chunks}\" s_chunks=\"0\">").unwrap();
        let mut id = 0;
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            for chan in 0..instances {
                let send = step("s", 0, rank * instances + chan);
                let receive = |number| step("r", number, peer * instances + chan);
                let blocks = match together {
                    true => vec![(peer.to_string(), peer.to_string(), send + &receive(1))],
                    false => vec![
                        (peer.to_string(), "-1".into(), send),
                        ("-1".into(), peer.to_string(), receive(0)),
                    ],
                };
                for (to, from, steps) in blocks {
                    writeln!(
                        text,
                        "<tb id=\"{id}\" send=\"{to}\" recv=\"{from}\" chan=\"{chan}\">\n{steps}</tb>"
                    )
                    .unwrap();
                    id += 1;
                }
            }
        }
        text += "</gpu>\n";
    }
    text + "</algo>\n"
}

#[test]
fn more_blocks_than_a_launch_has_are_folded() {
    for (ranks, instances, together) in [(8, 16, true), (4, 22, true), (4, 16, false), (5, 10, false)] {
        let import = read(&all_gather(ranks, instances, together));
        let said = texts(&import);
        assert!(said.len() == 1 && said[0].contains("blocks of a gpu became 64 at most"), "{said:?}");
        assert!(import.imported.channels() <= MAX_CHANNELS as u32);
    }
    assert!(texts(&read(&all_gather(8, 9, true))).is_empty());
}

/// Blocks of one pair of ranks share its FIFOs if they are folded: those stay as they are.
#[test]
fn blocks_that_cannot_be_folded_are_a_limit() {
    let error = hawser_msccl::read(&all_gather(2, 65, true)).unwrap_err();
    assert_eq!(error.class, Class::Limit, "{error}");
    assert!(error.text.contains("65 channels"), "{error}");
    let error = hawser_msccl::read(&all_gather(2, 257, true)).unwrap_err();
    assert!(error.class == Class::Limit && error.text.contains("257 blocks, at most 256"), "{error}");
}

/// A wrong file stays wrong when it is changed on import.
#[test]
fn mutants_of_changed_files_are_refused() {
    let wrong = |text: &str, old: &str, new: &str| {
        assert!(text.contains(old), "{old}");
        let changed = text.replacen(old, new, 1);
        assert!(hawser_msccl::read(&changed).is_err(), "{old} -> {new}");
    };
    let directions = own("valid.directions");
    wrong(&directions, "type=\"rrcs\"", "type=\"rcs\"");
    wrong(&directions, "type=\"rrcs\"", "type=\"rrs\"");
    let folded = all_gather(8, 16, true);
    wrong(&folded, "dstoff=\"17\"", "dstoff=\"18\"");
    wrong(&folded, "type=\"s\" srcbuf=\"o\" srcoff=\"1\"", "type=\"s\" srcbuf=\"o\" srcoff=\"2\"");
    let apart = own("valid.only_apart");
    wrong(&apart, "type=\"re\" srcbuf=\"i\"", "type=\"re\" srcbuf=\"o\"");
    wrong(&apart, "inplace=\"0\" outofplace=\"1\"", "inplace=\"1\" outofplace=\"1\"");
}
