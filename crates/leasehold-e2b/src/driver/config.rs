//! What a driver is set to.

use std::time::Duration;

use leasehold::{ErrorKind, RuntimeError, RuntimeLayout};

use super::attempt::DRIVER;

/// The longest continuous time that a sandbox may be active, and the default: E2B's own limit for its smallest plan, and the seed's.
pub const MAX_ACTIVE_TIMEOUT: Duration = Duration::from_secs(3600);
/// The port of the command daemon inside a sandbox (the seed's).
pub const SHELLCTL_PORT: u16 = 5004;
/// How long one request may take before its answer counts as lost. Chosen: above the client's own 60 s read time-out, which knows the
/// phase and so must fire first.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(90);
/// The Home of a sandbox unless set otherwise (the seed's).
pub const DEFAULT_HOME: &str = "/home/dify";
/// The Workspace of a sandbox unless set otherwise (the seed's).
pub const DEFAULT_WORKSPACE: &str = "/workspace";

/// What a driver is set to; checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverConfig {
    pub(super) template: String,
    pub(super) layout: RuntimeLayout,
    pub(super) active_timeout: Duration,
    pub(super) shellctl_port: u16,
    pub(super) deadline: Duration,
}

impl DriverConfig {
    /// The seed's settings with this template.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when the template is blank or has control characters.
    pub fn new(template: impl Into<String>) -> Result<Self, RuntimeError> {
        let template = template.into();
        if template.trim().is_empty() || template.chars().any(char::is_control) {
            return Err(invalid(format!("template {template:?} is no name: give the provider's template id or alias")));
        }
        Ok(Self {
            template,
            layout: RuntimeLayout::new(DEFAULT_HOME, DEFAULT_WORKSPACE)?,
            active_timeout: MAX_ACTIVE_TIMEOUT,
            shellctl_port: SHELLCTL_PORT,
            deadline: DEFAULT_DEADLINE,
        })
    }

    /// Sets where Home and Workspace are.
    #[must_use]
    pub fn layout(mut self, layout: RuntimeLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets how long a sandbox may be active in one go before the provider pauses it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] unless it is whole seconds from 1 to 3600.
    pub fn active_timeout(mut self, timeout: Duration) -> Result<Self, RuntimeError> {
        if timeout < Duration::from_secs(1) || timeout > MAX_ACTIVE_TIMEOUT || timeout.subsec_nanos() != 0 {
            return Err(invalid(format!(
                "active timeout {timeout:?} is out of range: use whole seconds from 1 to 3600"
            )));
        }
        self.active_timeout = timeout;
        Ok(self)
    }

    /// Sets the port of the command daemon inside.
    #[must_use]
    pub fn shellctl_port(mut self, port: u16) -> Self {
        self.shellctl_port = port;
        self
    }

    /// Sets how long one request may take before its answer counts as lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it is zero.
    pub fn deadline(mut self, deadline: Duration) -> Result<Self, RuntimeError> {
        if deadline.is_zero() {
            return Err(invalid("deadline is zero: every request would count as lost".to_owned()));
        }
        self.deadline = deadline;
        Ok(self)
    }
}

fn invalid(message: String) -> RuntimeError {
    RuntimeError::new(ErrorKind::InvalidInput, "configure", DRIVER, message).without_effect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused() {
        for template in ["", "  ", "a\nb"] {
            assert!(DriverConfig::new(template).is_err(), "{template:?} passed");
        }
        let config = DriverConfig::new("base").unwrap();
        for millis in [0, 999, 1500, 3_600_001, 3_601_000] {
            assert!(config.clone().active_timeout(Duration::from_millis(millis)).is_err(), "{millis} ms passed");
        }
        for seconds in [1, 3600] {
            assert!(config.clone().active_timeout(Duration::from_secs(seconds)).is_ok(), "{seconds} s refused");
        }
        assert!(config.deadline(Duration::ZERO).is_err());
    }
}
