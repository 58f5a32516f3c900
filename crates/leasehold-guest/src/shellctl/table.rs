//! All jobs, in the order of their start, and which of them are kept.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use shellctl::{ErrorCode, JobId, JobInfo, JobStatus, Timestamp};

use super::job::Job;
use super::log::Budget;
use super::{Bounds, Refusal};

/// All jobs. The lock of the table comes before that of a job: whoever holds a job's must not call what takes the table's.
#[derive(Debug)]
pub(super) struct Table {
    bounds: Bounds,
    pub(super) budget: Arc<Budget>,
    /// Jobs that were admitted and have not ended. Not under the lock, since ends are noted from within jobs.
    running: AtomicUsize,
    jobs: Mutex<Jobs>,
}

#[derive(Debug, Default)]
struct Jobs {
    in_order: BTreeMap<u64, Arc<Job>>,
    by_id: HashMap<JobId, u64>,
    next: u64,
}

/// The right to start one job; given back when dropped unused.
#[derive(Debug)]
pub(super) struct Place {
    table: Arc<Table>,
    used: bool,
}

impl Place {
    /// The job runs: its end gives the place back.
    pub(super) fn taken(mut self) {
        self.used = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.used {
            self.table.note_end();
        }
    }
}

impl Table {
    pub(super) fn new(bounds: Bounds) -> Self {
        let budget = Arc::new(Budget::new(bounds.total_bytes));
        Self { bounds, budget, running: AtomicUsize::new(0), jobs: Mutex::default() }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn output_limit(&self) -> u64 {
        self.bounds.output_bytes
    }

    /// Admits one more running job.
    pub(super) fn admit(self: &Arc<Self>) -> Result<Place, Refusal> {
        let more = |running: usize| (running < self.bounds.running).then_some(running + 1);
        match self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Place { table: Arc::clone(self), used: false }),
            Err(running) => {
                let message = format!("{running} jobs run already, no more are started: terminate some");
                Err(Refusal::new(ErrorCode::TooManyJobs, message))
            }
        }
    }

    /// A job ended, or was not started after all. Takes no lock.
    pub(super) fn note_end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a job as the newest.
    pub(super) fn insert(&self, job: Arc<Job>) {
        let mut jobs = self.jobs();
        let number = jobs.next;
        jobs.next += 1;
        jobs.by_id.insert(job.id.clone(), number);
        jobs.in_order.insert(number, job);
    }

    pub(super) fn get(&self, id: &JobId) -> Result<Arc<Job>, Refusal> {
        let jobs = self.jobs();
        let found = jobs.by_id.get(id).and_then(|number| jobs.in_order.get(number)).cloned();
        found.ok_or_else(|| Refusal::new(ErrorCode::JobNotFound, format!("job {id} does not exist")))
    }

    /// Takes a job out. `None` when somebody else has.
    pub(super) fn remove(&self, id: &JobId) -> Option<Arc<Job>> {
        let mut jobs = self.jobs();
        let number = jobs.by_id.remove(id)?;
        jobs.in_order.remove(&number)
    }

    /// The newest jobs, newest first.
    pub(super) fn list(&self, status: Option<JobStatus>, limit: u64) -> Vec<JobInfo> {
        let jobs: Vec<_> = self.jobs().in_order.values().rev().cloned().collect();
        let infos = jobs.iter().map(|job| job.info());
        let wanted = infos.filter(|info| status.is_none_or(|status| info.status == status));
        wanted.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
    }

    /// Takes out the finished jobs that are too old or too many. Returns their directories, for the caller to remove.
    #[must_use]
    pub(super) fn expire(&self) -> Vec<PathBuf> {
        let now = Timestamp::from(SystemTime::now()).unix_seconds();
        let kept_for = i64::try_from(self.bounds.kept_for.as_secs()).unwrap_or(i64::MAX);
        let mut jobs = self.jobs();
        let finished: Vec<_> =
            jobs.in_order.iter().filter_map(|(number, job)| Some((*number, job.ended_at()?))).collect();
        let too_many = finished.len().saturating_sub(self.bounds.finished);
        let mut evicted = Vec::new();
        for (position, (number, ended_at)) in finished.into_iter().enumerate() {
            if position < too_many || now.saturating_sub(ended_at.unix_seconds()) > kept_for {
                evicted.extend(jobs.evict(number));
            }
        }
        evicted
    }

    /// Makes room for `bytes` of output, if there is none, by taking out the oldest finished jobs. Returns their directories, for the
    /// caller to remove.
    #[must_use]
    pub(super) fn make_room(&self, bytes: u64) -> Vec<PathBuf> {
        let mut evicted = Vec::new();
        while self.budget.lacks(bytes) {
            let mut jobs = self.jobs();
            let oldest = jobs.in_order.iter().find(|(_, job)| job.is_done()).map(|(number, _)| *number);
            let Some(oldest) = oldest else { break };
            evicted.extend(jobs.evict(oldest));
        }
        evicted
    }
}

