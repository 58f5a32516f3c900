//! Callers that go away in the middle.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::ensure;

use super::{area, needs};
use crate::{Stage, State};

area!("cancellation" {
    /// A create whose caller goes away leaves nothing that nobody knows.
    a_dropped_create_leaves_nothing: needs::nothing,
    /// An acquire whose caller goes away leaves the Binding idle and usable.
    a_dropped_acquire_leaves_the_binding_idle: needs::memory,
    /// A snapshot whose caller goes away leaves no snapshot, and the source usable.
    a_dropped_snapshot_leaves_nothing: needs::snapshots,
    /// A destroy whose caller goes away is finished, or has not begun and can be repeated.
    a_dropped_destroy_can_be_repeated: needs::nothing,
});

/// Where a call is dropped.
#[derive(Debug, Clone, Copy)]
enum Drop {
    /// After this many polls: each point at which it gives way.
    Polls(u32),
    /// After this time: the points in between, in work that others do for it.
    Time(Duration),
}

fn points() -> impl Iterator<Item = Drop> {
    let polls = (0..6).map(Drop::Polls);
    polls.chain([1, 4, 15, 60].map(|millis| Drop::Time(Duration::from_millis(millis))))
}

/// Runs a future up to a point. None = it was dropped there.
async fn up_to<F: Future>(point: Drop, future: F) -> Option<F::Output> {
    match point {
        Drop::Time(time) => tokio::time::timeout(time, future).await.ok(),
        Drop::Polls(limit) => {
            let mut future = pin!(future);
            let mut polls = 0;
            std::future::poll_fn(|context| {
                if polls == limit {
                    return Poll::Ready(None);
                }
                polls += 1;
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    // The last poll: there is no need to wait for a wake-up before dropping.
                    Poll::Pending if polls == limit => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        }
    }
}

async fn a_dropped_create_leaves_nothing(stage: Arc<Stage>) -> anyhow::Result<()> {
    let before = stage.alive().await?;
    for point in points() {
        let spec = stage.create_spec()?;
        if let Some(result) = up_to(point, stage.bindings().create_binding(&spec)).await {
            let made = result?;
            stage.adopt(&made);
            stage.destroy(&made).await?;
        }
        let after = stage.alive().await?;
        ensure!(after == before, "dropped at {point:?}, the create left {after:?}");
    }
    Ok(())
}

async fn a_dropped_acquire_leaves_the_binding_idle(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    stage.run_in(&binding, "echo kept > mark").await?;
    for point in points() {
        if let Some(result) = up_to(point, stage.bindings().acquire(&binding.binding_ref)).await {
            let lease = result?;
            stage.bindings().release(lease.as_ref()).await?;
        }
        stage.until_state(&binding.binding_ref, State::Idle).await?;
        let seen = stage.run_in(&binding, "cat mark").await?;
        ensure!(seen == "kept", "dropped at {point:?}, the acquire left {seen:?}");
    }
    Ok(())
}

async fn a_dropped_snapshot_leaves_nothing(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let before = stage.alive().await?;
    for point in points() {
        let spec = stage.snapshot_spec()?;
        if let Some(result) = up_to(point, stage.snapshots().create_from_runtime(&spec, lease.lease())).await {
            stage.snapshots().delete(&result?).await?;
        }
        let after = stage.alive().await?;
        ensure!(after == before, "dropped at {point:?}, the snapshot left {after:?}");
        ensure!(lease.ok("echo here").await? == "here", "dropped at {point:?}, the source is not usable");
    }
    lease.release().await
}

async fn a_dropped_destroy_can_be_repeated(stage: Arc<Stage>) -> anyhow::Result<()> {
    let before = stage.alive().await?;
    for point in points() {
        let binding = stage.create().await?;
        let spec = crate::stage::destroy_all(&binding);
        if let Some(result) = up_to(point, stage.bindings().destroy_binding(&spec)).await {
            result?;
        }
        stage.harness().settle().await?;
        stage.destroy(&binding).await?;
        let after = stage.alive().await?;
        ensure!(after == before, "dropped at {point:?} and repeated, the destroy left {after:?}");
    }
    Ok(())
}
