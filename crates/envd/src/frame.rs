//! Envelopes of Connect streams: one flag byte, a big-endian `u32` length, and that many bytes of JSON.

use serde::{Deserialize, Serialize};

use crate::RpcError;

/// Length of an envelope's header in bytes.
pub const HEADER_BYTES: usize = 5;

/// Largest message accepted in one envelope, in bytes. Chosen: SDKs send input in messages far below it, and a hostile peer
/// cannot make a reader reserve more.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

const COMPRESSED: u8 = 0x01;
const END_STREAM: u8 = 0x02;

/// What an envelope holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    /// A message.
    Message,
    /// The end-of-stream value, always the last envelope.
    EndStream,
}

/// The value of the last envelope of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStream {
    /// Why the stream failed; absent after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// Bytes that are no stream of envelopes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer compressed a message although none of us offers compression.
    #[error("compressed frame, but no compression was agreed")]
    Compressed,
    /// Flag bits that the protocol does not define.
    #[error("unknown frame flags {0:#04x}")]
    UnknownFlags(u8),
    /// A message larger than [`MAX_FRAME_BYTES`].
    #[error("frame of {0} bytes exceeds the limit of {MAX_FRAME_BYTES}")]
    TooLarge(usize),
}

fn envelope(flags: u8, message: &impl Serialize) -> Vec<u8> {
    let mut out = vec![flags, 0, 0, 0, 0];
    serde_json::to_writer(&mut out, message).expect("our messages have string keys and never fail to serialise");
    let length = u32::try_from(out.len() - HEADER_BYTES).expect("messages are far below 4 GiB");
    out[1..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    out
}

/// Encodes one message.
///
/// # Panics
/// If `message` cannot be written as JSON, which no type of this crate does.
pub fn encode_message(message: &impl Serialize) -> Vec<u8> {
    envelope(0, message)
}

/// Encodes the last envelope of a stream.
#[must_use]
pub fn encode_end(error: Option<RpcError>) -> Vec<u8> {
    envelope(END_STREAM, &EndStream { error })
}

/// Splits bytes, however they arrive, into envelopes.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    consumed: usize,
}

impl FrameDecoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next whole envelope, or `None` until more bytes are pushed.
    ///
    /// # Errors
    /// When the bytes cannot be a stream of envelopes; the stream is then unusable.
    pub fn next_frame(&mut self) -> Result<Option<(Flags, &[u8])>, FrameError> {
        let pending = &self.buffer[self.consumed..];
        let Some((header, rest)) = pending.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let flags = match header[0] {
            0 => Flags::Message,
            END_STREAM => Flags::EndStream,
            flags if flags & COMPRESSED != 0 => return Err(FrameError::Compressed),
            flags => return Err(FrameError::UnknownFlags(flags)),
        };
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.consumed + HEADER_BYTES;
        self.consumed = start + length;
        Ok(Some((flags, &self.buffer[start..start + length])))
    }

    /// Whether bytes of an unfinished envelope are waiting.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        self.consumed < self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn frames_are_found_at_any_split() {
        let error = RpcError::new(Code::NotFound, "process with pid 7 not found");
        let mut wire = encode_message(&serde_json::json!({"a": 1}));
        wire.extend(encode_end(Some(error.clone())));
        for step in 1..wire.len() {
            let mut decoder = FrameDecoder::default();
            let mut seen = Vec::new();
            for chunk in wire.chunks(step) {
                decoder.push(chunk);
                while let Some((flags, payload)) = decoder.next_frame().unwrap() {
                    seen.push((flags, payload.to_vec()));
                }
            }
            assert!(!decoder.has_partial());
            assert_eq!(seen[0], (Flags::Message, br#"{"a":1}"#.to_vec()));
            assert_eq!(seen[1].0, Flags::EndStream);
            let end: EndStream = serde_json::from_slice(&seen[1].1).unwrap();
            assert_eq!(end.error.as_ref(), Some(&error));
            assert_eq!(seen.len(), 2);
        }
    }

    #[test]
    fn bad_flags_and_lengths_are_refused() {
        let refuse = |bytes: &[u8]| {
            let mut decoder = FrameDecoder::default();
            decoder.push(bytes);
            decoder.next_frame().unwrap_err()
        };
        assert_eq!(refuse(&[1, 0, 0, 0, 0]), FrameError::Compressed);
        assert_eq!(refuse(&[8, 0, 0, 0, 0]), FrameError::UnknownFlags(8));
        assert_eq!(refuse(&[0, 255, 255, 255, 255]), FrameError::TooLarge(u32::MAX as usize));
    }
}
