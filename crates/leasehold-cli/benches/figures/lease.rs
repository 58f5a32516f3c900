//! What a lease costs: acquire and release through the driver, pause and resume through the API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{
    AgentId, BindingId, ExecutionBindingBackend as _, ExecutionBindingCreateSpec, ExecutionBindingDestroySpec,
    TenantId, WorkspaceFate, WorkspaceId,
};
use leasehold_e2b::PauseMode;
use leasehold_e2b::driver::{Driver, DriverConfig};

use crate::Counts;
use crate::sandbox::{TEMPLATE, create, echo};
use crate::stage::Stage;
use crate::table::{Samples, Table, Unit};

const LEASE_GOAL: f64 = 5.0;
const FREEZE_GOAL: f64 = 1.0;

/// Rounds before measuring.
const WARM_UP: usize = 3;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let client = stage.client.clone();
    let driver = Driver::new(client.clone(), Arc::new(client), DriverConfig::new(TEMPLATE)?);
    let spec = ExecutionBindingCreateSpec::new(
        TenantId::new("bench")?,
        AgentId::new("bench")?,
        BindingId::new("bench")?,
        WorkspaceId::new("bench")?,
    );
    let start = Instant::now();
    let made = driver.create_binding(&spec).await?;
    let binding = made.binding_ref;
    let mut created = Samples::default();
    created.time(start.elapsed());
    let (mut both, mut acquired, mut released) = (Samples::default(), Samples::default(), Samples::default());
    for round in 0..WARM_UP + counts.of(200) {
        let start = Instant::now();
        let lease = driver.acquire(&binding).await?;
        let got = start.elapsed();
        driver.release(lease.as_ref()).await?;
        let done = start.elapsed();
        if round >= WARM_UP {
            both.time(done);
            acquired.time(got);
            released.time(done - got);
        }
    }
    let fate = WorkspaceFate::Destroy(made.workspace_ref);
    driver.destroy_binding(&ExecutionBindingDestroySpec::new(binding, fate)).await?;
    anyhow::ensure!(driver.shutdown(Duration::from_secs(10)).await.unfinished == 0, "the driver did not finish");
    stage.stop()?;
    table.spread("acquire + release of a warm Binding", Unit::Millis, &both, Some(LEASE_GOAL));
    table.spread("– of which acquire", Unit::Millis, &acquired, None);
    table.spread("– of which release", Unit::Millis, &released, None);
    table.spread("create_binding, first of a host", Unit::Millis, &created, None);
    Ok(())
}

pub(crate) async fn pause(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let sandbox = create(&stage.client).await?;
    let (mut paused, mut resumed) = (Samples::default(), Samples::default());
    for round in 0..WARM_UP + counts.of(200) {
        let start = Instant::now();
        sandbox.pause(PauseMode::Full).await?;
        let frozen = start.elapsed();
        let start = Instant::now();
        stage.client.connect(sandbox.id(), Duration::from_secs(300)).await?;
        let running = start.elapsed();
        if round >= WARM_UP {
            paused.time(frozen);
            resumed.time(running);
        }
    }
    // It was not broken by that.
    echo(&sandbox).await?;
    sandbox.kill().await?;
    table.spread("pause, frozen, through the API", Unit::Millis, &paused, Some(FREEZE_GOAL));
    table.spread("resume (connect), through the API", Unit::Millis, &resumed, Some(FREEZE_GOAL));
    stage.stop()
}
