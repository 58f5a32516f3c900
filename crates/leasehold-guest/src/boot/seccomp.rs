//! System calls that a sandbox does without.
//!
//! A list of refusals, not of permissions: agents run any program, and capabilities and namespaces already stop what these calls would do. The filter
//! takes away kernel code that an unprivileged process has no business in, so that a bug there is out of reach.
//!
//! Refused means an error number and never a signal: programs probe, and have fallbacks. The kernel remembers per call number that a filter always
//! allows it, so the list costs nothing for other calls.

use libc::sock_filter;

/// One line of the table.
struct Rule {
    call: libc::c_long,
    when: When,
    answer: Answer,
    /// For readers of this table.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a rule without a reason does not belong here; the tests read it")
    )]
    reason: &'static str,
}

/// A condition on the arguments, of which the low 32 bits are looked at: each is an `int` or `unsigned int` to the kernel, or a mask whose bits of
/// interest are among them.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// The argument has one of these bits.
    AnyBit(u8, u32),
    /// The argument is one of these.
    OneOf(u8, &'static [u32]),
    /// The argument is none of these.
    NoneOf(u8, &'static [u32]),
    /// The first argument is this and the other is not that.
    Pair((u8, u32), (u8, u32)),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    NotPermitted,
    NoSuchCall,
}

const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

/// `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`. Not `AF_VSOCK`, which no network namespace confines, nor `AF_ALG`, `AF_PACKET` and the rest.
const ADDRESS_FAMILIES: &[u32] = &[1, 2, 10, 16];

/// `PER_LINUX`, `PER_LINUX32`, both with `UNAME26`, the first with `ADDR_NO_RANDOMIZE` (debuggers), and the query.
const PERSONALITIES: &[u32] = &[0, 8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

/// `TIOCSTI`, `TIOCLINUX`: typing into a terminal on behalf of its user.
const TERMINAL_INJECTION: &[u32] = &[0x5412, 0x541c];

const fn refuse(call: libc::c_long, reason: &'static str) -> Rule {
    Rule { call, when: When::Always, answer: Answer::NotPermitted, reason }
}

const fn refuse_when(call: libc::c_long, when: When, reason: &'static str) -> Rule {
    Rule { call, when, answer: Answer::NotPermitted, reason }
}

/// `open_tree_attr` of Linux 6.15, the same number on every architecture.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;

const RULES: &[Rule] = &[
    refuse_when(
        libc::SYS_clone,
        When::AnyBit(0, NAMESPACE_FLAGS),
        "nested namespaces give capabilities over kernel code that is rarely tested",
    ),
    Rule {
        call: libc::SYS_clone3,
        when: When::Always,
        answer: Answer::NoSuchCall,
        reason: "its flags are in memory, where a filter cannot look; the C libraries fall back to clone",
    },
    refuse(libc::SYS_unshare, "nested namespaces, as above"),
    refuse(libc::SYS_setns, "the sandbox stays in its namespaces"),
    refuse(libc::SYS_mount, "the file system tree is complete before user code runs"),
    refuse(libc::SYS_umount2, "mounts hide parts of /proc and make parts read-only"),
    refuse(libc::SYS_pivot_root, "as mount"),
    refuse(libc::SYS_chroot, "as mount"),
    refuse(libc::SYS_fsopen, "as mount"),
    refuse(libc::SYS_fsconfig, "as mount"),
    refuse(libc::SYS_fsmount, "as mount"),
    refuse(libc::SYS_fspick, "as mount"),
    refuse(libc::SYS_open_tree, "as mount"),
    refuse(SYS_OPEN_TREE_ATTR, "as mount"),
    refuse(libc::SYS_move_mount, "as mount"),
    refuse(libc::SYS_mount_setattr, "as mount"),
    refuse(libc::SYS_swapon, "belongs to the machine"),
    refuse(libc::SYS_swapoff, "belongs to the machine"),
    refuse(libc::SYS_quotactl, "belongs to the machine"),
    refuse(libc::SYS_quotactl_fd, "belongs to the machine"),
    refuse(libc::SYS_acct, "belongs to the machine"),
    refuse(libc::SYS_reboot, "belongs to the machine; inside a pid namespace it would end the guest"),
    refuse(libc::SYS_kexec_load, "belongs to the machine"),
    refuse(libc::SYS_kexec_file_load, "belongs to the machine"),
    refuse(libc::SYS_init_module, "belongs to the machine"),
    refuse(libc::SYS_finit_module, "belongs to the machine"),
    refuse(libc::SYS_delete_module, "belongs to the machine"),
    refuse(libc::SYS_syslog, "the kernel's log names host addresses and processes"),
    refuse(libc::SYS_settimeofday, "the clock is shared with the host"),
    refuse(libc::SYS_clock_settime, "the clock is shared with the host"),
    refuse(libc::SYS_clock_adjtime, "the clock is shared with the host"),
    refuse(libc::SYS_adjtimex, "the clock is shared with the host"),
    refuse(libc::SYS_add_key, "key rings are only partly confined by user namespaces"),
    refuse(libc::SYS_request_key, "as add_key; it also starts a program of the host"),
    refuse(libc::SYS_keyctl, "as add_key"),
    refuse(libc::SYS_bpf, "large attack surface"),
    refuse(libc::SYS_perf_event_open, "large attack surface; counters see the host"),
    refuse(libc::SYS_userfaultfd, "makes kernel races easy to win"),
    Rule {
        call: libc::SYS_io_uring_setup,
        when: When::Always,
        answer: Answer::NoSuchCall,
        reason: "large attack surface, and operations in a ring bypass this filter; runtimes fall back",
    },
    Rule {
        call: libc::SYS_io_uring_enter,
        when: When::Always,
        answer: Answer::NoSuchCall,
        reason: "as io_uring_setup",
    },
    Rule {
        call: libc::SYS_io_uring_register,
        when: When::Always,
        answer: Answer::NoSuchCall,
        reason: "as io_uring_setup",
    },
    refuse(libc::SYS_open_by_handle_at, "opens files by number past every mount; name_to_handle_at alone is harmless"),
    refuse(libc::SYS_fanotify_init, "watches and blocks whole mounts, also those of the host's /usr"),
    refuse(libc::SYS_vhangup, "belongs to a login program"),
    refuse(libc::SYS_lookup_dcookie, "profiling of the whole machine"),
    refuse_when(
        libc::SYS_socket,
        When::NoneOf(0, ADDRESS_FAMILIES),
        "protocol families that are rarely tested or not confined by namespaces",
    ),
    refuse_when(
        libc::SYS_socket,
        When::Pair((0, 16), (2, 0)),
        "of netlink only routing, which getifaddrs and ip need, not netfilter and others",
    ),
    refuse_when(libc::SYS_socketpair, When::NoneOf(0, ADDRESS_FAMILIES), "as socket"),
    refuse_when(libc::SYS_ioctl, When::OneOf(1, TERMINAL_INJECTION), "types into a terminal that another user may own"),
    refuse_when(
        libc::SYS_personality,
        When::NoneOf(0, PERSONALITIES),
        "weakens address randomisation and page protection",
    ),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_iopl, "access to hardware"),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_ioperm, "access to hardware"),
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_modify_ldt, "16-bit segments: old kernel code that only emulators want"),
];

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// Calls of the x32 ABI have this bit and the native architecture number. No number of any native call comes near it.
const FIRST_FOREIGN_CALL: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const CALL: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u8) -> u32 {
    16 + 8 * index as u32 // little endian: the low half comes first
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const fn error(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

impl Answer {
    const fn action(self) -> u32 {
        match self {
            Self::NotPermitted => error(libc::EPERM),
            Self::NoSuchCall => error(libc::ENOSYS),
        }
    }
}

const fn instruction(code: u32, jt: usize, jf: usize, k: u32) -> sock_filter {
    assert!(code <= 0xffff && jt <= 0xff && jf <= 0xff, "every jump of the table is short");
    #[expect(clippy::cast_possible_truncation, reason = "asserted one line above")]
    sock_filter { code: code as u16, jt: jt as u8, jf: jf as u8, k }
}

const fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

const fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

const fn jump(test: u32, k: u32, yes: usize, no: usize) -> sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, yes, no, k)
}

