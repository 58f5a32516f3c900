//! `with_lease` on a backend that counts.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::*;
use crate::{
    Capabilities, ErrorKind, ExecutionBindingAllocation, ExecutionBindingCreateSpec, ExecutionBindingDestroySpec,
};

#[derive(Default)]
struct Counting {
    acquire_fails: bool,
    release_fails: bool,
    released: AtomicUsize,
}

struct Plain(LeaseId);

impl RuntimeLease for Plain {
    fn id(&self) -> LeaseId {
        self.0
    }

    fn layout(&self) -> &RuntimeLayout {
        unreachable!("no body here asks")
    }

    fn commands(&self) -> &dyn Commands {
        unreachable!("no body here asks")
    }

    fn files(&self) -> &dyn Files {
        unreachable!("no body here asks")
    }
}

fn error(kind: ErrorKind, text: &str) -> RuntimeError {
    RuntimeError::new(kind, "test", "counting", text)
}

#[async_trait]
impl ExecutionBindingBackend for Counting {
    fn capabilities(&self) -> &Capabilities {
        unreachable!("with_lease does not ask")
    }

    async fn create_binding(&self, _: &ExecutionBindingCreateSpec) -> Result<ExecutionBindingAllocation, RuntimeError> {
        Err(error(ErrorKind::Unsupported, "no create"))
    }

    async fn acquire(&self, _: &BindingRef) -> Result<Box<dyn RuntimeLease>, RuntimeError> {
        if self.acquire_fails {
            Err(error(ErrorKind::BindingLost, "gone"))
        } else {
            Ok(Box::new(Plain(LeaseId::fresh())))
        }
    }

    async fn release(&self, _: &dyn RuntimeLease) -> Result<(), RuntimeError> {
        self.released.fetch_add(1, Ordering::Relaxed);
        if self.release_fails { Err(error(ErrorKind::Cancelled, "release")) } else { Ok(()) }
    }

    async fn destroy_binding(&self, _: &ExecutionBindingDestroySpec) -> Result<(), RuntimeError> {
        Err(error(ErrorKind::Unsupported, "no destroy"))
    }
}

/// Runs one `with_lease`; gives its outcome, how often it released, and the records it made.
async fn run(
    backend: Counting,
    body: Result<u8, RuntimeError>,
) -> (Result<u8, String>, usize, Vec<BTreeMap<&'static str, String>>) {
    let caught = Caught::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(caught.clone()));
    let binding = BindingRef::new("b").unwrap();
    // Spawned, since the future must be fit for another thread.
    let backend = Arc::new(backend);
    let used = Arc::clone(&backend);
    let outcome = tokio::spawn(async move { with_lease(&*used, &binding, async |_| body).await }).await.unwrap();
    let records = caught.0.lock().unwrap().clone();
    (outcome.map_err(|error| error.message().to_owned()), backend.released.load(Ordering::Relaxed), records)
}

fn failed() -> Result<u8, RuntimeError> {
    Err(error(ErrorKind::Internal, "body"))
}

#[tokio::test]
async fn the_bodys_value_is_returned_and_the_lease_released_once() {
    let (outcome, released, records) = run(Counting::default(), Ok(7)).await;
    assert_eq!((outcome, released, records.len()), (Ok(7), 1, 0));
    let (outcome, released, records) = run(Counting::default(), failed()).await;
    assert_eq!((outcome, released, records.len()), (Err("body".to_owned()), 1, 0));
}

#[tokio::test]
async fn a_release_failure_is_returned_after_success_and_logged_after_failure() {
    let broken = || Counting { release_fails: true, ..Counting::default() };
    let (outcome, released, records) = run(broken(), Ok(7)).await;
    assert_eq!((outcome, released, records.len()), (Err("release".to_owned()), 1, 0));
    let (outcome, released, records) = run(broken(), failed()).await;
    assert_eq!((outcome, released, records.len()), (Err("body".to_owned()), 1, 1));
    assert_eq!(records[0]["error.kind"], "cancelled");
    assert_eq!(records[0]["binding_ref"], "b");
}

#[tokio::test]
async fn without_a_lease_there_is_no_body_and_no_release() {
    let backend = Counting { acquire_fails: true, ..Counting::default() };
    let (outcome, released, _) = run(backend, Ok(7)).await;
    assert_eq!((outcome, released), (Err("gone".to_owned()), 0));
}

#[test]
fn every_lease_of_a_process_has_an_id_of_its_own() {
    let ids: std::collections::HashSet<_> = (0..100).map(|_| LeaseId::fresh()).collect();
    assert_eq!(ids.len(), 100);
    assert!(LeaseId::fresh().to_string().starts_with("lease-"));
    let lease = Leased(Arc::new(Plain(LeaseId::fresh())));
    assert_eq!(format!("{lease:?}"), format!("Leased({:?})", lease.id()));
}

#[derive(Clone, Default)]
struct Caught(Arc<Mutex<Vec<BTreeMap<&'static str, String>>>>);

impl<S: tracing::Subscriber> Layer<S> for Caught {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}
