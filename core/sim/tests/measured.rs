//! Predictions beside measured tables of `bench/results`: constants are fitted on one half of the points, and
//! the errors of the other half are held below bounds.
//!
//! `cargo test -p hawser-sim --test measured -- --nocapture` prints them; `POINTS=1` adds every point,
//! `CONSTANTS=1` the constants that were fitted, and `TABLE=NVLink` leaves tables without that word out.

mod worlds;

use hawser_plan::fit::fit_by;
use hawser_plan::link_constants::Constants;
use hawser_plan::{Call, Collective, DataType, Decision, PlanConfig, Route, choose};
use hawser_sim::{Cluster, Options, Twin};
use serde_json::Value;
use worlds::{cluster, only, settings};

/// A measured time, and the world that it was measured in.
struct Point {
    world: usize,
    collective: Collective,
    bytes: u64,
    us: f64,
    /// The algorithm and the blocks that it was measured with, unless they were the planner's.
    way: Option<(String, u32)>,
}

/// A table: its worlds, its points, and the constants that may move.
struct Table {
    name: &'static str,
    worlds: Vec<Cluster>,
    points: Vec<Point>,
    free: &'static [&'static str],
    /// Copy engines move the data.
    by_copies: bool,
}

fn read(file: &str) -> String {
    let path = format!("{}/../../bench/results/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (below, above) = ((values.len() - 1) / 2, values.len() / 2);
    (values[below] + values[above]) / 2.0
}

fn collective(name: &str) -> Option<Collective> {
    Collective::ALL.into_iter().find(|collective| collective.name() == name)
}

/// A table of `bench/nvlink.sh`.
fn nvlink(name: &'static str, file: &str, ranks: u32, one_process: bool) -> Table {
    let world =
        cluster(&format!("one_process = {one_process}\n[[hosts]]\npreset = \"hgx-h200\"\nranks = {ranks}\n"));
    let table: Value = serde_json::from_str(&read(file)).expect("JSON");
    let rows = table["rows"].as_array().expect("rows").iter();
    let points = rows.filter_map(|row| {
        let times = row["ours"].as_array()?.iter().map(|round| round[0].as_f64().expect("µs"));
        let (collective, bytes) = (collective(row["op"].as_str()?)?, row["bytes"].as_u64()?);
        Some(Point { world: 0, collective, bytes, us: median(times.collect()), way: None })
    });
    Table {
        name,
        points: points.collect(),
        worlds: vec![world],
        free: &["link.", "fused."],
        by_copies: false,
    }
}

/// Hosts of one GPU each which are processes of one machine (32 processors of an Intel Xeon): they share what
/// its memory moves over TCP. The rates are those at which both tables of two hosts are fitted best; that of
/// a block is where fitting begins.
fn hosts_of_one_machine(count: u32) -> Cluster {
    cluster(&format!(
        "[[hosts]]\ncount = {count}\npreset = \"hgx-h200\"\nranks = 1\nnics = 1\npcie_switches = 1\n\
         gpu_direct = false\nnic_gbps = 95\nconnection_gbps = 65\nconnection_wake_us = 45\n\
         [fabric]\nswitch_gbps = 115\n[constants.interpreter.Simple]\nblock_gbs = 25\n"
    ))
}

/// A table of `bench/latency.py`.
fn between_hosts() -> Table {
    let counts = [2, 4, 8];
    let text = read("2026-11-26-between-hosts-2.txt");
    let points = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, hosts, "hosts", bytes, "out", "hawser", us, ..] = words[..] else { return None };
        let world = counts.iter().position(|count| Ok(*count) == hosts.parse())?;
        let (bytes, us) = (bytes.parse().ok()?, us.parse().ok()?);
        Some(Point { world, collective: collective(name)?, bytes, us, way: None })
    });
    let points = points.filter(|point| point.bytes > 0).collect();
    let free = &["net.", "interpreter.Simple.fixed_us", "interpreter.Simple.block_gbs"];
    let worlds = counts.map(hosts_of_one_machine).into();
    Table { name: "hosts of one H200, TCP", points, worlds, free, by_copies: false }
}

