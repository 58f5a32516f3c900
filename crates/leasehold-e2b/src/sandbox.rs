//! A sandbox: where its ports are, and what can be done with it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use leasehold_http::{Secret, Url};

use crate::options::SHARED_EDGE_DOMAINS;
use crate::rpc::Rpc;
use crate::wire::SandboxBody;
use crate::{Client, ClientError, Files, PauseMode, Process, ProcessSpec, Processes, SandboxInfo, SnapshotInfo};

/// Name of the header that opens a sandbox's ports when public traffic is off.
pub const TRAFFIC_TOKEN_HEADER: HeaderName = HeaderName::from_static("e2b-traffic-access-token");

const SANDBOX_ID_HEADER: HeaderName = HeaderName::from_static("e2b-sandbox-id");
const SANDBOX_PORT_HEADER: HeaderName = HeaderName::from_static("e2b-sandbox-port");

/// How sandboxes of an endpoint are reached.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// One base for all of them.
    pub(crate) fixed: Option<Url>,
    /// Else a host per sandbox and port below this domain.
    pub(crate) domain: String,
}

impl Origin {
    pub(crate) fn host(&self, id: &str, port: u16) -> String {
        format!("{port}-{id}.{}", self.domain)
    }

    fn url(&self, host: &str) -> Result<Url, ClientError> {
        match &self.fixed {
            Some(url) => Ok(url.clone()),
            None => Url::parse(&format!("https://{host}"))
                .map_err(|error| ClientError::configuration(format!("sandbox host {host:?}: {error}"))),
        }
    }

    /// Where envd of a sandbox is.
    fn envd_url(&self, id: &str) -> Result<Url, ClientError> {
        if self.fixed.is_none() && SHARED_EDGE_DOMAINS.contains(&self.domain.as_str()) {
            return self.url(&format!("sandbox.{}", self.domain));
        }
        self.url(&self.host(id, envd::PORT))
    }

    /// The base URL and routing headers of a host as [`Origin::host`] made it.
    pub(crate) fn endpoint(&self, host: &str) -> Result<Endpoint, ClientError> {
        let mut headers = HeaderMap::new();
        let label = host.split('.').next().unwrap_or_default();
        if let Some((port, id)) = label.split_once('-')
            && let (Ok(port), Ok(id)) = (port.parse::<u16>(), HeaderValue::from_str(id))
        {
            headers.insert(SANDBOX_ID_HEADER, id);
            headers.insert(SANDBOX_PORT_HEADER, HeaderValue::from(port));
        } else if self.fixed.is_some() {
            return Err(ClientError::configuration(format!("sandbox host {host:?} does not begin with PORT-ID")));
        }
        Ok(Endpoint { url: self.url(host)?, headers })
    }
}

/// How one port of a sandbox is reached: send requests to `url` with `headers`, through the client's Unix socket if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// The base URL.
    pub url: Url,
    /// Headers that name sandbox and port. No token is among them.
    pub headers: HeaderMap,
}

/// A sandbox that was created or connected to. Dropping it does nothing to the sandbox.
#[derive(Debug, Clone)]
pub struct Sandbox {
    client: Client,
    id: String,
    template_id: String,
    envd_version: String,
    envd_access_token: Option<Secret>,
    traffic_token: Option<Secret>,
    origin: Origin,
}

