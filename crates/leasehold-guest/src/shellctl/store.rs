//! Directories of jobs: `<state>/jobs/<sandbox>/<id>/` with `script` and `output.log`, and `stderr.log` once a job of mode `stdio` complains. How
//! a job ended is an attribute of `output.log`, or `job.json` where there are no attributes; a directory without either is a job that
//! was cut off.
//!
//! The sandbox's id is in the path, since a sandbox made from a snapshot of another must not show that one's jobs. Making a file is what costs most
//! of a short job's time on our side (80 µs each on ext4, December 2026), so none is made before it is needed.
//!
//! They belong to the user that runs the jobs, so all work in them is done as that user, and what is read back from them is checked: it
//! is the user's word, not ours.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Mode as FileMode, OFlags, Uid, XattrFlags, fchmod, fchown, fgetxattr, fsetxattr, fstat, open};
use serde::{Deserialize, Serialize};
use shellctl::{ErrorCode, JobId, JobStatus, Timestamp};

use super::Refusal;
use super::job::Job;
use super::log::Log;
use super::table::Table;
use crate::files::{ActingAs, remove_tree};
use crate::users::User;

/// Tries to find a free id before giving up. With 64 random bits the second is never needed.
const ID_TRIES: usize = 20;
/// Longest record that is read back, in bytes.
const MAX_RECORD_BYTES: u64 = 16 << 10;

const SCRIPT: &str = "script";
const OUTPUT: &str = "output.log";
const ERRORS: &str = "stderr.log";
const RECORD: &str = "job.json";
const RECORD_ATTRIBUTE: &str = "user.leasehold.job";

/// What is remembered of a job over a cold start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) status: JobStatus,
    pub(super) exit_code: Option<i32>,
    pub(super) created_at: Timestamp,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) reason: Option<String>,
}

/// A job's directory, made for it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) id: JobId,
    pub(super) directory: PathBuf,
    pub(super) script: PathBuf,
    pub(super) output: Log,
}

#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
}

impl Store {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn jobs(&self, sandbox_id: &str) -> PathBuf {
        self.root.join("jobs").join(directory_name(sandbox_id))
    }

