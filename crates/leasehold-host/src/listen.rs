//! Listeners: who may speak to the host, and what each request is for.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tower::ServiceExt as _;

use crate::api::error::{ApiError, ApiResult};
use crate::edge::route::{OurNames, Route, host_name, route};
use crate::edge::{answer, proxy, signed};
use crate::presence::{Client, Presence};
use crate::secret::Secret;
use crate::world::World;

/// How long a client may take to send a request's head. Chosen: slow links pass, idle attackers do not pile up.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// Most bytes of a request head, or buffered of a body, per connection. Chosen.
const MAX_BUFFER: usize = 256 * 1024;

/// Through which listener a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The Unix socket: the peer is us or root, so no key is asked.
    Unix,
    Tcp,
}

/// Rules of one listener.
pub(crate) struct Door {
    pub(crate) via: Via,
    /// Asked of control-plane requests.
    pub(crate) key: Option<Secret>,
    /// Host names served; `None` serves all.
    pub(crate) names: Option<OurNames>,
}

/// A host's front: takes requests from any listener and sends each where it belongs.
pub(crate) struct Front {
    pub(crate) world: Arc<World>,
    pub(crate) router: Router,
    /// This host's own key, whatever the listener: it must not reach a sandbox.
    pub(crate) key: Option<Secret>,
}

struct Counted(Arc<World>);

impl std::borrow::Borrow<Presence> for Counted {
    fn borrow(&self) -> &Presence {
        &self.0.presence
    }
}

/// Accepts on the Unix socket until the host closes.
pub(crate) async fn serve_unix(front: Arc<Front>, listener: UnixListener) {
    let door = Arc::new(Door { via: Via::Unix, key: None, names: None });
    let closing = front.world.closing.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) if is_ours(&stream) => spawn_connection(&front, &door, stream),
            Ok(_) => tracing::warn!("a connection of another user to the host's socket was refused"),
            Err(error) => accept_failed(&error).await,
        }
    }
}

/// Accepts on TCP until the host closes.
pub(crate) async fn serve_tcp(front: Arc<Front>, door: Arc<Door>, listener: TcpListener) {
    let closing = front.world.closing.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(error = %error, "TCP_NODELAY");
                }
                spawn_connection(&front, &door, stream);
            }
            Err(error) => accept_failed(&error).await,
        }
    }
}

/// A failed accept is the peer's trouble, or ours with descriptors; those come back, so waiting a little helps.
async fn accept_failed(error: &std::io::Error) {
    tracing::warn!(error = %error, "accepting a connection failed");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn is_ours(stream: &UnixStream) -> bool {
    let us = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == us || peer.uid() == 0)
}

fn spawn_connection<S>(front: &Arc<Front>, door: &Arc<Door>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (front, door) = (Arc::clone(front), Arc::clone(door));
    let world = Arc::clone(&front.world);
    world.tasks.clone().spawn(async move {
        let closing = front.world.closing.clone();
        let service = service_fn(move |request| {
            let (front, door) = (Arc::clone(&front), Arc::clone(&door));
            async move { Ok::<_, std::convert::Infallible>(front.serve(&door, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_buf_size(MAX_BUFFER)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error = %error, "a client's connection ended");
        }
    });
}

impl Front {
    async fn serve(&self, door: &Door, request: Request<Incoming>) -> Response<Body> {
        let Some(client) = Client::enter(Counted(Arc::clone(&self.world))) else {
            return ApiError::leaving().into_response();
        };
        let (parts, body) = request.into_parts();
        let response = match self.decide(door, &parts) {
            Err(refusal) => *refusal,
            Ok(Target::Control) => self.control(door, Request::from_parts(parts, body)).await,
            Ok(Target::Port { id, port }) => {
                let request = Request::from_parts(parts, body);
                proxy::serve(&self.world, &id, port, request, self.key.as_ref()).await
            }
        };
        // A client is one until its answer's body is through.
        response.map(|body| Body::new(WithClient { body, _client: client }))
    }

    fn decide(&self, door: &Door, parts: &Parts) -> Result<Target, Box<Response<Body>>> {
        let host = host_name(parts).unwrap_or_default();
        let ours = door.names.as_ref().is_none_or(|names| names.contains(host));
        let misdirected = || {
            ApiError::new(StatusCode::MISDIRECTED_REQUEST, format!("host {host:?} is not served here")).into_response()
        };
        match route(parts) {
            // An id is not to be guessed, so a host name with a live one in it is as good as ours.
            Route::Port { id, port } if ours || host.starts_with(&format!("{port}-")) => Ok(Target::Port { id, port }),
            Route::Bad(message) => Err(Box::new(answer::bad_request(message))),
            Route::Control | Route::SignedFile | Route::Port { .. } if !ours => Err(Box::new(misdirected())),
            Route::Port { id, port } => Ok(Target::Port { id, port }),
            Route::Control => Ok(Target::Control),
            Route::SignedFile => {
                let origins = self.world.entries().into_iter().map(|entry| Arc::clone(&entry.view().origin));
                match signed::sandbox_of(parts, origins) {
                    Some(id) => Ok(Target::Port { id, port: crate::edge::route::ENVD_PORT }),
                    None => {
                        let refusal = ApiError::new(StatusCode::UNAUTHORIZED, "invalid signature");
                        Err(Box::new(refusal.into_response()))
                    }
                }
            }
        }
    }

    async fn control(&self, door: &Door, request: Request<Incoming>) -> Response<Body> {
        if let Err(refusal) = check_caller(door, request.headers(), request.uri().path()) {
            return refusal.into_response();
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(door.via);
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        as_json(response).await
    }
}

enum Target {
    Control,
    Port { id: crate::ids::SandboxId, port: u16 },
}

fn check_caller(door: &Door, headers: &HeaderMap, path: &str) -> ApiResult<()> {
    if headers.contains_key(ORIGIN) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "the control plane does not answer web pages (Origin header)",
        ));
    }
    let Some(key) = door.key.as_ref().filter(|_| path != "/health") else { return Ok(()) };
    let bearer = || {
        let value = headers.get(AUTHORIZATION)?.as_bytes();
        value.strip_prefix(b"Bearer ")
    };
    let unauthorized = |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
    match headers.get("x-api-key").map(http::HeaderValue::as_bytes).or_else(bearer) {
        Some(given) if key.matches(given) => Ok(()),
        Some(_) => unauthorized("Invalid API key: it is not the key of this host"),
        None => unauthorized("Invalid API key format: the X-API-Key header is missing"),
    }
}

/// Refusals of the router itself (a path that is not UTF-8) are plain text; clients need JSON.
async fn as_json(response: Response<Body>) -> Response<Body> {
    let status = response.status();
    let json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = match Limited::new(response.into_body(), 4096).collect().await {
        Ok(text) => String::from_utf8_lossy(&text.to_bytes()).into_owned(),
        Err(_) => status.to_string(),
    };
    ApiError::new(status, text).into_response()
}

/// A body that counts its reader as a client.
struct WithClient {
    body: Body,
    _client: Client<Counted>,
}

impl http_body::Body for WithClient {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, axum::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Whether an address is reachable from this machine only.
pub(crate) fn is_local(address: SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(four) => four.is_loopback(),
        IpAddr::V6(six) => six.to_canonical().is_loopback(),
    }
}
