//! The cost of a flood. A participant without rights sends frames of every kind; they change counters, and the memory
//! of the session does not grow.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::time::{Duration, Instant};

use allocation_counter::measure;
use toolbridge::{
    Config, Identity, Role, Tool, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, Frame, Message, Meta, RegisteredTool, ToolProgress,
        ToolUseRequest, ToolUseResult, ToolsRegister, ViewUpdate,
    },
    session::{Counter, Output, Session},
    tools::Execution,
    transport::{Lane, Participant, Peer, STREAM_TOPIC, StreamHeader, StreamPart, TransportEvent},
};

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

/// How many requests of a participant without rights are refused in a second (`wire.md`, section 4.1). The rest gets no answer.
const REFUSED: usize = 50;

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
                toolbridge::tools::ProgressStatus::InProgress,
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
            flood(session, REFUSED);
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

/// The bytes of the line that a server or a host writes: almost as many as are read.
#[cfg(all(feature = "mcp", feature = "mcp-server", unix))]
mod lines {
    use std::{fs, path::PathBuf, time::Duration};

    use allocation_counter::measure;
    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        runtime::Runtime,
    };
    use toolbridge::{Assistant, ToolContext, ToolSource as _, Value, adapter::mcp, memory::MemoryRoom};

    /// The zeros of a line from a server: almost 24 MiB.
    const FROM_SERVER: usize = 24_000_000;

    /// What everything else may take, in bytes: the runtime and its buffers.
    const MORE: u64 = 1 << 20;

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A server that writes a long line before it answers a call.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, before: &str, after: &str) -> Self {
            let file = std::env::temp_dir().join(format!("toolbridge-{}-{name}.sh", std::process::id()));
            let text = format!(
                r#"
answer() {{ printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$1" "$2"; }}
while IFS= read -r line; do
  id=${{line#*'"id":'}}; id=${{id%%,*}}; id=${{id%%\}}*}}
  case "$line" in
    *'"server/discover"'*) printf '{{"jsonrpc":"2.0","id":%s,"error":{{"code":-32601,"message":"no"}}}}\n' "$id" ;;
    *'"initialize"'*) answer "$id" '{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"x","version":"1"}}}}' ;;
    *'"tools/list"'*) answer "$id" '{{"tools":[{{"name":"t","inputSchema":{{"type":"object"}}}}]}}' ;;
    *'"tools/call"'*)
      printf '%s' '{before}'; yes 0, | tr -d '\n' | head -c {FROM_SERVER}; printf '%s\n' '{after}'
      answer "$id" '{{"content":[]}}' ;;
  esac
done
"#
            );
            fs::write(&file, text).unwrap();
            Self(file)
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn sec_c1_line_of_24_mib_from_an_mcp_server_costs_at_most_three_times_its_bytes() {
        for (name, before, after) in [
            ("notification", r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"a":["#, "0]}}"),
            (
                "changed",
                r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"a":["#,
                "0]}}",
            ),
            (
                "log",
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":["#,
                "0]}}",
            ),
            ("request", r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"a":["#, "0]}}"),
            ("ping", r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":["#, "0]}}"),
            ("question", r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"a":["#, "0]}}"),
            ("unknown-answer", r#"{"jsonrpc":"2.0","id":77,"result":{"a":["#, "0]}}"),
        ] {
            let script = Script::new(name, before, after);
            let cost = measure(|| {
                runtime().block_on(async {
                    let tools = mcp::stdio(["sh", script.0.to_str().unwrap()]).await.unwrap();
                    let context = ToolContext::new("caller", Duration::from_secs(60));
                    tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
                });
            });
            assert!(cost.bytes_max <= 3 * FROM_SERVER as u64 + MORE, "{name}: {} bytes", cost.bytes_max);
        }
    }

    #[test]
    fn sec_c1_message_of_4_mib_to_an_mcp_server_costs_at_most_three_times_its_bytes() {
        let zeros = "0,".repeat((4 << 20) / 2 - 200);
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"t","arguments":{{"a":[{zeros}0]}}}}}}"#
        ) + "\n";
        let mut answer = String::new();
        let cost = measure(|| {
            runtime().block_on(async {
                let room = MemoryRoom::new();
                let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
                let (ours, theirs) = tokio::io::duplex(64 << 10);
                let (read, write) = tokio::io::split(theirs);
                let serving = mcp::serve(assistant).over(read, write);
                let (read, mut write) = tokio::io::split(ours);
                let talk = async {
                    write.write_all(message.as_bytes()).await.unwrap();
                    BufReader::new(read).read_line(&mut answer).await.unwrap();
                };
                tokio::select! {
                    _ = serving => {}
                    () = talk => {}
                }
            });
        });
        assert!(answer.contains(r#""id":7"#) && answer.contains("values; the limit is 250000"), "{answer}");
        assert!(cost.bytes_max <= 3 * message.len() as u64 + MORE, "{} bytes", cost.bytes_max);
    }
}
