//! The recording of an observer: it receives copies, is neither end of a call, and may leave at any time.

use std::time::Duration;

use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, Config, ErrorCode, Event, Role, ToolContext, ToolError, ToolOptions,
    memory::{MemoryRoom, MemoryTransport},
    recording::{
        Checked, Entry, Happened, Level, Moment, RecordedOutcome, Recorder, RecorderOptions, Recording,
        Redact, RoomEvent, calls, check, info, redact, repair, report,
    },
    replay::{DryError, Replay},
    transport::{Participant, Transport},
};

use crate::{
    folder::Folder,
    recording_said::{MS, closed, failed, heard, here, joined, left, ok, progress, request, stop},
    session_tape::file,
    session_world::{MS as MILLI, Random, World, request as asked, tool, value},
};

const REGISTER: &str = r#"{"type": 70, "body": {"tools": [{"name": "lamp", "description": ""}]}}"#;
const NOTHING: &str = r#"{"type": 70, "body": {"tools": []}}"#;

/// Entries received by an observer; the file marks it as one.
fn observed(entries: Vec<Entry>) -> Vec<Entry> {
    let mut all = vec![here(0, "eye"), joined(0, "eye", Some("observer"))];
    all.extend(entries);
    all
}

fn found(checked: &Checked) -> Vec<(Level, &str)> {
    checked.findings.iter().map(|it| (it.level, it.rule.as_str())).collect()
}

fn only(entries: &[Entry]) -> toolbridge::recording::RecordedCall {
    let mut calls = calls(entries.to_vec()).calls;
    assert_eq!(calls.len(), 1, "{calls:#?}");
    calls.remove(0)
}

#[test]
fn result_observed_before_its_request_is_the_same_call() {
    let entries = observed(vec![
        heard(1, "phone", REGISTER),
        heard(1, "phone", &progress(1, "a")),
        heard(2, "phone", &ok(2, "a")),
        heard(3, "assistant", &request(-1, "a", "client")),
        closed(20_000),
    ]);
    let call = only(&entries);
    assert_eq!((call.caller.unwrap().as_str(), call.owner.unwrap().as_str()), ("assistant", "phone"));
    assert_eq!((call.tool.as_str(), call.outcome), ("lamp", RecordedOutcome::Ok));
    assert_eq!((call.settled, call.requested), (Some(Moment(2 * MS)), Some(Moment(3 * MS))));
    assert_eq!((call.started, call.entries), (Some(Moment(MS)), vec![3, 4, 5]));
    assert_eq!(found(&check(entries.clone())), []);
    // The duration is unknown.
    assert_eq!(info(entries).tools[0].latency, None);
}

#[test]
fn result_alone_has_no_caller() {
    let entries = observed(vec![heard(1, "phone", &ok(7, "a")), closed(2)]);
    let call = only(&entries);
    assert_eq!((call.caller, call.owner.unwrap().as_str()), (None, "phone"));
    assert_eq!(found(&check(entries)), []);
}

#[test]
fn observer_may_leave_while_calls_are_open() {
    let said = vec![heard(1, "phone", REGISTER), heard(2, "assistant", &request(-1, "a", "client"))];
    let open = [said.clone(), vec![closed(3)]].concat();
    assert_eq!(found(&check(observed(open))), []);
    // A request without a result is listed; an observer cannot know that there was none.
    let late = [said.clone(), vec![closed(30_000)]].concat();
    assert_eq!(found(&check(observed(late))), [(Level::Note, "timeout-not-honoured")]);
    // The possible owner has left.
    let gone = [said, vec![left(10, "phone"), closed(30_000)]].concat();
    assert_eq!(found(&check(observed(gone))), []);
}

#[test]
fn participants_unaware_of_the_observer_are_not_expected_to_send_copies() {
    let entries = observed(vec![heard(2, "assistant", &request(-1, "a", "client")), closed(30_000)]);
    assert_eq!(only(&entries).outcome, RecordedOutcome::Open);
    assert_eq!(found(&check(entries)), []);
    // A participant that runs a call itself broadcasts its start and its end.
    let own = observed(vec![heard(2, "assistant", &request(-1, "a", "server")), closed(30_000)]);
    assert_eq!(found(&check(own)), [(Level::Note, "timeout-not-honoured")]);
}

