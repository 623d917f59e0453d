//! An app without the bridge that is called by LiveKit's RPC, as LiveKit's SDKs answer, and forged answers.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value as Json, json};
use toolbridge::{
    CallError, CallId, Value,
    transport::{
        Form, Lane, Packet, Peer, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcRequest,
        RpcResponse, StreamHeader, StreamKind, StreamPart,
    },
};

use crate::{
    actions::{Answer, Arguments},
    random::Random,
    reach::Reach,
    room::{Load, Scheduled},
    rules::{Ledger, Rule},
    schedule::{Actor, Behavior},
    world::{Program, World},
};

/// So many answers at the same time count as interleaved.
const INTERLEAVED: usize = 5;

/// The method of a ping.
const PING: &str = "toolbridge.ping";

/// The calls that the app runs, and the requests that it reads.
#[derive(Debug, Default)]
pub(crate) struct App {
    /// The behavior of each run of a method, and who called it.
    jobs: BTreeMap<u64, (Behavior, Peer)>,
    reading: BTreeMap<(Peer, Arc<str>), (StreamHeader, Vec<u8>)>,
    /// How many requests it has got: each has its own random numbers.
    requests: u64,
}

/// Returns the id of the call to which a request belongs: a request that is sent again has a number behind it.
fn call_of(request: &str) -> CallId {
    let call = request.rsplit_once('.').filter(|(_, n)| n.parse::<u32>().is_ok()).map_or(request, |it| it.0);
    CallId::try_from(call).unwrap()
}

/// Returns the header of an answer.
fn header(request: &str, stream: u64, length: usize) -> StreamHeader {
    let mut header = StreamHeader::new(format!("answer.{stream}"), RPC_RESPONSE_TOPIC, length as u64);
    header.kind = StreamKind::Text;
    header.attributes.insert("lk.rpc_request_id".to_owned(), request.to_owned());
    header
}

impl Ledger {
    /// Records that a request in a packet leaves.
    pub(crate) fn request_leaves(&mut self, message: &RpcMessage) {
        if let RpcMessage::Request(request) = message
            && request.method != PING
        {
            self.request_left(&request.id);
        }
    }

    /// Records that the header of a request leaves.
    pub(crate) fn stream_leaves(&mut self, header: &StreamHeader) {
        if let Some(id) = header.attributes.get("lk.rpc_request_id") {
            self.request_left(id);
        }
    }

    fn request_left(&mut self, request: &str) {
        let call = self.by_id.get(&call_of(request)).copied();
        if let Some(call) = call {
            self.calls[call].owners.insert("app".into());
        }
        if call.is_none() || !self.requests_by_rpc.insert(request.to_owned()) {
            self.broken(Rule::OnlyRequests, format!("{request} is sent again, or is the id of no call"));
        }
    }
}

