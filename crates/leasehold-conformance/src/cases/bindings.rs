//! The life of a Binding: create, acquire, release, destroy.

use std::sync::Arc;

use anyhow::ensure;
use futures_util::future::join_all;
use leasehold::{BindingRef, ErrorKind, ExecutionBindingDestroySpec, WorkspaceFate, WorkspaceRef};

use super::{area, needs};
use crate::stage::{refused, refused_without_effect};
use crate::{Stage, State};

area!("bindings" {
    /// A create returns only when Home and Workspace are directories that the agent's commands can write.
    create_gives_usable_home_and_workspace: needs::nothing,
    /// The Workspace of a new Binding is empty.
    create_gives_an_empty_workspace: needs::nothing,
    /// Every create is a new participant, even when the spec is the same to the letter.
    create_makes_a_new_participant_each_time: needs::nothing,
    /// A new Binding costs no running time until it is acquired.
    create_leaves_the_binding_idle: needs::memory,
    /// Eight creates at once make eight Bindings that work.
    parallel_creates_are_all_usable: needs::nothing,
    /// An acquire of a Binding that never was is confirmed loss, and makes nothing.
    acquire_of_an_unknown_binding_is_lost: needs::nothing,
    /// An acquire of a destroyed Binding is confirmed loss, and makes nothing.
    acquire_of_a_destroyed_binding_is_lost: needs::nothing,
    /// An acquire of a Binding whose Workspace is gone is confirmed loss, not a silent new one.
    acquire_without_the_workspace_is_lost: needs::nothing,
    /// What was written in Home and Workspace is there at the next acquire.
    content_persists_over_release: needs::nothing,
    /// Ten rounds of acquire and release keep everything that was written in each of them, and the first command of each works.
    ten_rounds_keep_every_write: needs::nothing,
    /// Odd files come through a release as they were: links, modes, long names, holes.
    odd_files_survive_release: needs::nothing,
    /// A command that runs over a release goes on at the next acquire under the same job.
    processes_survive_release: needs::memory,
    /// A release never deletes: the provider still has what it had.
    release_never_deletes: needs::nothing,
    /// A released Binding costs no running time.
    release_leaves_the_binding_idle: needs::memory,
    /// A destroyed Binding leaves the provider's list at once.
    destroy_takes_the_binding_off_the_list: needs::nothing,
    /// A second destroy of the same Binding succeeds.
    destroy_is_repeatable: needs::nothing,
    /// A destroy of a Binding that never was succeeds, since it is gone.
    destroy_of_an_unknown_binding_succeeds: needs::nothing,
    /// A destroy ends the processes of a Binding that is still leased.
    destroy_ends_running_commands: needs::nothing,
    /// A destroy that keeps the Workspace is refused before anything is done where the two are one.
    keeping_the_workspace_is_refused: needs::no_binding_only_destroy,
    /// A destroy that names another Workspace is refused and destroys nothing.
    destroy_with_another_workspace_is_refused: needs::nothing,
});

async fn create_gives_usable_home_and_workspace(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let script = format!(
        "set -e; test -d '{home}'; test -d '{work}'; echo home > '{home}/probe'; echo work > '{work}/probe'; cat '{home}/probe' '{work}/probe'",
        home = lease.home(),
        work = lease.workspace()
    );
    ensure!(lease.ok(&script).await? == "home\nwork", "the probes were not read back");
    lease.release().await
}

async fn create_gives_an_empty_workspace(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let listed = lease.ok(&format!("ls -A '{}'", lease.workspace())).await?;
    ensure!(listed.is_empty(), "the new workspace contains {listed:?}");
    lease.release().await
}

async fn create_makes_a_new_participant_each_time(stage: Arc<Stage>) -> anyhow::Result<()> {
    let spec = stage.create_spec()?;
    let first = stage.create_with(&spec).await?;
    let second = stage.create_with(&spec).await?;
    ensure!(first.binding_ref != second.binding_ref, "both creates gave {}", first.binding_ref);
    stage.run_in(&first, "echo first > \"$HOME/mine\"").await?;
    let seen = stage.run_in(&second, "cat \"$HOME/mine\" 2>/dev/null || echo none").await?;
    ensure!(seen == "none", "the second participant sees the first one's home: {seen:?}");
    stage.destroy(&second).await?;
    ensure!(stage.run_in(&first, "cat \"$HOME/mine\"").await? == "first", "destroying one changed the other");
    Ok(())
}

