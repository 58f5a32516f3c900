//! The guest binary: one file, several modes, chosen by the first argument.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().nth(1).as_deref().and_then(|mode| mode.to_str()) {
        Some("launch") => leasehold_guest::boot::launch(),
        _ => {
            eprintln!("usage: leasehold-guest launch");
            ExitCode::from(2)
        }
    }
}
