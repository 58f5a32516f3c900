//! The control socket.

use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use super::client::{TestGuest, identity};

fn ask(stream: &UnixStream, request: &str) -> (Value, Vec<OwnedFd>) {
    let mut writer = stream;
    writer.write_all(request.as_bytes()).unwrap();
    writer.write_all(b"\n").unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; 4096];
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut line = bytes[..received.bytes].to_vec();
    if !line.ends_with(b"\n") {
        BufReader::new(stream).read_until(b'\n', &mut line).unwrap();
    }
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    (serde_json::from_slice(&line).unwrap(), fds)
}

#[test]
fn a_dialled_port_comes_back_as_a_connected_socket() {
    let guest = TestGuest::start();
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let control = guest.connect("ctl.sock");
    for _ in 0..3 {
        let (answer, fds) = ask(&control, &json!({ "op": "dial", "port": port }).to_string());
        assert_eq!(answer, json!({ "ok": true }));
        let [fd] = <[OwnedFd; 1]>::try_from(fds).unwrap();
        let mut ours = TcpStream::from(fd);
        ours.write_all(b"ping").unwrap();
        let (mut theirs, _) = server.accept().unwrap();
        let mut bytes = [0; 4];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping");
    }
    drop(server);
    let (answer, fds) = ask(&control, &json!({ "op": "dial", "port": port }).to_string());
    assert_eq!((answer, fds.len()), (json!({ "ok": false, "error": "refused" }), 0));
}

#[test]
fn a_port_that_listens_on_ipv6_only_is_found() {
    let Ok(server) = TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)) else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let guest = TestGuest::start();
    let port = server.local_addr().unwrap().port();
    let (answer, fds) = ask(&guest.connect("ctl.sock"), &json!({ "op": "dial", "port": port }).to_string());
    assert_eq!((answer, fds.len()), (json!({ "ok": true }), 1));
}

#[test]
fn sync_prepare_and_reload_are_answered() {
    let guest = TestGuest::start();
    let control = guest.connect("ctl.sock");
    for op in ["sync", "prepare", "reload"] {
        assert_eq!(ask(&control, &json!({ "op": op }).to_string()).0, json!({ "ok": true }), "{op}");
    }
    let mut changed = identity();
    changed.envs.insert("FROM_IDENTITY".into(), "changed".into());
    std::fs::write(guest.path("identity.json"), serde_json::to_vec(&changed).unwrap()).unwrap();
    ask(&control, r#"{"op":"reload"}"#);
    assert_eq!(guest.sh("echo $FROM_IDENTITY", json!({})).finish().stdout, b"changed\n");
    std::fs::write(guest.path("identity.json"), b"{").unwrap();
    let answer = ask(&control, r#"{"op":"reload"}"#).0;
    assert_eq!(answer["ok"], false);
    assert_eq!(guest.client().get("/envs").json(), json!({ "FROM_IDENTITY": "changed" }), "the one before stays");
}

#[test]
fn nonsense_is_answered_and_endless_lines_close_the_connection() {
    let guest = TestGuest::start();
    let control = guest.connect("ctl.sock");
    for request in [
        "{}",
        "x",
        r#"{"op":"explode"}"#,
        r#"{"op":"dial"}"#,
        r#"{"op":"dial","port":70000}"#,
        r#"{"op":"dial","port":0}"#,
    ] {
        assert_eq!(ask(&control, request).0["ok"], false, "{request}");
    }
    (&control).write_all(&[b'x'; 5000]).unwrap();
    let mut rest = Vec::new();
    // The connection may end with a reset, since bytes are left unread.
    (&control).read_to_end(&mut rest).ok();
    assert!(rest.is_empty());
}

#[test]
fn sockets_are_for_root_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let guest = TestGuest::start();
    for name in ["envd.sock", "ctl.sock"] {
        let mode = std::fs::metadata(guest.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
