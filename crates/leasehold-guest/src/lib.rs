//! The daemon inside a Leasehold sandbox: PID 1, processes, files; speaks envd and shellctl. Linux only.
