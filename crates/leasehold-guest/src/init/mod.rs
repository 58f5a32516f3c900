//! The mode `init`: PID 1 of a sandbox.
//!
//! It takes the identity, opens the listeners, says that it is ready, and then waits for orphans to reap. Everything else happens on the
//! threads of connections and processes. Idle, it has two threads and wakes for nothing.

mod control;
mod options;
mod reaper;

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::{DumpableBehavior, Resource};

use self::options::Options;
use crate::api::{Api, Origin};
use crate::guest::Guest;
use crate::http::{Handler, Limits, Listener, Server};
use crate::process::{Processes, Reaping};
use crate::shellctl::Daemon;
use crate::sys;
use crate::users::Users;

/// Runs the mode `init` with the arguments after it.
pub fn main(args: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    sys::limit_malloc();
    // Threads made from now on inherit the mask, so that SIGCHLD stays for the reaper.
    sys::block_sigchld();
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("leasehold-guest init: {problem}");
            return ExitCode::from(2);
        }
    };
    let mut ready = match options.open_ready() {
        Ok(ready) => ready,
        Err(error) => {
            eprintln!("leasehold-guest init: cannot use the ready descriptor: {error}");
            return ExitCode::from(2);
        }
    };
    let mut guest = None;
    let report = match start(&options) {
        Ok(started) => {
            guest = Some(started.guest);
            // It serves as long as the process lives.
            std::mem::forget(started.server);
            serde_json::json!({ "ready": true })
        }
        Err(problem) => serde_json::json!({ "error": problem, "stage": "guest" }),
    };
    let failed = report.get("error").is_some();
    // If nobody listens, the host is gone and will find out about us by other means.
    // One write: the engine wakes once.
    ready.write_all(format!("{report}\n").as_bytes()).and_then(|()| ready.flush()).ok();
    drop(ready);
    if failed {
        eprintln!("leasehold-guest init: {report}");
        return ExitCode::FAILURE;
    }
    // After the ready line, so that it costs the start nothing. If it fails now, the first process tries again and reports it.
    guest.map(|guest| guest.processes.warm_up().ok());
    reaper::reap_for_ever()
}

struct Started {
    server: Server,
    guest: Arc<Guest>,
}

fn start(options: &Options) -> Result<Started, String> {
    // User code must not read the access token out of this process, nor take it over by ptrace.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("cannot become non-dumpable: {error}"))?;
    let open_files = raise_open_files();
    let processes = Processes::new("/proc/self/exe", Reaping::ByReaper).with_open_files(open_files);
    let guest = Guest::new(options.identity.clone(), Users::default(), processes).map_err(|error| chain(&error))?;
    mark_as_sandbox(&guest);
    let guest = Arc::new(guest);
    let listeners = listeners(options, &guest)?;
    let server = Server::start(listeners, Limits::default()).map_err(|error| format!("cannot serve: {error}"))?;
    Ok(Started { server, guest })
}

fn listeners(options: &Options, guest: &Arc<Guest>) -> Result<Vec<Listener>, String> {
    let uploads = options.state_dir.join("uploads");
    let envd = |origin| -> Arc<dyn Handler> { Arc::new(Api::new(Arc::clone(guest), origin, &uploads)) };
    let shellctl: Arc<dyn Handler> = Arc::new(Daemon::new(Arc::clone(guest), options.state_dir.join("shellctl")));
    let mut listeners = Vec::with_capacity(5);
    let mut http = |name: &str, handler: Arc<dyn Handler>| {
        let listener = bind_unix(&options.run_dir.join(name))?;
        listeners.push(Listener::http(listener, handler).map_err(|error| format!("{name}: {error}"))?);
        Ok::<_, String>(())
    };
    http("envd.sock", envd(Origin::Host))?;
    http("shellctl.sock", Arc::clone(&shellctl))?;
    let control = bind_unix(&options.run_dir.join("ctl.sock"))?;
    let shared = Arc::clone(guest);
    let control = Listener::raw(control, move |socket| control::serve(socket, &shared));
    listeners.push(control.map_err(|error| format!("ctl.sock: {error}"))?);
    for (port, handler) in [(options.envd_port, envd(Origin::Loopback)), (options.shellctl_port, shellctl)] {
        let Some(port) = port else { continue };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
            format!("port {port} of the sandbox is needed by the guest and cannot be taken: {error}")
        })?;
        listeners.push(Listener::http_tcp(listener, handler).map_err(|error| format!("port {port}: {error}"))?);
    }
    Ok(listeners)
}

/// Binds a socket that only root can connect to. One that an earlier boot of the sandbox left is replaced.
fn bind_unix(path: &Path) -> Result<UnixListener, String> {
    let bind = || -> io::Result<UnixListener> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|error| format!("cannot listen on {}: {error}", path.display()))
}

/// Raises the soft limit of open files to the hard one: each process and connection takes a few. Returns what it was.
fn raise_open_files() -> u64 {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    let before = limit.current.unwrap_or(u64::MAX);
    limit.current = limit.maximum;
    // With the lower limit the guest works too, for fewer processes at once.
    rustix::process::setrlimit(Resource::Nofile, limit).ok();
    before
}

/// Programs recognise a sandbox by these files (envd 0.6.13 writes them). Where `/run` does not take them, there are the variables.
fn mark_as_sandbox(guest: &Guest) {
    if rustix::process::getpid().as_raw_pid() != 1 || fs::create_dir_all("/run/e2b").is_err() {
        return;
    }
    let identity = guest.identity();
    for (name, content) in [
        (".E2B_SANDBOX", "true"),
        (".E2B_SANDBOX_ID", identity.sandbox_id.as_str()),
        (".E2B_TEMPLATE_ID", identity.template_id.as_str()),
    ] {
        fs::write(Path::new("/run/e2b").join(name), content).ok();
    }
}

/// An error with all its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
