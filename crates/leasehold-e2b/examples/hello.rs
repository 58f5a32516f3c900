//! Creates a sandbox on the endpoint that the `E2B_*` variables name, writes a file into it, runs a command on it, and kills the
//! sandbox.
//!
//! ```text
//! E2B_API_KEY=… E2B_API_URL=http://127.0.0.1:3999 E2B_SANDBOX_URL=http://127.0.0.1:3999 \
//!     cargo run -p leasehold-e2b --example hello
//! ```

use std::io::Write as _;
use std::time::Duration;

use leasehold_e2b::{Client, NewSandbox, Output, ProcessSpec, Sandbox};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?;
    let new = NewSandbox::new("base").timeout(Duration::from_secs(60)).metadata("example", "hello");
    let sandbox = client.create(&new).await?;
    let outcome = greet(&sandbox).await;
    // Whatever happened, the sandbox goes.
    sandbox.kill().await?;
    let code = outcome?;
    if code == 0 { Ok(()) } else { Err(format!("the command left with exit code {code}").into()) }
}

/// Writes a file, and shows it with a command inside.
async fn greet(sandbox: &Sandbox) -> Result<i32, Box<dyn std::error::Error>> {
    sandbox.files().write("greeting.txt", "hello from inside\n").await?;
    let spec = ProcessSpec::new("cat").argument("greeting.txt").timeout(Duration::from_secs(10));
    let mut process = sandbox.start(&spec).await?;
    let mut code = -1;
    while let Some(output) = process.next().await? {
        match output {
            Output::Stdout(bytes) | Output::Pty(bytes) => std::io::stdout().write_all(&bytes)?,
            Output::Stderr(bytes) => std::io::stderr().write_all(&bytes)?,
            Output::End(end) => code = end.exit_code,
        }
    }
    Ok(code)
}
