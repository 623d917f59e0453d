//! What participants without a session send: RPC, plain frames, and anything.

use serde_json::json;
use toolbridge::{
    Value,
    frame::{Frame, Kind, Meta},
    transport::{
        Compression, Lane, Peer, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcRequest,
        RpcResponse, StreamHeader, StreamKind, StreamPart, TransportEvent,
    },
};

use crate::{config::NAMES, random::Random};

/// What can be repeated of what was seen in the room.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The ids of calls and of requests by RPC.
    pub(crate) ids: Vec<String>,
    pub(crate) instances: Vec<String>,
    pub(crate) stanzas: Vec<i32>,
}

impl Seen {
    pub(crate) fn frame(&mut self, frame: &Frame) {
        self.ids.extend(frame.peek_id().map(str::to_owned));
        self.instances.extend(frame.meta_str("bridge.instance").map(str::to_owned));
        self.stanzas.extend(frame.stanza_id());
        let too_many = |count: usize| count.saturating_sub(12);
        self.ids.drain(..too_many(self.ids.len()));
        self.instances.drain(..too_many(self.instances.len()));
        self.stanzas.drain(..too_many(self.stanzas.len()));
    }

    pub(crate) fn id(&self, random: &mut Random) -> String {
        match random.below(8) {
            0 => "x".repeat(300),
            1 => format!("new-{}", random.below(4)),
            _ => pick(random, &self.ids).unwrap_or_else(|| "none".to_owned()),
        }
    }
}

fn pick<T: Clone>(random: &mut Random, all: &[T]) -> Option<T> {
    all.get(random.below(all.len() as u64) as usize).cloned()
}

