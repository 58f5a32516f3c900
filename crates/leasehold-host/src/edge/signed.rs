//! Signed file URLs that name no sandbox: the signature is recomputed with each live sandbox's token.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Method;
use http::request::Parts;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::ids::SandboxId;
use crate::record::Origin;

/// The sandbox whose token made the signature of this request; none unless exactly one fits. Whether it has expired is the
/// guest's to say.
pub(crate) fn sandbox_of(request: &Parts, origins: impl Iterator<Item = Arc<Origin>>) -> Option<SandboxId> {
    let query = request.uri.query().unwrap_or_default();
    let value = |name: &str| {
        form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let operation = if request.method == Method::GET || request.method == Method::HEAD { "read" } else { "write" };
    let given = value("signature")?;
    let path = value("path").unwrap_or_default();
    let username = value("username").unwrap_or_default();
    let expiration = value("signature_expiration");
    let mut fitting = origins.filter(|origin| {
        origin.access_token.as_ref().is_some_and(|token| {
            let made = signature(&path, operation, &username, token.expose(), expiration.as_deref());
            made.as_bytes().ct_eq(given.as_bytes()).into()
        })
    });
    let found = fitting.next()?;
    fitting.next().is_none().then(|| found.id.clone())
}

fn signature(path: &str, operation: &str, username: &str, token: &str, expiration: Option<&str>) -> String {
    let mut text = format!("{path}:{operation}:{username}:{token}");
    if let Some(expiration) = expiration {
        text.push(':');
        text.push_str(expiration);
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}
