//! Forged frames: every message of every role, about real calls, from every sender that the room can show for the
//! stranger.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use toolbridge::{
    Value,
    frame::{Frame, Kind, Meta},
    transport::{Lane, Peer, STREAM_TOPIC, StreamHeader, StreamPart},
};

use crate::{
    random::Random,
    reach::Reach,
    room::{Load, Scheduled},
    schedule::{Actor, Forgery},
    world::{Program, World},
};

impl World<'_> {
    pub(crate) fn forges(&mut self, what: Forgery, to: Actor, about: usize, dice: u64) {
        let Some(stranger) =
            self.current.get(&Actor::Stranger).and_then(|process| self.processes[*process].join)
        else {
            return;
        };
        let Some(victim) = self.current.get(&to).and_then(|process| self.processes[*process].join) else {
            return;
        };
        let mut dice = Random::new(dice);
        let peer = match dice.below(10) {
            0 => Peer::new("", ""),
            1 => Peer::new("stranger", "PA_elsewhere"),
            2 => Peer::new("another", "PA_another"),
            _ => self.room.joins[stranger].participant.peer().clone(),
        };
        let loads = match what {
            Forgery::Part => vec![Load::Part(self.forged_part(&mut dice))],
            _ => {
                let bytes = self.forged(what, to, about, &mut dice);
                match dice.below(10) {
                    0..4 => vec![Load::Packet(Lane::Lossy, bytes.into())],
                    4 | 5 => stream_of(&bytes),
                    _ => vec![Load::Packet(Lane::Reliable, bytes.into())],
                }
            }
        };
        for load in loads {
            self.forged_arrives(5, peer.clone(), victim, load);
        }
    }

    /// Delivers a forged packet after so many milliseconds. If none are delivered, the receiver's driver runs at that time all
    /// the same: it reports the backlog, which lets a session send.
    pub(crate) fn forged_arrives(&mut self, after: u64, peer: Peer, to: usize, load: Load) {
        let what = if self.forgeries_delivered {
            Scheduled::Arrives { peer, to, load }
        } else {
            Scheduled::Wakes { to }
        };
        self.room.after(after, what);
    }

    /// A participant whose token has no role greets and calls under the identity of this actor. The room does not announce
    /// it. Who names the identity in its configuration would accept it.
    pub(crate) fn impersonated(&mut self, actor: Actor, dice: u64) {
        if self.schedule.cast.configured {
            return;
        }
        let mut dice = Random::new(dice);
        let is_assistant = actor == Actor::Assistant;
        let others = if is_assistant {
            (1..=self.schedule.cast.clients).map(Actor::Client).collect()
        } else {
            vec![Actor::Assistant]
        };
        let peer = Peer::new(actor.to_string(), format!("PA_impostor_{}", dice.below(1_000_000)));
        let sign = if is_assistant { -1 } else { 1 };
        for other in others {
            let Some((_, to)) = self.open_join(other).filter(|_| self.has_session(other)) else { continue };
            let greeting = Meta::new()
                .with_text("bridge.instance", "00112233445566778899aabbccddeeff")
                .with_bool("bridge.heard", dice.percent(50));
            let features = json!({"features": ["tool_use", "tool_register", "tool_ack"]});
            let id = format!("impostor-{}", dice.below(1_000_000));
            let mut frames = vec![
                written("room", sign, &greeting, Kind::CONFIGURATION, &features),
                match is_assistant {
                    true => {
                        let body = json!({"id": id, "toolName": format!("t{other}"), "parameters": {"how": 0},
                            "execution": "client", "timeoutMs": 9_000});
                        written("room", 2 * sign, &Meta::new(), Kind::TOOL_USE_REQUEST, &body)
                    }
                    false => self.forged(Forgery::Registration, other, 0, &mut dice),
                },
            ];
            if !is_assistant {
                let about = dice.below(10) as usize;
                frames.push(self.forged(Forgery::Result, other, about, &mut dice));
            }
            if self.room.listed_as(&actor.to_string()).is_none() {
                self.ledger.reached.note(match is_assistant {
                    true => Reach::AssistantImpersonated,
                    false => Reach::ClientImpersonated,
                });
            }
            for (at, bytes) in frames.into_iter().enumerate() {
                let load = Load::Packet(Lane::Reliable, bytes.into());
                self.room.after(5 + 40 * at as u64, Scheduled::Arrives { peer: peer.clone(), to, load });
            }
        }
    }

    /// A peer sends a frame that names another room: it must have no effect but a refusal.
    pub(crate) fn send_from_other_room(&mut self, from: Actor, to: Actor, request: bool) {
        let (Some((_, from_join)), Some((_, join))) = (self.open_join(from), self.open_join(to)) else {
            return;
        };
        if !self.has_session(from) || !self.has_session(to) {
            return;
        }
        let meta = Meta::new();
        let (meta, kind, body) = match request {
            true => (
                meta.with_text("bridge.to", "elsewhere"),
                Kind::TOOL_USE_REQUEST,
                json!({"id": "elsewhere", "toolName": format!("t{to}"), "parameters": {"how": 0},
                    "execution": "client", "timeoutMs": 9_000}),
            ),
            false => (
                meta.with_text("bridge.instance", "00112233445566778899aabbccddeeff")
                    .with_bool("bridge.heard", true),
                Kind::CONFIGURATION,
                json!({"features": ["tool_use", "tool_register", "tool_ack"]}),
            ),
        };
        // The stanza of the first frame, which is not a request: a higher one would acknowledge requests of this join.
        let stanza = if from == Actor::Assistant { -1 } else { 1 };
        let bytes = written("elsewhere", stanza, &meta, kind, &body);
        let peer = self.room.joins[from_join].participant.peer().clone();
        let load = Load::Packet(Lane::Reliable, bytes.into());
        self.room.after(5, Scheduled::Arrives { peer, to: join, load });
    }

    /// Forges a header, a chunk or a trailer of another participant's stream.
    pub(crate) fn forged_part(&self, dice: &mut Random) -> StreamPart {
        let id = self.last_stream.clone();
        match dice.below(4) {
            0 => StreamPart::Header(StreamHeader::new(id, STREAM_TOPIC, dice.between(1, 3_000))),
            1 => StreamPart::Trailer { id, reason: "abandoned".to_owned() },
            2 => StreamPart::Trailer { id, reason: String::new() },
            _ => StreamPart::Chunk { id, index: dice.below(4), bytes: vec![0xc0; 700].into() },
        }
    }

    fn forged(&self, what: Forgery, to: Actor, about: usize, dice: &mut Random) -> Vec<u8> {
        let call = self.ledger.calls.get(about).or_else(|| self.ledger.calls.last());
        let id =
            call.and_then(|call| call.id.as_ref()).map_or_else(|| "guess".to_owned(), |id| id.to_string());
        let stanza = dice.between(1, 40) as i32 * if dice.percent(50) { 1 } else { -1 };
        let tool = format!("t{to}");
        let mut meta = Meta::new();
        let (kind, body) = match what {
            Forgery::Result if dice.percent(70) => {
                (Kind::TOOL_USE_RESULT, json!({"id": id, "success": true, "result": {"by": 666, "of": id}}))
            }
            Forgery::Result => {
                (Kind::TOOL_USE_RESULT, json!({"id": id, "success": false, "errorCode": "busy"}))
            }
            Forgery::Refusal => (
                Kind::ERROR,
                json!({"id": "e", "conversationId": "room", "code": 304, "message": "no", "severity": 3,
                    "recoverable": dice.percent(50), "originatingId": id}),
            ),
            Forgery::Acknowledgement => (
                Kind::ACKNOWLEDGEMENT,
                json!({"conversationId": "room", "acknowledgedStanzaId": -stanza, "success": true,
                    "acknowledgedMessageId": id}),
            ),
            Forgery::Claim => (
                Kind::ACKNOWLEDGEMENT,
                json!({"acknowledgedStanzaId": -stanza, "success": dice.percent(50), "acknowledgedMessageId": id,
                    "notes": "claim"}),
            ),
            Forgery::Stop => (Kind::CONTROL_STOP, json!({"conversationId": "room", "targetId": id})),
            Forgery::StopAll => (Kind::CONTROL_STOP, json!({"conversationId": "room", "stopType": "all"})),
            Forgery::Goodbye => {
                meta.set_bool("bridge.bye", true);
                (Kind::CONTROL_STOP, json!({"conversationId": "room", "stopType": "all"}))
            }
            Forgery::Registration => (
                Kind::TOOLS_REGISTER,
                json!({"tools": [{"name": "tc1", "description": "mine"}, {"name": "shared", "description": "mine"},
                    {"name": "none", "description": "mine"}]}),
            ),
            Forgery::RegistrationAnswer => {
                (Kind::TOOLS_REGISTER_ACK, json!({"success": dice.percent(50), "toolCount": 9}))
            }
            Forgery::Configuration => {
                meta.set_text("bridge.instance", &self.instance_of(to, dice));
                meta.set_bool("bridge.heard", dice.percent(50));
                (
                    Kind::CONFIGURATION,
                    json!({"conversationId": "room", "features": ["tool_use", "tool_register", "tool_progress",
                        "tool_cancel", "tool_claim", "tool_ack", "tool_prompt", "frame_stream", "fast_lane"]}),
                )
            }
            Forgery::Pong => {
                let notes = if dice.percent(50) { "pong" } else { "ping" };
                (Kind::ACKNOWLEDGEMENT, json!({"acknowledgedStanzaId": 0, "notes": notes}))
            }
            Forgery::Request => {
                let id = if dice.percent(70) { format!("forged-{stanza}") } else { id };
                let execution = if dice.percent(50) { "client" } else { "either" };
                (
                    Kind::TOOL_USE_REQUEST,
                    json!({"id": id, "toolName": tool, "parameters": {"how": 0}, "execution": execution,
                        "timeoutMs": 9_000}),
                )
            }
            Forgery::Broadcast => (
                Kind::TOOL_USE_REQUEST,
                json!({"id": id, "toolName": tool, "parameters": {"how": 0}, "execution": "server"}),
            ),
            Forgery::Progress => {
                (Kind::TOOL_PROGRESS, json!({"id": id, "status": "completed", "content": {"by": 666}}))
            }
            Forgery::Heartbeat => (Kind::HEARTBEAT, json!({})),
            Forgery::Broken | Forgery::Part => {
                let mut bytes =
                    write(stanza, &meta, Kind::TOOL_USE_RESULT, &json!({"id": id, "success": true}));
                let at = dice.below(bytes.len() as u64) as usize;
                match dice.percent(50) {
                    true => bytes.truncate(at),
                    false => bytes[at] ^= 1 << dice.below(8),
                }
                return bytes;
            }
        };
        write(stanza, &meta, kind, &body)
    }

    /// Returns a stolen instance, or one that no process has.
    fn instance_of(&self, to: Actor, dice: &mut Random) -> String {
        let known = self.current.get(&to).map(|process| &self.processes[*process].program);
        match known {
            Some(Program::Bridge(_)) if dice.percent(50) => self.last_instance.clone(),
            _ => "00112233445566778899aabbccddeeff".to_owned(),
        }
    }
}

/// Sends a whole frame as a stream.
fn stream_of(bytes: &[u8]) -> Vec<Load> {
    let id: Arc<str> = "forged.1.1".into();
    let header = StreamHeader::new(id.clone(), STREAM_TOPIC, bytes.len() as u64);
    let chunk = StreamPart::Chunk { id: id.clone(), index: 0, bytes: bytes.to_vec().into() };
    let parts = [StreamPart::Header(header), chunk, StreamPart::Trailer { id, reason: String::new() }];
    parts.map(Load::Part).into()
}

fn write(stanza: i32, meta: &Meta, kind: Kind, body: &Json) -> Vec<u8> {
    written("room", stanza, meta, kind, body)
}

fn written(room: &str, stanza: i32, meta: &Meta, kind: Kind, body: &Json) -> Vec<u8> {
    let mut bytes = Vec::new();
    let body = Value::encode(body).unwrap();
    Frame::relay(&mut bytes, stanza, room, meta, kind, body.as_bytes()).unwrap();
    bytes
}
