//! What a sandbox, its root included, cannot see or do.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Machine, User};

const BOTH: [User; 2] = [User::Root, User::User];

/// A file of the host that exists for the length of a test.
struct Secret(PathBuf);

impl Secret {
    const CONTENT: &str = "leasehold-secret-content";

    fn new(directory: &str, machine: &Machine) -> Self {
        let tag = machine.data.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let path = PathBuf::from(directory).join(format!("leasehold-secret-{tag}"));
        fs::write(&path, Self::CONTENT).unwrap();
        Self(path)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn no_file_of_the_host_outside_the_base_can_be_read() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    let data = machine.data.to_str().unwrap().to_owned();
    let directories =
        ["/root", "/home", "/tmp", "/var", "/var/tmp", "/opt", "/srv", "/mnt", "/etc", "/usr/local", &data];
    let secrets: Vec<Secret> = directories.iter().map(|directory| Secret::new(directory, &machine)).collect();
    for user in BOTH {
        for Secret(path) in &secrets {
            let path = path.display();
            for way in ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/../../..", "/proc/self/cwd/../../../.."]
            {
                let output = machine.try_sh("i1", user, &format!("cat {way}{path}"));
                assert_ne!(output.exit_code, 0, "{way}{path}");
                assert!(!output.text.contains(Secret::CONTENT));
            }
        }
        let found = machine.try_sh(
            "i1",
            user,
            "find / -name 'leasehold-secret-*' 2>/dev/null; ls /home /root /opt /usr/local 2>/dev/null",
        );
        assert!(!found.text.contains("leasehold-secret"), "{}", found.text);
        for file in [
            "/etc/shadow",
            "/etc/ssh",
            "/etc/machine-id",
            "/etc/ssl/private",
            "/boot",
            "/sys/kernel",
            "/var/log/dpkg.log",
            "/proc/kcore",
        ] {
            assert_ne!(
                machine.try_sh("i1", user, &format!("head -c 1 {file} | grep -q . || ls {file}/* ")).exit_code,
                0,
                "{file}"
            );
        }
    }
    let host_passwd = fs::read_to_string("/etc/passwd").unwrap();
    assert_ne!(machine.sh("i1", User::Root, "cat /etc/passwd"), host_passwd);
}

#[test]
fn no_process_of_the_host_is_visible() {
    let machine = Machine::new();
    let mut stranger = Command::new("sleep").arg("31415926").spawn().unwrap();
    machine.start("i1", &[]);
    for user in BOTH {
        let seen = machine.sh(
            "i1",
            user,
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; ls -d /proc/[0-9]* | wc -l; echo $$",
        );
        assert!(!seen.contains("31415926"), "{seen}");
        let numbers: Vec<u32> = seen.lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert!(numbers.iter().all(|number| *number < 100), "{seen}");
        assert_ne!(machine.try_sh("i1", user, &format!("kill -0 {}", stranger.id())).exit_code, 0);
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn capabilities_are_as_stated_and_privileges_cannot_be_gained() {
    // CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, KILL 5, SETGID 6, SETUID 7.
    const SIX: &str = "00000000000000eb";
    const NONE: &str = "0000000000000000";
    let machine = Machine::new();
    let running = machine.start("i1", &[]);
    let of = |status: &str, key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(":"))
            .map(str::trim)
            .map(str::to_owned)
            .unwrap()
    };
    let guest = fs::read_to_string(format!("/proc/{}/status", running.process.pid)).unwrap();
    let root = machine.sh("i1", User::Root, "cat /proc/self/status");
    let user = machine.sh("i1", User::User, "cat /proc/self/status");
    for (status, effective) in [(&guest, SIX), (&root, SIX), (&user, NONE)] {
        assert_eq!(of(status, "CapEff"), effective);
        assert_eq!(of(status, "CapPrm"), effective);
        assert_eq!(of(status, "CapBnd"), SIX);
        assert_eq!(of(status, "CapInh"), NONE);
        assert_eq!(of(status, "CapAmb"), NONE);
        assert_eq!(of(status, "NoNewPrivs"), "1");
        assert_eq!(of(status, "Seccomp"), "2");
    }
    assert_eq!(of(&guest, "Uid").split_whitespace().next().unwrap(), "1879048192", "root inside is nobody outside");
    assert_eq!(machine.sh("i1", User::Root, "awk '{print $1, $2, $3}' /proc/self/uid_map"), "0 1879048192 65536\n");

    // A set-user-id program is an ordinary one.
    machine.sh("i1", User::Root, "cp /usr/bin/id /tmp/rootid && chmod 4755 /tmp/rootid");
    assert_eq!(machine.sh("i1", User::User, "/tmp/rootid -u"), "1000\n");
    assert_ne!(machine.try_sh("i1", User::User, "su -c id root </dev/null").exit_code, 0);
}

#[test]
fn roots_attempts_to_change_the_host_fail() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    let before = fs::metadata("/usr/bin/env").unwrap();
    let swappiness = fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    for script in [
        "mount -o remount,rw /usr",
        "mount -o remount,bind,rw /usr",
        "mount -t tmpfs none /mnt",
        "mount --bind /tmp /usr",
        "umount /usr",
        "umount -l /proc/sys",
        "umount /proc/kcore",
        "touch /usr/leasehold-was-here",
        "echo x >> /usr/bin/env",
        "chmod 777 /usr/bin/env",
        "rm -f /usr/bin/env",
        "mv /usr /usr2",
        "rm -rf /usr/lib/os-release",
        "echo 1 > /proc/sys/vm/swappiness",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo c > /proc/sysrq-trigger",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sys/kernel/hostname",
        "hostname changed",
        "mknod /tmp/disk b 8 0",
        "mknod /tmp/kmem c 1 2",
        "mknod /tmp/white c 0 0",
        "chroot / true",
        "unshare -U true",
        "unshare -m true",
        "unshare -Ur true",
        "nsenter -t 1 -m true",
        "ip link add dummy0 type dummy",
        "date -s 2001-01-01",
        "dmesg",
        "cat /proc/1/environ",
        "readlink /proc/1/fd/1",
        "cat /proc/1/mem",
        "echo changed > /run/leasehold/identity.json",
        "rm -f /run/leasehold/identity.json",
        "mv /run/leasehold/identity.json /run/leasehold/other",
        "echo x > /run/leasehold-guest",
        "echo x > /proc/sys/kernel/random/boot_id",
        "renice -n -5 $$",
        "echo -500 > /proc/self/oom_score_adj",
    ] {
        let output = machine.try_sh("i1", User::Root, script);
        assert_ne!(output.exit_code, 0, "{script}: {}", output.text);
    }
    let after = fs::metadata("/usr/bin/env").unwrap();
    assert_eq!(
        (after.len(), after.permissions(), after.modified().unwrap()),
        (before.len(), before.permissions(), before.modified().unwrap())
    );
    assert_eq!(fs::read_to_string("/proc/sys/vm/swappiness").unwrap(), swappiness);
    assert!(!PathBuf::from("/usr/leasehold-was-here").exists());
    assert_eq!(machine.sh("i1", User::User, "echo alive; cat /etc/hostname"), "alive\ni1\n");
}

