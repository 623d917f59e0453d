//! The cost of a flood. A participant without rights sends frames of every kind; they change counters, and the memory
//! of the session does not grow.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::time::{Duration, Instant};

use allocation_counter::measure;
use toolbridge::{
    Config, Counter, Execution, Identity, Lane, Output, Participant, Peer, Role, STREAM_TOPIC, Session,
    StreamHeader, StreamPart, Tool, TransportEvent, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, Frame, Message, Meta, RegisteredTool, ToolProgress,
        ToolUseRequest, ToolUseResult, ToolsRegister, ViewUpdate,
    },
};

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

/// Frames of each kind.
const FLOOD: usize = 20_000;

/// What a session may keep after a flood, in bytes: the sender's state, and queued reports.
const KEPT: i64 = 4 * 1024;

/// What a session may use during a flood, in bytes: one frame that is being decoded.
const TAKEN: u64 = 64 * 1024;

/// An assistant and a client that know each other.
struct Pair {
    assistant: Session,
    client: Session,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test owns its clock")]
        let now = Instant::now();
        let assistant = Participant::new("a", "PA_1").agent(true);
        let phone = Participant::new("phone", "PA_2").role(Role::Client);
        let config = || Config::default().room("room").streams(true);
        let mut pair = Self {
            assistant: Session::assistant(now, assistant.clone(), config(), [1; 32]),
            client: Session::client(now, phone.clone(), config(), [2; 32]),
            now,
        };
        pair.client.offer(now, vec![Tool::new("t".parse().unwrap(), "")]).unwrap();
        pair.assistant.handle_event(now, TransportEvent::Joined(phone));
        pair.client.handle_event(now, TransportEvent::Joined(assistant));
        pair.talk();
        assert_eq!(pair.assistant.tools().len(), 1);
        pair
    }

    /// Exchanges the packets of both until neither sends.
    fn talk(&mut self) {
        let peers = [Peer::new("a", "PA_1"), Peer::new("phone", "PA_2")];
        loop {
            let said = [outputs(&mut self.assistant), outputs(&mut self.client)];
            if said.iter().all(Vec::is_empty) {
                return;
            }
            for (from, packets) in peers.iter().zip(said) {
                let to = if from == &peers[0] { &mut self.client } else { &mut self.assistant };
                for packet in packets {
                    to.handle_event(self.now, TransportEvent::packet(from.clone(), Lane::Reliable, packet));
                }
            }
        }
    }

    fn joined(&mut self, who: &Participant) {
        self.assistant.handle_event(self.now, TransportEvent::Joined(who.clone()));
        self.client.handle_event(self.now, TransportEvent::Joined(who.clone()));
        self.talk();
    }
}

/// Returns the payloads of a session's packets; all other outputs are dropped.
fn outputs(session: &mut Session) -> Vec<bytes::Bytes> {
    std::iter::from_fn(|| session.poll_output())
        .filter_map(|output| match output {
            Output::Transmit(packet) => Some(packet.payload),
            _ => None,
        })
        .collect()
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let messages = [
        (
            "6",
            Message::ToolUseRequest(ToolUseRequest::new(
                "1".parse().unwrap(),
                "t",
                Value::empty(),
                Ok(Execution::Client),
            )),
        ),
        ("7", Message::ToolUseResult(ToolUseResult::new("1".parse().unwrap(), true))),
        ("8", Message::Acknowledgement(with!(Acknowledgement::default(), acknowledged_stanza_id = Some(1)))),
        ("10", Message::ControlStop(with!(ControlStop::default(), target_id = Some("1".to_owned())))),
        ("12", Message::Configuration(Configuration::default())),
        (
            "70",
            Message::ToolsRegister(with!(
                ToolsRegister::default(),
                tools = vec![with!(RegisteredTool::default(), name = "t".to_owned())]
            )),
        ),
        ("72", Message::Heartbeat),
        (
            "1000",
            Message::ToolProgress(ToolProgress::new(
                "1".parse().unwrap(),
                toolbridge::ProgressStatus::InProgress,
            )),
        ),
        ("1001", Message::ViewUpdate(ViewUpdate::new("v", Value::empty()))),
    ];
    let written = |message: &Message| Frame::write(1, "room", &Meta::new(), message).unwrap().to_vec();
    messages.iter().map(|(kind, message)| (*kind, written(message))).collect()
}

