//! Stands for the export to OpenTelemetry where the feature `otel` is off: there is none.

use std::convert::Infallible;
use std::time::Duration;

use hawser_plugin::{Error, ErrorKind, Result};

/// An export that cannot be made.
pub struct Otel(Infallible);

impl Otel {
    /// Says that there is none in this build.
    ///
    /// # Errors
    /// Always.
    pub fn start(address: &str, _every: Duration, _rank: u32) -> Result<Self> {
        let text = format!(
            "profiler: figures for OpenTelemetry to {address}: this build has no export; build with \
             --features otel"
        );
        Err(Error::new(ErrorKind::InvalidUsage, text))
    }

    /// Notes a finished operation.
    pub fn ended(&self, _labels: [&'static str; 2], _seconds: f64, _bytes: u64, _busbw: Option<f64>) {
        match self.0 {}
    }

    /// Notes an operation that was not over when its communicator was closed.
    pub fn unfinished(&self, _function: &'static str) {
        match self.0 {}
    }

    /// Pushes what there is.
    ///
    /// # Errors
    /// None: there is no export.
    pub fn flush(&self) -> std::result::Result<(), String> {
        match self.0 {}
    }
}
