//! The envd face: E2B's in-sandbox API over HTTP, on the host's socket and on the sandbox's loopback.

mod access;
mod metrics;

use std::io;
use std::path::Path;
use std::sync::Arc;

use envd::{Empty, RpcError};
use serde_json::json;

pub use crate::files::Origin;
use crate::files::{Caller, FileError, Files};
use crate::guest::Guest;
use crate::http::{Handler, Request, Response};
use crate::identity::Identity;
use crate::rpc::{self, ProcessService};
use crate::users::User;

/// Paths that only E2B's orchestrator calls. Here the engine does what they do.
const RESERVED: [&str; 9] = [
    "/init",
    "/freeze",
    "/unfreeze",
    "/fsfreeze",
    "/fsthaw",
    "/fsunfreeze",
    "/collapse",
    "/snapshot",
    "/files/compose",
];

/// Serves the envd face.
#[derive(Debug)]
pub struct Api {
    guest: Arc<Guest>,
    origin: Origin,
    processes: ProcessService,
    files: Files,
    metrics: metrics::Metrics,
}

impl Api {
    /// Serves this guest to callers from there. Unfinished uploads are made in `uploads`.
    pub fn new(guest: Arc<Guest>, origin: Origin, uploads: &Path) -> Self {
        let processes = ProcessService::new(Arc::clone(&guest));
        let files = Files::new(guest.users.clone()).with_workshop(uploads);
        Self { guest, origin, processes, files, metrics: metrics::Metrics::default() }
    }

    fn filesystem(
        &self,
        method: &str,
        identity: &Identity,
        request: &mut Request<'_>,
        response: Response<'_>,
    ) -> io::Result<()> {
        let caller = access::user(&self.guest, identity, self.origin, request)
            .map(|user| Caller { user, workdir: identity.default_workdir.clone() });
        let files = &self.files;
        match method {
            "Stat" => unary(request, response, caller, |caller, message| files.stat(caller, &message)),
            "MakeDir" => unary(request, response, caller, |caller, message| files.make_dir(caller, &message)),
            "Move" => unary(request, response, caller, |caller, message| files.move_entry(caller, &message)),
            "ListDir" => unary(request, response, caller, |caller, message| files.list_dir(caller, &message)),
            "Remove" => {
                unary(request, response, caller, |caller, message| files.remove(caller, &message).map(|()| Empty {}))
            }
            _ => rpc::unary(request, response, |Empty {}| -> Result<Empty, _> {
                let message = format!("filesystem.Filesystem has no method {method:?} here");
                Err(RpcError::new(envd::Code::Unimplemented, message))
            }),
        }
    }
}

fn unary<Q: serde::de::DeserializeOwned, A: serde::Serialize>(
    request: &mut Request<'_>,
    response: Response<'_>,
    caller: Result<Caller, RpcError>,
    call: impl FnOnce(&Caller, Q) -> Result<A, FileError>,
) -> io::Result<()> {
    rpc::unary(request, response, |message| call(&caller?, message).map_err(RpcError::from))
}

impl Handler for Api {
    fn handle(&self, request: &mut Request<'_>, response: Response<'_>) -> io::Result<()> {
        let response = access::allow_browsers(request, response);
        if request.method() == "OPTIONS" {
            return access::preflight(request, response);
        }
        let path = request.path().to_owned();
        if (request.method(), path.as_str()) == ("GET", "/health") {
            return response.status(204).send(b"");
        }
        if RESERVED.contains(&path.as_str()) {
            let message =
                "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL";
            return error(response, 404, message);
        }
        let identity = self.guest.identity();
        if path == "/files" {
            // Checks the token itself: here a signed URL may take its place.
            return self.files.serve(&identity, self.origin, request, response);
        }
        if !access::has_token(&identity, request) {
            return error(response, 401, access::UNAUTHORIZED);
        }
        if let Some(method) = path.strip_prefix("/process.Process/") {
            let user: Result<User, _> = access::user(&self.guest, &identity, self.origin, request);
            return self.processes.serve(method, user, request, response);
        }
        if let Some(method) = path.strip_prefix("/filesystem.Filesystem/") {
            return self.filesystem(method, &identity, request, response);
        }
        match (request.method(), path.as_str()) {
            ("GET", "/envs") => response.send_json(&identity.envs),
            ("GET", "/metrics") => response.header("Cache-Control", "no-store").send_json(&self.metrics.read()),
            _ => error(response, 404, "not found"),
        }
    }
}

fn error(response: Response<'_>, status: u16, message: &str) -> io::Result<()> {
    response.status(status).send_json(&json!({ "code": status, "message": message }))
}
