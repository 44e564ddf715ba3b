use super::*;
use crate::rule::{Action, RunBy, Way};
use hawser_plugin::tuner::{Algorithm, Candidate, Decision, Executor, Protocol};
use proptest::prelude::*;

const EVERYTHING: &str = r#"
# A comment.
version = 1
never_worse = true

[[rule]]
name = "small"
priority = 10
match = { collective = ["all_reduce", "AllGather"], bytes = "..64K", ranks = 8, data_type = ["half", "bf16"], op = "sum" }
use = [{ algorithm = "all_pairs", protocol = "symll", channels = 0x8 }, { algorithm = "ring" }, "default"]

[[rule]]
never_worse = false
match.bytes = ["1M..=2M", "4M..8M", 77]
match.hosts = "2.."
match.ranks_per_host = [4, 8]
match.registered = true
match.in_graph = false
match.operations = 2
match.communicator = ["tp*", "dp_?"]
[rule.use]
algorithm = "auto"
protocol = "Simple"
channels = "auto"
chunk = "128K"
executor = "sm"
"#;

#[test]
fn every_key_is_read() {
    let rules = parse("a.toml", EVERYTHING).unwrap();
    let [small, large] = &rules[..] else { panic!("{rules:?}") };
    assert_eq!(small.place.to_string(), "a.toml:6:1");
    assert_eq!((small.name.as_deref(), small.priority, small.never_worse), (Some("small"), 10, true));
    assert_eq!(
        small.to_string(),
        "all_gather|all_reduce, bytes ..64K, ranks 8, half|bfloat16, sum -> all_pairs/fused/ll if not held back channels 8, else ring, \
         else default never_worse priority 10"
    );
    assert_eq!((large.place.line, large.never_worse), (12, false));
    assert_eq!(
        large.to_string(),
        "bytes 1M..=2M|4M..8M|77, ranks_per_host 4|8, hosts 2.., registered true, in_graph false, operations 2, \
         communicator tp*|dp_? -> any/not_copy_engine/simple chunk 128K"
    );
    assert_eq!(parse("a", ""), Ok(vec![]));
}

#[test]
fn adaptive_mode_is_read() {
    let adaptive = |text: &str| contents("a", text).unwrap().adaptive().map(|adaptive| adaptive.period);
    assert_eq!(adaptive("mode = \"Adaptive\""), Some(100));
    assert_eq!(adaptive("mode = \"adaptive\"\nbudget = 0.1"), Some(10));
    assert_eq!(adaptive("mode = \"adaptive\"\nbudget = 0"), Some(0));
    assert_eq!((adaptive("budget = 0.1"), adaptive("mode = \"fixed\"")), (None, None));
    let avoid = contents("a", "[[avoid]]\nmatch.ranks = 4\nuse = { algorithm = \"tree\" }").unwrap().avoid;
    assert_eq!(avoid[0].to_string(), "ranks 4 -> tree");
    let join = |texts: [&str; 2]| Contents::join(texts.map(|text| contents("a", text).unwrap()).into());
    let both = join(["mode = \"adaptive\"\nbudget = 0.05", "budget = 0\n[[rule]]\nuse = \"default\""]);
    assert_eq!((both.adaptive().map(|adaptive| adaptive.period), both.rules.len()), (Some(0), 1));
}

#[test]
fn an_algorithm_means_all_executors_and_old_names_one() {
    let way = |text: &str| parse("a", &format!("[[rule]]\nuse = {{ {text} }}")).unwrap()[0].chain[0].way;
    let any = way("algorithm = \"AllPairs\"");
    assert_eq!(any, Way { algorithm: Some(Algorithm::ALL_PAIRS), ..Way::ANY });
    let fused = Way {
        algorithm: Some(Algorithm::ONE_SHOT),
        executor: Some(RunBy::Only(Executor::Fused)),
        protocol: Some(Protocol::Ll),
        takes_held: true,
    };
    assert_eq!(way("algorithm = \"one_shot\", executor = \"fused\", protocol = \"ll\""), fused);
    let old = Way { takes_held: false, ..fused };
    assert_eq!(way("algorithm = \"sym_one_shot\", protocol = \"ll\""), old);
    assert_eq!(way("algorithm = \"sym_one_shot\", protocol = \"symll\""), old);
    assert_eq!(way("algorithm = \"one_shot\", protocol = \"symll\""), old);
    assert_eq!(way("algorithm = \"one_shot\", protocol = \"symll\", executor = \"sm\""), fused);
    let candidate = |algorithm, executor, protocol| {
        Candidate::predicted(Decision::new(algorithm, executor, protocol), 1.0)
    };
    let pairs = candidate(Algorithm::ALL_PAIRS, Executor::Interpreter, Protocol::Ll);
    assert!(any.takes(&pairs) && any.takes(&candidate(Algorithm::ALL_PAIRS, Executor::Fused, Protocol::Ll)));
    assert!(fused.takes(&candidate(Algorithm::ONE_SHOT, Executor::Fused, Protocol::Ll)));
    assert!(!fused.takes(&candidate(Algorithm::ONE_SHOT, Executor::Interpreter, Protocol::Ll)));
    assert!(!fused.takes(&candidate(Algorithm::ONE_SHOT, Executor::Fused, Protocol::Ll128)));
    let plain = way("protocol = \"ll\"");
    assert!(
        plain.takes(&pairs) && !plain.takes(&candidate(Algorithm::ONE_SHOT, Executor::Fused, Protocol::Ll))
    );
}