    /// Makes the state directory and gives it to `user`. Its parents stay root's, so nobody else can put something in its place.
    fn own(&self, user: &User) -> io::Result<()> {
        match fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = open(&self.root, flags, FileMode::empty())?;
        let found = fstat(&root)?;
        if found.st_uid != user.uid {
            fchown(&root, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
        }
        if found.st_mode & 0o777 != 0o700 {
            fchmod(&root, FileMode::RWXU)?;
        }
        Ok(())
    }

    /// Makes the directory of a new job.
    pub(super) fn prepare(
        &self,
        user: &User,
        sandbox_id: &str,
        script: &str,
        table: &Table,
    ) -> Result<Prepared, Refusal> {
        let failed = |error: io::Error| Refusal::internal("make the job's directory", &error);
        self.own(user).map_err(failed)?;
        let _acting = ActingAs::user(user).map_err(failed)?;
        let jobs = self.jobs(sandbox_id);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&jobs).map_err(failed)?;
        for _ in 0..ID_TRIES {
            let id = random_id().map_err(failed)?;
            let directory = jobs.join(id.as_str());
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => {
                    return fill(id, &directory, script, table).map_err(|error| {
                        // The first error is the one to report; an unfinished directory goes at the next boot at the latest.
                        remove_tree(&directory.to_string_lossy()).ok();
                        failed(error)
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Refusal::new(ErrorCode::JobIdCollision, format!("no free job id found in {ID_TRIES} tries")))
    }

    /// The jobs of an earlier boot of this sandbox, oldest first. Removes those of the sandbox whose snapshot this one was made from.
    pub(super) fn recover(&self, user: &User, sandbox_id: &str, table: &Table) -> Vec<Arc<Job>> {
        let Ok(_acting) = ActingAs::user(user) else { return Vec::new() };
        let own = directory_name(sandbox_id);
        let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        for stranger in entries(&self.root.join("jobs")).filter(|entry| entry.file_name() != *own) {
            remove_tree(&stranger.path().to_string_lossy()).ok();
        }
        let mut found = Vec::new();
        for entry in entries(&self.jobs(sandbox_id)) {
            let directory = entry.path();
            let id = entry.file_name().to_str().and_then(|name| JobId::new(name).ok());
            match id.and_then(|id| recover_one(id, &directory, user, table)) {
                Some(job) => found.push(Arc::new(job)),
                None => drop(remove_tree(&directory.to_string_lossy())),
            }
        }
        found.sort_by_key(|job| job.created_at);
        found
    }
}

/// The sandbox's id as the name of a directory: as it is, or its bytes in hexadecimal when it could not be one.
fn directory_name(sandbox_id: &str) -> String {
    match JobId::new(sandbox_id) {
        Ok(usable) => usable.into(),
        Err(_) => sandbox_id.bytes().take(100).map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Removes directories of jobs. What fails is left to the next boot.
pub(super) fn remove(user: &User, directories: impl IntoIterator<Item = PathBuf>) {
    let mut directories = directories.into_iter().peekable();
    if directories.peek().is_none() {
        return;
    }
    let Ok(_acting) = ActingAs::user(user) else { return };
    for directory in directories {
        remove_tree(&directory.to_string_lossy()).ok();
    }
}

/// Opens a file in a job's directory again. No links and no pipes: both would be the user's doing.
fn open_again(directory: &Path, name: &str) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(directory.join(name))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Opens the output of a job that is over.
pub(super) fn open_output(user: &User, directory: &Path) -> io::Result<File> {
    let _acting = ActingAs::user(user)?;
    open_again(directory, OUTPUT)
}

/// Makes a file in a job's directory.
pub(super) fn create(directory: &Path, name: &str, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(directory.join(name))
}

/// The same for a thread that does not act as the job's user yet.
fn create_as(user: &User, directory: &Path, name: &str) -> io::Result<File> {
    let _acting = ActingAs::user(user)?;
    create(directory, name, 0o600)
}

/// The file for what a job of mode `stdio` writes to stderr.
pub(super) fn create_errors(user: &User, directory: &Path) -> io::Result<File> {
    create_as(user, directory, ERRORS)
}

/// Writes down how a job ended: as an attribute of its output, which takes microseconds, or where the file system has none as a file. That one
/// gets a temporary name first: a record that is there is whole.
pub(super) fn keep(user: &User, directory: &Path, output: &File, record: &Record) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?;
    if fsetxattr(output, RECORD_ATTRIBUTE, &bytes, XattrFlags::empty()).is_ok() {
        return Ok(());
    }
    let _acting = ActingAs::user(user)?;
    let temporary = directory.join("job.new");
    create(directory, "job.new", 0o600)?.write_all(&bytes)?;
    fs::rename(temporary, directory.join(RECORD))
}

/// What [`keep`] wrote.
fn kept(output: &File, file: Option<File>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(MAX_RECORD_BYTES).ok()?];
    if let Ok(length) = fgetxattr(output, RECORD_ATTRIBUTE, &mut bytes) {
        bytes.truncate(length);
        return Some(bytes);
    }
    bytes.clear();
    file?.take(MAX_RECORD_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn random_id() -> io::Result<JobId> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(JobId::new(format!("{:016x}", u64::from_ne_bytes(bytes))).expect("16 hexadecimal digits are a job id"))
}

fn fill(id: JobId, directory: &Path, script: &str, table: &Table) -> io::Result<Prepared> {
    let script_mode = if script.starts_with("#!") { 0o700 } else { 0o600 };
    create(directory, SCRIPT, script_mode)?.write_all(script.as_bytes())?;
    let output = Log::new(create(directory, OUTPUT, 0o600)?, 0, table.output_limit(), Arc::clone(&table.budget));
    Ok(Prepared { id, directory: directory.to_owned(), script: directory.join(SCRIPT), output })
}

fn recover_one(id: JobId, directory: &Path, user: &User, table: &Table) -> Option<Job> {
    let output = open_again(directory, OUTPUT).ok()?;
    let record = match kept(&output, open_again(directory, RECORD).ok()) {
        Some(bytes) => {
            let record: Record = serde_json::from_slice(&bytes).ok()?;
            record.status.is_done().then_some(record)?
        }
        None => Record {
            status: JobStatus::Lost,
            exit_code: None,
            created_at: Timestamp::from(open_again(directory, SCRIPT).ok()?.metadata().ok()?.modified().ok()?),
            started_at: None,
            ended_at: None,
            reason: Some("the sandbox was started anew while it ran".to_owned()),
        },
    };
    let size = output.metadata().ok()?.len();
    let log = Log::new(output, size, table.output_limit(), Arc::clone(&table.budget));
    Some(Job::recovered(id, directory.to_owned(), user.clone(), log, record))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::time::SystemTime;

    use super::super::Bounds;
    use super::*;

    fn user() -> User {
        User {
            name: "u".into(),
            uid: 54_321,
            gid: 54_322,
            groups: vec![54_322],
            home: "/".into(),
            shell: "/bin/sh".into(),
        }
    }

    /// A state directory below one that everybody can pass through, as in a sandbox.
    fn scratch() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let store = Store::new(dir.path().join("state/shellctl"));
        (dir, store)
    }

    fn table() -> Table {
        Table::new(Bounds::default())
    }

    fn remember(prepared: &Prepared) {
        let record = Record {
            status: JobStatus::Exited,
            exit_code: Some(3),
            created_at: SystemTime::now().into(),
            started_at: None,
            ended_at: None,
            reason: None,
        };
        keep(&user(), &prepared.directory, &prepared.output.file().unwrap(), &record).unwrap();
    }

    #[test]
    fn a_jobs_files_belong_to_its_user_and_are_closed_to_others() {
        let (_dir, store) = scratch();
        let prepared = store.prepare(&user(), "here", "#!/bin/sh\n", &table()).unwrap();
        assert_eq!(prepared.id.as_str().len(), 16);
        assert_eq!(fs::read_to_string(&prepared.script).unwrap(), "#!/bin/sh\n");
        for (name, mode) in [("", 0o700), (SCRIPT, 0o700), (OUTPUT, 0o600)] {
            let found = fs::metadata(prepared.directory.join(name)).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (54_321, 54_322, mode), "{name:?}");
        }
        assert_eq!(fs::metadata(&store.root).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(store.root.parent().unwrap()).unwrap().uid(), 0);
        let plain = store.prepare(&user(), "here", "echo", &table()).unwrap();
        assert_eq!(fs::metadata(&plain.script).unwrap().mode() & 0o777, 0o600);
        create_errors(&user(), &plain.directory).unwrap();
        assert_eq!(fs::metadata(plain.directory.join(ERRORS)).unwrap().uid(), 54_321);
    }

    #[test]
    fn finished_jobs_come_back_running_ones_are_lost_and_strangers_go() {
        let (_dir, store) = scratch();
        let prepare = |sandbox| store.prepare(&user(), sandbox, "x", &table()).unwrap();
        let (done, running, stranger, empty) = (prepare("here"), prepare("here"), prepare("a/b"), prepare("here"));
        remember(&done);
        fs::write(done.directory.join(OUTPUT), "output").unwrap();
        remember(&stranger);
        fs::remove_file(empty.directory.join(OUTPUT)).unwrap();
        let table = table();
        let jobs = store.recover(&user(), "here", &table);
        let find = |prepared: &Prepared| jobs.iter().find(|job| job.id == prepared.id).map(|job| job.view());
        let view = find(&done).unwrap();
        assert_eq!((view.status, view.exit_code, view.offset), (JobStatus::Exited, Some(3), 6));
        let view = find(&running).unwrap();
        assert_eq!((view.status, view.exit_code, view.done), (JobStatus::Lost, None, true));
        assert_eq!(jobs.len(), 2);
        assert!(!stranger.directory.exists() && !empty.directory.exists());
    }

    #[test]
    fn what_the_user_put_in_place_of_files_is_not_followed() {
        let (dir, store) = scratch();
        let secret = dir.path().join("secret");
        fs::write(&secret, "root's").unwrap();
        let (link, pipe, huge) = {
            let prepare = |sandbox| store.prepare(&user(), sandbox, "x", &table()).unwrap();
            (prepare("here"), prepare("here"), prepare("here"))
        };
        for prepared in [&link, &pipe, &huge] {
            remember(prepared);
        }
        fs::remove_file(link.directory.join(OUTPUT)).unwrap();
        std::os::unix::fs::symlink(&secret, link.directory.join(OUTPUT)).unwrap();
        fs::remove_file(pipe.directory.join(OUTPUT)).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            pipe.directory.join(OUTPUT),
            rustix::fs::FileType::Fifo,
            FileMode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        rustix::fs::fremovexattr(&*huge.output.file().unwrap(), RECORD_ATTRIBUTE).ok();
        fs::write(huge.directory.join(RECORD), vec![b' '; 1 << 20]).unwrap();
        assert!(store.recover(&user(), "here", &table()).is_empty());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
    }
}
