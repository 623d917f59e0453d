//! A recorded session, run again: an honest one says what it said, and a changed one shows where.

use std::{collections::BTreeMap, time::Instant};

use bytes::Bytes;
use toolbridge::{
    Body, Config, Lane, Packet, Participant, Peer, Progress, Role, STREAM_TOPIC, StreamPart, TOPIC, Tool,
    ToolError, ToolOptions,
    recording::{Direction, Entry, Happened, Moment, Recorded, RoomEvent},
    replay::{DryReport, Replay, Skipped},
    wire::{Frame, Kind, Message, Meta, ToolUseResult},
};

use crate::session_world::{Fate, MS, Noted, Random, SECOND, World, request, tool, value};

/// The file of one participant.
fn file(world: &World, name: &str) -> Vec<Entry> {
    let mut tape = Tape::default();
    for (at, whose, noted) in world.notes.as_ref().unwrap() {
        if whose == name {
            tape.note(*at, world.began, noted);
        }
    }
    tape.entries
}

#[derive(Default)]
struct Tape {
    entries: Vec<Entry>,
    me: Option<Peer>,
    parts: BTreeMap<(Peer, String), Vec<u8>>,
}

impl Tape {
    fn note(&mut self, at: Instant, began: Instant, noted: &Noted) {
        let at = Moment(1_700_000_000_000_000_000 + (at - began).as_nanos() as u64);
        let what = match noted {
            Noted::Here(who) => {
                self.me = Some(who.peer().clone());
                let (identity, sid) = (who.identity().clone(), who.sid().clone());
                Happened::Event(RoomEvent::Here { identity, sid, room: "room".to_owned() })
            }
            Noted::Joined(who) => Happened::Event(RoomEvent::Joined {
                identity: who.identity().clone(),
                sid: who.sid().clone(),
                agent: who.is_agent(),
                role: who.token_role().map(|role| role.as_str().to_owned()),
            }),
            Noted::Left(who) => {
                Happened::Event(RoomEvent::Left { identity: who.identity().clone(), sid: who.sid().clone() })
            }
            Noted::Heard { from, lane, bytes } => {
                Happened::Packet(self.heard(from.clone(), *lane, bytes.clone().into(), false))
            }
            Noted::HeardPart { from, part } => match self.part(from, part) {
                Some(bytes) => Happened::Packet(self.heard(from.clone(), Lane::Reliable, bytes.into(), true)),
                None => return,
            },
            Noted::Sent(packet) => Happened::Packet(self.sent(packet)),
            Noted::Unsent(packet) => {
                let sequence = *packet as u32;
                Happened::Event(RoomEvent::Unsent {
                    channel: 1,
                    sequence,
                    reason: "not connected".to_owned(),
                })
            }
        };
        self.entries.push(Entry { at, what });
    }

    fn sent(&self, packet: &Packet) -> Recorded {
        Recorded {
            direction: Direction::Sent,
            from: self.me.clone().unwrap(),
            to: packet.to.clone(),
            topic: TOPIC.to_owned(),
            lane: packet.lane,
            stream: packet.payload.len() > 15_000,
            channel: 1,
            sequence: packet.id as u32,
            payload: packet.payload.clone(),
        }
    }

    fn heard(&self, from: Peer, lane: Lane, payload: Bytes, stream: bool) -> Recorded {
        let topic = if stream { STREAM_TOPIC } else { TOPIC }.to_owned();
        let (direction, channel) = (Direction::Heard, 2);
        Recorded { direction, from, to: Vec::new(), topic, lane, stream, channel, sequence: 0, payload }
    }

    fn part(&mut self, from: &Peer, part: &StreamPart) -> Option<Vec<u8>> {
        let key = |id: &str| (from.clone(), id.to_owned());
        match part {
            StreamPart::Header(header) => {
                self.parts.insert(key(&header.id), Vec::new());
                None
            }
            StreamPart::Chunk { id, bytes, .. } => {
                self.parts.get_mut(&key(id))?.extend_from_slice(bytes);
                None
            }
            StreamPart::Trailer { id, .. } => self.parts.remove(&key(id)),
        }
    }
}

fn dry(entries: &[Entry]) -> DryReport {
    let report = Replay::dry(entries.to_vec()).unwrap();
    assert_eq!(report, Replay::dry(entries.to_vec()).unwrap(), "the same file, the same answer");
    report
}