async fn create_leaves_the_binding_idle(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    stage.until_state(&binding.binding_ref, State::Idle).await
}

async fn parallel_creates_are_all_usable(stage: Arc<Stage>) -> anyhow::Result<()> {
    let made = join_all((0..8).map(|_| stage.create())).await;
    let made = made.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let answers = join_all(made.iter().enumerate().map(|(number, binding)| {
        let stage = stage.clone();
        async move {
            stage.run_in(binding, &format!("echo {number} >> mark; cp mark \"$HOME/mark\"")).await?;
            stage.run_in(binding, "cat mark \"$HOME/mark\"").await
        }
    }))
    .await;
    for (number, answer) in answers.into_iter().enumerate() {
        let answer = answer?;
        ensure!(answer == format!("{number}\n{number}"), "binding {number} answered {answer:?}");
    }
    Ok(())
}

async fn acquire_of_an_unknown_binding_is_lost(stage: Arc<Stage>) -> anyhow::Result<()> {
    let before = stage.alive().await?;
    let unknown = BindingRef::new("i00000000000000000000")?;
    refused("acquire of an unknown binding", stage.bindings().acquire(&unknown).await, ErrorKind::BindingLost)?;
    ensure!(stage.alive().await? == before, "the acquire made something");
    Ok(())
}

async fn acquire_of_a_destroyed_binding_is_lost(stage: Arc<Stage>) -> anyhow::Result<()> {
    let before = stage.alive().await?;
    let binding = stage.create().await?;
    stage.destroy(&binding).await?;
    let result = stage.bindings().acquire(&binding.binding_ref).await;
    refused("acquire of a destroyed binding", result, ErrorKind::BindingLost)?;
    ensure!(stage.alive().await? == before, "the acquire made something");
    Ok(())
}

async fn acquire_without_the_workspace_is_lost(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    stage.harness().lose_workspace(&binding.binding_ref).await?;
    for _ in 0..2 {
        // Twice: the first answer must not have made one.
        let result = stage.bindings().acquire(&binding.binding_ref).await;
        refused("acquire without the workspace", result, ErrorKind::BindingLost)?;
    }
    Ok(())
}

async fn content_persists_over_release(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    stage.run_in(&binding, "echo yesterday > \"$HOME/diary\"; mkdir -p src; echo code > src/main").await?;
    let seen = stage.run_in(&binding, "cat \"$HOME/diary\" src/main").await?;
    ensure!(seen == "yesterday\ncode", "the next acquire sees {seen:?}");
    Ok(())
}

async fn ten_rounds_keep_every_write(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let mut sums = Vec::new();
    for round in 0..10 {
        // Not synced on purpose: a suspended Binding keeps acknowledged writes without it.
        let script = format!(
            "echo {round} >> \"$HOME/rounds\"; head -c 200000 /dev/urandom > data-{round}; cksum data-* | sort; tr '\\n' ' ' < \"$HOME/rounds\""
        );
        let answer = stage.run_in(&binding, &script).await?;
        let mut lines: Vec<String> = answer.lines().map(str::to_owned).collect();
        let rounds = lines.pop().unwrap_or_default();
        let expected: String = (0..=round).map(|round| format!("{round} ")).collect();
        ensure!(rounds == expected, "round {round}: the file has {rounds:?}");
        ensure!(lines.len() == round + 1, "round {round}: {} of {} files are there", lines.len(), round + 1);
        ensure!(sums.iter().all(|sum| lines.contains(sum)), "round {round}: a file of an earlier round changed");
        sums = lines;
    }
    Ok(())
}

/// Makes a tree of odd things in the current directory.
pub(super) const ODD_TREE: &str = r#"set -e
mkdir tree && cd tree
mkdir -p empty deep/er; echo hidden > .hidden; echo run > tool; chmod 751 tool
echo one > first; ln first second; ln -s first link; ln -s nowhere dangling
echo long > "$(printf 'n%.0s' $(seq 200))"; echo uni > 'ü b#%2F'
truncate -s 3M hole; printf x >> hole; chmod 700 deep; : > nothing
"#;

/// Describes every entry below the current directory, one per line.
pub(super) const DESCRIBE: &str = r#"find . | LC_ALL=C sort | while IFS= read -r f; do
if [ -L "$f" ]; then echo "$f -> $(readlink "$f")"; elif [ -d "$f" ]; then echo "$f dir $(stat -c '%a %u' "$f")"
else echo "$f $(stat -c '%a %u %s %h' "$f") $(cksum < "$f")"; fi; done"#;