#[test]
fn owner_without_the_tool_may_have_been_named_by_the_call() {
    let entries = observed(vec![
        heard(1, "tv", REGISTER),
        heard(1, "phone", NOTHING),
        heard(2, "assistant", &request(-1, "a", "client")),
        heard(3, "phone", &failed(1, "a", "unknown_tool")),
        closed(30_000),
    ]);
    let call = only(&entries);
    assert_eq!(call.owner.as_ref().unwrap().as_str(), "phone");
    assert!(
        matches!(call.outcome, RecordedOutcome::Failed { ref code, .. } if *code == ErrorCode::UNKNOWN_TOOL)
    );
    assert_eq!(found(&check(entries)), []);
    // A plain client registers nothing.
    let plain = observed(vec![
        heard(1, "tv", REGISTER),
        heard(2, "assistant", &request(-1, "a", "client")),
        heard(3, "old", &ok(1, "a")),
        closed(30_000),
    ]);
    assert_eq!((only(&plain).owner.unwrap().as_str(), only(&plain).outcome), ("old", RecordedOutcome::Ok));
    assert_eq!(found(&check(plain)), [(Level::Note, "wrong-sender")]);
}

#[test]
fn sec_i4_strangers_earlier_result_is_replaced_by_the_owners() {
    let entries = observed(vec![
        heard(1, "phone", REGISTER),
        heard(2, "assistant", &request(-1, "a", "client")),
        heard(3, "stranger", &progress(1, "a")),
        heard(3, "stranger", &failed(2, "a", "busy")),
        heard(4, "phone", &progress(1, "a")),
        heard(5, "phone", &ok(2, "a")),
        heard(6, "stranger", &ok(3, "a")),
        closed(30_000),
    ]);
    let call = only(&entries);
    assert_eq!((call.owner.unwrap().as_str(), call.outcome), ("phone", RecordedOutcome::Ok));
    assert_eq!((call.started, call.settled), (Some(Moment(4 * MS)), Some(Moment(5 * MS))));
    let checked = check(entries);
    let of_stranger = |it: &toolbridge::recording::Finding| it.who == Some("stranger".into());
    assert!(checked.findings.iter().all(of_stranger), "{checked:#?}");
    let wrong = "wrong-sender";
    assert_eq!(found(&checked), [(Level::Note, wrong), (Level::Error, wrong), (Level::Error, wrong)]);
}

#[test]
fn restarted_owner_may_be_followed_by_another_owner() {
    let entries = observed(vec![
        heard(1, "phone", REGISTER),
        heard(1, "tv", REGISTER),
        heard(2, "assistant", &request(-1, "a", "client")),
        heard(3, "phone", &progress(1, "a")),
        left(4, "phone"),
        heard(5, "assistant", &request(-2, "a", "client")),
        heard(6, "tv", &ok(1, "a")),
        closed(30_000),
    ]);
    assert_eq!((only(&entries).owner.unwrap().as_str(), only(&entries).outcome), ("tv", RecordedOutcome::Ok));
    assert_eq!(found(&check(entries)), []);
}

#[test]
fn leave_event_may_overtake_earlier_frames() {
    let entries = observed(vec![
        heard(1, "phone", REGISTER),
        heard(2, "assistant", &request(-1, "a", "client")),
        heard(3, "assistant", &stop(-2, "a")),
        left(4, "phone"),
        heard(5, "phone", &failed(1, "a", "cancelled")),
        closed(6),
    ]);
    assert_eq!(found(&check(entries)), [(Level::Note, "dead-sid")]);
}

/// An observer of an in-memory room, recorded until it is stopped.
struct Watching {
    end: tokio::sync::oneshot::Sender<()>,
    watching: tokio::task::JoinHandle<()>,
}

impl Watching {
    fn of(recorder: &Recorder, connection: MemoryTransport) -> Self {
        let mut tap = recorder.tap(connection);
        let (end, mut ended) = tokio::sync::oneshot::channel();
        let watching = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = &mut ended => break,
                    _ = tap.recv() => {}
                }
            }
            tap.close().await;
        });
        Self { end, watching }
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        self.watching.await.unwrap();
    }
}

async fn lamp() -> Result<&'static str, ToolError> {
    Ok("on")
}

async fn slow(context: ToolContext) -> Result<(), ToolError> {
    context.progress("on it");
    std::future::pending().await
}

