//! System calls that have no safe wrapper in `rustix`: fork, exec, signals, malloc.
#![expect(unsafe_code, reason = "the only place of the guest's core with unsafe: one thin function per call")]

use std::convert::Infallible;
use std::ffi::{CString, c_char, c_int};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::{io, ptr};

use rustix::process::Pid;

/// Which side of a fork this is.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// Duplicates this process, which must have one thread only: the child of a threaded process could find any lock held.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the caller is single-threaded, so the child may use everything; no memory is touched by the call itself.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(Pid::from_raw(pid).expect("fork returns a positive pid to the parent"))),
    }
}

/// Arguments or environment of a program, in the shape that execve(2) takes.
pub(crate) struct ExecStrings {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

impl ExecStrings {
    pub(crate) fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, _strings: strings }
    }
}

/// Replaces this process's program. Returns only on failure.
pub(crate) fn execve(path: &CString, args: &ExecStrings, env: &ExecStrings) -> io::Result<Infallible> {
    // SAFETY: both arrays end with a null pointer, and their strings live as long as the arrays (`ExecStrings` owns them).
    unsafe { libc::execve(path.as_ptr(), args.pointers.as_ptr(), env.pointers.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// Ends the process at once: no destructors, no exit handlers. For the child of a fork that could not exec.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory of this process.
    unsafe { libc::_exit(code) }
}

/// Sets the default action for every signal and an empty mask, as a freshly started program expects: ignored signals and
/// the mask survive an exec.
pub(crate) fn reset_signals() {
    // The kernel's `struct sigaction`, at most this large on 64-bit machines; all zero means SIG_DFL without flags and mask.
    let default = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel only reads `default`, which is as large as its struct, and SIG_DFL installs no code. The C library's own
        // function would leave out its two internal signals, which this process may have inherited as ignored. Signals
        // whose action cannot be changed are refused, harmlessly.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null_mut::<u64>(), 8) };
    }
    set_mask(&empty_set());
}

/// Marks every descriptor above the standard streams as closed on exec. Ours are all made that way; this covers what whoever started
/// the guest left open. Kernels without the call (before 5.11) do without the cover.
pub(crate) fn close_descriptors_on_exec() {
    // SAFETY: only sets a flag on descriptors of this process; none is closed.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: all-zero is a valid value of this plain C type, and sigemptyset only writes to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

fn set_of(signal: c_int) -> libc::sigset_t {
    let mut set = empty_set();
    // SAFETY: `set` is initialised; the call only writes to it.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    set
}

fn set_mask(set: &libc::sigset_t) {
    // SAFETY: `set` is initialised, and the old mask is not asked for. Cannot fail with a valid `how`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, ptr::null_mut()) };
}

/// Blocks SIGCHLD, and nothing else, in this thread and in those it starts.
pub(crate) fn block_sigchld() {
    set_mask(&set_of(libc::SIGCHLD));
}

/// Makes the kernel reap ended children by itself.
pub(crate) fn ignore_sigchld() {
    // SAFETY: SIG_IGN installs no code. Cannot fail for SIGCHLD.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Waits for a SIGCHLD, which must be blocked.
pub(crate) fn wait_sigchld() {
    let set = set_of(libc::SIGCHLD);
    // SAFETY: `set` is initialised; no information about the signal is asked for. An interruption counts as one.
    unsafe { libc::sigwaitinfo(&raw const set, ptr::null_mut()) };
}

/// A descriptor that is readable while a SIGCHLD is pending. The signal must be blocked.
pub(crate) fn sigchld_fd() -> io::Result<OwnedFd> {
    let set = set_of(libc::SIGCHLD);
    // SAFETY: `set` is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made for us and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes over a descriptor that this process inherited under a number it was told.
///
/// # Errors
/// When no such descriptor is open, or it is one of the standard streams.
pub(crate) fn adopt_fd(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} cannot be taken over")));
    }
    // SAFETY: the number is only borrowed, for one call that fails when it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    debug_assert_eq!(borrowed.as_raw_fd(), number);
    // SAFETY: it is open (the call above succeeded), and by the contract of the command line it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Keeps malloc to one arena and gives freed memory back early: a guest has many threads and little to allocate.
pub(crate) fn limit_malloc() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets parameters of the allocator; called before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}
