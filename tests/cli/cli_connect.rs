//! What the built program reports about the server's address and the connection to it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    thread,
};

use crate::cli::{complaint, run, toolbridge};

/// An assistant's token for the room `r`. Its signature is not checked here.
const TOKEN: &str = concat!(
    "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjk5OTk5OTk5OTksImlzcyI6ImEiLCJuYmYiOjAsInN1YiI6InAiLCJhdHRya",
    "WJ1dGVzIjp7InRvb2xicmlkZ2Uucm9sZSI6ImFzc2lzdGFudCJ9LCJ2aWRlbyI6eyJyb29tIjoiciIsInJvb21Kb2l",
    "uIjp0cnVlfX0.c2ln"
);

/// A server that sends this response to each request.
fn answering(answer: impl Into<String>) -> u16 {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|size| size > 2) {
                line.clear();
            }
            // A peer that sent no request has closed by now.
            let _ = stream.get_mut().write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn unencrypted_connection_to_another_machine_causes_a_warning() {
    let proxy = answering("HTTP/1.1 403 Forbidden\r\n\r\n");
    for url in ["ws://livekit.test", "ws://livekit.test:7880", "http://192.0.2.1"] {
        let mut command = toolbridge(&["call", "--url", url, "--token", TOKEN, "echo", "{}"]);
        let output = command.env("HTTP_PROXY", format!("http://127.0.0.1:{proxy}")).output().unwrap();
        let complaint = complaint(&output, 4);
        let (warning, error) = complaint.split_once('\n').unwrap();
        assert!(
            warning.starts_with("warning: the connection to ") && warning.contains("wss://"),
            "{complaint}"
        );
        assert!(error.contains("403"), "{complaint}");
    }
}

#[test]
fn connection_that_is_local_or_encrypted_causes_no_warning() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [
        format!("ws://127.0.0.1:{port}"),
        format!("ws://localhost:{port}"),
        format!("wss://127.0.0.1:{port}"),
    ] {
        let complaint = complaint(&run(&["call", "--url", &url, "--token", TOKEN, "echo", "{}"]), 4);
        assert!(!complaint.contains("warning"), "{complaint}");
    }
}

#[test]
fn address_without_a_scheme_is_reported_first() {
    for arguments in [
        &["call", "--url", "localhost:7880", "echo", "{}"][..],
        &[
            "call",
            "--url",
            "localhost:7880",
            "--room",
            "r",
            "--api-key",
            "devkey",
            "--api-secret",
            "secret",
            "t",
            "{}",
        ],
        &["call", "--url", "localhost:7880", "--token", TOKEN, "echo", "{}"],
        &["doctor", "--url", "localhost:7880"],
        &["tools", "--url", "localhost:7880"],
    ] {
        let complaint = complaint(&run(arguments), 2);
        assert!(complaint.contains("no scheme (did you mean ws://localhost:7880?)"), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
}

#[test]
fn tls_to_a_server_without_tls_is_reported() {
    let port = answering("HTTP/1.0 400 Bad Request\r\n\r\n");
    let url = format!("wss://127.0.0.1:{port}");
    let complaint = complaint(&run(&["call", "--url", &url, "--token", TOKEN, "echo", "{}"]), 4);
    assert!(
        complaint.contains("does not speak TLS") && complaint.contains("ws:// instead of wss://"),
        "{complaint}"
    );
}

#[test]
fn refused_token_is_explained_by_the_servers_reason() {
    for (answer, wrong, advice) in [
        ("invalid API key: APItest", "does not know the API key", "`keys`"),
        (
            "invalid token: ey, error: signature is invalid",
            "not signed with the secret",
            "LIVEKIT_API_SECRET",
        ),
        ("invalid token: ey, error: token is expired (exp)", "has expired", "get a new token"),
        ("no permissions to access the room", "joining this room", "`roomJoin`"),
        ("<html>", "is signed with another key", "log gives the reason"),
    ] {
        let answer = format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        let url = format!("ws://127.0.0.1:{}", answering(answer));
        let complaint = complaint(&run(&["call", "--url", &url, "--token", TOKEN, "echo", "{}"]), 4);
        assert!(complaint.contains("HTTP 401") && complaint.contains(wrong), "{complaint}");
        assert!(complaint.contains(advice) && !complaint.contains("eyJ"), "{complaint}");
    }
}