/// A message of RPC, or parts of a stream with one.
pub(crate) fn rpc(random: &mut Random, seen: &Seen, from: &Peer) -> Vec<TransportEvent> {
    let id = seen.id(random);
    let message = |message| vec![TransportEvent::Rpc { from: Some(from.clone()), message }];
    let method = if random.percent(10) { "toolbridge.ping" } else { random.pick(&NAMES) };
    let arguments =
        json!({"n": random.below(3), "pad": "p".repeat(random.pick(&[0, 0, 0, 3_000]))}).to_string();
    let payload = random.pick(&["{}", "{}", arguments.as_str(), "[1]", "no JSON"]).to_owned();
    match random.below(9) {
        0..3 => {
            let timeout = random.pick(&[0, 900, 10_000, 10_000, 500_000]);
            let mut request = RpcRequest::new(id, method, payload, timeout);
            request.version = random.pick(&[1, 1, 1, 0, 2]);
            message(RpcMessage::Request(request))
        }
        3 => message(RpcMessage::Ack { id }),
        4 => message(RpcMessage::Response(RpcResponse::new(id, Ok(payload.into())))),
        5 => {
            let code = random.pick(&[1400, 1400, 1401, 1500, 1502, 1504, 7]);
            let data = random.pick(&["", r#"{"code": "busy"}"#, r#"{"code": "odd", "mayHaveRun": false}"#]);
            message(RpcMessage::Response(RpcResponse::new(id, Err(RpcError::new(code, "no", data)))))
        }
        form => {
            let topic = if form == 6 { RPC_RESPONSE_TOPIC } else { RPC_REQUEST_TOPIC };
            let stream = format!("s{}", random.below(4));
            let length = if random.percent(10) { 1 } else { payload.len() as u64 };
            let mut header = StreamHeader::new(&*stream, topic, random.percent(90).then_some(length));
            header.kind = if random.percent(95) { StreamKind::Text } else { StreamKind::Bytes };
            if random.percent(5) {
                header.compression = random.pick(&[Compression::Deflate, Compression::Other]);
            }
            for (key, value) in [
                ("id", id),
                ("method", method.to_owned()),
                ("response_timeout_ms", random.pick(&["10000", "10000", "900", "x"]).to_owned()),
                ("version", random.pick(&["2", "2", "2", "1"]).to_owned()),
            ] {
                if random.percent(97) {
                    header.attributes.insert(format!("lk.rpc_request_{key}"), value);
                }
            }
            let part = |part| TransportEvent::Stream { from: from.clone(), part };
            if random.percent(30) {
                header.inline = Some(payload.into());
                return vec![part(StreamPart::Header(header))];
            }
            let id = header.id.clone();
            let mut parts = vec![part(StreamPart::Header(header))];
            if random.percent(90) {
                parts.push(part(StreamPart::Chunk { id: id.clone(), index: 0, bytes: payload.into() }));
            }
            if random.percent(90) {
                let reason = if random.percent(90) { "" } else { "gone" };
                parts.push(part(StreamPart::Trailer { id, reason: reason.to_owned() }));
            }
            parts
        }
    }
}

/// A frame of any type, of a plain peer or of anybody.
pub(crate) fn frame(random: &mut Random, seen: &Seen, from: &Peer, is_plain: bool) -> TransportEvent {
    let id = seen.id(random);
    let of = pick(random, &seen.stanzas).unwrap_or_default();
    let stanza = match random.below(4) {
        0 => of + random.between(0, 4) as i32 - 2,
        1 => -(random.below(500) as i32),
        _ => random.below(500) as i32 + 1,
    };
    let flag = random.percent(50);
    let mut meta = Meta::new();
    if !is_plain {
        if let Some(instance) = pick(random, &seen.instances).filter(|_| random.percent(50)) {
            let key = random.pick(&["bridge.to", "bridge.instance", "bridge.proof"]);
            meta.set_text(key, &instance);
        }
        meta.set_bool(random.pick(&["bridge.heard", "bridge.bye", "bridge.unbound", "bridge.other"]), flag);
    }
    let tool = random.pick(&NAMES);
    let room = random.pick(&["room", "room", "room", "another"]);
    let (kind, body) = match random.below(if is_plain { 12 } else { 16 }) {
        0..3 => {
            let execution = random.pick(&["client", "client", "server", "either", "nobody"]);
            let limit = random.pick(&[0, 900, 60_000, -5]);
            let pad = "p".repeat(random.pick(&[0, 0, 900]));
            let body = json!({"id": id, "toolName": tool, "parameters": {"n": of, "pad": pad},
                "execution": execution, "timeoutMs": limit});
            (Kind::TOOL_USE_REQUEST, body)
        }
        3 | 4 => {
            let code = random.pick(&["busy", "timeout", "lost", "unknown_tool", "odd"]);
            let body = json!({"id": id, "success": flag, "result": {"n": of}, "errorCode": code});
            (Kind::TOOL_USE_RESULT, body)
        }
        5 => {
            let notes = random.pick(&[None, Some("ping"), Some("pong"), Some("claim")]);
            let body = json!({"acknowledgedStanzaId": of, "success": flag, "acknowledgedMessageId": id,
                "notes": notes});
            (Kind::ACKNOWLEDGEMENT, body)
        }
        6 => {
            let target = random.percent(50).then_some(id);
            (Kind::CONTROL_STOP, json!({"conversationId": room, "targetId": target}))
        }
        7 => {
            let all = [
                "tool_use",
                "tool_register",
                "tool_progress",
                "tool_cancel",
                "tool_ack",
                "tool_claim",
                "fast_lane",
                "deflate",
                "views",
            ];
            let listed = if is_plain { 1 } else { random.below(10) as usize };
            (Kind::CONFIGURATION, json!({"conversationId": room, "features": all[..listed]}))
        }
        8 => (Kind::HEARTBEAT, json!({})),
        9..11 => {
            let count = random.below(5) as usize;
            let named = |at| json!({"name": NAMES[(of.unsigned_abs() as usize + at) % NAMES.len()], "description": "d"});
            let tools: Vec<_> = (0..count).map(named).collect();
            (Kind::TOOLS_REGISTER, json!({"tools": tools}))
        }
        11 => (Kind::TOOL_PROGRESS, json!({"id": id, "status": "in_progress", "message": "on"})),
        12 => (Kind::TOOLS_REGISTER_ACK, json!({"success": flag, "toolCount": of})),
        13 => {
            let code = random.pick(&[101, 201, 301, 304, 403]);
            let body = json!({"id": "e", "conversationId": room, "code": code, "message": "no", "severity": 1,
                "recoverable": flag, "originatingId": id});
            (Kind::ERROR, body)
        }
        14 => (Kind::VIEW_UPDATE, json!({"view": "v", "content": {"n": of}, "text": "n"})),
        _ => (Kind::CONFIGURATION, json!({"conversationId": room, "features": ["tool_use", "tool_ack"]})),
    };
    let mut payload = Vec::new();
    let body = Value::encode(&body).unwrap();
    let _ = Frame::relay(&mut payload, stanza, room, &meta, kind, body.as_bytes());
    let lane = if random.percent(80) { Lane::Reliable } else { Lane::Lossy };
    TransportEvent::packet(from.clone(), lane, payload)
}

/// Changes something in a packet: its stanza, its `meta`, or a byte.
pub(crate) fn changed(random: &mut Random, payload: &[u8]) -> Option<Vec<u8>> {
    let frame = Frame::decode(payload.to_vec()).ok()?;
    if random.percent(15) {
        let mut bytes = payload.to_vec();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        return Some(bytes);
    }
    let mut meta: serde_json::Map<String, serde_json::Value> = frame.meta_body().decode().unwrap_or_default();
    let mut stanza = frame.stanza_id().unwrap_or(1);
    let keys: Vec<_> = meta.keys().cloned().collect();
    match (random.below(4), pick(random, &keys)) {
        (0, Some(key)) => drop(meta.remove(&key)),
        (1, Some(key)) => drop(meta.insert(key, json!("0123456789abcdef0123456789abcdef"))),
        (2, _) => stanza = -stanza,
        _ => stanza += random.between(0, 6) as i32 - 3,
    }
    let mut of = Meta::new();
    for (key, value) in &meta {
        of.set(key.as_str(), value).ok()?;
    }
    let mut payload = Vec::new();
    let room = frame.conversation_id().unwrap_or("room");
    Frame::relay(&mut payload, stanza, room, &of, frame.kind(), frame.body_bytes()).ok()?;
    Some(payload)
}
