//! Figures for Prometheus: how long operations take, at which bandwidth, how many bytes they move.
//!
//! All communicators of a process share one set. A finished operation is three additions to counters; the
//! text is made when somebody asks for it.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use hawser_plugin::Log;
use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder,
};

use crate::follower::Follower;
use crate::host_figures;
use crate::otel::Otel;
use crate::record::Record;

/// Upper bounds of the times of operations, in seconds.
pub const SECONDS: [f64; 20] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 60.0,
];
/// Upper bounds of bus bandwidths, in bytes per second.
pub const BANDWIDTHS: [f64; 16] =
    [1e6, 1e7, 1e8, 2.5e8, 5e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 4e11, 8e11, 1.6e12];
/// Upper bounds of achieved speeds as parts of the predicted ones.
const PARTS: [f64; 14] = [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 2.0];
/// The classes of sizes: an operation is in the first one that is not smaller than its bytes.
const SIZES: [(u64, &str); 6] = [
    (1 << 10, "1KiB"),
    (16 << 10, "16KiB"),
    (256 << 10, "256KiB"),
    (4 << 20, "4MiB"),
    (64 << 20, "64MiB"),
    (1 << 30, "1GiB"),
];
const LARGEST: &str = "more";
/// The functions that have figures of their own; all others share one name.
const FUNCTIONS: [&str; 10] = [
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "AlltoAll",
    "Gather",
    "Scatter",
    "Send",
    "Recv",
];
const OTHER: &str = "other";

/// A communicator, as its figures name it.
pub struct Member {
    /// Its number, in hexadecimal digits.
    pub id: String,
    /// Its name.
    pub name: String,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
}

/// The figures of a process.
pub struct Metrics {
    /// Takes what has come, before somebody reads.
    follower: OnceLock<Arc<Follower>>,
    /// The host, which has figures of its own.
    host: OnceLock<Log>,
    /// The rank that all figures carry.
    rank: u32,
    otel: OnceLock<Otel>,
    registry: Registry,
    seconds: HistogramVec,
    busbw: HistogramVec,
    achieved: HistogramVec,
    predicted: CounterVec,
    measured: CounterVec,
    bytes: CounterVec,
    unfinished: CounterVec,
    open: Gauge,
    last: Gauge,
    proxied: Gauge,
    dropped: Counter,
    communicators: GaugeVec,
}

impl Metrics {
    /// Figures without any operation, of a process whose first rank is this one.
    ///
    /// # Errors
    /// A name is used twice, which would be a mistake in this file.
    pub fn new(rank: u32) -> prometheus::Result<Self> {
        let counter =
            |name: &str, help: &str, labels: &[&str]| CounterVec::new(Opts::new(name, help), labels);
        let by = ["operation", "size"];
        let [seconds, busbw, achieved] = histograms(&by)?;
        let metrics = Self {
            seconds,
            busbw,
            achieved,
            predicted: counter(
                "operation_predicted_seconds_total",
                "Predicted times of the collectives that operation_achieved_part counts.",
                &by,
            )?,
            measured: counter(
                "operation_measured_seconds_total",
                "Measured times of the same collectives.",
                &by,
            )?,
            bytes: counter(
                "operation_bytes_total",
                "Bytes of finished operations, as nccl-tests count them.",
                &["operation"],
            )?,
            unfinished: counter(
                "operations_unfinished_total",
                "Operations that were not over when their communicator was closed.",
                &["operation"],
            )?,
            open: Gauge::new("operations_open", "Operations that have been called and are not over.")?,
            last: Gauge::new(
                "last_operation_timestamp_seconds",
                "The end of the last finished operation, in seconds since 1970.",
            )?,
            proxied: Gauge::new("proxy_operations_open", "Transfers that the proxy has not finished.")?,
            dropped: Counter::new("events_dropped_total", "Events of the host that were not followed.")?,
            communicators: GaugeVec::new(
                Opts::new("communicator_info", "1 for each communicator that is open, with its rank."),
                &["communicator", "name", "comm_rank", "ranks"],
            )?,
            registry: registry(rank)?,
            follower: OnceLock::new(),
            host: OnceLock::new(),
            rank,
            otel: OnceLock::new(),
        };
        metrics.register()?;
        Ok(metrics)
    }

