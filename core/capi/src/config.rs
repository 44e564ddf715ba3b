//! Reading `ncclConfig_t` and `ncclCollConfig_t`: sizes, versions and ranges.
//!
//! The caller's struct may be shorter (an older header) or longer (a newer one). What it does not
//! have is unset; a field that is newer than the version it states is ignored. Unlike NCCL, `minCTAs`
//! without `maxCTAs` is fine: an unset bound bounds nothing.

use std::ffi::{c_char, c_int, c_uint};
use std::ops::RangeInclusive;

use hawser_base::env;
use hawser_base::log::{self, Subsys};
use hawser_plan::{CallOptions, Class, Selection, reproducible};
use hawser_plugin::tuner::rule_id;
use hawser_runtime::rma::Limits;
use hawser_runtime::{Config, Error, Result};

use crate::args::{self, In};
use crate::handle::Handle;
use crate::types::{API_MAGIC, NcclCollConfig, NcclConfig, NcclConfigExt, UNDEF_INT};

/// CTAs of one operation where nobody says otherwise.
const DEFAULT_MAX_CTAS: u32 = 64;
/// Signals, and contexts of them, where nobody says otherwise.
const DEFAULT_RMA: u32 = 1;
/// Longest list of vendor options; a longer one is taken for a cycle.
const MOST_OPTIONS: usize = 4096;

/// `HAWSER_VENDOR`, and its options.
const VENDOR: c_int = 0x48_5752;
const OPTION_EXECUTOR: c_int = 1;
const OPTION_PROTOCOL: c_int = 2;
const OPTION_RULE: c_int = 3;
const OPTION_REPRODUCIBLE: c_int = 4;
const OPTION_CLASS: c_int = 5;

/// `NCCL_CTA_POLICY_ZERO`: no CTAs where that is possible.
const CTA_POLICY_ZERO: c_int = 2;

/// Bytes of the first `ncclCollConfig_t`, NCCL 2.31's.
const LEAST_CALL_BYTES: usize = 64;
const NO_EFFECT_OF_CALL: &str = "accepted, no effect: there are no NVLS and no clusters of blocks";

/// `graphUsageMode`: graphs and other calls, in any number. The other modes leave their order to the program.
const GRAPHS_AND_CALLS: c_int = 2;

/// A communicator's configuration after its checks.
#[derive(Debug, Clone)]
pub struct CommConfig {
    /// The part of the configuration that the runtime acts on.
    pub runtime: Config,
}

impl CommConfig {
    /// Reads the caller's struct; NULL stands for the defaults.
    ///
    /// # Errors
    /// `InvalidArgument` for a struct without initialiser and for a value out of range.
    pub fn read(config: In<NcclConfig>) -> Result<Self> {
        let raw = if config.is_null() {
            NcclConfig::UNDEFINED
        } else {
            let raw = config.read_versioned("config", NcclConfig::UNDEFINED, API_MAGIC)?;
            without_newer_fields(raw)
        };
        check(&raw)?;
        set_fields(&raw).chain(idle_fields(&raw)).for_each(|text| log::info(Subsys::Init, || text));
        let runtime = Config {
            // The environment beats the struct, as in NCCL.
            blocking: env::settings().comm_blocking.unwrap_or(raw.blocking != 0),
            min_ctas: given(raw.minCTAs),
            max_ctas: given(raw.maxCTAs),
            sm_free: raw.CTAPolicy != UNDEF_INT && raw.CTAPolicy & CTA_POLICY_ZERO != 0,
            name: In::inside(raw.commName).text(),
            reproducible: 0,
            class: None,
            mixes_graphs: (raw.graphUsageMode != UNDEF_INT).then_some(raw.graphUsageMode == GRAPHS_AND_CALLS),
            net: In::inside(raw.netName).text().filter(|name| !name.is_empty()),
            traffic_class: (raw.trafficClass != UNDEF_INT).then_some(raw.trafficClass),
            host: None,
            process: None,
            rma: Limits {
                signals: given(raw.numRmaSig).unwrap_or(DEFAULT_RMA),
                contexts: env::settings().num_rma_ctx.or(given(raw.numRmaCtx)).unwrap_or(DEFAULT_RMA),
            },
        };
        Ok(Self { runtime })
    }

