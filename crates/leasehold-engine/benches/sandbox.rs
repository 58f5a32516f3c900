//! What a sandbox costs: time to start, pause, resume and stop, and memory while idle.
//!
//! `cargo bench -p leasehold-engine --bench sandbox`
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and has nothing better to do with a failure than to stop"
)]

use std::fs;
use std::time::{Duration, Instant};

use leasehold_engine::{Engine, EngineConfig, Limits, StartSpec, Template};
use leasehold_guest::Identity;

const ROUNDS: usize = 50;

fn main() {
    // `cargo test --benches` only wants to see that it works.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 2 };
    let directory = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let engine = Engine::open(EngineConfig::new(directory.path().join("data"))).unwrap();
    let opened = begin.elapsed();
    println!("machine: {} processors, Linux {}", std::thread::available_parallelism().unwrap(), release());
    println!("{:<34} {:>9} {:>9} {:>9}", "n = ".to_owned() + &rounds.to_string(), "median", "min", "p95");
    show("open, empty data directory (n = 1)", &mut [opened]);
    cycle(&engine, "", Limits::default(), rounds);
    let limits = Limits { memory_bytes: Some(512 << 20), cpu_millis: Some(1000), pids: Some(200) };
    cycle(&engine, ", with limits", limits, rounds);
    idle(&engine, rounds);
}

fn spec(id: String, limits: Limits) -> StartSpec {
    StartSpec { identity: Identity::new(id.as_str(), "host"), id, template: Template::Host, layers: Vec::new(), limits }
}

fn cycle(engine: &Engine, what: &str, limits: Limits, rounds: usize) {
    let mut times: [Vec<Duration>; 5] = Default::default();
    for number in 0..rounds {
        let id = format!("i{number}");
        let spec = spec(id.clone(), limits);
        let mut lap = |slot: usize, step: &dyn Fn()| {
            let begin = Instant::now();
            step();
            times[slot].push(begin.elapsed());
        };
        lap(0, &|| drop(engine.start(&spec).unwrap()));
        lap(1, &|| engine.pause(&id).unwrap());
        lap(2, &|| engine.resume(&id).unwrap());
        lap(3, &|| engine.stop(&id, None).unwrap());
        lap(4, &|| engine.remove(&id).unwrap());
    }
    for (name, times) in ["start to ready", "pause", "resume", "stop", "remove"].into_iter().zip(&mut times) {
        show(&format!("{name}{what}"), times);
    }
}

fn idle(engine: &Engine, count: usize) {
    let before = available();
    for number in 0..count {
        engine.start(&spec(format!("idle{number}"), Limits::default())).unwrap();
    }
    let used = before.saturating_sub(available());
    println!("MemAvailable per idle sandbox over {count}: {} KiB", used / u64::try_from(count).unwrap());
    for number in 0..count {
        let id = format!("idle{number}");
        engine.stop(&id, None).unwrap();
        engine.remove(&id).unwrap();
    }
}

fn show(name: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!("{name:<34} {:>6.2} ms {:>6.2} ms {:>6.2} ms", at(50), at(0), at(95));
}

fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim().to_owned()
}
