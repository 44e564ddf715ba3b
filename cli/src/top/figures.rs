//! Rails and pools, with what they carry and hold over all processes that are seen. Pure.

use std::collections::BTreeMap;

use hawser_base::figures::Reading;
use hawser_runtime::progress::report::ProcessReport;
use serde::Serialize;

/// A rail of a host: a NIC, as the ranks there use it.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct Rail {
    /// Its host.
    pub host: String,
    /// The net plugin.
    pub net: String,
    /// Its name.
    pub name: String,
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
    /// Bytes sent in a second, of late; `None` at the first look.
    pub sent_rate: Option<f64>,
    /// Bytes that came in a second, of late.
    pub received_rate: Option<f64>,
    /// Sends that are not over.
    pub open: u64,
    /// The counts of its plugin that are not 0, such as losses.
    pub counts: BTreeMap<String, u64>,
}

/// The pools of a host's devices of one name.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct Pool {
    /// Their host.
    pub host: String,
    /// The device, as each process calls it.
    pub device: String,
    /// Bytes that were taken of it.
    pub committed: u64,
    /// Of these, bytes in use.
    pub used: u64,
    /// The number of times that a limit stood in the way.
    pub refusals: u64,
}

/// The rails of all processes.
pub fn rails(reports: &[ProcessReport]) -> Vec<Rail> {
    let mut rails: BTreeMap<[String; 3], Rail> = BTreeMap::new();
    for (host, figure) in all(reports) {
        let Some(what) = figure.name.strip_prefix("rail_") else { continue };
        let (net, name) = (label(figure, "net"), label(figure, "rail"));
        let key = [host.to_owned(), net.to_owned(), name.to_owned()];
        let [host, net, name] = key.clone();
        let rail = rails.entry(key).or_insert_with(|| Rail { host, net, name, ..Rail::default() });
        match what {
            "sent_bytes_total" => rail.sent += figure.value,
            "received_bytes_total" => rail.received += figure.value,
            "sends_open" => rail.open += figure.value,
            _ if figure.value == 0 => {}
            other => {
                let other = other.trim_end_matches("_total").replace('_', " ");
                *rail.counts.entry(other).or_default() += figure.value;
            }
        }
    }
    rails.into_values().collect()
}

/// The pools of all processes.
pub fn pools(reports: &[ProcessReport]) -> Vec<Pool> {
    let mut pools: BTreeMap<[String; 2], Pool> = BTreeMap::new();
    for (host, figure) in all(reports) {
        let Some(what) = figure.name.strip_prefix("pool_") else { continue };
        let key = [host.to_owned(), label(figure, "device").to_owned()];
        let [host, device] = key.clone();
        let pool = pools.entry(key).or_insert_with(|| Pool { host, device, ..Pool::default() });
        match what {
            "committed_bytes" => pool.committed += figure.value,
            "used_bytes" => pool.used += figure.value,
            "refusals_total" => pool.refusals += figure.value,
            _ => {}
        }
    }
    pools.into_values().collect()
}

/// Fills in the rates of rails from what they had carried some seconds before.
pub fn compare(rails: &mut [Rail], before: &[Rail], seconds: f64) {
    for rail in rails {
        let same =
            |other: &&Rail| (&other.host, &other.net, &other.name) == (&rail.host, &rail.net, &rail.name);
        let Some(before) = before.iter().find(same).filter(|_| seconds > 0.0) else { continue };
        // A process that has ended takes its bytes along.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        rail.sent_rate = Some(rate(rail.sent, before.sent));
        rail.received_rate = Some(rate(rail.received, before.received));
    }
}

fn all(reports: &[ProcessReport]) -> impl Iterator<Item = (&str, &Reading)> {
    reports.iter().flat_map(|report| report.figures.iter().map(|figure| (report.host.as_str(), figure)))
}

fn label<'a>(figure: &'a Reading, key: &str) -> &'a str {
    figure.labels.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value)
}

#[cfg(test)]
pub mod tests {
    use super::super::job::tests::job;
    use super::*;

    /// A figure of a rail.
    fn of_rail(name: &str, rail: &str, value: u64) -> Reading {
        let labels = [("net", "IB"), ("rail", rail)].map(|(key, value)| (key.to_owned(), value.to_owned()));
        Reading { name: name.into(), labels: labels.into(), is_sum: true, value }
    }

    /// Reports of eight processes on one host with two rails and a pool each.
    pub fn reports(sent: u64) -> Vec<ProcessReport> {
        let mut reports = job(8, None, None);
        for report in &mut reports {
            let device = vec![("device".to_owned(), "GPU 0".to_owned())];
            let pool = |name: &str, value| Reading {
                name: name.into(),
                labels: device.clone(),
                is_sum: false,
                value,
            };
            report.figures = vec![
                of_rail("rail_sent_bytes_total", "mlx5_0", sent),
                of_rail("rail_received_bytes_total", "mlx5_0", 2 * sent),
                of_rail("rail_sends_open", "mlx5_0", 3),
                of_rail("rail_sent_bytes_total", "mlx5_1", 5),
                of_rail("rail_losses_total", "mlx5_1", 1),
                of_rail("rail_resent_chunks_total", "mlx5_1", 0),
                pool("pool_committed_bytes", 64 << 20),
                pool("pool_used_bytes", 48 << 20),
            ];
        }
        reports
    }

    #[test]
    fn rails_and_pools_are_added_up_by_host() {
        let mut now = rails(&reports(1000));
        compare(&mut now, &rails(&reports(500)), 2.0);
        assert_eq!(now.len(), 2);
        let first = Rail {
            host: "node00".into(),
            net: "IB".into(),
            name: "mlx5_0".into(),
            sent: 8000,
            received: 16_000,
            sent_rate: Some(2000.0),
            received_rate: Some(4000.0),
            open: 24,
            counts: BTreeMap::new(),
        };
        assert_eq!(now[0], first);
        assert_eq!(now[1].counts, BTreeMap::from([("losses".to_owned(), 8)]));
        let pools = pools(&reports(0));
        assert_eq!((pools.len(), pools[0].committed, pools[0].used), (1, 512 << 20, 384 << 20));
    }
}