    /// Most CTAs of one operation.
    pub fn max_ctas(&self) -> u32 {
        self.runtime.max_ctas.unwrap_or(DEFAULT_MAX_CTAS)
    }
}

/// Reads the configuration of one call; NULL and untouched fields ask for nothing. As NCCL does, numbers of
/// CTAs out of range are ignored with a line in the log.
///
/// # Errors
/// `InvalidArgument` for a struct without initialiser, for a word or a policy that is none, and for a list of
/// options without end.
pub fn read_call(
    config: In<NcclCollConfig>,
    handle: &Handle,
) -> Result<(Option<Box<CallOptions>>, Option<u64>)> {
    if config.is_null() {
        return Ok((None, None));
    }
    let raw = config.read_versioned("config", NcclCollConfig::UNDEFINED, API_MAGIC)?;
    if raw.size < LEAST_CALL_BYTES {
        return Err(Error::invalid_argument(format!("config has size {}, less than NCCL 2.31's", raw.size))
            .remedy("leave the field size as NCCL_COLLCONFIG_INITIALIZER set it"));
    }
    in_range("forceAlgSelection", raw.forceAlgSelection, 0..=1)?;
    in_range("CTAPolicy", raw.CTAPolicy, 0..=3)?;
    let mut asked = CallOptions { selection: selection(&raw)?, ..CallOptions::default() };
    with_options(&mut asked, &raw)?;
    for (field, is_set) in
        [("nvlsCTAs", raw.nvlsCTAs != UNDEF_INT), ("cgaClusterSize", raw.cgaClusterSize != UNDEF_INT)]
    {
        if is_set {
            log::info(Subsys::Coll, || format!("config->{field} of a call: {NO_EFFECT_OF_CALL}"));
        }
    }
    // The event came with 2.32; in an older header's struct these bytes are the caller's next variable.
    let event = Some(raw.launchCompletionEvent as u64).filter(|event| raw.version >= 23200 && *event != 0);
    let max_ctas = ctas("maxCTAs", raw.maxCTAs, handle.max_ctas);
    let min_ctas = ctas("minCTAs", raw.minCTAs, handle.max_ctas);
    let options = CallOptions {
        tag: raw.userProfilerTag,
        is_forced: raw.forceAlgSelection != 0,
        // As in NCCL: a minimum above the maximum counts as 1.
        min_ctas: min_ctas.map(|min| if max_ctas.is_some_and(|max| min > max) { 1 } else { min }),
        max_ctas,
        copy_engines: (raw.CTAPolicy != UNDEF_INT).then_some(raw.CTAPolicy & CTA_POLICY_ZERO != 0),
        ..asked
    };
    let options = Some(Box::new(options)).filter(|options| **options != CallOptions::default());
    Ok((options, event))
}

/// A number of CTAs that a call asks for, unless it is out of range.
fn ctas(field: &str, value: c_int, most: u32) -> Option<u32> {
    let asked = u32::try_from(value).ok().filter(|ctas| (1..=most).contains(ctas));
    if asked.is_none() && value != UNDEF_INT {
        log::info(Subsys::Coll, || {
            format!("config->{field} {value} of a call is ignored: not in 1 to {most}")
        });
    }
    asked
}

/// The first version of NCCL whose header has some fields of the configuration, and a function that unsets
/// them: a caller that was compiled with an older header has other bytes there.
type FieldsSince = (c_uint, fn(&mut NcclConfig));

