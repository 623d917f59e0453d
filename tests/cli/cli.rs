//! The built program without a server: its output and its exit status.

use std::{
    fs::{self, File},
    io::Write as _,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use toolbridge::frame::Frame;

pub(crate) fn toolbridge(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbridge"));
    for name in ["LIVEKIT_URL", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET", "LIVEKIT_TOKEN", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    toolbridge(arguments).output().unwrap()
}

/// Runs the program with these bytes on standard input.
pub(crate) fn feed(arguments: &[&str], bytes: &[u8]) -> Output {
    let mut child = toolbridge(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    // The program may answer before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the single line on stderr, and asserts this status and no other output.
#[track_caller]
pub(crate) fn complaint(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text(&output.stderr).to_owned()
}

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "msgpack"));
    paths.sort();
    assert!(paths.len() >= 40);
    paths
}

/// The file of the same case, from any maker.
fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let case = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap();
    path.with_file_name(format!("{case}.{extension}"))
}

#[test]
fn help_names_every_verb() {
    let output = run(&["--help"]);
    assert!(output.status.success() && output.stderr.is_empty());
    let help = text(&output.stdout);
    let verbs = [
        "demo",
        "dev",
        "doctor",
        "token",
        "client",
        "call",
        "assistant",
        "mcp",
        "acp",
        "acp-agent",
        "rap",
        "tools",
        "watch",
        "ping",
        "frame",
        "completions",
    ];
    let of_recordings = ["info", "cat", "calls", "check", "repair", "redact", "report", "replay"];
    for verb in verbs.into_iter().chain(of_recordings) {
        assert!(help.lines().any(|line| line.trim_start().starts_with(verb)), "{verb}: {help}");
        let of_verb = run(&[verb, "--help"]);
        assert!(of_verb.status.success() && !of_verb.stdout.is_empty(), "{verb}");
    }
    assert!(!help.contains("LIVEKIT_API_SECRET="), "{help}");
    let version = run(&["--version"]);
    assert_eq!(text(&version.stdout).trim_end(), concat!("toolbridge ", env!("CARGO_PKG_VERSION")));
}

/// The main thread of a program for Windows has as much.
#[test]
fn mebibyte_of_stack_is_enough_for_a_verb_and_for_a_whole_session() {
    let limit = ["-c", "ulimit -s 1024 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_toolbridge")];
    for (arguments, status) in
        [(&["demo"][..], 0), (&["client", "--token", "none"], 2), (&["token", "--help"], 0)]
    {
        let output = Command::new("/bin/sh")
            .env_clear()
            .args(limit)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    }
}

