//! The built program when it is told to stop before it has got anywhere.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A verb on its way to a server that takes the connection and says nothing.
fn joining(verb: &[&str]) -> (Child, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let child = Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_toolbridge")]) // whoever runs this may ignore it
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
fn a_join_is_broken_off_by_ctrl_c_by_term_and_by_a_hangup() {
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
fn who_was_started_with_hangups_ignored_outlives_a_hangup() {
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
    // It goes on with what it was at, and so it hears that it is not let in.
    connection.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
