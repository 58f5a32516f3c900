//! The ledger: what must survive the host process, in SQLite, on a thread of its own.
//!
//! Writes are durable when the call returns (WAL, `synchronous=FULL`). Writes that arrive together share one transaction and
//! one `fsync`; each still succeeds or fails by itself. Reads happen once, when the ledger is opened: afterwards memory is
//! the truth and the ledger its durable copy, written intent before effect and outcome after.

mod schema;

use std::path::Path;
use std::thread::JoinHandle;

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::{mpsc, oneshot};

use crate::record::{Origin, Row, Snapshot, Stage};
use crate::wall::Wall;

/// Writes that may wait for the thread; a writer beyond that waits its turn. Chosen: a burst of creates fits.
const QUEUE: usize = 256;

/// Most writes in one transaction. Chosen: bounds the time that the first of them waits.
const BATCH: usize = 64;

/// How many ended sandboxes are remembered with their reason. Chosen.
const ENDS_KEPT: u32 = 1000;

/// Why the ledger could not do it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// It was written by a newer program.
    #[error(
        "ledger {path} has schema version {found}, and this program knows versions up to {known}; use the newer leasehold \
         that wrote it, or another data directory"
    )]
    Newer {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// SQLite said no.
    #[error("ledger: {step}: {message}")]
    Database {
        /// What was being done.
        step: &'static str,
        /// SQLite's own words.
        message: String,
    },
    /// A row holds something that this program never writes.
    #[error("ledger: row {id:?} is damaged: {message}")]
    Damaged {
        /// The row's key.
        id: String,
        /// What is wrong.
        message: String,
    },
    /// The ledger's thread has ended.
    #[error("ledger: closed")]
    Closed,
}

impl LedgerError {
    fn database(step: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |error| Self::Database { step, message: error.to_string() }
    }
}

/// What was in the ledger when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) sandboxes: Vec<Row>,
    /// Finished ones.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Ids of snapshots that were being made.
    pub(crate) unfinished_snapshots: Vec<String>,
    /// Oldest first.
    pub(crate) ends: Vec<End>,
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) id: String,
    pub(crate) reason: String,
    pub(crate) at: Wall,
}

type Write = Box<dyn FnOnce(&Connection) -> rusqlite::Result<()> + Send>;

struct Job {
    step: &'static str,
    write: Write,
    done: oneshot::Sender<Result<(), LedgerError>>,
}

enum Order {
    Write(Job),
    Close,
}

/// The way to the ledger's thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ledger {
    jobs: mpsc::Sender<Order>,
}

/// Ends when the ledger is closed; joined so that the file is closed before the lock is given up.
pub(crate) struct LedgerThread(JoinHandle<()>);

impl LedgerThread {
    /// Waits until the file is closed. Blocks.
    pub(crate) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the ledger's thread panicked");
        }
    }
}

