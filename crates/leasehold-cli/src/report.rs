//! What a command prints: its streams as they are, or one JSON object per line.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold_e2b::EndEvent;
use serde::Serialize;
use tokio::io::{AsyncWriteExt as _, Stderr, Stdout};

use crate::exit;

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Start { sandbox_id: &'a str, pid: u32 },
    Stdout(Chunk<'a>),
    Stderr(Chunk<'a>),
    End { exit_code: u8, signal: Option<u8>, status: &'a str },
}

/// Output in JSON: `text` when it is UTF-8, else `base64`.
#[derive(Debug, Serialize)]
struct Chunk<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl<'a> Chunk<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { text: Some(text), base64: None },
            Err(_) => Self { text: None, base64: Some(STANDARD.encode(bytes)) },
        }
    }
}

/// Writes a command's life to our own streams.
#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    stdout: Stdout,
    stderr: Stderr,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, stdout: tokio::io::stdout(), stderr: tokio::io::stderr() }
    }

    async fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        let mut text = serde_json::to_vec(line).expect("our own lines have string keys");
        text.push(b'\n');
        self.stdout.write_all(&text).await?;
        self.stdout.flush().await
    }

    pub(crate) async fn start(&mut self, sandbox_id: &str, pid: u32) -> io::Result<()> {
        if self.json { self.line(&Line::Start { sandbox_id, pid }).await } else { Ok(()) }
    }

    /// Writes output as it came. An error means that our own reader is gone.
    pub(crate) async fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match (self.json, stream) {
            (true, Stream::Stdout) => self.line(&Line::Stdout(Chunk::new(bytes))).await,
            (true, Stream::Stderr) => self.line(&Line::Stderr(Chunk::new(bytes))).await,
            (false, Stream::Stdout) => {
                self.stdout.write_all(bytes).await?;
                self.stdout.flush().await
            }
            (false, Stream::Stderr) => {
                self.stderr.write_all(bytes).await?;
                self.stderr.flush().await
            }
        }
    }

    pub(crate) async fn end(&mut self, end: &EndEvent) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let line = Line::End { exit_code: exit::of_command(end), signal: exit::signal_of(end), status: &end.status };
        self.line(&line).await
    }
}
