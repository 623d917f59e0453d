//! A peer that lists none of the later features gets the same bytes as from the versions before them.
//!
//! `fixtures/older-peers` has the frames, written by the last version without these features. Configurations are not
//! compared: the list of features in them grows. `UPDATE_FIXTURES=1` writes the files, for a change of the wire that
//! is meant to reach every peer.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{fmt::Write as _, fs};

use toolbridge::{
    BargeIn, Config, Consent, Progress, Role, Tool, ToolError, ToolOptions, Value,
    frame::{
        Configuration, ControlStop, Kind, Message, Meta, RegisteredTool, ToolUseRequest, ToolsRegister,
        ToolsRegisterAck,
    },
    session::Request,
    tools::{Execution, Visibility},
    transport::Participant,
};

use crate::session_world::{MS, SECOND, World, request, tool, value};

/// The features of an older client. One that lists `tool_progress` or `frame_stream` gets more of a broadcast than
/// before.
const CLIENT: &[&str] =
    &["tool_use", "tool_register", "tool_cancel", "tool_claim", "tool_ack", "tool_prompt"];

/// The features of an older assistant.
const ASSISTANT: &[&str] =
    &["tool_use", "tool_register", "tool_progress", "tool_cancel", "tool_claim", "tool_ack", "tool_prompt"];

/// Adds a played participant that completes the handshake.
fn join(world: &mut World, name: &str, role: Role, peer: &str) {
    let sid = world.sid();
    let who = Participant::new(name, sid);
    world.play(&if role == Role::Assistant { who.agent(true) } else { who.role(role) });
    world.run(200 * MS);
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "older");
    let features = if role == Role::Assistant { ASSISTANT } else { CLIENT };
    let features = Some(features.iter().map(ToString::to_string).collect());
    let configuration = with!(Configuration::default(), features = features);
    world.send(name, &[peer], &meta, &Message::Configuration(configuration));
    world.run(200 * MS);
}

/// Compares the frames that this participant received with those of the file.
fn compare(world: &World, name: &str, file: &str) {
    let mut received = String::new();
    for (_, frame) in world.ends[name].inbox.iter().filter(|(_, frame)| frame.kind() != Kind::CONFIGURATION) {
        let mut hex = String::new();
        for byte in frame.as_bytes() {
            write!(hex, "{byte:02x}").unwrap();
        }
        writeln!(received, "{} {hex}", frame.kind()).unwrap();
    }
    let path = crate::folder("fixtures/older-peers").join(file);
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, received).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (number, (now, before)) in received.lines().zip(expected.lines()).enumerate() {
        assert_eq!(now, before, "frame {}", number + 1);
    }
    assert_eq!(received.lines().count(), expected.lines().count());
}

