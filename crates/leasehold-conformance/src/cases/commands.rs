//! What a command gets, and what comes back from it.

use std::sync::Arc;

use anyhow::ensure;
use futures_util::future::join_all;
use leasehold::{CommandMode, ErrorKind, JobStatus, RunCommand};

use super::{area, needs};
use crate::stage::refused_without_effect;
use crate::{Ran, Stage};

area!("commands" {
    /// Output and exit code are the command's own.
    output_and_exit_code_are_the_commands: needs::nothing,
    /// When a command is done all of its output is there, every time.
    output_precedes_exit: needs::nothing,
    /// Large output comes through in windows without a byte lost or doubled and without a broken character.
    large_output_is_read_in_windows: needs::nothing,
    /// Blank lines, carriage returns and a missing last line end come back as they were.
    output_is_not_edited: needs::nothing,
    /// A command that is not found exits with 127, one that cannot be executed with 126.
    exit_codes_tell_not_found_from_not_executable: needs::nothing,
    /// Standard input is empty unless asked for: nothing hangs on it.
    standard_input_is_empty: needs::nothing,
    /// HOME is the lease's Home, whatever the caller's variables say.
    home_is_the_leases_home: needs::nothing,
    /// A command starts in the Workspace; `~`, relative and absolute directories follow the layout's rules.
    the_working_directory_follows_the_layout: needs::nothing,
    /// A working directory outside of Home and Workspace is refused before anything runs.
    a_working_directory_outside_is_refused: needs::nothing,
    /// A working directory that isn't there is an error, never another directory.
    a_missing_working_directory_is_an_error: needs::nothing,
    /// Variables reach the command to the byte: newlines, quotes, long values.
    variables_reach_the_command: needs::nothing,
    /// A script with an interpreter line runs in that interpreter.
    an_interpreter_line_is_followed: needs::nothing,
    /// Commands at the same time keep their outputs apart.
    concurrent_commands_keep_their_outputs_apart: needs::nothing,
});

async fn output_and_exit_code_are_the_commands(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    for code in [0, 1, 3, 42, 255] {
        let ran = lease.sh(&format!("echo said-{code}; exit {code}")).await?;
        ensure!(ran == Ran { exit_code: Some(code), output: format!("said-{code}\n") }, "exit {code} gave {ran:?}");
    }
    lease.release().await
}

async fn output_precedes_exit(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let commands = lease.lease().commands();
    for round in 0..40 {
        let mut job = commands.run(RunCommand::new("printf x; exit 3").mode(CommandMode::Stdio)).await?;
        let mut output = std::mem::take(&mut job.output);
        // An answer may come between the output and the end; what counts is the first answer that says "done".
        while !job.done {
            job = commands.wait(&job.job_id, job.offset, stage.patience()).await?;
            output.push_str(&job.output);
        }
        ensure!(job.status == JobStatus::Exited, "round {round}: the job is {:?}", job.status);
        ensure!(job.exit_code == Some(3), "round {round}: exit code {:?}", job.exit_code);
        ensure!(output == "x", "round {round}: the exit came with output {output:?}");
    }
    lease.release().await
}

async fn large_output_is_read_in_windows(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let commands = lease.lease().commands();
    let script = "i=0; while [ $i -lt 12000 ]; do echo \"zeile-ü🦀-$i\"; i=$((i+1)); done";
    let expected: String = (0..12000).map(|line| format!("zeile-ü🦀-{line}\n")).collect();
    let compare = |how: &str, output: &str| {
        let same = output.bytes().zip(expected.bytes()).take_while(|(one, two)| one == two).count();
        ensure!(output == expected, "{how}: {} bytes of {}, the first {same} are right", output.len(), expected.len());
        Ok(())
    };
    let started = commands.run(RunCommand::new(script).mode(CommandMode::Stdio)).await?;
    let job = &started.job_id;
    let rest = super::jobs::finish(&lease, job, started.offset).await?;
    compare("read as it came", &(started.output + &rest.output))?;
    // Once more, now that the job has ended: only the windows themselves say that there is more.
    let mut window = commands.read_output(job, 0).await?;
    let mut output = window.output;
    while window.truncated {
        window = commands.read_output(job, window.offset).await?;
        ensure!(!window.output.is_empty(), "an empty window says that there is more");
        output.push_str(&window.output);
    }
    compare("read after the end", &output)?;
    lease.release().await
}

async fn output_is_not_edited(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let ran = lease.sh(r"printf 'a\n\n\nb\r\n\n  c \t'").await?;
    ensure!(ran.output == "a\n\n\nb\r\n\n  c \t", "the output came as {:?}", ran.output);
    lease.release().await
}

