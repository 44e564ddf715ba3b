//! The same figures for OpenTelemetry: pushed to a collector by OTLP over HTTP. Only with the feature `otel`,
//! since the crates that do it are many.

use std::fmt;
use std::time::Duration;

use hawser_plugin::{Error, ErrorKind, Result};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, MeterProvider};
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};

use crate::metrics::{BANDWIDTHS, SECONDS};

/// The longest time for which a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The figures of a process on their way to a collector, which a thread of its own pushes.
pub struct Otel {
    provider: SdkMeterProvider,
    seconds: Histogram<f64>,
    busbw: Histogram<f64>,
    bytes: Counter<u64>,
    unfinished: Counter<u64>,
}

impl Otel {
    /// Pushes to a collector's address, such as `http://127.0.0.1:4318/v1/metrics`, every so often, in the
    /// name of a rank.
    ///
    /// # Errors
    /// The address cannot be used. Whether anybody is there is not asked: a collector may come later.
    pub fn start(address: &str, every: Duration, rank: u32) -> Result<Self> {
        let exporter = MetricExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(address)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| failed(address, &error))?;
        let reader = PeriodicReader::builder(exporter).with_interval(every).build();
        let attributes = [
            KeyValue::new("hawser.rank", i64::from(rank)),
            KeyValue::new("process.pid", i64::from(std::process::id())),
            KeyValue::new("host.name", crate::settings::host()),
        ];
        let resource = Resource::builder().with_service_name("hawser").with_attributes(attributes).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build();
        let meter = provider.meter("hawser");
        Ok(Self {
            seconds: meter
                .f64_histogram("hawser.operation.duration")
                .with_unit("s")
                .with_description("Time from the call of an operation to its end.")
                .with_boundaries(SECONDS.to_vec())
                .build(),
            busbw: meter
                .f64_histogram("hawser.operation.busbw")
                .with_unit("By/s")
                .with_description("Bus bandwidth of an operation as nccl-tests count it.")
                .with_boundaries(BANDWIDTHS.to_vec())
                .build(),
            bytes: meter
                .u64_counter("hawser.operation.bytes")
                .with_unit("By")
                .with_description("Bytes of finished operations, as nccl-tests count them.")
                .build(),
            unfinished: meter
                .u64_counter("hawser.operations.unfinished")
                .with_description("Operations that were not over when their communicator was closed.")
                .build(),
            provider,
        })
    }

    /// Notes a finished operation of a function and a class of sizes.
    pub fn ended(&self, [function, class]: [&'static str; 2], seconds: f64, bytes: u64, busbw: Option<f64>) {
        let labels = [KeyValue::new("operation", function), KeyValue::new("size", class)];
        self.seconds.record(seconds, &labels);
        if let Some(busbw) = busbw {
            self.busbw.record(busbw, &labels);
        }
        self.bytes.add(bytes, &labels[..1]);
    }

    /// Notes an operation that was not over when its communicator was closed.
    pub fn unfinished(&self, function: &'static str) {
        self.unfinished.add(1, &[KeyValue::new("operation", function)]);
    }

    /// Pushes what there is, now.
    ///
    /// # Errors
    /// The collector cannot be reached, or refuses.
    pub fn flush(&self) -> std::result::Result<(), String> {
        self.provider.force_flush().map_err(|error| error.to_string())
    }
}

fn failed(address: &str, why: &dyn fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("profiler: figures for OpenTelemetry to {address}: {why}"))
}
