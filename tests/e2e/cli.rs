//! The built program against a real server, as a person or a script runs it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use livekit_token::Claims;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use toolbridge::{Assistant, Client, ToolError, Tools, transport::ROLE_ATTRIBUTE};

use crate::{
    ends::{assistant, client, double, hang, nothing_offered, patient, started},
    program::{Output, Program, tools_file},
    relay::Relay,
    server::{KEY, Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![cli:
        tools_that_are_programs_are_called_from_a_shell,
        two_calls_in_a_row_work,
        two_calls_in_a_row_of_a_named_assistant_need_no_announcement,
        ctrl_c_stops_the_call_and_says_goodbye,
        ctrl_c_of_a_client_says_goodbye,
        tools_lists_offered_tools,
        watch_sees_the_frames_of_a_call,
        ping_counts,
        two_clients_with_one_tool_are_named,
        client_refuses_a_file_that_others_may_write,
        token_has_the_requested_claims,
        finished_token_is_sufficient,
        demo_runs_over_a_server,
        client_without_permission_to_send_reports_it,
        sec_c3_nothing_controls_the_terminal,
        call_after_a_lost_goodbye_waits_until_the_client_is_free,
        machine_suspended_for_4_s_continues,
        client_with_a_limit_gives_up_a_lost_connection,
        client_whose_output_is_not_read_answers_and_leaves,
    ]
}

/// Programs that succeed, fail, and take too long.
const PROGRAMS: &[(&str, &str)] = &[
    ("where_is", r#"echo "{\"room\": \"kitchen\"}""#),
    ("echo", "cat"),
    ("fail", "echo first >&2; echo 'the lamp is broken' >&2; exit 3"),
    ("nap", "exec /bin/sleep 60"),
];

/// Starts `toolbridge client` and waits until it has joined the room.
async fn cli_client(server: &Server, room: &str, identity: &str) -> anyhow::Result<Program> {
    let file = tools_file(&format!("{room}-{identity}"), PROGRAMS)?;
    let mut client = Program::toolbridge(server, &["client", "--room", room, "--identity", identity])
        .arg("--tools")
        .arg(&file)
        .start()?;
    client.line(&format!("joined as {identity}")).await?;
    Ok(client)
}

async fn call(server: &Server, room: &str, arguments: &[&str]) -> anyhow::Result<Output> {
    let all = [&["call", "--room", room], arguments].concat();
    Program::toolbridge(server, &all).run().await
}

/// Asserts success: JSON on stdout, nothing but hints on stderr.
fn value_of(output: &Output) -> anyhow::Result<Value> {
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.stderr.lines().all(|line| line.starts_with("waiting for ")), "{output:?}");
    Ok(serde_json::from_str(&output.stdout)?)
}

/// Asserts failure: its text on stderr, nothing on stdout, this status.
fn failure_of(output: &Output, status: i32) -> anyhow::Result<&str> {
    ensure!(output.code == Some(status) && output.stdout.is_empty(), "{output:?}");
    let lines: Vec<_> = output.stderr.lines().filter(|line| !line.starts_with("waiting for ")).collect();
    ensure!(lines.len() == 1, "{output:?}");
    lines[0].strip_prefix("toolbridge: ").with_context(|| format!("{output:?}"))
}

async fn tools_that_are_programs_are_called_from_a_shell() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-programs");
    let mut phone = cli_client(&server, room, "phone").await?;
    let ok = call(&server, room, &["where_is"]).await?;
    ensure!(value_of(&ok)? == json!({"room": "kitchen"}), "{ok:?}");
    ensure!(ok.stdout.ends_with("}\n") && ok.stdout.lines().count() == 1, "{ok:?}");
    phone.line("bound to the assistant toolbridge-call-").await?;
    phone.line("where_is: ok after ").await?;
    phone.line("not bound to an assistant").await?;

    let ok = call(&server, room, &["echo", r#"{"text": "grüß dich", "n": [1, 2.5]}"#]).await?;
    ensure!(value_of(&ok)? == json!({"text": "grüß dich", "n": [1, 2.5]}), "{ok:?}");
    phone.line("not bound to an assistant").await?;

    let failed = call(&server, room, &["fail"]).await?;
    let text = failure_of(&failed, 1)?;
    ensure!(text.starts_with("execution_error: ") && text.contains("the lamp is broken"), "{text}");
    ensure!(!text.contains("first"), "more than the last line is sent: {text}");
    phone.line("fail: execution_error after ").await?;
    phone.line("not bound to an assistant").await?;

    let late = call(&server, room, &["nap", "--timeout", "8s", "--to", "phone"]).await?;
    let text = failure_of(&late, 1)?;
    ensure!(text.starts_with("timeout: ") && text.contains("8000 ms"), "{text}");
    phone.line("nap: ").await?;
    phone.line("not bound to an assistant").await?;

    let unknown = call(&server, room, &["fly", "--to", "phone"]).await?;
    let text = failure_of(&unknown, 4)?;
    ensure!(text.starts_with("unknown_tool: ") && text.contains("fly"), "{text}");
    ensure!(text.contains("the tool did not run"), "{text}");
    Ok(())
}

async fn two_calls_in_a_row_work() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-twice");
    let _phone = cli_client(&server, room, "phone").await?;
    for n in 1..=2 {
        let began = Instant::now();
        let output = call(&server, room, &["echo", &format!(r#"{{"n": {n}}}"#), "--to", "phone"]).await?;
        ensure!(value_of(&output)? == json!({"n": n}), "{output:?}");
        println!("call {n} from a shell: {:?}", began.elapsed());
    }
    Ok(())
}

/// The same identity twice, each time another run of the program.
async fn two_calls_in_a_row_of_a_named_assistant_need_no_announcement() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-twice-named");
    let file = tools_file(room, PROGRAMS)?;
    let arguments = ["client", "--room", room, "--identity", "phone", "--assistant", "brain"];
    let mut phone = Program::toolbridge(&server, &arguments).arg("--tools").arg(&file).start()?;
    phone.line("joined as phone").await?;
    for n in 1..=3 {
        let began = Instant::now();
        let output = call(&server, room, &["where_is", "--identity", "brain", "--to", "phone"]).await?;
        ensure!(value_of(&output)? == json!({"room": "kitchen"}), "{output:?}");
        println!("call {n} from a shell, both named: {:?}", began.elapsed());
        phone.line("where_is: ok after ").await?;
        phone.line("not bound to an assistant").await?;
    }
    Ok(())
}

async fn ctrl_c_stops_the_call_and_says_goodbye() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-ctrl-c");
    let marks = tools_file("ctrl-c-marks", &[])?;
    let mark = marks.with_file_name("running");
    // The program holds a lock for as long as it lives.
    let line =
        format!("exec flock -x {} sh -c 'echo on > {}; exec sleep 60'", mark.display(), mark.display());
    let file = tools_file("ctrl-c", &[("nap", &line)])?;
    let mut phone = Program::toolbridge(&server, &["client", "--room", room, "--identity", "phone"])
        .arg("--tools")
        .arg(&file)
        .start()?;
    phone.line("joined as phone").await?;
    let caller =
        Program::toolbridge(&server, &["call", "nap", "--room", room, "--identity", "caller"]).start()?;
    phone.line("caller called nap").await?;
    soon("the program", async {
        while fs::read(&mark).unwrap_or_default().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    caller.interrupt()?;
    let output = caller.finish().await?;
    ensure!(output.code == Some(130) && output.stdout.is_empty(), "{output:?}");
    phone.line("nap: cancelled after ").await?;
    phone.line("not bound to an assistant").await?;
    // The lock is free as soon as the program is dead.
    let free = tokio::process::Command::new("flock").arg("-x").arg(&mark).arg("true").status();
    ensure!(soon("the program's end", free).await??.success());
    Ok(())
}

async fn ctrl_c_of_a_client_says_goodbye() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-client-ctrl-c");
    let phone = cli_client(&server, room, "phone").await?;
    let brain = Assistant::builder().client("phone").configure(patient);
    let brain = assistant(&server, room, "assistant", brain).await?;
    brain.call("where_is", ()).await?;
    phone.interrupt()?;
    let output = phone.finish().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    nothing_offered(&brain).await?;
    Ok(())
}

async fn tools_lists_offered_tools() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-tools");
    let _phone = cli_client(&server, room, "phone").await?;
    let offered = Client::builder().tool("double", "Twice a number", double);
    let _tv = client(&server, room, "tv", offered).await?;
    let _brain = assistant(&server, room, "assistant", Assistant::builder().tool("search", "", hang)).await?;
    let output = Program::toolbridge(&server, &["tools", "--room", room, "--wait", "20s"]).run().await?;
    ensure!(output.code == Some(0), "{output:?}");
    for words in [["phone", "where_is"], ["phone", "nap"], ["tv", "double"], ["assistant", "search"]] {
        let is_there = output.stdout.lines().any(|line| words.iter().all(|word| line.contains(word)));
        ensure!(is_there, "{words:?}: {output:?}");
    }
    let output =
        Program::toolbridge(&server, &["tools", "--json", "--room", room, "--wait", "20s"]).run().await?;
    ensure!(output.code == Some(0) && output.stdout.lines().count() == 1, "{output:?}");
    let tools: Value = serde_json::from_str(&output.stdout)?;
    let tools = tools.as_array().context("no list")?;
    let double = tools.iter().find(|tool| tool["name"] == "double").context("no double")?;
    ensure!(double["owner"] == "tv" && double["description"] == "Twice a number", "{double}");
    ensure!(double["inputSchema"]["properties"]["n"].is_object(), "{double}");
    ensure!(tools.len() == PROGRAMS.len() + 2, "{tools:?}");
    Ok(())
}

async fn watch_sees_the_frames_of_a_call() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-watch");
    let mut watch = Program::toolbridge(&server, &["watch", "--json", "--room", room]).start()?;
    let phone = cli_client(&server, room, "phone").await?;
    // An observer gets copies only once both participants have been told of it.
    let brain = assistant(&server, room, "assistant", Assistant::builder().client("phone")).await?;
    let knows = soon("the observer", async {
        while !brain.participants().iter().any(|who| who.identity().as_str().starts_with("toolbridge-watch"))
        {
            tokio::task::yield_now().await;
        }
    });
    knows.await?;
    brain.call("echo", json!({"text": "seen"})).await?;
    let request = watch
        .find("the request", |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["frame"]["name"] == "ToolUseRequest").then_some(value)
        })
        .await?;
    ensure!(request["from"] == "assistant" && request["topic"] == "toolbridge", "{request}");
    ensure!(request["frame"]["body"]["parameters"] == json!({"text": "seen"}), "{request}");
    let result = watch
        .find("the result", |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["frame"]["name"] == "ToolUseResult").then_some(value)
        })
        .await?;
    ensure!(result["from"] == "phone", "{result}");
    ensure!(result["frame"]["body"]["id"] == request["frame"]["body"]["id"], "{result}");

    // A frame that is larger than a packet arrives as a byte stream, and is printed as a frame.
    let text = "x".repeat(40_000);
    brain.call("echo", json!({"text": text})).await?;
    let large = watch
        .find("the large request", |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            let is_it = value["frame"]["name"] == "ToolUseRequest" && value["bytes"].as_u64()? > 40_000;
            is_it.then_some(value)
        })
        .await?;
    ensure!(large["frame"]["body"]["parameters"] == json!({"text": text}), "a part of the text is missing");
    drop(phone);
    watch.interrupt()?;
    ensure!(watch.finish().await?.code == Some(0));
    Ok(())
}

