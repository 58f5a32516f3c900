//! Name lookup without the C library.
//!
//! `/etc/hosts` and `/etc/resolv.conf` are read; without a usable `resolv.conf` a lookup that needs a server fails and says so.
//! Asking somebody's public resolver instead, as the HTTP library's own adapter does, would send names of internal hosts there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::OnceCell;

#[derive(Debug, Default, Clone)]
pub(crate) struct Hickory {
    /// Made at the first lookup: it needs a runtime, and most clients of one machine never look a name up.
    resolver: Arc<OnceCell<TokioResolver>>,
}

impl Resolve for Hickory {
    fn resolve(&self, name: Name) -> Resolving {
        let hickory = self.clone();
        Box::pin(async move {
            let resolver = hickory
                .resolver
                .get_or_try_init(|| async {
                    let mut builder = TokioResolver::builder_tokio()?;
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
