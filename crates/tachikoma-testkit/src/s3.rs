//! A real S3 server on loopback (s3s-fs), in this process: it can be killed, restarted on the same port, and made to misbehave.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

/// Name of the only bucket.
pub const BUCKET: &str = "bucket";

/// Access key and secret of the only account.
pub const KEY: (&str, &str) = ("AKIDTEST", "secret-of-the-test");

/// How the server misbehaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Misbehavior {
    /// The server does not misbehave.
    #[default]
    None,
    /// The server answers write requests with this status and error code.
    Refuses(u16, &'static str),
    /// The server delays every answer by this time.
    Slow(Duration),
    /// The server never answers list requests.
    ListsNothing,
    /// The server dies when it receives the upload part with this number.
    DiesAtPart(u32),
}

/// A running S3 server.
#[derive(Debug)]
pub struct S3 {
    dir: PathBuf,
    address: SocketAddr,
    behaves: Arc<Mutex<Behavior>>,
    life: Option<Life>,
}

#[derive(Debug, Default)]
struct Behavior {
    wrong: Misbehavior,
    /// All requests, as `PUT /bucket/name?query if-none-match: *`.
    asked: Vec<String>,
}

#[derive(Debug)]
struct Life {
    alive: watch::Sender<bool>,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl S3 {
    /// Starts a server that stores its objects in `dir`.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        std::fs::create_dir_all(dir.join(BUCKET)).expect("a directory for the bucket");
        let behaves = Arc::default();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (address, life) = live(dir, any, &behaves);
        Self {
            dir: dir.to_owned(),
            address,
            behaves,
            life: Some(life),
        }
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the environment variables for clients of the server.
    #[must_use]
    pub fn env(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.0.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEY.1.to_owned()),
        ]
    }

    /// Sets how the server misbehaves from now on.
    pub fn behave(&self, wrong: Misbehavior) {
        lock(&self.behaves).wrong = wrong;
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        lock(&self.behaves).asked.clone()
    }

    /// Returns whether the server is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.life
            .as_ref()
            .is_none_or(|life| life.thread.is_finished())
    }

    /// Kills the server. All connections break.
    pub fn kill(&mut self) {
        if let Some(life) = self.life.take() {
            life.alive.send_replace(false);
            let _ = life.ended.recv();
            let _ = life.thread.join();
        }
    }

    /// Restarts the server at the same address, with its objects.
    pub fn revive(&mut self) {
        self.kill();
        self.behave(Misbehavior::None);
        let (_, life) = live(&self.dir, self.address, &self.behaves);
        self.life = Some(life);
    }

    /// Lists the objects by their path below the bucket.
    #[must_use]
    pub fn objects(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.dir.join(BUCKET), "", &mut found);
        found.sort();
        found
    }

    /// Returns the file of an object.
    #[must_use]
    pub fn file(&self, object: &str) -> PathBuf {
        self.dir.join(BUCKET).join(object)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.kill();
    }
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), &format!("{path}/"), found),
            // These are internal files of the server.
            Ok(_) if name.starts_with('.') => {}
            Ok(_) => found.push(path),
            Err(_) => {}
        }
    }
}

fn lock(behaves: &Mutex<Behavior>) -> std::sync::MutexGuard<'_, Behavior> {
    behaves.lock().unwrap_or_else(PoisonError::into_inner)
}

fn live(dir: &Path, at: SocketAddr, behaves: &Arc<Mutex<Behavior>>) -> (SocketAddr, Life) {
    let files = s3s_fs::FileSystem::new(dir).expect("a directory for the objects");
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single(KEY.0, KEY.1));
    let service = builder.build();
    let (alive, living) = watch::channel(true);
    let (bound, at_last) = channel();
    let (end, ended) = channel();
    let behaves = Arc::clone(behaves);
    let dies = alive.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        runtime.block_on(serve(service, at, behaves, (dies, living), bound));
        // All connections end with the runtime.
        drop(runtime);
        let _ = end.send(());
    });
    let address = at_last.recv().expect("a server that listens");
    let life = Life {
        alive,
        ended,
        thread,
    };
    (address, life)
}

async fn serve(
    service: S3Service,
    at: SocketAddr,
    behaves: Arc<Mutex<Behavior>>,
    (dies, mut living): (watch::Sender<bool>, watch::Receiver<bool>),
    bound: Sender<SocketAddr>,
) {
    let listener = listen(at);
    let address = listener.local_addr().expect("an address");
    let _ = bound.send(address);
    loop {
        let socket = tokio::select! {
            _ = living.wait_for(|alive| !alive) => return,
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(_) => continue,
            },
        };
        let (service, behaves, dies) = (service.clone(), Arc::clone(&behaves), dies.clone());
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                answer(service.clone(), Arc::clone(&behaves), dies.clone(), request)
            });
            let connection = hyper::server::conn::http1::Builder::new();
            let served = connection.serve_connection(TokioIo::new(socket), answer);
            // An error means that the client closed the connection.
            let _ = served.await;
        });
    }
}

fn listen(at: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().expect("a socket");
    // The killed server may have left connections at the same address.
    socket.set_reuseaddr(true).expect("an address to use again");
    socket.bind(at).expect("a free address");
    socket.listen(64).expect("a socket that listens")
}

/// Formats a received request for the list of requests, with its `if-none-match` header, which prevents overwriting.
fn line_of(request: &Request<Incoming>) -> String {
    let condition = request.headers().get("if-none-match");
    let condition = condition.and_then(|value| value.to_str().ok());
    let line = format!("{} {}", request.method(), request.uri());
    condition.map_or(line.clone(), |value| {
        format!("{line} if-none-match: {value}")
    })
}

async fn answer(
    service: S3Service,
    behaves: Arc<Mutex<Behavior>>,
    dies: watch::Sender<bool>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let wrong = {
        let mut behaves = lock(&behaves);
        behaves.asked.push(line_of(&request));
        behaves.wrong.clone()
    };
    let writes = matches!(*request.method(), Method::PUT | Method::POST);
    match wrong {
        Misbehavior::Refuses(status, code) if writes => {
            let page = format!(
                "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as requested</Message></Error>"
            );
            let response = Response::builder().status(status);
            return Ok(response.body(Body::from(page)).expect("an answer"));
        }
        Misbehavior::None | Misbehavior::Refuses(..) => {}
        Misbehavior::Slow(time) => {
            let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
        }
        Misbehavior::ListsNothing => {
            let query = request.uri().query().unwrap_or_default();
            if query.contains("list-type") {
                std::future::pending::<()>().await;
            }
        }
        Misbehavior::DiesAtPart(part) => {
            let query = request.uri().query().unwrap_or_default();
            if query.contains(&format!("partNumber={part}")) {
                dies.send_replace(false);
                std::future::pending::<()>().await;
            }
        }
    }
    match service.call(request.map(Body::from)).await {
        Ok(response) => Ok(response),
        Err(error) => {
            let response = Response::builder().status(500);
            let body = Body::from(format!("{error:?}"));
            Ok(response.body(body).expect("an answer"))
        }
    }
}
