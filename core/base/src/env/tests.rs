//! Tests of the settings.

use std::time::Duration;

use super::source::tests::source;
use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
const BEGIN: &str = "<!-- The tables are made by `BLESS=1 cargo test -p hawser-base --lib env`. -->\n";
const END: &str = "<!-- End of the tables. -->\n";

#[test]
fn the_page_has_the_table() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (tables, after) = rest.split_once(END).unwrap();
    let wanted = tables_of_the_page();
    if is_to_bless() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
    } else {
        assert!(
            tables == wanted,
            "docs/settings.md is old: BLESS=1 cargo test -p hawser-base --lib env writes it"
        );
    }
}

fn tables_of_the_page() -> String {
    let mut text = String::new();
    for group in TABLE.chunk_by(|a, b| a.section == b.section) {
        text += &format!(
            "\n## {}\n\n| name | meaning | values | default |\n|---|---|---|---|\n",
            group[0].section
        );
        text.extend(group.iter().map(row));
    }
    text + "\n"
}

fn row(setting: &Setting) -> String {
    let mut name = format!("`{}`", setting.name);
    if !setting.older_names.is_empty() {
        let older: Vec<String> = setting.older_names.iter().map(|name| format!("`{name}`")).collect();
        name += &format!(" (older names: {})", older.join(", "));
    }
    let mut meaning = setting.meaning.trim().to_owned();
    match setting.reader {
        Reader::Library => {}
        Reader::Plugin(plugin) => meaning += &format!(" Read by the plugin {plugin}."),
        Reader::Nobody => meaning = format!("Accepted without effect. {meaning}"),
    }
    if let Some(page) = setting.page {
        let title = page.split('#').next().unwrap_or_default();
        meaning += &format!(" See [{title}]({page}).");
    }
    let strict = if setting.is_strict { "; else an error at init" } else { "" };
    format!(
        "| {name} | {meaning} | {}{strict} | {} |\n",
        setting.accepted.replace('|', "\\|"),
        setting.default
    )
}

#[test]
fn every_entry_is_whole_and_every_name_stands_once() {
    let mut seen = std::collections::BTreeSet::new();
    for name in names() {
        assert!(seen.insert(name), "{name} stands twice");
        let prefix = ["NCCL_", "HAWSER_", "MSCCL_"].iter().find(|prefix| name.starts_with(**prefix));
        assert!(prefix.is_some(), "{name} would not be read from the environment");
        assert_eq!(
            table_entry(name).map(|entry| entry.name == name || entry.older_names.contains(&name)),
            Some(true)
        );
    }
    for setting in TABLE {
        let meaning = setting.meaning.trim();
        assert!(meaning.ends_with(['.', ')']) && !meaning.contains('|'), "{}: {meaning}", setting.name);
        assert!(!setting.accepted.is_empty() && !setting.default.is_empty(), "{}", setting.name);
        let page = setting.page.map(|page| format!("{PAGE}/../{}", page.split('#').next().unwrap()));
        let is_there = |page: &String| std::fs::exists(page.replace("/settings.md/..", "")).unwrap();
        assert!(page.as_ref().is_none_or(is_there), "{}: no page {page:?}", setting.name);
    }
}

#[test]
fn every_entry_is_read_by_each_of_its_names() {
    // Reading nothing takes every default, each of which must be a value of its kind.
    let unset = format!("{:?}", source(&[]).settings());
    for setting in TABLE {
        // No kind but texts takes this, and every kind says so where its users see it, with the accepted
        // form.
        let takes_all =
            ["a text", "0, 1 or a path", "a distance such as LOC or SYS"].contains(&setting.accepted);
        for name in std::iter::once(&setting.name).chain(setting.older_names) {
            let source = source(&[(name, "what is this")]);
            let settings = source.settings();
            let said = [settings.faults.clone(), source.complaints()].concat();
            if takes_all {
                assert_eq!(said, [""; 0], "{name}");
                continue;
            }
            assert_eq!(said.len(), 1, "{name}: {said:?}");
            assert!(said[0].starts_with(&format!("{name}=what is this")), "{said:?}");
            assert!(said[0].contains(setting.accepted), "{said:?}");
            assert_eq!(settings.faults.len(), usize::from(setting.is_strict), "{name}");
            if !setting.is_strict {
                assert_eq!(format!("{settings:?}"), unset, "{name} keeps its default");
            }
        }
    }
}