    fn register(&self) -> prometheus::Result<()> {
        let all: [Box<dyn Collector>; 12] = [
            Box::new(self.seconds.clone()),
            Box::new(self.busbw.clone()),
            Box::new(self.achieved.clone()),
            Box::new(self.predicted.clone()),
            Box::new(self.measured.clone()),
            Box::new(self.bytes.clone()),
            Box::new(self.unfinished.clone()),
            Box::new(self.open.clone()),
            Box::new(self.last.clone()),
            Box::new(self.proxied.clone()),
            Box::new(self.dropped.clone()),
            Box::new(self.communicators.clone()),
        ];
        all.into_iter().try_for_each(|family| self.registry.register(family))
    }

    /// Names the one that follows the events of this process, and the host.
    pub fn follow(&self, follower: &Arc<Follower>, host: &Log) {
        self.follower.get_or_init(|| follower.clone());
        self.host.get_or_init(|| host.clone());
    }

    /// Has the figures pushed as well.
    pub fn push(&self, otel: Otel) {
        let _ = self.otel.set(otel);
    }

    /// Pushes what there is, if it is pushed anywhere.
    ///
    /// # Errors
    /// The collector cannot be reached, or refuses.
    pub fn flush(&self) -> Result<(), String> {
        if let Some(follower) = self.follower.get() {
            follower.look();
        }
        self.otel.get().map_or(Ok(()), Otel::flush)
    }

    /// Notes that an event of a kind has begun.
    pub fn began(&self, kind: &str) {
        match kind {
            "coll" | "p2p" => self.open.inc(),
            "proxy_op" => self.proxied.inc(),
            _ => {}
        }
    }

    /// Notes an event that is over, of a communicator with so many ranks.
    pub fn ended(&self, record: &Record, ranks: u32) {
        match record.category() {
            "coll" | "p2p" => self.open.dec(),
            "proxy_op" => return self.proxied.dec(),
            _ => return,
        }
        let function = FUNCTIONS.into_iter().find(|known| *known == record.name).unwrap_or(OTHER);
        if record.unfinished {
            if let Some(otel) = self.otel.get() {
                otel.unfinished(function);
            }
            return self.unfinished.with_label_values(&[function]).inc();
        }
        let seconds = record.end.saturating_sub(record.start) as f64 / 1e9;
        let bytes = moved(function, record.bytes(), ranks);
        let labels = [function, class(bytes)];
        self.seconds.with_label_values(&labels).observe(seconds);
        let has_busbw = seconds > 0.0 && bytes > 0;
        let busbw = has_busbw.then(|| bytes as f64 / seconds * share_on_bus(function, ranks));
        if let Some(busbw) = busbw {
            self.busbw.with_label_values(&labels).observe(busbw);
        }
        if let Some(otel) = self.otel.get() {
            otel.ended(labels, seconds, bytes, busbw);
        }
        let predicted = record.predicted_ns() as f64 / 1e9;
        if predicted > 0.0 && seconds > 0.0 && record.has_children {
            self.achieved.with_label_values(&labels).observe(predicted / seconds);
            self.predicted.with_label_values(&labels).inc_by(predicted);
            self.measured.with_label_values(&labels).inc_by(seconds);
        }
        self.bytes.with_label_values(&[function]).inc_by(bytes as f64);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last.set(now.as_secs_f64());
    }

    /// Notes events that were not followed.
    pub fn dropped(&self, count: u64) {
        self.dropped.inc_by(count as f64);
    }

    /// Notes a communicator that opens, or that closes.
    pub fn communicator(&self, member: &Member, is_open: bool) {
        let Member { id, name, rank, ranks } = member;
        let (rank, ranks) = (rank.to_string(), ranks.to_string());
        let labels = [&**id, &**name, &rank, &ranks];
        if is_open {
            self.communicators.with_label_values(&labels).set(1.0);
        } else {
            // It may have gone already, where two ranks have the same labels.
            let _ = self.communicators.remove_label_values(&labels);
        }
    }

