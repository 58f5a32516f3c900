//! Stored layers: what a sandbox's writable layer holds, in a form that means the same everywhere.
//!
//! An overlay's upper directory is full of local meaning: whiteouts are device nodes, opaque directories an attribute whose name depends on who mounted it,
//! owners are shifted. Mounted in another mode, deleted files come back. So a layer is stored as a tar archive with the marks of the OCI image
//! specification (`.wh.NAME`, `.wh..wh..opq`), owners as seen inside, entries sorted, and named by its digest. What is unpacked from it is a cache for one
//! id mode.
//!
//! | in the upper directory | in the archive |
//! | --- | --- |
//! | character device 0/0 called `x` | empty file `.wh.x` |
//! | directory with `user.overlay.opaque` = `y` | the directory, then `.wh..wh..opq` in it |
//! | file called `.wh.x` | that name, and PAX record `LEASEHOLD.literal` |
//! | the whiteout of `.wh..opq` | `.wh..wh..opq`, and PAX record `LEASEHOLD.whiteout` |
//! | further names of a file | hard links to the first in sort order |
//! | file with holes | GNU sparse format 1.0 |
//! | `user.*` attributes | PAX records `SCHILY.xattr.*` |
//! | sockets | nothing: their processes are gone |
//!
//! Access control lists and attributes outside `user.` are not kept. Times are to the nanosecond; the root directory's own time is not kept, as mounting
//! changes it.

mod attributes;
mod pack;
mod sparse;
mod unpack;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use pack::pack;
pub(crate) use unpack::unpack;

use crate::error::{During, EngineError, ErrorKind};
use crate::paths::{DataDir, IdMode, sync_dir};
use crate::plan::{ID_BASE, ID_COUNT};
use crate::removal::remove_all;
use crate::spec::LayerDigest;

/// Prefix of names that hide something below.
const WHITEOUT: &[u8] = b".wh.";
/// Marks a directory that hides everything below.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Says that a name beginning with [`WHITEOUT`] is just that name.
const LITERAL: &str = "LEASEHOLD.literal";
/// Says that a mark hides a name even if it looks like [`OPAQUE`].
const DELETED: &str = "LEASEHOLD.whiteout";
/// Prefix of PAX records that are extended attributes.
const XATTR: &str = "SCHILY.xattr.";

/// Prefix of what is not finished.
const UNFINISHED: &str = ".new-";

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A name for what is being made; see [`remove_unfinished`].
pub(crate) fn unfinished(directory: &Path) -> PathBuf {
    directory.join(format!("{UNFINISHED}{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)))
}

/// Removes what an earlier process of ours has left unfinished.
pub(crate) fn remove_unfinished(data: &DataDir) -> Result<(), EngineError> {
    for directory in [data.layers(), data.cache()] {
        let listing = fs::read_dir(&directory).during("layer", format_args!("cannot list {}", directory.display()))?;
        for entry in listing.filter_map(Result::ok) {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours = format!("{UNFINISHED}{}-", std::process::id());
            if name.starts_with(UNFINISHED) && !name.starts_with(&ours) {
                remove_all(&entry.path())?;
            }
        }
    }
    Ok(())
}

/// Shift between ids in the archive and on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owners {
    base: u32,
    count: u32,
}

impl Owners {
    pub(crate) const RANGE: Self = Self { base: ID_BASE, count: ID_COUNT };

    /// An owner on disk, as seen inside.
    fn inside(self, outside: u32) -> Option<u32> {
        outside.checked_sub(self.base).filter(|id| *id < self.count)
    }

    /// An owner as seen inside, on disk.
    fn outside(self, inside: u64) -> Option<u32> {
        u32::try_from(inside).ok().filter(|id| *id < self.count).map(|id| self.base + id)
    }
}

fn owners(mode: IdMode) -> Owners {
    match mode {
        IdMode::Range => Owners::RANGE,
    }
}

/// Stores a writable layer. On disk when this returns.
pub(crate) fn store(data: &DataDir, upper: &Path, mode: IdMode) -> Result<LayerDigest, EngineError> {
    const STAGE: &str = "snapshot";
    let temporary = unfinished(&data.layers());
    let write = || {
        let mut file =
            File::create_new(&temporary).during(STAGE, format_args!("cannot make {}", temporary.display()))?;
        let digest = pack(upper, owners(mode), &mut file)?;
        file.sync_all().during(STAGE, "cannot sync the layer")?;
        let target = data.layer(&digest);
        fs::rename(&temporary, &target).during(STAGE, format_args!("cannot make {}", target.display()))?;
        sync_dir(&data.layers())?;
        Ok(digest)
    };
    write().map_err(|error: EngineError| match remove_all(&temporary) {
        Ok(()) => error,
        Err(second) => error.adding(second),
    })
}

/// Where a stored layer is unpacked; unpacks it if need be.
pub(crate) fn unpacked(data: &DataDir, digest: &LayerDigest, mode: IdMode) -> Result<PathBuf, EngineError> {
    const STAGE: &str = "layer";
    let target = data.cached(digest.hex(), mode);
    if target.is_dir() {
        return Ok(target);
    }
    let archive = data.layer(digest);
    let mut file = File::open(&archive).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            EngineError::new(ErrorKind::NotFound, STAGE, "no such layer is stored").of(&digest.to_string())
        }
        _ => EngineError::io(STAGE, format!("cannot open {}", archive.display()), error),
    })?;
    let temporary = unfinished(&data.cache());
    let mut write = || {
        let found = unpack(&mut file, &temporary, owners(mode))?;
        if found != *digest {
            return Err(EngineError::new(ErrorKind::Corrupt, STAGE, format!("the stored archive has digest {found}")));
        }
        // The directory's name promises that it is complete, also after a power failure.
        let directory = File::open(&temporary).during(STAGE, "cannot open what was unpacked")?;
        rustix::fs::syncfs(&directory).during(STAGE, "cannot sync what was unpacked")?;
        match fs::rename(&temporary, &target) {
            // Somebody else was first; both are the same.
            Err(_) if target.is_dir() => remove_all(&temporary),
            other => other
                .during(STAGE, format_args!("cannot make {}", target.display()))
                .and_then(|()| sync_dir(&data.cache())),
        }
    };
    match write() {
        Ok(()) => Ok(target),
        Err(error) => {
            let error = error.of(&digest.to_string());
            Err(match remove_all(&temporary) {
                Ok(()) => error,
                Err(second) => error.adding(second),
            })
        }
    }
}

#[cfg(test)]
mod tests;