#[test]
fn what_other_settings_make_idle_is_said() {
    let watching = source(&[("HAWSER_RULES_WATCH", "1")]).settings();
    assert_eq!((watching.watched_files().len(), watching.idle_values().len()), (0, 1));
    let watching = source(&[("HAWSER_RULES_WATCH", "1"), ("HAWSER_RULES", "/a,/b")]).settings();
    assert_eq!((watching.watched_files().len(), watching.idle_values().len()), (2, 0));
}

#[test]
fn distances_are_symmetric_edit_distances() {
    for (a, b, d) in [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
        assert_eq!((distance(a, b), distance(b, a)), (d, d), "{a} {b}");
    }
}

#[test]
fn values_parse_strictly_and_bad_ones_are_reported() {
    let numbers = [("NCCL_P2P_DISABLE", "true"), ("NCCL_MAX_CTAS", "8")];
    let s = source(&[numbers[0], numbers[1], ("HAWSER_DEVICE", "HOST")]);
    let settings = s.settings();
    assert!(!settings.p2p_disable);
    assert_eq!(settings.max_ctas, Some(8));
    assert_eq!(settings.device, "host");
    assert!(s.complaints().iter().any(|text| text.contains("NCCL_P2P_DISABLE=true")));
}

#[test]
fn deadlines_are_numbers_that_clocks_can_count() {
    let s = source(&[
        ("HAWSER_INIT_TIMEOUT", "1e300"),
        ("HAWSER_HANDSHAKE_TIMEOUT", "-1"),
        ("HAWSER_OP_TIMEOUT", "1.5"),
        ("HAWSER_RULES_TIMEOUT", "NaN"),
    ]);
    let settings = s.settings();
    assert_eq!((settings.init_timeout().as_secs(), settings.handshake_timeout.as_secs()), (120, 5));
    assert_eq!(settings.op_timeout, Some(Duration::from_millis(1500)));
    assert_eq!(settings.rules_timeout.as_secs(), 10);
    let complaints = s.complaints();
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    assert!(
        complaints.iter().any(|text| text.contains("HAWSER_RULES_TIMEOUT=NaN") && text.contains("to 86400"))
    );
    assert_eq!(source(&[("HAWSER_OP_TIMEOUT", "0")]).settings().op_timeout, None);
}

#[test]
fn typing_errors_get_the_nearest_name() {
    let complaints = source(&[("NCCL_ALGOS", "Ring"), ("NCCL_UNRELATED_SETTING", "1")]).complaints();
    assert_eq!(complaints.len(), 1);
    assert!(complaints[0].contains("NCCL_ALGO?"));
    // Names of NCCL and of plugins count too: as what was meant, and as what is no typing error.
    let complaints = source(&[("NCCL_IB_HCAA", "mlx5_0"), ("NCCL_IB_HCA", "mlx5_0"), ("NCCL_IB_TC", "1")]);
    assert_eq!(
        complaints.complaints(),
        ["NCCL_IB_HCAA is not a setting of this library; did you mean NCCL_IB_HCA?"]
    );
}

#[test]
fn every_value_that_must_mean_something_is_a_fault_if_it_does_not() {
    for name in ["HAWSER_FUSE", "HAWSER_SM_FREE_ADD", "NCCL_DMA_ENABLE", "NCCL_CUMEM_POOL_SIZE"] {
        let settings = source(&[(name, "maybe")]).settings();
        assert!(
            settings.check().is_err_and(|e| e.to_string().contains(name)),
            "{name}: {:?}",
            settings.faults
        );
    }
}

