//! Moves a workspace between this machine and a sandbox, as one tar file on the way.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context as _;
use bytes::Bytes;
use leasehold_e2b::{ProcessSpec, Sandbox};
use tokio::sync::mpsc;

use crate::context::random_number;
use crate::run::helper;
use crate::workspace::{self, CopiedBack};

/// Pieces of the archive on the way: at most 1 MiB is held between disk and socket.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 16;

/// Where an archive lies inside while it is packed or unpacked: only root can read it there, and commands that share a sandbox
/// do not meet.
fn archive_path() -> anyhow::Result<String> {
    Ok(format!("/root/leasehold-workspace-{:08x}.tar", random_number()?))
}

/// Fills the sandbox's directory from ours.
pub(crate) async fn copy_in(sandbox: &Sandbox, from: &Path, to: &str) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    let from = from.to_owned();
    let packing = tokio::task::spawn_blocking(move || {
        let mut pipe = ToChannel { sender: sender.clone(), buffer: Vec::with_capacity(PIECE_BYTES) };
        let packed = workspace::pack(&from, &mut pipe);
        if packed.is_err() {
            // The upload must not look complete.
            sender.blocking_send(Err(io::Error::other("packing failed"))).ok();
        }
        packed
    });
    let pieces = futures_util::stream::unfold(receiver, async |mut receiver: mpsc::Receiver<io::Result<Bytes>>| {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let archive = archive_path()?;
    let sent = sandbox.files().as_user("root").write_stream(&archive, Box::pin(pieces)).await;
    packing.await.context("packing was cut short")??;
    sent?;
    // As `user`, so that everything belongs to it; root only reads the archive.
    let line = format!(
        "tar -xf {archive} --no-same-owner -C {to}; code=$?; rm -f {archive}; chown -R user:user {to} && exit $code"
    );
    helper(sandbox, &ProcessSpec::new("/bin/sh").arguments(["-c", &line]).user("root")).await
}

/// Writes what is new or changed in the sandbox's directory into ours.
pub(crate) async fn copy_back(
    sandbox: &Sandbox,
    from: &str,
    to: &Path,
    since: SystemTime,
) -> anyhow::Result<CopiedBack> {
    let archive = archive_path()?;
    let copied = fetch(sandbox, from, &archive, to, since).await;
    let removed = sandbox.files().as_user("root").remove(&archive).await;
    let copied = copied?;
    removed?;
    Ok(copied)
}

async fn fetch(
    sandbox: &Sandbox,
    from: &str,
    archive: &str,
    to: &Path,
    since: SystemTime,
) -> anyhow::Result<CopiedBack> {
    let line = format!("tar -cf {archive} -C {from} .");
    helper(sandbox, &ProcessSpec::new("/bin/sh").arguments(["-c", &line]).user("root")).await?;
    let mut reader = sandbox.files().as_user("root").read(archive).await?;
    let (sender, receiver) = mpsc::channel::<Bytes>(PIECES);
    let to = to.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || {
        workspace::unpack(&to, FromChannel { receiver, piece: Bytes::new() }, since)
    });
    while let Some(piece) = reader.next().await? {
        if sender.send(piece).await.is_err() {
            break;
        }
    }
    drop(sender);
    unpacking.await.context("unpacking was cut short")?
}

struct ToChannel {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for ToChannel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

struct FromChannel {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for FromChannel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        buffer[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}
