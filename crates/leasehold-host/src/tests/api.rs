//! Every route's statuses and texts.

use serde_json::{Value, json};

use super::Stage;
use super::client::{Client, request};

const MISSING: &str = "i00000000000000000000";

#[tokio::test]
async fn a_create_answers_what_the_sdks_need() {
    let stage = Stage::new().await;
    let body =
        json!({"templateID": "base", "metadata": {}, "envVars": {"A": "1"}, "network": {"allowPublicTraffic": false}});
    let made = stage.client.post("/v2/sandboxes", body).await.expect(201).json();
    let id = made["sandboxID"].as_str().expect("an id");
    assert!(id.len() == 21 && id.starts_with('i'));
    assert_eq!(made["templateID"], "base");
    assert_eq!(made["envdVersion"], "0.6.13");
    assert_eq!(made["domain"], "localhost");
    assert_eq!(made["envdAccessToken"].as_str().expect("secured").len(), 40);
    assert_eq!(made["trafficAccessToken"].as_str().expect("not public").len(), 40);
    let identity = stage.engine.spec(id).identity;
    assert_eq!((identity.envs["A"].as_str(), identity.generation), ("1", 1));
    let detail = stage.client.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    for field in ["startedAt", "endAt", "clientID", "cpuCount", "memoryMB", "diskSizeMB"] {
        assert!(!detail[field].is_null(), "{field}");
    }
    assert_eq!(detail["envdAccessToken"], made["envdAccessToken"]);
    assert_eq!(detail["lifecycle"], json!({"autoResume": false, "onTimeout": "kill"}));
    assert_eq!(detail["state"], "running");
    assert_eq!(detail["allowInternetAccess"], false);
    // With the client's id, as older clients name sandboxes.
    stage.client.get(&format!("/sandboxes/{id}-leasehold")).await.expect(200);
    stage.end().await;
}

#[tokio::test]
async fn both_generations_create_with_their_own_defaults() {
    let stage = Stage::new().await;
    let seconds = |detail: &Value| {
        let at = |field: &str| crate::wall::Wall::parse(detail[field].as_str().expect("a time")).expect("RFC 3339");
        at("endAt").since(at("startedAt")).as_secs()
    };
    for (path, expected) in [("/v2/sandboxes", 300), ("/sandboxes", 15)] {
        let made = stage.client.post(path, json!({"templateID": "base"})).await.expect(201).json();
        let id = made["sandboxID"].as_str().expect("an id");
        let detail = stage.client.get(&format!("/sandboxes/{id}")).await.expect(200).json();
        assert_eq!(seconds(&detail), expected, "{path}");
        assert_eq!(made["envdAccessToken"].is_null(), path == "/sandboxes");
        assert!(made["trafficAccessToken"].is_null());
    }
    let old = json!({"templateID": "base", "timeout": 300, "secure": true, "allow_internet_access": true});
    assert!(stage.client.post("/sandboxes", old).await.expect(201).json()["envdAccessToken"].is_string());
    stage.end().await;
}

#[tokio::test]
async fn l5_timeouts_that_are_no_life_are_refused() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let paused = stage.client.create(json!({"templateID": "base"})).await;
    stage.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.expect(204);
    let too_small = "Timeout must be greater than 0";
    let too_large = "Timeout cannot be greater than 24 hours";
    for (seconds, text) in [(0_i64, too_small), (-1, too_small), (1 << 31, too_large), (86_401, too_large)] {
        for (path, body) in [
            ("/v2/sandboxes".to_owned(), json!({"templateID": "base", "timeout": seconds})),
            ("/sandboxes".to_owned(), json!({"templateID": "base", "timeout": seconds})),
            (format!("/sandboxes/{id}/connect"), json!({"timeout": seconds})),
            (format!("/v2/sandboxes/{paused}/connect"), json!({"timeout": seconds})),
            (format!("/sandboxes/{paused}/resume"), json!({"timeout": seconds})),
            (format!("/sandboxes/{id}/refreshes"), json!({"duration": seconds})),
        ] {
            let answer = stage.client.post(&path, body).await.expect(400);
            assert_eq!(answer.message(), text, "{path} {seconds}");
        }
    }
    let set = format!("/sandboxes/{id}/timeout");
    assert_eq!(
        stage.client.post(&set, json!({"timeout": -1})).await.expect(400).message(),
        "Timeout must not be negative"
    );
    assert_eq!(stage.client.post(&set, json!({"timeout": 86_401})).await.expect(400).message(), too_large);
    assert_eq!(stage.engine.alive().len(), 2);
    stage.end().await;
}