async fn ping_counts() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-ping");
    let _phone = cli_client(&server, room, "phone").await?;
    let arguments =
        ["ping", "--json", "--room", room, "--to", "phone", "--count", "20", "--interval", "20ms"];
    let output = Program::toolbridge(&server, &arguments).run().await?;
    ensure!(output.code == Some(0), "{output:?}");
    let lines: Vec<Value> = output.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.len() == 21, "{output:?}");
    let summary = &lines[20];
    ensure!(summary["sent"] == 20 && summary["answered"] == 20, "{summary}");
    ensure!(summary["p50Ms"].as_f64() <= summary["p99Ms"].as_f64() && summary["maxMs"].is_f64(), "{summary}");
    ensure!(lines[..20].iter().all(|line| line["tookMs"].is_f64()), "{lines:?}");
    println!("ping over loopback: {summary}");
    let nobody =
        Program::toolbridge(&server, &["ping", "--room", "cli-ping-nobody", "--count", "1"]).run().await?;
    failure_of(&nobody, 1)?;
    Ok(())
}

async fn two_clients_with_one_tool_are_named() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-ambiguous");
    let one = client(&server, room, "kitchen", Client::builder().tool("double", "", double)).await?;
    let two = client(&server, room, "hall", Client::builder().tool("double", "", double)).await?;
    // Both have to be announced; an earlier call would reach only one.
    let met = soon("both", async {
        while one.participants().is_empty() || two.participants().is_empty() {
            tokio::task::yield_now().await;
        }
    });
    met.await?;
    let brain = assistant(&server, room, "brain", Assistant::builder()).await?;
    soon("both registrations", async {
        while brain.tools().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    let error = brain.call("double", json!({"n": 1})).await.unwrap_err();
    ensure!(!error.may_have_run() && error.to_string().contains("kitchen"), "{error}");
    brain.close().await;

    let output = call(&server, room, &["double", r#"{"n": 1}"#]).await?;
    let text = failure_of(&output, 4)?;
    ensure!(text.contains("hall") && text.contains("kitchen") && text.contains("--to"), "{text}");
    let output = call(&server, room, &["double", r#"{"n": 1}"#, "--to", "hall"]).await?;
    ensure!(value_of(&output)? == json!({"value": 2}), "{output:?}");
    Ok(())
}

async fn client_refuses_a_file_that_others_may_write() -> anyhow::Result<()> {
    let server = shared()?;
    let file = tools_file("writable", PROGRAMS)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
    let output = Program::toolbridge(&server, &["client", "--room", "r", "--tools"]).arg(&file).run().await?;
    let text = failure_of(&output, 2)?;
    ensure!(text.contains("tools.toml"), "{text}");
    Ok(())
}

async fn token_has_the_requested_claims() -> anyhow::Result<()> {
    let server = shared()?;
    for role in ["client", "assistant", "observer"] {
        let arguments = ["token", "--room", "kitchen", "--identity", "ada", "--role", role, "--ttl", "90s"];
        let output = Program::toolbridge(&server, &arguments).run().await?;
        ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
        let claims = Claims::from_unverified(output.stdout.trim_end())?;
        ensure!(claims.sub == "ada" && claims.iss == KEY && claims.video.room == "kitchen");
        ensure!(claims.attributes[ROLE_ATTRIBUTE] == role && claims.exp - claims.nbf == 90);
        ensure!(claims.video.can_publish_data == Some(role != "observer") && !claims.video.room_admin);
        ensure!(claims.video.can_update_own_metadata == Some(false));
    }
    Ok(())
}

async fn finished_token_is_sufficient() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-finished-token");
    let _phone = client(&server, room, "phone", Client::builder().tool("double", "", double)).await?;
    let token = server.key().assistant(room, "helper").sign()?;
    let output =
        Program::toolbridge(&server, &["call", "double", r#"{"n": 3}"#, "--to", "phone", "--token", &token])
            .without_key()
            .run()
            .await?;
    ensure!(value_of(&output)? == json!({"value": 6}), "{output:?}");
    Ok(())
}

async fn demo_runs_over_a_server() -> anyhow::Result<()> {
    let server = shared()?;
    let output = Program::toolbridge(&server, &["demo"]).run().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    ensure!(output.stdout.contains("Using the LiveKit server ws://127.0.0.1:"), "{output:?}");
    ensure!(output.stdout.contains("9 calls, 9 outcomes"), "{output:?}");
    println!("{}", output.stdout);
    Ok(())
}

async fn client_without_permission_to_send_reports_it() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-muted");
    let token = server.key().client(room, "phone").listen_only().sign()?;
    let mut phone =
        Program::toolbridge(&server, &["client", "--assistant", "assistant", "--token", &token]).start()?;
    phone.line("canPublishData").await?;
    Ok(())
}

/// Characters that would move the cursor, change colors, reverse text, or be invisible.
const EVIL: &str = "\u{1b}[2J\u{9b}31m\u{202e}evil\u{200b}\u{7}";

fn is_plain(output: &Output) -> bool {
    let dangerous = |it: char| {
        (it.is_control() && it != '\n') || matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
    };
    !output.stdout.contains(dangerous) && !output.stderr.contains(dangerous)
}

async fn sec_c3_nothing_controls_the_terminal() -> anyhow::Result<()> {
    async fn answer() -> Result<String, ToolError> {
        Ok(EVIL.to_owned())
    }
    async fn fail() -> Result<String, ToolError> {
        Err(ToolError::new(EVIL, EVIL))
    }
    let (server, room) = (shared()?, "cli-evil");
    let identity = format!("phone{EVIL}");
    let mut watches = Vec::new();
    for arguments in [&["watch", "--room", room][..], &["watch", "--json", "--room", room]] {
        watches.push(Program::toolbridge(&server, arguments).start()?);
    }
    let tools = Tools::new().tool("answer", EVIL, answer).tool("fail", EVIL, fail).tool("hang", EVIL, hang);
    let phone = client(&server, room, &identity, Client::builder().tools(tools)).await?;
    soon("all three participants", async {
        while phone.participants().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await?;

    let answered = call(&server, room, &["answer", "--to", &identity]).await?;
    ensure!(value_of(&answered)? == json!({"value": EVIL}), "{answered:?}");
    let failed = call(&server, room, &["fail"]).await?;
    ensure!(failed.code == Some(1) && failed.stderr.contains("\\u{1b}"), "{failed:?}");
    let late = call(&server, room, &["hang", "--to", &identity, "--timeout", "4s"]).await?;
    ensure!(late.code == Some(1), "{late:?}");
    let absent = call(&server, room, &["answer", "--to", EVIL, "--wait", "2s"]).await?;
    ensure!(absent.code == Some(4), "{absent:?}");
    let listed = Program::toolbridge(&server, &["tools", "--room", room, "--wait", "20s"]).run().await?;
    ensure!(listed.stdout.contains("answer") && listed.stdout.contains("\\u{202e}"), "{listed:?}");
    let as_json =
        Program::toolbridge(&server, &["tools", "--json", "--room", room, "--wait", "20s"]).run().await?;
    let value: Value = serde_json::from_str(&as_json.stdout)?;
    ensure!(value[0]["description"] == EVIL && value[0]["owner"] == identity, "{value}");

    let mut outputs = vec![answered, failed, late, absent, listed, as_json];
    for mut watch in watches {
        watch.line("ToolUseResult").await?;
        watch.interrupt()?;
        outputs.push(watch.finish().await?);
    }
    for output in &outputs {
        ensure!(is_plain(output), "{output:?}");
    }

    // A client prints its caller.
    let mut listener = cli_client(&server, "cli-evil-caller", "phone").await?;
    let caller = format!("caller{EVIL}");
    let brain = assistant(&server, "cli-evil-caller", &caller, Assistant::builder().client("phone")).await?;
    let mut call = brain.call("nap", ()).start();
    started(&mut call).await?;
    listener.line("called nap").await?;
    listener.interrupt()?;
    let output = listener.finish().await?;
    ensure!(is_plain(&output) && output.stdout.contains("\\u{202e}evil"), "{output:?}");
    Ok(())
}

/// As on a laptop under load or a virtual machine that is moved. Nothing was sent meanwhile, and nothing lost.
async fn machine_suspended_for_4_s_continues() -> anyhow::Result<()> {
    let (server, room) = (Server::start("")?, "cli-suspended");
    let phone = cli_client(&server, room, "phone").await?;
    phone.signal(Signal::STOP)?;
    server.pause();
    tokio::time::sleep(Duration::from_secs(4)).await;
    // The first process to wake up has nothing in its sockets.
    phone.signal(Signal::CONT)?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.resume();
    let ok = call(&server, room, &["where_is"]).await?;
    ensure!(value_of(&ok)? == json!({"room": "kitchen"}), "{ok:?}");
    phone.interrupt()?;
    let output = phone.finish().await?;
    let told = format!("{}{}", output.stdout, output.stderr);
    ensure!(output.code == Some(0) && !told.contains("connection lost"), "{output:?}");
    Ok(())
}

async fn call_after_a_lost_goodbye_waits_until_the_client_is_free() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "cli-lost-goodbye");
    let relay = Relay::start(&server).await?;
    let phone = cli_client(&server, room, "phone").await?;
    let token = server.key().assistant(room, "brain").sign()?;
    let brain = Assistant::builder().client("phone").join(&relay.url(), &token).await?;
    brain.call("where_is", ()).await?;
    relay.media().cut(); // the server gets the leave request; the client gets no goodbye
    brain.close().await;
    let ok = call(&server, room, &["where_is"]).await?;
    ensure!(value_of(&ok)? == json!({"room": "kitchen"}), "{ok:?}");
    drop(phone);
    Ok(())
}

async fn client_with_a_limit_gives_up_a_lost_connection() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let arguments = ["client", "--room", "cli-limit", "--identity", "phone", "--rejoin-limit", "0s"];
    let mut phone = Program::toolbridge(&server, &arguments).start()?;
    phone.line("joined as phone").await?;
    server.kill();
    let output = phone.finish().await?;
    ensure!(output.code == Some(1) && output.stderr.contains("connection lost: "), "{output:?}");
    Ok(())
}

/// As with Ctrl-S at a terminal: the pipes of both outputs are full after a part of these calls.
async fn client_whose_output_is_not_read_answers_and_leaves() -> anyhow::Result<()> {
    const CALLS: usize = 200;
    /// More than a pipe holds.
    const LOGS: &str = "trace,toolbridge=trace";
    let (server, room) = (shared()?, "unread");
    let file = tools_file(room, &[("echo", "cat")])?;
    let mut client = Program::toolbridge(&server, &["client", "--room", room, "--identity", "phone"])
        .arg("--tools")
        .arg(&file)
        .env("RUST_LOG", LOGS)
        .start_unread()?;
    let brain = assistant(&server, room, "assistant", Assistant::builder()).await?;
    for n in 0..CALLS {
        // A client takes 50 calls in a second, and says so of more.
        match brain.call("echo", json!({"n": n})).to("phone").await {
            Err(error) if error.code().as_str() == "busy" => {}
            answer => ensure!(answer?.to_json() == json!({"n": n}), "{n}"),
        }
    }
    let pid = client.id().and_then(|pid| Pid::from_raw(pid as i32)).context("no process id")?;
    kill_process(pid, Signal::INT)?;
    let status = soon("the client's end", client.wait()).await??;
    ensure!(status.code() == Some(0), "{status:?}");
    let mut read = Vec::new();
    client.stderr.take().context("no standard error")?.read_to_end(&mut read).await?;
    // A pipe holds 64 KiB on Linux, and takes a text of up to 4 KiB as a whole.
    ensure!(read.len() >= 61_440, "the pipe was not full: {} bytes", read.len());
    Ok(())
}
