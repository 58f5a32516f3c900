//! Files through the guest's socket: what is written is what is read, for those who may.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use envd::Code;
use leasehold_guest::AccessToken;
use serde_json::{Value, json};

use super::client::{Answer, TestGuest, identity, wait_for};

const OCTETS: &str = "application/octet-stream";

/// Percent-encodes everything that is not a letter or digit.
fn quote(text: &str) -> String {
    let one = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(one).collect()
}

fn target(path: &str) -> String {
    format!("/files?path={}", quote(path))
}

fn write(guest: &TestGuest, path: &str, content: &[u8]) -> Answer {
    guest.client().request("POST", &target(path), OCTETS, content)
}

fn read(guest: &TestGuest, path: &str) -> Answer {
    guest.client().get(&target(path))
}

fn message(answer: &Answer) -> String {
    assert_eq!(answer.json()["code"], answer.status);
    answer.json()["message"].as_str().unwrap().to_owned()
}

/// A directory that every user can reach, inside the guest's own.
fn open_directory(guest: &TestGuest, name: &str, mode: u32) -> String {
    fs::set_permissions(guest.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = guest.path(name);
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn all_byte_values_come_back_as_they_went() {
    let guest = TestGuest::start();
    let content: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let at = guest.path("bytes").to_str().unwrap().to_owned();
    let written = write(&guest, &at, &content);
    assert_eq!((written.status, written.json()), (200, json!([{ "path": at, "name": "bytes", "type": "file" }])));
    let found = read(&guest, &at);
    assert_eq!(found.body, content);
    assert_eq!(found.header("content-type"), Some("application/octet-stream"));
    assert_eq!(found.header("content-disposition"), Some("inline; filename=bytes"));
    let empty = guest.path("empty").to_str().unwrap().to_owned();
    assert_eq!(write(&guest, &empty, b"").status, 200);
    assert_eq!((read(&guest, &empty).status, read(&guest, &empty).body.len()), (200, 0));
    assert_eq!(fs::metadata(empty).unwrap().mode() & 0o777, 0o644);
}

#[test]
fn forms_write_each_file_under_its_own_name() {
    let guest = TestGuest::start();
    let at = |name: &str| guest.path(name).to_str().unwrap().to_owned();
    let part = |name: &str, content: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{content}\r\n")
    };
    let form = format!("{}{}--b--\r\n", part(&at("one"), "1\r\n"), part(&at("new/two"), ""));
    let kind = "multipart/form-data; boundary=b";
    let written = guest.client().request("POST", "/files", kind, form.as_bytes());
    assert_eq!(written.status, 200, "{}", written.json());
    assert_eq!(written.json().as_array().unwrap().len(), 2);
    assert_eq!((read(&guest, &at("one")).body, read(&guest, &at("new/two")).body), (b"1\r\n".to_vec(), b"".to_vec()));

    let twice = format!("{}{}--b--\r\n", part(&at("x"), "1"), part(&at("./x"), "2"));
    let refused = guest.client().request("POST", "/files", kind, twice.as_bytes());
    assert_eq!((refused.status, message(&refused)), (400, format!("path '{}' stands twice in one request", at("x"))));
    assert_eq!(read(&guest, &at("x")).status, 404, "a refused form writes nothing");

    let named =
        guest.client().request("POST", &target(&at("by-query")), kind, (part("ignored", "q") + "--b--").as_bytes());
    assert_eq!((named.status, read(&guest, &at("by-query")).body), (200, b"q".to_vec()));
    for (form, text) in [("--b--", "form holds no file"), ("--b\r\n\r\nx\r\n--b--", "form field '' is not read here")] {
        let refused = guest.client().request("POST", "/files", kind, form.as_bytes());
        assert_eq!(refused.status, 400);
        assert!(message(&refused).starts_with(text), "{}", message(&refused));
    }
}

#[test]
fn names_are_taken_as_they_are_and_dots_are_resolved() {
    let guest = TestGuest::start();
    let root = guest.dir.path().to_str().unwrap().to_owned();
    for (given, stored) in [
        ("./a", "a"),
        ("a2/../b", "b"),
        ("c%2Fd", "c%2Fd"),
        ("e f", "e f"),
        ("g#h?i&j=k", "g#h?i&j=k"),
        ("l+m", "l+m"),
        ("ünï\u{1f600}", "ünï\u{1f600}"),
        ("new\nline", "new\nline"),
    ] {
        let written = write(&guest, &format!("{root}/{given}"), given.as_bytes());
        assert_eq!(written.json()[0]["path"], format!("{root}/{stored}"), "{given:?}");
        assert_eq!(fs::read_to_string(guest.path(stored)).unwrap(), given);
        assert_eq!(read(&guest, &format!("{root}/{given}")).body, given.as_bytes());
    }
}

#[test]
fn many_can_write_into_one_new_directory_at_once() {
    let guest = TestGuest::start();
    let root = guest.path("a/b/c").to_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        for number in 0..32 {
            let (guest, root) = (&guest, &root);
            scope.spawn(move || assert_eq!(write(guest, &format!("{root}/{number}"), b"x").status, 200));
        }
    });
    assert_eq!(fs::read_dir(root).unwrap().count(), 32);
}