#[tokio::test]
async fn what_is_not_built_is_refused_by_name() {
    let stage = Stage::new().await;
    for (extra, named) in [
        (json!({"mcp": {"x": {}}}), "mcp"),
        (json!({"iam": {"tokens": {"A": {}}}}), "iam"),
        (json!({"volumeMounts": [{"name": "v", "path": "/v"}]}), "volumeMounts"),
        (json!({"network": {"allowOut": ["1.1.1.1"]}}), "network.allowOut"),
        (json!({"network": {"egressProxy": {"address": "x"}}}), "network.egressProxy"),
        (json!({"network": {"maskRequestHost": "x"}}), "network.maskRequestHost"),
        (json!({"network": {"httpsPorts": [1]}}), "network.httpsPorts"),
        (json!({"network": {"dnsServers": ["1.1.1.1"]}}), "network.dnsServers"),
        (json!({"network": {"rules": {"x": []}}}), "network.rules"),
        (json!({"surprise": 1}), "surprise"),
        (json!({"autoPauseMemory": false}), "autoPauseMemory=false only applies when autoPause is true."),
        (
            json!({"autoPause": true, "autoPauseMemory": false, "autoResume": {"enabled": true}}),
            "autoPauseMemory=false (filesystem-only auto-pause) cannot be combined with autoResume",
        ),
        (json!({"envVars": {"A=B": "x"}}), "A=B"),
        (json!({"envVars": {"": "x"}}), "variable name"),
        (json!({"envVars": {"A": "x\0"}}), "NUL"),
        (json!({"metadata": {"a": 1}}), "invalid type"),
        (json!({"templateID": "../etc"}), "Invalid template reference"),
        (json!({"templateID": ""}), "Invalid template reference"),
    ] {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let message = stage.client.post("/v2/sandboxes", body).await.expect(400).message();
        assert!(message.contains(named), "{message:?} does not name {named:?}");
    }
    let unsecured = json!({"templateID": "base", "secure": false, "network": {"allowPublicTraffic": false}});
    let message = stage.client.post("/sandboxes", unsecured).await.expect(400).message();
    assert_eq!(
        message,
        "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag."
    );
    // Empty values ask for nothing.
    let empty = json!({"templateID": "base", "mcp": null, "volumeMounts": [], "network": {"rules": {}, "denyOut": ["0.0.0.0/0"]}});
    stage.client.create(empty).await;
    let keyed = request("POST", "/v2/sandboxes", &[("idempotency-key", "a")], json!({"templateID": "base"}));
    assert!(stage.client.send(keyed).await.expect(400).message().contains("Idempotency-Key"));
    assert_eq!(stage.engine.alive().len(), 1);
    stage.end().await;
}

#[tokio::test]
async fn unknown_templates_sandboxes_and_routes_are_told_apart() {
    let stage = Stage::new().await;
    let answer = stage.client.post("/v2/sandboxes", json!({"templateID": "nope"})).await.expect(404);
    assert_eq!(answer.message(), "Template 'nope' not found");
    let missing = format!("Sandbox \"{MISSING}\" doesn't exist or you don't have access to it");
    for (method, tail, body) in [
        ("GET", "", Value::Null),
        ("DELETE", "", Value::Null),
        ("POST", "/pause", Value::Null),
        ("POST", "/connect", json!({"timeout": 9})),
        ("POST", "/resume", Value::Null),
        ("POST", "/timeout", json!({"timeout": 9})),
        ("POST", "/refreshes", Value::Null),
        ("POST", "/snapshots", Value::Null),
    ] {
        let answer = stage.client.call(method, &format!("/sandboxes/{MISSING}{tail}"), body.clone()).await.expect(404);
        assert_eq!(answer.message(), missing);
        // An empty id with nothing behind it is no route of this kind.
        for bad in [if tail.is_empty() { "%20" } else { "" }, "..%2Fx", "a-b-c", "A", "%ff", "%00", "i.j"] {
            stage.client.call(method, &format!("/sandboxes/{bad}{tail}"), body.clone()).await.expect(400).message();
        }
    }
    for (method, path) in [
        ("GET", "/nothing"),
        ("POST", "/sandboxes/x/fork"),
        ("PUT", "/sandboxes/x/network"),
        ("GET", "/sandboxes/x/metrics"),
        ("PATCH", "/sandboxes"),
    ] {
        let answer = stage.client.call(method, path, Value::Null).await.expect(501);
        assert_eq!(answer.headers["should-retry"], "false");
        assert_eq!(answer.message(), format!("this host has no {method} {path}"));
    }
    assert_eq!(stage.client.get("/health").await.expect(200).text(), "Health check successful");
    stage.end().await;
}

