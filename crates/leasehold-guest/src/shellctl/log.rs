//! A file that output is appended to, up to a bound.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all logs together may still take.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    /// Takes as much of `wanted` as there is.
    fn take(&self, wanted: u64) -> u64 {
        let mut taken = 0;
        let take = |used: u64| {
            taken = wanted.min(self.limit.saturating_sub(used));
            Some(used + taken)
        };
        // The closure never says None, so the update succeeds.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok();
        taken
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether `wanted` bytes would not fit.
    pub(super) fn lacks(&self, wanted: u64) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(wanted) > self.limit
    }
}

/// One log. What does not fit is counted and discarded; nothing is ever taken from its start, so offsets stay true.
#[derive(Debug)]
pub(super) struct Log {
    /// `None` once nothing more is written: a thousand finished jobs must not hold a descriptor each.
    file: Option<Arc<File>>,
    size: u64,
    limit: u64,
    discarded: u64,
    budget: Arc<Budget>,
}

impl Log {
    /// Appends to `file`, which holds `size` bytes already.
    pub(super) fn new(file: File, size: u64, limit: u64, budget: Arc<Budget>) -> Self {
        // What is there counts even if it exceeds the budget: old jobs go when new ones need the space.
        budget.used.fetch_add(size, Ordering::Relaxed);
        Self { file: Some(Arc::new(file)), size, limit, discarded: 0, budget }
    }

    /// Another log of the same bounds.
    pub(super) fn sibling(&self, file: File) -> Self {
        Self::new(file, 0, self.limit, Arc::clone(&self.budget))
    }

    /// The file, while it is open.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        self.file.clone()
    }

    /// Closes the file. What is still offered counts as discarded.
    pub(super) fn close(&mut self) {
        self.file = None;
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that did not fit.
    pub(super) fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Gives the space back. For logs that nobody reads any more.
    pub(super) fn empty(&mut self) {
        // Otherwise, or if that fails, the space comes back when the file is removed.
        if let Some(file) = self.file.take() {
            file.set_len(0).ok();
        }
        self.budget.give_back(std::mem::take(&mut self.size));
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        let room = if self.discarded > 0 { 0 } else { length.min(self.limit.saturating_sub(self.size)) };
        let room = self.budget.take(room);
        let fits = &bytes[..usize::try_from(room).expect("at most the length of the slice")];
        let written = self.write(fits);
        self.budget.give_back(room - written);
        if written < length {
            if self.discarded == 0 && written == room {
                self.say_full();
            }
            self.discarded += length - written;
        }
    }

    /// Writes at the end; returns how much the disk took.
    fn write(&mut self, mut bytes: &[u8]) -> u64 {
        let before = self.size;
        let Some(file) = &self.file else { return 0 };
        while !bytes.is_empty() {
            match file.write_at(bytes, self.size) {
                Ok(count) if count > 0 => {
                    self.size += count as u64;
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The disk is full, or worse: the count of discarded bytes tells.
                _ => break,
            }
        }
        self.size - before
    }

    /// Readers who know nothing of `discarded_bytes` see it too. A few bytes over the limit.
    fn say_full(&mut self) {
        let line = format!("\n[leasehold: output is full at {} bytes, the rest is discarded]\n", self.size);
        let written = self.write(line.as_bytes());
        self.budget.used.fetch_add(written, Ordering::Relaxed);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.budget.give_back(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limit: u64, budget: &Arc<Budget>) -> Log {
        Log::new(tempfile::tempfile().unwrap(), 0, limit, Arc::clone(budget))
    }

    fn content(log: &Log) -> String {
        let mut bytes = vec![0; usize::try_from(log.size()).unwrap()];
        log.file().unwrap().read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_full_log_says_so_once_and_counts_the_rest() {
        let budget = Arc::new(Budget::new(1000));
        let mut log = log(10, &budget);
        log.append(b"0123456789");
        assert_eq!((content(&log).as_str(), log.discarded()), ("0123456789", 0));
        log.append(b"ab");
        log.append(b"cd");
        assert_eq!(log.discarded(), 4);
        assert_eq!(content(&log), "0123456789\n[leasehold: output is full at 10 bytes, the rest is discarded]\n");
    }

    #[test]
    fn logs_share_a_budget_and_give_it_back() {
        let budget = Arc::new(Budget::new(10));
        let mut first = log(100, &budget);
        first.append(b"01234567");
        let mut second = log(100, &budget);
        second.append(b"0123");
        assert_eq!(second.discarded(), 2);
        assert!(content(&second).starts_with("01\n["));
        assert!(budget.lacks(1));
        drop((first, second));
        assert!(!budget.lacks(10));
    }
}
