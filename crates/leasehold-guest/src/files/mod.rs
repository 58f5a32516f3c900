//! Files of a sandbox for callers outside: E2B's `filesystem.Filesystem` and `GET`/`POST /files`.
//!
//! Everything is done with the rights of the user it is done for (see `actor`), so permissions and symbolic links mean what they
//! mean to that user's own programs. Paths: empty is the sandbox's working directory or the home, `~` the home, relative ones lie
//! under the home. Unlike envd, which acts as root, a user cannot write where it has no right to; user `root` can.
//!
//! Uploads appear whole or not at all (see `staging`); `gzip` as content encoding is refused with 415.
//!
//! The envd face authenticates RPC calls and finds the caller; `/files` does both itself, since signed URLs belong to it:
//!
//! ```no_run
//! use leasehold_guest::files::{Files, Origin};
//! use leasehold_guest::http::{Handler, Request, Response};
//! use leasehold_guest::{Identity, users::Users};
//!
//! struct Envd { files: Files, identity: Identity }
//!
//! impl Handler for Envd {
//!     fn handle(&self, request: &mut Request<'_>, response: Response<'_>) -> std::io::Result<()> {
//!         match request.path() {
//!             "/files" => self.files.serve(&self.identity, Origin::Host, request, response),
//!             "/filesystem.Filesystem/Stat" => {
//!                 let body = request.body().read_to_limit(1 << 20)?;
//!                 let message = serde_json::from_slice(&body)?;
//!                 let answer = self.files.caller(&self.identity, None).and_then(|caller| self.files.stat(&caller, &message));
//!                 match answer {
//!                     Ok(entry) => response.send_json(&entry),
//!                     Err(error) => response.status(error.code().http_status()).send_json(&envd::RpcError::from(error)),
//!                 }
//!             }
//!             _ => response.status(404).send_text("no such route"),
//!         }
//!     }
//! }
//! ```

mod actor;
mod conditional;
mod content_type;
mod entry;
mod error;
mod metadata;
mod multipart;
mod open;
mod path;
mod permissions;
mod relocate;
mod rest;
mod signature;
mod staging;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use envd::{EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest};

pub(crate) use actor::ActingAs;
pub use error::FileError;
pub use staging::TEMPORARY_PREFIX;
pub(crate) use tree::remove as remove_tree;

use crate::identity::Identity;
use crate::users::{User, Users};
use entry::Owners;
use staging::Workshop;
use tree::ListError;

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Through the socket that only the host can reach: the host has checked who may call.
    Host,
    /// Over the sandbox's own loopback: any process of the sandbox. Without an access token it may act as the default user only.
    Loopback,
}

/// For whom something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The user whose rights count.
    pub user: User,
    /// The sandbox's working directory, if it has one; else the user's home.
    pub workdir: Option<String>,
}

impl Caller {
    fn expand(&self, given: &str) -> Result<String, FileError> {
        let home = self.user.home.to_string_lossy();
        let workdir = self.workdir.as_deref().unwrap_or(&home);
        path::expand(given, &home, workdir).map_err(|bad| FileError::bad_path(given, bad))
    }

    fn act(&self, on: &str) -> Result<ActingAs, FileError> {
        ActingAs::user(&self.user).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => FileError::PermissionDenied {
                path: on.to_owned(),
                user: self.user.name.clone(),
                reason: error.to_string(),
            },
            _ => FileError::from_io(error, "act for its user on", on, &self.user.name),
        })
    }

    fn failed(&self, error: impl Into<std::io::Error>, doing: &'static str, path: &str) -> FileError {
        FileError::from_io(error, doing, path, &self.user.name)
    }
}

/// Serves files. Stateless: all state is in the file system and in what calls bring along.
#[derive(Debug, Clone, Default)]
pub struct Files {
    users: Users,
    workshop: Workshop,
}

impl Files {
    /// Serves files of the users listed there.
    #[must_use]
    pub fn new(users: Users) -> Self {
        Self { users, workshop: Workshop::default() }
    }

