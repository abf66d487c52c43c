//! Tests with a real S3 server on loopback: objects are created once and never overwritten.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use tachikoma_cloud::{
    CloudEnvironment, CloudError, Digest, PART_BYTES, Put, Store, digest_of, open,
};
use tachikoma_testkit::await_until;
use tachikoma_testkit::s3::{BUCKET, Misbehavior, S3};
use tokio::runtime::{Builder, Runtime};

struct Place {
    dir: tempfile::TempDir,
    s3: S3,
    runtime: Runtime,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            s3: S3::start(dir.path()),
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            dir,
        }
    }

    fn store(&self) -> Store {
        let env = self.s3.env().into_iter();
        let cloud_environment = CloudEnvironment {
            variables: env.map(|(name, value)| (name.to_owned(), value)).collect(),
            home: Some(self.dir.path().join("nobody")),
        };
        open(&format!("s3://{BUCKET}/a"), &cloud_environment).unwrap()
    }

    /// Returns whether a multipart upload was aborted.
    fn is_taken_back(&self) -> bool {
        let is_abort = |asked: &String| asked.starts_with("DELETE ") && asked.contains("uploadId=");
        self.s3.asked().iter().any(is_abort)
    }
}

fn file_of(bytes: &[u8]) -> (File, Digest) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    let digest = digest_of(&mut file).unwrap();
    file.rewind().unwrap();
    (file, digest)
}

#[test]
fn two_uploads_of_one_name_create_one_object() {
    let place = Place::new();
    for size in [1_000, PART_BYTES * 2 + 1] {
        let name = format!("of-{size}");
        let bytes = vec![7; size];
        let ((mut one, digest), (mut other, _)) = (file_of(&bytes), file_of(&bytes));
        let (here, there) = (place.store(), place.store());
        let from = Path::new("here");
        let put = async {
            tokio::join!(
                here.put(&name, &mut one, from, &digest),
                there.put(&name, &mut other, from, &digest)
            )
        };
        let (first, second) = place.runtime.block_on(put);
        // The second upload finds the object, or starts before the object exists. In both cases there is one complete object.
        first.unwrap();
        second.unwrap();
        assert_eq!(place.s3.objects().len(), 1 + usize::from(size > 1_000));
        let there = std::fs::read(place.s3.file(&format!("a/{name}"))).unwrap();
        assert!(there == bytes, "{size}");
        let (mut again, _) = file_of(&bytes);
        let put = here.put(&name, &mut again, from, &digest);
        assert_eq!(place.runtime.block_on(put).unwrap(), Put::WasThere);
    }
}

#[test]
fn an_existing_object_is_not_overwritten() {
    let place = Place::new();
    std::fs::create_dir(place.s3.file("a")).unwrap();
    for size in [1_000, PART_BYTES + 1] {
        let name = format!("of-{size}");
        std::fs::write(place.s3.file(&format!("a/{name}")), "somebody else's").unwrap();
        let (mut file, digest) = file_of(&vec![7; size]);
        let store = place.store();
        let put = store.put(&name, &mut file, Path::new("here"), &digest);
        let error = place.runtime.block_on(put).unwrap_err();
        assert!(matches!(error, CloudError::Other { .. }), "{error}");
        assert!(!error.may_pass());
        let there = std::fs::read_to_string(place.s3.file(&format!("a/{name}")));
        assert_eq!(there.unwrap(), "somebody else's");
    }
}

/// The library completes a multipart upload without a condition. Tachikoma's HTTP client adds `If-None-Match`.
#[test]
fn multipart_upload_is_completed_with_if_none_match() {
    let place = Place::new();
    let (mut file, digest) = file_of(&vec![7; PART_BYTES + 1]);
    let store = place.store();
    let put = store.put("large", &mut file, Path::new("here"), &digest);
    assert_eq!(place.runtime.block_on(put).unwrap(), Put::Created);
    let asked = place.s3.asked();
    let completing: Vec<_> = asked
        .iter()
        .filter(|asked| asked.starts_with("POST") && asked.contains("?uploadId="))
        .collect();
    assert_eq!(completing.len(), 1, "{asked:#?}");
    assert!(
        completing[0].ends_with(" if-none-match: *"),
        "{completing:?}"
    );
    let conditional = asked.iter().filter(|asked| asked.contains("if-none-match"));
    assert_eq!(conditional.count(), 1, "{asked:#?}");
}

#[test]
fn a_canceled_upload_leaves_no_object_and_no_parts() {
    let place = Place::new();
    place
        .s3
        .behave(Misbehavior::Slow(Duration::from_millis(200)));
    let (mut file, digest) = file_of(&vec![7; PART_BYTES * 3]);
    let store = place.store();
    let put = store.put("large", &mut file, Path::new("here"), &digest);
    // The upload has begun when the first part was sent. Before that there is nothing to abort.
    let is_begun = || place.s3.asked().iter().any(|it| it.contains("partNumber="));
    let begun = async {
        while !is_begun() {
            tokio::task::yield_now().await;
        }
    };
    let called_off = async {
        tokio::select! { _ = put => false, () = begun => true }
    };
    assert!(place.runtime.block_on(called_off));
    assert_eq!(place.s3.objects(), [] as [String; 0]);
    await_until("its parts are taken back", Duration::from_secs(30), || {
        place.runtime.block_on(tokio::task::yield_now());
        place.is_taken_back()
    });
}

