//! Sets up TLS trust: the system's root certificates and those given by the user.

use std::{error::Error, io, sync::Arc};

use rustls::{
    ClientConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName},
};
use url::Host;

use crate::net::{tls_error, tls_roots};

/// Creates the configuration of a client that trusts the system's root certificates and these.
pub(crate) async fn config(
    own: &[CertificateDer<'static>],
) -> Result<ClientConfig, Box<dyn Error + Send + Sync>> {
    // Reading the system's certificates accesses the disk.
    let mut roots = tokio::task::spawn_blocking(tls_roots::of_the_system).await?;
    for root in own {
        roots.add(root.clone()).map_err(|error| {
            format!("the given root certificate is unusable: {}", tls_error::in_words(&error))
        })?;
    }
    if roots.is_empty() {
        return Err("this system has no root certificates (package `ca-certificates`)".into());
    }
    // `ClientConfig::builder` would panic in a program whose dependencies enable two providers and install
    // none.
    let provider =
        CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config?.with_root_certificates(roots).with_no_client_auth())
}

/// Returns whether a connection failed because the server's first bytes are not TLS.
pub(crate) fn is_not_tls(error: &io::Error) -> bool {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(fault, Some(rustls::Error::InvalidMessage(_)))
}

/// Returns the name that the certificate must have.
pub(crate) fn name(host: &Host<&str>) -> Result<ServerName<'static>, InvalidDnsNameError> {
    match host {
        Host::Domain(name) => ServerName::try_from((*name).to_owned()),
        Host::Ipv4(ip) => Ok(ServerName::from(std::net::IpAddr::from(*ip))),
        Host::Ipv6(ip) => Ok(ServerName::from(std::net::IpAddr::from(*ip))),
    }
}
