//! Proxying: one request into a sandbox, its answer out, streaming both ways.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::answer::{self, TRAFFIC_TOKEN_HEADER};
use super::link::MAX_CONNECTIONS;
use super::route::{ENVD_PORT, SHELLCTL_PORT};
use super::stream::Stream;
use crate::guest_control::{self, DialError};
use crate::ids::SandboxId;
use crate::port::{Door, FailureKind};
use crate::secret::Secret;
use crate::transition::{Answer, Event, State};
use crate::world::{Entry, World};

/// How long a request waits for a change of state to end before it is told to come again. Chosen: snapshots and resumes
/// are shorter.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of a response head, or buffered of a body, per connection. Chosen.
const MAX_BUFFER: usize = 256 * 1024;

/// Headers of one hop, which are not passed on.
const HOP_HEADERS: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("te"),
    HeaderName::from_static("trailer"),
    HeaderName::from_static("transfer-encoding"),
];

/// Paths of envd that only the host may call.
const RESERVED: [&str; 7] = ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsunfreeze", "/prepare", "/reload"];

/// Serves a request for `port` of sandbox `id`. `api_key` is this host's own, which must not reach a sandbox.
pub(crate) async fn serve(
    world: &Arc<World>,
    id: &SandboxId,
    port: u16,
    request: Request<Incoming>,
    api_key: Option<&Secret>,
) -> Response<Body> {
    let Some(entry) = world.find(id) else { return answer::not_found(id) };
    if let Err(refusal) = check_traffic_token(&entry, id, port, request.headers()) {
        return *refusal;
    }
    if port == ENVD_PORT && RESERVED.contains(&request.uri().path().trim_end_matches('/')) {
        return answer::reserved();
    }
    if let Err(refusal) = ready(world, &entry, id).await {
        return *refusal;
    }
    let Some(permit) = entry.link.permit() else { return answer::too_many_connections(id, MAX_CONNECTIONS) };
    let token = entry.link.token();
    let pass = Pass { world: Arc::clone(world), entry, id: id.clone(), port, token: token.clone(), permit };
    let forwarded = pass.forward(request, api_key);
    tokio::select! {
        response = forwarded => response,
        () = token.cancelled() => answer::not_found(id),
    }
}

fn check_traffic_token(
    entry: &Entry,
    id: &SandboxId,
    port: u16,
    headers: &HeaderMap,
) -> Result<(), Box<Response<Body>>> {
    let view = entry.view();
    // envd has a token of its own, checked by the guest.
    let Some(token) = view.origin.traffic_token.as_ref().filter(|_| port != ENVD_PORT) else { return Ok(()) };
    match headers.get(TRAFFIC_TOKEN_HEADER) {
        None => Err(Box::new(answer::token_missing(id))),
        Some(given) if token.matches(given.as_bytes()) => Ok(()),
        Some(_) => Err(Box::new(answer::token_wrong(id))),
    }
}

/// Waits until the sandbox runs; wakes it if traffic may.
async fn ready(world: &Arc<World>, entry: &Arc<Entry>, id: &SandboxId) -> Result<(), Box<Response<Body>>> {
    let view = entry.view();
    let view = if view.life.state == State::Running { view } else { world.settled(entry, SETTLE_LIMIT).await };
    match view.life.state {
        State::Running => Ok(()),
        State::Paused(_) if view.life.auto_resume => match world.ask(entry, Event::AutoResume).await.answer {
            Answer::Running { .. } => Ok(()),
            Answer::Failed(failure) if failure.kind == FailureKind::Capacity => {
                Err(Box::new(answer::no_room(id, &failure.message)))
            }
            Answer::Failed(failure) => {
                tracing::warn!(sandbox.id = %id, error = %failure, "waking a sandbox for traffic failed");
                Err(Box::new(answer::not_found(id)))
            }
            _ => Err(Box::new(answer::not_found(id))),
        },
        State::Paused(_) | State::Killing { .. } | State::Gone(_) => Err(Box::new(answer::not_found(id))),
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => {
            Err(Box::new(answer::in_transition(id)))
        }
    }
}

/// One request on its way through.
struct Pass {
    world: Arc<World>,
    entry: Arc<Entry>,
    id: SandboxId,
    port: u16,
    token: CancellationToken,
    permit: OwnedSemaphorePermit,
}

impl Pass {
    fn door(&self) -> Option<Door> {
        match self.port {
            ENVD_PORT => Some(Door::Envd),
            SHELLCTL_PORT => Some(Door::Shellctl),
            _ => None,
        }
    }

    async fn forward(self, mut request: Request<Incoming>, api_key: Option<&Secret>) -> Response<Body> {
        let upgrade = upgrade_of(request.headers()).cloned();
        let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        prepare(&mut request, upgrade.as_ref(), api_key);
        let mut response = match self.send(request, upgrade.is_some()).await {
            Ok(response) => response,
            Err(refusal) => return *refusal,
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = client else {
                return answer::broken(&self.id, self.port, "the server in the sandbox switched protocols unasked");
            };
            let server = hyper::upgrade::on(&mut response);
            self.tunnel(client, server);
            let (mut parts, _) = response.into_parts();
            clean(&mut parts.headers, upgrade.as_ref());
            return Response::from_parts(parts, Body::empty());
        }
        let (mut parts, body) = response.into_parts();
        clean(&mut parts.headers, None);
        parts.version = Version::HTTP_11;
        let connect =
            parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/connect+"));
        Response::from_parts(parts, Body::new(Stream::new(body, self.token, connect, self.permit)))
    }

