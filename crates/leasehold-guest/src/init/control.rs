//! The control socket: requests of the host, one JSON object per line, each answered by one.
//!
//! `{"op":"dial","port":N}` connects to a port of the sandbox's loopback and hands the connected socket over (SCM_RIGHTS).
//! `{"op":"sync"}` writes the file system out. `{"op":"prepare"}` comes before a checkpoint. `{"op":"reload"}` reads the identity
//! again. The answer is `{"ok":true}` or `{"ok":false,"error":"…"}`.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::guest::Guest;
use crate::http::Socket;
use crate::process::wire::send_with_fds;

/// Longest request line in bytes.
const MAX_LINE_BYTES: u64 = 4096;

/// Loopback answers at once, unless a listener's queue is full.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Dial { port: u16 },
    Sync,
    Prepare,
    Reload,
}

/// Serves one connection of the host until it closes.
pub(super) fn serve(socket: Socket, guest: &Guest) {
    let mut lines = BufReader::new(SocketReader(&socket));
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(1..) if line.ends_with(b"\n") => {}
            // The end, an error, or a line that is too long: nothing sensible can follow.
            _ => return,
        }
        if answer(&socket, &line, guest).is_err() {
            return;
        }
    }
}

struct SocketReader<'s>(&'s Socket);

impl Read for SocketReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

fn answer(socket: &Socket, line: &[u8], guest: &Guest) -> io::Result<()> {
    let outcome = match serde_json::from_slice(line) {
        Ok(Request::Dial { port }) => match dial(port) {
            Ok(stream) => return reply(socket, Ok(()), &[stream.as_fd()]),
            Err(problem) => Err(problem),
        },
        Ok(Request::Sync) => sync().map_err(|error| format!("cannot sync: {error}")),
        // Nothing is kept that a checkpoint would have to be told of: ids and secrets are drawn when they are used.
        Ok(Request::Prepare) => Ok(()),
        Ok(Request::Reload) => guest.reload().map_err(|error| super::chain(&error)),
        Err(error) => Err(format!("bad request: {error}")),
    };
    reply(socket, outcome, &[])
}

fn reply(socket: &Socket, outcome: Result<(), String>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut line = match outcome {
        Ok(()) => json!({ "ok": true }),
        Err(error) => json!({ "ok": false, "error": error }),
    }
    .to_string();
    line.push('\n');
    let sent = send_with_fds(socket, line.as_bytes(), fds)?;
    socket.write_all(&line.as_bytes()[sent..], None)
}

/// Connects to a port on 127.0.0.1, else on `::1`. The error is a word that the host acts on.
fn dial(port: u16) -> Result<TcpStream, String> {
    if port == 0 {
        return Err("port 0 cannot be dialled".into());
    }
    let connect = |address: SocketAddr| {
        let stream = TcpStream::connect_timeout(&address, DIAL_TIMEOUT)?;
        // A port of the ephemeral range can meet itself: such a connection has no server.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    connect((Ipv4Addr::LOCALHOST, port).into()).or_else(|first| {
        connect((Ipv6Addr::LOCALHOST, port).into()).map_err(|second| {
            let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            // A sandbox without IPv6 says other things about ::1; what counts is what 127.0.0.1 said.
            if refused(&first) || refused(&second) { "refused".to_owned() } else { first.to_string() }
        })
    })
}

fn sync() -> io::Result<()> {
    let root = std::fs::File::open(Path::new("/"))?;
    Ok(rustix::fs::syncfs(root)?)
}