impl Ledger {
    /// Opens or makes the ledger, migrates it, and reads it. Blocks.
    ///
    /// # Errors
    /// A newer schema, a damaged row, or whatever SQLite says.
    pub(crate) fn open(path: &Path) -> Result<(Self, LedgerThread, Content), LedgerError> {
        let mut connection = Connection::open(path).map_err(LedgerError::database("open"))?;
        schema::prepare(&mut connection, path)?;
        let content = read(&connection)?;
        let (jobs, inbox) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || serve(&connection, inbox))
            .map_err(|error| LedgerError::Database { step: "start its thread", message: error.to_string() })?;
        Ok((Self { jobs }, LedgerThread(thread), content))
    }

    /// Runs `write` durably.
    ///
    /// # Cancel safety
    /// Dropped before it is queued, nothing is written; afterwards it is written all the same.
    async fn write(
        &self,
        step: &'static str,
        write: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), LedgerError> {
        let (done, outcome) = oneshot::channel();
        let job = Job { step, write: Box::new(write), done };
        self.jobs.send(Order::Write(job)).await.map_err(|_| LedgerError::Closed)?;
        outcome.await.map_err(|_| LedgerError::Closed)?
    }

    /// Lets the thread finish what is queued and close the file. Later writes fail with [`LedgerError::Closed`].
    pub(crate) async fn close(&self) {
        // An error means that it is closed.
        drop(self.jobs.send(Order::Close).await);
    }

    /// Writes a sandbox's row, new or not.
    pub(crate) async fn put(&self, row: Row) -> Result<(), LedgerError> {
        self.write("store a sandbox", move |connection| put(connection, &row)).await
    }

    /// Removes a sandbox's row and remembers how it ended, in one transaction.
    pub(crate) async fn end(&self, end: End) -> Result<(), LedgerError> {
        self.write("end a sandbox", move |connection| {
            connection.execute("DELETE FROM sandboxes WHERE id = ?1", [&end.id])?;
            connection.execute(
                "INSERT OR REPLACE INTO ends (id, reason, at_us) VALUES (?1, ?2, ?3)",
                params![end.id, end.reason, end.at.micros()],
            )?;
            connection.execute("DELETE FROM ends WHERE seq <= (SELECT MAX(seq) FROM ends) - ?1", [ENDS_KEPT])?;
            Ok(())
        })
        .await
    }

    /// Records that a snapshot is being made.
    pub(crate) async fn begin_snapshot(&self, id: String, source: String, at: Wall) -> Result<(), LedgerError> {
        self.write("begin a snapshot", move |connection| {
            connection.execute(
                "INSERT INTO snapshots (id, source, created_us, layers) VALUES (?1, ?2, ?3, NULL)",
                params![id, source, at.micros()],
            )?;
            Ok(())
        })
        .await
    }

    /// Records a snapshot that is complete; its name now means this one, and `replaced` is forgotten.
    pub(crate) async fn finish_snapshot(
        &self,
        snapshot: Snapshot,
        replaced: Option<String>,
    ) -> Result<(), LedgerError> {
        let layers = serde_json::to_string(&snapshot.layers).expect("a list of texts is JSON");
        self.write("finish a snapshot", move |connection| {
            connection.execute("UPDATE snapshots SET layers = ?2 WHERE id = ?1", params![snapshot.id, layers])?;
            if let Some((name, tag)) = &snapshot.name {
                connection.execute(
                    "INSERT OR REPLACE INTO names (name, tag, snapshot) VALUES (?1, ?2, ?3)",
                    params![name, tag, snapshot.id],
                )?;
            }
            if let Some(replaced) = replaced {
                connection.execute("DELETE FROM snapshots WHERE id = ?1", [replaced])?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets a snapshot and its name.
    pub(crate) async fn delete_snapshot(&self, id: String) -> Result<(), LedgerError> {
        self.write("delete a snapshot", move |connection| {
            connection.execute("DELETE FROM names WHERE snapshot = ?1", [&id])?;
            connection.execute("DELETE FROM snapshots WHERE id = ?1", [&id])?;
            Ok(())
        })
        .await
    }
}

fn serve(connection: &Connection, mut inbox: mpsc::Receiver<Order>) {
    let mut open = true;
    while open && let Some(Order::Write(first)) = inbox.blocking_recv() {
        let mut jobs = vec![first];
        while jobs.len() < BATCH
            && let Ok(order) = inbox.try_recv()
        {
            match order {
                Order::Write(job) => jobs.push(job),
                Order::Close => {
                    open = false;
                    break;
                }
            }
        }
        let mut outcomes = Vec::with_capacity(jobs.len());
        let committed = connection.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
            for job in jobs {
                let outcome = in_savepoint(connection, job.write).map_err(LedgerError::database(job.step));
                outcomes.push((job.done, outcome));
            }
            connection.execute_batch("COMMIT")
        });
        if let Err(error) = &committed {
            tracing::error!(error = %error, "the ledger could not commit");
            if !connection.is_autocommit()
                && let Err(error) = connection.execute_batch("ROLLBACK")
            {
                tracing::error!(error = %error, "the ledger could not roll back");
            }
        }
        for (done, outcome) in outcomes {
            let outcome = match &committed {
                Ok(()) => outcome,
                Err(error) => Err(LedgerError::Database { step: "commit", message: error.to_string() }),
            };
            // A writer that went away does not care.
            drop(done.send(outcome));
        }
    }
}

fn in_savepoint(connection: &Connection, write: Write) -> rusqlite::Result<()> {
    connection.execute_batch("SAVEPOINT one")?;
    let outcome = write(connection);
    if outcome.is_err() {
        connection.execute_batch("ROLLBACK TO one")?;
    }
    connection.execute_batch("RELEASE one")?;
    outcome
}

fn put(connection: &Connection, row: &Row) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO sandboxes (id, stage, started_us, ends_us, generation, process, boot_id, reason, kept, session, origin)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (id) DO UPDATE SET stage = ?2, started_us = ?3, ends_us = ?4, generation = ?5, process = ?6,
           boot_id = ?7, reason = ?8, kept = ?9, session = ?10",
        params![
            row.origin.id.as_str(),
            row.stage.name(),
            row.started_at.micros(),
            row.ends_at.micros(),
            i64::try_from(row.generation).unwrap_or(i64::MAX),
            row.process.as_ref().map(json),
            row.boot_id,
            row.reason,
            row.kept,
            row.session,
            json(&row.origin),
        ],
    )?;
    Ok(())
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("our own records hold texts, numbers and maps of texts only")
}

