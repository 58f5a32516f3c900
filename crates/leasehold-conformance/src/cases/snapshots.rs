//! Home Snapshots: exact, immutable, private.

use std::sync::Arc;

use anyhow::ensure;
use leasehold::{ErrorKind, SnapshotRef};

use super::bindings::{DESCRIBE, ODD_TREE};
use super::{area, jobs, needs};
use crate::Stage;
use crate::stage::refused;

area!("snapshots" {
    /// A Binding made from a snapshot has exactly that Home: no file less, none more, each as it was.
    a_binding_has_exactly_the_snapshots_home: needs::snapshots,
    /// Workspace content of the source does not come along.
    workspace_content_does_not_leak: needs::snapshots,
    /// A create from a snapshot that isn't there fails, never falls back, and leaves nothing.
    a_missing_snapshot_fails_the_create: needs::snapshots,
    /// The source stays leased, its commands go on, its files are as they were.
    the_source_goes_on: needs::snapshots,
    /// What the source writes after the snapshot is not in it.
    later_writes_are_not_in_it: needs::snapshots,
    /// What a derived Binding writes is neither in the snapshot nor in another derived Binding.
    derived_bindings_are_private: needs::snapshots,
    /// A snapshot of a derived Binding holds both generations, and what was deleted in between stays deleted.
    a_second_generation_keeps_deletions: needs::snapshots,
    /// A second delete of the same snapshot succeeds, and so does one of a snapshot that never was.
    delete_is_repeatable: needs::snapshots,
    /// Deleting a snapshot leaves the Bindings that came from it alone.
    delete_leaves_derived_bindings: needs::snapshots,
    /// Destroying the source or a derived Binding leaves the snapshot.
    destroy_leaves_the_snapshot: needs::snapshots,
    /// A deleted snapshot makes no more Bindings.
    a_deleted_snapshot_is_gone: needs::snapshots,
});

async fn a_binding_has_exactly_the_snapshots_home(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    // What a new Home brings along may be changed and deleted like anything else.
    lease.ok(&format!("cd \"$HOME\" && rm -rf -- $(ls -A | head -n 1)\n{ODD_TREE}")).await?;
    let describe = format!("cd \"$HOME\" && {DESCRIBE}");
    let expected = lease.ok(&describe).await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.release().await?;
    let derived = stage.create_from(&snapshot).await?;
    let seen = stage.run_in(&derived, &describe).await?;
    ensure!(seen == expected, "the source's home:\n{expected}\nthe derived one:\n{seen}");
    Ok(())
}

async fn workspace_content_does_not_leak(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    lease.ok("echo secret > task; mkdir -p .hidden/deep; echo secret > .hidden/deep/file; ln -s task link").await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.release().await?;
    let derived = stage.create_from(&snapshot).await?;
    let seen = stage.run_in(&derived, "ls -A").await?;
    ensure!(seen.is_empty(), "the derived workspace has {seen:?}");
    Ok(())
}

async fn a_missing_snapshot_fails_the_create(stage: Arc<Stage>) -> anyhow::Result<()> {
    let before = stage.alive().await?;
    for missing in ["snap-00000000000000000000", "home-of-nobody"] {
        let spec = stage.create_spec()?.with_home_snapshot(SnapshotRef::new(missing)?);
        let result = stage.bindings().create_binding(&spec).await;
        if let Ok(made) = &result {
            stage.adopt(made);
        }
        refused("create from a missing snapshot", result, ErrorKind::BindingCreate)?;
        ensure!(stage.alive().await? == before, "the failed create left something: {:?}", stage.alive().await?);
    }
    Ok(())
}

async fn the_source_goes_on(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    lease.ok("echo work > task; echo home > \"$HOME/mark\"").await?;
    let waiting = "echo started; while [ ! -e go ]; do sleep 0.02; done; echo done";
    let job = jobs::start(&lease, waiting, "started").await?;
    stage.snapshot(&lease).await?;
    let seen = lease.ok("cat task \"$HOME/mark\"; : > go").await?;
    ensure!(seen == "work\nhome", "the source's files are {seen:?}");
    let ended = jobs::finish(&lease, &job.job_id, job.offset).await?;
    ensure!(ended.output == "done\n" && ended.exit_code == Some(0), "the source's job: {ended:?}");
    lease.release().await
}

