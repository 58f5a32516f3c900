//! Wire types and Connect-JSON framing of E2B's in-sandbox API (envd). No I/O.
//!
//! Both sides use it: the guest that serves the API and the client that calls it. The shapes follow envd 0.6.13; only what
//! E2B's SDKs send and read is modelled. JSON rules of the Connect protocol apply: lowerCamelCase names, `bytes` as standard
//! base64, 64-bit integers as decimal strings, enums by name. Input is read leniently (enum numbers, `null` for unset,
//! unknown fields, unpadded base64), output is written canonically.

mod filesystem;
mod frame;
mod json;
mod process;

pub use filesystem::{
    EntryInfo, EntryResponse, FileType, ListDirRequest, ListDirResponse, MoveRequest, PathRequest, UploadedFile,
};
pub use frame::{
    EndStream, Flags, FrameDecoder, FrameError, HEADER_BYTES, MAX_FRAME_BYTES, encode_end, encode_message,
};
pub use json::{Code, RpcError};
pub use process::{
    ConnectRequest, DataEvent, Empty, EndEvent, Input, ListResponse, ProcessConfig, ProcessEvent, ProcessInfo,
    ProcessRequest, Pty, PtySize, Selector, SendInputRequest, SendSignalRequest, Signal, StartEvent, StartRequest,
    StreamEvent, StreamInputData, StreamInputRequest, StreamInputStart, UpdateRequest,
};

/// The version of envd whose behaviour the guest follows, as reported in `envdVersion`.
pub const VERSION: &str = "0.6.13";

/// The port on which envd is reachable from outside a sandbox.
pub const PORT: u16 = 49983;