fn read(connection: &Connection) -> Result<Content, LedgerError> {
    let mut content = Content::default();
    let failed = LedgerError::database("read");
    let mut statement = connection
        .prepare(
            "SELECT id, stage, started_us, ends_us, generation, process, boot_id, reason, kept, session, origin FROM sandboxes
             ORDER BY started_us",
        )
        .map_err(&failed)?;
    let mut rows = statement.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let id: String = row.get(0).map_err(&failed)?;
        let damaged = |message: String| LedgerError::Damaged { id: id.clone(), message };
        let stage: String = row.get(1).map_err(&failed)?;
        let origin: String = row.get(10).map_err(&failed)?;
        let origin: Origin = serde_json::from_str(&origin).map_err(|error| damaged(error.to_string()))?;
        let process: Option<String> = row.get(5).map_err(&failed)?;
        let process = process
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error: serde_json::Error| damaged(error.to_string()))?;
        content.sandboxes.push(Row {
            origin,
            stage: Stage::parse(&stage).ok_or_else(|| damaged(format!("unknown stage {stage:?}")))?,
            started_at: Wall::from_micros(row.get(2).map_err(&failed)?),
            ends_at: Wall::from_micros(row.get(3).map_err(&failed)?),
            generation: u64::try_from(row.get::<_, i64>(4).map_err(&failed)?).unwrap_or(0),
            process,
            boot_id: row.get(6).map_err(&failed)?,
            reason: row.get(7).map_err(&failed)?,
            kept: row.get(8).map_err(&failed)?,
            session: row.get(9).map_err(&failed)?,
        });
    }
    read_snapshots(connection, &mut content)?;
    let mut statement = connection.prepare("SELECT id, reason, at_us FROM ends ORDER BY seq").map_err(&failed)?;
    let ends = statement
        .query_map([], |row| Ok(End { id: row.get(0)?, reason: row.get(1)?, at: Wall::from_micros(row.get(2)?) }))
        .map_err(&failed)?;
    content.ends = ends.collect::<Result<_, _>>().map_err(&failed)?;
    Ok(content)
}

fn read_snapshots(connection: &Connection, content: &mut Content) -> Result<(), LedgerError> {
    let failed = LedgerError::database("read snapshots");
    let mut statement = connection
        .prepare("SELECT id, source, created_us, layers FROM snapshots ORDER BY created_us")
        .map_err(&failed)?;
    let mut rows = statement.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let id: String = row.get(0).map_err(&failed)?;
        let layers: Option<String> = row.get(3).map_err(&failed)?;
        let Some(layers) = layers else {
            content.unfinished_snapshots.push(id);
            continue;
        };
        let layers = serde_json::from_str(&layers)
            .map_err(|error| LedgerError::Damaged { id: id.clone(), message: error.to_string() })?;
        let name = connection
            .query_row("SELECT name, tag FROM names WHERE snapshot = ?1", [&id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(&failed)?;
        content.snapshots.push(Snapshot {
            id,
            source: row.get(1).map_err(&failed)?,
            created_at: Wall::from_micros(row.get(2).map_err(&failed)?),
            layers,
            name,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
