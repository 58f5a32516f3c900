//! Exit codes of `leasehold`, documented in the README.

use leasehold_e2b::EndEvent;

/// `leasehold` itself failed; the command's own code is not known.
pub(crate) const FAILED: u8 = 125;
/// The command was found but cannot be run.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// The command ran out of the time given by `--timeout`.
pub(crate) const TIMED_OUT: u8 = 124;
/// Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;
/// SIGTERM.
pub(crate) const TERMINATED: u8 = 143;
/// Our own stdout was closed by its reader, as a shell reports SIGPIPE.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// Names of signals in envd's `status` (Go's), with their numbers on Linux.
const SIGNALS: &[(&str, u8)] = &[
    ("hangup", 1),
    ("interrupt", 2),
    ("quit", 3),
    ("illegal instruction", 4),
    ("trace/breakpoint trap", 5),
    ("aborted", 6),
    ("bus error", 7),
    ("floating point exception", 8),
    ("killed", 9),
    ("user defined signal 1", 10),
    ("segmentation fault", 11),
    ("user defined signal 2", 12),
    ("broken pipe", 13),
    ("alarm clock", 14),
    ("terminated", 15),
];

/// The signal that ended a command, if one did.
pub(crate) fn signal_of(end: &EndEvent) -> Option<u8> {
    let name = end.status.strip_prefix("signal: ")?.split(" (").next()?;
    SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The command's end as an exit code: its own, or 128 plus the signal's number, as shells do.
pub(crate) fn of_command(end: &EndEvent) -> u8 {
    match u8::try_from(end.exit_code) {
        Ok(code) => code,
        Err(_) => signal_of(end).map_or(FAILED, |signal| 128 + signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_becomes_the_code_a_shell_would_give() {
        let end = |exit_code, status: &str| EndEvent { exit_code, status: status.into(), ..EndEvent::default() };
        assert_eq!(of_command(&end(0, "exit status 0")), 0);
        assert_eq!(of_command(&end(255, "exit status 255")), 255);
        assert_eq!(of_command(&end(-1, "signal: killed")), 137);
        assert_eq!(of_command(&end(-1, "signal: segmentation fault (core dumped)")), 139);
        assert_eq!(of_command(&end(-1, "something new")), FAILED);
    }
}
