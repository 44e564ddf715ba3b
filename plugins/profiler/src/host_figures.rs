//! The figures that the host keeps of its process (rails, pools), as families for Prometheus.

use std::collections::BTreeMap;

use hawser_plugin::host::Figure;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts, Registry};

/// Names of figures that Hawser keeps, and the texts of help for them.
const HELP: [(&str, &str); 10] = [
    ("rail_sent_bytes_total", "Bytes that were handed to a rail of the network."),
    ("rail_received_bytes_total", "Bytes that came through a rail of the network."),
    (
        "rail_unstaged_bytes_total",
        "Bytes, sent and received, that went from or to registered buffers themselves.",
    ),
    ("rail_sends_open", "Sends that a rail has in hand and has not finished."),
    ("rail_losses_total", "The number of times that a rail, or a connection on it, was lost."),
    ("rail_resent_chunks_total", "Pieces that were sent again since their rail was lost."),
    ("pool_committed_bytes", "Memory of a device that the library has taken."),
    ("pool_used_bytes", "The part of that which is in use."),
    ("pool_refusals_total", "The number of times that the limit of a pool stood in the way."),
    ("errors_total", "Errors that the library has reported, by kind."),
];

/// The families of these figures, made in an empty registry that has the labels of all. A figure whose name
/// or labels are none is left out.
pub fn families(registry: &Registry, figures: Vec<Figure>) -> Vec<MetricFamily> {
    let mut by_name: BTreeMap<String, Vec<Figure>> = BTreeMap::new();
    for figure in figures {
        by_name.entry(figure.name.clone()).or_default().push(figure);
    }
    for (name, figures) in by_name {
        if let Ok(family) = family(&name, &figures) {
            // One that cannot be is left out.
            let _ = registry.register(family);
        }
    }
    registry.gather()
}

fn family(name: &str, figures: &[Figure]) -> prometheus::Result<Box<dyn Collector>> {
    let help = HELP.iter().find(|(known, _)| *known == name).map_or("A figure of the library.", |(_, h)| h);
    let keys: Vec<&str> = figures[0].labels.iter().map(|(key, _)| key.as_str()).collect();
    let values = |figure: &Figure| figure.labels.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
    let alike = figures.iter().filter(|figure| figure.labels.iter().map(|(key, _)| key).eq(&keys));
    if figures[0].is_sum {
        let counters = CounterVec::new(Opts::new(name, help), &keys)?;
        for figure in alike {
            counters.get_metric_with_label_values(&values(figure))?.inc_by(figure.value as f64);
        }
        return Ok(Box::new(counters));
    }
    let gauges = GaugeVec::new(Opts::new(name, help), &keys)?;
    for figure in alike {
        gauges.get_metric_with_label_values(&values(figure))?.set(figure.value as f64);
    }
    Ok(Box::new(gauges))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    fn figure(name: &str, labels: &[(&str, &str)], value: u64) -> Figure {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Figure::new(name.to_owned(), labels, value, name.ends_with("_total"))
    }

    #[test]
    fn figures_of_the_host_are_families() {
        let figures = vec![
            figure("rail_sent_bytes_total", &[("net", "IB"), ("rail", "mlx5_0")], 7),
            figure("rail_sent_bytes_total", &[("net", "IB"), ("rail", "mlx\"5_1")], 8),
            figure("rail_sent_bytes_total", &[("other", "labels")], 9),
            figure("pool_used_bytes", &[("device", "0")], 10),
            figure("no name", &[], 11),
            figure("bad_label", &[("a b", "c")], 12),
            figure("plain", &[], 13),
        ];
        let registry = Registry::new_custom(Some("hawser".into()), None).unwrap();
        let text = TextEncoder::new().encode_to_string(&families(&registry, figures)).unwrap();
        for line in [
            "# TYPE hawser_rail_sent_bytes_total counter",
            "hawser_rail_sent_bytes_total{net=\"IB\",rail=\"mlx5_0\"} 7",
            "hawser_rail_sent_bytes_total{net=\"IB\",rail=\"mlx\\\"5_1\"} 8",
            "# TYPE hawser_pool_used_bytes gauge",
            "hawser_pool_used_bytes{device=\"0\"} 10",
            "hawser_plain 13",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        assert!(
            !text.contains("labels") && !text.contains("no name") && !text.contains("bad_label"),
            "{text}"
        );
    }
}
