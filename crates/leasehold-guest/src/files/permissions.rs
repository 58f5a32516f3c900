//! A file's mode as text, the way Go's `fs.FileMode` prints it, since envd is written in Go and its clients show the text.

use rustix::fs::{FileType, Mode};

/// The text for a mode: one letter per property (`d` directory, `L` link, `D` device, `c` character device, `p` pipe, `S` socket,
/// `u` setuid, `g` setgid, `t` sticky), a dash when there is none, then the nine permission bits.
pub(super) fn text(raw_mode: u32) -> String {
    let mut out = String::with_capacity(12);
    match FileType::from_raw_mode(raw_mode) {
        FileType::Directory => out.push('d'),
        FileType::Symlink => out.push('L'),
        FileType::Fifo => out.push('p'),
        FileType::Socket => out.push('S'),
        FileType::BlockDevice => out.push('D'),
        FileType::CharacterDevice => out.push('D'),
        FileType::RegularFile | FileType::Unknown => {}
    }
    let mode = Mode::from_raw_mode(raw_mode);
    // Go's order of letters: D comes before u and g, c after them, t last.
    for (bit, letter) in [(Mode::SUID, 'u'), (Mode::SGID, 'g')] {
        if mode.contains(bit) {
            out.push(letter);
        }
    }
    if FileType::from_raw_mode(raw_mode) == FileType::CharacterDevice {
        out.push('c');
    }
    if mode.contains(Mode::SVTX) {
        out.push('t');
    }
    if out.is_empty() {
        out.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        out.push(if raw_mode & (1 << (8 - index)) != 0 { letter } else { '-' });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn modes_read_as_go_prints_them() {
        for (mode, expected) in [
            (0o100_644, "-rw-r--r--"),
            (0o100_000, "----------"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o102_755, "grwxr-xr-x"),
            (0o042_775, "dgrwxrwxr-x"),
            (0o106_755, "ugrwxr-xr-x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o060_660, "Drw-rw----"),
            (0o010_600, "prw-------"),
            (0o140_755, "Srwxr-xr-x"),
        ] {
            assert_eq!(text(mode), expected, "{mode:o}");
        }
    }
}
