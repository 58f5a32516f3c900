//! The output of a process on its way to those who follow it.
//!
//! Each subscriber has a queue of bounded size. A full queue holds the process up, as a pipe would, but only for a while: a
//! subscriber that takes nothing in that time is dropped and told so, and the process goes on.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::spec::{ExitInfo, Source};
use crate::clock::Countdown;
use crate::http::poll_fds;

/// Most bytes of output that wait for one subscriber; as many again may be in its hands. Chosen: several round trips of a fast
/// reader, and small beside a sandbox's memory even for many subscribers.
pub const QUEUE_BYTES: usize = 1 << 20;

/// What an event costs beside its bytes, so that many tiny pieces count too.
const EVENT_BYTES: usize = 64;

/// How long a lone subscriber may take nothing before it is dropped. Chosen: longer than a network hiccup.
const PATIENCE_ALONE: Duration = Duration::from_secs(30);

/// The same for one that holds up others.
const PATIENCE_SHARED: Duration = Duration::from_secs(2);

/// What a subscriber hears.
#[derive(Debug, Clone)]
pub enum Event {
    /// Output, in order per source.
    Output(Source, Arc<[u8]>),
    /// The process ended and its output is complete as far as [`ExitInfo::output`] says. Always the last event.
    End(ExitInfo),
    /// The subscriber was too slow and was dropped: output is missing from here on. Always the last event.
    Lagged,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    bytes: usize,
    /// The subscriber left, or its last event is queued: nothing more is added.
    closed: bool,
}

#[derive(Debug)]
struct Channel {
    queue: Mutex<Queue>,
    /// Told when the subscriber takes events or leaves.
    taken: Condvar,
    /// Readable while events wait.
    ready: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No section here can leave its data half changed, so a panic elsewhere does not matter.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    fn push(&self, queue: &mut Queue, event: Event) {
        if let Event::Output(_, bytes) = &event {
            queue.bytes += bytes.len() + EVENT_BYTES;
        } else {
            queue.closed = true;
        }
        queue.events.push_back(event);
        if queue.events.len() == 1 {
            // Cannot block: the counter is 0 or 1.
            rustix::io::write(&self.ready, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Adds output, waiting for room. False when the subscriber is not there any more.
    fn offer(&self, source: Source, bytes: &Arc<[u8]>, patience: Duration) -> bool {
        let mut queue = lock(&self.queue);
        let mut patience = Countdown::new(patience);
        while !queue.closed && queue.bytes > 0 && queue.bytes + bytes.len() > QUEUE_BYTES {
            let slice = patience.slice();
            if slice.is_zero() {
                self.push(&mut queue, Event::Lagged);
                break;
            }
            queue = self.taken.wait_timeout(queue, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.closed {
            return false;
        }
        self.push(&mut queue, Event::Output(source, Arc::clone(bytes)));
        true
    }

    fn close_with(&self, event: Event) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            self.push(&mut queue, event);
        }
    }
}

#[derive(Debug, Default)]
struct Followers {
    channels: Vec<Arc<Channel>>,
    ended: Option<ExitInfo>,
}

/// Hands output to all subscribers.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    followers: Mutex<Followers>,
}

impl Feed {
    /// Follows from now on. After the end, the only event is the end.
    pub(crate) fn subscribe(&self) -> io::Result<Subscription> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let channel = Arc::new(Channel { queue: Mutex::default(), taken: Condvar::new(), ready });
        let mut followers = lock(&self.followers);
        match followers.ended {
            Some(exit) => channel.close_with(Event::End(exit)),
            None => followers.channels.push(Arc::clone(&channel)),
        }
        Ok(Subscription { channel })
    }

    /// Hands output to every subscriber; without any it is discarded.
    pub(crate) fn publish(&self, source: Source, bytes: &[u8]) {
        let channels = lock(&self.followers).channels.clone();
        if channels.is_empty() {
            return;
        }
        let bytes: Arc<[u8]> = bytes.into();
        let patience = if channels.len() == 1 { PATIENCE_ALONE } else { PATIENCE_SHARED };
        let mut left = Vec::new();
        for channel in &channels {
            if !channel.offer(source, &bytes, patience) {
                left.push(Arc::as_ptr(channel));
            }
        }
        if !left.is_empty() {
            lock(&self.followers).channels.retain(|channel| !left.contains(&Arc::as_ptr(channel)));
        }
    }

    /// Tells every subscriber, also later ones, that the process ended.
    pub(crate) fn end(&self, exit: ExitInfo) {
        let mut followers = lock(&self.followers);
        followers.ended = Some(exit);
        for channel in followers.channels.drain(..) {
            channel.close_with(Event::End(exit));
        }
    }
}

/// One subscriber's end. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    channel: Arc<Channel>,
}