#[test]
fn completions_for_bash_are_valid_and_name_every_verb_for_people() {
    let help = run(&["--help"]);
    let listed = text(&help.stdout).lines().skip_while(|line| *line != "Rooms:");
    let verbs: Vec<_> = listed
        .take_while(|line| *line != "Options:")
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 20 && verbs.contains(&"completions"), "{verbs:?}");
    let output = run(&["completions", "bash"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let script = text(&output.stdout);
    for verb in verbs {
        assert!(script.contains(&format!("toolbridge,{verb})")), "{verb}: {script}");
    }
    assert!(!script.contains("supervise"), "{script}");
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(&output.stdout).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn completions_exist_for_each_shell_and_a_reader_may_stop() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("assistant"), "{shell}: {output:?}");
    }
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
    let mut child =
        toolbridge(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn help_shows_no_secret_of_the_environment() {
    let verbs = [
        "call",
        "client",
        "token",
        "watch",
        "ping",
        "tools",
        "demo",
        "assistant",
        "mcp",
        "acp",
        "acp-agent",
        "rap",
    ];
    for verb in verbs {
        let output = toolbridge(&[verb, "--help"])
            .env("LIVEKIT_API_SECRET", "hunter2")
            .env("LIVEKIT_TOKEN", "hunter2")
            .env("LIVEKIT_API_KEY", "hunter2")
            .output()
            .unwrap();
        assert!(output.status.success() && !text(&output.stdout).contains("hunter2"), "{verb}");
    }
}

#[test]
fn wrong_usage_exits_with_status_2() {
    let url = ["--url", "ws://127.0.0.1:1"];
    let key = ["--api-key", "key", "--api-secret", "a secret of at least 32 characters"];
    let known = [&url[..], &key].concat();
    let with = |words: &[&'static str]| [words, &known].concat();
    let existing = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (arguments, says) in [
        (vec![], "Usage"),
        (vec!["dance"], "dance"),
        (vec!["call"], "TOOL"),
        (with(&["call", "t", "--room", "r", "--timeout", "soon"]), "soon"),
        (with(&["ping", "--room", "r", "--count", "0"]), "0"),
        (with(&["call", "t", "{not json", "--room", "r"]), "one JSON object in quotes, such as"),
        (
            with(&["call", "t", "on=true", "n=3", "--room", "r"]),
            r#"write: toolbridge call t '{"on":true,"n":3}'"#,
        ),
        (with(&["call", "t", "[1]", "--room", "r"]), "JSON object"),
        (with(&["call", "t"]), "--room"),
        (with(&["watch"]), "--room"),
        (with(&["mcp"]), "--room"),
        (with(&["acp-agent"]), "--room"),
        (with(&["acp", "--room", "r"]), "COMMAND"),
        // The agent is not started: it would end at once.
        ([&["acp"], &known[..], &["--", "true"]].concat(), "--room"),
        (
            [&["acp", "--room", "r"], &known[..], &["--", "no-such-program-here"]].concat(),
            "no-such-program-here",
        ),
        (
            [&["acp", "--room", "r", "--record", existing], &known[..], &["--", "true"]].concat(),
            "already exists",
        ),
        (with(&["mcp", "--attach", "http://127.0.0.1:1/mcp", "--room", "r"]), "--room"),
        (with(&["mcp", "--attach", "http://192.0.2.1/mcp"]), "https"),
        (with(&["mcp", "--room", "r", "--listen", "nowhere"]), "nowhere"),
        (with(&["assistant", "--room", "r", "--deny", "t"]), "--mcp-listen or --rap-listen"),
        (
            with(&["assistant", "--room", "r", "--allow-host", "h", "--rap-listen", "127.0.0.1:0"]),
            "--mcp-listen",
        ),
        (
            with(&["assistant", "--room", "r", "--allow-callback", "h", "--mcp-listen", "127.0.0.1:0"]),
            "--rap-listen",
        ),
        (with(&["rap"]), "--room"),
        (with(&["rap", "--room", "r", "--listen", "nowhere"]), "nowhere"),
        (with(&["rap", "--room", "r", "--allow-callback", "http://h"]), "is not a host"),
        (with(&["rap", "--room", "r", "--allow-callback", "h:99999"]), "h:99999"),
        (with(&["rap", "--room", "r", "--public", "tools.example.com"]), "https://tools.example.com/home"),
        (with(&["client", "--room", "r", "--tools", "/no/such/tools.toml"]), "/no/such/tools.toml"),
        (with(&["call", "t", "--room", "r", "--root-certificate", "/no/such.pem"]), "/no/such.pem"),
        (with(&["call", "t", "--room", "r", "--to", ""]), "--to"),
        (with(&["call", "t", "--room", "r", "--identity", ""]), "--identity"),
        (with(&["client", "--room", "r", "--assistant", ""]), "--assistant"),
        (with(&["client", "--room", "r", "--answer-rpc", "--rpc-caller", ""]), "--rpc-caller"),
        (with(&["mcp", "--room", "r", "--client", ""]), "--client"),
        (with(&["call", "t", "--room", "r", "--e2ee-key-file", "/no/such.key"]), "/no/such.key"),
        (with(&["call", "t", "--room", "r", "--e2ee-key-file", "/dev/null"]), "the file is empty"),
        (with(&["call", "t", "--room", "r", "--e2ee-key-file", "/dev/zero"]), "the file is too large"),
        (with(&["call", "t", "--room", "r", "--root-certificate", "/dev/zero"]), "the file is too large"),
        ([&["call", "t", "--room", "r"], &key[..]].concat(), "LIVEKIT_URL"),
        ([&["call", "t", "--room", "r"], &url[..]].concat(), "LIVEKIT_API_KEY"),
        (vec!["token", "--room", "r", "--identity", "i"], "LIVEKIT_API_KEY"),
        ([&["token", "--room", "", "--identity", "i"], &key[..]].concat(), "room"),
        ([&["token", "--room", "r", "--identity", "i", "--ttl", "48h"], &key[..]].concat(), "at most 1day"),
        (vec!["frame", "decode", "/no/such/frame"], "/no/such/frame"),
        (vec!["frame"], "decode"),
    ] {
        let output = run(&arguments);
        let complaint = complaint(&output, 2);
        assert!(complaint.contains(says), "{arguments:?}: {complaint}");
    }
}

#[test]
fn help_of_identity_speaks_of_calls_only_where_the_verb_makes_them() {
    for (verb, makes_calls) in [
        ("call", true),
        ("ping", true),
        ("assistant", true),
        ("mcp", true),
        ("rap", true),
        ("acp", true),
        ("acp-agent", true),
        ("record", false),
        ("watch", false),
        ("tools", false),
        ("client", false),
    ] {
        let help = String::from_utf8(run(&[verb, "--help"]).stdout).unwrap();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("Identity to join under"), "{verb}");
        assert_eq!(help.contains("accepts calls from that identity only"), makes_calls, "{verb}");
    }
}

#[test]
fn development_key_is_used_for_this_machine_only() {
    let key = ["--api-key", "devkey", "--api-secret", "secretsecretsecretsecretsecretsecret"];
    for url in ["wss://example.com", "ws://127.0.0.1.example.com:7880", "ws://10.0.0.1:7880"] {
        for verb in [
            &["call", "t"][..],
            &["client"],
            &["watch"],
            &["tools"],
            &["ping"],
            &["assistant"],
            &["mcp"],
            &["acp"],
            &["acp-agent"],
            &["rap"],
        ] {
            let agent: &[&str] = if verb == ["acp"] { &["--", "true"] } else { &[] };
            let arguments = [verb, &["--room", "r", "--url", url], &key, agent].concat();
            let complaint = complaint(&run(&arguments), 2);
            assert!(complaint.contains("devkey") && complaint.lines().count() == 1, "{complaint}");
        }
    }
}

#[test]
fn unreachable_server_exits_with_a_failure_and_advice() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("ws://127.0.0.1:{port}");
    let key = ["--api-key", "key", "--api-secret", "a secret of at least 32 characters"];
    for verb in [
        &["call", "t"][..],
        &["client"],
        &["watch"],
        &["tools"],
        &["ping"],
        &["assistant"],
        &["mcp"],
        &["acp-agent"],
        &["rap"],
    ] {
        let arguments = [verb, &["--room", "r", "--url", &url], &key].concat();
        let output = run(&arguments);
        // A call that was never made has its own status; a driver reads the reason on stdout.
        let status = if verb[0] == "call" { 4 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert_eq!(output.stdout.is_empty(), verb[0] != "assistant", "{output:?}");
        let complaint = text(&output.stderr);
        assert!(complaint.contains(&format!("127.0.0.1:{port} cannot be reached")), "{complaint}");
        assert!(complaint.contains("check the host name, the port"), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
}

#[test]
fn invalid_address_or_token_is_reported_with_advice() {
    let key = ["--api-key", "key", "--api-secret", "a secret of at least 32 characters"];
    let output = run(&[&["call", "t", "--room", "r", "--url", "not an address"], &key[..]].concat());
    assert!(complaint(&output, 2).contains("wss://HOST"), "{output:?}");
    let output = run(&["call", "t", "--url", "ws://127.0.0.1:1", "--token", "hunter2 is no token"]);
    let complaint = complaint(&output, 4);
    assert!(complaint.contains("not a JWT") && !complaint.contains("hunter2"), "{complaint}");
}

#[test]
fn decode_prints_the_canonical_json_of_every_fixture() {
    for path in fixtures("frames") {
        let output = run(&["frame", "decode", path.to_str().unwrap()]);
        assert!(output.status.success() && output.stderr.is_empty(), "{path:?}: {output:?}");
        let shown = text(&output.stdout);
        assert!(shown.ends_with('\n') && shown.lines().count() == 1, "{path:?}: {shown}");
        let value: Value = serde_json::from_str(shown).unwrap();
        let expected: Value =
            serde_json::from_slice(&fs::read(with_extension(&path, "json")).unwrap()).unwrap();
        assert_eq!(value.to_string(), expected.to_string(), "{path:?}");
    }
}

#[test]
fn decode_reports_an_error_and_its_place_in_one_line() {
    for path in fixtures("refused") {
        let output = run(&["frame", "decode", path.to_str().unwrap()]);
        let complaint = complaint(&output, 1);
        assert_eq!(complaint.lines().count(), 1, "{path:?}: {complaint}");
        let reason = fs::read_to_string(with_extension(&path, "txt")).unwrap();
        assert!(complaint.contains(reason.trim()), "{path:?}: {complaint}");
        // An error about something missing has no position.
        let has_place = complaint.contains("byte ") || complaint.contains("bytes ");
        assert!(has_place || complaint.trim_end().ends_with("` is missing"), "{path:?}: {complaint}");
    }
}

#[test]
fn encode_reverses_decode() {
    for path in fixtures("frames") {
        let json = run(&["frame", "decode", path.to_str().unwrap()]).stdout;
        let bytes = feed(&["frame", "encode", "-"], &json);
        assert!(bytes.status.success() && bytes.stderr.is_empty(), "{path:?}: {bytes:?}");
        assert!(Frame::decode(bytes.stdout.clone()).is_ok(), "{path:?}");
        let again = feed(&["frame", "decode", "-"], &bytes.stdout);
        assert_eq!(text(&again.stdout), text(&json), "{path:?}");
        // Written output is stable when it is converted again.
        assert_eq!(feed(&["frame", "encode", "-"], &again.stdout).stdout, bytes.stdout, "{path:?}");
    }
}

#[test]
fn encode_refuses_input_that_is_not_a_frame() {
    for bad in ["", "{", "[]", "{\"type\": \"six\"}", "\u{1b}[31m"] {
        let output = feed(&["frame", "encode", "-"], bad.as_bytes());
        let complaint = complaint(&output, 1);
        assert_eq!(complaint.lines().count(), 1, "{bad:?}: {complaint}");
        assert!(!complaint.trim_end().contains(char::is_control), "{bad:?}: {complaint:?}");
    }
    assert_eq!(feed(&["frame", "encode", "-"], b"\xff\xfe").status.code(), Some(1));
}

#[test]
fn frame_above_the_limit_is_refused_by_its_size() {
    let output = feed(&["frame", "decode", "-"], &vec![0; 17 * 1024 * 1024]);
    let complaint = complaint(&output, 1);
    assert!(complaint.contains("16777216"), "{complaint}");
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    for arguments in [&["demo"][..], &["frame", "decode", "-"], &["--help"], &["call", "--help"]] {
        let mut child = toolbridge(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let frame = fs::read(&fixtures("frames")[0]).unwrap();
        let _ = child.stdin.take().unwrap().write_all(&frame);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn closed_stderr_does_not_change_the_status() {
    let mut child = toolbridge(&["frame", "decode", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    child.stdin.take().unwrap().write_all(b"\xc1").unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
}

#[test]
fn full_disk_is_an_error() {
    let Ok(full) = File::options().write(true).open("/dev/full") else { return };
    let path = &fixtures("frames")[0];
    let output =
        toolbridge(&["frame", "decode", path.to_str().unwrap()]).stdout(full).stderr(Stdio::piped()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
}

#[test]
fn demo_needs_no_configuration() {
    let output = run(&["demo"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let shown = text(&output.stdout);
    for row in [
        ["get_battery", "ok"],
        ["find_contact", "ok"],
        ["set_lamp", "ok"],
        ["export_album", "3 of 3"],
        ["export_album", "ok"],
        ["search_web", "server"],
        ["find_contact", "invalid_parameters"],
        ["find_contact", "execution_error"],
        ["export_album", "timeout"],
        ["open_garage", "unknown_tool"],
    ] {
        assert!(shown.lines().any(|line| row.iter().all(|word| line.contains(word))), "{row:?}: {shown}");
    }
    assert!(shown.contains("9 calls, 9 outcomes"), "{shown}");
}

#[test]
fn demo_with_an_expired_token_reports_the_reason() {
    let output = run(&["demo", "--url", "ws://127.0.0.1:1", "--token", "t"]);
    assert!(complaint(&output, 2).contains("joins as two participants"), "{output:?}");
}

#[test]
fn sec_x3_tools_file_that_others_may_write_is_refused() {
    let folder = std::env::temp_dir().join(format!("toolbridge-it-cli-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tools.toml");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let output = run(&["client", "--room", "r", "--tools", file.to_str().unwrap()]);
    let complaint = complaint(&output, 2);
    fs::remove_dir_all(&folder).unwrap();
    assert!(complaint.contains("tools.toml") && complaint.lines().count() == 1, "{complaint}");
}

#[test]
fn sec_c3_decoded_frame_cannot_control_the_terminal() {
    let evil = "\u{1b}[2J\u{9b}31m\u{202e}evil\u{200b}\u{7}\u{7f}";
    let json = serde_json::json!({
        "stanzaId": -1, "conversationId": evil, "type": 6, "name": "ToolUseRequest", "meta": {evil: evil},
        "body": {"id": evil, "toolName": evil, "parameters": {evil: [evil]}, "execution": "client", evil: evil},
        "extra": {evil: evil},
    });
    let bytes = feed(&["frame", "encode", "-"], json.to_string().as_bytes());
    assert!(bytes.status.success(), "{bytes:?}");
    let decoded = feed(&["frame", "decode", "-"], &bytes.stdout);
    let shown = text(&decoded.stdout).trim_end();
    assert!(!shown.contains(char::is_control) && !shown.contains(['\u{202e}', '\u{200b}']), "{shown:?}");
    let value: Value = serde_json::from_str(shown).unwrap();
    assert_eq!(value["body"]["toolName"], evil);
    // An argument may come from an attacker, too.
    for arguments in [&["frame", "decode", evil][..], &["call", "t", evil, "--url", evil]] {
        let output = run(arguments);
        let shown = text(&output.stderr).trim_end();
        assert!(!shown.is_empty() && !shown.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']), "{shown:?}");
    }
}