/// Two hosts of one GPU each: kernels, or copy engines that fill and empty slots.
fn two_hosts(by_copies: bool) -> Table {
    let text = read("2026-11-28-copies-between-hosts.txt");
    let points = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(['(', ')']).flat_map(str::split_whitespace).collect();
        let [name, bytes, of_kernels, _, "to", _, of_copies, ..] = words[..] else { return None };
        let us = if by_copies { of_copies } else { of_kernels };
        let (collective, bytes) = (collective(name)?, bytes.parse().ok()?);
        Some(Point { world: 0, collective, bytes, us: us.parse().ok()?, way: None })
    });
    let (points, worlds) = (points.collect(), vec![hosts_of_one_machine(2)]);
    let (name, free): (_, &[&str]) = match by_copies {
        true => ("copies of two hosts, TCP", &["net.", "copy_engine."]),
        false => (
            "kernels of two hosts, TCP",
            &["net.", "interpreter.Simple.fixed_us", "interpreter.Simple.block_gbs"],
        ),
    };
    Table { name, points, worlds, free, by_copies }
}

/// A table of `bench/host_latency.py`: processes of the host device, which share two processors.
fn host_device() -> Table {
    let counts = [2, 4, 8];
    let world = |ranks: u32| cluster(&format!("[[hosts]]\nranks = {ranks}\nprocessors = 2\n"));
    let table: Value = serde_json::from_str(&read("2026-11-24-host-latency.json")).expect("JSON");
    let rows = table["results"].as_array().expect("results").iter().filter(|row| row["way"] == "shm");
    let points = rows.map(|row| {
        let number = |name: &str| row[name].as_u64().expect("a number");
        let times = row["hawser"].as_array().expect("times").iter().map(|us| us.as_f64().expect("µs"));
        let world = counts.iter().position(|count| u64::from(*count) == number("ranks")).expect("a world");
        Point {
            world,
            collective: Collective::AllReduce,
            bytes: number("bytes"),
            us: median(times.collect()),
            way: None,
        }
    });
    let (points, worlds) = (points.collect(), counts.map(world).into());
    let free = &["host.", "link."];
    Table { name: "host device, shared memory", points, worlds, free, by_copies: false }
}

/// A table of `bench/ways.py`: threads of the host device that run several algorithms.
fn ways_of_the_host_device(name: &'static str, file: &str, counts: &[u32], machine: &str) -> Table {
    let world = |ranks: &u32| cluster(&format!("one_process = true\n[[hosts]]\nranks = {ranks}\n{machine}"));
    let table: Value = serde_json::from_str(&read(file)).expect("JSON");
    Table {
        name,
        points: ways(&table, counts),
        worlds: counts.iter().map(world).collect(),
        free: &["host.", "link."],
        by_copies: false,
    }
}

/// Another table of `bench/ways.py`: processes that count as hosts. Each has its part of the machine's 16
/// processors, and they share what its memory moves over TCP. The rates are those at which the half that
/// constants are fitted to is predicted best.
fn ways_of_hosts() -> Table {
    let counts = [2, 4, 8];
    let world = |hosts: u32| {
        cluster(&format!(
            "[[hosts]]\ncount = {hosts}\nranks = 1\nnics = 1\nprocessors = {}\ncores = {}\n\
             nic_gbps = 26\nconnection_gbps = 30\nconnection_wake_us = 8\nmemory_gbs = 100\n\
             [fabric]\nswitch_gbps = 130\n",
            16 / hosts,
            8 / hosts
        ))
    };
    let table: Value = serde_json::from_str(&read("2026-11-29-tcp-ways.json")).expect("JSON");
    Table {
        name: "host device, TCP on 16 processors",
        points: ways(&table, &counts),
        worlds: counts.map(world).into(),
        free: &["host.", "link.", "net."],
        by_copies: false,
    }
}

