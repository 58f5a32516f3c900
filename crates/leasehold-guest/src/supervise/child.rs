//! Starting a job's leader: from the supervisor's process to the user's program.

use std::convert::Infallible;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Resource, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::Failure;
use crate::environment::DEFAULT_PATH;
use crate::process::wire::{Plan, STAGES, Stage};
use crate::sys::{self, ExecStrings, Fork};

/// Makes the kernel prefer the user's processes over the guest when memory runs out. As envd does (its version 0.6.13).
const OOM_SCORE_ADJ: &[u8] = b"100";

/// Starts the leader and waits until its program runs, or the step that failed is known.
pub(super) fn start(plan: &Plan, fds: Vec<OwnedFd>) -> Result<Pid, Failure> {
    let supervisor = |error: Errno| Failure::new(Stage::Supervisor, error);
    // Closes when the program is executed; before that it carries the step that failed.
    let (status, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(supervisor)?;
    match sys::fork().map_err(|error| Failure::new(Stage::Fork, error))? {
        Fork::Child => {
            drop(status);
            let Err(failure) = become_job(plan, &fds);
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&(failure.stage as i32).to_ne_bytes());
            bytes[4..].copy_from_slice(&failure.errno.to_ne_bytes());
            std::fs::File::from(report).write_all(&bytes).ok();
            sys::exit_now(127);
        }
        Fork::Parent(pid) => {
            drop((report, fds));
            match read_failure(status) {
                None => Ok(pid),
                Some(failure) => {
                    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).ok();
                    Err(failure)
                }
            }
        }
    }
}

fn read_failure(status: OwnedFd) -> Option<Failure> {
    let mut bytes = [0; 8];
    std::fs::File::from(status).read_exact(&mut bytes).ok()?;
    let number = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let stage = usize::try_from(number(0)).ok().and_then(|index| STAGES.get(index)).copied();
    Some(Failure { stage: stage.unwrap_or(Stage::Exec), errno: number(4) })
}

/// Turns the forked child into the job's leader.
fn become_job(plan: &Plan, fds: &[OwnedFd]) -> Result<Infallible, Failure> {
    let at = |stage| move |error: Errno| Failure::new(stage, error);
    // A session of its own: signals reach the job's group and nothing else, and a terminal can become its controlling one.
    rustix::process::setsid().map_err(at(Stage::Stdio))?;
    attach_stdio(plan, fds).map_err(at(Stage::Stdio))?;
    sys::close_descriptors_on_exec();
    // Where the machine does not permit it, the job is as likely a victim as the guest.
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ).ok();
    restore_open_files(plan.open_files);
    become_user(plan).map_err(at(Stage::User))?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    sys::reset_signals();
    rustix::process::chdir(plan.cwd.as_slice()).map_err(at(Stage::Cwd))?;
    execute(plan).map_err(|error| Failure::new(Stage::Exec, error))
}

fn attach_stdio(plan: &Plan, fds: &[OwnedFd]) -> Result<(), Errno> {
    let null;
    let [input, output, errors]: [BorrowedFd<'_>; 3] = match (plan.pty, plan.stdin, fds) {
        (true, _, [terminal]) => {
            rustix::process::ioctl_tiocsctty(terminal)?;
            [terminal.as_fd(), terminal.as_fd(), terminal.as_fd()]
        }
        (false, true, [input, output, errors]) => [input.as_fd(), output.as_fd(), errors.as_fd()],
        (false, false, [output, errors]) => {
            null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            [null.as_fd(), output.as_fd(), errors.as_fd()]
        }
        _ => return Err(Errno::BADF),
    };
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(errors)
}

/// The guest raises its own limit; a job gets the one it would have had.
fn restore_open_files(soft: u64) {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != Some(soft) && limit.maximum.is_none_or(|hard| soft <= hard) {
        limit.current = Some(soft);
        rustix::process::setrlimit(Resource::Nofile, limit).ok();
    }
}

fn become_user(plan: &Plan) -> Result<(), Errno> {
    if plan.uid != 0 {
        // Needs CAP_SETPCAP, which the guest of a sandbox does not keep: there the set was cut down before the guest started,
        // and a process without capabilities and with no_new_privs gains none through it.
        for capability in CapabilitySet::all().iter() {
            if rustix::thread::remove_capability_from_bounding_set(capability).is_err() {
                break;
            }
        }
    }
    rustix::thread::set_no_new_privs(true)?;
    let groups: Vec<_> = plan.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
    // An ordinary process (in tests) that stays who it is needs no privilege for it.
    let unchanged = rustix::process::geteuid() == uid && !uid.is_root();
    if !unchanged {
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    if plan.uid != 0 {
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    }
    Ok(())
}

fn execute(plan: &Plan) -> io::Result<Infallible> {
    let strings = |list: &[Vec<u8>]| -> io::Result<ExecStrings> {
        Ok(ExecStrings::new(list.iter().map(|item| CString::new(item.as_slice())).collect::<Result<_, _>>()?))
    };
    let (args, env) = (strings(&plan.args)?, strings(&plan.env)?);
    if plan.program.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if plan.program.contains(&b'/') {
        return sys::execve(&CString::new(plan.program.as_slice())?, &args, &env);
    }
    let path = plan.env.iter().find_map(|item| item.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH.as_bytes());
    let mut denied = None;
    for dir in path.split(|&byte| byte == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        let Err(error) = sys::execve(&CString::new([dir, b"/", &plan.program].concat())?, &args, &env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // Another directory may hold one that may be executed.
            Some(libc::EACCES) => denied = Some(error),
            _ => return Err(error),
        }
    }
    Err(denied.unwrap_or_else(|| Errno::NOENT.into()))
}
