//! Messages of `filesystem.Filesystem` and of `POST /files`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::json::{int64, null_as_default};

/// Kind of a directory entry. For a symbolic link it is the kind of the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum FileType {
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// A directory entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// Last component of the path.
    #[serde(default)]
    pub name: String,
    /// Kind; of the target for a symbolic link.
    #[serde(default, rename = "type")]
    pub file_type: FileType,
    /// Absolute path.
    #[serde(default)]
    pub path: String,
    /// Size in bytes.
    #[serde(default, with = "int64")]
    pub size: i64,
    /// Permission bits.
    #[serde(default)]
    pub mode: u32,
    /// The mode as text, as Go's `FileMode` prints it: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`.
    #[serde(default)]
    pub permissions: String,
    /// Owner's name, or its number when it has none.
    #[serde(default)]
    pub owner: String,
    /// Group's name, or its number when it has none.
    #[serde(default)]
    pub group: String,
    /// Last change of the content, RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<String>,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// Metadata kept in extended attributes `user.e2b.*`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Request of `Stat`, `MakeDir` and `Remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRequest {
    /// Absolute, or relative to the user's home; `~` is expanded.
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
}

/// Request of `Move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// What to move.
    #[serde(default, deserialize_with = "null_as_default")]
    pub source: String,
    /// Its new path.
    #[serde(default, deserialize_with = "null_as_default")]
    pub destination: String,
}

/// Request of `ListDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirRequest {
    /// The directory.
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
    /// How deep to descend; 0 means 1, the direct children.
    #[serde(default, deserialize_with = "null_as_default")]
    pub depth: u32,
}

/// Response of `Stat`, `MakeDir` and `Move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryResponse {
    /// The entry.
    #[serde(default, deserialize_with = "null_as_default")]
    pub entry: EntryInfo,
}

/// Response of `ListDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirResponse {
    /// The entries.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<EntryInfo>,
}

/// One written file, as `POST /files` reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedFile {
    /// Absolute path.
    pub path: String,
    /// Last component of the path.
    pub name: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub file_type: String,
    /// Metadata that was stored with it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}
