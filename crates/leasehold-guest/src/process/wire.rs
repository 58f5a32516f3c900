//! What the guest and a job's supervisor say to each other over their socket pair.
//!
//! First the guest sends one [`Plan`] with the job's descriptors attached. Then both sides send records of fixed size. The end of the
//! connection, seen by the guest, means that nothing of the job is left; seen by the supervisor, that the guest is gone.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Longest plan in bytes. Chosen: above the 2 MiB that Linux takes for arguments and environment by default, and the kernel
/// refuses what exceeds its own limit with E2BIG.
const MAX_PLAN_BYTES: usize = 16 << 20;

/// How a job is started. Descriptors travel beside it: the terminal's, or stdin (if `stdin`), stdout and stderr.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) program: Vec<u8>,
    pub(crate) args: Vec<Vec<u8>>,
    /// `NAME=value` each.
    pub(crate) env: Vec<Vec<u8>>,
    pub(crate) cwd: Vec<u8>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) pty: bool,
    pub(crate) stdin: bool,
    /// Soft limit of open files that the guest itself was started with.
    pub(crate) open_files: u64,
    /// Milliseconds after which the whole tree is killed if the leader still runs; 0 for never.
    pub(crate) deadline_ms: u64,
}

impl Plan {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        put_bytes(&mut out, &self.program);
        for list in [&self.args, &self.env] {
            put_count(&mut out, list.len());
            list.iter().for_each(|item| put_bytes(&mut out, item));
        }
        put_bytes(&mut out, &self.cwd);
        put_count(&mut out, self.groups.len());
        for number in self.groups.iter().chain([&self.uid, &self.gid]) {
            out.extend(number.to_ne_bytes());
        }
        out.extend([u8::from(self.pty), u8::from(self.stdin)]);
        out.extend(self.open_files.to_ne_bytes());
        out.extend(self.deadline_ms.to_ne_bytes());
        let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
        out[..4].copy_from_slice(&length.to_ne_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = bytes;
        let input = &mut input;
        let plan = Self {
            program: take_bytes(input)?,
            args: take_list(input, take_bytes)?,
            env: take_list(input, take_bytes)?,
            cwd: take_bytes(input)?,
            groups: take_list(input, take_u32)?,
            uid: take_u32(input)?,
            gid: take_u32(input)?,
            pty: take_array::<1>(input)? == [1],
            stdin: take_array::<1>(input)? == [1],
            open_files: u64::from_ne_bytes(take_array(input)?),
            deadline_ms: u64::from_ne_bytes(take_array(input)?),
        };
        input.is_empty().then_some(plan)
    }

    /// Sends the plan and its descriptors.
    pub(crate) fn send(&self, socket: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = self.encode();
        if bytes.len() > MAX_PLAN_BYTES {
            return Err(rustix::io::Errno::TOOBIG.into());
        }
        let sent = send_with_fds(socket, &bytes, fds)?;
        let mut socket = socket;
        socket.write_all(&bytes[sent..])
    }

    /// Receives a plan and its descriptors.
    pub(crate) fn receive(socket: &UnixStream) -> io::Result<(Self, Vec<OwnedFd>)> {
        let mut head = vec![0; 16 << 10];
        let (count, fds) = receive_with_fds(socket, &mut head)?;
        head.truncate(count);
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "broken plan");
        let mut reader = socket;
        while head.len() < 4 {
            let mut byte = [0];
            reader.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let length = u32::from_ne_bytes(head[..4].try_into().expect("four bytes")) as usize;
        let received = head.len() - 4;
        if length > MAX_PLAN_BYTES || received > length {
            return Err(broken());
        }
        head.resize(4 + length, 0);
        reader.read_exact(&mut head[4 + received..])?;
        Ok((Self::decode(&head[4..]).ok_or_else(broken)?, fds))
    }
}

/// Sends bytes with descriptors attached; returns how many bytes were sent.
pub(crate) fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "at most four descriptors fit one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors attached to them.
fn receive_with_fds(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received.bytes, fds))
}

/// Receives the socket of one more supervisor. `None` when no more are wanted.
pub(crate) fn receive_socket(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let (count, fds) = receive_with_fds(socket, &mut [0])?;
    match (count, fds.into_iter().next()) {
        (0, _) => Ok(None),
        (_, Some(fd)) => Ok(Some(fd)),
        (_, None) => Err(io::Error::new(io::ErrorKind::InvalidData, "order without a socket")),
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_ne_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn take_array<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*array)
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take_array(input).map(u32::from_ne_bytes)
}

