use super::*;

/// A swap of two ranks: both send their chunk and add what comes.
fn pair(steps: &str) -> String {
    let gpu = |rank: usize| {
        format!(
            "<gpu id=\"{rank}\" i_chunks=\"1\" o_chunks=\"1\" s_chunks=\"1\"><tb id=\"0\" send=\"{0}\" \
             recv=\"{0}\" chan=\"0\">{steps}</tb></gpu>",
            1 - rank
        )
    };
    format!(
        "<algo name=\"pair\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"1\" ngpus=\"2\" \
         coll=\"allreduce\" inplace=\"0\">{}{}</algo>",
        gpu(0),
        gpu(1)
    )
}

fn step(s: usize, kind: &str, src: &str, dst: &str) -> String {
    format!(
        "<step s=\"{s}\" type=\"{kind}\" srcbuf=\"{src}\" srcoff=\"0\" dstbuf=\"{dst}\" dstoff=\"0\" \
         cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>"
    )
}

fn said(text: &str, rules: Rules) -> String {
    match judge(text, rules) {
        Opinion::Right => "right".to_owned(),
        Opinion::Wrong(text) | Opinion::Open(text) => text,
    }
}

#[test]
fn data_and_order_are_judged() {
    let of = |steps: &[String]| said(&pair(&steps.concat()), Rules::default());
    assert_eq!(of(&[step(0, "s", "i", "o"), step(1, "rrc", "i", "o")]), "right");
    for (steps, part) in [
        (vec![step(0, "rrc", "i", "o"), step(1, "s", "i", "o")], "stands for ever before step 0 (rrc)"),
        (vec![step(0, "s", "i", "o"), step(1, "r", "i", "o")], "not what it should be"),
        (vec![step(0, "s", "o", "o"), step(1, "rrc", "i", "o")], "nobody wrote"),
        (vec![step(0, "s", "i", "o")], "never received"),
        (vec![step(0, "cpy", "i", "o")], "not what it should be"),
        (vec![step(0, "s", "i", "o"), step(1, "rrc", "i", "o"), step(2, "re", "i", "o")], "not what"),
        (vec![step(1, "s", "i", "o"), step(1, "rrc", "i", "o")], "have a gap"),
    ] {
        let found = of(&steps);
        assert!(found.contains(part), "{part}: {found}");
    }
}

#[test]
fn what_no_collective_moves_is_seen() {
    let custom = |steps: &[String]| pair(&steps.concat()).replace("allreduce", "custom");
    let swap =
        custom(&[step(0, "s", "i", "o"), step(1, "r", "i", "o")]).replace("inplace=\"0\"", "inplace=\"1\"");
    assert_eq!(said(&swap, Rules::default()), "right");
    assert_eq!(moved(&swap), Some(vec![vec![Some((1, 0))], vec![Some((0, 0))]]));
    let kept = custom(&[step(0, "s", "i", "o"), step(1, "r", "i", "s")]);
    assert_eq!(moved(&kept), Some(vec![vec![None], vec![None]]));
    let sums = said(&custom(&[step(0, "s", "i", "o"), step(1, "rrc", "i", "o")]), Rules::default());
    assert!(sums.contains("which sums"), "{sums}");
    let unwritten = custom(&[step(0, "s", "o", "o"), step(1, "r", "i", "o")]);
    assert!(said(&unwritten, Rules::default()).contains("nobody wrote") && moved(&unwritten).is_none());
}

#[test]
fn a_fifo_may_be_too_short() {
    let twice = ["s", "s"].iter().enumerate().map(|(at, kind)| step(at, kind, "i", "o"));
    let steps: String = twice.chain([step(2, "r", "i", "s"), step(3, "rrc", "i", "o")]).collect();
    let with = |slots| said(&pair(&steps), Rules { slots, keeps_input: true });
    assert_eq!((with(None), with(Some(2))), ("right".to_owned(), "right".to_owned()));
    assert!(with(Some(1)).contains("stands for ever before step 1 (s)"), "{}", with(Some(1)));
}

#[test]
fn what_nothing_orders_is_a_race() {
    let base = pair(
        &[step(0, "s", "i", "o"), step(1, "r", "i", "s").replace("hasdep=\"0\"", "hasdep=\"1\"")].concat(),
    );
    let add = |waits: &str| {
        let re =
            [step(0, "cpy", "i", "o"), step(1, "re", "s", "o").replace("depid=\"-1\" deps=\"-1\"", waits)];
        let tb = format!("<tb id=\"1\" send=\"-1\" recv=\"-1\" chan=\"0\">{}</tb></gpu>", re.concat());
        said(&base.replace("</gpu>", &tb), Rules::default())
    };
    assert_eq!(add("depid=\"0\" deps=\"1\""), "right");
    // The first step that tells others, from the one that is waited for on, is the second.
    assert_eq!(add("depid=\"0\" deps=\"0\""), "right");
    let found = add("depid=\"-1\" deps=\"-1\"");
    assert!(found.contains("nobody wrote it"), "{found}");
    // Here the data came long before, in this order of blocks.
    let two = [step(0, "s", "i", "o"), step(1, "r", "i", "s")].concat();
    let copies = format!(
        "<tb id=\"1\" send=\"-1\" recv=\"-1\" chan=\"0\">{}</tb></gpu>",
        [step(0, "cpy", "i", "o"), step(1, "cpy", "i", "s")].concat()
    );
    let found = said(&pair(&two).replace("</gpu>", &copies), Rules::default());
    assert!(found.contains("is written while another block uses it"), "{found}");
    assert!(add("depid=\"2\" deps=\"0\"").contains("block 2"));
}

#[test]
fn in_place_the_buffers_are_one() {
    let steps = [step(0, "cpy", "i", "o"), step(1, "s", "i", "o"), step(2, "rrc", "o", "o")].concat();
    let both = |text: &str| pair(&steps).replace("inplace=\"0\"", text);
    assert_eq!(said(&both("inplace=\"1\" outofplace=\"1\""), Rules::default()), "right");
    let late = steps.replace("type=\"s\" srcbuf=\"i\"", "type=\"s\" srcbuf=\"o\"");
    let text = pair(&[late, step(3, "cpy", "i", "s"), step(4, "cpy", "o", "i")].concat());
    assert_eq!(said(&text, Rules::default()), "right");
    let kept = said(&text, Rules { slots: None, keeps_input: true });
    assert!(kept.contains("belongs to the caller"), "{kept}");
}
