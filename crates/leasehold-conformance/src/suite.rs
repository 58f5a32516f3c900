//! Running one case: before, the case, cleaning up behind it, and what is left after.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::FutureExt as _;

use crate::{Case, Harness, Inventory, Stage};

/// How many of a harness's patiences a whole case may take (chosen: the longest case has about ten steps, each far below one patience).
const CASE_PATIENCES: u32 = 12;

/// Runs a case whose needs are met, cleans up behind it, and looks for leftovers.
///
/// # Errors
/// What the case found, what cleaning up found, and each thing that was left or taken away.
///
/// # Cancel safety
/// Dropping it leaves what the case had made.
pub async fn run_case(case: &Case, harness: Arc<dyn Harness>) -> anyhow::Result<()> {
    let before = take(harness.as_ref()).await.context("cannot list what is there before the case")?;
    let stage = Arc::new(Stage::new(harness.clone()));
    let limit = harness.patience() * CASE_PATIENCES;
    let body = std::panic::AssertUnwindSafe((case.run)(stage.clone())).catch_unwind();
    let outcome = match tokio::time::timeout(limit, body).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(anyhow::anyhow!("the case panicked: {}", panic_text(panic.as_ref()))),
        Err(_) => Err(anyhow::anyhow!("the case did not end within {limit:?}")),
    };
    let cleaned =
        tokio::time::timeout(limit, stage.clean_up()).await.unwrap_or_else(|_| bail!("did not end within {limit:?}"));
    let left = leftovers(harness.as_ref(), &before).await;

    let mut faults = Vec::new();
    if let Err(error) = outcome {
        faults.push(format!("{error:#}"));
    }
    if let Err(error) = cleaned {
        faults.push(format!("cleaning up: {error:#}"));
    }
    match left {
        Ok(left) => faults.extend(left.into_iter().map(|line| format!("left behind: {line}"))),
        Err(error) => faults.push(format!("cannot list what is there after the case: {error:#}")),
    }
    if faults.is_empty() { Ok(()) } else { bail!("{}: {}", case.promise, faults.join("\n  ")) }
}

/// Waits until nothing is left, at most a quarter of a patience: processes are reaped and namespaces freed a moment after their end.
async fn leftovers(harness: &dyn Harness, before: &Inventory) -> anyhow::Result<Vec<String>> {
    let deadline = tokio::time::Instant::now() + harness.patience() / 4;
    let mut pause = Duration::from_millis(1);
    loop {
        let after = take(harness).await?;
        let mut left = after.left_since(before);
        left.extend(after.taken_since(before));
        if left.is_empty() || tokio::time::Instant::now() >= deadline {
            return Ok(left);
        }
        // The kernel offers no one event for "gone from every table"; look again, ever less often.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

async fn take(harness: &dyn Harness) -> anyhow::Result<Inventory> {
    harness.settle().await?;
    let mut inventory = harness.ours().as_ref().map(Inventory::of_machine).unwrap_or_default();
    inventory.add_resources(harness.alive().await?);
    Ok(inventory)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text")
}