const FIELDS_SINCE: [FieldsSince; 9] = [
    (21400, |c| c.blocking = UNDEF_INT),
    (21700, |c| {
        (c.cgaClusterSize, c.minCTAs, c.maxCTAs) = (UNDEF_INT, UNDEF_INT, UNDEF_INT);
        (c.netName, c.splitShare) = (std::ptr::null(), UNDEF_INT);
    }),
    (22500, |c| c.trafficClass = UNDEF_INT),
    (22700, |c| {
        c.commName = std::ptr::null();
        (c.collnetEnable, c.CTAPolicy, c.shrinkShare, c.nvlsCTAs) =
            (UNDEF_INT, UNDEF_INT, UNDEF_INT, UNDEF_INT);
    }),
    (22800, |c| (c.nChannelsPerNetPeer, c.nvlinkCentricSched) = (UNDEF_INT, UNDEF_INT)),
    (22900, |c| (c.graphUsageMode, c.numRmaCtx) = (UNDEF_INT, UNDEF_INT)),
    (23000, |c| c.maxP2pPeers = UNDEF_INT),
    (23005, |c| c.graphStreamOrdering = UNDEF_INT),
    (23100, |c| {
        (c.launchOrderImplicit, c.numRmaSig, c.rmaEagerInit) = (UNDEF_INT, UNDEF_INT, UNDEF_INT);
        (c.hostCftMode, c.nvlsHostMode) = (UNDEF_INT, UNDEF_INT);
    }),
];

fn without_newer_fields(mut config: NcclConfig) -> NcclConfig {
    let version = config.version;
    for (_, unset) in FIELDS_SINCE.iter().filter(|(since, _)| version < *since) {
        unset(&mut config);
    }
    config
}

fn check(c: &NcclConfig) -> Result<()> {
    let positive = 1..=c_int::MAX;
    in_range("blocking", c.blocking, 0..=1)?;
    in_range("cgaClusterSize", c.cgaClusterSize, 0..=8)?;
    in_range("minCTAs", c.minCTAs, positive.clone())?;
    in_range("maxCTAs", c.maxCTAs, positive.clone())?;
    ordered(c.minCTAs, c.maxCTAs)?;
    in_range("splitShare", c.splitShare, 0..=1)?;
    in_range("collnetEnable", c.collnetEnable, 0..=1)?;
    in_range("CTAPolicy", c.CTAPolicy, 0..=3)?;
    in_range("shrinkShare", c.shrinkShare, 0..=1)?;
    in_range("nvlsCTAs", c.nvlsCTAs, positive.clone())?;
    in_range("nChannelsPerNetPeer", c.nChannelsPerNetPeer, 1..=64)?;
    in_range("nvlinkCentricSched", c.nvlinkCentricSched, 0..=1)?;
    in_range("graphUsageMode", c.graphUsageMode, 0..=2)?;
    in_range("numRmaCtx", c.numRmaCtx, 0..=c_int::MAX)?;
    in_range("maxP2pPeers", c.maxP2pPeers, positive)?;
    in_range("graphStreamOrdering", c.graphStreamOrdering, 0..=1)?;
    in_range("launchOrderImplicit", c.launchOrderImplicit, 0..=1)?;
    in_range("numRmaSig", c.numRmaSig, 0..=c_int::MAX)?;
    in_range("rmaEagerInit", c.rmaEagerInit, 0..=1)?;
    in_range("hostCftMode", c.hostCftMode, 1..=3)?;
    // Two bits, or all of them for NVLS as it may become.
    if c.nvlsHostMode == c_int::MAX { Ok(()) } else { in_range("nvlsHostMode", c.nvlsHostMode, 0..=3) }
}

/// A line for each field that is set, in words that scripts look for in NCCL's log.
fn set_fields(c: &NcclConfig) -> impl Iterator<Item = String> + use<> {
    let net = In::inside(c.netName).text().filter(|name| !name.is_empty());
    [
        ("Blocking", c.blocking),
        ("CGA cluster size", c.cgaClusterSize),
        ("Min CTAs", c.minCTAs),
        ("Max CTAs", c.maxCTAs),
        ("Split share", c.splitShare),
        ("Shrink share", c.shrinkShare),
        ("Traffic class", c.trafficClass),
        ("CTA policy", c.CTAPolicy),
    ]
    .into_iter()
    .filter(|(_, value)| *value != UNDEF_INT)
    .map(|(field, value)| format!("Comm config {field} set to {value}"))
    .chain(net.map(|name| format!("Comm config Net name set to {name}")))
}