/// The filter as a program for the kernel.
pub(super) fn program() -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, NATIVE, 1, 0),
        answer(error(libc::ENOSYS)), // 32-bit calls have other numbers, so they would pass the table
        load(CALL),
        jump(libc::BPF_JGE, FIRST_FOREIGN_CALL, 0, 1),
        answer(error(libc::ENOSYS)),
    ];
    let mut done = Vec::new();
    for rule in RULES {
        if done.contains(&rule.call) {
            continue; // all rules of one call stand together in the program
        }
        done.push(rule.call);
        let mut body: Vec<sock_filter> = RULES.iter().filter(|other| other.call == rule.call).flat_map(lines).collect();
        body.push(answer(ALLOW));
        program.push(jump(libc::BPF_JEQ, number(rule.call), 0, body.len()));
        program.extend(body);
    }
    program.push(answer(ALLOW));
    program
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).expect("call numbers are small")
}

/// One rule: falls through behind itself when its condition does not hold.
fn lines(rule: &Rule) -> Vec<sock_filter> {
    let verdict = answer(rule.answer.action());
    match rule.when {
        When::Always => vec![verdict],
        When::AnyBit(index, mask) => vec![load(argument(index)), jump(libc::BPF_JSET, mask, 0, 1), verdict],
        When::OneOf(index, values) => {
            let mut lines = vec![load(argument(index))];
            lines.extend(values.iter().enumerate().map(|(at, value)| {
                let last = at + 1 == values.len();
                jump(libc::BPF_JEQ, *value, values.len() - 1 - at, usize::from(last))
            }));
            lines.push(verdict);
            lines
        }
        When::NoneOf(index, values) => {
            let mut lines = vec![load(argument(index))];
            lines
                .extend(values.iter().enumerate().map(|(at, value)| jump(libc::BPF_JEQ, *value, values.len() - at, 0)));
            lines.push(verdict);
            lines
        }
        When::Pair((first, is), (second, is_not)) => vec![
            load(argument(first)),
            jump(libc::BPF_JEQ, is, 0, 3),
            load(argument(second)),
            jump(libc::BPF_JEQ, is_not, 1, 0),
            verdict,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMITTED: u32 = ALLOW;
    const EPERM: u32 = error(libc::EPERM);
    const ENOSYS: u32 = error(libc::ENOSYS);

    /// What the kernel would do: the few instructions that the filter consists of.
    fn run(architecture: u32, call: u32, arguments: &[u64]) -> u32 {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&call.to_le_bytes());
        data[4..8].copy_from_slice(&architecture.to_le_bytes());
        for (index, value) in arguments.iter().enumerate() {
            data[16 + 8 * index..24 + 8 * index].copy_from_slice(&value.to_le_bytes());
        }
        let program = program();
        let (mut at, mut a) = (0, 0u32);
        loop {
            let line = program[at];
            at += 1;
            let code = u32::from(line.code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                let offset = line.k as usize;
                a = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
            } else if code == libc::BPF_RET | libc::BPF_K {
                return line.k;
            } else {
                let holds = match code & !(libc::BPF_JMP | libc::BPF_K) {
                    test if test == libc::BPF_JEQ => a == line.k,
                    test if test == libc::BPF_JGE => a >= line.k,
                    test if test == libc::BPF_JSET => a & line.k != 0,
                    other => panic!("unknown instruction {other:#x}"),
                };
                at += usize::from(if holds { line.jt } else { line.jf });
            }
        }
    }

    fn native(call: libc::c_long, arguments: &[u64]) -> u32 {
        run(NATIVE, number(call), arguments)
    }

    #[test]
    fn ordinary_calls_pass() {
        for call in [
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_seccomp,
            libc::SYS_name_to_handle_at,
        ] {
            assert_eq!(native(call, &[]), PERMITTED);
        }
    }

    #[test]
    fn every_rule_is_reached_and_says_why() {
        for rule in RULES {
            assert!(!rule.reason.is_empty());
            if matches!(rule.when, When::Always) {
                assert_eq!(native(rule.call, &[]), rule.answer.action(), "call {}", rule.call);
            }
        }
    }

    #[test]
    fn threads_and_forks_pass_and_namespaces_do_not() {
        assert_eq!(native(libc::SYS_clone, &[0x3d_0f00]), PERMITTED, "pthread_create");
        assert_eq!(native(libc::SYS_clone, &[0x0120_0011]), PERMITTED, "fork");
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP] {
            assert_eq!(native(libc::SYS_clone, &[u64::from(flag.cast_unsigned()) | 17]), EPERM);
        }
        assert_eq!(native(libc::SYS_clone3, &[]), ENOSYS);
    }

    #[test]
    fn sockets_of_the_four_families_pass() {
        for family in [1, 2, 10] {
            assert_eq!(native(libc::SYS_socket, &[family, 1, 0]), PERMITTED);
        }
        assert_eq!(native(libc::SYS_socket, &[16, 3, 0]), PERMITTED, "routing");
        assert_eq!(native(libc::SYS_socket, &[16, 3, 12]), EPERM, "netfilter");
        for family in [17, 38, 40] {
            assert_eq!(native(libc::SYS_socket, &[family, 1, 0]), EPERM);
        }
        assert_eq!(
            native(libc::SYS_socket, &[0x1_0000_0000 | 40, 1, 0]),
            EPERM,
            "the kernel looks at the low half only"
        );
    }

    #[test]
    fn terminals_cannot_be_typed_into() {
        assert_eq!(native(libc::SYS_ioctl, &[0, 0x5412]), EPERM);
        assert_eq!(native(libc::SYS_ioctl, &[0, 0xffff_ffff_0000_541c]), EPERM);
        assert_eq!(native(libc::SYS_ioctl, &[0, 0x5413]), PERMITTED, "window size");
        assert_eq!(native(libc::SYS_ioctl, &[0x5412, 0x5401]), PERMITTED);
    }

    #[test]
    fn the_usual_personalities_pass() {
        assert_eq!(native(libc::SYS_personality, &[0xffff_ffff]), PERMITTED);
        assert_eq!(native(libc::SYS_personality, &[0]), PERMITTED);
        assert_eq!(native(libc::SYS_personality, &[0x40_0000]), EPERM, "READ_IMPLIES_EXEC");
    }

    #[test]
    fn other_abis_have_no_calls_at_all() {
        assert_eq!(run(0x4000_0003, 165, &[]), ENOSYS, "i386");
        assert_eq!(run(NATIVE, FIRST_FOREIGN_CALL | 165, &[]), ENOSYS, "x32");
    }

    #[test]
    fn the_program_fits_the_kernels_limit() {
        assert!(program().len() < 4096);
    }
}