async fn odd_files_survive_release(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let before = stage.run_in(&binding, &format!("{ODD_TREE}cd ..; {DESCRIBE}")).await?;
    let after = stage.run_in(&binding, DESCRIBE).await?;
    ensure!(before == after, "before:\n{before}\nafter:\n{after}");
    Ok(())
}

async fn processes_survive_release(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let waiting = "echo started; while [ ! -e go ]; do sleep 0.02; done; echo resumed; exit 7";
    let job = super::jobs::start(&lease, waiting, "started").await?;
    lease.release().await?;
    let lease = stage.acquire(&binding).await?;
    lease.ok(": > go").await?;
    let ended = super::jobs::finish(&lease, &job.job_id, job.offset).await?;
    ensure!(ended.exit_code == Some(7), "the job ended with {:?}", ended.exit_code);
    ensure!(ended.output == "resumed\n", "the job said {:?} after it was resumed", ended.output);
    lease.release().await
}

async fn release_never_deletes(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let before = stage.alive().await?;
    for _ in 0..3 {
        stage.acquire(&binding).await?.release().await?;
        ensure!(stage.alive().await? == before, "the provider's list changed");
    }
    stage.acquire(&binding).await?.release().await
}

async fn release_leaves_the_binding_idle(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    stage.until_state(&binding.binding_ref, State::Active).await?;
    lease.release().await?;
    stage.until_state(&binding.binding_ref, State::Idle).await
}

async fn destroy_takes_the_binding_off_the_list(stage: Arc<Stage>) -> anyhow::Result<()> {
    let before = stage.alive().await?;
    let binding = stage.create().await?;
    ensure!(stage.alive().await? != before, "the new binding is not listed");
    stage.destroy(&binding).await?;
    let after = stage.alive().await?;
    ensure!(after == before, "after the destroy the provider has {after:?}");
    stage.until_state(&binding.binding_ref, State::Gone).await
}

async fn destroy_is_repeatable(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    stage.destroy(&binding).await?;
    stage.destroy(&binding).await
}

async fn destroy_of_an_unknown_binding_succeeds(stage: Arc<Stage>) -> anyhow::Result<()> {
    let unknown = "i00000000000000000000";
    let workspace = WorkspaceFate::Destroy(WorkspaceRef::new(unknown)?);
    let spec = ExecutionBindingDestroySpec::new(BindingRef::new(unknown)?, workspace);
    Ok(stage.bindings().destroy_binding(&spec).await?)
}

async fn destroy_ends_running_commands(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    // Out of the session, hang-ups and polite signals ignored. What survives is found by the leftover check.
    let stubborn =
        "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & echo ready; wait' & sleep 1000";
    super::jobs::start(&lease, stubborn, "ready").await?;
    stage.destroy(&binding).await
}

async fn keeping_the_workspace_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    stage.run_in(&binding, "echo kept > mark").await?;
    let before = stage.alive().await?;
    let spec = ExecutionBindingDestroySpec::new(binding.binding_ref.clone(), WorkspaceFate::Keep);
    let result = stage.bindings().destroy_binding(&spec).await;
    refused_without_effect("destroying the binding alone", result, ErrorKind::WorkspacePreservationUnsupported)?;
    ensure!(stage.alive().await? == before, "the refused destroy changed the provider's list");
    ensure!(stage.run_in(&binding, "cat mark").await? == "kept", "the refused destroy changed the workspace");
    Ok(())
}

async fn destroy_with_another_workspace_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let other = stage.create().await?;
    stage.run_in(&binding, "echo kept > mark").await?;
    stage.run_in(&other, "echo other > mark").await?;
    let workspace = WorkspaceFate::Destroy(other.workspace_ref.clone());
    let spec = ExecutionBindingDestroySpec::new(binding.binding_ref.clone(), workspace);
    refused(
        "a destroy with another workspace",
        stage.bindings().destroy_binding(&spec).await,
        ErrorKind::BindingDestroy,
    )?;
    ensure!(stage.run_in(&binding, "cat mark").await? == "kept", "the binding was harmed");
    ensure!(stage.run_in(&other, "cat mark").await? == "other", "the other workspace was harmed");
    Ok(())
}
