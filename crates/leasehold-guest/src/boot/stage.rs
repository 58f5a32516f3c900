//! Host files that the sandbox needs, opened while they can be.
//!
//! The data directory is closed to everyone but its owner. The first process still has the owner's id for a moment; after it has become the mapped root,
//! which no host directory knows, only descriptors opened before lead there. They must be opened in its own mount namespace, as the kernel refuses to
//! bind or stack what belongs to another.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::failure::{During, Failure};
use super::overlay::Layers;
use super::plan::{BootPlan, Step};

/// The null device of the host, behind which files are hidden.
pub(super) const NULL: &str = "/dev/null";

/// Everything the plan names on the host.
pub(super) struct Sources {
    opened: BTreeMap<PathBuf, OwnedFd>,
    pub(super) layers: Layers,
    pub(super) mountpoint: OwnedFd,
}

impl Sources {
    pub(super) fn open(plan: &BootPlan) -> Result<Self, Failure> {
        let named = plan.steps.iter().filter_map(|step| match step {
            Step::Bind { source, .. } => Some(source.as_path()),
            Step::Mask { empty, .. } => Some(empty.as_path()),
            _ => None,
        });
        let opened = named
            .chain([Path::new(NULL)])
            .map(|path| Ok((path.to_owned(), open(path)?)))
            .collect::<Result<_, Failure>>()?;
        let layers = Layers {
            lowers: plan.root.lowers.iter().map(|path| open(path)).collect::<Result<_, _>>()?,
            upper: open(&plan.root.upper)?,
            work: open(&plan.root.work)?,
        };
        Ok(Self { opened, layers, mountpoint: open(&plan.root.mountpoint)? })
    }

    pub(super) fn get(&self, path: &Path) -> Result<&OwnedFd, Failure> {
        self.opened.get(path).ok_or_else(|| Failure::new("sources", format!("{} was not opened", path.display())))
    }
}

fn open(path: &Path) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()).at(
        "sources",
        "cannot open",
        path,
    )
}
