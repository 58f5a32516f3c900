//! The thread of a process: reads its output, hears of its end from the supervisor, and tells both on in the right order.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::running::Process;
use super::spec::{Drain, Exit, ExitInfo, OutputEnd, Sink, Source};
use super::wire::{RECORD_BYTES, Report};
use crate::clock::Countdown;
use crate::http::poll_fds;

/// Most bytes read at once, and so the size of an output event. As envd does for pipes (0.6.13).
const CHUNK_BYTES: usize = 32 << 10;

/// What a terminal can hold unread; the kernel's own bound is lower.
const TERMINAL_BYTES: usize = 128 << 10;

/// Most reads of a stream whose process tree is gone: more than any pipe holds, and an end to it if the descriptor lives on elsewhere.
const LAST_READS: usize = 64;

/// One stream of output.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) source: Source,
    pub(super) fd: Arc<OwnedFd>,
}

/// What is known of the leader's end before it is reported.
struct Draining {
    exit: Exit,
    quiet: Countdown,
    total: Countdown,
    /// Bytes that the leader itself may still have left in the streams.
    owed: usize,
}

pub(super) struct Pump {
    process: Arc<Process>,
    streams: Vec<Stream>,
    sink: Option<Box<dyn Sink>>,
    drain: Drain,
    buffer: Vec<u8>,
    draining: Option<Draining>,
    ended: bool,
    gone: bool,
}

impl Pump {
    pub(super) fn new(process: Arc<Process>, streams: Vec<Stream>, sink: Option<Box<dyn Sink>>, drain: Drain) -> Self {
        let buffer = vec![0; CHUNK_BYTES];
        Self { process, streams, sink, drain, buffer, draining: None, ended: false, gone: false }
    }

    /// Runs until the process has ended, nothing of its tree is left, and its streams are closed.
    pub(super) fn run(mut self) {
        while !(self.ended && self.gone && self.streams.is_empty()) {
            let timeout = self.timeout();
            let mut fds: Vec<_> = self.streams.iter().map(|stream| PollFd::new(&*stream.fd, PollFlags::IN)).collect();
            if !self.gone {
                fds.push(PollFd::new(&self.process.control, PollFlags::IN));
            }
            if let Err(error) = poll_fds(&mut fds, timeout) {
                eprintln!("cannot wait for a process: {error}");
                break;
            }
            let mut ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if !self.gone && ready.pop() == Some(true) {
                self.hear();
            }
            self.read_streams(&ready);
            self.end_if_due();
        }
        if !self.ended {
            self.end(Exit::Lost, OutputEnd::MayContinue);
        }
        self.process.set_gone();
    }

    fn timeout(&mut self) -> Option<Duration> {
        if self.ended {
            return None;
        }
        let draining = self.draining.as_mut()?;
        let quiet = draining.quiet.slice();
        let total = draining.total.slice();
        // When the total is used up but output is still owed, only quiet ends the wait.
        Some(if total.is_zero() { quiet } else { quiet.min(total) })
    }

    /// Takes one report of the supervisor.
    fn hear(&mut self) {
        let mut bytes = [0; RECORD_BYTES];
        let report = match (&self.process.control).read_exact(&mut bytes) {
            Ok(()) => Report::decode(&bytes),
            Err(_) => None,
        };
        let exit = match report {
            Some(Report::Exited { code }) => Exit::Code(code),
            Some(Report::Killed { signal, core_dumped }) => Exit::Signal { signal, core_dumped },
            Some(Report::TimedOut) => {
                self.process.set_timed_out();
                return;
            }
            Some(Report::Started { .. } | Report::Failed { .. }) => return,
            None => {
                self.gone = true;
                Exit::Lost
            }
        };
        if self.draining.is_none() {
            self.draining = Some(Draining {
                exit,
                quiet: Countdown::new(self.drain.quiet),
                total: Countdown::new(self.drain.total),
                owed: self.streams.iter().map(capacity).sum(),
            });
        }
    }

    fn read_streams(&mut self, ready: &[bool]) {
        let mut ready = ready.iter().copied();
        let mut streams = std::mem::take(&mut self.streams);
        streams.retain(|stream| {
            // When nobody is left to write, what is there is read to the end even if a descriptor was passed elsewhere.
            let readable = ready.next().unwrap_or(false);
            if !readable && !self.gone {
                return true;
            }
            let reads = if self.gone { LAST_READS } else { 1 };
            for _ in 0..reads {
                match rustix::io::read(&*stream.fd, &mut self.buffer) {
                    Ok(0) => return false,
                    Ok(count) => self.deliver(stream.source, count),
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    // A terminal whose last program is gone says EIO: its normal end.
                    Err(_) => return false,
                }
            }
            !self.gone
        });
        self.streams = streams;
    }

    fn deliver(&mut self, source: Source, count: usize) {
        let bytes = &self.buffer[..count];
        if let Some(sink) = &mut self.sink {
            sink.output(source, bytes);
        }
        if self.ended {
            return;
        }
        self.process.feed.publish(source, bytes);
        if let Some(draining) = &mut self.draining {
            draining.owed = draining.owed.saturating_sub(count);
            draining.quiet.restart(self.drain.quiet);
        }
    }

    fn end_if_due(&mut self) {
        if self.ended {
            return;
        }
        let Some(draining) = &mut self.draining else { return };
        if self.streams.is_empty() {
            let exit = draining.exit;
            self.end(exit, OutputEnd::Complete);
        } else if draining.quiet.expired() || (draining.total.expired() && draining.owed == 0) {
            let exit = draining.exit;
            self.end(exit, OutputEnd::MayContinue);
        }
    }

    fn end(&mut self, exit: Exit, output: OutputEnd) {
        self.ended = true;
        let exit = ExitInfo { exit, output };
        if let Some(sink) = &mut self.sink {
            sink.ended(&exit);
        }
        self.process.set_ended(exit);
    }
}

/// How many bytes a stream can hold unread.
fn capacity(stream: &Stream) -> usize {
    match stream.source {
        Source::Pty => TERMINAL_BYTES,
        Source::Stdout | Source::Stderr => rustix::pipe::fcntl_getpipe_size(&*stream.fd).unwrap_or(1 << 20),
    }
}
