//! Files in a leased sandbox, without running a command.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{ErrorKind, RuntimeError};

/// A body in pieces, each at most as large as the transport's own buffers.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, RuntimeError>> + Send + 'static>>;

/// What a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// One direct child of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the directory.
    pub name: String,
    /// Its absolute path.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Its size in bytes, where the provider says it.
    pub size_bytes: Option<u64>,
}

/// Files in one leased sandbox. Paths are absolute and belong to the sandbox.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the path is not there; when it is of the wrong type [`ErrorKind::Conflict`] or, where the provider does not
/// tell it from a malformed path (E2B), [`ErrorKind::InvalidInput`].
///
/// # Cancel safety
/// Dropping a call stops waiting; it does not undo. A write that was begun may be partial.
#[async_trait]
pub trait Files: Send + Sync {
    /// Whether the path is there.
    async fn exists(&self, path: &str) -> Result<bool, RuntimeError>;

    /// Makes a directory with its parents. False = it was there.
    async fn make_dir(&self, path: &str) -> Result<bool, RuntimeError>;

    /// The direct children of a directory.
    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, RuntimeError>;

    /// Removes a file, or a directory with all below.
    async fn remove(&self, path: &str) -> Result<(), RuntimeError>;

    /// Reads a file as it comes.
    async fn read(&self, path: &str) -> Result<ByteStream, RuntimeError>;

    /// Writes a file, replacing it, with the parents it needs.
    async fn write(&self, path: &str, body: ByteStream) -> Result<(), RuntimeError>;
}

/// Conveniences on every [`Files`].
#[async_trait]
pub trait FilesExt: Files {
    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    /// Those of [`Files::read`], and [`ErrorKind::InvalidInput`] when the file is larger.
    async fn read_all(&self, path: &str, limit: usize) -> Result<Bytes, RuntimeError> {
        let mut body = self.read(path).await?;
        let mut all = BytesMut::new();
        while let Some(piece) = std::future::poll_fn(|context| body.as_mut().poll_next(context)).await {
            let piece = piece?;
            if all.len() + piece.len() > limit {
                let message = format!("file {path:?} is larger than {limit} bytes: read it as a stream");
                return Err(
                    RuntimeError::new(ErrorKind::InvalidInput, "read_file", "leasehold", message).without_effect()
                );
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    /// Writes a file from memory.
    ///
    /// # Errors
    /// Those of [`Files::write`].
    async fn write_all(&self, path: &str, contents: Bytes) -> Result<(), RuntimeError> {
        self.write(path, Box::pin(Once(Some(contents)))).await
    }
}

impl<T: Files + ?Sized> FilesExt for T {}

/// A body of one piece.
struct Once(Option<Bytes>);

impl Stream for Once {
    type Item = Result<Bytes, RuntimeError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.take().map(Ok))
    }
}
