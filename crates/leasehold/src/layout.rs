//! Where Home and Workspace are inside a sandbox, and which working directories a lease allows.

use serde::{Deserialize, Serialize};

use crate::{ErrorKind, RuntimeError};

/// The absolute paths of Home and Workspace inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "LayoutWire", into = "LayoutWire")]
pub struct RuntimeLayout {
    home_dir: String,
    workspace_dir: String,
}

impl RuntimeLayout {
    /// Checks both paths: absolute, in normal form (no `.`, `..`, doubled or trailing `/`), not the root, no control characters, not equal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], naming the path and the rule.
    pub fn new(home_dir: impl Into<String>, workspace_dir: impl Into<String>) -> Result<Self, RuntimeError> {
        let layout = Self { home_dir: home_dir.into(), workspace_dir: workspace_dir.into() };
        for (name, path) in [("home_dir", &layout.home_dir), ("workspace_dir", &layout.workspace_dir)] {
            if path == "/" || !path.starts_with('/') || normalise(path) != *path || path.chars().any(char::is_control) {
                return Err(invalid(format!(
                    "{name} {path:?} is not an absolute path in normal form: write it like /home/user"
                )));
            }
        }
        if layout.home_dir == layout.workspace_dir {
            return Err(invalid(format!(
                "home_dir and workspace_dir are both {:?}: give two directories",
                layout.home_dir
            )));
        }
        Ok(layout)
    }

    /// The agent's Home.
    #[must_use]
    pub fn home_dir(&self) -> &str {
        &self.home_dir
    }

    /// The task's Workspace.
    #[must_use]
    pub fn workspace_dir(&self) -> &str {
        &self.workspace_dir
    }

    /// The working directory that a command gets: none or empty = the Workspace, `~` = Home, relative = under the Workspace.
    ///
    /// The path is normalised as text (symbolic links are not followed) and must lie under Home or Workspace.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it lies elsewhere.
    pub fn resolve_cwd(&self, cwd: Option<&str>) -> Result<String, RuntimeError> {
        let joined = match cwd {
            None | Some("") => return Ok(self.workspace_dir.clone()),
            Some("~") => return Ok(self.home_dir.clone()),
            Some(path) => match path.strip_prefix("~/") {
                Some(rest) => format!("{}/{rest}", self.home_dir),
                None if path.starts_with('/') => path.to_owned(),
                None => format!("{}/{path}", self.workspace_dir),
            },
        };
        let path = normalise(&joined);
        if self.contains(&path) {
            return Ok(path);
        }
        Err(invalid(format!(
            "cwd {path:?} is outside of {} and {}: use a directory under one of them",
            self.home_dir, self.workspace_dir
        )))
    }

    /// Whether a normalised absolute path is Home, Workspace, or below one of them.
    fn contains(&self, path: &str) -> bool {
        [&self.home_dir, &self.workspace_dir]
            .into_iter()
            .any(|root| path.strip_prefix(root.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

fn invalid(message: String) -> RuntimeError {
    RuntimeError::new(ErrorKind::InvalidInput, "layout", "leasehold", message).without_effect()
}

/// Resolves `.`, `..` and doubled slashes of an absolute path as text.
fn normalise(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutWire {
    home_dir: String,
    workspace_dir: String,
}

impl TryFrom<LayoutWire> for RuntimeLayout {
    type Error = RuntimeError;

    fn try_from(wire: LayoutWire) -> Result<Self, RuntimeError> {
        Self::new(wire.home_dir, wire.workspace_dir)
    }
}

impl From<RuntimeLayout> for LayoutWire {
    fn from(layout: RuntimeLayout) -> Self {
        Self { home_dir: layout.home_dir, workspace_dir: layout.workspace_dir }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_directories_follow_the_adapter_rules() {
        let layout = RuntimeLayout::new("/home/dify", "/workspace").unwrap();
        for (given, expected) in [
            (None, "/workspace"),
            (Some(""), "/workspace"),
            (Some("~"), "/home/dify"),
            (Some("~/x"), "/home/dify/x"),
            (Some("src"), "/workspace/src"),
            (Some("."), "/workspace"),
            (Some("a/../b//c/"), "/workspace/b/c"),
            (Some("/workspace/a/.."), "/workspace"),
            (Some("/home/dify"), "/home/dify"),
            (Some("../home/dify/x"), "/home/dify/x"),
            (Some("~x"), "/workspace/~x"),
        ] {
            assert_eq!(layout.resolve_cwd(given).unwrap(), expected, "{given:?}");
        }
        for outside in
            ["/", "/tmp", "/workspacex", "/home", "/home/dify/..", "~/..", "..", "/workspace/../etc", "/../.."]
        {
            let error = layout.resolve_cwd(Some(outside)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{outside} passed");
        }
    }

    #[test]
    fn layouts_must_be_absolute_and_normal() {
        for bad in ["", "home", "/", "/a/", "/a//b", "/a/../b", "/a\n"] {
            assert!(RuntimeLayout::new(bad, "/workspace").is_err(), "{bad:?} passed");
            assert!(RuntimeLayout::new("/home/user", bad).is_err(), "{bad:?} passed");
        }
        assert!(RuntimeLayout::new("/same", "/same").is_err());
    }
}
