//! The `leasehold` command: the only place that picks drivers and engines.

mod args;
mod command;
mod context;
mod doctor;
mod exit;
mod host_api;
mod host_process;
mod manage;
mod name_lock;
mod report;
mod run;
mod serve;
mod transfer;
mod workspace;

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command};
use crate::context::Context;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match runtime(&cli.command).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start: {error}"));
            return ExitCode::from(exit::FAILED);
        }
    };
    let code = runtime.block_on(dispatch(cli)).unwrap_or_else(|error| {
        complain(&format!("{error:#}"));
        exit::FAILED
    });
    // A read of our stdin may still be blocked; it must not hold up the exit.
    runtime.shutdown_timeout(Duration::ZERO);
    ExitCode::from(code)
}

/// A command does one thing at a time; a host serves many.
fn runtime(command: &Command) -> tokio::runtime::Builder {
    let mut builder = match command {
        Command::Serve(_) | Command::Host => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all();
    builder
}

async fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    let data_dir = host_process::data_dir(cli.data_dir)?;
    match cli.command {
        Command::Serve(args) => serve::serve(data_dir, &args).await,
        Command::Host => serve::embedded(data_dir).await,
        command => {
            log_to_stderr("warn");
            let context = Context::open(data_dir).await?;
            let outcome = on_sandboxes(&context, &command).await;
            context.close().await;
            outcome
        }
    }
}

async fn on_sandboxes(context: &Context, command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(context, args).await,
        Command::Exec(args) => run::exec(context, args).await,
        Command::Ls(args) => manage::list(context, args).await,
        Command::Rm(args) => manage::remove(context, args).await,
        Command::Snapshot(command) => manage::snapshot(context, command).await,
        Command::Doctor(args) => doctor::doctor(context, args).await,
        Command::Serve(_) | Command::Host => unreachable!("dispatched before"),
    }
}

/// Sends our own log to stderr; `LEASEHOLD_LOG` says what is logged, in the form of `RUST_LOG`.
pub(crate) fn log_to_stderr(default: &str) {
    let filter = EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();
}

/// Says something to the person at the terminal, apart from the command's own output.
pub(crate) fn complain(what: &dyn Display) {
    // Nobody is there to hear that stderr is closed.
    writeln!(io::stderr(), "leasehold: {what}").ok();
}

/// Prints one line of our own output.
pub(crate) fn print_line(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
