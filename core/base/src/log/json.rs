//! The log as JSON, one object a line, for programs that read it.
//!
//! ```json
//! {"time":1764000000.123,"level":"INFO","target":"hawser::net","host":"n1","pid":7,"tid":9,"device":0,
//!  "message":"…","peer":3,"spans":[{"name":"communicator","comm":"8f…","rank":0}]}
//! ```

use std::fmt;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::is_ours;
use super::lines::Verbosity;
use super::sink::{Sink, host_name};

/// Lets all spans and events of the library through; the finest events only with `NCCL_DEBUG=TRACE`.
pub(super) fn filter(verbosity: Verbosity) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    let most = if verbosity.traces() { LevelFilter::TRACE } else { LevelFilter::INFO };
    filter_fn(move |metadata| is_ours(metadata.target()) && *metadata.level() <= most)
        .with_max_level_hint(most)
}

/// Writes each event as an object, with the spans that it is in.
pub(super) struct JsonLines {
    sink: Sink,
}

impl JsonLines {
    /// Objects go there.
    pub fn new(sink: Sink) -> Self {
        Self { sink }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let metadata = event.metadata();
        let mut fields = Fields::default();
        fields.put("time", since.as_secs_f64());
        fields.put("level", metadata.level().as_str());
        fields.put("target", metadata.target());
        fields.put("host", host_name());
        fields.put("pid", std::process::id());
        fields.put("tid", rustix::thread::gettid().as_raw_nonzero().get());
        fields.put("device", super::device());
        event.record(&mut fields);
        let spans = context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()).map(|span| {
            let mut object = Map::from_iter([("name".to_owned(), json!(span.name()))]);
            let extensions = span.extensions();
            object.extend(extensions.get::<Fields>().into_iter().flat_map(|fields| fields.0.clone()));
            Value::Object(object)
        });
        fields.put("spans", Vec::from_iter(spans));
        self.sink.write(&format!("{}\n", Value::Object(fields.0)));
    }
}

/// The fields of an event or a span.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Subsys, info, trace, warn};
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry::Registry;

    #[test]
    fn events_are_objects_with_their_spans_and_fields() {
        let path = std::env::temp_dir().join(format!("hawser-json-{}", std::process::id()));
        let sink = Sink::open(path.to_str().unwrap()).unwrap();
        let layer = JsonLines::new(sink).with_filter(filter(Verbosity::of(None, "")));
        tracing::subscriber::with_default(Registry::default().with(layer), || {
            let empty = tracing::field::Empty;
            let communicator = tracing::info_span!(target: "hawser", "communicator", rank = 3, comm = empty);
            let _in_it = communicator.enter();
            communicator.record("comm", "8f");
            warn("two\nlines");
            let _connection = tracing::info_span!(target: "hawser", "connection", peer = 5).entered();
            info(Subsys::Net, || "net".into());
            trace(Subsys::Net, || "fine".into());
        });
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!((&lines[0]["level"], &lines[0]["message"]), (&json!("WARN"), &json!("two\nlines")));
        assert_eq!(lines[0]["spans"], json!([{"name": "communicator", "rank": 3, "comm": "8f"}]));
        assert_eq!(
            (&lines[1]["target"], &lines[1]["pid"]),
            (&json!("hawser::net"), &json!(std::process::id()))
        );
        assert_eq!(lines[1]["spans"][1], json!({"name": "connection", "peer": 5}));
    }
}