/// Both ends' files say the same again.
fn both_are_same(world: &World) -> (DryReport, DryReport) {
    let [a, phone] = ["a", "phone"].map(|name| {
        let report = dry(&file(world, name));
        assert!(report.is_same(), "{name}: {report}");
        assert!(report.compared > 0, "{name}: {report}");
        report
    });
    (a, phone)
}

fn noted(assistant: Config, client: Config, tools: &[&str]) -> World {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", assistant);
    world.client("phone", client, tools);
    world.run(200 * MS);
    world
}

fn pair(tools: &[&str]) -> World {
    noted(Config::default(), Config::default(), tools)
}

/// Much later, so that nothing is due any more.
fn ended(mut world: World) -> World {
    world.run(90 * SECOND);
    world.with("a", |session, now| session.close(now));
    world.run(SECOND);
    world
}

#[test]
fn a_success_says_the_same_again_at_both_ends() {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    let (a, phone) = both_are_same(&ended(world));
    assert!(a.compared >= 9 && phone.compared >= 9, "{a}{phone}");
}

#[test]
fn a_failure_says_the_same_again_at_both_ends() {
    let mut world = pair(&["bad"]);
    world.handle("phone", |_| Some(Err(ToolError::new("disk_full", "no room").with_partial(value(2)))));
    world.ask("a", request("bad")).unwrap_err();
    both_are_same(&ended(world));
}

