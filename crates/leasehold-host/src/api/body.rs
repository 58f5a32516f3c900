//! Request bodies: JSON by content, whatever its framing or content type.

use axum::body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::error::{ApiError, ApiResult};

/// Largest body of a control-plane request, in bytes. Chosen: room for a megabyte of variables, escaped.
const MAX_BODY: usize = 4 << 20;

/// Reads a body that may be absent or empty, sent with a length or in chunks.
pub(crate) async fn optional<T: DeserializeOwned>(body: Body) -> ApiResult<Option<T>> {
    let bytes = match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(ApiError::new(
                http::StatusCode::PAYLOAD_TOO_LARGE,
                format!("the request body is larger than {MAX_BODY} bytes"),
            ));
        }
        Err(error) => return Err(ApiError::bad(format!("the request body broke off: {error}"))),
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| ApiError::bad(format!("the request body is not understood: {error}")))
}

/// Reads a body that must be there.
pub(crate) async fn required<T: DeserializeOwned>(body: Body) -> ApiResult<T> {
    optional(body).await?.ok_or_else(|| ApiError::bad("the request needs a JSON body"))
}
