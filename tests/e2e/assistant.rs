//! `toolbridge assistant` over a real server: driven by a test, by Python, by a shell.

use std::{fs, process::Stdio};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use toolbridge::{Assistant, Client};

use crate::{
    ends::{assistant, client, double, event},
    program::{Program, tools_file},
    server::{Server, shared},
    soon, trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![assistant:
        driver_calls_tools_and_gets_events,
        own_programs_are_tools_that_the_room_observes,
        call_that_is_too_large_has_one_result_with_both_numbers,
        cancel_line_ends_one_call_and_stop_order_ends_all,
        end_of_input_waits_for_open_calls,
        shell_pipeline_drives_the_assistant,
        closed_output_ends_the_assistant,
        lost_room_ends_the_assistant_after_every_result,
        second_assistant_learns_that_the_client_is_bound,
        hangup_leaves_no_program_running,
        watch_without_a_role_receives_broadcasts,
    ];
    trials.push(trial_with(
        "assistant::python_script_drives_the_assistant",
        || (!has_python()).then_some("python3"),
        python_script_drives_the_assistant,
    ));
    trials
}

fn has_python() -> bool {
    let mut version = std::process::Command::new("python3");
    let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    crate::server::binary().is_some() && version.status().is_ok_and(|status| status.success())
}

const PROGRAMS: &[(&str, &str)] = &[
    ("echo", "cat"),
    ("count_words", r#"echo "{\"value\": $(wc -w)}""#),
    ("fail", "echo 'the lamp is broken' >&2; exit 3"),
    ("nap", "exec /bin/sleep 60"),
];

/// Starts `toolbridge client` in the room, for this assistant.
async fn desk(server: &Server, room: &str, listens_to: Option<&str>) -> anyhow::Result<Program> {
    let file = tools_file(&format!("{room}-desk"), PROGRAMS)?;
    let mut arguments = vec!["client", "--room", room, "--identity", "desk"];
    arguments.extend(listens_to.into_iter().flat_map(|assistant| ["--assistant", assistant]));
    let mut client = Program::toolbridge(server, &arguments).arg("--tools").arg(&file).start()?;
    client.line("joined as desk").await?;
    Ok(client)
}

/// Starts `toolbridge assistant` as `brain`, which knows the desk by name.
fn brain(server: &Server, room: &str) -> anyhow::Result<Program> {
    let arguments = ["assistant", "--room", room, "--identity", "brain", "--client", "desk"];
    Program::toolbridge(server, &arguments).start()
}

async fn ask(program: &mut Program, line: Value) -> anyhow::Result<()> {
    program.write(&line.to_string()).await
}

async fn driver_calls_tools_and_gets_events() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-lines");
    let mut desk = desk(&server, room, Some("brain")).await?;
    let mut brain = brain(&server, room)?;
    let hello = brain.json(json!({"type": "hello"})).await?;
    ensure!(hello["version"] == 2 && hello["identity"] == "brain" && hello["room"] == room, "{hello}");
    let odd = json!({"bytes": {"$bin": "AAEC/w=="}, "big": u64::MAX, "text": "grüß dich \u{1b}[2J"});
    ask(&mut brain, json!({"type": "call", "id": "odd", "tool": "echo", "arguments": odd.clone()})).await?;
    let requested = brain.json(json!({"event": "requested"})).await?;
    brain.json(json!({"event": "delivered"})).await?;
    ensure!(requested["id"] == "odd" && requested["owner"] == "desk", "{requested}");
    brain.json(json!({"type": "progress", "id": "odd", "status": "in_progress"})).await?;
    let result = brain.json(json!({"type": "result"})).await?;
    ensure!(result["id"] == "odd" && result["value"] == odd, "{result}");

    ask(&mut brain, json!({"type": "call", "id": 2, "tool": "fail", "to": "desk"})).await?;
    let failed = brain.json(json!({"type": "result", "id": 2})).await?;
    let error = &failed["error"];
    ensure!(error["code"] == "execution_error" && error["mayHaveRun"] == true, "{failed}");
    ensure!(error["message"] == "the lamp is broken", "{failed}");

    for bad in ["nonsense", "[]", "{\"type\": \"dance\"}"] {
        brain.write(bad).await?;
    }
    for (line, code) in [(3, "not_json"), (4, "bad_command"), (5, "bad_command")] {
        brain.json(json!({"type": "error", "line": line, "code": code})).await?;
    }
    ask(&mut brain, json!({"type": "tools"})).await?;
    let tools = brain.json(json!({"type": "tools"})).await?;
    let all = tools["tools"].as_array().context("no list")?;
    let names: Vec<_> = all.iter().map(|it| &it["tool"]["name"]).collect();
    ensure!(names == ["echo", "count_words", "fail", "nap"], "{tools}");

    desk.line("fail: execution_error").await?;
    desk.interrupt()?;
    brain.json(json!({"event": "tools_changed", "owner": "desk", "tools": []})).await?;
    ask(&mut brain, json!({"type": "close"})).await?;
    let output = brain.finish().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    let lines: Result<Vec<Value>, _> = output.stdout.lines().map(serde_json::from_str).collect();
    ensure!(lines?.last().context("nothing")?["reason"]["kind"] == "closed", "{output:?}");
    ensure!(!output.stdout.contains('\u{1b}'), "a terminal could be steered");
    Ok(())
}

