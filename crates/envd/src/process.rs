//! Messages of `process.Process`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::json::{base64_bytes, null_as_default};

/// An empty message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// What to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// The program, looked up in `PATH` unless it holds a slash.
    #[serde(default, deserialize_with = "null_as_default")]
    pub cmd: String,
    /// Its arguments, without the program's own name.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables laid over the sandbox's environment.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Working directory; absent means the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Width.
    #[serde(default)]
    pub cols: u32,
    /// Height.
    #[serde(default)]
    pub rows: u32,
}

/// A terminal for the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    /// Its size; absent leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// Request of `Start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRequest {
    /// What to run.
    #[serde(default, deserialize_with = "null_as_default")]
    pub process: ProcessConfig,
    /// Run it on a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name by which it can be selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether stdin is a pipe. Absent means true, as clients before envd 0.3.0 assume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// One process by pid or by tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selector {
    /// By process id inside the sandbox.
    Pid(u32),
    /// By the tag given at start.
    Tag(String),
}

/// Request of `Connect` and `CloseStdin`: a process and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRequest {
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Selector>,
}

/// Request of `Connect`.
pub type ConnectRequest = ProcessRequest;

/// A running process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// As it was started.
    #[serde(default, deserialize_with = "null_as_default")]
    pub config: ProcessConfig,
    /// Its pid inside the sandbox.
    #[serde(default)]
    pub pid: u32,
    /// Its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Response of `List`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    /// The running processes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessInfo>,
}

/// The process runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartEvent {
    /// Its pid inside the sandbox.
    #[serde(default)]
    pub pid: u32,
}

/// Output of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataEvent {
    /// Bytes of its stdout.
    Stdout(#[serde(with = "base64_bytes")] Vec<u8>),
    /// Bytes of its stderr.
    Stderr(#[serde(with = "base64_bytes")] Vec<u8>),
    /// Bytes of its terminal.
    Pty(#[serde(with = "base64_bytes")] Vec<u8>),
}

/// The process ended and all its output was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndEvent {
    /// Exit code; -1 when a signal ended it.
    #[serde(default)]
    pub exit_code: i32,
    /// Whether it left by itself, with an exit code.
    #[serde(default)]
    pub exited: bool,
    /// `exit status N`, `signal: killed`, `signal: terminated`, …
    #[serde(default)]
    pub status: String,
    /// The same text when the end was not a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What happened to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    /// First event of a stream.
    Start(StartEvent),
    /// Output.
    Data(DataEvent),
    /// Last event.
    End(EndEvent),
    /// Nothing happened for a while.
    Keepalive(Empty),
}

/// A message of the streams of `Start` and `Connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEvent {
    /// What happened.
    pub event: ProcessEvent,
}

/// Input for a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Input {
    /// For its stdin pipe.
    Stdin(#[serde(with = "base64_bytes")] Vec<u8>),
    /// For its terminal.
    Pty(#[serde(with = "base64_bytes")] Vec<u8>),
}

/// Request of `SendInput`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInputRequest {
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Selector>,
    /// The input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
}

/// Selects the process of a `StreamInput` stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInputStart {
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Selector>,
}

/// Input within a `StreamInput` stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInputData {
    /// The input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
}

/// A message of the stream of `StreamInput`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInputRequest {
    /// First message.
    Start(StreamInputStart),
    /// Input, in order.
    Data(StreamInputData),
    /// Keeps the connection open.
    Keepalive(Empty),
}

/// A signal that clients may send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "named after the signals")]
pub enum Signal {
    #[default]
    #[serde(rename = "SIGNAL_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "SIGNAL_SIGTERM")]
    Sigterm,
    #[serde(rename = "SIGNAL_SIGKILL")]
    Sigkill,
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i32),
            Name(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(0) => Ok(Self::Unspecified),
            Either::Number(15) => Ok(Self::Sigterm),
            Either::Number(9) => Ok(Self::Sigkill),
            Either::Name(name) if name == "SIGNAL_UNSPECIFIED" => Ok(Self::Unspecified),
            Either::Name(name) if name == "SIGNAL_SIGTERM" => Ok(Self::Sigterm),
            Either::Name(name) if name == "SIGNAL_SIGKILL" => Ok(Self::Sigkill),
            Either::Number(number) => Err(serde::de::Error::custom(format!("unknown signal {number}"))),
            Either::Name(name) => Err(serde::de::Error::custom(format!("unknown signal {name:?}"))),
        }
    }
}

/// Request of `SendSignal`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSignalRequest {
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Selector>,
    /// The signal.
    #[serde(default, deserialize_with = "null_as_default")]
    pub signal: Signal,
}

/// Request of `Update`: resizes the terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRequest {
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Selector>,
    /// The new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_as_the_sdks_read_them() {
        let wire = |event| serde_json::to_string(&StreamEvent { event }).unwrap();
        assert_eq!(wire(ProcessEvent::Start(StartEvent { pid: 123 })), r#"{"event":{"start":{"pid":123}}}"#);
        assert_eq!(
            wire(ProcessEvent::Data(DataEvent::Stdout(b"hi\n".to_vec()))),
            r#"{"event":{"data":{"stdout":"aGkK"}}}"#
        );
        let end = EndEvent { exit_code: 0, exited: true, status: "exit status 0".into(), error: None };
        assert_eq!(
            wire(ProcessEvent::End(end)),
            r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#
        );
        assert_eq!(wire(ProcessEvent::Keepalive(Empty {})), r#"{"event":{"keepalive":{}}}"#);
    }

    #[test]
    fn input_is_read_leniently() {
        let start: StartRequest = serde_json::from_str(
            r#"{"process":{"cmd":"/bin/bash","args":["-l"],"envs":null,"extra":1},"pty":null,"stdin":false}"#,
        )
        .unwrap();
        assert_eq!(start.process.cmd, "/bin/bash");
        assert_eq!(start.stdin, Some(false));
        let signal: SendSignalRequest =
            serde_json::from_str(r#"{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}"#).unwrap();
        assert_eq!(signal, SendSignalRequest { process: Some(Selector::Pid(7)), signal: Signal::Sigkill });
        let number: SendSignalRequest = serde_json::from_str(r#"{"signal":15}"#).unwrap();
        assert_eq!(number.signal, Signal::Sigterm);
        let input: SendInputRequest =
            serde_json::from_str(r#"{"process":{"tag":"t"},"input":{"stdin":"aGk"}}"#).unwrap();
        assert_eq!(input.input, Some(Input::Stdin(b"hi".to_vec())));
    }
}