#[test]
fn a_large_file_that_changes_during_the_upload_leaves_no_object_and_no_parts() {
    let place = Place::new();
    let (mut file, mut digest) = file_of(&vec![7; PART_BYTES + 1]);
    digest.hex = "0".repeat(64);
    let store = place.store();
    let put = store.put("large", &mut file, Path::new("here"), &digest);
    let error = place.runtime.block_on(put).unwrap_err();
    assert!(matches!(error, CloudError::Changed { .. }), "{error}");
    assert_eq!(place.s3.objects(), [] as [String; 0]);
    assert!(place.is_taken_back());
}

#[test]
fn an_unreachable_server_is_reported_and_can_be_retried() {
    let mut place = Place::new();
    place.s3.kill();
    let listed = place.store();
    let error = place.runtime.block_on(listed.list()).unwrap_err();
    assert!(error.may_pass(), "{error}");
    assert!(error.to_string().starts_with("s3://bucket/a: "), "{error}");
    let (mut file, digest) = file_of(b"x");
    let name =
        "loop_00000000-0000-0000-0000-000000000007-00000000000000000012-20251115T050444Z.tar";
    let name = format!(
        "{name}.zst.age.work.sha256-{}",
        "0123456789abcdef".repeat(2)
    );
    let put = listed.put(&name, &mut file, Path::new("here"), &digest);
    let error = place.runtime.block_on(put).unwrap_err().to_string();
    assert!(error.contains("Connection refused"), "{error}");
    assert!(!error.contains("loop_0000"), "{error}");
    place.s3.revive();
    assert_eq!(place.runtime.block_on(listed.list()).unwrap(), []);
}

#[test]
fn http_endpoint_without_tls_is_rejected_unless_allowed() {
    let place = Place::new();
    let env = place
        .s3
        .env()
        .into_iter()
        .filter(|(name, _)| *name != "AWS_ALLOW_HTTP");
    let cloud_environment = CloudEnvironment {
        variables: env.map(|(name, value)| (name.to_owned(), value)).collect(),
        home: None,
    };
    let error = open(&format!("s3://{BUCKET}"), &cloud_environment).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("AWS_ALLOW_HTTP=true allows that"),
        "{error}"
    );
    assert!(!error.may_pass());
    assert_eq!(place.s3.asked(), [] as [String; 0]);
}

#[test]
fn upload_to_a_directory_removes_old_temporary_files_and_listing_skips_new_ones() {
    let place = Place::new();
    let dir = place.dir.path().join("copies");
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(dir.join("deeper")).unwrap();
    std::fs::write(dir.join("deeper/other"), "").unwrap();
    let old = dir.join("x.tar.sha256-00#1234");
    let new = dir.join("x.tar.sha256-00#1235");
    for path in [&old, &new, &dir.join("mine#12")] {
        std::fs::write(path, "half").unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_hours(2);
    for path in [&old, &dir.join("mine#12")] {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let url = format!("file://{}", dir.display());
    let store = open(&url, &CloudEnvironment::default()).unwrap();
    let (mut file, digest) = file_of(b"whole");
    let put = store.put("y.tar.sha256-01", &mut file, Path::new("here"), &digest);
    assert_eq!(place.runtime.block_on(put).unwrap(), Put::Created);
    assert!(!old.exists() && new.exists() && dir.join("mine#12").exists());
    let listed = place.runtime.block_on(store.list()).unwrap();
    let mut names: Vec<_> = listed.iter().map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["mine#12", "y.tar.sha256-01"]);
}

/// Starts a server that reads each request up to its empty line and writes one answer. Returns the address of the server.
fn serve(answer: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.by_ref().map_while(Result::ok).find(String::is_empty);
            answer(stream);
        }
    });
    address
}

fn list_at(address: &str) -> CloudError {
    let variables = [
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", "id".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ("AWS_SESSION_TOKEN", "token".to_owned()),
    ];
    let cloud_environment = CloudEnvironment {
        variables: variables
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        home: None,
    };
    let store = open("s3://bucket/a", &cloud_environment).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.list()).unwrap_err()
}

#[test]
fn redirects_to_another_host_are_not_followed() {
    let (sent, followed) = std::sync::mpsc::channel();
    let other = serve(move |_| sent.send(()).unwrap());
    let first = serve(move |mut stream| {
        let head =
            format!("HTTP/1.1 307 Moved\r\nLocation: http://{other}/\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    });
    list_at(&first);
    assert!(followed.try_recv().is_err(), "the other host was asked");
}

#[test]
fn listing_with_an_endless_response_is_rejected() {
    const SERVED_MAX: usize = 256 << 20;
    let (sent, served) = std::sync::mpsc::channel();
    let address = serve(move |mut stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n<ListBucketResult>";
        let mut bytes = 0;
        let mut written = stream.write_all(head.as_bytes());
        while written.is_ok() && bytes < SERVED_MAX {
            written = stream.write_all(&[b' '; 1 << 16]);
            bytes += 1 << 16;
        }
        sent.send(written.is_err()).unwrap();
    });
    list_at(&address);
    assert!(
        served.iter().next().unwrap(),
        "all {SERVED_MAX} bytes were read"
    );
}
