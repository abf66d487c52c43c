//! Sends one message as mail over SMTP. Errors name the cause and never the address of the server, which can be a secret.
//!
//! Mail is sent over TLS, except to a server on this machine. A password is never sent over an unencrypted connection if the server offers TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use lettre::address::Envelope;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, MessageBuilder};
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use reqwest::Url;
use rustls::ClientConfig;
use rustls_platform_verifier::ConfigVerifierExt as _;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Attempt;
use super::http::{CONNECT_TIMEOUT, connection_failure};
use crate::settings::Secret;

/// Maximum size of all answers of a server for one mail, including the TLS handshake. They usually take less than 10 KiB.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Timeout of QUIT. The server has already accepted the mail then, and its answer is ignored.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum length of a subject, so that it fits on one line in a list of mails.
const SUBJECT_CHARS_MAX: usize = 150;

/// A mail, and the server that it is sent to.
#[derive(Debug)]
pub(super) struct Mail {
    server: MailServer,
    login: Option<Login>,
    envelope: Envelope,
    bytes: Vec<u8>,
}

/// The text of a mail, its sender and its recipients.
pub(super) struct Content<'a> {
    pub from: &'a str,
    pub recipients: &'a [String],
    pub subject: &'a str,
    pub body: String,
    pub time: SystemTime,
}

/// User and password for a mail server.
#[derive(Debug)]
pub(super) struct Login {
    pub user: String,
    pub password: Secret,
}

struct MailServer {
    host: String,
    port: u16,
    security: Security,
    hello: ClientId,
}

/// Hides the host, which can be a secret.
impl std::fmt::Debug for MailServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MailServer({:?})", self.security)
    }
}

/// How a connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    /// TLS from the first byte: `smtps://`.
    Implicit,
    /// STARTTLS. If the server does not offer it, no mail is sent.
    StartTls,
    /// STARTTLS if the server offers it: for a server on this machine that gets a password.
    IfOffered,
    /// No TLS: for a server on this machine that gets no password. Its certificate is often self-signed, so STARTTLS would fail.
    Plain,
}

impl Mail {
    pub fn new(url: &Secret, login: Option<Login>, content: Content<'_>) -> Result<Self, String> {
        let server = MailServer::new(url.expose(), login.is_some())?;
        let from: Mailbox = content
            .from
            .parse()
            .map_err(|_| "`from` is not a mail address")?;
        // The id is the same for each attempt, so that a receiver can recognize a repeated mail.
        let id = Sha256::digest(format!("{:?} {}", content.time, content.body));
        let id: String = id
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let domain = from.email.domain().to_owned();
        let subject: String = content
            .subject
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .take(SUBJECT_CHARS_MAX)
            .collect();
        let mut builder = MessageBuilder::new()
            .from(from)
            .subject(subject)
            .date(content.time)
            .message_id(Some(format!("<{id}@{domain}>")))
            .header(ContentType::TEXT_PLAIN);
        for recipient in content.recipients {
            let recipient: Mailbox = recipient
                .parse()
                .map_err(|_| "`recipients` has an entry that is not a mail address")?;
            builder = builder.to(recipient);
        }
        let message = builder
            .body(content.body)
            .map_err(|_| "`recipients` is empty")?;
        Ok(Self {
            server,
            login,
            envelope: message.envelope().clone(),
            bytes: message.formatted(),
        })
    }

    /// Sends the mail once.
    pub async fn send(self) -> Attempt {
        match self.exchange().await {
            Ok(()) => Attempt::Delivered,
            Err(failed) => failed,
        }
    }

    async fn exchange(&self) -> Result<(), Attempt> {
        let MailServer {
            host,
            security,
            hello,
            ..
        } = &self.server;
        tachikoma_cloud::install_provider();
        let stream = Limited::new(self.server.connect().await?)?;
        let mut connection = if *security == Security::Implicit {
            let stream = implicit_tls(host, stream).await?;
            AsyncSmtpConnection::connect_with_transport(Box::new(stream), hello).await
        } else {
            AsyncSmtpConnection::connect_with_transport(Box::new(stream), hello).await
        }
        .map_err(|error| failure(&error))?;
        let has_tls = match (security, connection.can_starttls()) {
            (Security::Implicit, _) => true,
            (Security::StartTls | Security::IfOffered, true) => {
                let host = host.clone();
                let parameters = off_thread(move || TlsParameters::new(host)).await?;
                let upgraded = connection.starttls(parameters, hello).await;
                upgraded.map_err(|error| failure(&error))?;
                true
            }
            (Security::StartTls, false) => {
                return Err(Attempt::Failed(
                    "the mail server does not offer STARTTLS, and mail is sent without TLS to this machine only; use `smtps://` if the server has it".to_owned(),
                ));
            }
            (Security::IfOffered | Security::Plain, _) => false,
        };
        if let Some(login) = &self.login {
            debug_assert!(has_tls || *security == Security::IfOffered);
            let password = login.password.expose().to_owned();
            let credentials = Credentials::new(login.user.clone(), password);
            let accepted = connection.auth(DEFAULT_MECHANISMS, &credentials).await;
            accepted.map_err(|error| login_failure(&error))?;
        }
        let sent = connection.send(&self.envelope, &self.bytes).await;
        sent.map_err(|error| failure(&error))?;
        let _ = tokio::time::timeout(QUIT_TIMEOUT, connection.quit()).await;
        Ok(())
    }
}

