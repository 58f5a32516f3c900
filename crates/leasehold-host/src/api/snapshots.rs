//! Routes about snapshots. A snapshot here holds files: what is made from it boots cold.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State as Shared};
use axum::response::IntoResponse;
use http::{HeaderValue, Response, StatusCode};

use super::error::{ApiError, ApiResult};
use super::list::{Key, Order, Query, page};
use super::wire::{SnapshotInfo, SnapshotRequest};
use super::{body, create, sandboxes};
use crate::ids::{NAMESPACE, TemplateRef};
use crate::transition::{Answer, Event};
use crate::world::World;

pub(crate) async fn create(
    Shared(world): Shared<Arc<World>>,
    Path(id): Path<String>,
    body: Body,
) -> ApiResult<impl IntoResponse> {
    let (id, entry) = sandboxes::find(&world, &id)?;
    let request: SnapshotRequest = body::optional(body).await?.unwrap_or_default();
    if request.memory == Some(true) {
        return Err(ApiError::unsupported("memory=true", " yet: its snapshots hold files; leave it out"));
    }
    let name = request.name.map(|name| self::name(&name)).transpose()?;
    let told = world.ask_named(&entry, Event::Snapshot, name).await;
    match (told.answer, told.snapshot) {
        (Answer::Done, Some(snapshot)) => Ok((StatusCode::CREATED, Json(SnapshotInfo::from(&snapshot)))),
        (answer, _) => Err(ApiError::from_answer(answer, &id, "snapshotted")),
    }
}

fn name(text: &str) -> ApiResult<(String, String)> {
    let reference =
        TemplateRef::parse(text).map_err(|why| ApiError::bad(format!("Invalid snapshot name: {text:?}: {why}")))?;
    if reference.namespace.as_deref().is_some_and(|namespace| namespace != NAMESPACE) {
        return Err(ApiError::bad(format!("Invalid snapshot name: {text:?}: the namespace here is {NAMESPACE}")));
    }
    if create::BUILT_IN.contains(&reference.name.as_str()) {
        return Err(ApiError::bad(format!("Invalid snapshot name: {text:?} is the name of a built-in template")));
    }
    Ok((reference.name, reference.tag))
}

pub(crate) async fn list(Shared(world): Shared<Arc<World>>, RawQuery(query): RawQuery) -> ApiResult<Response<Body>> {
    let query = Query::parse(query.as_deref());
    let (limit, after) = (query.limit()?, query.after()?);
    let named = query.get("name").map(str::to_owned);
    let named = named.as_deref();
    // A name that cannot be one is the name of none.
    let reference = named.and_then(|name| TemplateRef::parse(name).ok());
    let entries = world
        .shelf
        .list()
        .into_iter()
        .filter(|snapshot| query.get("sandboxID").is_none_or(|source| snapshot.source == source))
        .filter(|snapshot| {
            named.is_none_or(|text| {
                let (Some(wanted), Some((name, tag))) = (&reference, &snapshot.name) else { return false };
                let namespace = wanted.namespace.as_deref().is_none_or(|namespace| namespace == NAMESPACE);
                namespace && wanted.name == *name && (!text.contains(':') || wanted.tag == *tag)
            })
        })
        .map(|snapshot| {
            let key = Key { at: snapshot.created_at, id: snapshot.id.clone() };
            (key, SnapshotInfo::from(&snapshot))
        })
        .collect();
    let (entries, next) = page(entries, Order::NewestFirst, after.as_ref(), limit);
    let mut response = Json(entries).into_response();
    if let Some(next) = next {
        let next = HeaderValue::try_from(next).expect("base64 is a header value");
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

/// Deletes a snapshot. What was made from it lives on: layers go with their last user. (E2B refuses while sandboxes are based
/// on it; the contract wants derived Bindings untouched and the deletion repeatable, which this gives.)
pub(crate) async fn delete(Shared(world): Shared<Arc<World>>, Path(id): Path<String>) -> ApiResult<StatusCode> {
    let reference = create::reference(&id)?;
    if create::is_built_in(&reference) {
        return Err(ApiError::bad(format!("template '{id}' is built in and cannot be deleted")));
    }
    let snapshot = world.shelf.find(&reference).ok_or_else(|| ApiError::no_template(&id))?;
    let task = {
        let world = Arc::clone(&world);
        async move {
            world.ledger.delete_snapshot(snapshot.id.clone()).await?;
            // Of two deletions at once, one takes it.
            if let Some(snapshot) = world.shelf.take(&snapshot.id) {
                let unneeded = world.shelf.unpin(&snapshot.layers);
                world.discard_layers(unneeded).await;
            }
            Ok::<_, crate::ledger::LedgerError>(())
        }
    };
    // Finished also when the client goes away.
    match world.tasks.spawn(task).await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(error)) => Err(ApiError::failed(&error.into())),
        Err(error) => Err(ApiError::failed(&crate::port::Failure::internal(error.to_string()))),
    }
}
