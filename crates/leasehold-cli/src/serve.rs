//! `serve`, and the host that commands start by themselves.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use leasehold_host::{Host, HostConfig, HostError, Lifetime, Secret};
use rustix::stdio::dup2_stdout;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::ServeArgs;
use crate::host_process::Announcement;
use crate::{exit, print_line};

/// How long sandboxes may take to be stopped in order when the host is told to end. Chosen: well below a service manager's 90 s.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// Serves in the foreground until SIGTERM or Ctrl-C.
pub(crate) async fn serve(data_dir: PathBuf, args: &ServeArgs) -> anyhow::Result<u8> {
    crate::log_to_stderr("info");
    let ending = Ending::listen()?;
    let mut config = HostConfig::new(data_dir.clone());
    config.listen = Some(args.listen);
    config.api_key = args.api_key.clone().map(Secret::new);
    let host = Host::start(config).await?;
    let address = host.local_addr().context("the host has no TCP address although it was asked to listen")?;
    let key = host.api_key().context("the host has no key although it listens on TCP")?;
    print_line(&format!("serving E2B's API at http://{address} (data in {})", data_dir.display()))?;
    print_line("for E2B's SDKs:")?;
    print_line(&format!("export E2B_API_KEY={}", key.expose()))?;
    print_line(&format!("export E2B_API_URL=http://{address}"))?;
    print_line(&format!("export E2B_SANDBOX_URL=http://{address}"))?;
    std::io::stdout().flush()?;
    ending.wait(&host).await;
    Ok(0)
}

/// The host behind commands: says on stdout that it is ready, or why not, and ends when nobody needs it.
pub(crate) async fn embedded(data_dir: PathBuf) -> anyhow::Result<u8> {
    // A session of its own: a Ctrl-C at the command's terminal is not for the host. It fails only if we lead a session already.
    rustix::process::setsid().ok();
    crate::log_to_stderr("info");
    let ending = Ending::listen()?;
    let mut config = HostConfig::new(data_dir);
    config.lifetime = Lifetime::embedded();
    let started = Host::start(config).await;
    let announcement = match &started {
        Ok(_) => Announcement::default(),
        Err(error) => Announcement {
            error: Some(format!("{:#}", anyhow::Error::msg(chain(error)))),
            held: matches!(error, HostError::Held { .. }),
        },
    };
    // The command that started us may be gone; others may use us already.
    print_line(&serde_json::to_string(&announcement)?).and_then(|()| std::io::stdout().flush()).ok();
    // Whoever waits for the line reads until the end of file; give it that.
    let null = OpenOptions::new().write(true).open("/dev/null").context("cannot open /dev/null")?;
    dup2_stdout(&null).context("cannot close stdout")?;
    let Ok(host) = started else { return Ok(exit::FAILED) };
    ending.wait(&host).await;
    Ok(0)
}

/// The signals that end a host. Listened for before anybody can know that the host is there.
struct Ending {
    interrupt: Signal,
    terminate: Signal,
}

impl Ending {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    /// Returns when the host has ended, by itself or because it was told.
    async fn wait(mut self, host: &Host) {
        tokio::select! {
            () = host.wait() => return,
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        host.shutdown(SHUTDOWN).await;
    }
}

/// An error with everything that caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