    /// All figures in Prometheus's text format, of everything that has come by now.
    ///
    /// # Errors
    /// A family without any figure, which the registry does not give.
    pub fn text(&self) -> prometheus::Result<String> {
        if let Some(follower) = self.follower.get() {
            follower.look();
        }
        let mut families = self.registry.gather();
        if let Some(host) = self.host.get() {
            families.extend(host_figures::families(&registry(self.rank)?, host.figures()));
        }
        TextEncoder::new().encode_to_string(&families)
    }
}

/// The times, bus bandwidths and parts of the predicted speed of operations, by these labels.
fn histograms(by: &[&str]) -> prometheus::Result<[HistogramVec; 3]> {
    let histogram = |name: &str, help: &str, bounds: &[f64]| {
        HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), by)
    };
    Ok([
        histogram(
            "operation_seconds",
            "Time from the call of an operation to its end, by function and largest size of the class.",
            &SECONDS,
        )?,
        histogram(
            "operation_busbw_bytes_per_second",
            "Bus bandwidth of an operation as nccl-tests count it, by function and largest size.",
            &BANDWIDTHS,
        )?,
        histogram(
            "operation_achieved_part",
            "Achieved speed of a collective as part of the planner's prediction (1: as predicted), where \
             the end of its work was seen.",
            &PARTS,
        )?,
    ])
}

/// A registry whose figures carry the rank and the process.
fn registry(rank: u32) -> prometheus::Result<Registry> {
    let labels = [("rank", rank.to_string()), ("process", std::process::id().to_string())];
    let labels = labels.map(|(name, value)| (name.to_owned(), value));
    Registry::new_custom(Some("hawser".into()), Some(labels.into_iter().collect()))
}

/// The bytes of an operation by which nccl-tests count, from those of the call's count.
fn moved(function: &str, bytes: u64, ranks: u32) -> u64 {
    match function {
        "AllGather" | "ReduceScatter" | "AlltoAll" | "Gather" | "Scatter" => {
            bytes.saturating_mul(ranks.into())
        }
        _ => bytes,
    }
}

/// The share of an operation's bytes that crosses a rank's bus, as in nccl-tests.
fn share_on_bus(function: &str, ranks: u32) -> f64 {
    let others = f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1));
    match function {
        "AllReduce" => 2.0 * others,
        "AllGather" | "ReduceScatter" | "AlltoAll" | "Gather" | "Scatter" => others,
        _ => 1.0,
    }
}

