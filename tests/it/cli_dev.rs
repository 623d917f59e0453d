//! The built program as a server for development.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{complaint, run, text, toolbridge};

/// A server, and what it tells others to set.
pub(crate) fn dev() -> (Child, Vec<(String, String)>) {
    let mut child = toolbridge(&["dev", "--port", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<_> = lines.take_while(|line| !line.contains("Ctrl-C")).collect();
    assert!(lines[0].contains("on this machine only"), "{lines:?}");
    let settings = lines.iter().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    let settings: Vec<_> = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert_eq!(settings.len(), 3, "{lines:?}");
    (child, settings)
}

#[test]
fn a_server_for_development_is_joined_with_what_it_prints_and_ends_by_ctrl_c() {
    let (child, settings) = dev();
    let demo = toolbridge(&["demo"]).envs(settings).output().unwrap();
    let shown = text(&demo.stdout);
    assert!(shown.contains("over the LiveKit server ws://127.0.0.1:"), "{demo:?}");
    assert!(shown.contains("9 calls, 9 outcomes"), "{demo:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_port_that_is_taken_is_told_with_what_to_do() {
    let (mut child, settings) = dev();
    let port = settings[0].1.rsplit(':').next().unwrap();
    let complaint = complaint(&run(&["dev", "--port", port]), 1);
    assert!(complaint.contains(port) && complaint.contains("--port"), "{complaint}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_key_without_a_secret_is_wrong_usage() {
    for key in ["devkey", ":secret", "devkey:", ""] {
        assert_eq!(run(&["dev", "--key", key]).status.code(), Some(2), "{key:?}");
    }
    assert_eq!(run(&["dev", "--port", "65534"]).status.code(), Some(2));
}