/// A sentence about each field that is set and has no effect, with the reason (docs/nccl-config.md).
fn idle_fields(c: &NcclConfig) -> impl Iterator<Item = String> + use<> {
    let nvls = "no collective uses NVLink multicast";
    let sharing = "proxy threads and pools of memory are shared by all communicators of a process anyway, \
                   and FIFOs and connections by none, since calls of parent and child may overlap";
    [
        ("cgaClusterSize", c.cgaClusterSize, "kernels have no clusters of blocks"),
        ("splitShare", c.splitShare, sharing),
        ("shrinkShare", c.shrinkShare, sharing),
        ("collnetEnable", c.collnetEnable, "NCCL_COLLNET_ENABLE alone says it, for the process"),
        ("nvlsCTAs", c.nvlsCTAs, nvls),
        ("nChannelsPerNetPeer", c.nChannelsPerNetPeer, "the planner chooses lanes by the size of a call"),
        ("nvlinkCentricSched", c.nvlinkCentricSched, "messages have one schedule"),
        ("maxP2pPeers", c.maxP2pPeers, "connections are made when they are needed"),
        ("graphStreamOrdering", c.graphStreamOrdering, "graphUsageMode says how graphs are ordered"),
        ("launchOrderImplicit", c.launchOrderImplicit, "communicators of a group have one order always"),
        ("rmaEagerInit", c.rmaEagerInit, "signals are ready from the start"),
        ("hostCftMode", c.hostCftMode, "there are no counted transfers"),
        ("nvlsHostMode", c.nvlsHostMode, nvls),
    ]
    .into_iter()
    .filter(|(_, value, _)| *value != UNDEF_INT)
    .map(|(field, value, why)| format!("config->{field} = {value}: accepted, no effect because {why}"))
}

fn in_range(field: &str, value: c_int, allowed: RangeInclusive<c_int>) -> Result<()> {
    if value == UNDEF_INT || allowed.contains(&value) {
        return Ok(());
    }
    let (low, high) = (allowed.start(), allowed.end());
    let allowed = if *high == c_int::MAX { format!("{low} or more") } else { format!("{low} to {high}") };
    Err(Error::invalid_argument(format!("config->{field} is {value}"))
        .remedy(format!("use {allowed}, or leave NCCL_CONFIG_UNDEF_INT for the default")))
}

fn ordered(min: c_int, max: c_int) -> Result<()> {
    if min == UNDEF_INT || max == UNDEF_INT || min <= max {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("config->minCTAs is {min}, more than config->maxCTAs {max}"))
        .remedy("make minCTAs the smaller one, or leave one of them unset"))
}

fn given(value: c_int) -> Option<u32> {
    u32::try_from(value).ok()
}

/// Walks the vendor options: ours narrow the choice, other vendors' are not for us.
fn with_options(asked: &mut CallOptions, config: &NcclCollConfig) -> Result<()> {
    let (mut next, mut others) = (config.ext, 0);
    for _ in 0..MOST_OPTIONS {
        if next.is_null() {
            if others > 0 {
                log::info(Subsys::Coll, || {
                    format!("config->ext: {others} options of other vendors, ignored")
                });
            }
            return Ok(());
        }
        let option = In::inside(next).read("config->ext")?;
        match option.vendor {
            VENDOR => with_option(asked, &option)?,
            _ => others += 1,
        }
        next = option.next;
    }
    Err(Error::invalid_argument(format!("config->ext has more than {MOST_OPTIONS} entries"))
        .remedy("end the list with next = NULL"))
}

/// An option of `hawser.h`, whose value is a text.
fn with_option(asked: &mut CallOptions, option: &NcclConfigExt) -> Result<()> {
    let text = || {
        let text = In::<c_char>::inside(option.value.cast()).text();
        text.ok_or_else(|| args::null(&format!("config->ext: the text of option {}", option.option)))
    };
    let narrowed = match option.option {
        OPTION_EXECUTOR => asked.selection.by_executor(&text()?),
        OPTION_PROTOCOL => asked.selection.by_protocol(&text()?),
        OPTION_RULE => {
            asked.rule = Some(rule_id(&text()?));
            return Ok(());
        }
        OPTION_REPRODUCIBLE => {
            asked.reproducible = Some(level(&text()?)?);
            return Ok(());
        }
        OPTION_CLASS => {
            asked.class = Some(class("config->ext", &text()?)?);
            return Ok(());
        }
        other => {
            return Err(Error::invalid_argument(format!("config->ext: option {other} of HAWSER_VENDOR"))
                .remedy(
                    "use HAWSER_OPTION_EXECUTOR (1), HAWSER_OPTION_PROTOCOL (2), HAWSER_OPTION_RULE (3), \
                     HAWSER_OPTION_REPRODUCIBLE (4) or HAWSER_OPTION_CLASS (5)",
                ));
        }
    };
    asked.selection = narrowed.map_err(|error| {
        Error::invalid_argument(format!("config->ext: {error}")).remedy("write such a word, in any case")
    })?;
    Ok(())
}

