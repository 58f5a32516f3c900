//! Files with holes: the GNU sparse format 1.0, as other tools read and write it.
//!
//! The member's data begins with a map in decimal lines (how many pieces, then offset and length of each), filled up to a block; then the pieces follow.
//! <https://www.gnu.org/software/tar/manual/html_node/PAX-1.html>, seen 2026-12.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use rustix::fs::SeekFrom as Sought;
use rustix::io::Errno;

/// What is worth a map: a file that occupies at least this much less than its size. Chosen: the map costs two blocks.
const WORTHWHILE: u64 = 64 << 10;

/// Most pieces of a file. Chosen: a map of some megabytes.
const MOST_PIECES: usize = 1 << 17;

const BLOCK: usize = 512;

/// Consecutive bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The pieces of a file that hold data; none if it is better stored whole.
pub(super) fn pieces(file: &File, size: u64, occupied: u64) -> io::Result<Option<Vec<Piece>>> {
    if size.saturating_sub(occupied) < WORTHWHILE {
        return Ok(None);
    }
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let offset = match rustix::fs::seek(file.as_fd(), Sought::Data(at)) {
            Ok(offset) => offset,
            Err(Errno::NXIO) => break, // a hole up to the end
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file.as_fd(), Sought::Hole(offset))?.min(size);
        if end <= offset || pieces.len() == MOST_PIECES {
            return Ok(None);
        }
        pieces.push(Piece { offset, length: end - offset });
        at = end;
    }
    Ok(Some(pieces))
}

/// The map, filled up with zeros to whole blocks.
pub(super) fn map(pieces: &[Piece]) -> Vec<u8> {
    use std::fmt::Write;
    let mut text = format!("{}\n", pieces.len());
    for piece in pieces {
        writeln!(text, "{}\n{}", piece.offset, piece.length).expect("writing to a string never fails");
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// Map and pieces, one after the other.
pub(super) fn reader<'a>(file: &'a File, map: &'a [u8], pieces: &'a [Piece]) -> impl Read + 'a {
    map.chain(Pieces { file, pieces, done: 0 })
}

struct Pieces<'a> {
    file: &'a File,
    pieces: &'a [Piece],
    done: u64,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.pieces.first() else { return Ok(0) };
        let left = piece.length - self.done;
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let length = std::os::unix::fs::FileExt::read_at(self.file, &mut buffer[..wanted], piece.offset + self.done)?;
        if length == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        self.done += length as u64;
        if self.done == piece.length {
            self.pieces = &self.pieces[1..];
            self.done = 0;
        }
        Ok(length)
    }
}

/// Writes a stored file with its holes.
pub(super) fn restore(mut data: impl Read, file: &mut File, size: u64) -> io::Result<()> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("sparse map: {what}"));
    let mut lines = Lines { data: &mut data, read: 0 };
    let count = usize::try_from(lines.number()?)
        .ok()
        .filter(|count| *count <= MOST_PIECES)
        .ok_or_else(|| bad("too many pieces"))?;
    let mut pieces = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let piece = Piece { offset: lines.number()?, length: lines.number()? };
        let after = piece.offset.checked_add(piece.length).filter(|after| *after <= size);
        end = after.filter(|_| piece.offset >= end).ok_or_else(|| bad("pieces overlap or lie outside"))?;
        pieces.push(piece);
    }
    lines.fill_up()?;
    file.set_len(size)?;
    for piece in pieces {
        file.seek(SeekFrom::Start(piece.offset))?;
        if io::copy(&mut (&mut data).take(piece.length), file)? != piece.length {
            return Err(bad("data ends early"));
        }
    }
    file.flush()
}

struct Lines<'a, R> {
    data: &'a mut R,
    read: u64,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> io::Result<u64> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "sparse map: not a number");
        let mut value: Option<u64> = None;
        loop {
            let mut byte = [0];
            self.data.read_exact(&mut byte)?;
            self.read += 1;
            match byte[0] {
                b'\n' => return value.ok_or_else(bad),
                digit @ b'0'..=b'9' => {
                    let grown =
                        value.unwrap_or(0).checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
                    value = Some(grown.ok_or_else(bad)?);
                }
                _ => return Err(bad()),
            }
        }
    }

    fn fill_up(&mut self) -> io::Result<()> {
        let rest = self.read.next_multiple_of(BLOCK as u64) - self.read;
        io::copy(&mut (&mut *self.data).take(rest), &mut io::sink()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(stored: &[u8], size: u64) -> io::Result<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        restore(stored, &mut file, size)?;
        file.rewind()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn a_file_with_holes_comes_back_whole() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(5 << 20).unwrap();
        for offset in [1u64 << 20, 4 << 20] {
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(&[7; 5000]).unwrap();
        }
        file.sync_all().unwrap();
        let pieces = pieces(&file, 5 << 20, 16 << 10).unwrap().unwrap();
        let map = map(&pieces);
        let mut stored = Vec::new();
        reader(&file, &map, &pieces).read_to_end(&mut stored).unwrap();
        assert!(stored.len() < 100_000, "{} bytes for two small pieces", stored.len());
        let mut content = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(restored(&stored, 5 << 20).unwrap(), content);
    }

    #[test]
    fn a_dense_file_has_no_map() {
        let file = tempfile::tempfile().unwrap();
        assert!(pieces(&file, 4096, 4096).unwrap().is_none());
    }

    #[test]
    fn hostile_maps_are_refused() {
        let padded = |text: &str| {
            let mut stored = text.as_bytes().to_vec();
            stored.resize(512, 0);
            stored.extend([1; 64]);
            stored
        };
        for text in [
            "",
            "x\n",
            "\n",
            "99999999999999999999999\n",
            "999999999\n",
            "1\n10\n200\n",
            "2\n5\n5\n0\n1\n",
            "1\n18446744073709551615\n2\n",
            "1\n0\n100\n",
        ] {
            assert!(restored(&padded(text), 100).is_err(), "{text:?}");
        }
        assert!(restored(&padded("1\n90\n10\n"), 100).is_ok());
    }
}