impl Subscription {
    /// Moves all waiting events to the end of `events`, which makes room for more.
    pub fn take(&self, events: &mut VecDeque<Event>) {
        let mut queue = lock(&self.channel.queue);
        if queue.events.is_empty() {
            return;
        }
        rustix::io::read(&self.channel.ready, &mut [0; 8]).ok();
        events.append(&mut queue.events);
        queue.bytes = 0;
        self.channel.taken.notify_all();
    }

    /// Waits until events are there, or for `timeout`. Whether they are.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        Ok(poll_fds(&mut [PollFd::new(&self.channel.ready, PollFlags::IN)], timeout)? > 0)
    }
}

impl AsFd for Subscription {
    /// Readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.ready.as_fd()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut queue = lock(&self.channel.queue);
        queue.closed = true;
        queue.events.clear();
        self.channel.taken.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Exit, OutputEnd};
    use super::*;

    const EXIT: ExitInfo = ExitInfo { exit: Exit::Code(0), output: OutputEnd::Complete };

    fn taken(subscription: &Subscription) -> Vec<Event> {
        let mut events = VecDeque::new();
        subscription.take(&mut events);
        events.into()
    }

    #[test]
    fn events_come_in_order_and_the_end_is_last_and_once() {
        let feed = Feed::default();
        let early = feed.subscribe().unwrap();
        assert!(!early.wait(Some(Duration::ZERO)).unwrap());
        feed.publish(Source::Stdout, b"a");
        feed.publish(Source::Stderr, b"b");
        feed.end(EXIT);
        feed.publish(Source::Stdout, b"late");
        assert!(early.wait(Some(Duration::ZERO)).unwrap());
        assert!(matches!(
            taken(&early).as_slice(),
            [Event::Output(Source::Stdout, a), Event::Output(Source::Stderr, b), Event::End(EXIT)]
                if a[..] == *b"a" && b[..] == *b"b"
        ));
        assert!(!early.wait(Some(Duration::ZERO)).unwrap());
        assert!(matches!(taken(&feed.subscribe().unwrap()).as_slice(), [Event::End(EXIT)]));
    }

    #[test]
    fn a_stalled_subscriber_is_dropped_and_told_and_others_get_everything() {
        let feed = Feed::default();
        let (stalled, diligent) = (feed.subscribe().unwrap(), feed.subscribe().unwrap());
        let chunk = vec![0; QUEUE_BYTES / 2 - EVENT_BYTES];
        let mut seen = 0;
        for _ in 0..5 {
            feed.publish(Source::Stdout, &chunk);
            seen += taken(&diligent).len();
        }
        assert_eq!(seen, 5);
        assert!(matches!(taken(&stalled).as_slice(), [Event::Output(..), Event::Output(..), Event::Lagged]));
    }

    #[test]
    fn a_subscriber_that_leaves_frees_the_process() {
        let feed = Arc::new(Feed::default());
        let subscription = feed.subscribe().unwrap();
        let publisher = std::thread::spawn({
            let feed = Arc::clone(&feed);
            move || (0..8).for_each(|_| feed.publish(Source::Stdout, &vec![0; QUEUE_BYTES / 2]))
        });
        subscription.wait(None).unwrap();
        drop(subscription);
        publisher.join().unwrap();
        assert!(lock(&feed.followers).channels.is_empty());
    }
}
