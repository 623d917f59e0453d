//! `toolbridge doctor` without a LiveKit server: closed ports, wrong certificates, other servers, refusals.

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Output,
    sync::Arc,
    thread,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};

use crate::cli::{complaint, run, text, toolbridge};

const SECRET: &str = "hunter2hunter2hunter2hunter2hunter2";
/// LiveKit's response to a request without a token.
const DENIED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
const HEALTHY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";

/// A request as the server sees it.
struct Asked {
    path: String,
    has_token: bool,
}

/// Starts a server that answers each connection once, and returns its port.
fn server(answer: impl Fn(&Asked) -> String + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream, &answer);
        }
    });
    port
}

fn serve(stream: impl Read + Write, answer: &impl Fn(&Asked) -> String) {
    let mut stream = BufReader::new(stream);
    let (mut asked, mut line) = (Asked { path: String::new(), has_token: false }, String::new());
    while stream.read_line(&mut line).is_ok_and(|size| size > 2) {
        if let Some(rest) = line.strip_prefix("GET ") {
            asked.path = rest.split(['?', ' ']).next().unwrap().to_owned();
        }
        asked.has_token |= line.to_ascii_lowercase().starts_with("authorization: bearer ");
        line.clear();
    }
    // A peer that sent no request has closed by now.
    let _ = stream.get_mut().write_all(answer(&asked).as_bytes());
    let _ = stream.get_mut().flush();
}

/// Answers like LiveKit, except for joins, which get these responses.
fn livekit(join: &'static str, why: &'static str) -> u16 {
    server(move |asked| match (asked.path.as_str(), asked.has_token) {
        ("/", _) => HEALTHY.into(),
        ("/rtc/validate", false) => DENIED.into(),
        ("/rtc/validate", true) => format!("HTTP/1.1 401 Unauthorized\r\n\r\n{why}"),
        _ => format!("HTTP/1.1 {join}\r\nContent-Length: 0\r\n\r\n"),
    })
}

/// Returns an unsigned token with these claims.
fn token(claims: &Value) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    format!("{}.{}.{}", part(&json!({"alg": "HS256"})), part(claims), URL_SAFE_NO_PAD.encode("nobody"))
}

fn phone() -> Value {
    json!({
        "iss": "devkey", "sub": "phone", "nbf": 1, "exp": 9_999_999_999_u64,
        "attributes": {"toolbridge.role": "client"},
        "video": {"room": "kitchen", "roomJoin": true},
    })
}

/// The steps and the verdict of one check.
struct Check {
    lines: Vec<Value>,
    status: Option<i32>,
}

impl Check {
    #[track_caller]
    fn of(output: &Output) -> Self {
        assert!(output.stderr.is_empty(), "{output:?}");
        let text = text(&output.stdout);
        assert!(!["hunter2", "eyJ", "ConnectOptions"].iter().any(|it| text.contains(it)), "{text}");
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Self { lines, status: output.status.code() }
    }

    #[track_caller]
    fn step(&self, word: &str) -> &Value {
        self.lines
            .iter()
            .find(|line| line["step"] == word)
            .unwrap_or_else(|| panic!("{word}: {:#?}", self.lines))
    }

    /// Asserts that this step failed with these texts, and the check with it.
    #[track_caller]
    fn fails(&self, word: &str, wrong: &str, advice: &str) {
        self.says(word, "failed", wrong, advice);
        let verdict = self.lines.last().unwrap();
        assert_eq!((&verdict["works"], self.status), (&json!(false), Some(1)), "{:#?}", self.lines);
        assert!(verdict["verdict"].as_str().unwrap().contains("What to do: "));
    }

    #[track_caller]
    fn says(&self, word: &str, state: &str, wrong: &str, advice: &str) {
        let step = self.step(word);
        assert_eq!(step["state"], state, "{:#?}", self.lines);
        assert!(step["wrong"].as_str().unwrap_or_default().contains(wrong), "{step}");
        assert!(step["advice"].as_str().unwrap_or_default().contains(advice), "{step}");
    }

    #[track_caller]
    fn is(&self, state: &str, words: &[&str]) {
        for word in words {
            assert_eq!(self.step(word)["state"], state, "{:#?}", self.lines);
        }
    }
}

/// Checks a server with key and secret.
#[track_caller]
fn check(url: &str, more: &[&str]) -> Check {
    let key = ["--api-key", "APItest", "--api-secret", SECRET];
    Check::of(&run(&[&["doctor", "--json", "--url", url], &key[..], more].concat()))
}

/// Checks a server with a finished token.
#[track_caller]
fn check_token(port: u16, token: &str, more: &[&str]) -> Check {
    let url = format!("ws://127.0.0.1:{port}");
    Check::of(&run(&[&["doctor", "--json", "--url", &url, "--token", token], more].concat()))
}

fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn missing_server_or_key_is_wrong_usage() {
    assert!(complaint(&run(&["doctor"]), 2).contains("no server: set LIVEKIT_URL or pass --url; no API key"));
    let text = complaint(&run(&["doctor", "--url", "ftp://x", "--token", "a.b.c"]), 2);
    assert!(text.contains("`ftp` is not `ws` or `wss`"), "{text}");
    let text = complaint(&run(&["doctor", "--url", "wss://u:hunter2@x", "--token", "a.b.c"]), 2);
    assert!(text.contains("password") && !text.contains("hunter2"), "{text}");
    let text =
        complaint(&run(&["doctor", "--url", "ws://x", "--token", &token(&phone()), "--room", "hall"]), 2);
    assert!(text.contains("the token is for the room"), "{text}");
}

#[test]
fn unknown_host_name_fails_the_first_step() {
    let check = check("ws://toolbridge.invalid:7880", &[]);
    check.fails("name", "toolbridge.invalid", "DNS");
    check.is(
        "skipped",
        &["connection", "encryption", "server", "clock", "join", "permissions", "udp", "tcp", "echo"],
    );
    check.is("ok", &["token"]);
}

#[test]
fn closed_port_is_reported_with_its_number() {
    let port = closed_port();
    let check = check(&format!("ws://127.0.0.1:{port}"), &[]);
    check.is("ok", &["name", "token"]);
    check.fails(
        "connection",
        &format!("127.0.0.1:{port} refuses the connection"),
        &format!("no server listens on port {port}"),
    );
    assert_eq!(check.step("server")["found"], "depends on the step `encryption`");
}

#[test]
fn servers_other_than_livekit_are_recognized() {
    for (answer, wrong, advice) in [
        ("HTTP/1.1 404 Not Found\r\n\r\n", "not a LiveKit server", "forward /rtc"),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", "web page", "sign in"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://login.hotel.example/\r\n\r\n",
            "login.hotel.example",
            "browser",
        ),
        ("HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP 503", "start the LiveKit server"),
        ("SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP", "port"),
        ("", "without an answer", "log"),
    ] {
        let port = server(|_| answer.to_owned());
        let check = check(&format!("ws://127.0.0.1:{port}"), &[]);
        check.is("ok", &["name", "connection", "token"]);
        check.fails("server", wrong, advice);
        check.is("skipped", &["encryption", "clock", "join", "echo"]);
    }
}

#[test]
fn silent_server_times_out() {
    // The system accepts connections for a listener that never does.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let check = check(&format!("ws://127.0.0.1:{port}"), &["--limit", "300ms"]);
    check.fails("server", "does not answer within 300 ms", "hangs");
}

#[test]
fn refused_join_is_reported_with_its_reason() {
    for (join, why, wrong, advice) in [
        ("401 Unauthorized", "invalid API key: devkey", "does not know the API key", "keys"),
        (
            "401 Unauthorized",
            "invalid token: eyJh, error: token signature is invalid",
            "with another secret",
            "LIVEKIT_API_SECRET",
        ),
        ("401 Unauthorized", "no permissions to access the room", "this room", "roomJoin"),
        ("401 Unauthorized", "<html>", "HTTP 401", "log gives the reason"),
        ("403 Forbidden", "", "HTTP 403", "limit"),
        ("404 Not Found", "", "HTTP 404", "--room"),
        ("503 Service Unavailable", "", "HTTP 503", "load"),
        ("500 Internal Server Error", "", "HTTP 500", "log"),
        ("200 OK", "", "HTTP 200", "/rtc"),
    ] {
        let port = livekit(join, why);
        let check = check(&format!("ws://127.0.0.1:{port}"), &[]);
        check.is("ok", &["server", "token"]);
        check.fails("join", wrong, advice);
        check.is("skipped", &["permissions", "udp", "tcp", "echo"]);
    }
}

#[test]
fn faulty_token_is_not_sent_to_the_server() {
    let port = livekit("200 OK", "");
    let changed = |change: fn(&mut Value)| {
        let mut claims = phone();
        change(&mut claims);
        check_token(port, &token(&claims), &[])
    };
    changed(|claims| claims["exp"] = json!(1)).fails("token", "the token expired", "new token");
    changed(|claims| claims["nbf"] = json!(9_999_999_000_u64)).fails("token", "valid only in", "clock");
    changed(|claims| claims["video"]["roomJoin"] = json!(false)).fails("token", "`roomJoin`", "grant");
    changed(|claims| claims["sub"] = json!("")).fails("token", "has no identity", "identity");
    check_token(port, "no.token.atall", &[]).fails("token", "is not a token", "Bearer");
    let check = check_token(port, &token(&phone()), &["--api-key", "devkey", "--api-secret", SECRET]);
    check.says("token", "warning", "not signed with the given API secret", "same secret");
    let check = check_token(port, &token(&phone()), &["--api-key", "APIother", "--api-secret", SECRET]);
    check.says(
        "token",
        "warning",
        "signed with the API key devkey, but the given API key is APIother",
        "different keys",
    );
    // The server decides whether the token is valid.
    check.fails("join", "HTTP 200", "/rtc");
}

