//! Wraps a transport: records its packets and events and forwards them unchanged.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Direction, Recorder, RoomEvent,
    queue::{Content, Item, NO_TICKET, QueuedPacket},
    recorder::Shared,
    rpc::{RPC_TOPIC, RpcPart},
};
use crate::{
    transport::{
        BrokenStream, Capabilities, CloseReason, ConnectionState, Form, Lane, Packet, Participant, Peer,
        Role, STREAM_TOPIC, SendError, SentObserver, StreamAssembler, StreamPart, TOPIC, Transport,
        TransportEvent,
    },
    value::Limits,
};

/// A transport whose packets and events are recorded; see [`Recorder::tap`].
///
/// Packets on the topic `toolbridge` and without a topic are recorded, and so are the messages of LiveKit's RPC, except
/// pings. Packets on other topics belong to the app and are forwarded without being inspected.
#[derive(Debug)]
pub struct Tap<T> {
    recorder: Recorder,
    inner: T,
    /// The local participant in the current join.
    local: Peer,
    capabilities: Capabilities,
    streams: StreamAssembler,
    /// The streams of RPC.
    texts: StreamAssembler,
    /// The pings by RPC that were sent last.
    pings: Pings,
    /// Whether the transport reports what it sends, also after a `send` was dropped.
    observed: bool,
    closed: bool,
}

impl<T: Transport> Tap<T> {
    pub(super) fn new(recorder: Recorder, mut inner: T) -> Self {
        let local = inner.local();
        let role = local.token_role().or_else(|| local.is_eligible_assistant().then_some(Role::Assistant));
        recorder.set_role(role);
        let pings = Pings::default();
        let observed =
            inner.observe_sent(observer(recorder.shared(), inner.capabilities(), local.peer(), &pings));
        let tap = Self {
            observed,
            local: local.peer().clone(),
            capabilities: inner.capabilities(),
            recorder,
            inner,
            streams: StreamAssembler::new(Limits::BYTES),
            texts: StreamAssembler::new(Limits::BYTES),
            pings,
            closed: false,
        };
        tap.record_local();
        for participant in tap.inner.present() {
            tap.event(joined(&participant));
        }
        tap
    }

    fn record_local(&self) {
        self.event(RoomEvent::Here {
            identity: self.local.identity().clone(),
            sid: self.local.sid().clone(),
            room: self.inner.room(),
        });
        // An observer's own packets do not reveal its role.
        if let Some(role) = self.recorder.observes_as() {
            self.event(RoomEvent::Joined {
                identity: self.local.identity().clone(),
                sid: self.local.sid().clone(),
                agent: false,
                role: Some(role.to_owned()),
                protocol: 0,
            });
        }
    }

    fn event(&self, event: RoomEvent) {
        self.recorder.shared().enqueue(|at| Item::Event(at, event));
    }

    fn record_closed(&mut self, reason: String) {
        if !std::mem::replace(&mut self.closed, true) {
            self.event(RoomEvent::Closed { reason });
            self.recorder.end_if_last();
        }
    }

    fn record_received(&mut self, event: &TransportEvent) {
        match event {
            TransportEvent::Joined(participant) => self.event(joined(participant)),
            TransportEvent::Left(peer) => {
                self.streams.forget(peer);
                for header in self.texts.take_rpc_of(peer) {
                    self.rpc(Some(peer), RpcPart::Stream(Box::new(header), Err(BrokenStream::Abandoned)));
                }
                self.event(RoomEvent::Left { identity: peer.identity().clone(), sid: peer.sid().clone() });
            }
            TransportEvent::Packet(packet) if is_ours(&packet.topic) => {
                self.recorder.shared().enqueue(|at| {
                    let content = Content::Payload(packet.payload.clone());
                    let queued = QueuedPacket {
                        topic: packet.topic.clone(),
                        content,
                        lane: packet.lane,
                        ..received_packet(packet.from.as_ref())
                    };
                    Item::Packet(at, queued)
                });
            }
            TransportEvent::Packet(_) | TransportEvent::Unreadable { .. } => {}
            TransportEvent::Rpc { from, message } => {
                self.rpc(from.as_ref(), RpcPart::Packet(message.clone()));
            }
            TransportEvent::ConnectionState(state) => {
                self.event(RoomEvent::Link { up: *state == ConnectionState::Connected });
                let local = self.inner.local();
                if *state == ConnectionState::Connected && *local.peer() != self.local {
                    self.local = local.peer().clone();
                    // A stream ends with the join in which it began.
                    self.streams = StreamAssembler::new(Limits::BYTES);
                    self.texts = StreamAssembler::new(Limits::BYTES);
                    self.record_local();
                }
            }
            TransportEvent::Stream { from, part } => self.part(from, part),
            TransportEvent::Closed(reason) => self.record_closed(reason.to_string()),
        }
    }