#[tokio::test]
async fn pause_resume_and_kill_say_what_was_the_case() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let at = |tail: &str| format!("/sandboxes/{id}{tail}");
    let resume = stage.client.post(&at("/resume"), Value::Null).await.expect(409);
    assert_eq!(resume.message(), format!("Sandbox {id} is already running"));
    stage.client.post(&at("/connect"), json!({"timeout": 9})).await.expect(200);
    stage.client.post(&at("/pause"), Value::Null).await.expect(204);
    let again = stage.client.post(&at("/pause"), json!({})).await.expect(409);
    assert_eq!(again.message(), format!("Error pausing sandbox - sandbox '{id}' is already paused"));
    for tail in ["/timeout", "/refreshes", "/snapshots"] {
        let body = if tail == "/timeout" { json!({"timeout": 9}) } else { Value::Null };
        stage.client.post(&at(tail), body).await.expect(404);
    }
    stage.client.post(&at("/resume"), Value::Null).await.expect(201);
    stage.client.post(&at("/pause"), json!({"requireHealthyGuest": true})).await.expect(400);
    stage.client.post(&at("/connect"), json!({"timeout": 9, "autoPause": true})).await.expect(400);
    stage.client.post(&at("/pause"), json!({"nonsense": 1})).await.expect(400);
    stage.client.post(&at("/pause"), json!({})).await.expect(204);
    stage.client.delete(&at("")).await.expect(204);
    stage.client.delete(&at("")).await.expect(404);
    stage.client.post(&at("/connect"), json!({"timeout": 9})).await.expect(404);
    stage.end().await;
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let stage = Stage::new().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let odd = if n % 2 == 1 { "c&d" } else { "e" };
        ids.push(
            stage.client.create(json!({"templateID": "base", "metadata": {"a b": odd, "n": n.to_string()}})).await,
        );
    }
    ids.reverse();
    stage.client.post(&format!("/sandboxes/{}/pause", ids[0]), json!({})).await.expect(204);
    let listed = async |query: &str| {
        let answer = stage.client.get(&format!("/v2/sandboxes?{query}")).await.expect(200);
        let ids: Vec<String> = answer
            .json()
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| entry["sandboxID"].as_str().expect("an id").to_owned())
            .collect();
        (ids, answer.headers.get("x-next-token").map(|token| token.to_str().expect("text").to_owned()))
    };
    assert_eq!(listed("").await, (ids.clone(), None));
    assert_eq!(listed("metadata=a%252520b%3Dc%252526d").await.0, [ids[1].clone(), ids[3].clone()]);
    assert_eq!(listed("metadata=a%252520b%3Dc%252526d%26n%3D1").await.0, [ids[3].clone()]);
    assert_eq!(listed("state=paused").await.0, [ids[0].clone()]);
    assert_eq!(listed("state=running,paused").await.0.len(), 5);
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let (page, next) = listed(&format!("limit=2&nextToken={token}")).await;
        assert!(page.len() <= 2);
        seen.extend(page);
        let Some(next) = next else { break };
        token = next;
    }
    assert_eq!(seen, ids);
    assert_eq!(stage.client.get("/sandboxes").await.expect(200).json().as_array().expect("a list").len(), 4);
    for query in ["limit=0", "limit=101", "state=dead", "nextToken=x"] {
        stage.client.get(&format!("/v2/sandboxes?{query}")).await.expect(400).message();
    }
    stage.end().await;
}

