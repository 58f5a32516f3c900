//! HTTP transport of Leasehold's clients.
//!
//! Retry rules need to know *in which phase* a request failed, and the usual clients blur it. This crate wraps reqwest so that
//! every failure is exactly one [`TransportKind`], decided in one table ([`TransportKind`] documents its rows), and so that
//! time-outs belong to one phase each: connecting, a pause in reading, and a total deadline that is ours.
//!
//! It makes no retries, follows redirects only within one origin (a token in a custom header must not leave it), uses no proxy
//! for loopback or a Unix socket, and never loads certificates unless an `https` URL is in play.
//!
//! | feature | default | effect |
//! | --- | --- | --- |
//! | `hickory-dns` | off | names are looked up by hickory, needed in a static glibc binary |

mod classify;
mod error;
#[cfg(feature = "hickory-dns")]
mod names;
mod phase;
mod secret;
mod text;
mod tls;
mod transport;

pub use error::{TransportError, TransportKind};
pub use secret::Secret;
pub use text::{MESSAGE_BYTES, clean, redact};
pub use transport::{BodyStream, Call, Payload, Reply, Timeouts, Transport, TransportOptions};

#[doc(no_inline)]
pub use reqwest::Url;