#[test]
fn missing_forbidden_and_wrong_kinds_are_told_apart() {
    let guest = TestGuest::start();
    let at = |name: &str| guest.path(name).to_str().unwrap().to_owned();
    let open = open_directory(&guest, "open", 0o755);
    fs::write(format!("{open}/secret"), "root's").unwrap();
    fs::set_permissions(format!("{open}/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let as_nobody = |path: &str| guest.client().get(&format!("{}&username=nobody", target(path)));

    let missing = read(&guest, &at("absent"));
    assert_eq!((missing.status, message(&missing)), (404, format!("path '{}' does not exist", at("absent"))));
    let directory = read(&guest, &open);
    assert_eq!((directory.status, message(&directory)), (400, format!("path '{open}' is a directory")));
    let pipe = read(&guest, &at("pipe"));
    assert_eq!((pipe.status, message(&pipe)), (400, format!("path '{}' is not a regular file", at("pipe"))));
    let forbidden = as_nobody(&format!("{open}/secret"));
    let text = format!("permission denied for user 'nobody' on '{open}/secret': no access");
    assert_eq!((forbidden.status, message(&forbidden)), (403, text));
    let nobody_there = guest.client().get(&format!("{}&username=ghost", target(&open)));
    assert_eq!((nobody_there.status, message(&nobody_there)), (401, "invalid username: 'ghost'".to_owned()));

    assert_eq!(write(&guest, &open, b"x").status, 400);
    assert_eq!(write(&guest, &at("pipe"), b"x").status, 400);
    assert_eq!(write(&guest, &format!("{open}/secret/below"), b"x").status, 400);
    let post = |target: &str, kind: &str| guest.client().request("POST", target, kind, b"x");
    assert_eq!(post("/files", OCTETS).status, 400);
    assert_eq!(post(&target(&at("x")), "text/plain").status, 415);
    let gzip = guest.client().header("Content-Encoding", "gzip").request("POST", &target(&at("x")), OCTETS, b"x");
    assert_eq!(gzip.status, 415);
    assert!(message(&gzip).contains("'gzip'"));
    assert_eq!(guest.client().header("Accept-Encoding", "identity;q=0").get(&target(&at("x"))).status, 406);
    assert_eq!(guest.client().request("DELETE", &target(&at("x")), OCTETS, b"").status, 405);
    assert!(!guest.path("x").exists());
}

#[test]
fn a_user_reaches_nothing_that_its_own_programs_could_not() {
    let guest = TestGuest::start();
    let open = open_directory(&guest, "open", 0o1777);
    let closed = guest.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(closed.join("victim"), "untouched").unwrap();
    for (link, to) in
        [("to-directory", closed.clone()), ("to-file", closed.join("victim")), ("to-new", closed.join("new"))]
    {
        std::os::unix::fs::symlink(to, format!("{open}/{link}")).unwrap();
    }
    let post = |path: &str| {
        let target = format!("{}&username=nobody", target(path));
        guest.client().request("POST", &target, OCTETS, b"x").status
    };
    assert_eq!(post(&format!("{open}/to-directory/victim")), 403);
    assert_eq!(post(&format!("{open}/to-file")), 403);
    assert_eq!(post(&format!("{open}/to-new")), 403);
    assert_eq!(post(&format!("{open}/mine")), 200);
    let mine = fs::metadata(format!("{open}/mine")).unwrap();
    assert_eq!((mine.uid(), mine.gid(), mine.mode() & 0o777), (65534, 65534, 0o644));
    let get = |path: &str| guest.client().get(&format!("{}&username=nobody", target(path))).status;
    assert_eq!(get(&format!("{open}/to-file")), 403);
    // Such links are the guest's own here, and its own it may always open.
    assert_eq!(get("/proc/self/maps"), 403);
    assert_eq!(get("/proc/self/fd/3"), 400);
    assert_eq!(get("/proc/version"), 200);

    let basic = "Basic bm9ib2R5Og=="; // nobody:
    let call = |method: &str, message: Value| {
        guest.client().header("Authorization", basic).call(&format!("/filesystem.Filesystem/{method}"), message)
    };
    let code = |method: &str, message: Value| call(method, message).unwrap_err().code;
    let inside = format!("{open}/to-directory/victim");
    assert_eq!(code("Stat", json!({ "path": inside })), Code::PermissionDenied);
    assert_eq!(code("Remove", json!({ "path": inside })), Code::PermissionDenied);
    assert_eq!(code("ListDir", json!({ "path": format!("{open}/to-directory") })), Code::PermissionDenied);
    assert_eq!(code("MakeDir", json!({ "path": format!("{open}/to-directory/sub") })), Code::PermissionDenied);
    assert_eq!(
        code("Move", json!({ "source": format!("{open}/mine"), "destination": inside })),
        Code::PermissionDenied
    );
    assert_eq!(fs::read_to_string(closed.join("victim")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(&closed).unwrap().count(), 1);
    // The same connection's thread is root again for root.
    let mut client = guest.client();
    assert_eq!(client.get(&format!("{}&username=nobody", target(&inside))).status, 403);
    assert_eq!(client.get(&target(&inside)).body, b"untouched");
}

#[test]
fn parts_and_conditions_save_transfers() {
    let guest = TestGuest::start();
    let at = guest.path("file.txt").to_str().unwrap().to_owned();
    write(&guest, &at, b"0123456789");
    let whole = read(&guest, &at);
    let etag = whole.header("etag").unwrap().to_owned();
    assert_eq!(whole.header("content-type"), Some("text/plain; charset=utf-8"));
    let with = |name: &str, value: &str| guest.client().header(name, value).get(&target(&at));
    let part = with("Range", "bytes=2-4");
    assert_eq!((part.status, part.body.as_slice()), (206, b"234".as_slice()));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    let beyond = with("Range", "bytes=10-");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));
    assert_eq!(with("If-None-Match", &etag).status, 304);
    assert_eq!(with("If-Match", "\"other\"").status, 412);
    write(&guest, &at, b"0123456789");
    assert_eq!(with("If-None-Match", &etag).status, 200, "another content has another tag");
    let proc = read(&guest, "/proc/version");
    assert_eq!(proc.header("transfer-encoding"), Some("chunked"), "its size of 0 is not believed");
}

#[test]
fn signed_urls_open_one_path_for_their_time() {
    let guest = TestGuest::with_token("secret");
    let at = guest.path("file").to_str().unwrap().to_owned();
    // As E2B's SDKs compute it.
    let sign = |operation: &str, user: &str, expiration: Option<i64>| {
        let expiry = expiration.map_or(String::new(), |at| format!(":{at}"));
        let raw = format!("{at}:{operation}:{user}:secret{expiry}");
        let digest = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" | openssl dgst -sha256 -binary | base64 | tr -d '=\\n'", "sh", &raw])
            .output()
            .unwrap();
        let mut query = format!(
            "{}&signature={}",
            target(&at),
            quote(&format!("v1_{}", String::from_utf8(digest.stdout).unwrap()))
        );
        if !user.is_empty() {
            query.push_str(&format!("&username={user}"));
        }
        query + &expiration.map_or(String::new(), |at| format!("&signature_expiration={at}"))
    };
    let now = i64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let post = |target: &str| guest.client().request("POST", target, OCTETS, b"x");
    assert_eq!(post(&sign("write", "", Some(now + 100))).status, 200);
    assert_eq!(guest.client().get(&sign("read", "", None)).body, b"x");
    assert_eq!(guest.client().get(&sign("read", "root", Some(now + 100))).body, b"x");
    for (target, text) in [
        (sign("write", "", None), "invalid signature"),
        (sign("read", "", Some(0)), "signature is already expired"),
        (sign("read", "", Some(now - 1)), "signature is already expired"),
        (
            sign("read", "", Some(now + 100)).replace(&format!("={}", now + 100), &format!("={}", now + 200)),
            "invalid signature",
        ),
        (target(&at), "missing signature query parameter"),
    ] {
        let refused = guest.client().get(&target);
        assert_eq!((refused.status, message(&refused).as_str()), (401, text), "{target}");
    }
    let wrong = guest.client().header("X-Access-Token", "wrong").get(&sign("read", "", None));
    assert_eq!((wrong.status, message(&wrong).as_str()), (401, "access token present in header but does not match"));
    assert_eq!(guest.client().header("X-Access-Token", "secret").get(&target(&at)).body, b"x");
}

