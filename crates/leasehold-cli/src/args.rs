//! The command line: what can be asked, with the text of `--help`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Machines that AI agents can keep: a persistent Home, a Workspace per task, a lease on both for one operation.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// Directory of the sandboxes, their Homes and the host's ledger [default: $XDG_DATA_HOME/leasehold or ~/.local/share/leasehold].
    #[arg(long, global = true, env = "LEASEHOLD_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command in a sandbox: a fresh one that is gone afterwards, or the kept one called NAME.
    Run(RunArgs),
    /// Runs a command in a kept sandbox, by name or id.
    Exec(ExecArgs),
    /// Lists the sandboxes of this data directory.
    Ls(ListArgs),
    /// Destroys sandboxes with everything in them.
    Rm(RemoveArgs),
    /// Makes, lists and deletes Home Snapshots.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Serves the E2B-compatible API in the foreground.
    Serve(ServeArgs),
    /// Says what this machine offers and what is missing.
    Doctor(DoctorArgs),
    /// The host that commands start by themselves (not for direct use).
    #[command(hide = true)]
    Host,
}

/// What `run` and `exec` share.
#[derive(Debug, Args)]
pub(crate) struct ProcessArgs {
    /// Prints one JSON object per line: start, stdout and stderr as they come, end.
    #[arg(long)]
    pub(crate) json: bool,
    /// User inside the sandbox.
    #[arg(long, value_name = "USER", default_value = "user")]
    pub(crate) user: String,
    /// Sets a variable for the command; may be repeated.
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory inside the sandbox [default: /workspace].
    #[arg(long, value_name = "PATH")]
    pub(crate) cwd: Option<String>,
    /// Ends the command after this many seconds (exit code 124); without it there is no limit.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,
    /// The command and its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Keeps the sandbox under this name, or uses the one that has it: its Home and Workspace persist.
    #[arg(long = "as", value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: Option<String>,
    /// Starts from this Home Snapshot (see `snapshot ls`).
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) home: Option<String>,
    /// Keeps the fresh sandbox, paused, instead of destroying it; its id is printed on stderr.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Copies this directory into the Workspace before, and new and changed files back after; nothing of yours is deleted.
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Name or id of a kept sandbox.
    #[arg(value_name = "BINDING")]
    pub(crate) binding: String,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Prints one JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Names or ids.
    #[arg(required = true, value_name = "BINDING")]
    pub(crate) bindings: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Copies a kept sandbox's Home into an immutable snapshot and prints its reference.
    Create {
        /// Name or id of a kept sandbox.
        binding: String,
    },
    /// Lists snapshots.
    Ls {
        /// Prints one JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Deletes snapshots.
    Rm {
        /// References, as `snapshot ls` prints them.
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address of the API; port 0 takes a free one.
    #[arg(long, env = "LEASEHOLD_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:3999")]
    pub(crate) listen: SocketAddr,
    /// Key that clients must send [default: one is made once and kept in the data directory].
    #[arg(long, env = "LEASEHOLD_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Prints one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Accepts `NAME=VALUE`; the value may hold anything, `=` too.
fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no '='; write NAME=VALUE"))?;
    if name.is_empty() {
        return Err(format!("{text:?} has an empty name; write NAME=VALUE"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Names are used in file names and in tables, so they are kept plain.
fn parse_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > 64 || !text.chars().all(plain) || text.starts_with(['.', '-']) {
        return Err(format!(
            "{text:?} is not a usable name; take 1 to 64 letters, digits, '-', '_' or '.', not starting with '.' or '-'"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_that_could_be_paths_are_refused() {
        for bad in ["", ".", "..", "a/b", "-x", "ü", "a b", &"x".repeat(65)] {
            assert!(parse_name(bad).is_err(), "{bad:?}");
        }
        for good in ["me", "a.b-c_d", "0", &"x".repeat(64)] {
            assert!(parse_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_variable_keeps_every_byte_after_its_first_equals_sign() {
        assert_eq!(parse_variable("A=b=c\n"), Ok(("A".into(), "b=c\n".into())));
        assert!(parse_variable("A").is_err());
        assert!(parse_variable("=b").is_err());
    }
}
