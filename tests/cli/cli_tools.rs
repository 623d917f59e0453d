//! A client whose tools are programs, a call from the command line, and the output at each end.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Output, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
};

use rustix::{
    fs::{Mode, OFlags, open},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};
use tokio::{sync::Notify, task::spawn_blocking};
use toolbridge::{Client, State, ToolContext, ToolError, Tools, livekit::AccessKey};

use crate::{
    cli::{text, toolbridge},
    cli_dev::dev,
    program_tools::{file, folder},
};

type Settings = Vec<(String, String)>;

/// A server, and a client in its room whose tools are shell scripts.
struct Stage {
    server: Child,
    settings: Settings,
    phone: Child,
    /// The client's stdout and stderr, line by line.
    said: Receiver<String>,
    warned: Receiver<String>,
}

pub(crate) fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    lines
}

/// Returns the first line that contains the text.
pub(crate) fn until(lines: &Receiver<String>, wanted: &str) -> String {
    loop {
        let line = lines.recv().unwrap_or_else(|_| panic!("the output ended without {wanted:?}"));
        if line.contains(wanted) {
            return line;
        }
    }
}

impl Stage {
    fn new(test: &str, tools: &[(&str, &str, &str)], stdin: Stdio, log: &str) -> Self {
        let mut toml = String::new();
        for (name, script, more) in tools {
            let script = toml::Value::from(*script);
            toml += &format!(
                "[[tools]]\nname = \"{name}\"\ndescription = \"\"\ncommand = [\"/bin/sh\", \"-c\", {script}]\n{more}\n"
            );
        }
        let tools = file(&folder(test), &toml);
        let (server, settings) = dev();
        let mut phone = toolbridge(&["client", "--room", "r", "--identity", "phone", "--tools"])
            .arg(tools)
            .envs(settings.clone())
            .env("RUST_LOG", log)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = lines(phone.stdout.take().unwrap());
        let warned = lines(phone.stderr.take().unwrap());
        until(&said, "joined as phone");
        Self { server, settings, phone, said, warned }
    }

    fn call(&self, arguments: &[&str]) -> Output {
        let all = [&["call", "--room", "r", "--to", "phone"], arguments].concat();
        toolbridge(&all).envs(self.settings.clone()).output().unwrap()
    }