#[test]
fn the_examples_mean_what_they_say() {
    let given = [
        ("NCCL_CUMEM_POOL_SIZE", "2GB"),
        ("NCCL_CUMEM_PREALLOC", "1"),
        ("NCCL_CUMEM_GROWTH_FACTOR", "1.5"),
        ("NCCL_CUMEM_MAX_SIZE", "8GB"),
        ("NCCL_CUMEM_TRIM_THRESHOLD", "1gib"),
        ("NCCL_CUMEM_MONITOR", "on"),
        ("NCCL_CUMEM_MONITOR_INTERVAL", "500ms"),
        ("NCCL_SM_FREE_VERBOSE", "2"),
        ("HAWSER_SM_FREE_CTAS", "16"),
        ("HAWSER_SM_FREE_ADD", "1"),
        ("NCCL_ZERO_COPY", "auto"),
        ("NCCL_DMA_ENABLE", "0"),
        ("NCCL_DIRECT_PATH", "0"),
        ("NCCL_PXN_DISABLE", "0"),
        ("NCCL_ENABLE_FAULT_TOLERANCE", "1"),
        ("NCCL_CUMEM_HOST_ENABLE", "-1"),
    ];
    let settings = source(&given).settings();
    assert_eq!(settings.faults, [""; 0]);
    let bytes = (settings.pool_size, settings.pool_max, settings.pool_trim);
    assert_eq!(bytes, (2 << 30, Some(8 << 30), 1 << 30));
    assert_eq!((settings.pool_preallocate, settings.pool_growth, settings.pool_monitor), (true, 1.5, true));
    assert_eq!(settings.pool_monitor_interval, Duration::from_millis(500));
    assert_eq!((settings.sm_free_verbose, settings.dma_enable), (2, false));
    assert_eq!((settings.reducing_ctas, settings.memory_adds), (Some(16), true));
    assert_eq!((settings.zero_copy, settings.direct_path), (None, Some(false)));
    let empty = source(&[]).settings();
    assert_eq!((empty.dma_enable, empty.direct_path), (true, None));
}

#[test]
fn what_means_nothing_is_a_fault_with_the_accepted_form() {
    let wrong = [
        ("NCCL_CUMEM_POOL_SIZE", "2 gallons", "512MB"),
        ("NCCL_CUMEM_PREALLOC", "perhaps", "0, 1 or auto"),
        ("HAWSER_SM_FREE_CTAS", "65", "1 to 64"),
        ("HAWSER_SM_FREE_ADD", "2", "0, 1 or auto"),
        ("NCCL_CUMEM_GROWTH_FACTOR", "0.5", "1.0 to 8.0"),
        ("NCCL_CUMEM_GROWTH_FACTOR", "NaN", "1.0 to 8.0"),
        ("NCCL_CUMEM_MAX_SIZE", "-1", "512MB"),
        ("NCCL_CUMEM_TRIM_THRESHOLD", "all", "512MB"),
        ("NCCL_CUMEM_MONITOR", "2", "0, 1 or auto"),
        ("NCCL_CUMEM_MONITOR_INTERVAL", "0.01", "0.1"),
        ("NCCL_CUMEM_MONITOR_INTERVAL", "1e400", "0.1"),
        ("NCCL_SM_FREE_VERBOSE", "3", "0, 1 or 2"),
        ("NCCL_ZERO_COPY", "2", "0, 1 or auto"),
        ("NCCL_DMA_ENABLE", "x", "0, 1 or auto"),
        ("NCCL_DIRECT_PATH", "x", "0, 1 or auto"),
        ("NCCL_PXN_DISABLE", "x", "0, 1 or auto"),
        ("NCCL_ENABLE_FAULT_TOLERANCE", "x", "0, 1 or auto"),
        ("NCCL_CUMEM_HOST_ENABLE", "7", "0, 1"),
        ("NCCL_CTA_POLICY", "ZERO|NONE", "EFFICIENCY"),
        ("NCCL_CTA_POLICY", "4", "EFFICIENCY"),
    ];
    for (name, value, accepted) in wrong {
        let faults = source(&[(name, value)]).settings().faults;
        assert_eq!(faults.len(), 1, "{name}={value}: {faults:?}");
        assert!(faults[0].contains(&format!("{name}={value}")) && faults[0].contains(accepted), "{faults:?}");
    }
}

#[test]
fn policies_are_numbers_or_names() {
    let policies = [
        ("0", false),
        ("2", true),
        ("3", true),
        ("zero", true),
        ("EFFICIENCY | ZERO", true),
        ("DEFAULT", false),
    ];
    for (text, zero) in policies {
        assert_eq!(source(&[("NCCL_CTA_POLICY", text)]).settings().no_ctas, Some(zero), "{text}");
    }
}
