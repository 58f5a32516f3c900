//! Who may call, and as whom: access token, user, and what browsers ask for.

use std::io;

use base64::Engine as _;
use envd::{Code, RpcError};

use super::Origin;
use crate::guest::Guest;
use crate::http::{Head, Response};
use crate::identity::Identity;
use crate::users::{User, UserError};

/// What envd says to a caller without the right token (0.6.13).
pub(super) const UNAUTHORIZED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// Whether the request carries the sandbox's access token, or the sandbox has none.
pub(super) fn has_token(identity: &Identity, head: &Head) -> bool {
    let Some(token) = &identity.access_token else { return true };
    head.header("x-access-token").is_some_and(|given| token.matches(given.as_bytes()))
}

/// The user that the request acts as: the one of its Basic credentials, whose password means nothing, else the sandbox's default.
pub(super) fn user(guest: &Guest, identity: &Identity, origin: Origin, head: &Head) -> Result<User, RpcError> {
    let name = match head.header("authorization") {
        Some(value) => basic_user(value).ok_or_else(|| {
            RpcError::new(Code::Unauthenticated, "the authorization header holds no Basic credentials")
        })?,
        None => String::new(),
    };
    let name = if name.is_empty() { identity.default_user.as_str() } else { name.as_str() };
    // Any process of the sandbox reaches the loopback port. Only the token tells its owner from them.
    if origin == Origin::Loopback && identity.access_token.is_none() && name != identity.default_user {
        let message =
            format!("over loopback and without an access token, only user '{}' can act", identity.default_user);
        return Err(RpcError::new(Code::PermissionDenied, message));
    }
    guest.users.by_name(name).map_err(|error| match error {
        UserError::Unknown(_) => RpcError::new(Code::Unauthenticated, error.to_string()),
        UserError::Read { .. } => RpcError::new(Code::Internal, error.to_string()),
    })
}

fn basic_user(value: &str) -> Option<String> {
    let (scheme, credentials) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(credentials.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    Some(text.split_once(':').map_or(text.as_str(), |(user, _)| user).to_owned())
}

/// Lets pages of any origin read the response: what protects the sandbox is the token, which no page has by itself.
pub(super) fn allow_browsers<'c>(head: &Head, response: Response<'c>) -> Response<'c> {
    if head.header("origin").is_none() {
        return response;
    }
    response.header("Access-Control-Allow-Origin", "*").header("Access-Control-Expose-Headers", "*")
}

/// Answers a browser's question before its request.
pub(super) fn preflight(head: &Head, response: Response<'_>) -> io::Result<()> {
    let headers = head.header("access-control-request-headers").unwrap_or("*");
    response
        .status(204)
        .header("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
        .header("Access-Control-Allow-Headers", headers)
        .header("Access-Control-Max-Age", "7200")
        .send(b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_read_from_basic_credentials() {
        assert_eq!(basic_user("Basic cm9vdDo=").as_deref(), Some("root"));
        assert_eq!(basic_user("basic dXNlcjpzZWNyZXQ=").as_deref(), Some("user"));
        assert_eq!(basic_user("Basic dXNlcg==").as_deref(), Some("user"));
        for value in ["Bearer x", "Basic", "Basic !!", ""] {
            assert_eq!(basic_user(value), None, "{value}");
        }
    }
}
