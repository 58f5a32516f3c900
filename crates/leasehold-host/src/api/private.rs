//! Our own routes, under `/leasehold/v1/`: sessions, keeping, information, shutdown.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State as Shared};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use serde::Serialize;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::error::{ApiError, ApiResult};
use super::sandboxes;
use crate::listen::Via;
use crate::port::{EngineFacts, Usage};
use crate::record::View;
use crate::transition::{Answer, Event, Paused, State, outlives_processes};
use crate::world::World;

fn only_unix(via: Via) -> ApiResult<()> {
    match via {
        Via::Unix => Ok(()),
        Via::Tcp => Err(ApiError::new(StatusCode::FORBIDDEN, "only on the host's Unix socket")),
    }
}

/// Ends its session when dropped, that is when the client's connection ends.
struct SessionBody {
    world: Arc<World>,
    id: String,
    first: Option<Bytes>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl http_body::Body for SessionBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.closing.as_mut().poll(cx).map(|()| None)
    }
}

impl Drop for SessionBody {
    fn drop(&mut self) {
        self.world.end_session(&self.id);
    }
}

pub(crate) async fn open_session(
    Shared(world): Shared<Arc<World>>,
    Extension(via): Extension<Via>,
) -> ApiResult<Response<Body>> {
    only_unix(via)?;
    let id = world.sessions.open();
    let first = Bytes::from(format!("{{\"session\":\"{id}\"}}\n"));
    let closing = Box::pin(world.closing.clone().cancelled_owned());
    let mut response = Response::new(Body::new(SessionBody { world, id, first: Some(first), closing }));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// Takes a sandbox out of its session: it outlives its client, and its files outlive its processes.
pub(crate) async fn keep(Shared(world): Shared<Arc<World>>, Path(id): Path<String>) -> ApiResult<StatusCode> {
    let (id, entry) = sandboxes::find(&world, &id)?;
    match world.ask(&entry, Event::Keep).await.answer {
        Answer::Done => {
            world.sessions.keep(&id);
            Ok(StatusCode::NO_CONTENT)
        }
        other => Err(ApiError::from_answer(other, &id, "kept")),
    }
}

pub(crate) async fn shutdown(
    Shared(world): Shared<Arc<World>>,
    Extension(via): Extension<Via>,
) -> ApiResult<StatusCode> {
    only_unix(via)?;
    world.closing.cancel();
    Ok(StatusCode::ACCEPTED)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    version: &'static str,
    pid: u32,
    data_dir: String,
    domain: String,
    engine: EngineFacts,
    max_running: usize,
    sandboxes: Counts,
    sessions: usize,
    snapshots: usize,
    /// What sandboxes of this host cannot do, for people.
    limitations: [&'static str; 2],
}

#[derive(Serialize, Default)]
struct Counts {
    running: usize,
    paused: usize,
    kept: usize,
}

pub(crate) async fn info(Shared(world): Shared<Arc<World>>) -> impl IntoResponse {
    let mut counts = Counts::default();
    for entry in world.entries() {
        let view = entry.view();
        counts.running += usize::from(view.shown_state() == Some("running"));
        counts.paused += usize::from(view.shown_state() == Some("paused"));
        counts.kept += usize::from(view.life.kept);
    }
    Json(Info {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        data_dir: world.settings.data_dir.display().to_string(),
        domain: world.settings.domain.clone(),
        engine: world.engine.facts(),
        max_running: world.settings.max_running,
        sandboxes: counts,
        sessions: world.sessions.count(),
        snapshots: world.shelf.list().len(),
        limitations: [
            "sandboxes have a loopback network only: allow_internet_access=true is accepted and reaches nothing",
            "snapshots hold files, not memory: what is made from one boots cold",
        ],
    })
}

/// What this host knows of one sandbox beyond E2B's answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    state: &'static str,
    engine: String,
    engine_version: String,
    isolation: String,
    degraded: Vec<String>,
    #[serde(rename = "bootID")]
    boot_id: Option<String>,
    /// Counts boots, from 1.
    generation: u64,
    /// `live`, `frozen` or `gone`.
    memory: &'static str,
    /// Why memory is gone, if nobody asked for that.
    memory_lost: Option<String>,
    kept: bool,
    end_at: String,
    survives: Survives,
    usage: Usage,
}

/// What is still there afterwards.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Survives {
    host_crash: &'static str,
    machine_crash: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    state: &'static str,
    reason: String,
    ended_at: String,
}

fn survives(view: &View, in_session: bool) -> Survives {
    let cold = matches!(view.life.state, State::Paused(Paused::Cold { .. }));
    let paused = matches!(view.life.state, State::Paused(_));
    let files = if outlives_processes(&view.life) || paused { "files" } else { "nothing" };
    Survives {
        host_crash: match (in_session, cold) {
            (true, _) => "nothing",
            (false, true) => "files",
            (false, false) => "memory and files",
        },
        machine_crash: if in_session { "nothing" } else { files },
    }
}

pub(crate) async fn known(Shared(world): Shared<Arc<World>>, Path(id): Path<String>) -> ApiResult<Response<Body>> {
    let (id, entry) = match sandboxes::find(&world, &id) {
        Ok(found) => found,
        Err(error) => {
            let end = world.end_of(&id).ok_or(error)?;
            let ended = Ended { sandbox_id: end.id, state: "ended", reason: end.reason, ended_at: end.at.to_string() };
            return Ok(Json(ended).into_response());
        }
    };
    let view = entry.view();
    let name = id.to_string();
    let usage = world.engine(move |engine| engine.usage(&name)).await.unwrap_or_default();
    let facts = world.engine.facts();
    let (memory, memory_lost) = match &view.life.state {
        State::Paused(Paused::Frozen) => ("frozen", None),
        State::Paused(Paused::Cold { lost }) => ("gone", lost.clone()),
        _ => ("live", None),
    };
    let known = Known {
        sandbox_id: id.to_string(),
        state: view.life.state.name(),
        engine: facts.name,
        engine_version: facts.version,
        isolation: facts.isolation,
        degraded: facts.degraded,
        boot_id: view.boot_id.clone(),
        generation: view.generation,
        memory,
        memory_lost,
        kept: view.life.kept,
        end_at: view.life.ends_at.to_string(),
        survives: survives(&view, world.sessions.holds(&id)),
        usage,
    };
    Ok(Json(known).into_response())
}