impl World<'_> {
    /// Checks that a message of RPC is a request to the app.
    pub(crate) fn is_request(&mut self, process: usize, packet: &Packet) -> bool {
        let is_request = match &packet.form {
            Form::Rpc(message) => matches!(message, RpcMessage::Request(_)),
            Form::Text(_) => packet.topic == RPC_REQUEST_TOPIC && packet.stream.is_some(),
            _ => false,
        };
        let actor = self.processes[process].actor;
        let fits = actor == Actor::Assistant
            && packet.lane == Lane::Reliable
            && packet.to.iter().map(|to| to.as_str()).eq(["app"]);
        if !is_request || !fits {
            self.ledger.broken(Rule::OnlyRequests, format!("{actor} sends {packet:?}"));
        }
        is_request && fits
    }

    /// Handles what arrives at the app. It does not read frames, which reach it by broadcasts only.
    pub(crate) fn app_receives(&mut self, process: usize, from: &Peer, load: Load) {
        match load {
            Load::Rpc(RpcMessage::Request(request)) => self.app_is_asked(process, from, &request, true),
            Load::Part(part) => self.app_reads(process, from, part),
            Load::Rpc(_) | Load::Packet(..) => {}
        }
    }

    /// Reads a part of a request.
    fn app_reads(&mut self, process: usize, from: &Peer, part: StreamPart) {
        let Program::App(app) = &mut self.processes[process].program else { return };
        let key = (from.clone(), part.id().clone());
        let (header, bytes) = match part {
            StreamPart::Header(header) if header.topic == RPC_REQUEST_TOPIC => match header.inline.clone() {
                Some(bytes) => (header, bytes.to_vec()),
                None => {
                    let id = header.attributes["lk.rpc_request_id"].clone();
                    app.reading.insert(key, (header, Vec::new()));
                    return self.app_acknowledges(process, from, &id);
                }
            },
            StreamPart::Header(_) => return,
            StreamPart::Chunk { bytes, .. } => {
                if let Some((_, read)) = app.reading.get_mut(&key) {
                    read.extend_from_slice(&bytes);
                }
                return;
            }
            StreamPart::Trailer { reason, .. } => match app.reading.remove(&key) {
                // Parts are lost if the app rejoins meanwhile. As LiveKit's SDKs, it drops such a stream.
                Some((header, bytes)) if reason.is_empty() && header.length == Some(bytes.len() as u64) => {
                    (header, bytes)
                }
                _ => return,
            },
        };
        let is_inline = header.inline.is_some();
        let of = |key: &str| header.attributes[&format!("lk.rpc_request_{key}")].clone();
        let request = RpcRequest::new(of("id"), of("method"), bytes, 0);
        self.app_is_asked(process, from, &request, is_inline);
    }

    /// Runs a method. Like LiveKit's SDKs it does not know requests that it has had before.
    fn app_is_asked(&mut self, process: usize, from: &Peer, request: &RpcRequest, acknowledges: bool) {
        if acknowledges {
            self.app_acknowledges(process, from, &request.id);
        }
        let unsupported = RpcError::new(1400, "no such method", "");
        if request.method == PING {
            self.ledger.reached.note(Reach::AppPinged);
            return self.app_sends(process, from, [Self::response(&request.id, Err(unsupported))]);
        }
        let call = call_of(&request.id);
        if request.id != call.as_str() {
            self.ledger.reached.note(Reach::AppAskedAgain);
        }
        let how = Value::from(serde_json::from_slice::<Json>(&request.payload).unwrap());
        let behavior = Arguments::read(&how);
        let ran = behavior != Behavior::BadArguments;
        trace!(self, "app starts {} ({behavior:?})", request.id);
        self.ledger.started(process, "app", from.identity(), &call, ran);
        let Program::App(app) = &mut self.processes[process].program else { return };
        app.requests += 1;
        let number = app.requests;
        app.jobs.insert(number, (behavior, from.clone()));
        if let Some(takes) = behavior.takes() {
            self.room.after(takes, Scheduled::AppAnswers { process, id: request.id.clone(), number });
        }
    }

    /// Acknowledges a request, or not: callers need no acknowledgement.
    fn app_acknowledges(&mut self, process: usize, to: &Peer, id: &str) {
        if let Some(call) = self.ledger.by_id.get(&call_of(id)).map(|_| call_of(id)) {
            self.ledger.request_arrives(process, &call, to);
        }
        let mut dice = Random::of(self.room.seed, &[16, process as u64, self.room.now]);
        if dice.percent(70) || self.recovered {
            self.app_sends(process, to, [Load::Rpc(RpcMessage::Ack { id: id.to_owned() })]);
        }
    }

    fn response(id: &str, outcome: Result<String, RpcError>) -> Load {
        Load::Rpc(RpcMessage::Response(RpcResponse::new(id, outcome.map(Into::into))))
    }

    /// A method of the app returns.
    pub(crate) fn app_answers(&mut self, process: usize, id: &str, number: u64) {
        let Program::App(app) = &mut self.processes[process].program else { return };
        let Some((behavior, to)) = app.jobs.remove(&number) else { return };
        if !self.processes[process].alive {
            return;
        }
        let call = call_of(id);
        let failure = match behavior {
            Behavior::Fails => Some(RpcError::new(1500, "it went wrong", r#"{"code": "odd"}"#)),
            Behavior::Panics => Some(RpcError::new(1502, "too slow", "")),
            Behavior::FailsAsBusy => Some(RpcError::new(1504, "too large", "")),
            Behavior::BadArguments => Some(RpcError::new(1400, "no such method", "")),
            _ => None,
        };
        self.ledger.ended(process, &call, Some(failure.is_none()));
        if behavior == Behavior::BadArguments {
            self.ledger.declined(process, &call);
        }
        if self.ledger.by_id.get(&call).is_some_and(|at| self.ledger.calls[*at].outcome.is_some()) {
            self.ledger.reached.note(Reach::AppAnswersLate);
        }
        if let Some(error) = failure {
            return self.app_sends(process, &to, [Self::response(id, Err(error))]);
        }
        let text = Answer::body(process, &call, Behavior::Quick).to_json().to_string();
        let mut dice = Random::of(self.room.seed, &[17, process as u64, number]);
        let mut header = header(id, number, text.len());
        let stream = header.id.clone();
        let chunk = |text: &str| {
            Load::Part(StreamPart::Chunk { id: stream.clone(), index: 0, bytes: text.to_owned().into() })
        };
        let trailer =
            |reason: &str| Load::Part(StreamPart::Trailer { id: stream.clone(), reason: reason.to_owned() });
        if self.schedule.cast.slow_answers {
            let parts = [Load::Part(StreamPart::Header(header)), chunk(&text), trailer("")];
            if self.ledger.calls.iter().filter(|it| it.outcome.is_none()).count() >= INTERLEAVED {
                self.ledger.reached.note(Reach::AnswersInterleaved);
            }
            for (at, load) in parts.into_iter().enumerate() {
                self.room.after(300 * at as u64, Scheduled::AppSends { process, to: to.clone(), load });
            }
            return;
        }
        match dice.below(10) {
            0..3 => {
                self.ledger.reached.note(Reach::AppAnswersInPacket);
                self.app_sends(process, &to, [Self::response(id, Ok(text))]);
            }
            3..6 => {
                self.ledger.reached.note(Reach::AppAnswersInHeader);
                header.inline = Some(text.into());
                self.app_sends(process, &to, [Load::Part(StreamPart::Header(header))]);
            }
            form => {
                // A stream that breaks the rules: it is abandoned, or shorter than it says.
                let broken = form == 9 && !self.recovered;
                let (text, reason) = match dice.percent(50) {
                    _ if !broken => (&text[..], ""),
                    true => (&text[..], "abandoned"),
                    false => (&text[..5], ""),
                };
                self.ledger.reached.note(match broken {
                    true => Reach::AppBreaksStream,
                    false => Reach::AppAnswersInChunks,
                });
                let parts = [Load::Part(StreamPart::Header(header)), chunk(text), trailer(reason)];
                self.app_sends(process, &to, parts);
            }
        }
    }

    /// Checks that a call whose answers all arrive whole does not end as if one had not.
    pub(crate) fn check_answer(&mut self, call: usize, result: &Result<Value, CallError>) {
        let it = &self.ledger.calls[call];
        let starts = it.id.as_ref().and_then(|id| self.ledger.starts.get(id)).map_or(&[][..], Vec::as_slice);
        let is_answered = !starts.is_empty() && starts.iter().all(|start| start.ended == Some(true));
        let moves = self.schedule.actions.iter().any(|(_, action)| action.moves());
        if self.schedule.cast.slow_answers
            && is_answered
            && !moves
            && let Err(CallError::Tool(error)) = result
        {
            let text = format!("call {call} {:?} was answered, and ends as {error}", it.id);
            self.ledger.broken(Rule::AnswerTaken, text);
        }
    }

    /// The app sends messages; they are lost while it has no connection.
    pub(crate) fn app_sends(&mut self, process: usize, to: &Peer, loads: impl IntoIterator<Item = Load>) {
        let Some(join) = self.processes[process].join.filter(|join| self.room.joins[*join].open) else {
            return;
        };
        for load in loads {
            trace!(self, "app sends {load:?}");
            self.room.send(join, Some(vec![to.identity().clone()]), load);
        }
    }

    /// The assistant gets an answer, or a part of one, from somebody whom it has not called.
    pub(crate) fn forges_answer(&mut self, about: usize, dice: u64) {
        let stranger = self.current.get(&Actor::Stranger).and_then(|process| self.processes[*process].join);
        let (Some(stranger), Some((_, to))) = (stranger, self.open_join(Actor::Assistant)) else { return };
        let mut dice = Random::new(dice);
        let by_app: Vec<_> =
            self.ledger.calls.iter().filter(|it| it.owners.contains("app") && it.id.is_some()).collect();
        let Some(call) = by_app.get(about % by_app.len().max(1)) else { return };
        let mut id = call.id.as_ref().unwrap().to_string();
        let is_open = call.outcome.is_none();
        if dice.percent(15) {
            id.push_str(".2");
        }
        let peer = match dice.below(10) {
            0 => Peer::new("", ""),
            1..4 => Peer::new("app", "PA_elsewhere"),
            4 => Peer::new("another", "PA_another"),
            _ => self.room.joins[stranger].participant.peer().clone(),
        };
        let text = json!({"by": 666, "of": id}).to_string();
        let number = dice.between(1, 4);
        let mut header = header(&id, number, text.len());
        let stream = header.id.clone();
        let load = match dice.below(7) {
            0 => Load::Rpc(RpcMessage::Ack { id }),
            1 => Self::response(&id, Ok(text)),
            2 => Self::response(&id, Err(RpcError::new(dice.pick(&[1_400, 1_500, 1_503]), "no", ""))),
            3 => Load::Part(StreamPart::Header(header)),
            4 => Load::Part(StreamPart::Chunk { id: stream, index: dice.below(2), bytes: text.into() }),
            5 => {
                let reason = if dice.percent(50) { "" } else { "abandoned" };
                Load::Part(StreamPart::Trailer { id: stream, reason: reason.to_owned() })
            }
            _ => {
                header.inline = Some(text.into());
                Load::Part(StreamPart::Header(header))
            }
        };
        if is_open {
            self.ledger.reached.note(Reach::AnswerForged);
        }
        self.forged_arrives(5, peer, to, load);
    }
}