impl MailServer {
    fn new(url: &str, has_password: bool) -> Result<Self, String> {
        let url: Url = url.parse().map_err(|_| "the address is not valid")?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "the address must not hold a user or a password; use `user` and `secret_env`"
                    .to_owned(),
            );
        }
        let host = url.host_str().unwrap_or_default();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let (port, security) = match url.scheme() {
            "smtps" => (465, Security::Implicit),
            _ if !is_loopback(&host) => (25, Security::StartTls),
            _ if has_password => (25, Security::IfOffered),
            _ => (25, Security::Plain),
        };
        Ok(Self {
            host,
            port: url.port().unwrap_or(port),
            security,
            hello: hello_name(url.path().trim_start_matches('/')),
        })
    }

    async fn connect(&self) -> Result<TcpStream, Attempt> {
        let address = (self.host.as_str(), self.port);
        let connect = async {
            let found = tokio::net::lookup_host(address).await;
            let found: Vec<SocketAddr> = found
                .map_err(|_| Attempt::Retry("the host name cannot be resolved".to_owned()))?
                .collect();
            TcpStream::connect(found.as_slice())
                .await
                .map_err(|error| io_failure(&error))
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        connected.unwrap_or_else(|_| Err(Attempt::Retry("no answer in time".to_owned())))
    }
}

fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Returns the name with which this machine greets the server: the path of the address, or the host name of the machine.
fn hello_name(path: &str) -> ClientId {
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy();
    let is_name = |name: &&str| {
        let valid = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
        !name.is_empty() && name.chars().all(valid)
    };
    let name = [path, &*machine].into_iter().find(is_name);
    name.map_or_else(ClientId::default, |name| ClientId::Domain(name.to_owned()))
}

/// Runs a function that reads the certificates of the system on another thread.
async fn off_thread<T: Send + 'static, E: Send + 'static>(
    load: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Attempt> {
    let loaded = tokio::task::spawn_blocking(load).await;
    let loaded = loaded.ok().and_then(Result::ok);
    loaded
        .ok_or_else(|| Attempt::Failed("the certificates of the system cannot be read".to_owned()))
}

async fn implicit_tls(
    host: &str,
    stream: Limited<TcpStream>,
) -> Result<Limited<tokio_rustls::client::TlsStream<Limited<TcpStream>>>, Attempt> {
    let name = host.to_owned().try_into();
    let name = name.map_err(|_| Attempt::Failed("the address is not valid".to_owned()))?;
    let config = off_thread(ClientConfig::with_platform_verifier).await?;
    let peer = stream.peer;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let stream = connected.await.map_err(|error| io_failure(&error))?;
    Ok(Limited {
        stream,
        left: ANSWER_BYTES_MAX,
        peer,
    })
}

fn io_failure(error: &io::Error) -> Attempt {
    connection_failure(error).unwrap_or_else(|| Attempt::Retry("no connection".to_owned()))
}

fn login_failure(error: &lettre::transport::smtp::Error) -> Attempt {
    if error.is_permanent() {
        Attempt::Failed("the mail server rejects the user or the password".to_owned())
    } else if error.is_client() {
        Attempt::Failed("the mail server offers no login by PLAIN or LOGIN".to_owned())
    } else {
        failure(error)
    }
}

fn failure(error: &lettre::transport::smtp::Error) -> Attempt {
    if let Some(code) = error.status() {
        let answered = format!("the mail server answered with {code}");
        return match error.is_permanent() {
            true => Attempt::Failed(answered),
            false => Attempt::Retry(answered),
        };
    }
    if error.is_client() {
        return Attempt::Failed("the mail server cannot take such addresses".to_owned());
    }
    connection_failure(error).unwrap_or_else(|| {
        Attempt::Retry("the connection was closed before an answer came".to_owned())
    })
}

/// A stream that fails if the server sends too much. The mail library reads a line to its end, however long it is.
#[derive(Debug)]
struct Limited<S> {
    stream: S,
    /// Number of bytes that may still be read.
    left: usize,
    peer: SocketAddr,
}

impl Limited<TcpStream> {
    fn new(stream: TcpStream) -> Result<Self, Attempt> {
        let peer = stream.peer_addr();
        Ok(Self {
            peer: peer.map_err(|error| io_failure(&error))?,
            stream,
            left: ANSWER_BYTES_MAX,
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        match self.left.checked_sub(read) {
            Some(left) => {
                self.left = left;
                Poll::Ready(Ok(()))
            }
            None => Poll::Ready(Err(io::Error::other("the answers are too long"))),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin + std::fmt::Debug> AsyncTokioStream
    for Limited<S>
{
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(url: &str, has_password: bool) -> Security {
        MailServer::new(url, has_password)
            .expect("the mail server address is valid")
            .security
    }

    #[test]
    fn only_this_machine_gets_mail_without_tls() {
        for host in ["127.0.0.1", "127.9.9.9:2525", "localhost", "[::1]:25"] {
            let url = format!("smtp://{host}");
            assert_eq!(security(&url, false), Security::Plain, "{url}");
            assert_eq!(security(&url, true), Security::IfOffered, "{url}");
        }
        for host in [
            "mail.example.org",
            "localhost.example.org",
            "10.0.0.1",
            "127.0.0.1.example.org",
        ] {
            let url = format!("smtp://{host}");
            assert_eq!(security(&url, false), Security::StartTls, "{url}");
            assert_eq!(security(&url, true), Security::StartTls, "{url}");
            let url = format!("smtps://{host}");
            assert_eq!(security(&url, true), Security::Implicit, "{url}");
        }
    }

    #[test]
    fn default_mail_port_depends_on_the_protocol() {
        let port = |url: &str| {
            MailServer::new(url, false)
                .expect("the mail server address is valid")
                .port
        };
        assert_eq!(port("smtp://host"), 25);
        assert_eq!(port("smtps://host"), 465);
        assert_eq!(port("smtp://host:587"), 587);
    }
}
