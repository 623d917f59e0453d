//! What the room sees of calls that the assistant runs itself.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use serde_json::json;
use toolbridge::{
    Config, Event, Progress, Role, ToolOptions, ToolResult, Value,
    frame::{Frame, Kind, Message, ToolProgress},
    result::{Audience, ContentBlock},
    session::Request,
    tools::Visibility,
    transport::Participant,
};

use crate::session_world::{MS, SECOND, World, request, tool, value};

const LEVELS: [(&str, Visibility); 3] =
    [("full", Visibility::Full), ("name", Visibility::Name), ("nothing", Visibility::Nothing)];

/// An assistant with a tool for each level, a client, an observer, and a participant without toolbridge.
fn room(streams: bool) -> World {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default().streams(streams));
    let tools = LEVELS.map(|(name, level)| tool(name).options(ToolOptions::default().disclose(level)));
    world.with("a", |session, now| session.offer(now, tools.to_vec())).unwrap().unwrap();
    world.client("phone", Config::default().streams(streams), &["t"]);
    world.stranger("x");
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    world
}

/// The results of the frames that a participant received, of streams too.
fn results(world: &World, name: &str) -> Vec<Option<Value>> {
    let read = |message: Message| match message {
        Message::ToolUseResult(it) => it.result,
        other => panic!("{other:?}"),
    };
    let frames = world.received(name, Kind::TOOL_USE_RESULT).into_iter().map(read);
    frames.chain(streamed(world, name).into_iter().map(|frame| read(frame.message().unwrap()))).collect()
}

/// The frames that a played participant received as streams.
fn streamed(world: &World, name: &str) -> Vec<Frame> {
    use toolbridge::transport::StreamPart;
    let (mut frames, mut bytes) = (Vec::new(), Vec::new());
    for (_, part) in &world.ends[name].parts {
        match part {
            StreamPart::Chunk { bytes: chunk, .. } => bytes.extend_from_slice(chunk),
            StreamPart::Trailer { .. } => frames.push(Frame::decode(std::mem::take(&mut bytes)).unwrap()),
            _ => {}
        }
    }
    frames
}

/// The results that the phone's session observed.
fn observed(world: &World) -> usize {
    let is_end = |it: &&Event| matches!(it, Event::Settled { .. });
    world.ends["phone"].events.iter().filter(is_end).count()
}

/// Checks and replays what both ends recorded.
#[cfg(feature = "record")]
pub(crate) fn recorded(world: &World) {
    for name in ["a", "phone"] {
        let file = crate::session_tape::file(world, name);
        let checked = toolbridge::recording::check(file.clone());
        assert_eq!(checked.errors, 0, "{name}: {:?}", checked.findings);
        let replayed = toolbridge::replay::Replay::dry(file).unwrap();
        assert!(replayed.is_same(), "{name}: {replayed:#?}");
    }
}

#[cfg(not(feature = "record"))]
pub(crate) fn recorded(_: &World) {}