/// The class of a size.
fn class(bytes: u64) -> &'static str {
    SIZES.iter().find(|(most, _)| bytes <= *most).map_or(LARGEST, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::Value;

    fn record(name: &str, bytes: u64, end: u64, unfinished: bool) -> Record {
        Record {
            process: 1,
            id: 1,
            parent: None,
            kind: 1,
            name: name.into(),
            particulars: vec![("bytes", Value::Number(bytes))],
            thread: 1,
            start: 0,
            end,
            states: Vec::new(),
            has_children: true,
            unfinished,
        }
    }

    /// The value of a line that begins so.
    fn value(text: &str, begin: &str) -> f64 {
        let line = text.lines().find(|line| line.starts_with(begin));
        let line = line.unwrap_or_else(|| panic!("no {begin} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn operations_are_counted_by_function_and_size() {
        let metrics = Metrics::new(3).unwrap();
        for (name, bytes, end) in
            [("AllReduce", 1 << 20, 1_000_000), ("AllReduce", 1 << 20, 2_000_000), ("AllGather", 100, 1000)]
        {
            metrics.began("coll");
            metrics.ended(&record(name, bytes, end, false), 4);
        }
        metrics.began("coll");
        metrics.began("coll");
        metrics.ended(&record("Weird", 1, 5, true), 4);
        metrics.dropped(1);
        let text = metrics.text().unwrap();
        let is = |begin: &str, wanted: f64| {
            let found = value(&text, begin);
            assert!((found - wanted).abs() <= wanted * 1e-9, "{begin}: {found}, not {wanted}");
        };
        // Labels that all figures have come in any order.
        let (process, rank) = (format!("process=\"{}\"", std::process::id()), "rank=\"3\"");
        let orders = [format!("{process},{rank}"), format!("{rank},{process}")];
        let labels = orders.into_iter().find(|labels| text.contains(labels.as_str())).unwrap();
        let of = |name: &str, rest: &str| {
            format!("hawser_{name}{{operation=\"AllReduce\",size=\"4MiB\",{labels}{rest}")
        };
        is(&of("operation_seconds_bucket", ",le=\"0.001\"}"), 1.0);
        is(&of("operation_seconds_bucket", ",le=\"0.0025\"}"), 2.0);
        is(&of("operation_seconds_sum", "}"), 0.003);
        is(&of("operation_busbw_bytes_per_second_sum", "}"), 1.5 * (1 << 20) as f64 * 1500.0);
        is("hawser_operation_bytes_total{operation=\"AllGather\"", 400.0);
        is("hawser_operations_unfinished_total{operation=\"other\"", 1.0);
        is("hawser_operations_open{", 1.0);
        is("hawser_events_dropped_total{", 1.0);
        assert!(value(&text, "hawser_last_operation_timestamp_seconds{") > 1.7e9);
    }

    #[test]
    fn what_is_achieved_is_compared_with_what_is_predicted() {
        let metrics = Metrics::new(0).unwrap();
        let planned = |end, predicted, has_children| {
            let mut record = record("AllReduce", 1 << 20, end, false);
            record.particulars.push(("predicted_ns", Value::Number(predicted)));
            record.has_children = has_children;
            metrics.began("coll");
            metrics.ended(&record, 4);
        };
        planned(1_000_000, 250_000, true);
        planned(2_000_000, 1_900_000, true);
        // Of these the end, or the prediction, is not known.
        planned(10, 1_000_000, false);
        planned(1_000_000, 0, true);
        let text = metrics.text().unwrap();
        let of = |family: &str| {
            let is_it =
                |line: &&str| line.starts_with(&format!("hawser_{family}{{")) && !line.contains("le=");
            let line = text.lines().find(is_it).unwrap_or_else(|| panic!("no {family} in {text}"));
            assert!(line.contains("operation=\"AllReduce\"") && line.contains("size=\"4MiB\""), "{line}");
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(of("operation_achieved_part_count"), 2.0);
        assert!((of("operation_achieved_part_sum") - 1.2).abs() < 1e-9);
        assert!((of("operation_predicted_seconds_total") - 0.00215).abs() < 1e-9);
        assert!((of("operation_measured_seconds_total") - 0.003).abs() < 1e-9);
    }

    /// A host with a figure.
    struct Host;

    impl hawser_plugin::Listener for Host {
        fn line(&self, _: hawser_plugin::Level, _: hawser_plugin::Subsys, _: &str) {}

        fn figures(&self) -> Vec<hawser_plugin::host::Figure> {
            let labels = vec![("device".to_owned(), "0".to_owned())];
            vec![hawser_plugin::host::Figure::new("pool_used_bytes".into(), labels, 7, false)]
        }
    }

    #[test]
    fn figures_of_the_host_stand_behind_those_of_events() {
        let metrics = Metrics::new(3).unwrap();
        assert!(!metrics.text().unwrap().contains("pool"), "no host");
        metrics.follow(&Arc::default(), &Log::to(Host));
        let text = metrics.text().unwrap();
        let line = text.lines().find(|line| line.starts_with("hawser_pool_used_bytes{")).unwrap();
        assert!(
            line.contains("device=\"0\"") && line.contains("rank=\"3\"") && line.ends_with(" 7"),
            "{line}"
        );
    }

    #[test]
    fn communicators_come_and_go() {
        let metrics = Metrics::new(0).unwrap();
        let name = "a \"name\" \\ with\nlines".to_owned();
        let member = Member { id: "0xabc".into(), name, rank: 1, ranks: 2 };
        metrics.communicator(&member, true);
        assert!(metrics.text().unwrap().contains(r#"name="a \"name\" \\ with\nlines""#));
        metrics.communicator(&member, false);
        metrics.communicator(&member, false);
        assert!(!metrics.text().unwrap().contains("0xabc"));
    }

    #[test]
    fn sizes_have_classes() {
        assert_eq!([0, 1024, 1025, 1 << 30, u64::MAX].map(class), ["1KiB", "1KiB", "16KiB", "1GiB", "more"]);
        assert_eq!(moved("AlltoAll", u64::MAX, 8), u64::MAX);
    }
}
