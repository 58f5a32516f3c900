//! Where a request goes: into a sandbox, or to the control plane. Pure.

use std::net::{IpAddr, Ipv6Addr};

use http::header::HOST;
use http::request::Parts;

use crate::ids::SandboxId;

/// The port of E2B's in-sandbox agent.
pub(crate) const ENVD_PORT: u16 = 49983;

/// The port of the shellctl daemon.
pub(crate) const SHELLCTL_PORT: u16 = 5004;

const SANDBOX_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Control,
    Port {
        id: SandboxId,
        port: u16,
    },
    /// A signed file URL that names no sandbox; its signature does.
    SignedFile,
    /// It means a sandbox, and says it wrongly.
    Bad(&'static str),
}

/// The host name a request was sent to, without the port.
pub(crate) fn host_name(request: &Parts) -> Option<&str> {
    let authority = match request.headers.get(HOST) {
        Some(host) => host.to_str().ok()?,
        None => request.uri.authority()?.as_str(),
    };
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map(|(address, _)| address);
    }
    Some(authority.rsplit_once(':').map_or(authority, |(name, _)| name))
}

/// Decides by headers first, then by the first label of the host name.
pub(crate) fn route(request: &Parts) -> Route {
    if request.headers.contains_key(SANDBOX_HEADER) || request.headers.contains_key(PORT_HEADER) {
        return by_headers(request);
    }
    match by_label(host_name(request).unwrap_or_default()) {
        Some(route) => route,
        None if is_signed_file(request) => Route::SignedFile,
        None => Route::Control,
    }
}

fn by_headers(request: &Parts) -> Route {
    let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
    let Some(id) = header(SANDBOX_HEADER) else { return Route::Bad("missing header E2b-Sandbox-Id") };
    let Some(port) = header(PORT_HEADER) else { return Route::Bad("missing header E2b-Sandbox-Port") };
    let Some(id) = SandboxId::parse(id) else { return Route::Bad("invalid sandbox id in header E2b-Sandbox-Id") };
    match parse_port(port) {
        Some(port) => Route::Port { id, port },
        None => Route::Bad("invalid port in header E2b-Sandbox-Port"),
    }
}

/// `PORT-ID.` and `PORT-ID-CLIENT.`; a label that does not begin with digits and a dash is an ordinary host name.
fn by_label(host: &str) -> Option<Route> {
    let (label, _domain) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let Some(port) = parse_port(port) else { return Some(Route::Bad("invalid host: the port is out of range")) };
    let id = id.to_ascii_lowercase();
    Some(match SandboxId::parse(&id) {
        Some(id) => Route::Port { id, port },
        None => Route::Bad("invalid host: not a sandbox id"),
    })
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port != 0)
}

/// `/files` with a signature: the control plane has no such path.
fn is_signed_file(request: &Parts) -> bool {
    request.uri.path() == "/files"
        && request.uri.query().is_some_and(|query| query.split('&').any(|pair| pair.starts_with("signature=")))
}

/// Which host names are ours on a TCP listener. Others may be a page that had its name point at us (DNS rebinding).
#[derive(Debug, Clone)]
pub(crate) struct OurNames {
    /// The configured domain, without a port.
    pub(crate) domain: Option<String>,
    /// The address we listen on.
    pub(crate) address: IpAddr,
}

impl OurNames {
    /// Whether `host` (without port) names this server.
    pub(crate) fn contains(&self, host: &str) -> bool {
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = match address {
                IpAddr::V6(six) => six.to_canonical(),
                four @ IpAddr::V4(_) => four,
            };
            // Listening on every address, whatever address the client used is ours; an address cannot be rebound.
            return address.is_loopback() || address == self.address || self.address.is_unspecified();
        }
        if host.parse::<Ipv6Addr>().is_ok() {
            return false;
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let under = |domain: &str| host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        under("localhost") || self.domain.as_deref().is_some_and(under)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn at(id: &str, port: u16) -> Route {
        Route::Port { id: SandboxId::parse(id).expect("an id"), port }
    }

    #[test]
    fn n4_ids_with_hyphens_and_port_like_parts_are_told_apart() {
        for (host, route) in [
            ("5004-iabc.localhost:3999", at("iabc", 5004)),
            ("5004-iabc-client1.sbx.test", at("iabc", 5004)),
            ("80-443.sbx.test", at("443", 80)),
            ("49983-IABC.sbx.test", at("iabc", 49983)),
            ("api.sbx.test", Route::Control),
            ("localhost:3999", Route::Control),
            ("my-host.sbx.test", Route::Control),
            ("127.0.0.1:3999", Route::Control),
            ("[::1]:3999", Route::Control),
        ] {
            assert_eq!(super::route(&parts("/x", &[("host", host)])), route, "{host}");
        }
        for host in ["0-iabc.x", "65536-iabc.x", "99999999999-iabc.x", "80-.x", "80-a-b-c.x", "80-i_b.x"] {
            assert!(matches!(super::route(&parts("/x", &[("host", host)])), Route::Bad(_)), "{host}");
        }
    }

    #[test]
    fn headers_win_over_the_host_name() {
        let headers = [("host", "80-other.x"), ("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "49983")];
        assert_eq!(super::route(&parts("/health", &headers)), at("iabc", 49983));
        for headers in [
            &[("e2b-sandbox-id", "iabc")][..],
            &[("e2b-sandbox-port", "80")],
            &[("e2b-sandbox-id", "../x"), ("e2b-sandbox-port", "80")],
            &[("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "+80")],
            &[("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "0")],
        ] {
            assert!(matches!(super::route(&parts("/health", headers)), Route::Bad(_)), "{headers:?}");
        }
    }

    #[test]
    fn a_signed_file_url_needs_no_sandbox() {
        let host = [("host", "127.0.0.1:3999")];
        assert_eq!(super::route(&parts("/files?path=a&signature=v1_x", &host)), Route::SignedFile);
        assert_eq!(super::route(&parts("/files?path=a", &host)), Route::Control);
    }

    #[test]
    fn only_our_names_are_ours() {
        let names = OurNames { domain: Some("sbx.test".to_owned()), address: "127.0.0.1".parse().expect("an address") };
        for ours in ["localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1", "api.sbx.test", "SBX.test.", "x.localhost"] {
            assert!(names.contains(ours), "{ours}");
        }
        for foreign in
            ["evil.example", "notsbx.test", "sbx.test.evil.example", "10.0.0.1", "", "localhost.evil.example"]
        {
            assert!(!names.contains(foreign), "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn no_host_name_panics(host in "[ -~]{0,80}") {
            let Ok(value) = http::HeaderValue::from_str(&host) else { return Ok(()) };
            let mut request = parts("/x", &[]);
            request.headers.insert(HOST, value);
            let _route = super::route(&request);
        }
    }
}
