//! The built program as a development server.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{complaint, run, text, toolbridge};

/// Starts a server, and returns the variables that it prints.
pub(crate) fn dev() -> (Child, Vec<(String, String)>) {
    let (child, settings) = started(&mut toolbridge(&["dev", "--port", "0"]));
    assert_eq!(settings.len(), 3, "{settings:?}");
    (child, settings)
}

fn started(command: &mut Command) -> (Child, Vec<(String, String)>) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<_> = lines.take_while(|line| !line.contains("Ctrl-C")).collect();
    assert!(lines[0].contains("from this machine only"), "{lines:?}");
    let settings = lines.iter().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    let settings: Vec<_> = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    (child, settings)
}

#[test]
fn interruption_is_the_outcome_only_before_the_work_is_done() {
    let (mut server, settings) = dev();
    let start = |arguments: &[&str]| {
        let mut command = toolbridge(arguments);
        command.envs(settings.clone()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    // The demo has printed all, and is leaving its room.
    let mut demo = start(&["demo"]);
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("9 outcomes")));
    let _ = kill_process(Pid::from_child(&demo), Signal::INT); // it may have ended
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    // The ping waits for a client, and has measured nothing.
    let mut watch = start(&["watch", "--room", "r"]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("joined")), "it watches");
    let mut ping = start(&["ping", "--room", "r", "--identity", "pinger", "--timeout", "60s"]);
    assert!(lines.any(|line| line.contains("pinger") && line.contains("joined")));
    kill_process(Pid::from_child(&ping), Signal::INT).unwrap();
    assert_eq!(ping.wait().unwrap().code(), Some(130));
    for child in [&mut watch, &mut server] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn development_server_is_joined_with_its_printed_tokens_and_stops_by_ctrl_c() {
    let (child, settings) = dev();
    let demo = toolbridge(&["demo"]).envs(settings).output().unwrap();
    let shown = text(&demo.stdout);
    assert!(shown.contains("Using the LiveKit server ws://127.0.0.1:"), "{demo:?}");
    assert!(shown.contains("9 calls, 9 outcomes"), "{demo:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn port_in_use_is_reported_with_advice() {
    let (mut child, settings) = dev();
    let port = settings[0].1.rsplit(':').next().unwrap();
    let complaint = complaint(&run(&["dev", "--port", port]), 1);
    assert!(complaint.contains(port) && complaint.contains("--port"), "{complaint}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn key_without_a_secret_is_wrong_usage() {
    for key in ["devkey", ":secret", "devkey:", ""] {
        assert_eq!(run(&["dev", "--key", key]).status.code(), Some(2), "{key:?}");
    }
    assert_eq!(run(&["dev", "--port", "65534"]).status.code(), Some(2));
    for origin in ["*", "https://*", "app.example"] {
        let complaint = complaint(&run(&["dev", "--allow-origin", origin]), 2);
        assert!(complaint.contains(&format!("--allow-origin {origin}: ")), "{complaint}");
    }
}

#[test]
fn key_of_the_environment_is_used_and_its_secret_is_not_printed() {
    const SECRET: &str = "hunter2hunter2hunter2hunter2hunter2";
    let environment = [("LIVEKIT_API_KEY", "APItest"), ("LIVEKIT_API_SECRET", SECRET)];
    let (mut child, settings) = started(toolbridge(&["dev", "--port", "0"]).envs(environment));
    let [(name, url)] = &settings[..] else { panic!("only the address is printed: {settings:?}") };
    assert_eq!(name, "LIVEKIT_URL");
    let demo = toolbridge(&["demo"]).env(name, url).envs(environment).output().unwrap();
    assert!(text(&demo.stdout).contains("9 calls, 9 outcomes"), "{demo:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    for (name, other) in
        [("LIVEKIT_API_KEY", "LIVEKIT_API_SECRET"), ("LIVEKIT_API_SECRET", "LIVEKIT_API_KEY")]
    {
        let output = toolbridge(&["dev", "--port", "0"]).env(name, SECRET).output().unwrap();
        let complaint = complaint(&output, 2);
        assert!(complaint.contains(&format!("{name} is set without {other}")), "{complaint}");
        assert!(!complaint.contains("hunter2"), "{complaint}");
    }
}

#[test]
fn request_with_a_foreign_host_name_is_refused_unless_the_name_is_allowed() {
    let arguments = ["dev", "--port", "0", "--allow-host", "studio.local"];
    let (mut child, settings) = started(&mut toolbridge(&arguments));
    let address = settings[0].1.strip_prefix("ws://").unwrap().to_owned();
    let status = |host: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for host in [&*address, "localhost", "studio.local:7880"] {
        assert_eq!(status(host), "200", "{host}");
    }
    for foreign in ["evil.example", "evil.example:7880", "127.0.0.1.evil.example"] {
        assert_eq!(status(foreign), "403", "{foreign}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the command of a participant in a server's room.
fn participant(verb: &str, settings: &[(String, String)]) -> Command {
    let mut command = toolbridge(&[verb, "--room", "r"]);
    command.envs(settings.iter().cloned()).env_remove("LIVEKIT_TOKEN");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn client_without_tools_says_that_it_offers_none() {
    let (mut server, settings) = dev();
    let mut client = participant("client", &settings).spawn().unwrap();
    let mut errors = BufReader::new(client.stderr.take().unwrap()).lines();
    let line = errors.next().unwrap().unwrap();
    assert!(line.contains("this client offers no tools") && line.contains("--mcp"), "{line}");
    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    assert!(client.wait().unwrap().success(), "a command that runs until it is stopped ends with 0");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn assistant_that_is_stopped_while_its_input_ends_writes_its_last_line() {
    let (mut server, settings) = dev();
    for n in 0..8 {
        let mut assistant = participant("assistant", &settings).spawn().unwrap();
        let mut lines = BufReader::new(assistant.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("\"hello\"")), "{n}");
        drop(assistant.stdin.take());
        kill_process(Pid::from_child(&assistant), Signal::TERM).unwrap();
        let last = lines.last().unwrap_or_default();
        assert!(last.contains("\"event\":\"closed\"") && last.contains("\"kind\":\"closed\""), "{n}: {last}");
        assert!(assistant.wait().unwrap().success(), "{n}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