/// Small and large successes, an unsent request, a timeout, a cancel, a call that the assistant runs itself, and one
/// that is open at the end; with two observers.
async fn session(folder: &Folder) -> [Vec<Entry>; 2] {
    let room = MemoryRoom::named("kitchen");
    room.delay(Duration::from_millis(20));
    let files = ["one.mcap", "two.mcap"].map(|name| folder.file(name));
    let recorders = files.each_ref().map(|file| Recorder::create(file, RecorderOptions::default()).unwrap());
    let one = Watching::of(&recorders[0], room.observer("eye"));
    let two = Watching::of(&recorders[1], room.observer("ear"));
    let phone = Client::builder().tool("lamp", "", lamp).tool("slow", "", slow);
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let tv = Client::builder().tool("picture", "", lamp).join_over(room.client("tv")).await.unwrap();
    let assistant = Assistant::builder().tool("ours", "", lamp).join_over(room.assistant("assistant"));
    let assistant = assistant.await.unwrap();
    let mut events = assistant.events();
    while assistant.tools().len() < 4 {
        let _: Option<Event> = events.recv().await;
    }
    assistant.call("lamp", ()).await.unwrap();
    assistant.call("lamp", json!({"text": "x".repeat(40_000)})).await.unwrap();
    assistant.call("picture", ()).await.unwrap();
    assistant.call("lamp", ()).to("tv").await.unwrap_err();
    assistant.call("ours", ()).await.unwrap();
    let late = assistant.call("slow", ()).timeout(Duration::from_millis(500)).await;
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    let mut stopped = assistant.call("slow", ()).start();
    stopped.progress().await.unwrap();
    drop(stopped);
    let mut open = assistant.call("slow", ()).start();
    while open.progress().await.unwrap().message.is_none() {}
    tokio::time::sleep(Duration::from_secs(1)).await; // on the paused clock: everything in flight arrives
    one.end().await;
    two.end().await;
    for recorder in recorders {
        recorder.finish().unwrap();
    }
    drop((open, assistant, phone, tv));
    files.map(|file| Recording::open(file).unwrap().entries().collect())
}

#[tokio::test(start_paused = true)]
async fn two_observers_record_each_call_once_without_findings() {
    let folder = Folder::new();
    for (who, entries) in ["eye", "ear"].into_iter().zip(session(&folder).await) {
        let checked = check(entries.clone());
        assert_eq!(found(&checked), [], "{who}: {checked:#?}");
        let calls = calls(entries.clone()).calls;
        let ends: Vec<_> = calls
            .iter()
            .map(|call| {
                let outcome = match &call.outcome {
                    RecordedOutcome::Failed { code, .. } => code.to_string(),
                    other => format!("{other:?}"),
                };
                (call.tool.clone(), call.owner.as_ref().unwrap().to_string(), outcome)
            })
            .collect();
        let wanted = [
            ("lamp", "phone", "Ok"),
            ("lamp", "phone", "Ok"),
            ("picture", "tv", "Ok"),
            ("ours", "assistant", "Ok"),
            ("slow", "phone", "timeout"), // its owner answered `cancelled`, which its caller did not wait for
            ("slow", "phone", "cancelled"),
            ("slow", "phone", "Open"),
        ];
        let wanted = wanted.map(|(tool, owner, end)| (tool.to_owned(), owner.to_owned(), end.to_owned()));
        assert_eq!(ends, wanted, "{who}");
        assert!(
            calls.iter().all(|call| call.caller == Some("assistant".into()) && call.delivered.is_none()),
            "{calls:#?}"
        );
        assert!(calls[6].started.is_some(), "{calls:#?}");
        let info = info(entries.clone());
        assert_eq!((info.room.as_str(), info.identity.as_str(), info.finished), ("kitchen", who, true));
        let shown = info.to_string();
        assert!(shown.contains("an observer: it receives copies"), "{shown}");
        assert_eq!(Replay::dry(entries), Err(DryError::Observer), "{who}");
    }
    // Files made from the recording are an observer's too.
    let (file, mended, without) = (folder.file("one.mcap"), folder.file("mended"), folder.file("without"));
    let as_it_was: Vec<_> = Recording::open(&file).unwrap().entries().collect();
    repair(&file, &mended, false).unwrap();
    let read = |path| Recording::open(path).unwrap().entries().collect::<Vec<_>>();
    assert_eq!(read(&mended), as_it_was);
    redact(&file, &without, Redact::everything(), false).unwrap();
    assert_eq!(found(&check(read(&without))), []);
    assert_eq!(calls(read(&without)).calls.len(), 7);
    let page = report(as_it_was.clone(), &calls(as_it_was).calls, "one");
    assert!(page.contains("eye") && page.contains("cancelled"));
}

#[tokio::test(start_paused = true)]
async fn hidden_observer_is_marked_in_its_file() {
    let (folder, room) = (Folder::new(), MemoryRoom::named("kitchen"));
    let file = folder.file("hidden.mcap");
    let options = RecorderOptions::default().hidden();
    let recorder = Recorder::create(&file, options).unwrap();
    let mut tap = recorder.tap(room.join(|sid| Participant::new("ghost", sid)));
    tap.close().await;
    recorder.finish().unwrap();
    recorder.ended().await;
    let recording = Recording::open(&file).unwrap();
    assert_eq!(recording.about().role, Some(Role::Observer));
    let entries: Vec<_> = recording.entries().collect();
    assert!(
        matches!(&entries[1].what, Happened::Event(RoomEvent::Joined { identity, role: Some(role), .. })
        if *identity == *"ghost" && role == "hidden"),
        "{entries:?}"
    );
    let shown = info(entries.clone()).to_string();
    assert!(shown.contains("it receives only broadcasts"), "{shown}");
    assert_eq!(Replay::dry(entries), Err(DryError::Observer));
}

