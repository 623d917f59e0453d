//! Tests which web pages may use the server, and what they can read of its answers.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::dev_server::DevServerBuilder;

const PAGE: &str = "http://localhost:5173";

/// The path that an SDK asks why it could not join.
const VALIDATE: &str = "/rtc/v1/validate?access_token=bad";

impl DevServer {
    /// Sends a request with a body of this size, all of it before it reads. Returns the status, the headers and the body.
    async fn answer(&self, request: &str, headers: &str, body: usize) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!("{request} HTTP/1.1\r\n{headers}Content-Length: {body}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; body]).await.unwrap();
        let mut answer = String::new();
        timeout(BOUND, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_ascii_lowercase(), body.to_owned())
    }

    async fn status(&self, host: &str, origin: &str) -> u16 {
        self.answer("GET /", &format!("Host: {host}\r\nOrigin: {origin}\r\n"), 0).await.0
    }
}

/// Starts a server, and returns the warnings that it will give.
async fn warned(builder: DevServerBuilder) -> (DevServer, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let sink = warnings.clone();
    let server = builder.on_warning(move |text| sink.lock().unwrap().push(text.to_owned()));
    (server.start().await.unwrap(), warnings)
}

#[tokio::test]
async fn page_of_this_machine_reads_why_its_token_is_refused() {
    let server = server().await;
    let (status, head, body) =
        server.answer(&format!("GET {VALIDATE}"), &format!("Host: localhost\r\nOrigin: {PAGE}\r\n"), 0).await;
    assert_eq!((status, &*body), (401, "invalid authorization token"));
    assert!(head.contains(&format!("access-control-allow-origin: {PAGE}\r\n")), "{head}");
    let asked = format!(
        "Host: localhost\r\nOrigin: {PAGE}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type\r\n"
    );
    let (status, head, _) = server.answer("OPTIONS /twirp/livekit.RoomService/ListRooms", &asked, 0).await;
    assert_eq!(status, 204);
    for header in [
        "access-control-allow-origin: http://localhost:5173\r\n",
        "access-control-allow-methods: get, post\r\n",
        "access-control-allow-headers: authorization,content-type\r\n",
    ] {
        assert!(head.contains(header), "{head}");
    }
    let (_, head, _) = server.answer("GET /", "Host: localhost\r\n", 0).await;
    assert!(!head.contains("access-control"), "no page asked: {head}");
}

#[tokio::test]
async fn sec_a4_foreign_page_is_refused_reads_nothing_and_is_named_in_a_warning() {
    let (server, warnings) = warned(DevServer::builder()).await;
    for origin in ["https://evil.example", "null", "file://", "http://evil.example@localhost"] {
        for request in ["GET /rtc", "OPTIONS /rtc", "POST /twirp/livekit.RoomService/ListRooms"] {
            let headers =
                format!("Host: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
            let (status, head, body) = server.answer(request, &headers, 0).await;
            assert!(status == 403 && body.contains("--allow-origin"), "{origin}: {status} {body}");
            assert!(!head.contains("access-control"), "{head}");
        }
    }
    for host in ["evil.example", "evil@127.0.0.1"] {
        let (status, _, body) = server.answer("GET /", &format!("Host: {host}\r\n"), 0).await;
        assert!(status == 403 && body.contains("--allow-host"), "{host}: {status} {body}");
    }
    let twice = format!("Host: localhost\r\nOrigin: {PAGE}\r\nOrigin: https://evil.example\r\n");
    assert_eq!(server.answer("GET /", &twice, 0).await.0, 400);
    // The task that warns handled them before this.
    server.look(|_| ()).await;
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 6, "one for each origin and host: {warnings:?}");
    assert!(warnings[0].contains("\"https://evil.example\"") && warnings[0].contains("--allow-origin"));
    assert!(warnings[4].contains("\"evil.example\"") && warnings[4].contains("--allow-host"));
}

#[tokio::test]
async fn allowed_host_counts_for_its_pages_and_allowed_origins_for_theirs() {
    let allow = |origin| DevServer::builder().allow_host("10.0.2.2").allow_origin(origin).unwrap();
    let server = allow("vscode-webview://*").start().await.unwrap();
    assert_eq!(server.status("10.0.2.2:7880", "http://10.0.2.2:7880").await, 200);
    assert_eq!(server.status("localhost", "vscode-webview://abc").await, 200);
    assert_eq!(server.status("localhost", "null").await, 403);
    let server = allow("null").start().await.unwrap();
    assert_eq!(server.status("localhost", "null").await, 200);
    assert_eq!(server.status("localhost", "vscode-webview://abc").await, 403);
    let error = DevServer::builder().allow_origin("https://*").unwrap_err();
    assert!(error.to_string().contains("all web pages"), "{error}");
}

#[tokio::test]
async fn body_above_the_limit_is_answered_as_too_large() {
    let server = server().await;
    let headers = format!("Host: localhost\r\nOrigin: {PAGE}\r\nContent-Type: application/json\r\n");
    // Far more than the buffers of the sockets hold.
    for size in [256 * 1024 + 1, 8 * 1024 * 1024] {
        let method = "POST /twirp/livekit.RoomService/SendData";
        let (status, head, body) = server.answer(method, &headers, size).await;
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &error["code"]), (413, &"resource_exhausted".into()));
        let text = error["msg"].as_str().unwrap();
        assert!(text.contains(&size.to_string()) && text.contains("262144"), "{text}");
        assert!(head.contains("content-type: application/json\r\n") && head.contains("access-control"));
    }
    assert_eq!(server.answer("POST /", &headers, 256 * 1024 + 1).await.0, 413);
    assert_eq!(server.answer("POST /", &headers, 256 * 1024).await.0, 404);
}
