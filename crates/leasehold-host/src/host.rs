//! A running host: start, wait, stop.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::{AtShutdown, HostConfig, Lifetime};
use crate::datadir::{self, DataDir};
use crate::edge::route::OurNames;
use crate::error::HostError;
use crate::ledger::{Content, Ledger, LedgerThread};
use crate::listen::{Door, Front, Via, is_local, serve_tcp, serve_unix};
use crate::port::Sandboxes;
use crate::secret::Secret;
use crate::transition::{Answer, Event};
use crate::world::{Machine, Settings, World};
use crate::{api, namespaces, reconcile};

/// How long a host that stops by itself, or by its own route, gives its sandboxes.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

/// A host that runs in this process.
///
/// Dropping it does not stop it: call [`Host::shutdown`], or let [`Host::wait`] tell when it stopped by itself.
#[derive(Debug)]
pub struct Host {
    closing: CancellationToken,
    done: watch::Receiver<bool>,
    deadline: Arc<Mutex<Option<Instant>>>,
    local_addr: Option<SocketAddr>,
    domain: String,
    key: Option<Secret>,
    main: Mutex<Option<JoinHandle<()>>>,
}

impl Host {
    /// Starts a host, with everything that earlier ones left adopted or removed.
    ///
    /// # Errors
    /// [`HostError::Held`] when another process has the directory; else what cannot be used, and why.
    ///
    /// # Repeating
    /// A second start on the same directory is refused as long as the first runs.
    ///
    /// # Cancel safety
    /// Dropped half-way, what was started is left to the next start.
    pub async fn start(config: HostConfig) -> Result<Self, HostError> {
        Self::start_with(config, namespaces::open).await
    }

    /// [`Self::start`] with any engine.
    pub(crate) async fn start_with(
        config: HostConfig,
        open: impl FnOnce(&std::path::Path) -> Result<Arc<dyn Sandboxes>, String> + Send + 'static,
    ) -> Result<Self, HostError> {
        check(&config)?;
        let dir = DataDir::take(&config.data_dir).await?;
        let tcp = match config.listen {
            Some(address) => {
                let listen = |source| HostError::Listen { address, source };
                let listener = TcpListener::bind(address).await.map_err(listen)?;
                let local = listener.local_addr().map_err(listen)?;
                Some((listener, local))
            }
            None => None,
        };
        let key = match (&config.api_key, &tcp) {
            (Some(key), _) => Some(key.clone()),
            (None, Some(_)) => Some(dir.api_key()?),
            (None, None) => None,
        };
        let local_addr = tcp.as_ref().map(|(_, local)| *local);
        let domain = config.domain.clone().unwrap_or_else(|| match local_addr {
            Some(local) => format!("localhost:{}", local.port()),
            None => "localhost".to_owned(),
        });
        let (ledger_path, engine_path) = (dir.ledger(), dir.path().to_owned());
        let opened = tokio::task::spawn_blocking(move || {
            let (ledger, thread, content) = Ledger::open(&ledger_path).map_err(HostError::Ledger)?;
            let engine = open(&engine_path).map_err(HostError::Engine)?;
            Ok::<_, HostError>((ledger, thread, content, engine))
        });
        let (ledger, thread, mut content, engine) =
            opened.await.map_err(|error| HostError::Engine(error.to_string()))??;
        let settings = settings(&config, &dir, domain.clone());
        let closing = CancellationToken::new();
        let ends = std::mem::take(&mut content.ends);
        let world = World::new(engine, ledger, settings, ends, closing.clone());
        // Clients that come while earlier sandboxes are settled wait in the listener's queue.
        let listener = match settle(&world, &dir, content).await {
            Ok(listener) => listener,
            Err(error) => {
                // Whatever was taken over is left as it is, to the next start.
                world.retire.cancel();
                world.tasks.close();
                world.tasks.wait().await;
                return Err(error);
            }
        };

        let front =
            Arc::new(Front { router: api::router(Arc::clone(&world)), world: Arc::clone(&world), key: key.clone() });
        world.tasks.spawn(serve_unix(Arc::clone(&front), listener));
        if let Some((listener, local)) = tcp {
            let bare =
                config.domain.as_deref().map(|domain| domain.split(':').next().unwrap_or(domain).to_ascii_lowercase());
            let names = OurNames { domain: bare, address: local.ip() };
            let door = Arc::new(Door { via: Via::Tcp, key: key.clone(), names: Some(names) });
            world.tasks.spawn(serve_tcp(front, door, listener));
        } else {
            drop(front);
        }
        if let Lifetime::Embedded { first_client, empty, paused_only } = config.lifetime {
            world.tasks.spawn(leave_when_idle(Arc::clone(&world), first_client, empty, paused_only));
        }
        let (finished, done) = watch::channel(false);
        let deadline = Arc::default();
        let main =
            Main { world, dir, thread, at_shutdown: config.at_shutdown, deadline: Arc::clone(&deadline), finished };
        let main = tokio::spawn(main.run());
        Ok(Self { closing, done, deadline, local_addr, domain, key, main: Mutex::new(Some(main)) })
    }

    /// The TCP address, if there is one.
    #[must_use]
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// The domain that answers name.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The key that TCP clients must send, if there is a TCP listener.
    #[must_use]
    pub const fn api_key(&self) -> Option<&Secret> {
        self.key.as_ref()
    }

    /// Waits until the host has stopped, whoever stopped it.
    ///
    /// # Cancel safety
    /// Dropping stops waiting only.
    pub async fn wait(&self) {
        let mut done = self.done.clone();
        // An error means that the main task is gone, which is as stopped as it gets.
        drop(done.wait_for(|done| *done).await);
        let main = self.main.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(main) = main
            && let Err(error) = main.await
        {
            tracing::error!(error = %error, "the host's main task failed");
        }
    }