/// A random session without violations, with an observer that joins and leaves at random.
fn random_session(seed: u64) -> World {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let fast = random.one_in(2);
    let config = || Config::default().lossy(fast);
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.random = Random(seed | 1);
    world.jitter = random.pick(&[Duration::ZERO, 15 * MILLI, 150 * MILLI]);
    let joins_at = random.below(15);
    if joins_at < 5 {
        enter(&mut world);
    }
    world.assistant("a", config());
    let either = tool("both").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![tool("own"), either])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(8))));
    for (name, tools) in [("phone", &["good", "bad", "wait", "both"][..]), ("tv", &["show", "wait"])] {
        world.client(name, config(), tools);
        world.handle(name, |job| match job.tool.as_str() {
            "wait" => None,
            "bad" => Some(Err(ToolError::new("broken", "it broke"))),
            _ => Some(Ok(value(1))),
        });
    }
    world.run(200 * MILLI);
    let mut open = Vec::new();
    for step in 5..55 {
        if step == joins_at {
            enter(&mut world);
        }
        match random.below(12) {
            0 | 1 => drop(world.call("a", asked("good"))),
            2 => drop(world.call("a", asked("bad"))),
            3 => drop(world.call("a", asked("own"))),
            4 => drop(world.call("a", asked("both"))),
            5 => drop(world.call("a", asked("show"))),
            6 => drop(world.call("a", asked("show").to("phone"))),
            7 => {
                let limit = random.pick(&[300 * MILLI, Duration::from_secs(1), Duration::from_secs(10)]);
                let owner = random.pick(&["phone", "tv"]);
                open.extend(world.call("a", asked("wait").to(owner).timeout(limit)));
            }
            8 if !open.is_empty() => {
                let key = open.remove(0);
                world.with("a", |session, now| session.cancel(now, key));
            }
            9 if !world.ends["phone"].jobs.is_empty() => world.finish("phone", Ok(value(2))),
            10 if random.one_in(3) => {
                let who = random.pick(&["phone", "tv", "a"]);
                world.leave(who);
                world.run(random.pick(&[Duration::from_secs(1), Duration::from_secs(8)]));
                world.rejoin(who);
            }
            _ => {}
        }
        world.run(random.pick(&[1, 17, 40, 200, 2_000]) * MILLI);
    }
    world.run(random.pick(&[1, 200, 20_000]) * MILLI);
    world
}

fn enter(world: &mut World) {
    let sid = world.sid();
    world.play(&Participant::new("eye", sid).role(Role::Observer));
}

#[test]
fn observer_of_random_sessions_has_no_findings_and_the_callers_outcomes() {
    let (mut settled, mut early) = (0, 0);
    for seed in 1..=200 {
        let world = random_session(seed);
        let mut entries = file(&world, "eye");
        let Happened::Event(RoomEvent::Here { identity, sid, .. }) = &entries[0].what else {
            panic!("{seed}")
        };
        let (identity, sid, role) = (identity.clone(), sid.clone(), Some("observer".to_owned()));
        let event = RoomEvent::Joined { identity, sid, agent: false, role, protocol: 0 };
        entries.insert(1, Entry::new(entries[0].at, Happened::Event(event)));
        let at = entries.last().unwrap().at;
        entries.push(Entry::new(at, Happened::Event(RoomEvent::Closed { reason: "closed".to_owned() })));
        let checked = check(entries.clone());
        assert_eq!(checked.errors, 0, "seed {seed}: {checked:#?}");
        let of_caller = calls(file(&world, "a")).calls;
        let mut ids = std::collections::HashSet::new();
        for call in calls(entries).calls {
            assert!(ids.insert(call.id.clone()), "seed {seed}: twice: {call:#?}");
            let same = of_caller.iter().find(|it| it.id == call.id);
            let Some(same) = same.filter(|it| it.settled.is_some() && call.settled.is_some()) else {
                continue;
            };
            // A call that the caller ran itself while disconnected is not broadcast.
            if same.owner == same.caller && call.owner != same.owner {
                continue;
            }
            // An observer that missed the stop sees only the answer that the caller did not wait for.
            if same.stopped.is_some() && call.stopped.is_none() {
                continue;
            }
            // A stop alone does not show the owner.
            let owner = call.owner.as_ref().or(same.owner.as_ref());
            assert_eq!(
                (owner, call.outcome.as_str()),
                (same.owner.as_ref(), same.outcome.as_str()),
                "seed {seed}: {call:#?} {same:#?}"
            );
            settled += 1;
            early += u32::from(call.requested.is_some_and(|at| call.settled.is_some_and(|end| end < at)));
        }
    }
    assert!(settled > 1_500 && early > 20, "{settled} calls, {early} with the result first");
}
