//! Requests. `Default` and absent fields agree; `validate` holds the limits.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::validate::{Invalid, Zero, env, idle_flush, output_limit, seconds, within};
use crate::{JobStatus, limits};

/// How a job is connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// On a terminal; stdout and stderr are one, control sequences are stripped, input can be sent.
    #[default]
    Pty,
    /// On pipes; stdin is `/dev/null`, the output is stdout byte for byte, stderr goes to a file of its own.
    Stdio,
}

impl Mode {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Width.
    pub cols: u16,
    /// Height.
    pub rows: u16,
}

impl Default for Terminal {
    fn default() -> Self {
        Self { cols: limits::DEFAULT_TERMINAL_COLS, rows: limits::DEFAULT_TERMINAL_ROWS }
    }
}

impl Terminal {
    fn validate(self) -> Result<(), Invalid> {
        within("terminal.cols", self.cols.into(), 1, limits::MAX_TERMINAL_SIDE.into())?;
        within("terminal.rows", self.rows.into(), 1, limits::MAX_TERMINAL_SIDE.into())
    }
}

fn default_wait() -> f64 {
    limits::DEFAULT_WAIT_SECONDS
}

fn default_output_limit() -> u64 {
    limits::DEFAULT_OUTPUT_LIMIT
}

fn default_idle_flush() -> f64 {
    limits::DEFAULT_IDLE_FLUSH_SECONDS
}

fn default_grace() -> f64 {
    limits::DEFAULT_GRACE_SECONDS
}

fn default_list_limit() -> u64 {
    limits::DEFAULT_LIST_LIMIT
}

/// Starts a job and waits for its first output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The script; run directly when it starts with `#!`, else by `sh`. May be empty.
    pub script: String,
    /// Working directory; absent means the user's home, `~` is expanded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables laid over the daemon's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Size of the terminal; absent means the default size. Has no meaning in mode `stdio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// How the job is connected.
    // Left out when it is the default: daemons from before modes refuse fields that they do not know.
    #[serde(default, skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    /// Longest wait in seconds, more than 0.
    #[serde(default = "default_wait")]
    pub timeout: f64,
    /// Most output returned, in bytes.
    #[serde(default = "default_output_limit")]
    pub output_limit: u64,
    /// Return once output has been quiet for so many seconds.
    #[serde(default = "default_idle_flush")]
    pub idle_flush_seconds: f64,
}

impl RunRequest {
    /// A request for `script` with every default.
    pub fn new(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            cwd: None,
            env: None,
            terminal: None,
            mode: Mode::default(),
            timeout: default_wait(),
            output_limit: default_output_limit(),
            idle_flush_seconds: default_idle_flush(),
        }
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// The first field that is outside.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.cwd.as_deref().is_some_and(|cwd| cwd.contains('\0')) {
            return Err(Invalid::new("cwd", "holds a NUL"));
        }
        if let Some(variables) = &self.env {
            env(variables)?;
        }
        if let Some(terminal) = self.terminal {
            terminal.validate()?;
        }
        seconds("timeout", self.timeout, limits::MAX_WAIT_SECONDS, Zero::Refused)?;
        output_limit(self.output_limit)?;
        idle_flush(self.idle_flush_seconds)
    }
}

/// Waits for output beyond an offset, or for the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitRequest {
    /// Byte position in the output at which to read on.
    pub offset: u64,
    /// Longest wait in seconds; 0 returns what is there.
    #[serde(default = "default_wait")]
    pub timeout: f64,
    /// Most output returned, in bytes.
    #[serde(default = "default_output_limit")]
    pub output_limit: u64,
    /// Return once output has been quiet for so many seconds.
    #[serde(default = "default_idle_flush")]
    pub idle_flush_seconds: f64,
}

impl WaitRequest {
    /// A request for what follows `offset` with every default.
    #[must_use]
    pub fn new(offset: u64) -> Self {
        Self {
            offset,
            timeout: default_wait(),
            output_limit: default_output_limit(),
            idle_flush_seconds: default_idle_flush(),
        }
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// The first field that is outside.
    pub fn validate(&self) -> Result<(), Invalid> {
        seconds("timeout", self.timeout, limits::MAX_WAIT_SECONDS, Zero::Allowed)?;
        output_limit(self.output_limit)?;
        idle_flush(self.idle_flush_seconds)
    }
}

/// Types into a job's terminal, then waits as [`WaitRequest`] does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputRequest {
    /// What to type, byte for byte; a newline is not added.
    pub text: String,
    /// Byte position in the output at which to read on.
    pub offset: u64,
    /// Longest wait in seconds, more than 0.
    #[serde(default = "default_wait")]
    pub timeout: f64,
    /// Most output returned, in bytes.
    #[serde(default = "default_output_limit")]
    pub output_limit: u64,
    /// Return once output has been quiet for so many seconds.
    #[serde(default = "default_idle_flush")]
    pub idle_flush_seconds: f64,
}

