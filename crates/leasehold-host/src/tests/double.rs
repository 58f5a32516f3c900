//! A double of the engine: sandboxes that are entries in a map, and a guest that is a thread.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::port::{Door, EngineFacts, Failure, ProcessId, Running, Sandboxes, StartSpec, Usage};

struct Fake {
    process: ProcessId,
    frozen: bool,
    boot_id: String,
    /// The process lives as long as this end is open.
    life: OwnedFd,
}

#[derive(Default)]
struct State {
    running: BTreeMap<String, Fake>,
    files: BTreeMap<String, StartSpec>,
    layers: Vec<String>,
    calls: Vec<String>,
    starts: u64,
    most: usize,
    failing: HashMap<&'static str, usize>,
    held: HashMap<&'static str, bool>,
}

#[derive(Default)]
pub(crate) struct Double {
    state: Mutex<State>,
    changed: Condvar,
}

impl Double {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    /// Makes the next `times` calls of an operation fail.
    pub(crate) fn fail(&self, operation: &'static str, times: usize) {
        self.lock().failing.insert(operation, times);
    }

    /// Makes calls of an operation wait until [`Self::release`].
    pub(crate) fn hold(&self, operation: &'static str) {
        self.lock().held.insert(operation, true);
    }

    pub(crate) fn release(&self, operation: &'static str) {
        self.lock().held.remove(operation);
        self.changed.notify_all();
    }

    /// Ends a sandbox's process, as if it had ended by itself.
    pub(crate) fn end_process(&self, id: &str) {
        let mut state = self.lock();
        let fake = state.running.remove(id).expect("it runs");
        drop(fake.life);
    }

    pub(crate) fn alive(&self) -> Vec<String> {
        self.lock().running.keys().cloned().collect()
    }

    pub(crate) fn frozen(&self, id: &str) -> bool {
        self.lock().running[id].frozen
    }

    pub(crate) fn with_files(&self) -> Vec<String> {
        self.lock().files.keys().cloned().collect()
    }

    pub(crate) fn layers(&self) -> Vec<String> {
        self.lock().layers.clone()
    }