#[tokio::test]
async fn snapshots_are_made_listed_used_and_deleted() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let make =
        async |body: Value| stage.client.post(&format!("/sandboxes/{id}/snapshots"), body).await.expect(201).json();
    let unnamed = make(json!({})).await;
    let first = make(json!({"name": "home"})).await;
    let named = make(json!({"name": "leasehold/home:v2"})).await;
    assert!(unnamed["snapshotID"].as_str().expect("an id").ends_with(":default"));
    assert_eq!(unnamed["names"], json!([]));
    assert_eq!(first["snapshotID"], "leasehold/home:default");
    assert_eq!(named, json!({"snapshotID": "leasehold/home:v2", "names": ["leasehold/home:v2"]}));
    let list = async |query: &str| stage.client.get(&format!("/snapshots?{query}")).await.expect(200).json();
    assert_eq!(list("").await, json!([named, first, unnamed]));
    assert_eq!(list("name=home").await, json!([named, first]));
    assert_eq!(list("name=nobody").await, json!([]));
    assert_eq!(list(&format!("sandboxID={id}")).await.as_array().expect("a list").len(), 3);
    assert_eq!(list(&format!("sandboxID={MISSING}")).await, json!([]));

    let child = stage.client.create(json!({"templateID": "leasehold/home:v2"})).await;
    let layers = stage.engine.spec(&child).layers;
    assert_eq!(layers.len(), 1);
    // In use, it may be deleted; its layer stays until the last user is gone.
    stage.client.delete("/templates/leasehold%2Fhome%3Av2").await.expect(204);
    stage.client.delete("/templates/leasehold%2Fhome%3Av2").await.expect(404);
    let gone = stage.client.post("/v2/sandboxes", json!({"templateID": "leasehold/home:v2"})).await.expect(404);
    assert_eq!(gone.message(), "Template 'leasehold/home:v2' not found");
    assert!(stage.engine.layers().contains(&layers[0]));
    let grandchild =
        stage.client.post(&format!("/sandboxes/{child}/snapshots"), json!({"name": "home"})).await.expect(201);
    assert_eq!(grandchild.json()["snapshotID"], "leasehold/home:default");
    stage.client.delete(&format!("/sandboxes/{child}")).await.expect(204);
    assert!(stage.engine.layers().contains(&layers[0]));
    stage.client.delete("/templates/leasehold%2Fhome").await.expect(204);
    let unnamed = unnamed["snapshotID"].as_str().expect("an id").replace(':', "%3A");
    stage.client.delete(&format!("/templates/{unnamed}")).await.expect(204);
    assert_eq!(list("").await, json!([]));
    assert_eq!(stage.engine.layers(), Vec::<String>::new());

    stage.client.delete("/templates/base").await.expect(400);
    for name in ["base", "other/home", "a b", ""] {
        stage.client.post(&format!("/sandboxes/{id}/snapshots"), json!({"name": name})).await.expect(400).message();
    }
    stage.client.post(&format!("/sandboxes/{id}/snapshots"), json!({"memory": true})).await.expect(400);
    stage.end().await;
}

#[tokio::test]
async fn tcp_needs_the_key_our_name_and_no_web_page() {
    let stage = Stage::with(|config| config.listen = Some(([127, 0, 0, 1], 0).into())).await;
    let address = stage.host.local_addr().expect("listens");
    let tcp = Client::Tcp(address);
    let key = stage.host.api_key().expect("has one").expose().to_owned();
    assert_eq!(std::fs::read_to_string(stage.dir.path().join("api-key")).expect("there").trim(), key);
    let get = async |headers: &[(&str, &str)]| tcp.send(request("GET", "/v2/sandboxes", headers, Value::Null)).await;
    get(&[]).await.expect(401).message();
    get(&[("x-api-key", "wrong")]).await.expect(401).message();
    get(&[("x-api-key", &key)]).await.expect(200);
    get(&[("authorization", &format!("Bearer {key}"))]).await.expect(200);
    get(&[("x-api-key", &key), ("host", "evil.example")]).await.expect(421).message();
    get(&[("x-api-key", &key), ("origin", "http://localhost")]).await.expect(403).message();
    tcp.get("/health").await.expect(200);
    let made = tcp.send(request("POST", "/v2/sandboxes", &[("x-api-key", &key)], json!({"templateID": "base"}))).await;
    assert_eq!(made.expect(201).json()["domain"], format!("localhost:{}", address.port()));
    // The Unix socket asks for no key, and knows no foreign names.
    stage.client.get("/v2/sandboxes").await.expect(200);
    stage.end().await;
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    use crate::{Host, HostConfig, HostError};
    let dir = tempfile::tempdir().expect("a directory");
    let refused = async |adjust: &dyn Fn(&mut HostConfig)| {
        let mut config = HostConfig::new(dir.path());
        adjust(&mut config);
        Host::start_with(config, |_| panic!("no engine is opened")).await.expect_err("refused")
    };
    let public = refused(&|config| config.listen = Some(([0, 0, 0, 0], 0).into())).await;
    assert!(matches!(public, HostError::PublicAddress { .. }), "{public}");
    assert!(matches!(refused(&|config| config.max_running = 0).await, HostError::Config { field: "max_running", .. }));
    assert!(matches!(
        refused(&|config| config.domain = Some(String::new())).await,
        HostError::Config { field: "domain", .. }
    ));
    let empty = refused(&|config| config.api_key = Some(crate::Secret::new(""))).await;
    assert!(matches!(empty, HostError::Config { field: "api_key", .. }));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let in_use = refused(&|config| config.listen = Some(address)).await;
    assert!(matches!(in_use, HostError::Listen { .. }), "{in_use}");
}