    fn json(&self, arguments: &[&str], status: i32) -> Value {
        let output = self.call(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert_eq!(text(&output.stdout).lines().count(), 1, "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in [&mut self.phone, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Opens both ends of a new pseudo-terminal.
pub(crate) fn terminal() -> (File, Stdio) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let terminal = ptsname(&controller, Vec::new()).unwrap();
    let terminal = open(terminal, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    (File::from(controller), Stdio::from(terminal))
}

#[test]
fn invalid_output_of_a_program_is_one_short_line_on_stderr() {
    let script = r#"printf 'planted\033[31m\n%0600d' 0"#;
    let tools = [("bad", script, ""), ("fails", "echo planted-first >&2; echo said >&2; exit 1", "")];
    let mut stage = Stage::new("bad-output", &tools, Stdio::null(), "toolbridge=trace");
    let bad = stage.call(&["bad"]);
    let fails = stage.call(&["fails"]);
    assert!(text(&fails.stderr).contains("said"), "{fails:?}");
    for output in [bad, fails] {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!text(&output.stderr).contains("planted") && output.stdout.is_empty(), "{output:?}");
    }
    kill_process(Pid::from_child(&stage.phone), Signal::INT).unwrap();
    stage.phone.wait().unwrap();
    let (said, warned): (Vec<_>, Vec<_>) = (stage.said.iter().collect(), stage.warned.iter().collect());
    assert!(said.iter().all(|line| !line.contains("planted")), "{said:?}");
    let shown: Vec<_> = warned.iter().filter(|line| line.contains("planted")).collect();
    let [bad, fails] = shown[..] else { panic!("{shown:#?}") };
    assert!(bad.starts_with("│ bad failed: ") && fails.starts_with("│ fails failed: "), "{shown:#?}");
    assert!(bad.chars().count() == 202 && !bad.contains(char::is_control), "{bad:?}");
    assert!(bad.contains("not JSON") && bad.contains(r"planted\u{1b}[31m\u{a}000"), "{bad}");
    assert!(warned.iter().any(|line| line.contains("TRACE") || line.contains("DEBUG")), "{warned:#?}");
}

#[test]
fn question_at_the_terminal_is_shown_whole_and_again_and_answered_by_one_letter() {
    let (mut keyboard, stdin) = terminal();
    let stage = Stage::new("question", &[("wipe", "cat", "destructive = true")], stdin, "");
    let asks = |stage: &Stage, arguments: &str| {
        let (settings, arguments) = (stage.settings.clone(), arguments.to_owned());
        thread::spawn(move || {
            let line = ["call", "wipe", &arguments, "--room", "r", "--to", "phone", "--identity", "brain"];
            toolbridge(&line).envs(settings).output().unwrap()
        })
    };
    // All of the arguments is shown, after a mark, because a person allows only what is shown.
    let long = json!({"text": format!("{}; and the end", "x".repeat(15_000))}).to_string();
    let call = asks(&stage, &long);
    let question = until(&stage.warned, "run wipe");
    assert_eq!(question, "question 1: run wipe for brain with");
    assert_eq!(until(&stage.warned, "and the end"), format!("│ {long}"));
    assert!(until(&stage.warned, "type `yes 1`").contains("y or n"));
    keyboard.write_all(b"y\n").unwrap();
    let output = call.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let call = asks(&stage, &json!({"text": "x".repeat(17_000)}).to_string());
    assert!(until(&stage.warned, "question 2 is refused").contains("at most 16384 are shown"));
    assert!(text(&call.join().unwrap().stderr).contains("permission_denied"));
    let call = asks(&stage, "{}");
    until(&stage.warned, "type `yes 3`");
    // Other output does not hide it: it is printed again.
    keyboard.write_all(b"what?\n").unwrap();
    until(&stage.warned, "the number of the question");
    assert_eq!(until(&stage.warned, "question 3"), "question 3 is still open:");
    assert_eq!(until(&stage.warned, "question 3"), "question 3: run wipe for brain with");
    assert_eq!(until(&stage.warned, "│"), "│ {}");
    until(&stage.warned, "type `yes 3`");
    keyboard.write_all(b"n\n").unwrap();
    let output = call.join().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(text(&output.stderr).contains("permission_denied"), "{output:?}");
}

#[test]
fn call_reports_in_json_and_status_whether_the_tool_ran() {
    let tools = [
        ("echo", "cat", ""),
        ("fails", "echo no >&2; exit 1", ""),
        ("hangs", "sleep 1000", ""),
        ("typed", "cat", "input_schema = { type = \"object\", required = [\"n\"] }"),
    ];
    let stage = Stage::new("statuses", &tools, Stdio::null(), "");
    let done = stage.json(&["echo", r#"{"n": 1}"#], 0);
    assert_eq!((&done["value"], &done["error"]), (&json!({"n": 1}), &Value::Null), "{done}");
    for time in ["joinMs", "waitMs", "tookMs"] {
        assert!(done[time].as_f64().unwrap() >= 0.0, "{done}");
    }
    for (arguments, status, code) in [
        (&["fails"][..], 1, "execution_error"),
        (&["hangs", "--timeout", "200ms"], 1, "timeout"),
        (&["typed"], 4, "invalid_parameters"),
        (&["no_such_tool"], 4, "unknown_tool"),
    ] {
        let failed = stage.json(arguments, status);
        let error = &failed["error"];
        assert_eq!((&error["code"], &error["mayHaveRun"]), (&json!(code), &json!(status == 1)), "{failed}");
        assert!(error["message"].is_string() && failed["tookMs"].is_f64(), "{failed}");
    }
    let output = stage.call(&["hangs", "--timeout", "soon", "--json"]);
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
    let nowhere = ["hangs", "--url", "ws://127.0.0.1:1"];
    let failed = stage.json(&nowhere, 4);
    assert!(
        failed["error"]["code"] == "not_joined"
            && failed["error"]["mayHaveRun"] == false
            && failed["tookMs"].is_null(),
        "{failed}"
    );
}

/// Continues once the test has seen the progress.
async fn export(context: ToolContext, State(seen): State<Arc<Notify>>) -> Result<u8, ToolError> {
    context.progress("1 of 2\u{1b}[31m");
    seen.notified().await;
    Ok(2)
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_call_is_printed_on_a_terminal_only() {
    let (mut server, settings) = dev();
    let setting = |name: &str| settings.iter().find(|(it, _)| it == name).unwrap().1.clone();
    let key = AccessKey::new(setting("LIVEKIT_API_KEY"), setting("LIVEKIT_API_SECRET"));
    let seen = Arc::new(Notify::new());
    let tools = Tools::with_state(Arc::clone(&seen)).tool("export", "", export);
    let token = key.client("r", "phone").sign().unwrap();
    let _phone = Client::builder().tools(tools).join(&setting("LIVEKIT_URL"), &token).await.unwrap();
    let call = |stderr: Stdio| {
        toolbridge(&["call", "export", "--room", "r", "--to", "phone"])
            .envs(settings.clone())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap()
    };
    let (screen, stderr) = terminal();
    let shown = call(stderr);
    let line = spawn_blocking(move || until(&lines(screen), "1 of 2")).await.unwrap();
    assert_eq!(line.trim(), "│ … 1 of 2\\u{1b}[31m");
    seen.notify_one();
    let output = spawn_blocking(|| shown.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(text(&output.stdout), "{\"value\":2}\n", "{output:?}");
    seen.notify_one();
    let piped = call(Stdio::piped());
    let output = spawn_blocking(|| piped.wait_with_output().unwrap()).await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    server.kill().unwrap();
    server.wait().unwrap();
}