/// The points of a table of `bench/ways.py`, in worlds by these numbers of ranks.
fn ways(table: &Value, counts: &[u32]) -> Vec<Point> {
    let point = |row: &Value| {
        let text = |name: &str| row[name].as_str().expect("a text");
        let number = |name: &str| row[name].as_u64().expect("a number");
        Point {
            world: counts.iter().position(|count| u64::from(*count) == number("ranks")).expect("a world"),
            collective: collective(text("collective")).expect("a collective"),
            bytes: number("bytes"),
            us: row["us"].as_f64().expect("µs"),
            way: Some((text("algorithm").to_owned(), number("channels") as u32)),
        }
    };
    table["rows"].as_array().expect("rows").iter().map(point).collect()
}

/// A point with what the planner decides for it.
struct Case<'a> {
    point: &'a Point,
    call: Call,
    decision: Decision,
}

impl Table {
    /// The points, each with the decision under the built-in constants: by those it was measured.
    fn cases(&self, configs: &[PlanConfig]) -> Vec<Case<'_>> {
        let mut cases = Vec::new();
        for point in &self.points {
            let topology = &self.worlds[point.world].topology;
            let call = Call::of_bytes(point.collective, point.bytes, DataType::Float32, 0, topology.size());
            if call.count > 0 {
                let config = match &point.way {
                    None => configs[point.world].clone(),
                    Some((algorithm, blocks)) => PlanConfig {
                        min_ctas: *blocks,
                        max_ctas: *blocks,
                        ..only(topology, algorithm, Route::simple(topology.device))
                    },
                };
                let decision = choose::choose(&call, topology, &config).expect("a decision");
                // Small calls had fewer blocks, or more, than what was ordered.
                if point.way.as_ref().is_some_and(|(_, blocks)| *blocks != decision.channels) {
                    continue;
                }
                cases.push(Case { point, call, decision });
            }
        }
        cases
    }

    fn predict(&self, cases: &[&Case<'_>], configs: &[PlanConfig], constants: &Constants) -> Vec<f64> {
        let with = |world: &Cluster| {
            let mut world = world.clone();
            let own = world.times.wire_gbs;
            (world.topology.constants, world.times) = (*constants, *constants);
            for kind in &mut world.kinds {
                kind.wire_gbs *= constants.wire_gbs / own;
            }
            world
        };
        let worlds: Vec<Cluster> = self.worlds.iter().map(with).collect();
        let twins: Vec<Twin<'_>> = worlds.iter().map(Twin::new).collect();
        let options = Options { most_steps: 20_000, ..Options::default() };
        let us = |case: &&Case<'_>| {
            let world = case.point.world;
            let prediction = twins[world].predict(&case.call, &case.decision, &configs[world], &options);
            prediction.expect("a prediction").us
        };
        cases.iter().map(us).collect()
    }

    /// Fits constants on every other point. Returns the median and the worst decile of the errors of those
    /// that were left out, as shares of the measured times, and prints them.
    fn errors(&self) -> (f64, f64) {
        let config =
            |world: &Cluster| PlanConfig { pass_sm: self.by_copies.into(), ..settings(&world.topology) };
        let configs: Vec<PlanConfig> = self.worlds.iter().map(config).collect();
        let cases = self.cases(&configs);
        // Of every collective half of the sizes, and of every size half of the collectives.
        let mut sizes: Vec<u64> = cases.iter().map(|case| case.point.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let is_fitted = |case: &&Case<'_>| {
            let size = sizes.iter().position(|bytes| *bytes == case.point.bytes);
            let collective = Collective::ALL.into_iter().position(|c| c == case.point.collective);
            (size.unwrap_or(0) + collective.unwrap_or(0)).is_multiple_of(2)
        };
        let (fitted, left): (Vec<&Case<'_>>, Vec<&Case<'_>>) = cases.iter().partition(is_fitted);
        let start = self.worlds[0].topology.constants;
        let measured: Vec<f64> = fitted.iter().map(|case| case.point.us).collect();
        let predict = |constants: &Constants| self.predict(&fitted, &configs, constants);
        let is_free = |name: &str| self.free.iter().any(|free| name.starts_with(free));
        let constants = fit_by(&start, &measured, &predict, &is_free).constants;
        if std::env::var_os("CONSTANTS").is_some() {
            let topology = &self.worlds[0].topology;
            println!("{}", constants.text(topology.device, topology.link));
        }
        let of_fitted = self.errors_of(("fitted", &fitted), &predict(&constants));
        let of_left = self.errors_of(("left out", &left), &self.predict(&left, &configs, &constants));
        let percent =
            |(middle, decile): (f64, f64)| format!("{:4.1} % ({:4.1})", middle * 100.0, decile * 100.0);
        println!(
            "{:37} median error and worst decile of {:3} points left out {}, of {:3} fitted {}",
            self.name,
            left.len(),
            percent(of_left),
            fitted.len(),
            percent(of_fitted)
        );
        of_left
    }

    /// The median and the worst decile of errors, as shares of the measured times.
    fn errors_of(&self, (half, cases): (&str, &[&Case<'_>]), predicted: &[f64]) -> (f64, f64) {
        if std::env::var_os("POINTS").is_some() {
            for (case, us) in cases.iter().zip(predicted) {
                let Point { world, collective, bytes, us: measured, .. } = *case.point;
                println!(
                    "  {half:8} {:2} ranks {:14} {bytes:>10} {:40} {measured:10.2} {us:10.2} {:5.2}",
                    self.worlds[world].topology.size(),
                    collective.name(),
                    case.decision.to_string(),
                    us / measured
                );
            }
        }
        let error = |(case, us): (&&Case<'_>, &f64)| (us / case.point.us - 1.0).abs();
        let mut errors: Vec<f64> = cases.iter().zip(predicted).map(error).collect();
        errors.sort_by(f64::total_cmp);
        (errors[errors.len() / 2], errors[errors.len() * 9 / 10])
    }
}

#[test]
fn predictions_come_near_what_was_measured() {
    // The bounds are what is reached, and a little more: they say when a model gets worse. On H100 the two
    // measured rounds differ by 2.5 % (median; 25 in the worst decile) themselves, and on the host device
    // with two processors equal ways differ by a tenth, since others used the machine.
    let tables = [
        (nvlink("2 H200, NVLink", "2026-11-23-2xH200-nvlink.json", 2, true), (0.05, 0.12)),
        (nvlink("4 H200, NVLink", "2026-11-22-4xH200-nvlink.json", 4, false), (0.05, 0.15)),
        (nvlink("2 H100, NVLink", "2026-11-25-2xH100-nvlink.json", 2, true), (0.07, 0.20)),
        (between_hosts(), (0.055, 0.165)),
        (two_hosts(true), (0.12, 0.21)),
        // Two of the 20 points are 128 KiB that follow each other, whose threads wake up each time.
        (two_hosts(false), (0.05, 0.31)),
        (host_device(), (0.12, 0.25)),
        (
            ways_of_the_host_device(
                "host device, threads on 2 processors",
                "2026-11-27-host-ways.json",
                &[2, 4],
                "processors = 2\ncache_mib = 16\nmemory_gbs = 8\n",
            ),
            (0.11, 0.26),
        ),
        (
            ways_of_the_host_device(
                "host device, threads on 16 processors",
                "2026-11-29-host-ways.json",
                &[2, 4, 8],
                "processors = 16\ncores = 8\ncache_mib = 300\nmemory_gbs = 100\n",
            ),
            (0.05, 0.15),
        ),
        (ways_of_hosts(), (0.085, 0.205)),
    ];
    let wanted = std::env::var("TABLE").unwrap_or_default();
    let tables = tables.into_iter().filter(|(table, _)| table.name.contains(&wanted));
    for (table, (median, decile)) in tables {
        let errors = table.errors();
        assert!(errors.0 <= median && errors.1 <= decile, "{}: {errors:?}", table.name);
    }
}
