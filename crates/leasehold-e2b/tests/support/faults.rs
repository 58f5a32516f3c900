//! The table of failures: what a server does, and what the client makes of it.

use leasehold_e2b::{ClientErrorKind, TransportKind};

use super::Step;

/// One row: a server's behaviour, and what the client makes of it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) step: Step,
    pub(crate) kinds: &'static [ClientErrorKind],
    pub(crate) message: &'static str,
}

pub(crate) const READ: ClientErrorKind = ClientErrorKind::Transport(TransportKind::Read);
pub(crate) const WRITE: ClientErrorKind = ClientErrorKind::Transport(TransportKind::Write);
pub(crate) const READ_TIMEOUT: ClientErrorKind = ClientErrorKind::Transport(TransportKind::ReadTimeout);
pub(crate) const REDIRECTS: ClientErrorKind = ClientErrorKind::Transport(TransportKind::Redirects);
pub(crate) const REMOTE_PROTOCOL: ClientErrorKind = ClientErrorKind::Transport(TransportKind::RemoteProtocol);

/// Every row.
pub(crate) fn rows() -> Vec<Row> {
    let row = |name, step, kinds, message| Row { name, step, kinds, message };
    let error = |status: u16, message: &str| format!(r#"{{"code":{status},"message":"{message}"}}"#);
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
    vec![
        // The kernel decides whether the write or the read meets the reset first.
        row("reset before the request was read", Step::ResetUnread, &[READ, WRITE], ""),
        row("reset after the request was read", Step::WriteThenReset(vec![]), &[READ], "reset"),
        row("closed after the request was read", Step::Write(vec![]), &[REMOTE_PROTOCOL], "before message completed"),
        row("closed within the head", Step::Write(vec![b"HTTP/1.1 200 OK\r\nx".to_vec()]), &[REMOTE_PROTOCOL], ""),
        row("stalled before the head", Step::WriteThenStall(vec![]), &[READ_TIMEOUT], "within 2s"),
        row(
            "stalled within the body",
            Step::WriteThenStall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()),
            &[READ_TIMEOUT],
            "within 2s",
        ),
        row(
            "truncated body",
            Step::Write(vec![b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()]),
            &[READ],
            "",
        ),
        row("truncated chunked body", Step::Write(vec![[chunked, b"9\r\n{"].concat()]), &[READ], ""),
        row(
            "reset within the body",
            Step::WriteThenReset(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()),
            &[READ],
            "reset",
        ),
        row("garbage", Step::Write(vec![b"\x15\x03\x01garbage\r\n\r\n".to_vec()]), &[REMOTE_PROTOCOL], "parse"),
        row("garbage as chunk size", Step::Write(vec![[chunked, b"zz\r\n"].concat()]), &[REMOTE_PROTOCOL], "chunk"),
        row("400", Step::json(400, &error(400, "bad")), &[ClientErrorKind::Status], "HTTP 400: bad"),
        row("401", Step::json(401, &error(401, "no key")), &[ClientErrorKind::Status], "HTTP 401: no key"),
        row("404 with a body", Step::json(404, &error(404, "gone")), &[ClientErrorKind::NotFound], "HTTP 404: gone"),
        row("404 without a body", Step::answer(404, &[], ""), &[ClientErrorKind::Status], "HTTP 404"),
        row("404 of a proxy", Step::answer(404, &[], "<h1>no\n</h1>"), &[ClientErrorKind::Status], r"<h1>no\n</h1>"),
        row("404 with code as text", Step::json(404, r#"{"code":"404"}"#), &[ClientErrorKind::Status], "HTTP 404"),
        row(
            "404 with a truncated body",
            Step::Write(vec![b"HTTP/1.1 404 No\r\ncontent-length: 99\r\n\r\n{\"code\":404".to_vec()]),
            &[ClientErrorKind::Status],
            "HTTP 404: (body unreadable",
        ),
        row("409", Step::json(409, &error(409, "busy")), &[ClientErrorKind::Status], "HTTP 409: busy"),
        row("429", Step::json(429, &error(429, "slow")), &[ClientErrorKind::Status], "HTTP 429: slow"),
        row("500", Step::json(500, &error(500, "oops")), &[ClientErrorKind::Status], "HTTP 500: oops"),
        row(
            "502 of the edge",
            Step::json(502, r#"{"sandboxId":"a","message":"The sandbox was not found","code":502}"#),
            &[ClientErrorKind::Status],
            "HTTP 502: The sandbox was not found",
        ),
        row("503", Step::answer(503, &[("retry-after", "7")], ""), &[ClientErrorKind::Status], "HTTP 503"),
        row("malformed JSON", Step::json(200, "{\"sandboxID\":"), &[ClientErrorKind::Decode], "EOF"),
        row("JSON of another shape", Step::json(200, "[1]"), &[ClientErrorKind::Decode], ""),
        row(
            "redirect to another origin",
            Step::answer(307, &[("location", "http://127.0.0.2:1/v2/sandboxes")], ""),
            &[ClientErrorKind::Status],
            "another origin",
        ),
        row("redirect to itself", Step::answer(302, &[("location", "/x")], ""), &[REDIRECTS], "redirects"),
    ]
}

/// Runs a test for every row, each in a thread of its own: log records are caught per thread, and time-outs and retries take time.
pub(crate) fn for_each_row(test: impl AsyncFn(&Row) + Sync) {
    std::thread::scope(|scope| {
        for row in rows() {
            let test = &test;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(test(&row));
            });
        }
    });
}

impl Row {
    /// Whether the failure is of the control set, as the seed has it.
    pub(crate) fn in_control_set(&self) -> bool {
        self.kinds.iter().all(|kind| [READ, WRITE, READ_TIMEOUT, REMOTE_PROTOCOL].contains(kind))
    }

    /// The seed's name of the failure's class; two where the kernel decides.
    pub(crate) fn exceptions(&self) -> &'static [&'static str] {
        match self.kinds {
            [kind] if *kind == READ => &["ReadError"],
            [kind] if *kind == READ_TIMEOUT => &["ReadTimeout"],
            [kind] if *kind == REMOTE_PROTOCOL => &["RemoteProtocolError"],
            [kind] if *kind == REDIRECTS => &["RuntimeError"],
            [ClientErrorKind::Status] => &["HTTPStatusError"],
            [ClientErrorKind::NotFound] => &["NotFoundError"],
            [ClientErrorKind::Decode] => &["DecodingError"],
            _ => &["ReadError", "WriteError"],
        }
    }

    /// The status, where there is one.
    pub(crate) fn status(&self) -> Option<u16> {
        if self.name == "redirect to another origin" {
            return Some(307);
        }
        self.name.get(..3)?.parse().ok()
    }
}
