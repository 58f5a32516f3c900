//! Where the endpoint is and how to speak to it.

use std::path::PathBuf;

use http::{HeaderMap, HeaderName, HeaderValue};
use leasehold_http::{Secret, Timeouts, Transport, TransportOptions, Url};

use crate::{Client, ClientError};

/// E2B's own domain, the default.
pub const DEFAULT_DOMAIN: &str = "e2b.app";

/// Domains whose envd is reached at `sandbox.<domain>` instead of a host per sandbox, as E2B's SDKs 2.63 (Python) and 2.51
/// (JavaScript) have them.
pub(crate) const SHARED_EDGE_DOMAINS: &[&str] =
    &["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev", "e2b-tango.dev", "e2b-juliett.dev", "foxtrot-2.e2b.dev"];

/// Options of a [`Client`]. What is unset comes from the variables of E2B's SDKs if [`ClientOptions::from_env`] made it.
///
/// | option | variable | default |
/// | --- | --- | --- |
/// | `api_key` | `E2B_API_KEY` | none; required unless `unix_socket` is set |
/// | `domain` | `E2B_DOMAIN` | [`DEFAULT_DOMAIN`]; may carry a port |
/// | `api_url` | `E2B_API_URL` | `https://api.<domain>` |
/// | `sandbox_url` | `E2B_SANDBOX_URL` | a host per sandbox and port |
/// | `unix_socket` | – | none |
///
/// `E2B_DEBUG` is not read: it makes SDKs skip the control plane, and a client that pretends to create is of no use here.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ClientOptions {
    api_key: Option<Secret>,
    domain: Option<String>,
    api_url: Option<String>,
    sandbox_url: Option<String>,
    unix_socket: Option<PathBuf>,
    headers: Vec<(String, String)>,
    timeouts: Timeouts,
}

impl ClientOptions {
    /// Options from the `E2B_*` variables.
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Options from variables as `lookup` gives them; empty ones count as unset.
    pub fn from_variables(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name| lookup(name).filter(|value| !value.is_empty());
        Self {
            api_key: variable("E2B_API_KEY").map(Secret::new),
            domain: variable("E2B_DOMAIN"),
            api_url: variable("E2B_API_URL"),
            sandbox_url: variable("E2B_SANDBOX_URL"),
            ..Self::default()
        }
    }

    /// The key sent as `X-API-KEY`.
    pub fn api_key(mut self, key: impl Into<Secret>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// The endpoint's domain, for example `e2b.app` or `sbx.test:8443`.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// Base URL of the control plane, instead of `https://api.<domain>`.
    pub fn api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// One base URL for every port of every sandbox; the sandbox and port travel in headers.
    pub fn sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = Some(url.into());
        self
    }

    /// Reach control plane and sandboxes through this Unix socket, as `leasehold`'s own host offers it. The URLs are then not
    /// used.
    pub fn unix_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix_socket = Some(path.into());
        self
    }

    /// A further header for the control plane. It is never sent to a sandbox: what runs there must not see it.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Time limits of a call.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Makes the client. Opens no connection.
    ///
    /// # Errors
    /// `Configuration`: no API key, a URL that is none, a header that is none, no root certificates for `https`.
    pub fn build(self) -> Result<Client, ClientError> {
        let domain = self.domain.unwrap_or_else(|| DEFAULT_DOMAIN.to_owned());
        let (api_url, sandbox_url) = if self.unix_socket.is_some() {
            // The host's name is only a label here; the connection goes to the socket.
            let local = parse_url("unix socket", "http://localhost")?;
            (local.clone(), Some(local))
        } else {
            let api = self.api_url.unwrap_or_else(|| format!("https://api.{domain}"));
            let sandbox = self.sandbox_url.map(|url| parse_url("sandbox URL", &url)).transpose()?;
            (parse_url("API URL", &api)?, sandbox)
        };
        let secure = |url: &Url| url.scheme() == "https";
        let tls = secure(&api_url) || sandbox_url.as_ref().is_none_or(secure);

        let mut headers = HeaderMap::new();
        match &self.api_key {
            Some(key) if !key.is_empty() => {
                let mut value = HeaderValue::from_str(key.expose())
                    .map_err(|_| ClientError::configuration("the API key holds characters that no header can carry"))?;
                value.set_sensitive(true);
                headers.insert("x-api-key", value);
            }
            _ if self.unix_socket.is_some() => {}
            _ => return Err(ClientError::configuration("no API key: pass one or set E2B_API_KEY")),
        }
        for (name, value) in &self.headers {
            let wrong = || ClientError::configuration(format!("header {name:?} or its value is malformed"));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            headers.insert(name, HeaderValue::from_str(value).map_err(|_| wrong())?);
        }

        let options = TransportOptions::default()
            .unix_socket(self.unix_socket)
            .timeouts(self.timeouts)
            .tls(tls)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
        let transport = Transport::new(&options).map_err(|error| ClientError::configuration(error.to_string()))?;
        Ok(Client::assemble(transport, api_url, sandbox_url, domain, headers, self.api_key.unwrap_or_default()))
    }
}

fn parse_url(what: &str, text: &str) -> Result<Url, ClientError> {
    let url = Url::parse(text).map_err(|error| ClientError::configuration(format!("{what} {text:?}: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(ClientError::configuration(format!("{what} {text:?}: must begin with http:// or https://")));
    }
    Ok(url)
}