#[test]
fn refused_system_calls_are_refused() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    let script = r#"
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    return errno.errorcode.get(ctypes.get_errno(), "ok") if result < 0 else "ok"
import platform
assert platform.machine() == "x86_64"
for name, number in [("bpf", 321), ("keyctl", 250), ("userfaultfd", 323), ("perf", 298), ("unshare", 272), ("setns", 308), ("mount", 165),
                     ("open_tree", 428), ("fsopen", 430), ("handle", 304), ("io_uring", 425), ("clone3", 435), ("kexec", 246)]:
    print(name, call(number, 0, 0, 0, 0, 0))
print("clone", call(56, 0x10000000 | 17, 0, 0, 0, 0))
for family in (16, 17, 38, 40):
    try:
        socket.socket(family, socket.SOCK_DGRAM if family == 40 else socket.SOCK_RAW, 0).close(); print(family, "ok")
    except OSError as error:
        print(family, errno.errorcode[error.errno])
"#;
    let expected = "bpf EPERM\nkeyctl EPERM\nuserfaultfd EPERM\nperf EPERM\nunshare EPERM\nsetns EPERM\nmount EPERM\nopen_tree EPERM\nfsopen EPERM\n\
        handle EPERM\nio_uring ENOSYS\nclone3 ENOSYS\nkexec EPERM\nclone EPERM\n16 ok\n17 EPERM\n38 EPERM\n40 EPERM\n";
    if cfg!(target_arch = "x86_64") {
        assert_eq!(machine.sh("i1", User::Root, &format!("python3 - <<'EOF'\n{script}\nEOF")), expected);
    }
}