impl Sandbox {
    pub(crate) fn new(client: Client, body: SandboxBody) -> Self {
        let origin = client.origin(body.domain.as_deref());
        Self {
            client,
            id: body.sandbox_id,
            template_id: body.template_id,
            envd_version: body.envd_version,
            envd_access_token: body.envd_access_token,
            traffic_token: body.traffic_access_token,
            origin,
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it was made from.
    #[must_use]
    pub fn template_id(&self) -> &str {
        &self.template_id
    }

    /// The version of its envd.
    #[must_use]
    pub fn envd_version(&self) -> &str {
        &self.envd_version
    }

    /// The token that opens envd, if it is secured.
    #[must_use]
    pub fn envd_access_token(&self) -> Option<&Secret> {
        self.envd_access_token.as_ref()
    }

    /// The token that opens its other ports, to be sent as [`TRAFFIC_TOKEN_HEADER`]; `None` when they are open to all.
    #[must_use]
    pub fn traffic_token(&self) -> Option<&Secret> {
        self.traffic_token.as_ref()
    }

    /// The host name of a port, `PORT-ID.DOMAIN`.
    #[must_use]
    pub fn host_for(&self, port: u16) -> String {
        self.origin.host(&self.id, port)
    }

    /// The base URL of a port. When the client has a sandbox URL or a Unix socket it is the same for every port, and the
    /// headers of [`Sandbox::endpoint_for`] tell them apart.
    ///
    /// # Errors
    /// `Configuration` when the endpoint's domain makes no host name.
    pub fn url_for(&self, port: u16) -> Result<Url, ClientError> {
        self.origin.url(&self.host_for(port))
    }

    /// How a port is reached.
    ///
    /// # Errors
    /// `Configuration` when the endpoint's domain makes no host name.
    pub fn endpoint_for(&self, port: u16) -> Result<Endpoint, ClientError> {
        self.origin.endpoint(&self.host_for(port))
    }

    /// The client it was made by.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its files, as the template's default user.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.rpc())
    }

    /// Its processes.
    #[must_use]
    pub fn processes(&self) -> Processes {
        Processes::new(self.rpc())
    }

    /// Starts a process and returns once it runs.
    ///
    /// # Errors
    /// `Rpc` when it cannot be started: `not_found` or `invalid_argument` for a missing program or directory,
    /// `unauthenticated` for an unknown user; `InvalidInput` for an argument that is no UTF-8.
    ///
    /// # Cancel safety
    /// When dropped the process may run; it goes on without a reader until it ends or its timeout passes.
    pub async fn start(&self, spec: &ProcessSpec) -> Result<Process, ClientError> {
        self.processes().start(spec).await
    }

    /// As [`Client::pause`].
    ///
    /// # Errors
    /// As [`Client::pause`].
    pub async fn pause(&self, mode: PauseMode) -> Result<(), ClientError> {
        self.client.pause(&self.id, mode).await
    }

    /// As [`Client::kill`].
    ///
    /// # Errors
    /// As [`Client::kill`].
    pub async fn kill(&self) -> Result<(), ClientError> {
        self.client.kill(&self.id).await
    }

    /// As [`Client::set_timeout`].
    ///
    /// # Errors
    /// As [`Client::set_timeout`].
    pub async fn set_timeout(&self, timeout: Duration) -> Result<(), ClientError> {
        self.client.set_timeout(&self.id, timeout).await
    }

    /// As [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn info(&self) -> Result<SandboxInfo, ClientError> {
        self.client.get(&self.id).await
    }

    /// As [`Client::create_snapshot`].
    ///
    /// # Errors
    /// As [`Client::create_snapshot`].
    pub async fn create_snapshot(&self, name: Option<&str>) -> Result<SnapshotInfo, ClientError> {
        self.client.create_snapshot(&self.id, name).await
    }

    fn rpc(&self) -> Rpc {
        let mut headers = HeaderMap::new();
        // Ids were checked when they came in.
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            headers.insert(SANDBOX_ID_HEADER, id);
        }
        headers.insert(SANDBOX_PORT_HEADER, HeaderValue::from(envd::PORT));
        if let Some(token) = &self.envd_access_token
            && let Ok(mut value) = HeaderValue::from_str(token.expose())
        {
            value.set_sensitive(true);
            headers.insert("x-access-token", value);
        }
        Rpc {
            transport: self.client.shared.transport.clone(),
            base: self.origin.envd_url(&self.id),
            headers,
            token: self.envd_access_token.clone().unwrap_or_default(),
            user: None,
        }
    }
}
