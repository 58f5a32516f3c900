//! Streaming the events of a process to a client.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use envd::{Code, DataEvent, Empty, EndEvent, ProcessEvent, RpcError, StartEvent, StreamEvent};

use super::Outgoing;
use crate::clock::Countdown;
use crate::http::Wait;
use crate::process::{Event, Exit, ExitInfo, Process, QUEUE_BYTES, Source, Subscription};

/// How much is gathered before it is sent, while more is at hand.
const FLUSH_BYTES: usize = 256 << 10;

/// Whose stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// That of `Start`: its deadline is the process's.
    Starter,
    /// That of `Connect`: its deadline ends only the stream.
    Visitor(Option<Duration>),
}

/// Sends the start event and then everything until the end. The outer error means that the client is gone.
pub(super) fn follow(
    process: &Process,
    subscription: Subscription,
    role: Role,
    stream: &mut Outgoing<'_>,
) -> io::Result<Result<(), RpcError>> {
    let mut deadline = match role {
        Role::Starter => None,
        Role::Visitor(deadline) => deadline.map(Countdown::new),
    };
    let mut idle = Countdown::new(stream.keepalive);
    let mut events = VecDeque::new();
    stream.push(&event(ProcessEvent::Start(StartEvent { pid: process.pid() })));
    loop {
        subscription.take(&mut events);
        for output in events.drain(..) {
            match output {
                Event::Output(source, bytes) => stream.push(&event(ProcessEvent::Data(data(source, &bytes)))),
                Event::End(_) if role == Role::Starter && process.timed_out() => return Ok(Err(deadline_exceeded())),
                Event::End(exit) => {
                    stream.push(&event(ProcessEvent::End(end(exit))));
                    return Ok(Ok(()));
                }
                Event::Lagged => return Ok(Err(lagged())),
            }
            if stream.body.pending() >= FLUSH_BYTES {
                send(stream, &mut deadline)?;
            }
        }
        if stream.body.pending() > 0 {
            send(stream, &mut deadline)?;
            idle.restart(stream.keepalive);
        }
        let mut timeout = idle.slice();
        if let Some(deadline) = &mut deadline {
            timeout = timeout.min(deadline.slice());
        }
        match stream.body.wait_beside(subscription.as_fd(), Some(timeout))? {
            Wait::Ready => {}
            Wait::PeerGone => return Err(io::ErrorKind::BrokenPipe.into()),
            Wait::Timeout => {
                if deadline.as_mut().is_some_and(Countdown::expired) {
                    return Ok(Err(deadline_exceeded()));
                }
                if idle.expired() {
                    stream.push(&event(ProcessEvent::Keepalive(Empty {})));
                }
            }
        }
    }
}

fn send(stream: &mut Outgoing<'_>, deadline: &mut Option<Countdown>) -> io::Result<()> {
    stream.flush(deadline.as_mut())
}

fn event(event: ProcessEvent) -> StreamEvent {
    StreamEvent { event }
}

fn data(source: Source, bytes: &[u8]) -> DataEvent {
    let bytes = bytes.to_vec();
    match source {
        Source::Stdout => DataEvent::Stdout(bytes),
        Source::Stderr => DataEvent::Stderr(bytes),
        Source::Pty => DataEvent::Pty(bytes),
    }
}

fn deadline_exceeded() -> RpcError {
    RpcError::new(Code::DeadlineExceeded, "context deadline exceeded")
}

fn lagged() -> RpcError {
    let message =
        format!("output was not taken fast enough: more than {QUEUE_BYTES} bytes waited; the process goes on");
    RpcError::new(Code::ResourceExhausted, message)
}

/// The end as Go's `os.ProcessState` prints it, which is what envd's clients know.
fn end(exit: ExitInfo) -> EndEvent {
    let (exit_code, exited, status) = match exit.exit {
        Exit::Code(code) => (code, true, format!("exit status {code}")),
        Exit::Signal { signal, core_dumped } => {
            let core = if core_dumped { " (core dumped)" } else { "" };
            (-1, false, format!("signal: {}{core}", signal_text(signal)))
        }
        Exit::Lost => (-1, false, "signal: killed".to_owned()),
    };
    let error = (exit_code != 0).then(|| status.clone());
    EndEvent { exit_code, exited, status, error }
}

/// Go's names of signals on Linux (`syscall/zerrors_linux_amd64.go`).
fn signal_text(signal: i32) -> String {
    const NAMES: [&str; 15] = [
        "hangup",
        "interrupt",
        "quit",
        "illegal instruction",
        "trace/breakpoint trap",
        "aborted",
        "bus error",
        "floating point exception",
        "killed",
        "user defined signal 1",
        "segmentation fault",
        "user defined signal 2",
        "broken pipe",
        "alarm clock",
        "terminated",
    ];
    let index = usize::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    index.and_then(|index| NAMES.get(index)).map_or_else(|| format!("signal {signal}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::OutputEnd;

    #[test]
    fn ends_read_as_go_prints_them() {
        let show = |exit| {
            let end = end(ExitInfo { exit, output: OutputEnd::Complete });
            (end.exit_code, end.exited, end.status, end.error)
        };
        assert_eq!(show(Exit::Code(0)), (0, true, "exit status 0".into(), None));
        assert_eq!(show(Exit::Code(3)), (3, true, "exit status 3".into(), Some("exit status 3".into())));
        let signal = |signal, core_dumped| show(Exit::Signal { signal, core_dumped }).2;
        assert_eq!(signal(9, false), "signal: killed");
        assert_eq!(signal(15, false), "signal: terminated");
        assert_eq!(signal(11, true), "signal: segmentation fault (core dumped)");
        assert_eq!(signal(34, false), "signal: signal 34");
        assert_eq!(show(Exit::Signal { signal: 9, core_dumped: false }).0, -1);
    }
}