#[test]
fn no_descriptor_of_the_host_is_open_inside() {
    let machine = Machine::new();
    // A descriptor that a careless host leaves open over exec.
    let leaked = fs::File::open(machine.data.join("run")).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let running = machine.start("i1", &[]);
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::CLOEXEC).unwrap();
    let log = machine.data.join("sandboxes/i1/guest.log");
    for entry in fs::read_dir(format!("/proc/{}/fd", running.process.pid)).unwrap() {
        let entry = entry.unwrap();
        let target = fs::read_link(entry.path()).unwrap();
        let expected = target == log
            || ["socket:", "pipe:", "anon_inode:", "/dev/null"]
                .iter()
                .any(|kind| target.to_string_lossy().starts_with(kind));
        let own = target.starts_with("/run/leasehold") || target.to_string_lossy().ends_with("leasehold-guest");
        assert!(expected || own, "{} is {}", entry.path().display(), target.display());
    }
    for user in BOTH {
        let open = machine.sh("i1", user, "for fd in /proc/self/fd/*; do readlink $fd; done | sed 's/:.*//' | sort -u");
        for kind in open.lines() {
            assert!(["/dev/null", "pipe", "socket"].contains(&kind) || kind.starts_with("/proc/"), "{open}");
        }
        let environment = machine.sh("i1", user, "env");
        assert!(!environment.contains("CARGO"), "{environment}");
    }
}

#[test]
fn ordinary_programs_work() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    for (user, script, expected) in [
        (User::User, "bash -lc 'echo $HOME; id -un; umask'", "/home/user\nuser\n0022\n"),
        (User::User, "ls -ld /home/user /home/dify /workspace | awk '{print $3, $4}' | sort -u", "user user\n"),
        (
            User::User,
            "ls -ld / /etc /usr /tmp | awk '{print $1, $3}'",
            "drwxr-xr-x root\ndrwxr-xr-x root\ndrwxrwxrwt root\ndrwxr-xr-x nobody\n",
        ),
        (
            User::User,
            "python3 -c 'import ssl, json, sqlite3, socket, subprocess; print(subprocess.check_output([\"echo\", \"hi\"]).decode().strip())'",
            "hi\n",
        ),
        (
            User::User,
            "cd ~ && git init -q x && cd x && git -c user.name=a -c user.email=b commit -q --allow-empty -m m && git log --oneline | wc -l",
            "1\n",
        ),
        (User::User, "python3 -c 'import os; m, s = os.openpty(); print(os.ttyname(s))'", "/dev/pts/0\n"),
        (
            User::User,
            "echo x > /dev/shm/a && cat /dev/shm/a < /dev/stdin && cat <(echo y) && (echo z > /dev/stderr) 2>&1 && echo w > /dev/stdout",
            "x\ny\nz\nw\n",
        ),
        (User::User, "getent hosts i1; getent passwd 1000 | cut -d: -f1", "127.0.1.1       i1\nuser\n"),
        (
            User::User,
            "python3 -m http.server -b 127.0.0.1 80 >/dev/null 2>&1 & for i in $(seq 500); do (exec 3<>/dev/tcp/127.0.0.1/80) 2>/dev/null && echo up && break; sleep 0.02; done; kill %1",
            "up\n",
        ),
        (User::Root, "touch /root/a /srv/b && chown user:user /srv/b && stat -c %U /srv/b", "user\n"),
        (
            User::Root,
            "su user -s /bin/sh -c 'id -u' 2>/dev/null || setpriv --reuid 1000 --regid 1000 --clear-groups id -u",
            "1000\n",
        ),
    ] {
        let output = machine.try_sh("i1", user, script);
        assert_eq!((output.text.as_str(), output.exit_code), (expected, 0), "{script}");
    }
}
