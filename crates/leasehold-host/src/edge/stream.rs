//! The body of a proxied response: passed on as it comes, cut in an orderly way when the sandbox stops.
//!
//! A Connect stream that is cut between two messages gets an end-of-stream message that says `unavailable`; clients then see
//! a typed error instead of a broken connection. Any other body breaks off, which HTTP shows as incomplete.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

const END: &[u8] = br#"{"error":{"code":"unavailable","message":"the sandbox was paused or has ended"}}"#;

/// Follows Connect's framing (flag byte, length, message) over any split of the bytes.
#[derive(Debug, Default)]
struct Framing {
    header: [u8; 5],
    header_len: usize,
    left: u64,
}

impl Framing {
    fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= take as u64;
                bytes = &bytes[take..];
                continue;
            }
            self.header[self.header_len] = bytes[0];
            self.header_len += 1;
            bytes = &bytes[1..];
            if self.header_len == self.header.len() {
                let [_, a, b, c, d] = self.header;
                self.left = u64::from(u32::from_be_bytes([a, b, c, d]));
                self.header_len = 0;
            }
        }
    }

    fn between_messages(&self) -> bool {
        self.left == 0 && self.header_len == 0
    }
}

/// A proxied body.
pub(super) struct Stream {
    inner: Incoming,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    framing: Option<Framing>,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl Stream {
    /// `connect`: the body is a Connect stream.
    pub(super) fn new(inner: Incoming, token: CancellationToken, connect: bool, permit: OwnedSemaphorePermit) -> Self {
        Self {
            inner,
            cut: Box::pin(token.cancelled_owned()),
            framing: connect.then(Framing::default),
            ended: false,
            _permit: permit,
        }
    }
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the sandbox was paused or has ended")]
    Cut,
    #[error("the sandbox's server broke off")]
    Upstream(#[source] hyper::Error),
}

impl Body for Stream {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(framing), Some(data)) = (&mut this.framing, frame.data_ref()) {
                    framing.follow(data);
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            Poll::Ready(Some(Err(error))) if !this.cut.as_mut().poll(cx).is_ready() => {
                this.ended = true;
                return Poll::Ready(Some(Err(StreamError::Upstream(error))));
            }
            Poll::Ready(None) => {
                this.ended = true;
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(_))) => {}
            Poll::Pending => {
                if this.cut.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        }
        this.ended = true;
        if this.framing.as_ref().is_some_and(Framing::between_messages) {
            let mut message = vec![2];
            let length = u32::try_from(END.len()).expect("the message is short");
            message.extend_from_slice(&length.to_be_bytes());
            message.extend_from_slice(END);
            return Poll::Ready(Some(Ok(Frame::data(message.into()))));
        }
        Poll::Ready(Some(Err(StreamError::Cut)))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn framing_is_followed_over_any_split(
            lengths in prop::collection::vec(0_usize..40, 1..6),
            cuts in prop::collection::vec(1_usize..9, 1..80),
        ) {
            let mut bytes = Vec::new();
            for length in &lengths {
                bytes.push(0);
                bytes.extend_from_slice(&u32::try_from(*length).expect("small").to_be_bytes());
                bytes.resize(bytes.len() + length, b'x');
            }
            let mut framing = Framing::default();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                framing.follow(now);
                rest = later;
                if rest.is_empty() { break }
            }
            prop_assert!(framing.between_messages());
            framing.follow(&[0, 0, 0]);
            prop_assert!(!framing.between_messages());
        }
    }
}