#[test]
fn old_spellings_are_read_with_a_hint() {
    let text = "[[rule]]\n\
                use = [{ algorithm = \"all_pairs\", protocol = \"SymLL128\" }, { algorithm = \"dma_ring\" },\n\
                { executor = \"dma\" }, { executor = \"sm\" }]\n\
                [[avoid]]\nuse = { algorithm = \"sym_direct\" }";
    let hints: Vec<String> = contents("a", text).unwrap().hints.iter().map(ToString::to_string).collect();
    assert_eq!(
        hints,
        [
            "a:2:46: \"SymLL128\" is written executor = \"fused\", protocol = \"ll128\" now",
            "a:2:74: \"dma_ring\" is written algorithm = \"ring\", executor = \"copy_engine\" now",
            "a:3:14: \"dma\" is written executor = \"copy_engine\" now",
            "a:3:36: \"sm\" is written executor = \"not_copy_engine\" now",
            "a:5:21: \"sym_direct\" is written algorithm = \"direct\", executor = \"fused\" now",
        ]
    );
}

/// A text, where its fault stands, and words of the complaint.
const FAULTS: &[(&str, (u32, u32), &str)] = &[
    (
        "verson = 1",
        (1, 1),
        "no key \"verson\"; did you mean \"version\"? Known are version, never_worse, mode, budget, rule, avoid",
    ),
    ("version = 2", (1, 11), "version is 1 in this library"),
    ("[rule]\nname = \"a\"", (1, 1), "begin each rule with [[rule]]"),
    ("avoid = 1", (1, 9), "begin each avoid with [[avoid]]"),
    (
        "[[avoid]]\npriority = 1\nuse = \"default\"",
        (2, 1),
        "avoid has no key \"priority\". Known are match, use",
    ),
    ("mode = \"adaptve\"", (1, 8), "did you mean \"adaptive\"? Known are fixed, adaptive"),
    ("mode = true", (1, 8), "mode is a text"),
    ("budget = 0.5", (1, 10), "budget is the share of operations that are trials, 0 to 0.1: 0.01 is 1 %"),
    ("budget = -1", (1, 10), "budget is the share"),
    ("budget = \"1%\"", (1, 10), "budget is the share"),
    ("budget = nan", (1, 10), "budget is the share"),
    ("[[rules]]", (1, 3), "did you mean \"rule\"?"),
    ("[[rule]]\nname = \"a\"", (1, 1), "the rule does nothing: add use"),
    ("[[rule]]\nprority = 1\nuse = \"default\"", (2, 1), "did you mean \"priority\"?"),
    ("[[rule]]\npriority = \"high\"\nuse = \"default\"", (2, 12), "priority is a number from"),
    ("[[rule]]\nzzz = 1\nuse = \"default\"", (2, 1), "a rule has no key \"zzz\". Known are name"),
    ("[[rule]]\nmatch = 3\nuse = \"default\"", (2, 9), "match is a table, not an integer"),
    ("[[rule]]\nmatch = { colective = \"x\" }\nuse = \"default\"", (2, 11), "did you mean \"collective\"?"),
    (
        "[[rule]]\nmatch.collective = \"all_redcue\"\nuse = \"default\"",
        (2, 20),
        "did you mean \"all_reduce\"?",
    ),
    (
        "[[rule]]\nmatch.collective = \"sendrecv\"\nuse = \"default\"",
        (2, 20),
        "is not known. Known are all_reduce,",
    ),
    (
        "[[rule]]\nmatch.collective = [\"reduce\", 7]\nuse = \"default\"",
        (2, 31),
        "collective is a text in quotes",
    ),
    ("[[rule]]\nmatch.bytes = \"64Q\"\nuse = \"default\"", (2, 15), "bytes: \"64Q\" is no size"),
    ("[[rule]]\nmatch.bytes = 1.5\nuse = \"default\"", (2, 15), "bytes: float is no range"),
    ("[[rule]]\nmatch.ranks = -1\nuse = \"default\"", (2, 15), "ranks is a number from 0"),
    ("[[rule]]\nmatch.ranks = [\"4..2\"]\nuse = \"default\"", (2, 16), "holds nothing"),
    ("[[rule]]\nmatch.data_type = \"flaot\"\nuse = \"default\"", (2, 19), "did you mean \"float\"?"),
    (
        "[[rule]]\nmatch.op = \"xor\"\nuse = \"default\"",
        (2, 12),
        "Known are sum, prod, max, min, avg, premulsum",
    ),
    ("[[rule]]\nmatch.in_graph = 1\nuse = \"default\"", (2, 18), "in_graph is true or false, not an integer"),
    ("[[rule]]\nmatch.communicator = 1\nuse = \"default\"", (2, 22), "communicator is a text"),
    ("[[rule]]\nuse = []", (2, 7), "use is empty"),
    ("[[rule]]\nuse = {}", (2, 7), "an action without keys"),
    ("[[rule]]\nuse = \"ring\"", (2, 7), "an action is a table such as"),
    ("[[rule]]\nuse = [\"default\", { algorithm = \"ring\" }]", (2, 8), "nothing can come after it"),
    ("[[rule]]\nuse = { algoritm = \"ring\" }", (2, 9), "did you mean \"algorithm\"?"),
    ("[[rule]]\nuse = { algorithm = \"rng\" }", (2, 21), "did you mean \"ring\"? Known are tree, ring"),
    ("[[rule]]\nuse = { protocol = \"ll256\" }", (2, 20), "Known are ll, ll128, simple, auto"),
    ("[[rule]]\nuse = { algorithm = \"ring\", protocol = \"symll\" }", (2, 40), "ring has no fused kernels"),
    ("[[rule]]\nuse = { channels = 0 }", (2, 20), "channels is a number from 1 to 1024"),
    ("[[rule]]\nuse = { chunk = \"5M\" }", (2, 17), "a chunk has 512 bytes to 4M"),
    ("[[rule]]\nuse = { class = \"urgnt\" }", (2, 17), "urgent"),
    ("[[rule]]\nuse = { chunk = \"many\" }", (2, 17), "chunk: \"many\" is no size"),
    ("[[rule]]\nuse = { executor = \"dma\", algorithm = \"tree\" }", (2, 20), "copy engines do not run tree"),
    ("[[rule]]\nuse = { executor = \"dma\", program = \"a\" }", (2, 20), "copy engines do not run programs"),
    (
        "[[rule]]\nuse = { executor = \"sm\", algorithm = \"dma_ring\" }",
        (2, 20),
        "dma_ring is for executor = \"copy_engine\"",
    ),
    ("[[rule]]\nuse = { executor = \"gpu\" }", (2, 20), "executor \"gpu\" is not known"),
    (
        "[[rule]]\nuse = { executor = \"fusd\" }",
        (2, 20),
        "did you mean \"fused\"? Known are interpreter, fused, copy_engine, host, not_copy_engine, auto",
    ),
    (
        "[[rule]]\nuse = { executor = \"copy_engine\", protocol = \"symll\" }",
        (2, 20),
        "symll is for executor = \"fused\"",
    ),
    ("[[rule]]\nuse = { executor = \"fused\", algorithm = \"ring\" }", (2, 20), "ring has no fused kernels"),
    ("[[rule]]\nuse = { program = 1 }", (2, 19), "program is a text"),
    (
        "[[rule]]\nuse = { program = \"a\", algorithm = \"ring\" }",
        (2, 19),
        "an algorithm or a program, not both",
    ),
    ("[[rule]\nname = 1", (1, 8), ""),
    ("a = \"é\" b", (1, 9), ""),
];

