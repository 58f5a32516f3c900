//! The end of a sandbox whose files are of no use any more.
#![cfg(target_os = "linux")]

use leasehold_engine::{Engine, EngineConfig, Limits, StartSpec, Template};
use leasehold_guest::Identity;

#[test]
fn a_destroyed_sandbox_leaves_nothing_and_its_id_starts_again() {
    let data = tempfile::Builder::new().prefix("leasehold-").tempdir().unwrap();
    let engine = Engine::open(EngineConfig::new(data.path())).unwrap();
    let spec = StartSpec {
        id: "i1".into(),
        template: Template::Host,
        layers: Vec::new(),
        limits: Limits::default(),
        identity: Identity::new("i1", "host"),
    };
    // Again and again, because the file system of the last one may still be let go of.
    for _ in 0..5 {
        let running = engine.start(&spec).unwrap();
        engine.destroy("i1", Some(&running.process)).unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{}", running.process.pid)).exists());
        assert_eq!(engine.leftovers().unwrap(), Vec::<String>::new());
    }
    engine.start(&spec).unwrap();
    engine.pause("i1").unwrap();
    engine.destroy("i1", None).unwrap();
    engine.destroy("i1", None).unwrap();
    assert_eq!(engine.leftovers().unwrap(), Vec::<String>::new());
}
