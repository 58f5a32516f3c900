//! Sandboxes that really run.
#![cfg(target_os = "linux")]

use leasehold_engine::{Engine, EngineConfig, Limits, StartSpec, Template};
use leasehold_guest::Identity;

#[test]
fn a_sandbox_starts_and_stops() {
    let data = tempfile::tempdir().unwrap();
    let engine = Engine::open(EngineConfig::new(data.path())).unwrap();
    println!("{:#?}", engine.report());
    let spec = StartSpec {
        id: "i1".into(),
        template: Template::Host,
        layers: Vec::new(),
        limits: Limits::default(),
        identity: Identity::new("i1", "host"),
    };
    for _ in 0..10 {
        let begin = std::time::Instant::now();
        let running = engine.start(&spec).unwrap();
        println!("{running:?} {:?}", begin.elapsed());
        let begin = std::time::Instant::now();
        engine.pause("i1").unwrap();
        engine.resume("i1").unwrap();
        println!("pause+resume {:?} {:?}", begin.elapsed(), engine.usage("i1"));
        let begin = std::time::Instant::now();
        engine.stop("i1", None).unwrap();
        println!("stop {:?}", begin.elapsed());
    }
    engine.remove("i1").unwrap();
}
