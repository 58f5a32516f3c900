//! Routes about sandboxes. Handlers translate, ask the owner, and translate back.
//!
//! A client that leaves ends its own wait only: create, pause, resume, snapshot and kill are finished by the owner task.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State as Shared};
use axum::response::IntoResponse;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::sync::oneshot;

use super::error::{ApiError, ApiResult};
use super::list::{Key, Query, page};
use super::wire::{Attach, Detail, Listed, NewSandbox, PauseRequest, RefreshRequest, Sandbox, TimeoutRequest};
use super::{body, create};
use crate::api::create::Generation;
use crate::ids::SandboxId;
use crate::owner::{Beginning, Boot, Owner, Subject};
use crate::record::View;
use crate::transition::{Answer, EndReason, Event, Lifecycle, Memory, State};
use crate::wall::Wall;
use crate::world::{Entry, World};

/// The header that ties a new sandbox to an open session.
pub(crate) const SESSION_HEADER: &str = "leasehold-session";

/// Seconds that `refreshes` adds when it does not say (E2B's v1 default).
const REFRESH_SECONDS: i64 = 15;

/// Seconds that connect and resume give when they do not say (E2B's v2 and v1 defaults).
const CONNECT_SECONDS: i64 = 300;

pub(crate) fn find(world: &World, id: &str) -> ApiResult<(SandboxId, Arc<Entry>)> {
    let id = SandboxId::parse(id).ok_or_else(|| ApiError::bad("Invalid sandbox ID"))?;
    let entry = world.find(&id).ok_or_else(|| ApiError::no_sandbox(&id))?;
    Ok((id, entry))
}

