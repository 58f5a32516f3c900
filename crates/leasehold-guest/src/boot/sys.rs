//! The system calls that no safe wrapper at hand offers.
#![expect(
    unsafe_code,
    reason = "raw system calls: clone3, mount_setattr, seccomp, the interface ioctl and descriptor numbers"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;

/// What a process sees of a `clone3`.
pub(super) enum Cloned {
    /// In the new process.
    Child,
    /// In the caller: the new process's id and a descriptor of it.
    Parent { pid: u32 },
}

/// `CLONE_INTO_CGROUP` of linux/sched.h; the libc crate's constant of that name is a `c_int` and so loses it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(raw));
    }
    Ok(result)
}

/// Starts the sandbox's first process in new namespaces of every kind, as a sibling of the caller.
///
/// The caller must have one thread only; the launcher never starts another.
pub(super) fn clone_into_sandbox(cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWCGROUP;
    let into_cgroup = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
    // exit_signal must be 0: with CLONE_PARENT the kernel takes the launcher's own, which is SIGCHLD.
    let arguments = libc::clone_args {
        flags: u64::from(namespaces.cast_unsigned()) | u64::from(libc::CLONE_PARENT.cast_unsigned()) | into_cgroup,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: 0,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| u64::from(fd.as_raw_fd().cast_unsigned())),
    };
    // SAFETY: without CLONE_VM this is a fork: the child has a copy of the whole address space and goes on from here on its own stack. The process
    // has one thread, so no lock can be held by a thread that the child lacks. `arguments` outlives the call and its size is passed.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match check(result)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent { pid: u32::try_from(pid).map_err(|_| Errno::RANGE)? }),
    }
}

/// Attributes that a mount can gain here. None is ever taken away.
#[derive(Clone, Copy, Default)]
pub(super) struct MountAttributes {
    pub(super) read_only: bool,
    pub(super) no_devices: bool,
    pub(super) private: bool,
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets attributes on the mount that `fd` stands for and on all mounts below it.
pub(super) fn set_mount_attributes(fd: BorrowedFd<'_>, attributes: MountAttributes) -> Result<(), Errno> {
    let mut set = if attributes.private { 0 } else { libc::MOUNT_ATTR_NOSUID };
    if attributes.read_only {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    if attributes.no_devices {
        set |= libc::MOUNT_ATTR_NODEV;
    }
    let attr = MountAttr {
        attr_set: set,
        attr_clr: 0,
        propagation: if attributes.private { libc::MS_PRIVATE } else { 0 },
        userns_fd: 0,
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is an empty C string, `attr` has the layout of the kernel's `struct mount_attr` (version 0) and outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    check(result).map(drop)
}

/// Puts a filter on this process and everything it will start. It can never be taken off.
pub(super) fn install_filter(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let header = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: `header` and the instructions it points to outlive the call; the kernel copies and never writes them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const header) };
    check(result).map(drop)
}

/// Brings the loopback interface of this network namespace up; the kernel then adds 127.0.0.1 and ::1.
pub(super) fn raise_loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: `ifreq` is plain data for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *slot = libc::c_char::from_ne_bytes([*byte]);
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(|_| Errno::RANGE)?;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    check(libc::c_long::from(result)).map(drop)
}

/// Makes `source` also available under the number `target`, inherited by executed programs.
///
/// `target` must be a number that nothing in this process owns; the launcher keeps 0 to 3 free for this.
pub(super) fn duplicate_to(source: impl AsFd, target: RawFd) -> Result<(), Errno> {
    // SAFETY: whatever `target` was is one of the standard descriptors or unused, so no owner is left with a wrong one.
    check(libc::c_long::from(unsafe { libc::dup2(source.as_fd().as_raw_fd(), target) })).map(drop)
}

/// Marks every descriptor from `first` on as closed on exec, so that nothing of the host leaks into the guest.
pub(super) fn close_on_exec_from(first: RawFd) -> Result<(), Errno> {
    // SAFETY: only a flag of descriptors is changed; none is closed while something owns it.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first.cast_unsigned(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(result).map(drop)
}

/// Ends this process at once, without running exit handlers that belong to the launcher's copy of memory.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}