    /// Makes unfinished uploads in `directory`, which is created if need be, so that watchers of their destinations see nothing of them.
    #[must_use]
    pub fn with_workshop(self, directory: impl Into<PathBuf>) -> Self {
        Self { workshop: Workshop::at(directory.into()), ..self }
    }

    /// The caller that `name` means, or the sandbox's default user.
    ///
    /// # Errors
    /// When nobody is called that.
    pub fn caller(&self, identity: &Identity, name: Option<&str>) -> Result<Caller, FileError> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(&identity.default_user);
        Ok(Caller { user: self.users.by_name(name)?, workdir: identity.default_workdir.clone() })
    }

    /// Describes an entry; a link is not followed, see [`EntryInfo`] for what is told about it.
    ///
    /// # Errors
    /// `not_found`, `permission_denied`, or `invalid_argument` for an unusable path.
    pub fn stat(&self, caller: &Caller, request: &PathRequest) -> Result<EntryResponse, FileError> {
        let path = caller.expand(&request.path)?;
        let _acting = caller.act(&path)?;
        Ok(EntryResponse { entry: self.describe(caller, &path)? })
    }

    /// Makes a directory and its missing parents, mode 0755.
    ///
    /// # Errors
    /// `already_exists` for a directory, `invalid_argument` when something else is in the way, `permission_denied`.
    pub fn make_dir(&self, caller: &Caller, request: &PathRequest) -> Result<EntryResponse, FileError> {
        let path = caller.expand(&request.path)?;
        let _acting = caller.act(&path)?;
        tree::make_new(&path).map_err(|errno| caller.failed(errno, "make directory", &path))?;
        Ok(EntryResponse { entry: self.describe(caller, &path)? })
    }

    /// Lists a directory, depth first, in lexical order. A link to a directory is followed at the root only; a directory below the root
    /// that the user may not read is listed without content.
    ///
    /// # Errors
    /// `not_found`, `invalid_argument` for what is no directory, `permission_denied`, `resource_exhausted` above 100,000 entries.
    pub fn list_dir(&self, caller: &Caller, request: &ListDirRequest) -> Result<ListDirResponse, FileError> {
        let path = caller.expand(&request.path)?;
        let _acting = caller.act(&path)?;
        let entries =
            tree::list(&path, request.depth.max(1), &mut Owners::new(&self.users)).map_err(|error| match error {
                ListError::Io(error) => caller.failed(error, "list", &path),
                ListError::TooMany => FileError::TooManyEntries { path: path.clone(), limit: tree::MAX_LISTED },
            })?;
        Ok(ListDirResponse { entries })
    }

    /// Removes a file, a link, or a directory with all its content; nothing there is fine. The root itself is refused.
    ///
    /// # Errors
    /// `permission_denied`; `invalid_argument` for `/`. What could be removed before is gone.
    pub fn remove(&self, caller: &Caller, request: &PathRequest) -> Result<(), FileError> {
        let path = caller.expand(&request.path)?;
        if path == "/" {
            return Err(FileError::BadRequest("the root directory cannot be removed".to_owned()));
        }
        let _acting = caller.act(&path)?;
        tree::remove(&path).map_err(|errno| caller.failed(errno, "remove", &path))
    }

    /// Moves an entry, making parents of the destination and replacing a file there. Also between file systems, by a copy.
    ///
    /// # Errors
    /// `not_found` without a source, `permission_denied`, `failed_precondition` when a directory with content is in the way.
    pub fn move_entry(&self, caller: &Caller, request: &MoveRequest) -> Result<EntryResponse, FileError> {
        let (source, destination) = (caller.expand(&request.source)?, caller.expand(&request.destination)?);
        let _acting = caller.act(&source)?;
        if fs::symlink_metadata(&source).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Err(FileError::NotFound(source));
        }
        relocate::relocate(&source, &destination).map_err(|error| caller.failed(error, "move to", &destination))?;
        Ok(EntryResponse { entry: self.describe(caller, &destination)? })
    }

    fn describe(&self, caller: &Caller, path: &str) -> Result<EntryInfo, FileError> {
        entry::describe(Path::new(path), path, &mut Owners::new(&self.users))
            .map_err(|error| caller.failed(error, "stat", path))
    }
}
