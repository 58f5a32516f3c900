//! The guest that is built into the engine, and where it is put.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::error::{During, EngineError};
use crate::paths::{DataDir, private_dir, set_mode};
use crate::spec::hex;

static GUEST: &[u8] = include_bytes!(env!("LEASEHOLD_GUEST_BINARY"));

/// Puts the guest into the data directory unless it is there, and says where.
///
/// The path holds the digest: a running sandbox keeps its guest when the engine is upgraded.
pub(crate) fn install(data: &DataDir) -> Result<PathBuf, EngineError> {
    const STAGE: &str = "guest binary";
    let directory = data.guests().join(hex(&Sha256::digest(GUEST)));
    let path = directory.join("leasehold-guest");
    let complete = fs::metadata(&path)
        .is_ok_and(|found| found.len() == GUEST.len() as u64 && found.permissions().mode() & 0o777 == 0o755);
    if complete {
        return Ok(path);
    }
    private_dir(&directory)?;
    let temporary = directory.join(format!(".new-{}", std::process::id()));
    let mut file = File::create(&temporary).during(STAGE, temporary.display())?;
    file.write_all(GUEST).and_then(|()| file.sync_all()).during(STAGE, temporary.display())?;
    drop(file);
    set_mode(&temporary, 0o755)?;
    fs::rename(&temporary, &path).during(STAGE, path.display())?;
    Ok(path)
}