impl InputRequest {
    /// A request that types `text` and reads on at `offset`, with every default.
    pub fn new(text: impl Into<String>, offset: u64) -> Self {
        Self {
            text: text.into(),
            offset,
            timeout: default_wait(),
            output_limit: default_output_limit(),
            idle_flush_seconds: default_idle_flush(),
        }
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// The first field that is outside.
    pub fn validate(&self) -> Result<(), Invalid> {
        seconds("timeout", self.timeout, limits::MAX_WAIT_SECONDS, Zero::Refused)?;
        output_limit(self.output_limit)?;
        idle_flush(self.idle_flush_seconds)
    }
}

/// Stops a job and everything it started: SIGTERM, then SIGKILL after the grace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TerminateRequest {
    /// Most seconds between SIGTERM and SIGKILL.
    #[serde(default = "default_grace")]
    pub grace_seconds: f64,
}

impl Default for TerminateRequest {
    fn default() -> Self {
        Self { grace_seconds: default_grace() }
    }
}

impl TerminateRequest {
    /// Checks every field against its limits.
    ///
    /// # Errors
    /// When the grace is outside.
    pub fn validate(&self) -> Result<(), Invalid> {
        seconds("grace_seconds", self.grace_seconds, limits::MAX_GRACE_SECONDS, Zero::Allowed)
    }
}

/// Query of the listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// Only jobs in this state.
    pub status: Option<JobStatus>,
    /// Most jobs returned.
    pub limit: u64,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self { status: None, limit: default_list_limit() }
    }
}

/// Query of the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailQuery {
    /// Most output returned, in bytes.
    pub output_limit: u64,
}

impl Default for TailQuery {
    fn default() -> Self {
        Self { output_limit: default_output_limit() }
    }
}

/// Query of the deletion.
#[derive(Debug, Clone, PartialEq)]
pub struct DeleteQuery {
    /// Terminate the job first if it runs.
    pub force: bool,
    /// Most seconds between SIGTERM and SIGKILL of that.
    pub grace_seconds: f64,
}

impl Default for DeleteQuery {
    fn default() -> Self {
        Self { force: false, grace_seconds: default_grace() }
    }
}

fn parameter<T: FromStr>(field: &'static str, text: &str, expected: &str) -> Result<T, Invalid> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(64).collect();
        Invalid::new(field, format!("is {shown:?}, must be {expected}"))
    })
}

fn unknown(name: &str, known: &str) -> Invalid {
    let shown: String = name.chars().take(64).collect();
    Invalid::new("query", format!("has the unknown parameter {shown:?}, known: {known}"))
}

impl ListQuery {
    /// Reads decoded query pairs and checks them.
    ///
    /// # Errors
    /// The first parameter that is unknown or outside its limits.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Invalid> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name {
                "status" => query.status = Some(parameter("status", value, "a job status")?),
                "limit" => query.limit = parameter("limit", value, "a whole number")?,
                other => return Err(unknown(other, "status, limit")),
            }
        }
        within("limit", query.limit, 1, limits::MAX_LIST_LIMIT)?;
        Ok(query)
    }

    /// The query as pairs, ready to be percent-encoded.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("limit", self.limit.to_string())];
        pairs.extend(self.status.map(|status| ("status", status.as_str().to_owned())));
        pairs
    }
}

impl TailQuery {
    /// Reads decoded query pairs and checks them.
    ///
    /// # Errors
    /// The first parameter that is unknown or outside its limits.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Invalid> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name {
                "output_limit" => query.output_limit = parameter("output_limit", value, "a whole number")?,
                other => return Err(unknown(other, "output_limit")),
            }
        }
        output_limit(query.output_limit)?;
        Ok(query)
    }

    /// The query as pairs, ready to be percent-encoded.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        vec![("output_limit", self.output_limit.to_string())]
    }
}

