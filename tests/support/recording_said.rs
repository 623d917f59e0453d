//! Entries of recordings: written by hand, or captured in an in-memory room.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use toolbridge::{
    ConnectionState, Identity,
    frame::Frame,
    recording::{Direction, Entry, Happened, Moment, Recorded, RoomEvent},
    transport::{
        Capabilities, Packet, Participant, Peer, STREAM_TOPIC, SendError, Sid, StreamPart, Transport,
        TransportEvent,
    },
};

/// One millisecond, in the unit of a time stamp.
pub(crate) const MS: u64 = 1_000_000;

/// A frame from `from`, as canonical JSON, sent by the recorded participant.
pub(crate) fn sent(ms: u64, from: &str, to: &[&str], json: &str) -> Entry {
    packet(ms, Direction::Sent, from, to, json)
}

/// As [`sent`], but received.
pub(crate) fn heard(ms: u64, from: &str, json: &str) -> Entry {
    packet(ms, Direction::Heard, from, &[], json)
}

fn packet(ms: u64, direction: Direction, from: &str, to: &[&str], json: &str) -> Entry {
    let payload = Frame::from_json(json).unwrap_or_else(|error| panic!("{json}: {error}")).into_bytes();
    raw(ms, direction, from, to, payload.to_vec())
}

/// Bytes that may not be a frame.
pub(crate) fn raw(ms: u64, direction: Direction, from: &str, to: &[&str], bytes: Vec<u8>) -> Entry {
    let packet = with!(
        Recorded::new(direction, Peer::new(from, format!("PA_{from}")), bytes),
        to = to.iter().map(|who| Identity::from(*who)).collect(),
        sequence = u32::try_from(ms).unwrap()
    );
    Entry::new(Moment(ms * MS), Happened::Packet(packet))
}

pub(crate) fn event(ms: u64, event: RoomEvent) -> Entry {
    Entry::new(Moment(ms * MS), Happened::Event(event))
}

pub(crate) fn here(ms: u64, identity: &str) -> Entry {
    let sid = Sid::from(format!("PA_{identity}"));
    event(ms, RoomEvent::Here { identity: identity.into(), sid, room: "r".into() })
}

pub(crate) fn joined(ms: u64, identity: &str, role: Option<&str>) -> Entry {
    let sid = Sid::from(format!("PA_{identity}"));
    let role = role.map(str::to_owned);
    event(ms, RoomEvent::Joined { identity: identity.into(), sid, agent: false, role, protocol: 0 })
}

pub(crate) fn left(ms: u64, identity: &str) -> Entry {
    let sid = Sid::from(format!("PA_{identity}"));
    event(ms, RoomEvent::Left { identity: identity.into(), sid })
}

pub(crate) fn closed(ms: u64) -> Entry {
    event(ms, RoomEvent::Closed { reason: "closed".into() })
}

/// A request for the tool `lamp`.
pub(crate) fn request(stanza: i32, id: &str, execution: &str) -> String {
    format!(
        r#"{{"stanzaId": {stanza}, "type": 6, "body": {{"id": "{id}", "toolName": "lamp", "parameters": {{"on": true}},
            "execution": "{execution}", "timeoutMs": 5000}}}}"#
    )
}

/// A successful result.
pub(crate) fn ok(stanza: i32, id: &str) -> String {
    format!(
        r#"{{"stanzaId": {stanza}, "type": 7, "body": {{"id": "{id}", "success": true, "result": {{"n": 1}}}}}}"#
    )
}

/// A failed result.
pub(crate) fn failed(stanza: i32, id: &str, code: &str) -> String {
    format!(
        r#"{{"stanzaId": {stanza}, "type": 7, "body": {{"id": "{id}", "success": false, "errorCode": "{code}",
            "errorMessage": "no"}}}}"#
    )
}

pub(crate) fn acknowledged(stanza: i32, of: i32, id: &str, notes: &str) -> String {
    format!(
        r#"{{"stanzaId": {stanza}, "type": 8, "body": {{"acknowledgedStanzaId": {of}, "success": true,
            "acknowledgedMessageId": "{id}", "notes": "{notes}"}}}}"#
    )
}

pub(crate) fn progress(stanza: i32, id: &str) -> String {
    format!(r#"{{"stanzaId": {stanza}, "type": 1000, "body": {{"id": "{id}", "status": "in_progress"}}}}"#)
}

pub(crate) fn stop(stanza: i32, id: &str) -> String {
    format!(r#"{{"stanzaId": {stanza}, "type": 10, "body": {{"targetId": "{id}"}}}}"#)
}

/// The packets of one participant.
#[derive(Clone, Debug)]
pub(crate) struct Tape {
    began: Instant,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Tape {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), entries: Arc::default() }
    }

    /// Wraps a transport and captures everything that passes it.
    pub(crate) fn of<T: Transport>(&self, inner: T) -> Taped<T> {
        let (who, room) = (inner.local(), inner.room());
        let (identity, sid) = (who.identity().clone(), who.sid().clone());
        self.event(RoomEvent::Here { identity, sid, room });
        for who in inner.present() {
            self.joined(&who);
        }
        Taped { tape: self.clone(), inner }
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    fn put(&self, what: Happened) {
        let at = Moment(u64::try_from(self.began.elapsed().as_nanos()).unwrap());
        self.entries.lock().unwrap().push(Entry::new(at, what));
    }

    fn event(&self, event: RoomEvent) {
        self.put(Happened::Event(event));
    }

    fn joined(&self, who: &Participant) {
        let role = who.token_role().map(|role| role.as_str().to_owned());
        let (identity, sid) = (who.identity().clone(), who.sid().clone());
        self.event(RoomEvent::Joined { identity, sid, agent: who.is_agent(), role, protocol: 0 });
    }
}

/// A transport whose packets are captured.
#[derive(Debug)]
pub(crate) struct Taped<T> {
    tape: Tape,
    inner: T,
}

impl<T: Transport> Transport for Taped<T> {
    fn local(&self) -> Participant {
        self.inner.local()
    }

    fn room(&self) -> String {
        self.inner.room()
    }

    fn present(&self) -> Vec<Participant> {
        self.inner.present()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let stream = packet.payload.len() > Capabilities::MAX_PACKET;
        self.tape.put(Happened::Packet(with!(
            Recorded::new(Direction::Sent, self.inner.local().peer().clone(), packet.payload.clone()),
            to = packet.to.clone(),
            topic = packet.topic.to_string(),
            lane = packet.lane,
            stream = stream
        )));
        self.inner.send(packet)
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        let event = self.inner.recv().await?;
        match &event {
            TransportEvent::Packet(packet) => self.tape.put(Happened::Packet(with!(
                Recorded::new(Direction::Heard, packet.from.clone(), packet.payload.clone()),
                topic = packet.topic.to_string(),
                lane = packet.lane,
                channel = 1
            ))),
            TransportEvent::Joined(who) => self.tape.joined(who),
            TransportEvent::Left(who) => {
                let (identity, sid) = (who.identity().clone(), who.sid().clone());
                self.tape.event(RoomEvent::Left { identity, sid });
            }
            TransportEvent::ConnectionState(state) => {
                self.tape.event(RoomEvent::Link { up: *state == ConnectionState::Connected })
            }
            TransportEvent::Stream { part: StreamPart::Header(header), .. } => {
                assert_eq!(header.topic, STREAM_TOPIC, "only streams of frames are captured");
            }
            _ => {}
        }
        Some(event)
    }

    async fn close(&mut self) {
        self.inner.close().await;
        self.tape.event(RoomEvent::Closed { reason: "closed".into() });
    }
}
