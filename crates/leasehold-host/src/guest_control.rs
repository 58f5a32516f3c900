//! Requests to a guest's control socket: flush the file systems, dial a port.
//!
//! Everything from a guest is hostile: lines are bounded, every wait has a limit, and a descriptor is used only when exactly
//! one came and it is a connected TCP socket.

use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketType, recvmsg, sockopt,
};
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::ids::SandboxId;
use crate::port::Door;
use crate::world::World;

/// Longest answer of a guest, in bytes. Chosen: ours are below a hundred.
const MAX_LINE: usize = 4096;

/// How long a guest may take to dial a port of its own. Chosen: loopback answers at once or not at all.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// How long a flush may take; the caller waits less.
const FLUSH_LIMIT: Duration = Duration::from_secs(15);

/// Descriptors for which there is room, so that a second one is seen (and closed) instead of cut off unseen.
const DESCRIPTOR_ROOM: usize = 4;

/// Why a port could not be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// Nothing listens there.
    #[error("nothing listens on the port")]
    Refused,
    /// The guest does not answer.
    #[error("the guest's control socket: {0}")]
    Guest(#[from] io::Error),
    /// The guest answered something that it must not.
    #[error("the guest broke the control protocol: {0}")]
    Hostile(&'static str),
}

#[derive(Deserialize)]
struct Reply {
    ok: bool,
    #[serde(default)]
    error: Option<String>,
}

/// Has the guest flush its file systems to disk.
pub(crate) async fn flush(world: &World, id: &SandboxId) -> Result<(), DialError> {
    let (reply, _) = exchange(world, id, b"{\"op\":\"sync\"}\n".to_vec(), FLUSH_LIMIT).await?;
    if reply.ok { Ok(()) } else { Err(DialError::Hostile("it would not flush")) }
}

/// A connection to a TCP port inside.
pub(crate) async fn dial(world: &World, id: &SandboxId, port: u16) -> Result<TcpStream, DialError> {
    let request = format!("{{\"op\":\"dial\",\"port\":{port}}}\n").into_bytes();
    let (reply, descriptors) = exchange(world, id, request, DIAL_LIMIT).await?;
    if !reply.ok {
        return Err(match reply.error.as_deref() {
            Some("refused") => DialError::Refused,
            _ => DialError::Hostile("it could not dial and does not say why"),
        });
    }
    let socket = only_tcp_socket(descriptors)?;
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    Ok(TcpStream::from_std(stream)?)
}

/// One request line, one answer line, on a blocking thread with a limit.
async fn exchange(
    world: &World,
    id: &SandboxId,
    request: Vec<u8>,
    limit: Duration,
) -> Result<(Reply, Vec<OwnedFd>), DialError> {
    let engine = Arc::clone(&world.engine);
    let id = id.as_str().to_owned();
    tokio::task::spawn_blocking(move || {
        let mut stream = engine.connect(&id, Door::Control)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.write_all(&request)?;
        read_reply(&stream)
    })
    .await
    .map_err(io::Error::other)?
}

fn read_reply(stream: &UnixStream) -> Result<(Reply, Vec<OwnedFd>), DialError> {
    let mut line = Vec::new();
    let mut descriptors = Vec::new();
    let mut buffer = [0; MAX_LINE];
    while !line.contains(&b'\n') {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTOR_ROOM))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(stream, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .map_err(io::Error::from)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTOR_ROOM {
            return Err(DialError::Hostile("too many descriptors"));
        }
        if received.bytes == 0 {
            return Err(DialError::Hostile("its answer broke off"));
        }
        line.extend_from_slice(&buffer[..received.bytes]);
        if line.len() > MAX_LINE {
            return Err(DialError::Hostile("its answer is too long"));
        }
    }
    let end = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
    let reply = serde_json::from_slice(&line[..end]).map_err(|_| DialError::Hostile("its answer is not understood"))?;
    Ok((reply, descriptors))
}

fn only_tcp_socket(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, DialError> {
    let [socket] =
        <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| DialError::Hostile("not exactly one descriptor"))?;
    // Each of these fails with ENOTSOCK for anything but a socket.
    let kind = sockopt::socket_type(&socket).map_err(|_| DialError::Hostile("its descriptor is no socket"))?;
    let family = sockopt::socket_domain(&socket).map_err(|_| DialError::Hostile("its descriptor is no socket"))?;
    if kind != SocketType::STREAM || !matches!(family, AddressFamily::INET | AddressFamily::INET6) {
        return Err(DialError::Hostile("its descriptor is no TCP socket"));
    }
    rustix::net::getpeername(&socket).map_err(|_| DialError::Hostile("its socket is not connected"))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::{AsFd as _, BorrowedFd};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn answer(text: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), DialError> {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(&theirs, &[IoSlice::new(text)], &mut ancillary, SendFlags::empty()).expect("sent");
        drop(theirs);
        read_reply(&ours)
    }

    #[test]
    fn a_connected_tcp_socket_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (reply, descriptors) = answer(b"{\"ok\":true}\n", &[stream.as_fd()]).expect("understood");
        assert!(reply.ok);
        assert!(only_tcp_socket(descriptors).is_ok());
    }

    #[test]
    fn hostile_descriptors_are_refused() {
        let file = std::fs::File::open("/dev/null").expect("null");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("udp");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let (unix, _other) = UnixStream::pair().expect("a pair");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let cases: [&[BorrowedFd<'_>]; 6] = [
            &[],
            &[file.as_fd()],
            &[udp.as_fd()],
            &[listener.as_fd()],
            &[unix.as_fd()],
            &[stream.as_fd(), stream.as_fd()],
        ];
        for descriptors in cases {
            let (_, received) = answer(b"{\"ok\":true}\n", descriptors).expect("understood");
            assert!(matches!(only_tcp_socket(received), Err(DialError::Hostile(_))), "{descriptors:?}");
        }
        assert!(matches!(answer(b"{\"ok\":true}\n", &[file.as_fd(); 6]), Err(DialError::Hostile(_))));
    }

    #[test]
    fn hostile_lines_are_refused() {
        for text in [&b"{\"ok\":true}"[..], b"\n", b"nonsense\n", b"{\"ok\":3}\n", &[b'x'; MAX_LINE + 1], b"\xff\xfe\n"]
        {
            assert!(matches!(answer(text, &[]), Err(DialError::Hostile(_))), "{text:?}");
        }
    }
}
