//! After a restart: the ledger's rows against what is really there.
//!
//! | row | process runs | it does not |
//! | --- | --- | --- |
//! | creating, killing | destroyed | destroyed |
//! | running | adopted | kept or made to pause: files only, with the reason; else destroyed |
//! | frozen | adopted and frozen again | files only, with the reason |
//! | stopping, booting | stopped, files only | files only |
//! | cold | – | files only |
//! | of a client's session | destroyed: the client lost its host | destroyed |
//!
//! Whatever the engine finds of sandboxes without a row is removed, and so are layers and snapshots that were half made.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ledger::{Content, End, LedgerError};
use crate::owner::{Alive, Beginning, Boot, Owner, Subject};
use crate::port::Failure;
use crate::record::{Row, Stage, View};
use crate::transition::{Paused, State, outlives_processes};
use crate::wall::Wall;
use crate::world::World;

/// Brings world and ledger together. Trouble with one sandbox is logged and left to the next start.
///
/// # Errors
/// When the ledger cannot be written.
pub(crate) async fn reconcile(world: &Arc<World>, content: Content) -> Result<(), LedgerError> {
    let known: HashSet<String> = content.sandboxes.iter().map(|row| row.origin.id.to_string()).collect();
    remove_strangers(world, &known).await;
    for snapshot in content.unfinished_snapshots {
        world.ledger.delete_snapshot(snapshot).await?;
    }
    for snapshot in content.snapshots {
        world.shelf.put(snapshot);
    }
    for row in &content.sandboxes {
        world.shelf.pin(&row.origin.layers);
    }
    for row in content.sandboxes {
        let id = row.origin.id.clone();
        if let Err(error) = settle(world, row).await {
            tracing::error!(sandbox.id = %id, error = %error, "a sandbox of an earlier host could not be settled");
        }
    }
    discard_unknown_layers(world).await;
    Ok(())
}

async fn remove_strangers(world: &World, known: &HashSet<String>) {
    let found = match world.engine(|engine| engine.leftovers()).await {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(error = %error, "what earlier hosts left cannot be listed");
            return;
        }
    };
    for id in found.into_iter().filter(|id| !known.contains(id)) {
        tracing::warn!(sandbox.id = id, "removing what is left of a sandbox without a record");
        let removed = world.engine(move |engine| engine.stop(&id, None).and_then(|()| engine.remove(&id))).await;
        if let Err(error) = removed {
            tracing::error!(error = %error, "it could not be removed");
        }
    }
}

/// What becomes of a row.
enum Fate {
    Adopted(Alive),
    Cold { lost: Option<String> },
    Gone { reason: String },
}

async fn settle(world: &Arc<World>, mut row: Row) -> Result<(), Failure> {
    match fate(world, &row).await? {
        Fate::Gone { reason } => destroy(world, &row, reason).await,
        Fate::Cold { lost } => {
            stop(world, &row).await?;
            row.process = None;
            if row.stage != Stage::Cold {
                row.ends_at = row.ends_at.min(Wall::now());
            }
            row.stage = Stage::Cold;
            row.reason.clone_from(&lost);
            world.ledger.put(row.clone()).await?;
            take_over(world, &row, State::Paused(Paused::Cold { lost }), None);
            Ok(())
        }
        Fate::Adopted(alive) => {
            let id = row.origin.id.as_str().to_owned();
            let frozen = row.stage == Stage::Frozen;
            // The step that the row announces is repeated: it may not have been taken.
            world.engine(move |engine| if frozen { engine.pause(&id) } else { engine.resume(&id) }).await?;
            let state = if frozen { State::Paused(Paused::Frozen) } else { State::Running };
            take_over(world, &row, state, Some(alive));
            Ok(())
        }
    }
}

async fn fate(world: &Arc<World>, row: &Row) -> Result<Fate, Failure> {
    let gone = |reason: &str| Fate::Gone { reason: reason.to_owned() };
    if row.session && !row.kept {
        return Ok(gone("the client that made it lost its host"));
    }
    let asked_cold = || Ok(Fate::Cold { lost: row.reason.clone() });
    match row.stage {
        Stage::Creating => Ok(gone("the host ended while it was being created")),
        Stage::Killing => Ok(gone(row.reason.as_deref().unwrap_or("killed"))),
        Stage::Cold | Stage::Stopping => asked_cold(),
        Stage::Booting => Ok(Fate::Cold { lost: Some("the host ended while it was starting".to_owned()) }),
        Stage::Running | Stage::Frozen => {
            let adopted = match row.process {
                Some(process) => {
                    let id = row.origin.id.as_str().to_owned();
                    world.engine(move |engine| engine.adopt(&id, process)).await?
                }
                None => None,
            };
            if let Some(running) = adopted {
                let alive = Alive::new(running)
                    .map_err(|error| Failure::internal(format!("its process cannot be watched: {error}")))?;
                return Ok(Fate::Adopted(alive));
            }
            let lost = "its processes were gone when the host started again";
            let life = View::lifecycle(row, State::Running);
            if row.stage == Stage::Frozen || outlives_processes(&life) {
                Ok(Fate::Cold { lost: Some(lost.to_owned()) })
            } else {
                Ok(gone(lost))
            }
        }
    }
}

async fn stop(world: &World, row: &Row) -> Result<(), Failure> {
    let id = row.origin.id.as_str().to_owned();
    let process = row.process;
    world.engine(move |engine| engine.stop(&id, process)).await
}

async fn destroy(world: &World, row: &Row, reason: String) -> Result<(), Failure> {
    stop(world, row).await?;
    let id = row.origin.id.as_str().to_owned();
    world.engine(move |engine| engine.remove(&id)).await?;
    let end = End { id: row.origin.id.to_string(), reason, at: Wall::now() };
    world.ledger.end(end.clone()).await?;
    world.unregister(&row.origin.id, end);
    world.shelf.unpin(&row.origin.layers);
    Ok(())
}

fn take_over(world: &Arc<World>, row: &Row, state: State, alive: Option<Alive>) {
    let slot = if state == State::Running { world.take_slot_if_any() } else { None };
    let life = View::lifecycle(row, state);
    let boot = Boot { generation: row.generation, boot_id: row.boot_id.clone(), process: row.process };
    let subject = Subject {
        world: Arc::clone(world),
        origin: Arc::new(row.origin.clone()),
        started_at: row.started_at,
        boot,
        kept: row.kept,
        session: false,
    };
    Owner::spawn(Beginning { subject, life, alive, slot, initiator: None });
}

/// Layers on disk that no snapshot and no sandbox needs: made by snapshots that were never finished.
async fn discard_unknown_layers(world: &World) {
    let directory = world.settings.data_dir.join("layers");
    let names = match std::fs::read_dir(&directory) {
        Ok(entries) => entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()),
        Err(error) => {
            tracing::error!(error = %error, "stored layers cannot be listed");
            return;
        }
    };
    let layers = names.filter_map(|name| name.strip_suffix(".tar").map(|hex| format!("sha256:{hex}"))).collect();
    world.discard_layers(layers).await;
}