#[test]
fn metadata_travels_with_its_file() {
    let mut identity = identity();
    identity.access_token = Some(AccessToken::new("t"));
    let guest = TestGuest::with_identity(&identity);
    let at = guest.path("file").to_str().unwrap().to_owned();
    let client = || guest.client().header("X-Access-Token", "t");
    let written = client().header("X-Metadata-Author", "me").request("POST", &target(&at), OCTETS, b"x");
    assert_eq!(written.json()[0]["metadata"], json!({ "author": "me" }));
    let stat = || client().call("/filesystem.Filesystem/Stat", json!({ "path": at })).unwrap()["entry"].clone();
    assert_eq!(stat()["metadata"], json!({ "author": "me" }));
    client().request("POST", &target(&at), OCTETS, b"x");
    assert_eq!(stat()["metadata"], Value::Null);
}

#[test]
fn the_filesystem_service_does_what_the_sdks_expect() {
    let guest = TestGuest::start();
    let at = |name: &str| guest.path(name).to_str().unwrap().to_owned();
    let call = |method: &str, message: Value| guest.call(&format!("/filesystem.Filesystem/{method}"), message);
    let made = call("MakeDir", json!({ "path": at("d/e") })).unwrap();
    let entry = &made["entry"];
    assert_eq!(
        (&entry["type"], &entry["permissions"], &entry["mode"]),
        (&json!("FILE_TYPE_DIRECTORY"), &json!("drwxr-xr-x"), &json!(0o755))
    );
    let again = call("MakeDir", json!({ "path": at("d/e") })).unwrap_err();
    assert_eq!((again.code, again.message), (Code::AlreadyExists, format!("path '{}' already exists", at("d/e"))));
    write(&guest, &at("d/file"), b"12345");
    assert_eq!(call("MakeDir", json!({ "path": at("d/file") })).unwrap_err().code, Code::InvalidArgument);
    std::os::unix::fs::symlink("file", at("d/link")).unwrap();
    let link = call("Stat", json!({ "path": at("d/link") })).unwrap()["entry"].clone();
    assert_eq!((&link["type"], &link["permissions"]), (&json!("FILE_TYPE_FILE"), &json!("Lrwxrwxrwx")));
    assert!(link["symlinkTarget"].as_str().unwrap().ends_with("/d/file"));

    let names = |depth: u32| {
        let answer = call("ListDir", json!({ "path": at("d/.."), "depth": depth })).unwrap();
        let entries = answer["entries"].as_array().unwrap().clone();
        let names: Vec<_> = entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect();
        names.into_iter().filter(|path| path.starts_with(&at("d"))).collect::<Vec<_>>()
    };
    assert_eq!(names(0), [at("d")]);
    assert_eq!(names(2), [at("d"), at("d/e"), at("d/file"), at("d/link")]);
    assert_eq!(call("ListDir", json!({ "path": at("absent") })).unwrap_err().code, Code::NotFound);
    assert_eq!(call("ListDir", json!({ "path": at("d/file") })).unwrap_err().code, Code::InvalidArgument);

    let moved = call("Move", json!({ "source": at("d/file"), "destination": at("new/name") })).unwrap();
    assert_eq!((&moved["entry"]["path"], &moved["entry"]["size"]), (&json!(at("new/name")), &json!("5")));
    let missing = call("Move", json!({ "source": at("d/file"), "destination": at("other/name") })).unwrap_err();
    assert_eq!((missing.code, guest.path("other").exists()), (Code::NotFound, false));

    for path in ["d", "d", "new/name", "never"] {
        assert_eq!(call("Remove", json!({ "path": at(path) })), Ok(json!({})), "{path}");
    }
    assert!(!guest.path("d").exists());
    assert_eq!(call("Stat", json!({ "path": at("d") })).unwrap_err().code, Code::NotFound);
    assert_eq!(call("Remove", json!({ "path": "/" })).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(call("Stat", json!({ "path": "a\u{0}b" })).unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn an_upload_that_breaks_off_leaves_nothing() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("d")).unwrap();
    fs::write(guest.path("d/old"), "old").unwrap();
    for name in ["new", "old"] {
        let mut client = guest.connect("envd.sock");
        let at = target(guest.path("d").join(name).to_str().unwrap());
        let head = format!("POST {at} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\nContent-Length: 1000\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&[b'x'; 500]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || !answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(fs::read_to_string(guest.path("d/old")).unwrap(), "old");
    assert_eq!(fs::read_dir(guest.path("d")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(guest.path("state/uploads")).unwrap().count(), 0);
}

#[test]
fn what_cannot_fit_is_refused_before_it_is_sent() {
    let guest = TestGuest::start();
    let mut client = guest.connect("envd.sock");
    let at = target(guest.path("huge").to_str().unwrap());
    let length = 1u64 << 60;
    let head = format!(
        "POST {at} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    );
    client.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 507");
    assert!(!guest.path("huge").exists());
}

/// Highest resident memory of the guest so far, in KiB.
fn peak_memory(guest: &TestGuest) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_stays_flat_over_a_large_upload_and_download() {
    const SIZE: usize = 100 << 20;
    let guest = TestGuest::start();
    let at = target(guest.path("large").to_str().unwrap());
    write(&guest, guest.path("warm").to_str().unwrap(), &[0; 1 << 20]);
    let before = peak_memory(&guest);
    let block: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let mut client = guest.connect("envd.sock");
    let head = format!("POST {at} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\nContent-Length: {SIZE}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    for _ in 0..SIZE / block.len() {
        client.write_all(&block).unwrap();
    }
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");

    let mut client = guest.connect("envd.sock");
    client.write_all(format!("GET {at} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let (mut received, mut head) = (0, Vec::new());
    loop {
        let count = client.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        if head.is_empty() {
            head = buffer[..count].to_vec();
        }
        received += count;
    }
    let head_length = head.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(received - head_length, SIZE);
    let grown = peak_memory(&guest) - before;
    assert!(grown < 2048, "{grown} KiB more");
}

#[test]
fn a_killed_guest_leaves_no_half_file() {
    let guest = TestGuest::start();
    let dir = guest.path("d");
    fs::create_dir(&dir).unwrap();
    let mut client = guest.connect("envd.sock");
    let at = target(dir.join("file").to_str().unwrap());
    let head = format!("POST {at} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\nContent-Length: 1000000\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(&[b'x'; 500_000]).unwrap();
    let staged = || {
        let fds = fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().flatten();
        let targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        targets.into_iter().any(|target| target.to_string_lossy().contains("/state/uploads/"))
    };
    wait_for("the upload to be under way", staged);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(guest.pid()).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    drop(client);
    wait_for("the guest to be gone", || {
        fs::read_to_string(format!("/proc/{}/stat", guest.pid())).is_ok_and(|stat| stat.contains(") Z"))
    });
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(fs::read_dir(guest.path("state/uploads")).unwrap().count(), 0);
}