async fn own_programs_are_tools_that_the_room_observes() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-own");
    let phone = client(&server, room, "phone", Client::builder().assistant("brain")).await?;
    let mut events = phone.events();
    let file = tools_file(room, PROGRAMS)?;
    let arguments = ["assistant", "--room", room, "--identity", "brain", "--client", "phone"];
    let mut brain = Program::toolbridge(&server, &arguments).arg("--tools").arg(&file).start()?;
    let joined = brain.json(json!({"event": "joined"})).await?;
    let who = &joined["participant"];
    ensure!(who["identity"] == "phone" && who["role"] == "client", "{joined}");
    ask(&mut brain, json!({"type": "tools"})).await?;
    let tools = brain.json(json!({"type": "tools"})).await?;
    ensure!(tools["tools"][0]["execution"] == "server" && tools["tools"][0]["owner"] == "brain", "{tools}");
    // The phone treats it as its assistant once the two have shaken hands.
    event(&mut events, "the assistant", |event| match event {
        toolbridge::Event::Bound(Some(assistant)) if assistant == "brain" => Some(()),
        _ => None,
    })
    .await?;
    let words = json!({"type": "call", "id": 1, "tool": "count_words", "arguments": {"text": "a b c"}});
    ask(&mut brain, words).await?;
    let result = brain.json(json!({"type": "result", "id": 1})).await?;
    ensure!(result["value"]["value"].is_u64(), "{result}");
    event(&mut events, "the broadcast", |event| match event {
        toolbridge::Event::Settled { tool, outcome: Ok(()), .. } if tool == "count_words" => Some(()),
        _ => None,
    })
    .await?;
    ask(&mut brain, json!({"type": "call", "id": 2, "tool": "fail"})).await?;
    let failed = brain.json(json!({"type": "result", "id": 2})).await?;
    ensure!(failed["error"]["message"] == "the lamp is broken", "{failed}");
    Ok(())
}

