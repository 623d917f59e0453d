//! Drives a client that answers LiveKit's RPC, and an assistant that calls by it, with arbitrary requests, acknowledgements,
//! answers, headers, chunks and compressed payloads: no panic, no request that runs twice, no call with two outcomes.
//!
//! The input is a list of operations, each one byte followed by its parameters. Byte strings are a length and that many
//! bytes.

#![no_main]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use toolbridge::{
    Config, ConnectionState, Tool, Value,
    session::{CallKey, Output, Request, SendFailure, Session},
    transport::{
        Compression, Participant, Peer, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcError, RpcMessage,
        RpcRequest, RpcResponse, StreamHeader, StreamKind, StreamPart, TransportEvent,
    },
};

/// Packets that one operation may cause.
const PACKETS: usize = 512;

/// Requests are remembered for longer than this after their answers.
const REMEMBERED: Duration = Duration::from_secs(50);

/// The remaining input, followed by zeros.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn next(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::from(self.next()) % from.len()].clone()
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = (usize::from(self.next()) * usize::from(self.next())).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

struct Run {
    session: Session,
    is_client: bool,
    now: Instant,
    /// Ids that the other side may know.
    ids: Vec<String>,
    /// The requests that have run lately, by caller, join and id.
    ran: BTreeSet<(Peer, String)>,
    since: Instant,
    running: Vec<toolbridge::session::JobKey>,
    outcomes: BTreeMap<CallKey, u32>,
    packets: Vec<u64>,
    last: Option<Peer>,
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let mut run = Run::new(&mut bytes);
    for _ in 0..300 {
        if bytes.0.is_empty() {
            break;
        }
        run.operation(&mut bytes);
    }
    run.session.close(run.now);
    run.drain();
    assert!(run.outcomes.values().all(|outcomes| *outcomes == 1), "{:?}", run.outcomes);
});

