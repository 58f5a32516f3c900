//! The driver's seams on the real client.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use envd::{Code, FileType};
use futures_util::StreamExt as _;
use leasehold::{Effect, FileEntry, FileKind};
use leasehold_http::TransportKind;

use crate::driver::{self, ControlPlane, CreateSandbox, Memory, SandboxFiles, SeamError, SeamErrorKind, SeamStream};
use crate::{Client, ClientError, ClientErrorKind, Files, NewSandbox, PauseMode, Sandbox, SandboxQuery, SnapshotQuery};

/// A [`Sandbox`] as the driver holds it.
#[derive(Debug)]
pub struct ProviderSandbox {
    sandbox: Sandbox,
    files: Files,
}

impl ProviderSandbox {
    /// The client's own handle: processes, streams, and what else the seam does not have.
    #[must_use]
    pub fn handle(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl From<Sandbox> for ProviderSandbox {
    fn from(sandbox: Sandbox) -> Self {
        let files = sandbox.files();
        Self { sandbox, files }
    }
}

#[async_trait]
impl ControlPlane for Client {
    type Sandbox = ProviderSandbox;

    async fn create(&self, request: CreateSandbox) -> Result<ProviderSandbox, SeamError> {
        let mut new = NewSandbox::new(request.template)
            .timeout(request.timeout)
            .pause_on_timeout(PauseMode::Full)
            .auto_resume(false)
            .public_traffic(false);
        for (key, value) in request.metadata {
            new = new.metadata(key, value);
        }
        Ok(Client::create(self, &new).await?.into())
    }

    async fn connect(&self, id: &str, timeout: Duration) -> Result<ProviderSandbox, SeamError> {
        Ok(Client::connect(self, id, timeout).await?.into())
    }

    async fn pause(&self, id: &str) -> Result<(), SeamError> {
        paused(Client::pause(self, id, PauseMode::Full).await)
    }

    async fn kill(&self, id: &str) -> Result<(), SeamError> {
        Ok(Client::kill(self, id).await?)
    }

    async fn delete_snapshot(&self, snapshot: &str) -> Result<(), SeamError> {
        Ok(Client::delete_snapshot(self, snapshot).await?)
    }

    async fn find_by_metadata(&self, pairs: &BTreeMap<String, String>) -> Result<Vec<String>, SeamError> {
        let mut query = SandboxQuery::default();
        for (key, value) in pairs {
            query = query.metadata(key, value);
        }
        let found = self.list_all(&query).await?;
        // What is found may be killed: an endpoint that ignores the filter must not cost other sandboxes.
        let matches =
            |metadata: &BTreeMap<String, String>| pairs.iter().all(|(key, value)| metadata.get(key) == Some(value));
        Ok(found.into_iter().filter(|info| matches(&info.metadata)).map(|info| info.sandbox_id).collect())
    }

    async fn find_snapshots_by_name(&self, name: &str) -> Result<Vec<String>, SeamError> {
        let found = self.list_all_snapshots(&SnapshotQuery::default().name(name)).await?;
        let found = found.into_iter().filter(|info| info.names.iter().any(|full| is_named(full, name)));
        Ok(found.map(|info| info.snapshot_id).collect())
    }
}

/// Whether `full`, `[team/]name[:tag]`, has exactly this name.
fn is_named(full: &str, name: &str) -> bool {
    let untagged = full.rsplit_once(':').map_or(full, |(untagged, _)| untagged);
    untagged == name || untagged.split_once('/').is_some_and(|(_, rest)| rest == name)
}

/// Paused already is what was asked for.
fn paused(answer: Result<(), ClientError>) -> Result<(), SeamError> {
    match answer {
        Err(error) if error.status() == Some(409) => Ok(()),
        answer => Ok(answer?),
    }
}

#[async_trait]
impl driver::Sandbox for ProviderSandbox {
    fn id(&self) -> &str {
        self.sandbox.id()
    }

    fn host_for(&self, port: u16) -> String {
        self.sandbox.host_for(port)
    }

    fn traffic_token(&self) -> Option<&str> {
        self.sandbox.traffic_token().map(leasehold_http::Secret::expose)
    }

    fn files(&self) -> &dyn SandboxFiles {
        &self.files
    }

    async fn pause(&self, memory: Memory) -> Result<(), SeamError> {
        let mode = match memory {
            Memory::Keep => PauseMode::Full,
            Memory::Drop => PauseMode::FilesOnly,
        };
        paused(self.sandbox.pause(mode).await)
    }

    async fn kill(&self) -> Result<(), SeamError> {
        Ok(self.sandbox.kill().await?)
    }

    async fn create_snapshot(&self, name: &str) -> Result<String, SeamError> {
        Ok(self.sandbox.create_snapshot(Some(name)).await?.snapshot_id)
    }
}

#[async_trait]
impl SandboxFiles for Files {
    async fn make_dir(&self, path: &str) -> Result<bool, SeamError> {
        Ok(Files::make_dir(self, path).await?)
    }

    async fn exists(&self, path: &str) -> Result<bool, SeamError> {
        Ok(Files::exists(self, path).await?)
    }

    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, SeamError> {
        let entries = Files::list(self, path, 1).await?;
        Ok(entries.into_iter().map(entry).collect())
    }

    async fn remove(&self, path: &str) -> Result<(), SeamError> {
        Ok(Files::remove(self, path).await?)
    }

    async fn read(&self, path: &str) -> Result<SeamStream, SeamError> {
        let reader = Files::read(self, path).await?;
        Ok(Box::pin(futures_util::stream::try_unfold(reader, |mut reader| async move {
            Ok(reader.next().await?.map(|bytes| (bytes, reader)))
        })))
    }

    async fn write(&self, path: &str, body: SeamStream) -> Result<(), SeamError> {
        Ok(self.write_stream(path, body.map(|piece| piece.map_err(std::io::Error::other))).await?)
    }
}

fn entry(info: envd::EntryInfo) -> FileEntry {
    // envd tells a link's target in `type`; the link itself shows in its target.
    let kind = match info.file_type {
        _ if info.symlink_target.is_some() => FileKind::Symlink,
        FileType::File => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::Unspecified => FileKind::Other,
    };
    FileEntry { name: info.name, path: info.path, kind, size_bytes: u64::try_from(info.size).ok() }
}

/// The phases of the transport as the driver names them.
pub(crate) fn phase(kind: TransportKind) -> SeamErrorKind {
    match kind {
        TransportKind::Connect => SeamErrorKind::Connect,
        TransportKind::ConnectTimeout => SeamErrorKind::ConnectTimeout,
        TransportKind::ReadTimeout => SeamErrorKind::ReadTimeout,
        TransportKind::Read => SeamErrorKind::Read,
        TransportKind::Write => SeamErrorKind::Write,
        TransportKind::RemoteProtocol => SeamErrorKind::RemoteProtocol,
        TransportKind::Deadline => SeamErrorKind::Deadline,
        TransportKind::Invalid => SeamErrorKind::Validation,
        TransportKind::TooLarge => SeamErrorKind::Decode,
        _ => SeamErrorKind::Other,
    }
}

impl From<ClientError> for SeamError {
    fn from(error: ClientError) -> Self {
        let kind = match error.kind() {
            ClientErrorKind::Transport(kind) => phase(kind),
            ClientErrorKind::NotFound | ClientErrorKind::Rpc(Code::NotFound) => SeamErrorKind::NotFound,
            ClientErrorKind::Capacity => SeamErrorKind::Capacity,
            ClientErrorKind::Status => SeamErrorKind::Status(error.status().unwrap_or_default()),
            ClientErrorKind::Rpc(code) => SeamErrorKind::Status(error.status().unwrap_or(code.http_status())),
            ClientErrorKind::Decode => SeamErrorKind::Decode,
            ClientErrorKind::InvalidInput | ClientErrorKind::Configuration => SeamErrorKind::Validation,
        };
        let effect = if error.may_have_happened() { Effect::Unknown } else { Effect::None };
        let seam = Self::new(kind, error.to_string()).with_effect(effect);
        match error.retry_after() {
            Some(wait) => seam.with_retry_after(wait),
            None => seam,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_names_match_whole_with_or_without_team_and_tag() {
        for full in ["home-1", "home-1:default", "team/home-1", "team/home-1:default"] {
            assert!(is_named(full, "home-1"), "{full}");
        }
        for full in ["home-11", "xhome-1", "team/home-1/x", "a/b/home-1", "home-1/x"] {
            assert!(!is_named(full, "home-1"), "{full}");
        }
    }

    #[test]
    fn every_phase_keeps_its_name() {
        for (from, to) in [
            (TransportKind::Connect, SeamErrorKind::Connect),
            (TransportKind::ConnectTimeout, SeamErrorKind::ConnectTimeout),
            (TransportKind::ReadTimeout, SeamErrorKind::ReadTimeout),
            (TransportKind::Read, SeamErrorKind::Read),
            (TransportKind::Write, SeamErrorKind::Write),
            (TransportKind::RemoteProtocol, SeamErrorKind::RemoteProtocol),
            (TransportKind::Deadline, SeamErrorKind::Deadline),
            (TransportKind::Invalid, SeamErrorKind::Validation),
            (TransportKind::TooLarge, SeamErrorKind::Decode),
            (TransportKind::Redirects, SeamErrorKind::Other),
            (TransportKind::RequestBody, SeamErrorKind::Other),
        ] {
            assert_eq!(phase(from), to);
        }
    }

    #[test]
    fn client_errors_keep_kind_and_effect() {
        let rpc = |code| {
            let error = envd::RpcError::new(code, "text");
            SeamError::from(ClientError::rpc("test", &error, &[]))
        };
        assert_eq!(rpc(Code::NotFound).kind(), SeamErrorKind::NotFound);
        assert_eq!(rpc(Code::Unavailable).kind(), SeamErrorKind::Status(503));
        assert_eq!(rpc(Code::Unavailable).effect(), Effect::Unknown);
        assert_eq!(rpc(Code::Unavailable).message(), "test: unavailable: text");
        let edge = ClientError::rpc("test", &envd::RpcError::new(Code::Unavailable, ""), &[]);
        let edge = SeamError::from(edge.with_status(http::StatusCode::BAD_GATEWAY));
        assert_eq!(edge.kind(), SeamErrorKind::Status(502));
        let invalid = SeamError::from(ClientError::invalid("test", "text"));
        assert_eq!((invalid.kind(), invalid.effect()), (SeamErrorKind::Validation, Effect::None));
    }

    #[test]
    fn entries_keep_their_kind_and_size() {
        let info = |file_type, size| envd::EntryInfo { file_type, size, ..envd::EntryInfo::default() };
        for (from, to) in [
            (FileType::File, FileKind::File),
            (FileType::Directory, FileKind::Dir),
            (FileType::Symlink, FileKind::Symlink),
            (FileType::Unspecified, FileKind::Other),
        ] {
            assert_eq!(entry(info(from, 7)).kind, to);
        }
        assert_eq!(entry(info(FileType::File, 7)).size_bytes, Some(7));
        assert_eq!(entry(info(FileType::File, -1)).size_bytes, None);
    }

    #[test]
    fn paused_already_is_success_and_nothing_else_is() {
        let answer = |kind, status: u16| {
            let status = http::StatusCode::from_u16(status).unwrap();
            paused(Err(ClientError::new(kind, "pause", "no").with_status(status))).map_err(|error| error.kind())
        };
        assert_eq!(answer(ClientErrorKind::Status, 409), Ok(()));
        assert_eq!(answer(ClientErrorKind::Status, 500), Err(SeamErrorKind::Status(500)));
        assert_eq!(answer(ClientErrorKind::NotFound, 404), Err(SeamErrorKind::NotFound));
        let lost = ClientError::new(ClientErrorKind::Transport(TransportKind::Read), "pause", "no");
        assert_eq!(paused(Err(lost)).map_err(|error| error.kind()), Err(SeamErrorKind::Read));
        assert!(paused(Ok(())).is_ok());
    }

    #[test]
    fn links_are_links_whatever_they_lead_to() {
        let info = envd::EntryInfo {
            file_type: FileType::Directory,
            symlink_target: Some("/usr".to_owned()),
            ..envd::EntryInfo::default()
        };
        assert_eq!(entry(info).kind, FileKind::Symlink);
    }
}
