//! `leasehold serve`, `doctor`, and what a data directory may be.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::Signal;
use support::{Place, signal, text};

fn serve(place: &Place, more: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = place.spawn(["serve", "--listen", "127.0.0.1:0"].iter().chain(more));
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn exports(output: &mut BufReader<ChildStdout>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while found.len() < 3 {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "serve ended early; so far {found:?}");
        if let Some((name, value)) = line.strip_prefix("export ").and_then(|rest| rest.trim().split_once('=')) {
            found.push((name.to_owned(), value.to_owned()));
        }
    }
    found
}

#[test]
fn serve_prints_what_sdks_need_keeps_its_key_and_ends_cleanly() {
    let place = Place::new();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let (mut child, mut output) = serve(&place, &[]);
        let exports = exports(&mut output);
        assert_eq!(exports[0].0, "E2B_API_KEY");
        let key = &exports[0].1;
        assert!(
            key.len() == 44 && key.starts_with("e2b_") && key[4..].bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{key}"
        );
        keys.push(key.clone());
        assert!(exports[1].1.starts_with("http://127.0.0.1:"), "{exports:?}");
        signal(&child, Signal::TERM);
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(keys[0], keys[1]);
}

#[test]
fn serve_takes_its_settings_from_variables() {
    let place = Place::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .arg("serve")
        .env("LEASEHOLD_DATA_DIR", place.data_dir())
        .env("LEASEHOLD_LISTEN", "127.0.0.1:0")
        .env("LEASEHOLD_API_KEY", "e2b_fedcba")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(exports(&mut output)[0].1, "e2b_fedcba");
    assert_eq!(place.ok(["run", "--", "echo", "hi"]), "hi\n");
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn commands_use_the_host_that_serves_their_directory() {
    let place = Place::new();
    let (mut child, mut output) = serve(&place, &["--api-key", "e2b_0123456789abcdef"]);
    assert_eq!(exports(&mut output)[0].1, "e2b_0123456789abcdef");
    assert_eq!(place.ok(["run", "--", "echo", "hi"]), "hi\n");
    let second = place.output(["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(125));
    let complaint = text(&second.stderr);
    assert!(complaint.contains("already holds") && complaint.contains(&child.id().to_string()), "{complaint}");
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_port_in_use_or_a_public_address_is_refused() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = place.output(["serve", "--listen", &address]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains(&address), "{}", text(&output.stderr));
    let public = place.output(["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(public.status.code(), Some(125));
    assert!(text(&public.stderr).contains("0.0.0.0"), "{}", text(&public.stderr));
}

#[test]
fn a_data_directory_that_cannot_be_one_is_refused_with_its_name() {
    let place = Place::new();
    fs::write(place.data_dir(), "a file").unwrap();
    let output = place.output(["run", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains(place.data_dir().to_str().unwrap()), "{}", text(&output.stderr));
    fs::remove_file(place.data_dir()).unwrap();

    fs::create_dir(place.data_dir()).unwrap();
    std::os::unix::fs::chown(place.data_dir(), Some(12345), None).unwrap();
    let output = place.output(["run", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains(place.data_dir().to_str().unwrap()), "{}", text(&output.stderr));
    fs::remove_dir_all(place.data_dir()).unwrap();
}

#[test]
fn a_data_directory_may_be_deeper_than_a_socket_address_is_long() {
    let place = Place::new();
    let deep = place.beside(&"d/".repeat(60));
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .arg("--data-dir")
        .arg(&deep)
        .args(["run", "--", "echo", "deep"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "deep\n", "{}", text(&output.stderr));
    fs::File::open(deep.join("lock")).unwrap().lock_shared().unwrap();
}

#[test]
fn doctor_tries_for_real() {
    let place = Place::new();
    let report = place.ok(["doctor"]);
    for what in ["data directory", "engine", "trial"] {
        assert!(report.contains(what), "{report}");
    }
    assert!(!report.contains("FAILED"), "{report}");
}
