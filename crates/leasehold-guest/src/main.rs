//! The guest's binary. Its first argument is the mode: `launch` (outside, makes the sandbox), `init` (PID 1 inside), `supervise` (one
//! per job).

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let mode = args.next().unwrap_or_default();
    match mode.to_str() {
        Some("launch") => leasehold_guest::boot::launch(),
        Some("init") => leasehold_guest::init::main(args),
        Some("supervise") => leasehold_guest::supervise::main(),
        _ => {
            eprintln!("usage: leasehold-guest launch|init|supervise (started by the engine, not by hand)");
            ExitCode::from(2)
        }
    }
}
