//! TLS settings: rustls with the ring provider, passed explicitly, and the machine's own roots.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

use crate::{TransportError, TransportKind};

/// The roots come from `rustls-native-certs` and not from a bundled list: it honours `SSL_CERT_FILE` and `SSL_CERT_DIR`, the
/// variables by which E2B's SDKs are pointed at a self-hosted endpoint with its own authority, and it follows the
/// administrator's trust decisions. Reading them takes milliseconds, so it is done only when an `https` URL is in play.
pub(crate) fn client_config(roots: bool) -> Result<ClientConfig, TransportError> {
    let mut store = RootCertStore::empty();
    if roots {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = store.add_parsable_certificates(found.certs);
        if added == 0 {
            let why = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
            return Err(TransportError::new(
                TransportKind::Invalid,
                &format!("no root certificates for https ({why}); install ca-certificates or set SSL_CERT_FILE"),
            ));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(store)
        .with_no_client_auth();
    // The HTTP library offers no protocols on a configuration that was made elsewhere.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