    fn part(&mut self, from: &Peer, part: &StreamPart) {
        if let Some((header, payload)) = self.texts.add_rpc(from, part) {
            self.rpc(Some(from), RpcPart::Stream(Box::new(header), payload));
        }
        if let Some(payload) = self.streams.add(from, part) {
            self.recorder.shared().enqueue(|at| {
                let (topic, content) = (STREAM_TOPIC.into(), Content::Payload(payload));
                Item::Packet(at, QueuedPacket { topic, content, stream: true, ..received_packet(Some(from)) })
            });
        }
    }

    /// Records a received message of RPC, unless it answers a ping.
    fn rpc(&self, from: Option<&Peer>, part: RpcPart) {
        if self.pings.has(part.id()) {
            return;
        }
        self.recorder.shared().enqueue(|at| {
            let received = received_packet(part.sender(from).as_ref());
            let (topic, stream) = (RPC_TOPIC.into(), part.is_stream());
            Item::Packet(at, QueuedPacket { topic, stream, content: Content::Rpc(part), ..received })
        });
    }
}

impl<T: Transport> Transport for Tap<T> {
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
        let unsent = if self.observed {
            None
        } else {
            Unsent::of(self.recorder.shared(), self.capabilities, &self.local, &packet, &self.pings)
        };
        let sending = self.inner.send(packet);
        async move {
            let result = sending.await;
            if let Some(mut unsent) = unsent {
                unsent.ended(result.as_ref().err());
            }
            result
        }
    }

    fn observe_sent(&mut self, observer: SentObserver) -> bool {
        self.inner.observe_sent(observer)
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        // The caller has processed the last event, so waking the thread delays no call now.
        self.recorder.shared().write();
        let event = self.inner.recv().await;
        match &event {
            Some(event) => self.record_received(event),
            None => self.record_closed("the connection ended".to_owned()),
        }
        event
    }

    /// Leaves the room. If no other handle exists, the recording ends and its file is finished.
    async fn close(&mut self) {
        self.inner.close().await;
        self.record_closed(CloseReason::Closed.to_string());
        self.recorder.finish_if_last().await;
    }
}

/// Returns what records the packets that a transport sends.
fn observer(shared: &Arc<Shared>, capabilities: Capabilities, local: &Peer, pings: &Pings) -> SentObserver {
    let (shared, local, pings) = (Arc::clone(shared), local.clone(), pings.clone());
    SentObserver(Box::new(move |packet, sid| {
        let from = sid.map_or_else(|| local.clone(), |sid| Peer::new(local.identity().clone(), sid.clone()));
        let mut unsent = Unsent::of(&shared, capabilities, &from, packet, &pings)?;
        Some(Box::new(move |error| unsent.ended(error)))
    }))
}

/// A packet being sent; records a failure if it is not sent.
struct Unsent {
    shared: Arc<Shared>,
    ticket: u64,
    open: bool,
}

impl Unsent {
    /// Records a packet that is sent from now on, if it is a frame or a message of RPC, and no ping.
    fn of(
        shared: &Arc<Shared>,
        capabilities: Capabilities,
        from: &Peer,
        packet: &Packet,
        pings: &Pings,
    ) -> Option<Self> {
        let (topic, stream, content) = match RpcPart::sent(packet) {
            Some(part) if part.is_ping() => {
                pings.note(part.id());
                return None;
            }
            Some(part) => (RPC_TOPIC.into(), part.is_stream(), Content::Rpc(part)),
            None if is_ours(&packet.topic) && packet.form == Form::Data => {
                let stream = capabilities.streams
                    && packet.lane == Lane::Reliable
                    && packet.payload.len() > capabilities.max_packet;
                let topic = if stream { STREAM_TOPIC.into() } else { packet.topic.clone() };
                (topic, stream, Content::Payload(packet.payload.clone()))
            }
            None => return None,
        };
        let ticket = shared.enqueue(|at| {
            let queued = QueuedPacket {
                direction: Direction::Sent,
                from: Some(from.clone()),
                to: packet.to.clone(),
                topic,
                lane: packet.lane,
                stream,
                compressed: false,
                is_strangers: false,
                content,
                ticket: NO_TICKET,
            };
            Item::Packet(at, queued)
        });
        Some(Self { shared: Arc::clone(shared), ticket, open: true })
    }

