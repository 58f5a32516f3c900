//! Name lookup without the C library.
//!
//! `/etc/hosts` and `/etc/resolv.conf` are read. Without a usable `resolv.conf` only what needs no server is found: `localhost` and
//! `/etc/hosts`. Asking somebody's public resolver instead, as the HTTP library's own adapter does, would send names of internal
//! hosts there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::OnceCell;

#[derive(Debug, Default, Clone)]
pub(crate) struct Hickory {
    /// Made at the first lookup: it needs a runtime, and most clients of one machine never look a name up.
    resolver: Arc<OnceCell<TokioResolver>>,
}

fn without_servers() -> hickory_resolver::ResolverBuilder<TokioRuntimeProvider> {
    let none = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
    TokioResolver::builder_with_config(none, TokioRuntimeProvider::default())
}

impl Resolve for Hickory {
    fn resolve(&self, name: Name) -> Resolving {
        let hickory = self.clone();
        Box::pin(async move {
            let resolver = hickory
                .resolver
                .get_or_try_init(|| async {
                    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|_| without_servers());
                    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
                    builder.build()
                })
                .await?;
            let found: Vec<IpAddr> = resolver.lookup_ip(name.as_str()).await?.iter().collect();
            let addresses: Addrs = Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lookup(hickory: &Hickory, name: &str) -> Result<Vec<IpAddr>, String> {
        let found = hickory.resolve(name.parse().unwrap()).await;
        found.map(|addresses| addresses.map(|address| address.ip()).collect()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn localhost_and_names_below_it_are_loopback() {
        for name in ["localhost", "5004-abc.localhost"] {
            let found = lookup(&Hickory::default(), name).await.unwrap();
            assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{name}: {found:?}");
        }
    }

    #[tokio::test]
    async fn names_of_the_hosts_file_are_found() {
        let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let hickory = Hickory::default();
        for line in hosts.lines().map(|line| line.split('#').next().unwrap_or_default()) {
            let mut words = line.split_whitespace();
            let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
            for name in words.filter(|name| !name.ends_with("localhost")) {
                let found = lookup(&hickory, name).await.unwrap();
                // The same name may stand in several lines; only the family that has an entry is asked first.
                assert!(
                    found.iter().any(|ip| *ip == address || ip.is_ipv4() != address.is_ipv4()),
                    "{name}: {found:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn without_servers_local_names_still_work_and_others_fail() {
        let resolver = without_servers().build().unwrap();
        let hickory = Hickory { resolver: Arc::new(OnceCell::new_with(Some(resolver))) };
        assert!(lookup(&hickory, "localhost").await.unwrap().iter().all(IpAddr::is_loopback));
        assert!(lookup(&hickory, "leasehold.invalid").await.is_err());
    }

    #[tokio::test]
    async fn a_client_reaches_localhost_by_name() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = [0; 4096];
            let count = stream.read(&mut seen).await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
            String::from_utf8_lossy(&seen[..count]).into_owned()
        });
        let transport = crate::Transport::new(&crate::TransportOptions::default()).unwrap();
        let call = crate::Call::new(http::Method::GET, crate::Url::parse(&url).unwrap());
        assert_eq!(transport.send(call).await.unwrap().status(), 204);
        assert!(server.await.unwrap().contains("host: localhost:"));
    }
}