    /// The most sandboxes that ran, thawed, at one time.
    pub(crate) fn most(&self) -> usize {
        self.lock().most
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// The spec that a sandbox was last started with.
    pub(crate) fn spec(&self, id: &str) -> StartSpec {
        self.lock().files[id].clone()
    }

    fn enter(&self, operation: &'static str, id: &str) -> Result<MutexGuard<'_, State>, Failure> {
        let mut state = self.lock();
        state.calls.push(format!("{operation} {id}"));
        while state.held.contains_key(operation) {
            state = self.changed.wait(state).expect("no test panics with the lock");
        }
        if let Some(times) = state.failing.get_mut(operation).filter(|times| **times > 0) {
            *times -= 1;
            return Err(Failure::internal(format!("{operation} was told to fail")));
        }
        Ok(state)
    }
}

impl State {
    fn count(&mut self) {
        self.most = self.most.max(self.running.values().filter(|fake| !fake.frozen).count());
    }

    fn fake(&mut self, id: &str) -> Result<&mut Fake, Failure> {
        self.running.get_mut(id).ok_or_else(|| Failure::internal(format!("{id} does not run")))
    }
}

impl Sandboxes for Double {
    fn facts(&self) -> EngineFacts {
        EngineFacts {
            name: "double".to_owned(),
            version: "0".to_owned(),
            isolation: "weak".to_owned(),
            id_mode: "none".to_owned(),
            cgroup: "none".to_owned(),
            degraded: Vec::new(),
        }
    }

    fn start(&self, spec: &StartSpec) -> Result<Running, Failure> {
        let mut state = self.enter("start", &spec.id)?;
        if state.running.contains_key(&spec.id) {
            return Err(Failure::internal("it runs already"));
        }
        for layer in &spec.layers {
            assert!(state.layers.contains(layer), "layer {layer} is not stored");
        }
        let (pidfd, life) = rustix::pipe::pipe().expect("a pipe");
        state.starts += 1;
        let process = ProcessId { pid: 1000, start_time: state.starts };
        let boot_id = format!("boot-{}", state.starts);
        state.files.insert(spec.id.clone(), spec.clone());
        state.running.insert(spec.id.clone(), Fake { process, frozen: false, boot_id: boot_id.clone(), life });
        state.count();
        Ok(Running { process, pidfd, boot_id })
    }

    fn pause(&self, id: &str) -> Result<(), Failure> {
        self.enter("pause", id)?.fake(id)?.frozen = true;
        Ok(())
    }

    fn resume(&self, id: &str) -> Result<(), Failure> {
        let mut state = self.enter("resume", id)?;
        state.fake(id)?.frozen = false;
        state.count();
        Ok(())
    }

    fn stop(&self, id: &str, _process: Option<ProcessId>) -> Result<(), Failure> {
        self.enter("stop", id)?.running.remove(id);
        Ok(())
    }

    fn remove(&self, id: &str) -> Result<(), Failure> {
        let mut state = self.enter("remove", id)?;
        assert!(!state.running.contains_key(id), "removed while it runs");
        state.files.remove(id);
        Ok(())
    }

    fn snapshot(&self, id: &str) -> Result<String, Failure> {
        let mut state = self.enter("snapshot", id)?;
        assert!(state.fake(id)?.frozen, "a snapshot needs a frozen sandbox");
        let layer = format!("sha256:{}", state.calls.len());
        state.layers.push(layer.clone());
        Ok(layer)
    }

    fn delete_layer(&self, digest: &str) -> Result<(), Failure> {
        self.enter("delete_layer", digest)?.layers.retain(|layer| layer != digest);
        Ok(())
    }

    fn adopt(&self, id: &str, process: ProcessId) -> Result<Option<Running>, Failure> {
        let mut state = self.enter("adopt", id)?;
        let Some(fake) = state.running.get_mut(id).filter(|fake| fake.process == process) else { return Ok(None) };
        let (pidfd, life) = rustix::pipe::pipe().expect("a pipe");
        fake.life = life;
        Ok(Some(Running { process, pidfd, boot_id: fake.boot_id.clone() }))
    }

    fn leftovers(&self) -> Result<Vec<String>, Failure> {
        Ok(self.enter("leftovers", "")?.files.keys().cloned().collect())
    }

    fn connect(&self, id: &str, door: Door) -> io::Result<UnixStream> {
        if !self.lock().running.contains_key(id) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = UnixStream::pair()?;
        std::thread::spawn(move || {
            let served = if door == Door::Control { control(&theirs) } else { http(theirs) };
            drop(served);
        });
        Ok(ours)
    }

    fn usage(&self, _id: &str) -> Result<Usage, Failure> {
        Ok(Usage::default())
    }
}

/// Answers every request with its own head; `/cut` with a Connect stream that does not end, `/close` with an end.
fn http(stream: UnixStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().expect("a number");
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if head.contains("/close") {
            return Ok(());
        }
        if head.contains("/cut") {
            writer.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\ntransfer-encoding: chunked\r\n\r\n",
            )?;
            writer.write_all(b"7\r\n\x00\x00\x00\x00\x02{}\r\n")?;
            let mut end = [0];
            reader.read_exact(&mut end)?;
            return Ok(());
        }
        head.push_str(&String::from_utf8_lossy(&body));
        write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len())?;
    }
}

fn control(stream: &UnixStream) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let request: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if request["op"] == "sync" {
        sendmsg(stream, &[IoSlice::new(b"{\"ok\":true}\n")], &mut ancillary, SendFlags::empty())?;
        return Ok(());
    }
    let port = u16::try_from(request["port"].as_u64().expect("a port")).expect("a port");
    match std::net::TcpStream::connect(("127.0.0.1", port)) {
        Ok(inside) => {
            let descriptors = [inside.as_fd()];
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
            sendmsg(stream, &[IoSlice::new(b"{\"ok\":true}\n")], &mut ancillary, SendFlags::empty())?;
        }
        Err(_) => {
            let refused = b"{\"ok\":false,\"error\":\"refused\"}\n";
            sendmsg(stream, &[IoSlice::new(refused)], &mut ancillary, SendFlags::empty())?;
        }
    }
    Ok(())
}