#[test]
fn an_unknown_tool_says_the_same_again_at_both_ends() {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.with("phone", |session, now| session.offer(now, vec![tool("gone")])).unwrap().unwrap();
    world.call("a", request("good")).unwrap(); // the assistant has not heard of it yet
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn a_timeout_says_the_same_again_at_both_ends() {
    let mut world = pair(&["hang"]);
    world.ask("a", request("hang").timeout(2 * SECOND)).unwrap_err();
    both_are_same(&ended(world));
}

#[test]
fn a_cancel_says_the_same_again_at_both_ends() {
    let mut world = pair(&["hang"]);
    let key = world.call("a", request("hang")).unwrap();
    world.run(3 * SECOND);
    world.with("a", |session, now| session.cancel(now, key));
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn progress_says_the_same_again_at_both_ends() {
    let mut world = pair(&["slow"]);
    world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    for step in 0..20 {
        let progress = Progress::started().content(value(step));
        world.with("phone", |session, now| session.progress(now, job, progress));
        world.run(37 * MS);
    }
    world.finish("phone", Ok(value(9)));
    both_are_same(&ended(world));
}

#[test]
fn a_changed_registration_says_the_same_again_at_both_ends() {
    let mut world = pair(&["one"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("one")).unwrap();
    let two = Tool::new("two".parse().unwrap(), "changed").schema(serde_json::json!({"type": "object"}));
    world.with("phone", |session, now| session.offer(now, vec![tool("one"), two])).unwrap().unwrap();
    world.run(SECOND);
    world.ask("a", request("two")).unwrap();
    both_are_same(&ended(world));
}

fn shared(name: &str) -> Tool {
    tool(name).options(ToolOptions::default().prefer_client())
}

#[test]
fn a_tool_that_either_may_run_says_the_same_again_whoever_ran_it() {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    world.with("a", |session, now| session.offer(now, vec![shared("lookup")])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    world.client("phone", Config::default(), &["lookup"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(200 * MS);
    world.ask("a", request("lookup")).unwrap();
    world.run(SECOND);
    let claim =
        |frame: &Frame| matches!(frame.message(), Ok(Message::Acknowledgement(it)) if it.notes.is_some());
    world.fate = Some(Box::new(move |_, who, frame| match who.as_str() {
        "phone" if claim(frame) => Fate::IsOvertaken(3 * SECOND),
        _ => Fate::Arrives,
    }));
    world.ask("a", request("lookup")).unwrap(); // the claim comes too late: the assistant runs it
    world.run(5 * SECOND);
    world.fate = None;
    both_are_same(&ended(world));
}

#[test]
fn what_an_assistant_runs_itself_says_the_same_again_at_both_ends() {
    let mut world = pair(&["good"]);
    let own = ["open", "failing", "quiet"].map(tool);
    let named = own[2].clone().options(ToolOptions::default().disclose(toolbridge::Disclose::Name));
    let own = vec![own[0].clone(), own[1].clone(), named];
    world.with("a", |session, now| session.offer(now, own)).unwrap().unwrap();
    world.handle("a", |job| match job.tool.as_str() {
        "failing" => Some(Err(ToolError::new("broken", "it broke"))),
        _ => Some(Ok(value(3))),
    });
    world.ask("a", request("open")).unwrap();
    world.ask("a", request("failing")).unwrap_err();
    world.ask("a", request("quiet")).unwrap();
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn a_call_of_a_plain_peer_says_the_same_again() {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    world.stranger("old");
    world.run(5 * SECOND);
    let key = world.call("a", request("beep").to("old").timeout(20 * SECOND)).unwrap();
    world.run(3 * SECOND);
    let Some(Message::ToolUseRequest(asked)) = world.heard("old", Kind::TOOL_USE_REQUEST).pop() else {
        panic!()
    };
    let result = ToolUseResult {
        id: asked.id,
        success: true,
        result: Some(value(4)),
        error_code: None,
        error_message: None,
        conversation_id: None,
        result_id: None,
    };
    world.say("old", &["a"], &Meta::new(), &Message::ToolUseResult(result));
    world.run(SECOND);
    assert!(world.settled("a", key).unwrap().is_ok());
    let report = dry(&file(&ended(world), "a"));
    assert!(report.is_same() && report.skipped.contains_key(&Skipped::NotReplayed), "{report}");
}

#[test]
fn a_peer_that_was_lost_and_comes_back_says_the_same_again_at_both_ends() {
    let mut world = pair(&["good", "slow"]);
    world.call("a", request("slow")).unwrap();
    world.run(SECOND);
    world.leave("phone");
    world.run(500 * MS);
    world.finish("phone", Ok(value(5)));
    world.run(SECOND);
    world.rejoin("phone");
    world.run(10 * SECOND);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    world.run(20 * SECOND);
    world.leave("a");
    world.run(SECOND);
    world.rejoin("a");
    world.run(SECOND);
    world.ask("a", request("good")).unwrap();
    both_are_same(&ended(world));
}

#[test]
fn another_run_of_a_program_is_another_session() {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    world.run(SECOND);
    world.leave("phone");
    world.run(20 * SECOND);
    world.client("phone", Config::default(), &["good"]);
    world.handle("phone", |_| Some(Ok(value(2))));
    world.run(SECOND);
    world.ask("a", request("good")).unwrap();
    world.run(40 * SECOND);
    world.ask("a", request("good")).unwrap();
    let report = dry(&file(&ended(world), "a"));
    assert!(report.is_same(), "{report}");
}

#[test]
fn the_fast_lane_says_the_same_again_at_both_ends() {
    let lossy = || Config::default().lossy(true);
    let mut world = noted(lossy(), lossy(), &["t", "late"]);
    world.random = Random(3);
    (world.lossy.lost, world.lossy.twice, world.lossy.passed) = (200, 100, 200);
    world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(value(1))));
    for _ in 0..30 {
        world.ask("a", request("t")).unwrap();
        world.run(150 * MS);
        world.call("a", request("late").timeout(SECOND)).unwrap();
        world.run(90 * MS);
        if !world.ends["phone"].jobs.is_empty() {
            world.finish("phone", Ok(value(2)));
        }
    }
    world.run(5 * SECOND);
    let (a, phone) = both_are_same(&ended(world));
    assert!(a.compared > 100 && phone.compared > 100, "{a}{phone}");
}

#[test]
fn frames_in_parts_and_copies_for_observers_say_the_same_again_at_both_ends() {
    let mut world = noted(Config::default().streams(true), Config::default().streams(true), &["big"]);
    let sid = world.sid();
    world.puppet(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    world.handle("phone", |_| Some(Ok(Body::from(serde_json::json!({"text": "x".repeat(40_000)})))));
    let text = Body::from(serde_json::json!({"text": "y".repeat(30_000)}));
    world.ask("a", toolbridge::Request::new("big", text)).unwrap();
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn a_prompt_and_a_stop_that_a_client_asks_for_say_the_same_again_at_both_ends() {
    let assistant = Config::default().allow_stop(|_| true);
    let mut world = noted(assistant, Config::default().prompts(true), &["hang"]);
    world.handle("phone", |job| (job.tool.as_str() != "hang").then(|| Ok(value(1))));
    let question = Body::from(serde_json::json!({"title": "Which?", "options": []}));
    let _ = world.call("a", toolbridge::Request::new("bridge.choose", question).to("phone"));
    world.run(SECOND);
    world.call("a", request("hang")).unwrap();
    world.run(SECOND);
    world.with("phone", |session, now| session.ask_to_stop(now, None)).unwrap().unwrap();
    world.run(SECOND);
    both_are_same(&ended(world));
}
