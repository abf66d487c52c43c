//! The TLS provider. The whole program uses only one, so that only one C library is built.

use reqwest::ClientBuilder;

/// Makes ring the TLS provider of this process, unless it already has a provider.
pub fn install_provider() {
    // An error means that the process has a TLS provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Configures a client for plain HTTP. It does not read the certificates of the system.
///
/// Cargo builds reqwest once with the features of all crates, so even a client that never uses TLS would read them.
pub fn plain_http(builder: ClientBuilder) -> ClientBuilder {
    install_provider();
    builder.tls_certs_only([]).http1_only()
}