impl Run {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let is_client = bytes.next() & 1 == 1;
        let now = Instant::now();
        let tool = |name: &str| Tool::new(name.parse().expect("a name"), "");
        let seed = [bytes.next(); 32];
        let session = if is_client {
            let config = Config::default().streams(true).answer_rpc().rpc_caller("web");
            let mut session = Session::client(now, Participant::new("phone", "PA_0"), config, seed);
            session.offer(now, vec![tool("t")]).expect("a tool");
            session
        } else {
            let config =
                Config::default().streams(true).rpc_tool("web", tool("t")).rpc_probe(bytes.next() & 1 == 1);
            Session::assistant(now, Participant::new("agent", "PA_0").agent(true), config, seed)
        };
        let (ids, ran, running) = (vec![String::new()], BTreeSet::new(), Vec::new());
        let (outcomes, packets) = (BTreeMap::new(), Vec::new());
        Self { session, is_client, now, ids, ran, running, outcomes, packets, since: now, last: None }
    }

    fn peer(bytes: &mut Bytes<'_>) -> Peer {
        let identity = bytes.pick(&["web", "web", "agent", "other", ""]);
        Peer::new(identity, bytes.pick(&["PA_1", "PA_1", "PA_2", ""]))
    }

    fn id(&mut self, bytes: &mut Bytes<'_>) -> String {
        match bytes.next() % 8 {
            0 => bytes.text(),
            1 => format!("{}.2", bytes.pick(&self.ids)),
            2 => bytes.pick(&["r1".to_owned(), "r2".to_owned()]),
            _ => bytes.pick(&self.ids),
        }
    }

    fn operation(&mut self, bytes: &mut Bytes<'_>) {
        let event = match bytes.next() % 14 {
            0 | 1 => {
                let from = Self::peer(bytes);
                let who = Participant::new(from.identity().clone(), from.sid().clone());
                let protocol = u32::from(bytes.next() % 3);
                TransportEvent::Joined(
                    who.agent(bytes.next() & 1 == 1).client_protocol(protocol).inflates(protocol == 2),
                )
            }
            2 => TransportEvent::Left(Self::peer(bytes)),
            3 => {
                let (from, id) = (Self::peer(bytes), self.id(bytes));
                let method = bytes.pick(&["t", "t", "x", "lk.x", "toolbridge.ping", ""]);
                let payload = bytes.bytes().to_vec();
                let mut request = RpcRequest::new(id, method, payload, u32::from(bytes.next()) << 24);
                request.version = u32::from(bytes.next() % 3);
                self.last = Some(from.clone());
                TransportEvent::Rpc { from: Some(from), message: RpcMessage::Request(request) }
            }
            4 => {
                let (from, id) = (Self::peer(bytes), self.id(bytes));
                TransportEvent::Rpc { from: Some(from), message: RpcMessage::Ack { id } }
            }
            5 | 6 => {
                let (from, id) = (Self::peer(bytes), self.id(bytes));
                let outcome = match bytes.next() & 1 {
                    0 => Ok(bytes.bytes().to_vec().into()),
                    _ => Err(RpcError::new(1_400 + u32::from(bytes.next()), bytes.text(), bytes.text())),
                };
                let message = RpcMessage::Response(RpcResponse::new(id, outcome));
                TransportEvent::Rpc { from: Some(from), message }
            }
            7 | 8 => {
                let from = Self::peer(bytes);
                let part = StreamPart::Header(self.header(bytes));
                self.last = Some(from.clone());
                TransportEvent::Stream { from, part }
            }
            9 => {
                let id = bytes.pick(&["s", "t"]).into();
                let chunk = bytes.bytes().to_vec().into();
                let part = StreamPart::Chunk { id, index: u64::from(bytes.next() % 4), bytes: chunk };
                TransportEvent::Stream { from: Self::peer(bytes), part }
            }
            10 => {
                let (id, reason) = (bytes.pick(&["s", "t"]).into(), bytes.pick(&["", "", "gone"]).to_owned());
                TransportEvent::Stream { from: Self::peer(bytes), part: StreamPart::Trailer { id, reason } }
            }
            11 => TransportEvent::ConnectionState(
                bytes.pick(&[ConnectionState::Connected, ConnectionState::Reconnecting]),
            ),
            12 => return self.act(bytes),
            _ => {
                self.now += Duration::from_millis(u64::from(bytes.next()) * 40);
                if self.now - self.since > REMEMBERED {
                    self.ran.clear();
                    self.since = self.now;
                }
                while self.session.poll_timeout().is_some_and(|due| due <= self.now) {
                    self.session.handle_timeout(self.now);
                    self.drain();
                }
                return;
            }
        };
        self.session.handle_event(self.now, event);
        self.drain();
    }

    fn header(&mut self, bytes: &mut Bytes<'_>) -> StreamHeader {
        let topic = bytes.pick(&[RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC]);
        let length = match bytes.next() % 4 {
            0 => None,
            1 => Some(u64::MAX),
            _ => Some(u64::from(bytes.next()) * u64::from(bytes.next())),
        };
        let mut header = StreamHeader::new(bytes.pick(&["s", "t"]), topic, length);
        header.kind = bytes.pick(&[StreamKind::Text, StreamKind::Text, StreamKind::Bytes]);
        header.compression = bytes.pick(&[Compression::None, Compression::Deflate, Compression::Other]);
        header.inline = (bytes.next() & 1 == 1).then(|| bytes.bytes().to_vec().into());
        let id = self.id(bytes);
        for (key, value) in [
            ("id", id),
            ("method", bytes.pick(&["t", "x", ""]).to_owned()),
            ("response_timeout_ms", bytes.pick(&["10000", "-1", "x", ""]).to_owned()),
            ("version", bytes.pick(&["2", "2", "1", "x"]).to_owned()),
        ] {
            if bytes.next() % 16 != 0 {
                header.attributes.insert(format!("lk.rpc_request_{key}"), value);
            }
        }
        header
    }

    /// Does what the local participant or its driver may do.
    fn act(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.next() % 4 {
            0 if !self.is_client => {
                let arguments = Value::from_json("{}").expect("a map");
                if let Ok(key) = self.session.call(self.now, Request::new("t", arguments).to("web")) {
                    self.outcomes.insert(key, 0);
                    self.ids.extend(self.session.call_id(key).map(|id| id.as_str().to_owned()));
                }
            }
            1 => {
                if let Some(key) = self.running.pop() {
                    self.session.settle(self.now, key, Ok(Value::from_json("{\"a\": 1}").expect("a map")));
                }
            }
            2 => {
                if let Some(packet) = self.packets.pop() {
                    let why =
                        bytes.pick(&[SendFailure::Interrupted, SendFailure::QueueFull, SendFailure::Closed]);
                    self.session.handle_send_failed(self.now, packet, why);
                }
            }
            _ => {
                let key = self.outcomes.keys().nth(usize::from(bytes.next())).copied();
                key.inspect(|key| self.session.cancel(self.now, *key));
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        let mut sent = 0;
        while let Some(output) = self.session.poll_output() {
            match output {
                Output::Transmit(packet) => {
                    sent += 1;
                    self.packets.push(packet.id);
                    self.packets.drain(..self.packets.len().saturating_sub(PACKETS));
                }
                Output::Execute(job) => {
                    // The join is that of the operation that caused it, or one that was held.
                    if let Some(from) = self.last.clone().filter(|from| *from.identity() == job.caller) {
                        assert!(
                            self.ran.insert((from, job.call.as_str().to_owned())),
                            "{} runs twice",
                            job.call
                        );
                    }
                    self.running.push(job.key);
                }
                Output::Settled { key, .. } => *self.outcomes.entry(key).or_default() += 1,
                _ => {}
            }
        }
        assert!(sent <= PACKETS, "{sent} packets after one operation");
    }
}