impl Jobs {
    fn evict(&mut self, number: u64) -> Option<PathBuf> {
        let job = self.in_order.remove(&number)?;
        self.by_id.remove(&job.id);
        job.empty();
        Some(job.directory.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shellctl::Mode;

    use super::*;
    use crate::shellctl::log::Log;
    use crate::users::User;

    fn table(finished: usize, total_bytes: u64) -> Arc<Table> {
        let bounds =
            Bounds { output_bytes: 1000, total_bytes, kept_for: Duration::from_secs(3600), finished, running: 2 };
        Arc::new(Table::new(bounds))
    }

    fn user() -> User {
        User { name: "u".into(), uid: 0, gid: 0, groups: vec![0], home: "/".into(), shell: "/bin/sh".into() }
    }

    fn add(table: &Table, id: &str, bytes: &[u8]) -> Arc<Job> {
        let mut output = Log::new(tempfile::tempfile().unwrap(), 0, 1000, Arc::clone(&table.budget));
        output.append(bytes);
        let id = JobId::new(id).unwrap();
        let directory = PathBuf::from("/jobs").join(id.as_str());
        let job = Arc::new(Job::new(id, directory, user(), Mode::Stdio, output));
        table.insert(Arc::clone(&job));
        job
    }

    fn ids(table: &Table, status: Option<JobStatus>, limit: u64) -> Vec<String> {
        table.list(status, limit).into_iter().map(|info| info.job_id.to_string()).collect()
    }

    #[test]
    fn listings_are_newest_first_and_filtered_before_they_are_cut() {
        let table = table(10, 1000);
        for id in ["a", "b", "c"] {
            add(&table, id, b"");
        }
        table.get(&JobId::new("a").unwrap()).unwrap().did_not_start(None, "x");
        assert_eq!(ids(&table, None, 2), ["c", "b"]);
        assert_eq!(ids(&table, Some(JobStatus::Failed), 1), ["a"]);
    }

    #[test]
    fn only_so_many_finished_jobs_are_kept_and_running_ones_always() {
        let table = table(2, 1000);
        for id in ["a", "b", "c", "d"] {
            let job = add(&table, id, b"");
            if id != "a" {
                job.did_not_start(None, "x");
            }
        }
        assert_eq!(table.expire(), [PathBuf::from("/jobs/b")]);
        assert_eq!(ids(&table, None, 10), ["d", "c", "a"]);
        assert!(table.get(&JobId::new("b").unwrap()).is_err());
    }

    #[test]
    fn output_of_the_oldest_finished_jobs_gives_way() {
        let table = table(10, 100);
        add(&table, "running", &[b'x'; 40]);
        add(&table, "old", &[b'x'; 30]).did_not_start(None, "x");
        add(&table, "young", &[b'x'; 30]).did_not_start(None, "x");
        assert_eq!(table.make_room(20), [PathBuf::from("/jobs/old")]);
        assert_eq!(ids(&table, None, 10), ["young", "running"]);
        assert_eq!(table.make_room(1000).len(), 1);
        assert_eq!(ids(&table, None, 10), ["running"]);
    }

    #[test]
    fn places_are_limited_and_come_back() {
        let table = table(10, 100);
        let first = table.admit().unwrap();
        table.admit().unwrap().taken();
        assert_eq!(table.admit().unwrap_err().code, ErrorCode::TooManyJobs);
        drop(first);
        table.admit().unwrap().taken();
        table.note_end();
        assert!(table.admit().is_ok());
    }
}