#[test]
fn wrong_clock_is_reported_and_applied_to_the_token_check() {
    // A day in 2001, long before any token of today is valid.
    let port = server(|_| "HTTP/1.1 401 Unauthorized\r\nDate: Sun, 09 Sep 2001 01:46:40 GMT\r\n\r\n".into());
    let mut claims = phone();
    claims["nbf"] = json!(1_700_000_000);
    let check = check_token(port, &token(&claims), &[]);
    check.says("clock", "warning", "behind: tokens created here are not valid yet", "NTP");
    check.fails("token", "valid only in", "clock");
    let ahead = server(|_| "HTTP/1.1 401 Unauthorized\r\nDate: Wed, 01 Jan 2290 00:00:00 GMT\r\n\r\n".into());
    let check = check_token(ahead, &token(&phone()), &[]);
    check.says("clock", "warning", "ahead: tokens created here expire too early", "NTP");
    check.fails("token", "the token expired", "new token");
}

/// Starts a server with a certificate for this name that expires in this year, and returns the file of its root.
fn encrypted(name: &str, until: i32) -> (u16, PathBuf) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.not_after = date_time_ymd(until, 1, 1);
    let leaf = params.signed_by(&key, &root).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            serve(StreamOwned::<_, TcpStream>::new(connection, stream), &|asked: &Asked| match asked
                .path
                .as_str()
            {
                "/" => HEALTHY.into(),
                _ => DENIED.into(),
            });
        }
    });
    let file = std::env::temp_dir().join(format!("toolbridge-doctor-{}-{port}.pem", std::process::id()));
    std::fs::write(&file, root.pem()).unwrap();
    (port, file)
}

#[test]
fn certificate_faults_are_reported() {
    let (port, root) = encrypted("127.0.0.1", 2090);
    let trusted = root.to_str().unwrap();
    let url = format!("wss://127.0.0.1:{port}");
    check(&url, &[]).fails("encryption", "does not trust the issuer", "--root-certificate");
    let good = check(&url, &["--root-certificate", trusted]);
    good.is("ok", &["encryption", "server"]);
    assert!(
        good.step("encryption")["found"]
            .as_str()
            .unwrap()
            .starts_with("TLS 1.3, with a trusted certificate for 127.0.0.1")
    );
    let name = check(&format!("wss://localhost:{port}"), &["--root-certificate", trusted]);
    name.fails("encryption", "not for localhost", "name");
    let _ = std::fs::remove_file(&root);

    let (port, root) = encrypted("127.0.0.1", 2020);
    let old = check(&format!("wss://127.0.0.1:{port}"), &["--root-certificate", root.to_str().unwrap()]);
    old.fails("encryption", "expired", "renew");
    let _ = std::fs::remove_file(&root);
}

#[test]
fn encryption_on_one_side_only_is_reported() {
    let port = livekit("200 OK", "");
    check(&format!("wss://127.0.0.1:{port}"), &[]).fails("encryption", "does not speak TLS", "ws://");
    let (port, root) = encrypted("127.0.0.1", 2090);
    let check = check(&format!("ws://127.0.0.1:{port}"), &["--limit", "500ms"]);
    check.is("skipped", &["encryption"]);
    check.fails("server", "answer", "wss://");
    let _ = std::fs::remove_file(&root);
}

#[test]
fn refusing_proxy_is_named_without_its_password() {
    let port = server(|_| "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n".into());
    let mut command =
        toolbridge(&["doctor", "--json", "--url", "ws://livekit.test", "--token", &token(&phone())]);
    let output = command.env("HTTP_PROXY", format!("http://me:hunter2@127.0.0.1:{port}")).output().unwrap();
    let check = Check::of(&output);
    check.fails(
        "connection",
        &format!("the proxy 127.0.0.1:{port} (HTTP_PROXY): it demands credentials"),
        "USER:PASSWORD",
    );
    let output = command.env("HTTP_PROXY", "socks5://me:hunter2@127.0.0.1:1").output().unwrap();
    Check::of(&output).fails("name", "`socks5` is not supported", "NO_PROXY");
}

#[test]
fn people_get_a_table_and_a_verdict() {
    let port = closed_port();
    let url = format!("ws://127.0.0.1:{port}");
    let output = run(&["doctor", "--url", &url, "--token", &token(&phone())]);
    let text = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stderr.is_empty() && !text.contains("eyJ"), "{output:?}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("\n  failed   connection "), "{text}");
    assert!(text.contains("\n                                  → no server listens on port"), "{text}");
    assert!(text.contains("\n\nThe server cannot be used from this machine (connection): "), "{text}");
}
