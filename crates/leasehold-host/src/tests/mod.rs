//! Tests of the whole host over its sockets, with an engine that is a double.

#[path = "../../tests/support/client.rs"]
mod client;
mod double;

mod api;
mod capacity;
mod edge;
mod life;
mod restart;
mod sessions;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use double::Double;
use tempfile::TempDir;

use crate::{Host, HostConfig};

/// How long a test waits for something that must happen.
const SOON: Duration = Duration::from_secs(10);

/// A host on a temporary directory, with a double of the engine.
struct Stage {
    host: Host,
    client: Client,
    engine: Arc<Double>,
    dir: TempDir,
}

impl Stage {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(adjust: impl FnOnce(&mut HostConfig)) -> Self {
        Self::on(tempfile::tempdir().expect("a directory"), Arc::new(Double::default()), adjust).await
    }

    async fn on(dir: TempDir, engine: Arc<Double>, adjust: impl FnOnce(&mut HostConfig)) -> Self {
        let mut config = HostConfig::new(dir.path());
        adjust(&mut config);
        let host = start(config, &engine).await;
        let client = Client::unix(dir.path());
        Self { host, client, engine, dir }
    }

    /// Stops the host and checks that nothing is left running.
    async fn end(self) {
        self.host.shutdown(SOON).await;
        assert_eq!(self.engine.alive(), Vec::<String>::new());
        assert!(!self.dir.path().join("run/host.sock").exists());
    }
}

async fn start(config: HostConfig, engine: &Arc<Double>) -> Host {
    let engine = Arc::clone(engine);
    Host::start_with(config, move |_: &Path| Ok(engine as _)).await.expect("starts")
}

/// Waits until `condition` holds; the host's own changes of state wake nobody here, so it is looked at again and again.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let all = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, all).await.is_ok(), "not in time: {what}");
}

impl Stage {
    /// Waits until a sandbox has ended, and tells why.
    async fn end_reason(&self, id: &str) -> String {
        let path = format!("/leasehold/v1/sandboxes/{id}");
        eventually("it has ended", async || self.client.get(&path).await.json()["state"] == "ended").await;
        self.client.get(&path).await.json()["reason"].as_str().expect("a reason").to_owned()
    }
}
