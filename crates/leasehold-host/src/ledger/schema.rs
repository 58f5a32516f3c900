//! The ledger's schema, and the steps from each version to the next.

use std::path::Path;

use rusqlite::Connection;

use super::LedgerError;

/// Entry `n` leads from version `n` to `n + 1`. Entries are never changed once released, only added.
const MIGRATIONS: &[&str] = &["
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    stage TEXT NOT NULL,
    started_us INTEGER NOT NULL,
    ends_us INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    process TEXT,
    boot_id TEXT,
    reason TEXT,
    kept INTEGER NOT NULL,
    session INTEGER NOT NULL,
    origin TEXT NOT NULL
) STRICT;
-- layers is NULL while the snapshot is being made.
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    layers TEXT
) STRICT;
CREATE TABLE names (
    name TEXT NOT NULL,
    tag TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    PRIMARY KEY (name, tag)
) STRICT;
CREATE TABLE ends (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    reason TEXT NOT NULL,
    at_us INTEGER NOT NULL
) STRICT;
"];

/// The version that this program reads and writes.
pub(super) fn known_version() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are not four thousand million migrations")
}

/// Sets how the file is written, and brings it to our version.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), LedgerError> {
    let failed = LedgerError::database("prepare");
    let found: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(&failed)?;
    if found > known_version() {
        return Err(LedgerError::Newer { path: path.display().to_string(), found, known: known_version() });
    }
    // FULL: in WAL mode each commit is synced, which is what "intent before effect" rests on.
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA locking_mode = EXCLUSIVE;")
        .map_err(&failed)?;
    let pending = MIGRATIONS.iter().zip(1_u32..).skip(usize::try_from(found).unwrap_or(usize::MAX));
    for (migration, version) in pending {
        let transaction = connection.transaction().map_err(&failed)?;
        transaction.execute_batch(migration).map_err(LedgerError::database("migrate"))?;
        transaction.pragma_update(None, "user_version", version).map_err(LedgerError::database("migrate"))?;
        transaction.commit().map_err(LedgerError::database("migrate"))?;
    }
    Ok(())
}

/// Makes a ledger as the program of `version` would have.
#[cfg(test)]
pub(super) fn make_version(path: &Path, version: u32) {
    let connection = Connection::open(path).expect("opens");
    for migration in MIGRATIONS.iter().take(usize::try_from(version).expect("small")) {
        connection.execute_batch(migration).expect("applies");
    }
    connection.pragma_update(None, "user_version", version).expect("set");
}
