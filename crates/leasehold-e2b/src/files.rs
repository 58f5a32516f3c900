//! Files of a sandbox.

use bytes::Bytes;
use envd::{Code, EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest, UploadedFile};
use futures_core::Stream;
use http::{HeaderValue, Method, header};
use leasehold_http::{Payload, Reply, Secret};

use crate::error::{Route, refused};
use crate::rpc::Rpc;
use crate::{ClientError, ClientErrorKind};

/// Largest answer to a write and largest error that are read.
const ANSWER_BYTES: usize = 1 << 20;

/// Files of a sandbox, seen as one user. Relative paths start in that user's home, `~` is expanded.
#[derive(Debug, Clone)]
pub struct Files {
    rpc: Rpc,
}

impl Files {
    pub(crate) fn new(rpc: Rpc) -> Self {
        Self { rpc }
    }

    /// The same files, seen as this user.
    #[must_use]
    pub fn as_user(mut self, user: impl Into<String>) -> Self {
        self.rpc.user = Some(user.into());
        self
    }

    /// What is at a path.
    ///
    /// # Errors
    /// `Rpc(NotFound)` when there is nothing.
    pub async fn stat(&self, path: &str) -> Result<EntryInfo, ClientError> {
        let answer: EntryResponse =
            self.rpc.unary("stat file", "/filesystem.Filesystem/Stat", &PathRequest { path: path.to_owned() }).await?;
        Ok(answer.entry)
    }

    /// Whether there is something at a path.
    ///
    /// # Errors
    /// Any but absence, which is an answer here.
    pub async fn exists(&self, path: &str) -> Result<bool, ClientError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            // Only envd's own word counts: the same code derived from a proxy's status carries that status.
            Err(error) if error.kind() == ClientErrorKind::Rpc(Code::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory and its parents. False when it existed.
    ///
    /// # Errors
    /// `Rpc(InvalidArgument)` when something else is there.
    ///
    /// # Repeating
    /// Harmless.
    pub async fn make_dir(&self, path: &str) -> Result<bool, ClientError> {
        let request = PathRequest { path: path.to_owned() };
        match self.rpc.unary::<EntryResponse>("make directory", "/filesystem.Filesystem/MakeDir", &request).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ClientErrorKind::Rpc(Code::AlreadyExists) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Entries below a directory, `depth` levels deep; 1 means its direct children.
    ///
    /// # Errors
    /// `Rpc(NotFound)` when it does not exist, `Rpc(InvalidArgument)` when it is no directory.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<EntryInfo>, ClientError> {
        let request = ListDirRequest { path: path.to_owned(), depth };
        let answer: ListDirResponse =
            self.rpc.unary("list directory", "/filesystem.Filesystem/ListDir", &request).await?;
        Ok(answer.entries)
    }

    /// Removes a file, or a directory with all below it.
    ///
    /// # Errors
    /// `Rpc` when it cannot be removed.
    ///
    /// # Repeating
    /// Harmless: absence is success.
    pub async fn remove(&self, path: &str) -> Result<(), ClientError> {
        let request = PathRequest { path: path.to_owned() };
        let _: envd::Empty = self.rpc.unary("remove file", "/filesystem.Filesystem/Remove", &request).await?;
        Ok(())
    }

    /// Moves a file or directory; parents of the destination are made.
    ///
    /// # Errors
    /// `Rpc(NotFound)` when the source does not exist.
    pub async fn rename(&self, source: &str, destination: &str) -> Result<EntryInfo, ClientError> {
        let request = MoveRequest { source: source.to_owned(), destination: destination.to_owned() };
        let answer: EntryResponse = self.rpc.unary("move file", "/filesystem.Filesystem/Move", &request).await?;
        Ok(answer.entry)
    }

    /// Opens a file for reading; its bytes are then taken chunk by chunk.
    ///
    /// # Errors
    /// `NotFound` when it does not exist, `Status` 400 when it is a directory.
    pub async fn read(&self, path: &str) -> Result<FileReader, ClientError> {
        let operation = "read file";
        let mut call = self.rpc.request(operation, Method::GET, "/files")?;
        self.locate(&mut call.url, path);
        call.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        call.total = Some(None);
        let reply = self.send(operation, call).await?;
        Ok(FileReader { operation, reply, token: self.rpc.token.clone() })
    }

    /// Reads a whole file into memory.
    ///
    /// # Errors
    /// As [`Files::read`]; `Transport(TooLarge)` beyond `limit` bytes.
    pub async fn read_all(&self, path: &str, limit: usize) -> Result<Bytes, ClientError> {
        let reader = self.read(path).await?;
        reader.reply.collect(limit).await.map_err(|error| ClientError::transport("read file", &error, &[&reader.token]))
    }

    /// Writes a whole file; its parents are made, an existing file is replaced.
    ///
    /// # Errors
    /// `Status` 507 when there is no space.
    ///
    /// # Repeating
    /// Harmless with the same bytes.
    pub async fn write(&self, path: &str, bytes: impl Into<Bytes>) -> Result<(), ClientError> {
        self.upload(path, Payload::Bytes(bytes.into())).await
    }

    /// Writes a file from a stream, of which one chunk at a time is held.
    ///
    /// # Errors
    /// As [`Files::write`]; `Transport(RequestBody)` when the stream fails, and then a part of the file may be there.
    pub async fn write_stream<S>(&self, path: &str, bytes: S) -> Result<(), ClientError>
    where
        S: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        self.upload(path, Payload::Stream(Box::pin(bytes))).await
    }

    async fn upload(&self, path: &str, payload: Payload) -> Result<(), ClientError> {
        let operation = "write file";
        let mut call = self.rpc.request(operation, Method::POST, "/files")?;
        self.locate(&mut call.url, path);
        call.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        call.payload = payload;
        call.total = Some(None);
        let reply = self.send(operation, call).await?;
        let body = reply.collect(ANSWER_BYTES).await.map_err(|error| self.rpc.failed(operation, &error))?;
        serde_json::from_slice::<Vec<UploadedFile>>(&body)
            .map(drop)
            .map_err(|error| ClientError::decode(operation, &error.to_string(), &[&self.rpc.token]))
    }

    fn locate(&self, url: &mut leasehold_http::Url, path: &str) {
        let mut query = url.query_pairs_mut();
        query.append_pair("path", path);
        if let Some(user) = &self.rpc.user {
            query.append_pair("username", user);
        }
    }

    async fn send(&self, operation: &'static str, call: leasehold_http::Call) -> Result<Reply, ClientError> {
        let reply = self.rpc.transport.send(call).await.map_err(|error| self.rpc.failed(operation, &error))?;
        if reply.status().is_success() {
            return Ok(reply);
        }
        let (status, headers) = (reply.status(), reply.headers().clone());
        let body = reply.collect(ANSWER_BYTES).await;
        Err(refused(operation, Route::Other, status, &headers, body.as_deref(), &[&self.rpc.token]))
    }
}

/// A file that is being read.
#[derive(Debug)]
pub struct FileReader {
    operation: &'static str,
    reply: Reply,
    token: Secret,
}

impl FileReader {
    /// Length of the file in bytes, if the sandbox told it.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.reply.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// `Transport(Read)` when the file ends before its told length.
    ///
    /// # Cancel safety
    /// Nothing is lost; call it again.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.reply.chunk().await.map_err(|error| ClientError::transport(self.operation, &error, &[&self.token]))
    }
}