#[test]
fn sec_r1_flood_from_a_stranger_leaves_memory_flat() {
    let mut pair = Pair::new();
    let stranger = Participant::new("stranger", "PA_9");
    pair.joined(&stranger);
    for (kind, bytes) in frames() {
        for end in ["assistant", "client"] {
            let now = pair.now;
            let session = if end == "client" { &mut pair.client } else { &mut pair.assistant };
            let flood = |session: &mut Session, times| {
                let mut answers = 0;
                for _ in 0..times {
                    session.handle_event(
                        now,
                        TransportEvent::packet(stranger.peer().clone(), Lane::Reliable, bytes.clone()),
                    );
                    answers += outputs(session).len();
                }
                answers
            };
            flood(session, 10);
            let frames_in = session.stats().count(Counter::FramesIn);
            let mut answers = 0;
            let cost = measure(|| answers = flood(session, FLOOD));
            assert!(cost.bytes_current.abs() < KEPT, "type {kind} to the {end}: {cost:?}");
            assert!(cost.bytes_max < TAKEN, "type {kind} to the {end}: {cost:?}");
            assert_eq!(answers, 0, "type {kind} to the {end}");
            assert_eq!(session.stats().count(Counter::FramesIn) - frames_in, FLOOD as u64);
            assert_eq!((session.open_calls(), session.open_jobs()), (0, 0));
        }
    }
    assert_eq!(pair.assistant.tools().len(), 1);
    assert!(pair.client.bound().is_some_and(|bound| *bound == "a"));
}

#[test]
fn sec_r1_flood_of_stream_headers_leaves_memory_flat() {
    let mut pair = Pair::new();
    let stranger = Participant::new("stranger", "PA_9");
    pair.joined(&stranger);
    let header =
        |n: usize| StreamPart::Header(StreamHeader::new(format!("s{n}"), STREAM_TOPIC, 1_000_000_u64));
    for session in [&mut pair.assistant, &mut pair.client] {
        let flood = |session: &mut Session, times: usize| {
            for n in 0..times {
                session.handle_event(
                    pair.now,
                    TransportEvent::Stream { from: stranger.peer().clone(), part: header(n) },
                );
                outputs(session);
            }
        };
        flood(session, 10);
        let cost = measure(|| flood(session, FLOOD));
        assert!(cost.bytes_current.abs() < KEPT && cost.bytes_max < TAKEN, "{cost:?}");
        assert_eq!(session.stats().named("stream_refused"), FLOOD as u64 + 10);
    }
}

/// Each frame comes from another sender that the room never announces: a limited number of frames is held for a
/// limited time.
#[test]
fn sec_r1_flood_from_many_unannounced_senders_is_capped_and_forgotten() {
    /// What a held frame may use, in bytes: these frames are small.
    const WAITING: usize = 2 * 1024;
    let mut pair = Pair::new();
    let most = (Config::default().caps.frames.held_frames_of_all * WAITING) as u64;
    let hold = Duration::from_secs(5);
    let flood = |session: &mut Session, now: Instant, bytes: &[u8]| {
        for n in 0..FLOOD {
            let identity = Identity::from(format!("nobody-{n}"));
            session.handle_event(
                now,
                TransportEvent::packet(
                    Peer::new(identity, format!("PA_{n}")).clone(),
                    Lane::Reliable,
                    bytes.to_vec(),
                ),
            );
            outputs(session);
        }
        session.handle_timeout(now + hold);
        outputs(session);
    };
    for session in [&mut pair.assistant, &mut pair.client] {
        for (n, (kind, bytes)) in frames().into_iter().enumerate() {
            let now = pair.now + hold * n as u32;
            let expired = session.stats().named("hold_expired");
            let cost = measure(|| flood(session, now, &bytes));
            assert!(cost.bytes_max < most, "type {kind}: {cost:?}");
            // The list of held frames keeps its capacity.
            assert!(n == 0 || cost.bytes_current.abs() < KEPT, "type {kind}: {cost:?}");
            assert_eq!(session.stats().named("hold_expired") - expired, FLOOD as u64);
        }
    }
}
