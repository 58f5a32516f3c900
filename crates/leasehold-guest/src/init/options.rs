//! The arguments of the mode `init`. A sandbox's engine gives none; tests run it as an ordinary process elsewhere.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::boot::plan::READY_FD;
use crate::sys;

/// Where the guest finds and puts things.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// The identity file. `--identity FILE`; default `identity.json` in the run directory.
    pub(super) identity: PathBuf,
    /// Where the sockets are made. `--run DIR`; default `/run/leasehold`.
    pub(super) run_dir: PathBuf,
    /// Loopback port of the envd face. `--envd-port N`, 0 for none; default 49983.
    pub(super) envd_port: Option<u16>,
    /// Loopback port of the shellctl face. `--shellctl-port N`, 0 for none; default 5004.
    pub(super) shellctl_port: Option<u16>,
    /// What the guest keeps beside the user's files. `--state DIR`; default `/var/lib/leasehold`.
    pub(super) state_dir: PathBuf,
    /// Where the ready line goes. `--ready-fd N`, 1 for stdout; default [`READY_FD`].
    pub(super) ready_fd: i32,
}

impl Options {
    pub(super) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut options = Self {
            identity: PathBuf::new(),
            run_dir: "/run/leasehold".into(),
            envd_port: Some(envd::PORT),
            shellctl_port: Some(shellctl::limits::DEFAULT_PORT),
            state_dir: "/var/lib/leasehold".into(),
            ready_fd: READY_FD,
        };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{} needs a value", name.display()))?;
            let number = |max: u16| {
                let number = value.to_str().and_then(|text| text.parse::<u16>().ok()).filter(|number| *number <= max);
                number.ok_or_else(|| format!("{} must be a number of at most {max}", name.display()))
            };
            let port = || number(u16::MAX).map(|port| (port != 0).then_some(port));
            match name.to_str() {
                Some("--identity") => options.identity = value.into(),
                Some("--run") => options.run_dir = value.into(),
                Some("--state") => options.state_dir = value.into(),
                Some("--envd-port") => options.envd_port = port()?,
                Some("--shellctl-port") => options.shellctl_port = port()?,
                Some("--ready-fd") => options.ready_fd = number(1023)?.into(),
                _ => return Err(format!("unknown argument {}", name.display())),
            }
        }
        if options.identity.as_os_str().is_empty() {
            options.identity = options.run_dir.join("identity.json");
        }
        Ok(options)
    }

    pub(super) fn open_ready(&self) -> io::Result<Box<dyn Write>> {
        if self.ready_fd == 1 {
            return Ok(Box::new(io::stdout()));
        }
        Ok(Box::new(File::from(sys::adopt_fd(self.ready_fd)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(args.iter().map(OsString::from))
    }

    #[test]
    fn defaults_are_those_of_a_sandbox() {
        let options = parse(&[]).unwrap();
        assert_eq!(options.identity, PathBuf::from("/run/leasehold/identity.json"));
        assert_eq!((options.envd_port, options.shellctl_port, options.ready_fd), (Some(49983), Some(5004), 3));
    }

    #[test]
    fn arguments_are_checked() {
        let options = parse(&["--run", "/tmp/x", "--envd-port", "0", "--ready-fd", "1"]).unwrap();
        assert_eq!((options.identity, options.envd_port), (PathBuf::from("/tmp/x/identity.json"), None));
        for args in [&["--run"][..], &["--envd-port", "65536"], &["--ready-fd", "-1"], &["--what", "1"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