#[test]
fn older_client_gets_the_same_frames() {
    let mut world = World::new();
    world.assistant("a", Config::default().compress(true));
    let full = ToolOptions::default().disclose(Visibility::Full);
    let own = vec![
        tool("own").options(full.clone()),
        tool("failing").options(full.clone()),
        tool("slow").options(full.barge_in(BargeIn::Cancel)),
        tool("secret"),
    ];
    world.with("a", |session, now| session.offer(now, own)).unwrap().unwrap();
    world.handle("a", |job| match job.tool.as_str() {
        "slow" => None,
        "failing" => Some(Err(ToolError::new("too_dark", "the lamp is broken").with_partial(value(1)))),
        _ => Some(Ok(job.arguments.clone())),
    });
    join(&mut world, "old", Role::Client, "a");
    let hang = with!(RegisteredTool::default(), name = "hang".to_owned());
    let tools = with!(ToolsRegister::default(), tools = vec![hang]);
    world.send("old", &["a"], &Meta::new(), &Message::ToolsRegister(tools));
    world.run(200 * MS);

    // The assistant's own tools are broadcast.
    let large = Value::encode(&serde_json::json!({"text": "x".repeat(20_000)})).unwrap();
    for request in [
        Request::new("own", value(7)),
        Request::new("own", large.clone()),
        Request::new("secret", value(8)),
        Request::new("failing", value(9)),
    ] {
        let _ = world.ask("a", request);
    }
    let turn = world.with("a", |session, _| session.turn()).unwrap();
    let slow = world.call("a", Request::new("slow", value(1)).turn(turn)).unwrap();
    let job = world.ends["a"].jobs.last().unwrap().key;
    world.with("a", |session, now| session.progress(now, job, Progress::from("half").content(value(5))));
    world.run(100 * MS);
    world.with("a", |session, now| session.barge_in(now, turn));
    assert!(world.settled("a", slow).is_some());
    // Calls of the client's tool end for every reason that stops it.
    let turn = world.with("a", |session, _| session.turn()).unwrap();
    let cancelled = world.call("a", Request::new("hang", value(2))).unwrap();
    let interrupted = world.call("a", Request::new("hang", value(3)).turn(turn)).unwrap();
    let late = world.call("a", request("hang").timeout(2 * SECOND)).unwrap();
    world.run(100 * MS);
    world.with("a", |session, now| session.cancel(now, cancelled));
    world.with("a", |session, now| session.barge_in(now, turn));
    world.run(3 * SECOND);
    assert!([cancelled, interrupted, late].iter().all(|key| world.settled("a", *key).is_some()));
    world.with("a", |session, now| session.close(now));
    world.run(SECOND);
    compare(&world, "old", "client.txt");
}

#[test]
fn older_assistant_gets_the_same_frames() {
    let mut world = World::new();
    world.client("phone", Config::default().consent_available(true), &[]);
    let schema = serde_json::json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let options = ToolOptions::default().consent(Consent::Always).barge_in(BargeIn::Report).prefer_client();
    let tools = vec![
        Tool::new("echo".parse().unwrap(), "Returns its arguments").schema(schema),
        tool("hang").options(ToolOptions::default().timeout(5 * SECOND)),
        tool("ask").options(options),
    ];
    world.with("phone", |session, now| session.offer(now, tools)).unwrap().unwrap();
    world.handle("phone", |job| match job.tool.as_str() {
        "hang" => None,
        "echo" if job.arguments.is_empty() => Some(Err(ToolError::internal("broken"))),
        _ => Some(Ok(job.arguments.clone())),
    });
    join(&mut world, "old", Role::Assistant, "phone");
    let accepted = with!(ToolsRegisterAck::default(), success = true, tool_count = 3);
    world.send("old", &["phone"], &Meta::new(), &Message::ToolsRegisterAck(accepted));
    let large = Value::encode(&serde_json::json!({"text": "x".repeat(20_000)})).unwrap();
    for (id, tool, parameters) in [
        ("1", "echo", value(1)),
        ("2", "echo", Value::empty()),
        ("3", "hang", value(3)),
        ("4", "ask", value(4)),
        ("5", "none", value(5)),
        ("6", "echo", large),
        ("7", "hang", value(7)),
    ] {
        let request = with!(
            ToolUseRequest::new(id.parse().unwrap(), tool, parameters, Ok(Execution::Client)),
            timeout_ms = Some(30_000)
        );
        world.send("old", &["phone"], &Meta::new(), &Message::ToolUseRequest(request));
        world.run(300 * MS);
    }
    let job = world.ends["phone"].jobs.first().unwrap().key;
    world.with("phone", |session, now| session.progress(now, job, Progress::from("half").content(value(5))));
    let question = world.question("phone").unwrap().key;
    world.with("phone", |session, now| session.consent(now, question, true));
    world.run(SECOND);
    let stop =
        with!(ControlStop::default(), target_id = Some("3".to_owned()), reason = Some("words".to_owned()));
    world.send("old", &["phone"], &Meta::new(), &Message::ControlStop(stop));
    world.run(10 * SECOND);
    world.with("phone", |session, now| session.close(now));
    world.run(SECOND);
    compare(&world, "old", "assistant.txt");
}
