//! Checks of single values; every text names the field, the value, and the limits.

use std::collections::BTreeMap;

use crate::limits;

/// A value outside its limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// Name of the field on the wire.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

pub(crate) enum Zero {
    Allowed,
    Refused,
}

pub(crate) fn seconds(field: &'static str, value: f64, max: f64, zero: Zero) -> Result<(), Invalid> {
    let low_enough = value <= max; // false for NaN
    match zero {
        Zero::Allowed if value >= 0.0 && low_enough => Ok(()),
        Zero::Refused if value > 0.0 && low_enough => Ok(()),
        Zero::Allowed => Err(Invalid::new(field, format!("is {value}, must be at least 0 and at most {max} seconds"))),
        Zero::Refused => Err(Invalid::new(field, format!("is {value}, must be more than 0 and at most {max} seconds"))),
    }
}

pub(crate) fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Invalid> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("is {value}, must be from {min} to {max}")))
}

pub(crate) fn output_limit(value: u64) -> Result<(), Invalid> {
    within("output_limit", value, limits::MIN_OUTPUT_LIMIT, limits::MAX_OUTPUT_LIMIT)
}

pub(crate) fn idle_flush(value: f64) -> Result<(), Invalid> {
    seconds("idle_flush_seconds", value, limits::MAX_IDLE_FLUSH_SECONDS, Zero::Allowed)
}

pub(crate) fn env(env: &BTreeMap<String, String>) -> Result<(), Invalid> {
    for (name, value) in env {
        if name.is_empty() {
            return Err(Invalid::new("env", "has a variable with an empty name"));
        }
        if name.contains('=') || name.contains('\0') {
            return Err(Invalid::new("env", format!("has the name {name:?}, names hold neither '=' nor NUL")));
        }
        if value.contains('\0') {
            return Err(Invalid::new("env", format!("has a NUL in the value of {name}")));
        }
    }
    Ok(())
}
