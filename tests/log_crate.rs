//! What dependencies write to the `log` crate while a client and an assistant join, call and leave.
//!
//! The test runs in its own process, because a logger is permanent.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::Duration,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolbridge::{
    Assistant, Client, ToolError,
    livekit::{AccessKey, ConnectOptions},
};

/// The start of every JWT.
const JWT: &str = "eyJ";
/// The client's arguments and results.
const PLANTED: &str = "planted-secret";

/// Keeps every record that any crate logs.
struct Sink;

static RECORDS: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl log::Log for Sink {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        RECORDS.lock().unwrap().push(format!("{}: {}", record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// Every form in which a text can be recognized: as it is, as hexadecimal digits, and as a list of bytes.
fn spellings(text: &str) -> [String; 3] {
    let list: Vec<_> = text.bytes().map(|byte| byte.to_string()).collect();
    [text.to_owned(), text.bytes().map(|byte| format!("{byte:02x}")).collect(), list.join(", ")]
}

#[track_caller]
fn assert_free_of(what: &str) {
    let records = RECORDS.lock().unwrap();
    for spelling in spellings(what) {
        let leak = records.iter().find(|record| record.contains(&spelling));
        assert!(leak.is_none(), "{what} is in a record: {:.300}", leak.unwrap());
    }
}

/// A server of the command line in another process, which ends with this one.
struct Server {
    child: Child,
    url: String,
    key: AccessKey,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_toolbridge"))
            .args(["dev", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<_> = lines.take_while(|line| !line.contains("Ctrl-C")).collect();
        let setting = |name: &str| {
            let found = lines.iter().find_map(|line| line.strip_prefix(&format!("export {name}=")));
            found.unwrap().to_owned()
        };
        let key = AccessKey::new(setting("LIVEKIT_API_KEY"), setting("LIVEKIT_API_SECRET"));
        Self { url: setting("LIVEKIT_URL"), key, child }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server behind TLS that refuses every token and repeats it, as LiveKit does. Returns its address and its
/// certificate.
fn refusing_over_tls() -> (String, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key);
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("wss://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = BufReader::new(StreamOwned::new(connection, stream));
            let (mut token, mut line) = (String::new(), String::new());
            while stream.read_line(&mut line).is_ok_and(|size| size > 2) {
                if let Some((_, bearer)) = line.split_once("Bearer ") {
                    token = bearer.trim().to_owned();
                }
                line.clear();
            }
            let body = format!("invalid token: {token}, error: token signature is invalid");
            let head = format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
            stream.get_mut().flush().unwrap();
        }
    });
    (url, made.cert.pem().into_bytes())
}

#[derive(Deserialize, JsonSchema)]
struct Echo {
    text: String,
}

async fn echo(asked: Echo) -> Result<String, ToolError> {
    Ok(asked.text)
}

#[tokio::test]
async fn sec_p3_tokens_and_arguments_never_reach_the_log_crate() {
    static SINK: OnceLock<Sink> = OnceLock::new();
    log::set_logger(SINK.get_or_init(|| Sink)).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = Server::start();
    let token = |role: &str| match role {
        "client" => server.key.client("kitchen", "phone").sign().unwrap(),
        _ => server.key.assistant("kitchen", "assistant").sign().unwrap(),
    };
    let (phones, assistants) = (token("client"), token("assistant"));

    let client = Client::builder().tool("echo", "", echo).join(&server.url, &phones).await.unwrap();
    let assistant = Assistant::builder().client("phone").join(&server.url, &assistants).await.unwrap();
    let answer = assistant.call("echo", json!({"text": PLANTED})).await.unwrap();
    assert_eq!(answer.decode::<String>().unwrap(), PLANTED);
    // A frame that is sent in parts.
    assistant.call("echo", json!({"text": PLANTED.repeat(2_000)})).await.unwrap();
    assistant.close().await;
    client.close().await;

    // A refused token, and an unreachable server.
    let refused =
        AccessKey::new("another", "planted-secret of at least 32 characters").client("kitchen", "phone");
    let refused = refused.sign().unwrap();
    for url in [server.url.as_str(), "ws://127.0.0.1:1"] {
        let options = ConnectOptions::new().join_timeout(Duration::from_secs(5));
        options.join(url, &refused).await.unwrap_err();
    }
    let (url, root) = refusing_over_tls();
    let options = ConnectOptions::new().root_certificates(&root).unwrap();
    let error = options.join(&url, &phones).await.unwrap_err();
    assert!(error.to_string().contains("not signed with the secret"), "{error}");

    let records = RECORDS.lock().unwrap().clone();
    for dependency in ["rustls", "dimpl"] {
        assert!(records.iter().any(|record| record.starts_with(dependency)), "{dependency} logged nothing");
    }
    for token in [&phones, &assistants, &refused] {
        let signature = token.rsplit('.').next().unwrap();
        assert_free_of(signature);
    }
    // Including tokens that the server has refreshed.
    assert_free_of(JWT);
    assert_free_of(PLANTED);
    assert_free_of(server.key.key());
}