fn take_bytes(input: &mut &[u8]) -> Option<Vec<u8>> {
    let length = take_u32(input)? as usize;
    let (bytes, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(bytes.to_vec())
}

fn take_list<T>(input: &mut &[u8], take: fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let count = take_u32(input)?;
    (0..count).map(|_| take(input)).collect()
}

/// What a start can fail at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Making pipes, the terminal, or the supervisor.
    Supervisor,
    /// Making the process.
    Fork,
    /// Attaching stdin, stdout, stderr, or the terminal.
    Stdio,
    /// Becoming the user.
    User,
    /// Entering the working directory.
    Cwd,
    /// Executing the program.
    Exec,
}

pub(crate) const STAGES: [Stage; 6] =
    [Stage::Supervisor, Stage::Fork, Stage::Stdio, Stage::User, Stage::Cwd, Stage::Exec];

/// Size of every record in bytes.
pub(crate) const RECORD_BYTES: usize = 12;

fn record(kind: i32, first: i32, second: i32) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (slot, value) in bytes.chunks_exact_mut(4).zip([kind, first, second]) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn fields(bytes: &[u8; RECORD_BYTES]) -> [i32; 3] {
    [0, 4, 8].map(|at| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// What a supervisor tells the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Started {
        pid: i32,
    },
    Failed {
        stage: Stage,
        errno: i32,
    },
    Exited {
        code: i32,
    },
    Killed {
        signal: i32,
        core_dumped: bool,
    },
    /// The deadline is over and the tree is being killed.
    TimedOut,
}

impl Report {
    pub(crate) fn encode(self) -> [u8; RECORD_BYTES] {
        match self {
            Self::Started { pid } => record(1, pid, 0),
            Self::Failed { stage, errno } => record(2, stage as i32, errno),
            Self::Exited { code } => record(3, code, 0),
            Self::Killed { signal, core_dumped } => record(4, signal, i32::from(core_dumped)),
            Self::TimedOut => record(5, 0, 0),
        }
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        match fields(bytes) {
            [1, pid, _] => Some(Self::Started { pid }),
            [2, stage, errno] => Some(Self::Failed { stage: *STAGES.get(usize::try_from(stage).ok()?)?, errno }),
            [3, code, _] => Some(Self::Exited { code }),
            [5, ..] => Some(Self::TimedOut),
            [4, signal, core] => Some(Self::Killed { signal, core_dumped: core != 0 }),
            _ => None,
        }
    }
}

/// What the guest asks of a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// A signal for the leader and its process group.
    Signal(i32),
    /// The end of the whole tree: SIGTERM, and SIGKILL after the grace.
    Terminate { grace_ms: i32 },
}

impl Order {
    pub(crate) fn encode(self) -> [u8; RECORD_BYTES] {
        match self {
            Self::Signal(signal) => record(1, signal, 0),
            Self::Terminate { grace_ms } => record(2, grace_ms, 0),
        }
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        match fields(bytes) {
            [1, signal, _] => Some(Self::Signal(signal)),
            [2, grace_ms, _] => Some(Self::Terminate { grace_ms }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_arrives_whole_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let plan = Plan {
            program: b"sh".to_vec(),
            args: vec![b"sh".to_vec(), vec![0xff, 0xfe], vec![b'x'; 100_000], Vec::new()],
            env: (0..1000).map(|n| format!("N{n}={n}").into_bytes()).collect(),
            cwd: b"/".to_vec(),
            uid: 1000,
            gid: 1001,
            groups: vec![1001, 5],
            pty: false,
            stdin: true,
            open_files: 1024,
            deadline_ms: 60_000,
        };
        let sent = plan.clone();
        let null = std::fs::File::open("/dev/null").unwrap();
        let sender = std::thread::spawn(move || sent.send(&ours, &[null.as_fd(), null.as_fd()]));
        let (received, fds) = Plan::receive(&theirs).unwrap();
        sender.join().unwrap().unwrap();
        assert_eq!(received, plan);
        assert_eq!(fds.len(), 2);
    }

    #[test]
    fn records_survive_their_encoding() {
        for report in [
            Report::Started { pid: 7 },
            Report::Failed { stage: Stage::Exec, errno: 2 },
            Report::Failed { stage: Stage::Supervisor, errno: 24 },
            Report::Exited { code: 255 },
            Report::Killed { signal: 11, core_dumped: true },
            Report::TimedOut,
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        for order in [Order::Signal(15), Order::Terminate { grace_ms: i32::MAX }] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        assert_eq!(Report::decode(&[9; RECORD_BYTES]), None);
        assert!(STAGES.iter().enumerate().all(|(index, stage)| *stage as usize == index));
    }
}
