//! The control plane: E2B's routes that clients use, and a few of our own.

pub(crate) mod body;
pub(crate) mod create;
pub(crate) mod error;
pub(crate) mod list;
pub(crate) mod private;
pub(crate) mod sandboxes;
pub(crate) mod snapshots;
pub(crate) mod wire;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::{delete, get, post};
use http::Request;

use crate::world::World;
use error::ApiError;

/// All routes. Whatever is not among them is answered with 501: a 404 would say that a sandbox is gone.
pub(crate) fn router(world: Arc<World>) -> Router {
    let router = Router::new()
        .route("/health", get(async || "Health check successful"))
        .route("/v2/sandboxes", post(sandboxes::create_v2).get(sandboxes::list_v2))
        .route("/sandboxes", post(sandboxes::create_v1).get(sandboxes::list_v1))
        .route("/sandboxes/{id}", get(sandboxes::detail).delete(sandboxes::kill))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/timeout", post(sandboxes::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(sandboxes::refresh))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/templates/{id}", delete(snapshots::delete))
        .route("/leasehold/v1/sessions", post(private::open_session))
        .route("/leasehold/v1/sandboxes/{id}", get(private::known))
        .route("/leasehold/v1/sandboxes/{id}/keep", post(private::keep))
        .route("/leasehold/v1/info", get(private::info))
        .route("/leasehold/v1/shutdown", post(private::shutdown));
    router.fallback(no_such_route).method_not_allowed_fallback(no_such_route).with_state(world)
}

async fn no_such_route(request: Request<Body>) -> ApiError {
    ApiError::no_such_route(request.method(), request.uri().path())
}
