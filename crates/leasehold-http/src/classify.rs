//! The one table from the HTTP library's errors to [`TransportKind`].

use std::error::Error;
use std::io;

use crate::{TransportError, TransportKind};

/// Reads a library error.
pub(crate) fn classify(error: reqwest::Error) -> TransportError {
    let error = error.without_url();
    TransportError::new(kind_of(&error), &describe(&error))
}

fn kind_of(error: &reqwest::Error) -> TransportKind {
    if error.is_builder() {
        return TransportKind::Invalid;
    }
    if error.is_connect() {
        return if error.is_timeout() { TransportKind::ConnectTimeout } else { TransportKind::Connect };
    }
    if error.is_redirect() {
        return TransportKind::Redirects;
    }
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(kind) = kind_of_cause(cause) {
            return kind;
        }
        next = cause.source();
    }
    // What is neither the caller's nor the kernel's failure is the other side's: an incomplete message, garbage, HTTP/2 errors.
    TransportKind::RemoteProtocol
}

/// What one link of the chain says, if it decides.
fn kind_of_cause(cause: &(dyn Error + 'static)) -> Option<TransportKind> {
    if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        if error.is_body_write_aborted() {
            return Some(TransportKind::Write);
        }
        // What lies below is the caller's own failure, not the connection's.
        return error.is_user().then_some(TransportKind::RequestBody);
    }
    if let Some(error) = cause.downcast_ref::<h2::Error>() {
        // Its I/O error is no `source`.
        return error.get_io().map(kind_of_io);
    }
    cause.downcast_ref::<io::Error>().map(kind_of_io)
}

fn kind_of_io(error: &io::Error) -> TransportKind {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::WriteZero => TransportKind::Write,
        // The library's own time-outs are off (ours know the phase): this is the kernel giving up on a silent peer.
        io::ErrorKind::TimedOut => TransportKind::ReadTimeout,
        // The chunk decoder's complaints, and TLS records that make no sense.
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => TransportKind::RemoteProtocol,
        _ => TransportKind::Read,
    }
}

/// The texts of the chain, outermost dropped (it only says that a request failed), repeated ones once.
fn describe(error: &reqwest::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_failures_split_into_write_protocol_and_read() {
        let kind = |kind: io::ErrorKind| kind_of_io(&io::Error::from(kind));
        assert_eq!(kind(io::ErrorKind::BrokenPipe), TransportKind::Write);
        assert_eq!(kind(io::ErrorKind::WriteZero), TransportKind::Write);
        assert_eq!(kind(io::ErrorKind::InvalidData), TransportKind::RemoteProtocol);
        assert_eq!(kind(io::ErrorKind::InvalidInput), TransportKind::RemoteProtocol);
        assert_eq!(kind(io::ErrorKind::ConnectionReset), TransportKind::Read);
        assert_eq!(kind(io::ErrorKind::TimedOut), TransportKind::ReadTimeout);
        assert_eq!(kind(io::ErrorKind::UnexpectedEof), TransportKind::Read);
    }
}
