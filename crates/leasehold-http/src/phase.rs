//! Which phase a request is in, so that the read time-out never counts time spent connecting.
//!
//! The library starts its read time-out when the request starts and so blames the reader for a slow connect. Here the
//! connector tells the request that waits for it when it begins and when it is done (both run in the request's own task, so a
//! task-local reaches from one to the other), and the body stream tells of each chunk taken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// The connector works; its own time-out applies.
    Connecting,
    /// Last progress was then.
    Waiting(Instant),
}

/// The request's side that reports progress.
pub(crate) type Progress = Arc<watch::Sender<Phase>>;

tokio::task_local! {
    static PROGRESS: Progress;
}

pub(crate) fn start() -> (Progress, watch::Receiver<Phase>) {
    let (sender, receiver) = watch::channel(Phase::Waiting(Instant::now()));
    (Arc::new(sender), receiver)
}

/// Runs `request` so that the connector finds its `progress`.
pub(crate) fn within<F: Future>(progress: Progress, request: F) -> impl Future<Output = F::Output> {
    PROGRESS.scope(progress, request)
}

pub(crate) fn advance(progress: &watch::Sender<Phase>) {
    progress.send_replace(Phase::Waiting(Instant::now()));
}

/// Completes when the request made no progress for `limit` while it was not connecting.
pub(crate) async fn stalled(mut phase: watch::Receiver<Phase>, limit: Duration) {
    loop {
        let current = *phase.borrow_and_update();
        let changed = match current {
            Phase::Connecting => phase.changed().await,
            Phase::Waiting(since) => tokio::select! {
                () = tokio::time::sleep_until(since + limit) => return,
                changed = phase.changed() => changed,
            },
        };
        if changed.is_err() {
            // The request is over and nobody reports any more: the caller's other branch is ready.
            return std::future::pending().await;
        }
    }
}

/// Connector layer that reports the connecting phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhaseLayer;

impl<S> tower_layer::Layer<S> for PhaseLayer {
    type Service = PhaseService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PhaseService { inner }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PhaseService<S> {
    inner: S,
}

impl<S, R> tower_service::Service<R> for PhaseService<S>
where
    S: tower_service::Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let progress = PROGRESS.try_with(Arc::clone).ok();
        let connecting = self.inner.call(target);
        Box::pin(async move {
            if let Some(progress) = &progress {
                progress.send_replace(Phase::Connecting);
            }
            let connected = connecting.await;
            if let Some(progress) = &progress {
                advance(progress);
            }
            connected
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connecting_does_not_count_as_reading() {
        let (progress, phase) = start();
        let began = Instant::now();
        let timer = tokio::spawn(stalled(phase, Duration::from_secs(5)));
        progress.send_replace(Phase::Connecting);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!timer.is_finished());
        advance(&progress);
        timer.await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(25));
    }

    #[tokio::test(start_paused = true)]
    async fn progress_restarts_the_read_timeout() {
        let (progress, phase) = start();
        let began = Instant::now();
        let timer = tokio::spawn(stalled(phase, Duration::from_secs(5)));
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(4)).await;
            advance(&progress);
        }
        timer.await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(17));
    }
}