    /// Stops the host: no new requests, sandboxes as [`AtShutdown`] says, ledger closed, lock given up. What is not done within
    /// `limit` is left to the next start.
    ///
    /// # Repeating
    /// A second call waits for the first.
    ///
    /// # Cancel safety
    /// Dropping stops waiting; the host stops all the same.
    pub async fn shutdown(&self, limit: Duration) {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Instant::now() + limit);
        self.closing.cancel();
        self.wait().await;
    }
}

async fn settle(world: &Arc<World>, dir: &DataDir, content: Content) -> Result<UnixListener, HostError> {
    let listener = dir.listen()?;
    reconcile::reconcile(world, content).await.map_err(HostError::Ledger)?;
    Ok(listener)
}

fn check(config: &HostConfig) -> Result<(), HostError> {
    let wrong = |field, problem: &str| Err(HostError::Config { field, problem: problem.to_owned() });
    if config.max_running == 0 || config.max_running > tokio::sync::Semaphore::MAX_PERMITS {
        return wrong("max_running", "must be at least 1");
    }
    if config.max_timeout.as_secs() == 0 {
        return wrong("max_timeout", "must be at least 1 s");
    }
    if config.domain.as_deref().is_some_and(|domain| domain.is_empty() || domain.contains(['/', ' ', '@'])) {
        return wrong("domain", "must be a host name, with a port if need be");
    }
    if config
        .api_key
        .as_ref()
        .is_some_and(|key| key.expose().is_empty() || !key.expose().bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return wrong("api_key", "must be visible ASCII characters, at least one");
    }
    match config.listen {
        Some(address) if !is_local(address) && !config.allow_public_listen => Err(HostError::PublicAddress { address }),
        _ => Ok(()),
    }
}

fn settings(config: &HostConfig, dir: &DataDir, domain: String) -> Settings {
    let system = rustix::system::sysinfo();
    let memory = u64::from(system.mem_unit).saturating_mul(system.totalram);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    Settings {
        data_dir: dir.path().to_owned(),
        domain,
        max_running: config.max_running,
        max_timeout_s: i64::try_from(config.max_timeout.as_secs()).unwrap_or(i64::MAX),
        limits: config.limits,
        machine: Machine { cores, memory_mib: memory >> 20, disk_mib: datadir::disk_mib(dir.path()) },
    }
}

/// The task that ends a host in order.
struct Main {
    world: Arc<World>,
    dir: DataDir,
    thread: LedgerThread,
    at_shutdown: AtShutdown,
    deadline: Arc<Mutex<Option<Instant>>>,
    finished: watch::Sender<bool>,
}

impl Main {
    async fn run(self) {
        self.world.closing.cancelled().await;
        self.world.presence.leave();
        let deadline = *self
            .deadline
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| Instant::now() + SHUTDOWN_LIMIT);
        if self.at_shutdown == AtShutdown::Stop {
            stop_sandboxes(&self.world, deadline).await;
        }
        // Owners that are left finish the work they are at, and end.
        self.world.retire.cancel();
        self.world.tasks.close();
        if timeout_at(deadline, self.world.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.world.tasks.len(), "the host's deadline passed with tasks under way");
        }
        // Only now: whoever found a socket gone may start the next host, which then waits for the lock.
        self.dir.unlink_socket();
        let Self { world, dir, thread, finished, .. } = self;
        world.ledger.close().await;
        drop(world);
        if let Err(error) = tokio::task::spawn_blocking(move || thread.join()).await {
            tracing::error!(error = %error, "closing the ledger failed");
        }
        drop(dir);
        finished.send_replace(true);
    }
}

async fn stop_sandboxes(world: &Arc<World>, deadline: Instant) {
    let mut stopping = tokio::task::JoinSet::new();
    for entry in world.entries() {
        let world = Arc::clone(world);
        stopping.spawn(async move {
            if let Answer::Failed(failure) = world.ask(&entry, Event::Shutdown).await.answer {
                let id = entry.view().origin.id.clone();
                tracing::error!(sandbox.id = %id, error = %failure, "a sandbox could not be stopped");
            }
        });
    }
    let all = async { while stopping.join_next().await.is_some() {} };
    if timeout_at(deadline, all).await.is_err() {
        tracing::warn!("the host's deadline passed with sandboxes still stopping; the next start finishes it");
    }
}

/// Ends an embedded host that nobody needs: see [`Lifetime::Embedded`].
async fn leave_when_idle(world: Arc<World>, first_client: Duration, empty: Duration, paused_only: Duration) {
    let mut changes = world.presence.changes();
    let mut wait = Some(first_client.max(if world.entries().is_empty() { empty } else { paused_only }));
    loop {
        let timer = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = world.closing.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = timer => {
                if idle_wait(&world, empty, paused_only).is_some() && world.presence.leave_if_empty() {
                    tracing::info!("nobody needs this host any more");
                    world.closing.cancel();
                    return;
                }
            }
        }
        wait = idle_wait(&world, empty, paused_only);
    }
}

/// How long the host would stay as things are; `None` while it is needed.
fn idle_wait(world: &World, empty: Duration, paused_only: Duration) -> Option<Duration> {
    if world.presence.clients() > 0 || world.sessions.count() > 0 {
        return None;
    }
    let entries = world.entries();
    if entries.is_empty() {
        return Some(empty);
    }
    let all_paused = entries.iter().all(|entry| matches!(entry.view().life.state, crate::transition::State::Paused(_)));
    all_paused.then_some(paused_only)
}