pub(crate) async fn create_v1(
    Shared(world): Shared<Arc<World>>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<impl IntoResponse> {
    create(&world, &headers, body, Generation::V1).await
}

pub(crate) async fn create_v2(
    Shared(world): Shared<Arc<World>>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<impl IntoResponse> {
    create(&world, &headers, body, Generation::V2).await
}

async fn create(
    world: &Arc<World>,
    headers: &HeaderMap,
    body: Body,
    generation: Generation,
) -> ApiResult<(StatusCode, Json<Sandbox>)> {
    if headers.contains_key("idempotency-key") {
        return Err(ApiError::unsupported("the Idempotency-Key header", " yet"));
    }
    let session = session(headers)?;
    let new: NewSandbox = body::required(body).await?;
    let origin = create::origin(world, new, generation)?;
    // No await from here to the owner: what was pinned and taken has its owner then.
    let slot = match world.take_slot() {
        Ok(slot) => slot,
        Err(failure) => {
            world.shelf.unpin(&origin.layers);
            return Err(ApiError::failed(&failure));
        }
    };
    if let Some(session) = session
        && !world.sessions.adopt(session, &origin.id)
    {
        world.shelf.unpin(&origin.layers);
        return Err(ApiError::conflict("the session named by Leasehold-Session is not open (any more)"));
    }
    let now = Wall::now();
    let life = Lifecycle {
        state: State::Creating,
        ends_at: now.plus_seconds(origin.timeout_s),
        on_timeout: origin.on_timeout(),
        auto_resume: origin.auto_resume,
        timeout_s: origin.timeout_s,
        kept: false,
        doomed: None,
    };
    let origin = Arc::new(origin);
    let subject = Subject {
        world: Arc::clone(world),
        origin: Arc::clone(&origin),
        started_at: now,
        boot: Boot { generation: 1, boot_id: None, process: None },
        kept: false,
        session: session.is_some(),
    };
    let (initiator, told) = oneshot::channel();
    Owner::spawn(Beginning { subject, life, alive: None, slot: Some(slot), initiator: Some(initiator) });
    if let Some(session) = session
        && !world.sessions.adopt(session, &origin.id)
        && let Some(entry) = world.find(&origin.id)
    {
        // The session ended before the sandbox could be found by its clean-up.
        world.ask(&entry, Event::Kill(EndReason::SessionEnded)).await;
        return Err(ApiError::conflict("the session named by Leasehold-Session ended"));
    }
    match told.await.map(|told| told.answer) {
        Ok(Answer::Done) => Ok((StatusCode::CREATED, Json(Sandbox::of(&origin, &world.settings)))),
        Ok(answer) => Err(ApiError::from_answer(answer, &origin.id, "created")),
        Err(_) => Err(ApiError::conflict(format!("Sandbox \"{}\" is being killed", origin.id))),
    }
}

fn session(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    headers
        .get(SESSION_HEADER)
        .map(|value| value.to_str().map_err(|_| ApiError::bad("Leasehold-Session is not text")))
        .transpose()
}

pub(crate) async fn connect(
    Shared(world): Shared<Arc<World>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<impl IntoResponse> {
    let (id, entry) = find(&world, &id)?;
    if let Some(session) = session(&headers)?
        && entry.view().life.kept
        && !world.sessions.note_use(session, &id)
    {
        return Err(ApiError::conflict("the session named by Leasehold-Session is not open (any more)"));
    }
    let (timeout_s, memory) = attach(&world, body).await?;
    let told = world.ask(&entry, Event::Connect { timeout_s, memory }).await;
    attached(&world, &entry, &id, told.answer)
}

pub(crate) async fn resume(
    Shared(world): Shared<Arc<World>>,
    Path(id): Path<String>,
    body: Body,
) -> ApiResult<impl IntoResponse> {
    let (id, entry) = find(&world, &id)?;
    let (timeout_s, memory) = attach(&world, body).await?;
    let told = world.ask(&entry, Event::Resume { timeout_s, memory }).await;
    attached(&world, &entry, &id, told.answer)
}

async fn attach(world: &World, body: Body) -> ApiResult<(i64, Memory)> {
    let request: Attach = body::optional(body).await?.unwrap_or_default();
    if request.auto_pause.is_some() {
        return Err(ApiError::unsupported("autoPause", " on connect and resume: it is set once, at creation"));
    }
    let timeout_s = create::timeout(request.timeout.unwrap_or(CONNECT_SECONDS), world.settings.max_timeout_s)?;
    let memory = if request.memory == Some(false) { Memory::Drop } else { Memory::Keep };
    Ok((timeout_s, memory))
}

fn attached(world: &World, entry: &Entry, id: &SandboxId, answer: Answer) -> ApiResult<(StatusCode, Json<Sandbox>)> {
    match answer {
        Answer::Running { resumed } => {
            let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, Json(Sandbox::of(&entry.view().origin, &world.settings))))
        }
        other => Err(ApiError::from_answer(other, id, "connected to")),
    }
}

pub(crate) async fn detail(Shared(world): Shared<Arc<World>>, Path(id): Path<String>) -> ApiResult<impl IntoResponse> {
    let (id, entry) = find(&world, &id)?;
    Detail::of(&entry.view(), &world.settings).map(Json).ok_or_else(|| ApiError::no_sandbox(&id))
}

pub(crate) async fn kill(Shared(world): Shared<Arc<World>>, Path(id): Path<String>) -> ApiResult<StatusCode> {
    let (id, entry) = find(&world, &id)?;
    match world.ask(&entry, Event::Kill(EndReason::Killed)).await.answer {
        Answer::Done => Ok(StatusCode::NO_CONTENT),
        other => Err(ApiError::from_answer(other, &id, "killed")),
    }
}

pub(crate) async fn pause(
    Shared(world): Shared<Arc<World>>,
    Path(id): Path<String>,
    body: Body,
) -> ApiResult<StatusCode> {
    let (id, entry) = find(&world, &id)?;
    let request: PauseRequest = body::optional(body).await?.unwrap_or_default();
    if request.require_healthy_guest == Some(true) {
        return Err(ApiError::unsupported("requireHealthyGuest", " yet; leave it out"));
    }
    let memory = if request.memory == Some(false) { Memory::Drop } else { Memory::Keep };
    match world.ask(&entry, Event::Pause { memory }).await.answer {
        Answer::Done => Ok(StatusCode::NO_CONTENT),
        other => Err(ApiError::from_answer(other, &id, "paused")),
    }
}

pub(crate) async fn set_timeout(
    Shared(world): Shared<Arc<World>>,
    Path(id): Path<String>,
    body: Body,
) -> ApiResult<StatusCode> {
    let (id, entry) = find(&world, &id)?;
    let request: TimeoutRequest = body::required(body).await?;
    let timeout_s = create::new_timeout(request.timeout, world.settings.max_timeout_s)?;
    match world.ask(&entry, Event::SetTimeout { timeout_s }).await.answer {
        Answer::Done => Ok(StatusCode::NO_CONTENT),
        other => Err(ApiError::from_answer(other, &id, "given a timeout")),
    }
}

pub(crate) async fn refresh(
    Shared(world): Shared<Arc<World>>,
    Path(id): Path<String>,
    body: Body,
) -> ApiResult<StatusCode> {
    let (id, entry) = find(&world, &id)?;
    let request: RefreshRequest = body::optional(body).await?.unwrap_or_default();
    let timeout_s = create::timeout(request.duration.unwrap_or(REFRESH_SECONDS), world.settings.max_timeout_s)?;
    match world.ask(&entry, Event::Refresh { timeout_s }).await.answer {
        Answer::Done => Ok(StatusCode::NO_CONTENT),
        other => Err(ApiError::from_answer(other, &id, "refreshed")),
    }
}

pub(crate) async fn list_v2(Shared(world): Shared<Arc<World>>, RawQuery(query): RawQuery) -> ApiResult<Response<Body>> {
    let query = Query::parse(query.as_deref());
    let (states, limit, order, after) = (query.states()?, query.limit()?, query.order()?, query.after()?);
    let started_after = query.started_after()?;
    let wanted = |view: &View| {
        view.shown_state().is_some_and(|state| states.as_ref().is_none_or(|states| states.contains(&state)))
            && started_after.is_none_or(|after| view.started_at > after)
            && query.get("template").is_none_or(|template| view.origin.template_id == template)
    };
    let entries = listed(&world, &query.metadata(), wanted);
    let running = world.entries().iter().filter(|entry| entry.view().shown_state() == Some("running")).count();
    let (entries, next) = page(entries, order, after.as_ref(), limit);
    let mut response = Json(entries).into_response();
    response.headers_mut().insert("x-total-running", HeaderValue::from(running));
    if let Some(next) = next {
        let next = HeaderValue::try_from(next).expect("base64 is a header value");
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

pub(crate) async fn list_v1(
    Shared(world): Shared<Arc<World>>,
    RawQuery(query): RawQuery,
) -> ApiResult<impl IntoResponse> {
    let query = Query::parse(query.as_deref());
    let entries = listed(&world, &query.metadata(), |view| view.shown_state() == Some("running"));
    let (entries, _) = page(entries, super::list::Order::NewestFirst, None, usize::MAX);
    Ok(Json(entries))
}

fn listed(world: &World, metadata: &[(String, String)], wanted: impl Fn(&View) -> bool) -> Vec<(Key, Listed)> {
    let mut listed = Vec::new();
    for entry in world.entries() {
        let view = entry.view();
        let matches = metadata.iter().all(|(key, value)| view.origin.metadata.get(key) == Some(value));
        if matches
            && wanted(&view)
            && let Some(entry) = Listed::of(&view, &world.settings)
        {
            listed.push((Key { at: view.started_at, id: view.origin.id.to_string() }, entry));
        }
    }
    listed
}
