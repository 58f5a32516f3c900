//! Why a host does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::ledger::LedgerError;

/// Why a host does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Another process has this data directory.
    #[error("a host already holds {data_dir} (pid {pid})", data_dir = data_dir.display(), pid = pid_text(*pid))]
    Held {
        /// The directory.
        data_dir: PathBuf,
        /// The process, if it has written its number yet.
        pid: Option<u32>,
    },
    /// The data directory cannot be used.
    #[error("data directory {path}: {step}", path = path.display())]
    DataDir {
        /// The path in question.
        path: PathBuf,
        /// What was being done, or what is wrong.
        step: &'static str,
        /// What the system said.
        #[source]
        source: Option<io::Error>,
    },
    /// The ledger cannot be used.
    #[error("the ledger cannot be used")]
    Ledger(#[source] LedgerError),
    /// The engine cannot work here.
    #[error("the engine cannot work here: {0}")]
    Engine(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The address can be reached from other machines, and nobody said that it may.
    #[error(
        "{address} can be reached from other machines and there is no TLS here: listen on 127.0.0.1, or allow it explicitly"
    )]
    PublicAddress {
        /// The address.
        address: SocketAddr,
    },
    /// A setting makes no sense.
    #[error("{field}: {problem}")]
    Config {
        /// The setting.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "not known yet".to_owned(), |pid| pid.to_string())
}
