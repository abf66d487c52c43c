//! Who does the cryptography of TLS. One provider for the whole program, so that one library of C is built, not two.

use reqwest::ClientBuilder;

/// Makes ring the TLS provider of this process, unless it already has a provider.
pub fn install_provider() {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Makes a client one that speaks plain HTTP, and does not read the certificates of the system for it.
///
/// The features of a crate are those that anyone in the program wants of it: a client that never uses TLS is built with it.
pub fn plain_http(builder: ClientBuilder) -> ClientBuilder {
    install_provider();
    builder.tls_certs_only([]).http1_only()
}
