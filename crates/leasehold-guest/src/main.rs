//! The guest's binary. Its first argument is the mode: `launch` (outside, makes the sandbox), `init` (PID 1 inside), `supervise` (one
//! per job).

use std::process::ExitCode;

fn main() -> ExitCode {
    let mode = std::env::args_os().nth(1).unwrap_or_default();
    let result = match mode.to_str() {
        Some("supervise") => leasehold_guest::supervise::main(),
        _ => {
            eprintln!("usage: leasehold-guest launch|init|supervise (started by the engine, not by hand)");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasehold-guest: {error}");
            ExitCode::FAILURE
        }
    }
}