async fn call_that_is_too_large_has_one_result_with_both_numbers() -> anyhow::Result<()> {
    const MIB: usize = 1 << 20;
    const LINE: usize = 200 * MIB;
    let (server, room) = (shared()?, "assistant-too-large");
    let _desk = desk(&server, room, Some("brain")).await?;
    let mut brain = brain(&server, room)?;
    brain.json(json!({"event": "ready", "owner": "desk"})).await?;
    // Of a line that is too long only the start and the end are kept. The id of the second is in its end.
    let before = brain.peak_memory()?;
    for (start, end) in [
        (r#"{"type":"call","id":1,"tool":"echo","arguments":{"text":""#, r#""}}"#),
        (r#"{"type":"call","tool":"echo","arguments":{"text":""#, r#""},"id":2}"#),
    ] {
        brain.write_part(start.as_bytes()).await?;
        let part = vec![b'a'; MIB];
        for _ in 0..LINE / MIB {
            brain.write_part(&part).await?;
        }
        brain.write(end).await?;
        let size = start.len() + LINE + end.len();
        let id = if end.contains("id") { 2 } else { 1 };
        let result = brain.json(json!({"type": "result", "id": id})).await?;
        let message = format!("the line has {size} bytes; the limit is {}", 24 * MIB);
        let error =
            json!({"kind": "too_large", "code": "too_large", "message": message, "mayHaveRun": false});
        ensure!(result["error"] == error, "{result}");
    }
    let grown = brain.peak_memory()?.saturating_sub(before);
    ensure!(grown < LINE / 2, "{grown} bytes more for a line of {LINE}");
    // The request with its frame, and its arguments alone, exceed the limit of a frame.
    for (id, text) in [(3, 16 * MIB - 100), (4, 17 * MIB)] {
        let call = json!({"type": "call", "id": id, "tool": "echo", "arguments": {"text": "a".repeat(text)}});
        ask(&mut brain, call).await?;
        let result = brain.json(json!({"type": "result", "id": id})).await?;
        let error = &result["error"];
        ensure!(error["code"] == "too_large" && error["mayHaveRun"] == false, "{result}");
        let message = error["message"].as_str().context("no message")?;
        let size = message
            .strip_prefix("the request has ")
            .and_then(|rest| rest.split_once(" bytes; the limit is 16777216"));
        let size: usize = size.with_context(|| message.to_owned())?.0.parse()?;
        ensure!((16 * MIB..text + 400).contains(&size), "{message}");
    }
    ask(&mut brain, json!({"type": "call", "id": 5, "tool": "echo", "arguments": {"a": 1}})).await?;
    let result = brain.json(json!({"type": "result", "id": 5})).await?;
    ensure!(result["value"] == json!({"a": 1}), "{result}");
    let output = brain.finish().await?;
    let count = |word: &str| output.stdout.lines().filter(|line| line.contains(word)).count();
    ensure!((count(r#""type":"result""#), count(r#""type":"error""#)) == (5, 0), "{output:?}");
    Ok(())
}

async fn cancel_line_ends_one_call_and_stop_order_ends_all() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-cancel");
    let mut desk = desk(&server, room, Some("brain")).await?;
    let mut brain = brain(&server, room)?;
    for id in [1, 2, 3] {
        ask(&mut brain, json!({"type": "call", "id": id, "tool": "nap"})).await?;
        brain.json(json!({"type": "progress", "id": id})).await?;
    }
    ask(&mut brain, json!({"type": "cancel", "id": 2})).await?;
    let result = brain.json(json!({"type": "result"})).await?;
    ensure!(result["id"] == 2 && result["error"]["code"] == "cancelled", "{result}");
    desk.line("nap: cancelled").await?;
    brain.signal(Signal::TERM)?;
    let output = brain.finish().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    for id in [1, 3] {
        let its = output
            .stdout
            .lines()
            .filter(|line| line.starts_with(&format!(r#"{{"type":"result","id":{id},"#)));
        ensure!(its.filter(|line| line.contains("cancelled")).count() == 1, "{output:?}");
    }
    ensure!(
        output.stdout.lines().last().is_some_and(|line| line.contains(r#""reason":{"kind":"closed""#)),
        "{output:?}"
    );
    desk.line("nap: cancelled").await?;
    desk.line("nap: cancelled").await?;
    Ok(())
}

async fn end_of_input_waits_for_open_calls() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-eof");
    let mut brain = brain(&server, room)?;
    ask(&mut brain, json!({"type": "call", "id": 1, "tool": "echo", "ownerWaitMs": 20_000})).await?;
    brain.json(json!({"type": "hello"})).await?;
    // The client with the tool joins after the input has ended.
    let (desk, output) = tokio::join!(desk(&server, room, Some("brain")), brain.finish());
    let (_desk, output) = (desk?, output?);
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    ensure!(output.stdout.contains(r#"{"type":"result","id":1,"value":{}}"#), "{output:?}");
    Ok(())
}

async fn python_script_drives_the_assistant() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-python");
    let _desk = desk(&server, room, None).await?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/assistant.py");
    let output = Program::other(&server, "python3", &[script, "--room", room]).run().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    ensure!(output.stdout.lines().last() == Some("3"), "{output:?}");
    Ok(())
}

async fn shell_pipeline_drives_the_assistant() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-shell");
    let _desk = desk(&server, room, None).await?;
    let line = format!(
        r#"echo '{{"type": "call", "id": 1, "tool": "echo", "arguments": {{"n": 7}}}}' |
           toolbridge assistant --room {room} | grep '"type":"result"'"#
    );
    let output = Program::other(&server, "sh", &["-c", &line]).run().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    ensure!(output.stdout == "{\"type\":\"result\",\"id\":1,\"value\":{\"n\":7}}\n", "{output:?}");
    Ok(())
}

async fn closed_output_ends_the_assistant() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-unread");
    let line = format!("{{ toolbridge assistant --room {room}; echo \"status $?\" >&2; }} | head -n 1");
    let mut pipeline = Program::other(&server, "sh", &["-c", &line]).start()?;
    pipeline.json(json!({"type": "hello"})).await?;
    // Output is closed, so later events cannot be reported.
    let _phone = client(&server, room, "phone", Client::builder()).await?;
    let output = soon("the end of the process", pipeline.ended()).await??;
    ensure!(output.code == Some(0) && output.stderr == "status 0\n", "{output:?}");
    Ok(())
}

async fn lost_room_ends_the_assistant_after_every_result() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-lost");
    let _desk = desk(&server, room, Some("brain")).await?;
    let mut brain = brain(&server, room)?;
    ask(&mut brain, json!({"type": "call", "id": 1, "tool": "nap", "timeoutMs": 600_000})).await?;
    brain.json(json!({"type": "progress", "id": 1})).await?;
    server.room_service("DeleteRoom", room, json!({"room": room})).await?;
    let result = brain.json(json!({"type": "result", "id": 1})).await?;
    ensure!(result["error"]["mayHaveRun"] == true, "{result}");
    let closed = brain.json(json!({"event": "closed"})).await?;
    ensure!(closed["reason"]["kind"] != "closed", "{closed}");
    let output = soon("the end of the process", brain.ended()).await??;
    ensure!(output.code == Some(1) && output.stderr.lines().count() == 1, "{output:?}");
    Ok(())
}

async fn second_assistant_learns_that_the_client_is_bound() -> anyhow::Result<()> {
    let server = shared()?;
    // One client that bound the first assistant, and one whose author named its assistant.
    for (room, listens_to) in [("assistant-bound", None), ("assistant-named", Some("brain"))] {
        let mut desk = desk(&server, room, listens_to).await?;
        let mut brain = brain(&server, room)?;
        ask(&mut brain, json!({"type": "call", "id": 1, "tool": "echo"})).await?;
        brain.json(json!({"type": "result", "id": 1})).await?;
        desk.line("bound to the assistant brain").await?;
        // A named desk reports this itself if the call arrives before the handshake.
        for to in [&["--to", "desk"][..], &[]] {
            let arguments = [&["call", "echo", "--room", room], to].concat();
            let output = Program::toolbridge(&server, &arguments).run().await?;
            ensure!(output.code == Some(4) && output.stdout.is_empty(), "{output:?}");
            let told = output.stderr.lines().last().unwrap_or_default();
            ensure!(
                told.contains(" is bound to another assistant") && told.ends_with("(the tool did not run)"),
                "{room} {to:?}: {output:?}"
            );
        }
        ask(&mut brain, json!({"type": "call", "id": 2, "tool": "echo"})).await?;
        brain.json(json!({"type": "result", "id": 2})).await?;
    }
    Ok(())
}

async fn hangup_leaves_no_program_running() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-hangup");
    let marks = tools_file("hangup-marks", &[])?;
    for verb in ["client", "assistant"] {
        // The program holds a lock for as long as it lives.
        let mark = marks.with_file_name(verb);
        let mark = mark.display();
        let line = format!("exec flock -x {mark} sh -c 'echo on > {mark}; exec sleep 60'");
        let file = tools_file(&format!("hangup-{verb}"), &[("hold", &line)])?;
        let mut program = Program::toolbridge(&server, &[verb, "--room", room, "--identity", verb])
            .arg("--tools")
            .arg(&file)
            .start()?;
        let caller;
        let _call = if verb == "client" {
            program.line("joined as client").await?;
            caller = assistant(&server, room, "caller", Assistant::builder().client("client")).await?;
            Some(caller.call("hold", ()).start())
        } else {
            ask(&mut program, json!({"type": "call", "id": 1, "tool": "hold"})).await?;
            None
        };
        soon("the program", async {
            while fs::read(mark.to_string()).unwrap_or_default().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await?;
        program.signal(Signal::HUP)?;
        let output = soon("the end of the process", program.ended()).await??;
        ensure!(output.code == Some(0), "{verb}: {output:?}");
        // The lock is free as soon as the program is dead.
        let free = tokio::process::Command::new("flock").arg("-x").arg(mark.to_string()).arg("true").status();
        ensure!(soon("the program's end", free).await??.success());
    }
    Ok(())
}

async fn watch_without_a_role_receives_broadcasts() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "assistant-watch");
    let token = server.key().participant(room, "user").sign()?;
    let mut watch = Program::toolbridge(&server, &["watch", "--json", "--token", &token]).start()?;
    let phone = Client::builder().assistant("brain").tool("double", "", double);
    let _phone = client(&server, room, "phone", phone).await?;
    let file = tools_file(room, PROGRAMS)?;
    let arguments = ["assistant", "--room", room, "--identity", "brain", "--client", "phone"];
    let mut brain = Program::toolbridge(&server, &arguments).arg("--tools").arg(&file).start()?;
    let joined = brain
        .find("the user", |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["event"] == "joined" && value["participant"]["identity"] == "user").then_some(value)
        })
        .await?;
    ensure!(joined["participant"].get("role").is_none(), "{joined}");
    // The phone can be named, and gets no request before it could reply; the call waits no longer than its limit.
    ask(&mut brain, json!({"type": "call", "id": 0, "tool": "double", "arguments": {"n": 1}})).await?;
    brain.json(json!({"type": "result", "id": 0})).await?;
    ask(&mut brain, json!({"type": "call", "id": 1, "tool": "echo", "arguments": {"n": 1}})).await?;
    brain.json(json!({"type": "result", "id": 1})).await?;
    let heard = watch
        .find("the broadcast", |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["frame"]["name"] == "ToolUseRequest").then_some(value)
        })
        .await?;
    // The call to the phone came first, and was not a broadcast.
    ensure!(heard["frame"]["body"]["execution"] == "server", "{heard}");
    watch.interrupt()?;
    let output = watch.finish().await?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.stderr.contains("the token has no role"), "{output:?}");
    Ok(())
}
