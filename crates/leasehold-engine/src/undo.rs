//! What has to be taken back when a start fails half way.

use crate::error::EngineError;

type Step<'a> = Box<dyn FnOnce() -> Result<(), EngineError> + 'a>;

/// Registered undos, run in reverse. Each is registered *before* its effect, so that an effect that fails half way is undone as well.
pub(crate) struct Undo<'a> {
    steps: Vec<Step<'a>>,
}

impl<'a> Undo<'a> {
    pub(crate) fn new() -> Self {
        Self { steps: Vec::new() }
    }

    pub(crate) fn push(&mut self, step: impl FnOnce() -> Result<(), EngineError> + 'a) {
        self.steps.push(Box::new(step));
    }

    /// Runs every undo, also after one of them failed, and returns the first cause with what could not be undone.
    pub(crate) fn unwind(self, mut cause: EngineError) -> EngineError {
        for step in self.steps.into_iter().rev() {
            if let Err(error) = step() {
                cause = cause.adding(format_args!("undoing failed too: {error}"));
            }
        }
        cause
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn undos_run_in_reverse_and_none_is_skipped() {
        let log = RefCell::new(Vec::new());
        let mut undo = Undo::new();
        undo.push(|| {
            log.borrow_mut().push(1);
            Ok(())
        });
        undo.push(|| {
            log.borrow_mut().push(2);
            Err(EngineError::new(ErrorKind::Io, "cgroup", "busy"))
        });
        let error = undo.unwind(EngineError::new(ErrorKind::Guest, "start", "died"));
        assert_eq!(*log.borrow(), [2, 1]);
        assert_eq!(error.kind(), ErrorKind::Guest);
        assert_eq!(error.message(), "died; undoing failed too: cgroup: busy");
    }
}
