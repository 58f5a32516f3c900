//! What the fake has: rooms, Workspaces, snapshots, all under one temporary directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::room::Room;
use super::{FakeOptions, Fault, processes};

pub(super) struct World {
    directory: tempfile::TempDir,
    options: FakeOptions,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    next: u64,
    rooms: BTreeMap<String, Arc<Room>>,
    workspaces: BTreeMap<String, PathBuf>,
    snapshots: BTreeMap<String, Snapshot>,
}

#[derive(Clone)]
pub(super) struct Snapshot {
    /// Its content: `home`, and in coupled mode `workspace`, since the whole sandbox is captured.
    pub(super) directory: PathBuf,
    /// The room it was made from.
    pub(super) source: String,
}

impl World {
    pub(super) fn new(options: FakeOptions) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("leasehold-fake-").tempdir()?;
        for part in ["rooms", "workspaces", "snapshots"] {
            std::fs::create_dir(directory.path().join(part))?;
        }
        Ok(Self { directory, options, tables: Mutex::default() })
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn options(&self) -> FakeOptions {
        self.options
    }

    pub(super) fn breaks(&self, fault: Fault) -> bool {
        self.options.fault == Some(fault)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that nothing else has.
    pub(super) fn fresh(&self, what: &str) -> String {
        let mut tables = self.tables();
        tables.next += 1;
        format!("{what}-{:04}", tables.next)
    }

    pub(super) fn alive(&self) -> Vec<String> {
        let tables = self.tables();
        let rooms = tables.rooms.keys().map(|name| format!("room {name}"));
        let workspaces = tables.workspaces.keys().map(|name| format!("workspace {name}"));
        let snapshots = tables.snapshots.keys().map(|name| format!("snapshot {name}"));
        rooms.chain(workspaces).chain(snapshots).collect()
    }

    pub(super) fn room(&self, name: &str) -> Option<Arc<Room>> {
        self.tables().rooms.get(name).cloned()
    }

    pub(super) fn add_room(&self, room: Arc<Room>) {
        self.tables().rooms.insert(room.name().to_owned(), room);
    }

    pub(super) fn take_room(&self, name: &str) -> Option<Arc<Room>> {
        self.tables().rooms.remove(name)
    }

    pub(super) fn rooms_made_from(&self, snapshot: &str) -> Vec<Arc<Room>> {
        self.tables().rooms.values().filter(|room| room.made_from() == Some(snapshot)).cloned().collect()
    }

    pub(super) fn workspace(&self, name: &str) -> Option<PathBuf> {
        self.tables().workspaces.get(name).cloned()
    }

    /// Makes a Workspace of its own.
    pub(super) fn add_workspace(&self) -> io::Result<(String, PathBuf)> {
        let name = self.fresh("workspace");
        let directory = self.directory().join("workspaces").join(&name);
        std::fs::create_dir(&directory)?;
        self.tables().workspaces.insert(name.clone(), directory.clone());
        Ok((name, directory))
    }

    pub(super) fn remove_workspace(&self, name: &str) -> io::Result<()> {
        let directory = self.tables().workspaces.remove(name);
        directory.map_or(Ok(()), |directory| remove_tree(&directory))
    }

    pub(super) fn snapshot(&self, name: &str) -> Option<Snapshot> {
        self.tables().snapshots.get(name).cloned()
    }

    pub(super) fn add_snapshot(&self, name: &str, snapshot: Snapshot) {
        self.tables().snapshots.insert(name.to_owned(), snapshot);
    }

    pub(super) fn take_snapshot(&self, name: &str) -> Option<Snapshot> {
        self.tables().snapshots.remove(name)
    }

    pub(super) fn snapshots_of(&self, room: &str) -> Vec<String> {
        let tables = self.tables();
        tables.snapshots.iter().filter(|(_, snapshot)| snapshot.source == room).map(|(name, _)| name.clone()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Whatever a fault left running must not outlive the fake.
        processes::kill_all(&self.directory().to_string_lossy());
    }
}

/// Copies a directory's content with modes, owners, links and holes.
pub(super) fn copy_content(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    let copied = Command::new("cp").args(["-a", "--sparse=auto", "--"]).arg(from.join(".")).arg(to).output()?;
    if copied.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&copied.stderr).into_owned()))
}

/// Removes a tree; one that isn't there is fine.
pub(super) fn remove_tree(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes what is in a directory, and not the directory.
pub(super) fn empty(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
