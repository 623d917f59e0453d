//! The built program when it is stopped before it has joined.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use futures_util::{SinkExt as _, StreamExt as _};
use livekit_protocol::{
    JoinResponse, ParticipantInfo, SignalRequest, SignalResponse, signal_request, signal_response,
};
use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio_tungstenite::{WebSocketStream, accept_async};

use crate::cli::toolbridge;

/// Starts a verb that connects to a server which accepts the connection and sends nothing.
fn joining(verb: &[&str]) -> (Child, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let child = Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_toolbridge")]) // the test's own process may ignore it
        .args(verb)
        .args(["--room", "r", "--url", &format!("ws://{}", server.local_addr().unwrap())])
        .args(["--api-key", "k", "--api-secret", "s", "--token", ""])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (connection, _) = server.accept().unwrap();
    (child, connection)
}

#[test]
fn join_is_aborted_by_ctrl_c_sigterm_and_sighup() {
    let verbs = [&["call", "x"][..], &["client"], &["tools"], &["watch"], &["ping"], &["assistant"]];
    let signals = [Signal::INT, Signal::TERM, Signal::HUP].into_iter().cycle();
    let joining: Vec<_> = verbs.into_iter().map(|verb| (verb, joining(verb))).collect();
    for ((_, (child, _)), signal) in joining.iter().zip(signals) {
        kill_process(Pid::from_child(child), signal).unwrap();
    }
    for (verb, (child, _connection)) in joining {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{verb:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{verb:?}: {output:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn process_started_with_sighup_ignored_survives_sighup() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_toolbridge"))
        .args(["client", "--room", "r", "--url", &format!("ws://{}", server.local_addr().unwrap())])
        .args(["--api-key", "k", "--api-secret", "s", "--token", ""])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut connection, _) = server.accept().unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    // The program continues, and so it receives the refusal.
    connection.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

type Signaling = WebSocketStream<tokio::net::TcpStream>;

/// Starts a verb, and returns its signaling connection to a server that has not answered the join.
async fn asking(verb: &[&str]) -> (Child, Signaling) {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let child = toolbridge(verb)
        .args(["--room", "r", "--identity", "phone", "--url"])
        .arg(format!("ws://{}", server.local_addr().unwrap()))
        .args(["--api-key", "k", "--api-secret", "a secret of at least 32 characters"])
        .env("RUST_LOG", "toolbridge=debug")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (connection, _) = server.accept().await.unwrap();
    (child, accept_async(connection).await.unwrap())
}

async fn answer_join(signaling: &mut Signaling) {
    let participant =
        ParticipantInfo { sid: "PA_1".into(), identity: "phone".into(), ..ParticipantInfo::default() };
    let join = JoinResponse {
        participant: Some(participant),
        ping_interval: 5,
        ping_timeout: 15,
        ..JoinResponse::default()
    };
    let response = SignalResponse { message: Some(signal_response::Message::Join(join)) };
    signaling.send(response.encode_to_vec().into()).await.unwrap();
}

/// Returns whether a Leave arrives before the connection ends.
async fn leaves(signaling: &mut Signaling) -> bool {
    while let Some(Ok(frame)) = signaling.next().await {
        let request = SignalRequest::decode(frame.into_data()).unwrap();
        if matches!(request.message, Some(signal_request::Message::Leave(_))) {
            return true;
        }
    }
    false
}

/// The verbs that take part in calls.
const PARTICIPANTS: [&[&str]; 3] = [&["client"], &["assistant"], &["call", "x"]];

#[tokio::test]
async fn ctrl_c_before_the_server_answers_the_join_leaves_the_room() {
    for verb in PARTICIPANTS {
        let (mut child, mut signaling) = asking(verb).await;
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        answer_join(&mut signaling).await;
        assert!(leaves(&mut signaling).await, "{verb:?}");
        assert_eq!(child.wait().unwrap().code(), Some(130), "{verb:?}");
    }
}

#[tokio::test]
async fn ctrl_c_before_the_data_channels_are_open_leaves_the_room() {
    for verb in PARTICIPANTS {
        let (mut child, mut signaling) = asking(verb).await;
        answer_join(&mut signaling).await;
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(log.any(|line| line.contains("the server accepted the join")), "{verb:?}");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert!(leaves(&mut signaling).await, "{verb:?}");
        drop(signaling);
        log.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{verb:?}");
    }
}