impl DeleteQuery {
    /// Reads decoded query pairs and checks them. `force` takes `true`, `false`, `1` and `0`.
    ///
    /// # Errors
    /// The first parameter that is unknown or outside its limits.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Invalid> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match (name, value) {
                ("force", "1") => query.force = true,
                ("force", "0") => query.force = false,
                ("force", value) => query.force = parameter("force", &value.to_ascii_lowercase(), "true or false")?,
                ("grace_seconds", value) => {
                    query.grace_seconds = parameter("grace_seconds", value, "a number of seconds")?
                }
                (other, _) => return Err(unknown(other, "force, grace_seconds")),
            }
        }
        seconds("grace_seconds", query.grace_seconds, limits::MAX_GRACE_SECONDS, Zero::Allowed)?;
        Ok(query)
    }

    /// The query as pairs, ready to be percent-encoded.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("force", self.force.to_string())];
        if self.force {
            pairs.push(("grace_seconds", self.grace_seconds.to_string()));
        }
        pairs
    }

    /// The grace as a duration.
    #[must_use]
    pub fn grace(&self) -> Duration {
        duration(self.grace_seconds)
    }
}

/// Seconds that were validated, as a duration; what could not be one counts as none.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

macro_rules! durations {
    ($($request:ty { $($field:ident -> $name:ident: $doc:literal),+ $(,)? })+) => {$(
        impl $request {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $name(&self) -> Duration {
                    duration(self.$field)
                }
            )+
        }
    )+};
}