async fn later_writes_are_not_in_it(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    lease.ok("cd \"$HOME\"; echo then > mark; echo then > removed").await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.ok("cd \"$HOME\"; echo now > mark; rm removed; echo now > new").await?;
    lease.release().await?;
    let derived = stage.create_from(&snapshot).await?;
    let seen = stage.run_in(&derived, "cd \"$HOME\"; cat mark removed; test ! -e new && echo clean").await?;
    ensure!(seen == "then\nthen\nclean", "the derived home has {seen:?}");
    Ok(())
}

async fn derived_bindings_are_private(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    lease.ok("echo base > \"$HOME/mark\"").await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.release().await?;
    let first = stage.create_from(&snapshot).await?;
    let second = stage.create_from(&snapshot).await?;
    stage.run_in(&first, "echo first >> \"$HOME/mark\"; echo > \"$HOME/extra\"").await?;
    let third = stage.create_from(&snapshot).await?;
    for (name, other) in [("an earlier", &second), ("a later", &third)] {
        let seen = stage.run_in(other, "cat \"$HOME/mark\"; test ! -e \"$HOME/extra\" && echo clean").await?;
        ensure!(seen == "base\nclean", "{name} binding of the snapshot sees {seen:?}");
    }
    ensure!(stage.run_in(&source, "cat \"$HOME/mark\"").await? == "base", "the source sees the derived one's write");
    Ok(())
}

async fn a_second_generation_keeps_deletions(stage: Arc<Stage>) -> anyhow::Result<()> {
    let first = stage.create().await?;
    let lease = stage.acquire(&first).await?;
    lease.ok("cd \"$HOME\"; mkdir d; echo 1 > d/old; echo 1 > gone; echo 1 > kept").await?;
    let one = stage.snapshot(&lease).await?;
    lease.release().await?;
    let second = stage.create_from(&one).await?;
    let lease = stage.acquire(&second).await?;
    // A file deleted, and a directory deleted and made anew: neither may let the first generation shine through.
    lease.ok("cd \"$HOME\"; rm gone; rm -r d; mkdir d; echo 2 > d/new; echo 2 >> kept").await?;
    let two = stage.snapshot(&lease).await?;
    lease.release().await?;
    let third = stage.create_from(&two).await?;
    let seen = stage.run_in(&third, "cd \"$HOME\"; ls d; cat kept; test ! -e gone && echo clean").await?;
    ensure!(seen == "new\n1\n2\nclean", "the third binding sees {seen:?}");
    Ok(())
}

async fn delete_is_repeatable(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.release().await?;
    stage.snapshots().delete(&snapshot).await?;
    stage.snapshots().delete(&snapshot).await?;
    Ok(stage.snapshots().delete(&SnapshotRef::new("snap-00000000000000000000")?).await?)
}

async fn delete_leaves_derived_bindings(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    lease.ok("echo base > \"$HOME/mark\"").await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.release().await?;
    let derived = stage.create_from(&snapshot).await?;
    stage.snapshots().delete(&snapshot).await?;
    for (name, binding) in [("derived", &derived), ("source", &source)] {
        let seen = stage.run_in(binding, "cat \"$HOME/mark\"; echo more >> \"$HOME/mark\"").await?;
        ensure!(seen == "base", "the {name} binding sees {seen:?}");
    }
    Ok(())
}

async fn destroy_leaves_the_snapshot(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    lease.ok("echo base > \"$HOME/mark\"").await?;
    let snapshot = stage.snapshot(&lease).await?;
    lease.release().await?;
    stage.destroy(&source).await?;
    let first = stage.create_from(&snapshot).await?;
    stage.destroy(&first).await?;
    let second = stage.create_from(&snapshot).await?;
    ensure!(stage.run_in(&second, "cat \"$HOME/mark\"").await? == "base", "the snapshot lost its content");
    Ok(())
}

async fn a_deleted_snapshot_is_gone(stage: Arc<Stage>) -> anyhow::Result<()> {
    let source = stage.create().await?;
    let lease = stage.acquire(&source).await?;
    let before = stage.alive().await?;
    let snapshot = stage.snapshot(&lease).await?;
    ensure!(stage.alive().await? != before, "the snapshot is not listed");
    stage.snapshots().delete(&snapshot).await?;
    ensure!(stage.alive().await? == before, "the deleted snapshot is still listed");
    lease.release().await?;
    let spec = stage.create_spec()?.with_home_snapshot(snapshot);
    let result = stage.bindings().create_binding(&spec).await;
    if let Ok(made) = &result {
        stage.adopt(made);
    }
    refused("create from a deleted snapshot", result, ErrorKind::BindingCreate)?;
    Ok(())
}
