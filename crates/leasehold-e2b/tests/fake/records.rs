//! Log records of the driver, caught and counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

/// One record: its level and all fields as text.
#[derive(Debug, Clone)]
pub struct Record {
    pub level: Level,
    pub fields: BTreeMap<&'static str, String>,
}

impl Record {
    pub fn get(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }
}

/// The records of this thread since it was made.
pub struct Records {
    caught: Caught,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Caught(Arc<Mutex<Vec<Record>>>);

impl Records {
    pub fn catch() -> Self {
        let caught = Caught::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(caught.clone()));
        Self { caught, _guard: guard }
    }

    pub fn all(&self) -> Vec<Record> {
        self.caught.0.lock().unwrap().clone()
    }

    pub fn with_outcome(&self, outcome: &str) -> Vec<Record> {
        self.all().into_iter().filter(|record| record.get("outcome") == outcome).collect()
    }

    pub fn outcomes(&self) -> Vec<String> {
        self.all().iter().map(|record| record.get("outcome").to_owned()).collect()
    }
}

impl<S: Subscriber> Layer<S> for Caught {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == leasehold_e2b::driver::LOG_TARGET {
            let mut fields = Fields(BTreeMap::new());
            event.record(&mut fields);
            self.0.lock().unwrap().push(Record { level: *event.metadata().level(), fields: fields.0 });
        }
    }
}

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}