durations! {
    RunRequest { timeout -> wait: "The longest wait as a duration.", idle_flush_seconds -> idle_flush: "The idle flush as a duration." }
    WaitRequest { timeout -> wait: "The longest wait as a duration.", idle_flush_seconds -> idle_flush: "The idle flush as a duration." }
    InputRequest { timeout -> wait: "The longest wait as a duration.", idle_flush_seconds -> idle_flush: "The idle flush as a duration." }
    TerminateRequest { grace_seconds -> grace: "The grace as a duration." }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        serde_json::from_str::<RunRequest>(json).unwrap().validate().unwrap_err().to_string()
    }

    #[test]
    fn absent_fields_have_the_documented_defaults() {
        let request: RunRequest = serde_json::from_str(r#"{"script":"echo hi"}"#).unwrap();
        assert_eq!(request, RunRequest::new("echo hi"));
        assert_eq!((request.timeout, request.output_limit, request.idle_flush_seconds), (30.0, 8192, 0.5));
        assert_eq!(request.mode, Mode::Pty);
        assert_eq!(serde_json::from_str::<WaitRequest>(r#"{"offset":7}"#).unwrap(), WaitRequest::new(7));
        assert_eq!(
            serde_json::from_str::<InputRequest>(r#"{"text":"x","offset":0}"#).unwrap(),
            InputRequest::new("x", 0)
        );
        assert_eq!(serde_json::from_str::<TerminateRequest>("{}").unwrap(), TerminateRequest::default());
    }

    #[test]
    fn null_means_absent_for_optional_fields() {
        let request: RunRequest =
            serde_json::from_str(r#"{"script":"","cwd":null,"env":null,"terminal":null}"#).unwrap();
        assert_eq!(request, RunRequest::new(""));
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let error = serde_json::from_str::<RunRequest>(r#"{"script":"","timeout_ms":5}"#).unwrap_err().to_string();
        assert!(error.contains("timeout_ms"), "{error}");
        assert!(serde_json::from_str::<RunRequest>(r#"{"script":"","terminal":{"cols":1,"rows":1,"x":1}}"#).is_err());
        assert!(serde_json::from_str::<WaitRequest>(r#"{"offset":0,"x":1}"#).is_err());
        assert!(serde_json::from_str::<InputRequest>(r#"{"offset":0,"text":"","x":1}"#).is_err());
        assert!(serde_json::from_str::<TerminateRequest>(r#"{"grace":1}"#).is_err());
    }

    #[test]
    fn required_fields_and_types_are_demanded() {
        for bad in [
            "{}",
            r#"{"script":1}"#,
            r#"{"script":"","mode":"tty"}"#,
            r#"{"script":"","env":{"A":1}}"#,
            r#"{"script":"","output_limit":1.5}"#,
        ] {
            assert!(serde_json::from_str::<RunRequest>(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<WaitRequest>("{}").is_err());
        assert!(serde_json::from_str::<WaitRequest>(r#"{"offset":-1}"#).is_err());
    }

    #[test]
    fn values_outside_their_limits_are_refused_with_field_and_limit() {
        assert_eq!(
            refusal(r#"{"script":"","timeout":0}"#),
            "timeout is 0, must be more than 0 and at most 300 seconds"
        );
        assert_eq!(
            refusal(r#"{"script":"","timeout":300.5}"#),
            "timeout is 300.5, must be more than 0 and at most 300 seconds"
        );
        assert_eq!(refusal(r#"{"script":"","output_limit":0}"#), "output_limit is 0, must be from 1 to 1048576");
        assert_eq!(
            refusal(r#"{"script":"","output_limit":1048577}"#),
            "output_limit is 1048577, must be from 1 to 1048576"
        );
        assert_eq!(
            refusal(r#"{"script":"","idle_flush_seconds":31}"#),
            "idle_flush_seconds is 31, must be at least 0 and at most 30 seconds"
        );
        assert_eq!(
            refusal(r#"{"script":"","terminal":{"cols":0,"rows":1}}"#),
            "terminal.cols is 0, must be from 1 to 4096"
        );
        assert_eq!(
            refusal(r#"{"script":"","terminal":{"cols":1,"rows":4097}}"#),
            "terminal.rows is 4097, must be from 1 to 4096"
        );
        assert_eq!(refusal(r#"{"script":"","env":{"":"x"}}"#), "env has a variable with an empty name");
        assert_eq!(
            refusal(r#"{"script":"","env":{"A=B":"x"}}"#),
            "env has the name \"A=B\", names hold neither '=' nor NUL"
        );
        assert_eq!(refusal(r#"{"script":"","env":{"A":"x\u0000"}}"#), "env has a NUL in the value of A");
        assert_eq!(refusal(r#"{"script":"","cwd":"/\u0000"}"#), "cwd holds a NUL");
        assert!(serde_json::from_str::<WaitRequest>(r#"{"offset":0,"timeout":0}"#).unwrap().validate().is_ok());
        assert!(serde_json::from_str::<WaitRequest>(r#"{"offset":0,"timeout":-1}"#).unwrap().validate().is_err());
        assert!(
            serde_json::from_str::<InputRequest>(r#"{"offset":0,"text":"","timeout":0}"#).unwrap().validate().is_err()
        );
        assert!(TerminateRequest { grace_seconds: 300.1 }.validate().is_err());
        assert!(TerminateRequest { grace_seconds: f64::NAN }.validate().is_err());
        assert!(TerminateRequest { grace_seconds: 0.0 }.validate().is_ok());
    }

    #[test]
    fn limits_themselves_are_allowed() {
        let request = RunRequest {
            timeout: 300.0,
            output_limit: limits::MAX_OUTPUT_LIMIT,
            idle_flush_seconds: 30.0,
            terminal: Some(Terminal { cols: 4096, rows: 1 }),
            ..RunRequest::new("")
        };
        assert_eq!(request.validate(), Ok(()));
    }

    #[test]
    fn queries_round_trip_and_refuse_what_they_do_not_know() {
        let query = ListQuery { status: Some(JobStatus::Running), limit: 3 };
        let pairs = query.to_pairs();
        assert_eq!(ListQuery::from_pairs(pairs.iter().map(|(name, value)| (*name, value.as_str()))), Ok(query));
        assert_eq!(ListQuery::from_pairs([]), Ok(ListQuery::default()));
        assert!(ListQuery::from_pairs([("limit", "1001")]).is_err());
        assert!(ListQuery::from_pairs([("limit", "0")]).is_err());
        assert!(ListQuery::from_pairs([("status", "done")]).is_err());
        assert!(ListQuery::from_pairs([("offset", "1")]).is_err());
        let query = DeleteQuery { force: true, grace_seconds: 1.5 };
        let pairs = query.to_pairs();
        assert_eq!(DeleteQuery::from_pairs(pairs.iter().map(|(name, value)| (*name, value.as_str()))), Ok(query));
        assert_eq!(DeleteQuery::from_pairs([("force", "True")]).map(|query| query.force), Ok(true));
        assert!(DeleteQuery::from_pairs([("force", "yes")]).is_err());
        assert!(DeleteQuery::from_pairs([("grace_seconds", "nan")]).is_err());
        assert_eq!(TailQuery::from_pairs([("output_limit", "5")]), Ok(TailQuery { output_limit: 5 }));
        assert!(TailQuery::from_pairs([("output_limit", "1048577")]).is_err());
    }
}
