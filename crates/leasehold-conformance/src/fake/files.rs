//! The fake's files: those of this machine, at the lease's real paths.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use leasehold::{ByteStream, ErrorKind, FileEntry, FileKind, Files, RuntimeError};

use super::Fault;
use super::backend::failure;
use super::world::World;

/// How a read is cut into pieces (chosen: small enough that the cases' large file has many).
const PIECE: usize = 1 << 16;

pub(super) struct FakeFiles {
    pub(super) world: Arc<World>,
    pub(super) closed: Arc<AtomicBool>,
}

#[async_trait]
impl Files for FakeFiles {
    async fn exists(&self, path: &str) -> Result<bool, RuntimeError> {
        self.open("exists")?;
        if self.world.breaks(Fault::LookingMakesDirectories) {
            fs::create_dir_all(path).ok();
        }
        Ok(fs::symlink_metadata(path).is_ok())
    }

    async fn make_dir(&self, path: &str) -> Result<bool, RuntimeError> {
        self.open("make_dir")?;
        let was_there = Path::new(path).is_dir();
        fs::create_dir_all(path).map_err(|error| self.error("make_dir", path, &error))?;
        Ok(!was_there || self.world.breaks(Fault::MakeDirIsAlwaysNew))
    }

    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, RuntimeError> {
        self.open("list")?;
        let entries = fs::read_dir(path).map_err(|error| self.error("list", path, &error))?;
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| self.error("list", path, &error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') && self.world.breaks(Fault::ListHidesDotFiles) {
                continue;
            }
            let metadata = entry.metadata().map_err(|error| self.error("list", path, &error))?;
            let kind = match metadata.file_type() {
                kind if kind.is_symlink() => FileKind::Symlink,
                kind if kind.is_dir() => FileKind::Dir,
                kind if kind.is_file() => FileKind::File,
                _ => FileKind::Other,
            };
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            listed.push(FileEntry { name, path, kind, size_bytes: Some(metadata.len()) });
        }
        Ok(listed)
    }

    async fn remove(&self, path: &str) -> Result<(), RuntimeError> {
        self.open("remove")?;
        let is_dir = fs::symlink_metadata(path).is_ok_and(|data| data.is_dir());
        let removed = if is_dir && self.world.breaks(Fault::RemoveLeavesDirectories) {
            super::world::empty(Path::new(path))
        } else if is_dir {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
        removed.map_err(|error| self.error("remove", path, &error))
    }

    async fn read(&self, path: &str) -> Result<ByteStream, RuntimeError> {
        self.open("read")?;
        let mut bytes = fs::read(path).map_err(|error| self.error("read", path, &error))?;
        if self.world.breaks(Fault::FilesAreText) {
            bytes = String::from_utf8_lossy(&bytes).into_owned().into_bytes();
        }
        if self.world.breaks(Fault::ReadsLoseThePiecesAfterTheFirst) {
            bytes.truncate(PIECE);
        }
        let pieces: Vec<_> = bytes.chunks(PIECE).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        Ok(stream::iter(pieces).boxed())
    }

    async fn write(&self, path: &str, body: ByteStream) -> Result<(), RuntimeError> {
        self.open("write")?;
        let path = if self.world.breaks(Fault::NamesAreDecoded) { path.replace("%2F", "_") } else { path.to_owned() };
        let pieces: Vec<Bytes> = body.try_collect().await?;
        let mut contents = pieces.concat();
        let failed = |error: io::Error| self.error("write", &path, &error);
        if let Some(parent) = Path::new(&path).parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        if self.world.breaks(Fault::WritesKeepTheOldTail) {
            let old = fs::read(&path).unwrap_or_default();
            contents.extend(old.into_iter().skip(contents.len()));
        }
        fs::write(&path, contents).map_err(failed)?;
        if self.world.breaks(Fault::WrittenFilesAreElsewhere) {
            fs::remove_file(&path).map_err(failed)?;
        }
        Ok(())
    }
}

impl FakeFiles {
    fn open(&self, operation: &'static str) -> Result<(), RuntimeError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(failure(ErrorKind::Closed, operation, "the lease was released").without_effect());
        }
        Ok(())
    }

    fn error(&self, operation: &'static str, path: &str, error: &io::Error) -> RuntimeError {
        let kind = match error.kind() {
            io::ErrorKind::NotFound if !self.world.breaks(Fault::MissingFileIsInternal) => ErrorKind::NotFound,
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
                if !self.world.breaks(Fault::WrongTypeIsInternal) =>
            {
                ErrorKind::Conflict
            }
            _ => ErrorKind::Internal,
        };
        failure(kind, operation, format!("{path}: {error}"))
    }
}