#[test]
fn progress_is_shown_at_the_tools_visibility() {
    let mut world = room(false);
    for (name, _) in LEVELS {
        let key = world.call("a", request(name)).unwrap();
        let job = world.ends["a"].jobs.last().unwrap().key;
        for text in ["one", "two"] {
            world.run(SECOND);
            world
                .with("a", |session, now| session.progress(now, job, Progress::from(text).content(value(1))));
        }
        world.run(SECOND);
        world.with("a", |session, now| session.cancel(now, key));
    }
    world.run(SECOND);
    let read = |message: Message| match message {
        Message::ToolProgress(ToolProgress { message, content, .. }) => (message, content),
        other => panic!("{other:?}"),
    };
    let shown: Vec<_> = world.received("watch", Kind::TOOL_PROGRESS).into_iter().map(read).collect();
    let (text, content) = (|text: &str| Some(text.to_owned()), Some(value(1)));
    let full = [(None, None), (text("one"), content.clone()), (text("two"), content)];
    assert_eq!(shown, [&full[..], &[(None, None)]].concat());
    // The client lists `tool_progress`. The participant that lists nothing gets none.
    let shown: Vec<_> = world.ends["phone"]
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Progress { key: None, progress, .. } => {
                Some((progress.message.clone(), progress.content.clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(shown, [&full[..], &[(None, None)]].concat());
    assert!(world.received("x", Kind::TOOL_PROGRESS).is_empty());
    recorded(&world);
}

#[test]
fn first_progress_of_a_tool_that_discloses_its_name_has_no_text() {
    let mut world = room(false);
    world.begins = false;
    world.call("a", request("name")).unwrap();
    let job = world.ends["a"].jobs.last().unwrap().key;
    world.with("a", |session, now| session.progress(now, job, Progress::from("secret").content(value(1))));
    world.run(SECOND);
    let shown = world.received("watch", Kind::TOOL_PROGRESS);
    let [Message::ToolProgress(shown)] = shown.as_slice() else { panic!("{shown:?}") };
    assert_eq!((&shown.message, &shown.content), (&None, &None));
}

#[test]
fn clients_get_their_part_of_a_result_and_observers_all() {
    let mut world = room(false);
    let secret = ContentBlock::text("offer a transfer").with_audience(Audience::Model);
    let whole = ToolResult::text("The balance is 5 €.").with_block(secret).to_value();
    let answer = whole.clone();
    world.handle("a", move |_| Some(Ok(answer.clone())));
    world.ask("a", request("full")).unwrap();
    world.run(SECOND);
    assert_eq!(results(&world, "watch"), [Some(whole)]);
    let shown = results(&world, "x");
    assert_eq!(shown.len(), 1);
    let shown = shown[0].clone().unwrap();
    assert!(!shown.to_json().to_string().contains("transfer"), "{}", shown.to_json());
    assert_eq!(ToolResult::of(&shown).cut().len(), 1);
    assert_eq!(observed(&world), 1);
    recorded(&world);
}

/// A recorded assistant with nobody else in the room.
#[cfg(feature = "record")]
#[test]
fn result_in_an_empty_room_is_recorded_without_what_is_for_the_model() {
    use toolbridge::recording::{RecordedOutcome, calls, check};
    let secret = ContentBlock::text("offer a transfer").with_audience(Audience::Model);
    let parts = ToolResult::text("The balance is 5 €.").with_block(secret).to_value();
    let plain = |text: String| Value::encode(&json!({"text": text})).unwrap();
    for answer in [parts, plain("short".to_owned()), plain("x".repeat(20_000))] {
        for streams in [false, true] {
            let mut world = World::new();
            world.notes = Some(Vec::new());
            world.assistant("a", Config::default().streams(streams));
            world.with("a", |session, now| session.offer(now, vec![tool("full")])).unwrap().unwrap();
            let answer = answer.clone();
            world.handle("a", move |_| Some(Ok(answer.clone())));
            world.ask("a", request("full")).unwrap();
            world.run(SECOND);
            let file = crate::session_tape::file(&world, "a");
            let sent =
                format!("{:?}", file.iter().map(|entry| format!("{:?}", entry.what)).collect::<Vec<_>>());
            assert!(!sent.contains("transfer"), "{sent}");
            let calls = calls(file.clone()).calls;
            assert_eq!((calls.len(), &calls[0].outcome), (1, &RecordedOutcome::Ok));
            assert_eq!(check(file).errors, 0);
        }
    }
}

#[test]
fn large_result_is_a_stream_to_those_who_take_streams() {
    let mut world = room(true);
    let large = Value::encode(&json!({"text": "x".repeat(20_000)})).unwrap();
    let answer = large.clone();
    world.handle("a", move |_| Some(Ok(answer.clone())));
    world.ask("a", Request::new("full", value(1))).unwrap();
    world.run(SECOND);
    assert_eq!(results(&world, "watch"), [Some(large)], "an observer gets all");
    assert_eq!(results(&world, "x"), [None], "a participant without streams gets the name");
    assert_eq!(observed(&world), 1);
    assert!(world.count("phone", "bytes_in") > 20_000, "the client did not get the whole result");
    recorded(&world);
}

#[test]
fn result_that_exceeds_a_stream_shows_its_name() {
    let mut world = World::new();
    let mut config = Config::default().streams(true);
    config.caps.frames.max_frame = 18_000;
    world.assistant("a", config);
    world.with("a", |session, now| session.offer(now, vec![tool("full")])).unwrap().unwrap();
    world.client("phone", Config::default().streams(true), &["t"]);
    world.stranger("x");
    world.run(SECOND);
    let large = Value::encode(&json!({"text": "x".repeat(20_000)})).unwrap();
    world.handle("a", move |_| Some(Ok(large.clone())));
    world.ask("a", request("full")).unwrap();
    world.run(SECOND);
    assert_eq!(results(&world, "x"), [None]);
    assert_eq!(observed(&world), 1);
}

#[test]
fn participant_without_streams_gets_the_texts_that_fit() {
    let mut world = room(true);
    let image = Value::encode(&json!({"data": "y".repeat(20_000)})).unwrap();
    let long = "ä".repeat(6_000);
    let answer = ToolResult::text(long).with_structured(image).to_value();
    world.handle("a", move |_| Some(Ok(answer.clone())));
    world.ask("a", request("full")).unwrap();
    world.run(100 * MS);
    let shown = ToolResult::of(&results(&world, "x")[0].clone().unwrap());
    let text = shown.content()[0].as_text().unwrap();
    assert!(text.len() > 6_000 && text.len() <= 7_000 && text.chars().all(|it| it == 'ä'), "{}", text.len());
    let cut: Vec<_> = shown.cut().iter().map(|cut| (cut.part(), cut.pointer())).collect();
    assert_eq!(cut, [("content", "/0"), ("structured", "")]);
    recorded(&world);
}
