//! What the edge says when it does not proxy. Clients match parts of these texts (`facts` of E2B's proxy), so they are exact.

use axum::body::Body;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::ids::SandboxId;

/// The header that carries a traffic token.
pub(crate) const TRAFFIC_TOKEN_HEADER: &str = "e2b-traffic-access-token";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Text<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

fn json(status: StatusCode, id: Option<&SandboxId>, message: &str, port: Option<u16>) -> Response<Body> {
    let text = Text { sandbox_id: id.map(SandboxId::as_str), message, port, code: status.as_u16() };
    let body = serde_json::to_vec(&text).expect("texts and numbers are JSON");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Unknown, killed, or paused and not woken by traffic.
pub(crate) fn not_found(id: &SandboxId) -> Response<Body> {
    json(StatusCode::BAD_GATEWAY, Some(id), "The sandbox was not found", None)
}

/// It runs, and nothing listens.
pub(crate) fn port_closed(id: &SandboxId, port: u16) -> Response<Body> {
    json(StatusCode::BAD_GATEWAY, Some(id), "The sandbox is running but port is not open", Some(port))
}

/// It runs, and its guest or the server behind the port does not do its part.
pub(crate) fn broken(id: &SandboxId, port: u16, what: &str) -> Response<Body> {
    json(StatusCode::BAD_GATEWAY, Some(id), what, Some(port))
}

pub(crate) fn token_missing(id: &SandboxId) -> Response<Body> {
    let message =
        format!("Sandbox is secured with traffic access token. Token header '{TRAFFIC_TOKEN_HEADER}' is missing");
    json(StatusCode::FORBIDDEN, Some(id), &message, None)
}

pub(crate) fn token_wrong(id: &SandboxId) -> Response<Body> {
    let message = format!(
        "Sandbox is secured with traffic access token. Provided token in header '{TRAFFIC_TOKEN_HEADER}' is invalid"
    );
    json(StatusCode::FORBIDDEN, Some(id), &message, None)
}

pub(crate) fn in_transition(id: &SandboxId) -> Response<Body> {
    let mut response =
        json(StatusCode::CONFLICT, Some(id), "The sandbox is still transitioning. Try again in a moment.", None);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(crate) fn too_many_connections(id: &SandboxId, limit: usize) -> Response<Body> {
    let message = format!("The sandbox has too many concurrent incoming connections (limit: {limit})");
    json(StatusCode::TOO_MANY_REQUESTS, Some(id), &message, None)
}

/// Waking it up found no room.
pub(crate) fn no_room(id: &SandboxId, message: &str) -> Response<Body> {
    let mut response = json(StatusCode::TOO_MANY_REQUESTS, Some(id), message, None);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(crate) fn reserved() -> Response<Body> {
    let message = "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL";
    json(StatusCode::NOT_FOUND, None, message, None)
}

pub(crate) fn bad_request(message: &str) -> Response<Body> {
    json(StatusCode::BAD_REQUEST, None, message, None)
}