    fn ended(&mut self, error: Option<&SendError>) {
        self.open = false;
        if let Some(error) = error {
            self.record_failure(error.to_string());
        }
    }

    fn record_failure(&self, reason: String) {
        self.shared.enqueue(|at| Item::Unsent(at, self.ticket, reason));
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if self.open {
            self.record_failure("cancelled before it was sent completely".to_owned());
        }
    }
}

/// The ids of the pings by RPC that were sent last. Their answers are not recorded either.
#[derive(Clone, Debug, Default)]
struct Pings(Arc<Mutex<VecDeque<String>>>);

impl Pings {
    /// The number of ids that are remembered: those of some owners.
    const MOST: usize = 64;

    fn note(&self, id: &str) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() == Self::MOST {
            ids.pop_front();
        }
        ids.push_back(id.to_owned());
    }

    fn has(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|it| it == id)
    }
}

/// Whether packets on this topic are frames.
fn is_ours(topic: &str) -> bool {
    topic.is_empty() || topic == TOPIC
}

fn received_packet(from: Option<&Peer>) -> QueuedPacket {
    QueuedPacket {
        direction: Direction::Heard,
        from: from.cloned(),
        to: Vec::new(),
        topic: "".into(),
        lane: Lane::Reliable,
        stream: false,
        compressed: false,
        is_strangers: false,
        content: Content::Payload(bytes::Bytes::new()),
        ticket: NO_TICKET,
    }
}

fn joined(participant: &Participant) -> RoomEvent {
    RoomEvent::Joined {
        identity: participant.identity().clone(),
        sid: participant.sid().clone(),
        agent: participant.is_agent(),
        role: stated_role(participant),
        protocol: participant.protocol(),
    }
}

/// Returns its role. A value that is no role is recorded too, because it takes rights from an agent.
fn stated_role(participant: &Participant) -> Option<String> {
    /// The most characters of such a value.
    const MOST: usize = 64;
    participant.stated_role().map(|role| match role {
        Ok(role) => role.as_str().to_owned(),
        Err(value) => value.chars().take(MOST).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        recording::{Happened, RecorderOptions, Recording},
        transport::{outbox::Priority, send_queue::SendQueue},
    };

    /// A transport that sends from a queue, when the test says so.
    struct Queued(SendQueue);

    impl Transport for Queued {
        fn local(&self) -> Participant {
            Participant::new("phone", "PA_1")
        }

        fn room(&self) -> String {
            "kitchen".to_owned()
        }

        fn present(&self) -> Vec<Participant> {
            Vec::new()
        }

        fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
            self.0.send(packet, &"PA_1".into())
        }

        fn observe_sent(&mut self, observer: SentObserver) -> bool {
            self.0.observe(observer.0);
            true
        }

        async fn recv(&mut self) -> Option<TransportEvent> {
            None
        }
    }

    #[tokio::test]
    async fn send_that_was_dropped_is_recorded_as_what_became_of_it() {
        let path = std::env::temp_dir().join(format!("toolbridge-tap-{}.mcap", std::process::id()));
        let recorder = Recorder::create(&path, RecorderOptions::default().force(true)).unwrap();
        let queue = SendQueue::default();
        let tap = recorder.tap(Queued(queue.clone()));
        let send = |size: usize| tap.send(Packet::new(["brain".into()], vec![7; size]));
        drop(send(10));
        drop(send(20_000)); // is large, and so is not sent
        let waited = send(30);
        while let Some(packet) = queue.take(Priority::Ordered) {
            let is_last = packet.payload.len() == 30;
            queue.done(Priority::Ordered, if is_last { Err(SendError::Interrupted) } else { Ok(()) });
        }
        assert!(waited.await.is_err());
        drop(tap);
        recorder.finish().unwrap();
        let (mut sent, mut unsent) = (Vec::new(), 0);
        for entry in Recording::open(&path).unwrap().entries() {
            match entry.what {
                Happened::Packet(packet) => sent.push(packet.payload.len()),
                Happened::Event(RoomEvent::Unsent { .. }) => unsent += 1,
                Happened::Event(_) => {}
            }
        }
        assert_eq!((sent, unsent), (vec![10, 30], 1));
        std::fs::remove_file(path).unwrap();
    }
}
