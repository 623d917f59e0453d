//! Loads the certificates that the operating system trusts.

use rustls::RootCertStore;

/// Reads the certificates from the disk. One that cannot be read is left out.
pub(crate) fn of_the_system() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "a system certificate could not be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    roots
}