/// A level of reproducible reductions.
fn level(text: &str) -> Result<u8> {
    text.trim().parse().ok().filter(|level| *level <= reproducible::MOST).ok_or_else(|| {
        Error::invalid_argument(format!("config->ext: \"{text}\" is no level of HAWSER_REPRODUCIBLE"))
            .remedy("write 0, 1 or 2")
    })
}

/// A class of operations, which stands in `what`.
///
/// # Errors
/// `InvalidArgument` for a word that is none.
pub fn class(what: &str, text: &str) -> Result<Class> {
    Class::named(text).ok_or_else(|| {
        Error::invalid_argument(format!("{what}: \"{text}\" is no class"))
            .remedy("write urgent, normal or best_effort")
    })
}

fn selection(config: &NcclCollConfig) -> Result<Selection> {
    let text = In::inside(config.algSelection).text().filter(|text| !text.trim().is_empty());
    let Some(text) = text else { return Ok(Selection::default()) };
    match Selection::parse(&text) {
        Err(error) if config.forceAlgSelection != 0 => {
            Err(Error::invalid_argument(format!("config->algSelection \"{text}\": {error}"))
                .remedy("write such words, or set forceAlgSelection = 0"))
        }
        Err(error) => {
            log::info(Subsys::Tuning, || format!("config->algSelection \"{text}\" is ignored: {error}"));
            Ok(Selection::default())
        }
        Ok(selection) => Ok(selection),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_runtime::ErrorKind;

    fn read(config: &NcclConfig) -> Result<CommConfig> {
        CommConfig::read(In::inside(config))
    }

    #[test]
    fn null_and_untouched_structs_give_the_defaults() {
        for config in [CommConfig::read(In::NULL).unwrap(), read(&NcclConfig::UNDEFINED).unwrap()] {
            assert!(config.runtime.blocking);
            assert_eq!((config.runtime.min_ctas, config.runtime.max_ctas), (None, None));
            assert_eq!(config.max_ctas(), DEFAULT_MAX_CTAS);
        }
    }

    #[test]
    fn fields_reach_the_runtime() {
        let (name, net) = (c"trainer", c"Socket");
        let raw = NcclConfig {
            blocking: 0,
            minCTAs: 4,
            maxCTAs: 8,
            commName: name.as_ptr(),
            netName: net.as_ptr(),
            graphUsageMode: 1,
            numRmaSig: 3,
            ..NcclConfig::UNDEFINED
        };
        let config = read(&raw).unwrap().runtime;
        assert_eq!(config.rma, Limits { signals: 3, contexts: 1 });
        assert_eq!(config.mixes_graphs, Some(false));
        assert!(!config.blocking);
        assert_eq!((config.min_ctas, config.max_ctas), (Some(4), Some(8)));
        assert_eq!((config.name.as_deref(), config.net.as_deref()), (Some("trainer"), Some("Socket")));
    }

    #[test]
    fn fields_without_effect_are_told_with_the_reason() {
        assert_eq!(
            idle_fields(&NcclConfig::UNDEFINED).count() + set_fields(&NcclConfig::UNDEFINED).count(),
            0
        );
        let raw = NcclConfig { maxCTAs: 4, netName: c"Socket".as_ptr(), ..NcclConfig::UNDEFINED };
        let told: Vec<String> = set_fields(&raw).collect();
        assert_eq!(told, ["Comm config Max CTAs set to 4", "Comm config Net name set to Socket"]);
        let raw =
            NcclConfig { nvlsCTAs: 4, blocking: 1, maxCTAs: 8, rmaEagerInit: 1, ..NcclConfig::UNDEFINED };
        let told: Vec<String> = idle_fields(&raw).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("nvlsCTAs = 4") && told[0].contains("no effect because"), "{told:?}");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nccl-config.md");
        let page = std::fs::read_to_string(page).unwrap();
        let all = NcclConfig {
            cgaClusterSize: 1,
            splitShare: 1,
            collnetEnable: 1,
            shrinkShare: 1,
            nvlsCTAs: 1,
            nChannelsPerNetPeer: 1,
            nvlinkCentricSched: 1,
            maxP2pPeers: 1,
            graphStreamOrdering: 1,
            launchOrderImplicit: 1,
            rmaEagerInit: 1,
            hostCftMode: 1,
            nvlsHostMode: 1,
            ..NcclConfig::UNDEFINED
        };
        for text in idle_fields(&all) {
            let field = text["config->".len()..].split(' ').next().unwrap();
            let why = text.split(" because ").nth(1).unwrap();
            let row = format!("| `{field}` | accepted, no effect because {why} |");
            assert!(page.contains(&row), "no line {row}");
        }
    }

    #[test]
    fn nvls_can_be_off_in_parts_and_as_a_whole() {
        for mode in [0, 1, 2, 3, c_int::MAX] {
            read(&NcclConfig { nvlsHostMode: mode, ..NcclConfig::UNDEFINED }).unwrap();
        }
    }

    #[test]
    fn min_without_max_is_accepted() {
        assert_eq!(
            read(&NcclConfig { minCTAs: 16, ..NcclConfig::UNDEFINED }).unwrap().runtime.min_ctas,
            Some(16)
        );
    }

    #[test]
    fn a_short_struct_ends_where_it_says() {
        // 2.14's header: 24 bytes with blocking as the only field; what follows is the caller's own memory.
        let raw = NcclConfig { size: 24, version: 21400, blocking: 0, minCTAs: -77, ..NcclConfig::UNDEFINED };
        assert!(!read(&raw).unwrap().runtime.blocking);
    }

    #[test]
    fn a_long_struct_is_read_as_far_as_it_is_known() {
        let raw = NcclConfig { size: 4096, version: 29900, maxCTAs: 2, ..NcclConfig::UNDEFINED };
        assert_eq!(read(&raw).unwrap().runtime.max_ctas, Some(2));
    }

    #[test]
    fn fields_newer_than_the_stated_version_are_ignored() {
        let raw = NcclConfig { version: 22600, graphUsageMode: 99, CTAPolicy: 99, ..NcclConfig::UNDEFINED };
        read(&raw).unwrap();
        let error = read(&NcclConfig { version: 22900, ..raw }).unwrap_err();
        assert!(error.text.contains("CTAPolicy"), "{error}");
    }

    #[test]
    fn wrong_structs_are_refused_with_the_field() {
        let base = NcclConfig::UNDEFINED;
        for (raw, word) in [
            (NcclConfig { magic: 1, ..base }, "magic"),
            (NcclConfig { size: 8, ..base }, "size"),
            (NcclConfig { blocking: 2, ..base }, "blocking"),
            (NcclConfig { cgaClusterSize: 9, ..base }, "cgaClusterSize"),
            (NcclConfig { minCTAs: 0, ..base }, "minCTAs"),
            (NcclConfig { maxCTAs: -5, ..base }, "maxCTAs"),
            (NcclConfig { minCTAs: 9, maxCTAs: 8, ..base }, "minCTAs"),
            (NcclConfig { splitShare: 3, ..base }, "splitShare"),
            (NcclConfig { CTAPolicy: 4, ..base }, "CTAPolicy"),
            (NcclConfig { nChannelsPerNetPeer: 65, ..base }, "nChannelsPerNetPeer"),
            (NcclConfig { graphUsageMode: 3, ..base }, "graphUsageMode"),
            (NcclConfig { numRmaSig: -5, ..base }, "numRmaSig"),
            (NcclConfig { nvlsHostMode: 77, ..base }, "nvlsHostMode"),
            (NcclConfig { nvlsHostMode: -1, ..base }, "nvlsHostMode"),
        ] {
            let error = read(&raw).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.text.contains(word), "{word}: {error}");
        }
    }
}