#[test]
fn every_fault_is_placed_and_told() {
    for (text, (line, column), words) in FAULTS {
        let problems = parse("r.toml", text).expect_err(text);
        let found = problems.iter().find(|p| p.text.contains(words));
        let found = found.unwrap_or_else(|| panic!("{text}\n{problems:?}\nlacks {words}"));
        assert_eq!((found.place.line, found.place.column), (*line, *column), "{text}\n{found}");
        assert!(found.to_string().starts_with(&format!("r.toml:{line}:{column}: ")), "{found}");
    }
}

#[test]
fn all_faults_are_told_in_their_order() {
    let text = "nope = 1\n[[rule]]\nuse = { algorithm = \"x\" }\n[[rule]]\nuse = { channels = 9999 }\n";
    let lines: Vec<u32> = parse("a", text).unwrap_err().iter().map(|p| p.place.line).collect();
    assert_eq!(lines, [1, 3, 5]);
}

#[test]
fn the_default_is_an_action() {
    let rules = parse("a", "[[rule]]\nuse = \"default\"").unwrap();
    assert_eq!(
        (rules[0].chain.as_slice(), rules[0].to_string().as_str()),
        (&[Action::DEFAULT][..], "always -> default")
    );
}

proptest! {
    #[test]
    fn any_text_gives_rules_or_problems(text: String) {
        let _ = parse("a", &text);
    }

    #[test]
    fn what_looks_like_rules_never_panics(
        text in r#"(\[\[rule\]\]\n((match|use|name|priority|x)(\.(bytes|ranks|algorithm|chunk))? = ("[a-z0-9.=K]{0,9}"|-?[0-9]{1,20}|\{ (algorithm|collective|bytes) = "[a-z_.0-9]{0,8}" \}|\[[0-9, ]{0,9}\])\n){0,4}){0,4}"#
    ) {
        if let Err(problems) = parse("a", &text) {
            prop_assert!(!problems.is_empty());
            let lines = text.lines().count() as u32 + 1;
            prop_assert!(problems.iter().all(|p| p.place.line <= lines));
        }
    }
}