async fn exit_codes_tell_not_found_from_not_executable(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let missing = lease.sh("no-such-command-anywhere 2>/dev/null").await?;
    ensure!(missing.exit_code == Some(127), "not found gave {:?}", missing.exit_code);
    let plain = lease.sh("echo text > plain; chmod 644 plain; ./plain 2>/dev/null").await?;
    ensure!(plain.exit_code == Some(126), "not executable gave {:?}", plain.exit_code);
    lease.release().await
}

async fn standard_input_is_empty(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let seen = lease.ok("if read -r line; then echo \"got $line\"; else echo end; fi; cat; echo after").await?;
    ensure!(seen == "end\nafter", "reading the input gave {seen:?}");
    lease.release().await
}

async fn home_is_the_leases_home(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let home = lease.home().to_owned();
    let seen = lease.ok("echo \"$HOME\"; cd; pwd; echo ~").await?;
    ensure!(seen == format!("{home}\n{home}\n{home}"), "the command sees {seen:?}, the lease says {home:?}");
    let overridden = lease.run(RunCommand::new("echo \"$HOME\"").env("HOME", "/elsewhere")).await?;
    ensure!(overridden.output.trim_end() == home, "the caller's HOME won: {:?}", overridden.output);
    lease.release().await
}

async fn the_working_directory_follows_the_layout(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    lease.ok("mkdir -p src/deep \"$HOME/notes\"").await?;
    let (home, work) = (lease.home(), lease.workspace());
    let rules = [
        (None, work.to_owned()),
        (Some(String::new()), work.to_owned()),
        (Some("~".to_owned()), home.to_owned()),
        (Some("~/notes".to_owned()), format!("{home}/notes")),
        (Some("src/deep/..".to_owned()), format!("{work}/src")),
        (Some(format!("{home}/notes")), format!("{home}/notes")),
    ];
    for (cwd, expected) in rules {
        let command = RunCommand::new("pwd");
        let command = match &cwd {
            Some(cwd) => command.cwd(cwd.as_str()),
            None => command,
        };
        let seen = lease.run(command).await?.output;
        ensure!(seen.trim_end() == expected, "cwd {cwd:?} is {seen:?}, expected {expected:?}");
    }
    lease.release().await
}

async fn a_working_directory_outside_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let mark = format!("{}/ran", lease.workspace());
    for outside in ["/", "/usr", "..", "~/..", "../../.."] {
        let command = RunCommand::new(format!(": > '{mark}'")).cwd(outside);
        let result = lease.lease().commands().run(command).await;
        refused_without_effect(&format!("cwd {outside:?}"), result, ErrorKind::InvalidInput)?;
    }
    lease.ok("test ! -e ran").await?;
    lease.release().await
}

async fn a_missing_working_directory_is_an_error(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let mark = format!("{}/ran", lease.workspace());
    let command = RunCommand::new(format!(": > '{mark}'")).cwd("missing").mode(CommandMode::Stdio);
    if let Ok(job) = lease.lease().commands().run(command).await {
        ensure!(job.done && job.exit_code != Some(0), "the command ran: {job:?}");
    }
    lease.ok("test ! -e ran && test ! -e missing").await?;
    lease.release().await
}

async fn variables_reach_the_command(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let long = "0123456789abcdef".repeat(4096);
    for value in ["", "plain", "two\nlines\n", "it's \"quoted\" $(no) `no` \\n", "über-🦀", "-n", "a=b", &long] {
        let command = RunCommand::new("printf '[%s]' \"$VALUE\"").env("VALUE", value);
        let seen = lease.run(command).await?.output;
        let (end, shown) = (seen.len().min(80), value.len().min(40));
        ensure!(seen == format!("[{value}]"), "{:?} came as {:?}", value.get(..shown), seen.get(..end));
    }
    lease.release().await
}

async fn an_interpreter_line_is_followed(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let seen = lease.ok("#!/bin/cat\nnot a command\n").await?;
    ensure!(seen == "#!/bin/cat\nnot a command", "the script gave {seen:?}");
    lease.release().await
}

async fn concurrent_commands_keep_their_outputs_apart(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let scripts: Vec<String> = (0..8)
        .map(|number| format!("i=0; while [ $i -lt 100 ]; do echo {number}; i=$((i+1)); done; exit {number}"))
        .collect();
    let ran = join_all(scripts.iter().map(|script| lease.sh(script))).await;
    for (number, ran) in ran.into_iter().enumerate() {
        let ran = ran?;
        let expected = format!("{number}\n").repeat(100);
        ensure!(ran.exit_code == i32::try_from(number).ok(), "job {number} exited with {:?}", ran.exit_code);
        ensure!(ran.output == expected, "job {number} said {:?}", ran.output);
    }
    lease.release().await
}
