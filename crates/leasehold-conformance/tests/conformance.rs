//! Every case on the E2B driver with a real host, which lives in this process; and the page in `docs` that says so.

#[cfg(target_os = "linux")]
mod on_host;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    on_host::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