    /// Sends over an idle connection if there is one, else over a new one. A request is sent twice only when it certainly
    /// did not leave the first time.
    async fn send(
        &self,
        mut request: Request<Incoming>,
        upgrade: bool,
    ) -> Result<Response<Incoming>, Box<Response<Body>>> {
        if let Some(door) = self.door().filter(|_| !upgrade) {
            while let Some(mut sender) = self.entry.link.take_idle(door) {
                match sender.try_send_request(request).await {
                    Ok(response) => {
                        self.give_back(door, sender);
                        return Ok(response);
                    }
                    Err(mut error) => match error.take_message() {
                        Some(unsent) => request = unsent,
                        None => return Err(Box::new(self.upstream_error(&error.into_error()))),
                    },
                }
            }
        }
        let mut sender = self.connect().await?;
        match sender.send_request(request).await {
            Ok(response) => {
                if let Some(door) = self.door().filter(|_| response.status() != StatusCode::SWITCHING_PROTOCOLS) {
                    self.give_back(door, sender);
                }
                Ok(response)
            }
            Err(error) => Err(Box::new(self.upstream_error(&error))),
        }
    }

    fn upstream_error(&self, error: &hyper::Error) -> Response<Body> {
        tracing::debug!(sandbox.id = %self.id, port = self.port, error = %error, "the server in the sandbox broke off");
        answer::broken(&self.id, self.port, "The server in the sandbox closed the connection without an answer")
    }

    /// Keeps the connection for the next request, once this one's answer was read to the end.
    fn give_back(&self, door: Door, mut sender: SendRequest<Incoming>) {
        let (entry, token) = (Arc::clone(&self.entry), self.token.clone());
        self.world.tasks.spawn(async move {
            tokio::select! {
                ready = sender.ready() => if ready.is_ok() { entry.link.put_idle(door, &token, sender) },
                () = token.cancelled() => {}
            }
        });
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>, Box<Response<Body>>> {
        if let Some(door) = self.door() {
            let engine = Arc::clone(&self.world.engine);
            let id = self.id.as_str().to_owned();
            let connected = tokio::task::spawn_blocking(move || {
                let stream = engine.connect(&id, door)?;
                stream.set_nonblocking(true)?;
                Ok::<_, std::io::Error>(stream)
            });
            let stream = connected.await.map_err(std::io::Error::other).and_then(|stream| stream);
            return match stream.and_then(UnixStream::from_std) {
                Ok(stream) => self.handshake(stream).await,
                Err(error) => {
                    tracing::debug!(sandbox.id = %self.id, port = self.port, error = %error, "a guest's socket is not open");
                    Err(Box::new(answer::port_closed(&self.id, self.port)))
                }
            };
        }
        match guest_control::dial(&self.world, &self.id, self.port).await {
            Ok(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(error = %error, "TCP_NODELAY");
                }
                self.handshake(stream).await
            }
            Err(DialError::Refused) => Err(Box::new(answer::port_closed(&self.id, self.port))),
            Err(error) => {
                tracing::warn!(sandbox.id = %self.id, port = self.port, error = %error, "dialling a port failed");
                Err(Box::new(answer::broken(&self.id, self.port, "The sandbox's guest does not answer")))
            }
        }
    }

    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Incoming>, Box<Response<Body>>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Box::new(self.upstream_error(&error)))?;
        let token = self.token.clone();
        self.world.tasks.spawn(async move {
            tokio::select! {
                ended = connection.with_upgrades() => if let Err(error) = ended {
                    tracing::debug!(error = %error, "a connection into a sandbox ended");
                },
                () = token.cancelled() => {}
            }
        });
        Ok(sender)
    }

    /// Copies between the two sides until one ends, or the sandbox stops.
    fn tunnel(self, client: hyper::upgrade::OnUpgrade, server: hyper::upgrade::OnUpgrade) {
        let Self { world, token, permit, id, port, .. } = self;
        world.tasks.spawn(async move {
            let _permit = permit;
            let copy = async {
                let (client, server) = tokio::try_join!(client, server).map_err(std::io::Error::other)?;
                tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await
            };
            tokio::select! {
                copied = copy => if let Err(error) = copied {
                    tracing::debug!(sandbox.id = %id, port, error = %error, "a tunnel ended");
                },
                () = token.cancelled() => {}
            }
        });
    }
}

fn upgrade_of(headers: &HeaderMap) -> Option<&HeaderValue> {
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asks)
}

/// Takes out what belongs to this hop, and what is meant for the host only.
fn prepare(request: &mut Request<Incoming>, upgrade: Option<&HeaderValue>, api_key: Option<&Secret>) {
    if !request.headers().contains_key(HOST)
        && let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(|| http::Uri::from_static("/"), http::Uri::from);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    clean(headers, upgrade);
    headers.remove(TRAFFIC_TOKEN_HEADER);
    // A program inside may use a header of this name for itself; ours must not reach it.
    for name in ["x-api-key", "authorization"] {
        let is_ours = |value: &HeaderValue| {
            let value = value.as_bytes();
            api_key.is_some_and(|key| key.matches(value.strip_prefix(b"Bearer ").unwrap_or(value)))
        };
        if headers.get(name).is_some_and(is_ours) {
            headers.remove(name);
        }
    }
}

/// Removes hop-by-hop headers, and names the upgrade again if there is one.
fn clean(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed.iter().chain(&HOP_HEADERS).chain([&CONNECTION, &UPGRADE]) {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
    }
}
