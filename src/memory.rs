//! Provides a room inside the process, for tests of apps and for demos without a server.
//!
//! It behaves like LiveKit where calls depend on it: packets of a lane keep their order (lossy packets can overtake delayed
//! reliable ones), an identity that joins again evicts its earlier join, a lost reliable packet arrives late, and a lost
//! lossy packet never arrives. It uses tokio's clock, so tests can pause time.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> anyhow::Result<()> {
//! use toolbridge::{Assistant, Client, ToolError, memory};
//!
//! async fn get_battery() -> Result<f32, ToolError> {
//!     Ok(0.8)
//! }
//! let room = memory::MemoryRoom::new();
//! let _phone = Client::builder().tool("get_battery", "Battery level", get_battery).join_over(room.client("phone")).await?;
//! let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
//! let level: f32 = assistant.call("get_battery", ()).await?.decode()?;
//! assert_eq!(level, 0.8);
//! # Ok(())
//! # }
//! ```

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::transport::{
    Capabilities, CloseReason, ConnectionState, Form, Identity, Incoming, Lane, Packet, Participant, Peer,
    Role, SendError, Sid, StreamPart, StreamParts, Transport, TransportEvent,
};

/// The number of queued events per participant beyond which its senders wait.
const QUEUE_LIMIT: usize = 8_192;

/// The delay of a reliable packet that was lost once. SCTP's minimum retransmission timeout is 1 s.
const RESEND_AFTER: Duration = Duration::from_secs(1);

/// A room inside the process. Clones refer to the same room.
#[derive(Clone, Debug)]
pub struct MemoryRoom(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    state: Mutex<State>,
    /// Notified when a queue became shorter or a participant left.
    space: Notify,
}

#[derive(Debug, Default)]
struct State {
    joins: u64,
    delay: Duration,
    loss: f64,
    random: u64,
    seats: HashMap<Identity, Seat>,
}

/// A participant in the room.
#[derive(Debug)]
struct Seat {
    participant: Participant,
    inbox: Arc<Inbox>,
    /// The packets that it sent while paused.
    held: Vec<(Packet, Option<StreamPart>)>,
    /// The turns of its packets that wait until their receivers have room.
    waiting: BTreeSet<u64>,
}

/// The place of a reliable packet among those of its sender, in the order of the calls. A packet that has to wait is not overtaken by a
/// later one, whoever is woken first.
struct Turn {
    room: Arc<Shared>,
    local: Participant,
    /// None for a packet that overtakes others.
    number: Option<u64>,
    is_waiting: bool,
}

impl Turn {
    /// Whether an earlier packet waits.
    fn is_behind(&self, state: &State) -> bool {
        let waiting = state.seat(&self.local).map(|seat| &seat.waiting);
        waiting.and_then(BTreeSet::first).is_some_and(|first| self.number.is_some_and(|own| *first < own))
    }

    fn wait(&mut self, state: &mut State) {
        if let (Some(number), Some(seat)) = (self.number, state.seat_mut(&self.local)) {
            seat.waiting.insert(number);
            self.is_waiting = true;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number.filter(|_| self.is_waiting) {
            if let Some(seat) = self.room.lock().seat_mut(&self.local) {
                seat.waiting.remove(&number);
            }
            self.room.space.notify_waiters();
        }
    }
}

/// The events queued for one participant, with their delivery times. The connection shares it, so that it receives
/// `Closed` after its seat was removed.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<(Instant, TransportEvent)>,
    /// Lossy packets, which overtake delayed reliable ones.
    lossy: VecDeque<(Instant, TransportEvent)>,
    paused: bool,
}

impl Default for MemoryRoom {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryRoom {
    /// Creates an empty room named `memory`, without delay or loss.
    pub fn new() -> Self {
        Self::named("memory")
    }

    /// Creates an empty room with this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Arc::new(Shared { name: name.into(), state: Mutex::default(), space: Notify::new() }))
    }

    /// Joins as a client: a participant with the role `client`.
    pub fn client(&self, identity: impl Into<Identity>) -> MemoryTransport {
        self.join(|sid| Participant::new(identity, sid).role(Role::Client))
    }

    /// Joins as an assistant: a participant of kind `AGENT` with the role `assistant`.
    pub fn assistant(&self, identity: impl Into<Identity>) -> MemoryTransport {
        self.join(|sid| Participant::new(identity, sid).role(Role::Assistant).agent(true))
    }

    /// Joins as an observer: a participant with the role `observer`.
    pub fn observer(&self, identity: impl Into<Identity>) -> MemoryTransport {
        self.join(|sid| Participant::new(identity, sid).role(Role::Observer))
    }

    /// Joins as the participant that `describe` returns for the new sid. Disconnects an earlier join with the same identity.
    pub fn join(&self, describe: impl FnOnce(Sid) -> Participant) -> MemoryTransport {
        let mut state = self.0.lock();
        state.joins += 1;
        let participant = describe(format!("PA_{}", state.joins).into());
        let identity = participant.identity().clone();
        state.remove(identity.as_str(), CloseReason::DuplicateIdentity);
        let inbox = Arc::new(Inbox::default());
        let seat = Seat {
            participant: participant.clone(),
            inbox: Arc::clone(&inbox),
            held: Vec::new(),
            waiting: BTreeSet::new(),
        };
        state.seats.insert(identity, seat);
        // The new participant receives its own event, too: it is announced to all at once.
        state.tell_all(&TransportEvent::Joined(participant.clone()));
        drop(state);
        self.0.space.notify_waiters(); // senders no longer wait for the evicted join's queue
        let turns = AtomicU64::new(0);
        MemoryTransport { room: Arc::clone(&self.0), local: participant, inbox, ended: false, turns }
    }

    /// Removes a participant at once, as if its process had been killed.
    pub fn leave(&self, identity: &str) {
        self.0.lock().remove(identity, CloseReason::ConnectionLost("removed by `MemoryRoom::leave`".into()));
        self.0.space.notify_waiters();
    }

    /// Interrupts a participant's connection. Packets from and to it are queued until [`resume`](MemoryRoom::resume).
    pub fn pause(&self, identity: &str) {
        if let Some(seat) = self.0.lock().seats.get(identity) {
            seat.inbox.pause(true);
        }
    }

    /// Ends [`pause`](MemoryRoom::pause) and delivers the queued packets.
    pub fn resume(&self, identity: &str) {
        let mut state = self.0.lock();
        let Some(seat) = state.seats.get_mut(identity) else { return };
        seat.inbox.pause(false);
        let sender = seat.participant.peer().clone();
        for (packet, part) in std::mem::take(&mut seat.held) {
            state.deliver(&sender, &packet, part.as_ref());
        }
        drop(state);
        self.0.space.notify_waiters();
    }

    /// Sets the delay of each packet from now on. Default: zero.
    pub fn delay(&self, each: Duration) {
        self.0.lock().delay = each;
    }

    /// Sets the share of packets that are lost from now on, 0.0 to 1.0. `seed` makes the losses reproducible. Default: 0.
    ///
    /// A lost lossy packet never arrives. A lost reliable packet arrives 1 s late and delays the reliable packets behind it.
    pub fn lose(&self, share: f64, seed: u64) {
        let mut state = self.0.lock();
        state.loss = share;
        state.random = seed;
    }
}

/// A byte stream being sent. Dropping it before its end sends a trailer with a reason.
struct Stream {
    room: Arc<Shared>,
    local: Participant,
    packet: Packet,
    parts: StreamParts,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(trailer) = self.parts.abandon() {
            // If a queue is full or the connection has ended, receivers discard the stream by themselves.
            let _ = self.room.lock().take(&self.local, &self.packet, Some(&trailer));
        }
    }
}

impl Shared {
    /// Waits until it is the packet's turn and the queue of every receiver has room, then delivers the packet or part.
    async fn hand_over(
        &self,
        turn: &mut Turn,
        from: &Participant,
        packet: &Packet,
        part: Option<StreamPart>,
    ) -> Result<(), SendError> {
        loop {
            let mut space = std::pin::pin!(self.space.notified());
            space.as_mut().enable();
            {
                let mut state = self.lock();
                if !turn.is_behind(&state) && state.take(from, packet, part.as_ref())? {
                    return Ok(());
                }
                turn.wait(&mut state);
            }
            space.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        whole(&self.state)
    }
}

/// Ignores poisoning: no code here can panic while the state is inconsistent.
fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The seat of this join.
    fn seat(&self, participant: &Participant) -> Option<&Seat> {
        self.seats.get(participant.identity()).filter(|seat| seat.is(participant))
    }

    fn seat_mut(&mut self, participant: &Participant) -> Option<&mut Seat> {
        self.seats.get_mut(participant.identity()).filter(|seat| seat.is(participant))
    }

    fn remove(&mut self, identity: &str, reason: CloseReason) {
        let Some(seat) = self.seats.remove(identity) else { return };
        self.tell_all(&TransportEvent::Left(seat.participant.peer().clone()));
        seat.inbox.end(reason);
    }

    fn tell_all(&self, event: &TransportEvent) {
        let now = Instant::now();
        for seat in self.seats.values() {
            seat.inbox.push(now, event.clone());
        }
    }

    fn hearers<'a>(&'a self, from: &'a Peer, packet: &'a Packet) -> impl Iterator<Item = &'a Seat> {
        let heard = |identity: &Identity| packet.is_broadcast() || packet.to.contains(identity);
        self.seats.iter().filter(move |(it, _)| *it != from.identity() && heard(it)).map(|(_, seat)| seat)
    }

    /// Delivers a packet, or one part of its byte stream.
    fn deliver(&mut self, from: &Peer, packet: &Packet, part: Option<&StreamPart>) {
        let lost = self.loss > 0.0 && self.draw() < self.loss;
        if lost && packet.lane == Lane::Lossy {
            return;
        }
        let due = Instant::now() + self.delay + if lost { RESEND_AFTER } else { Duration::ZERO };
        for seat in self.hearers(from, packet) {
            let event = match (part, &packet.form) {
                (Some(part), _) => TransportEvent::Stream { from: from.clone(), part: part.clone() },
                (None, Form::Rpc(message)) => {
                    TransportEvent::Rpc { from: Some(from.clone()), message: message.clone() }
                }
                (None, _) => {
                    let (topic, payload) = (packet.topic.clone(), packet.payload.clone());
                    TransportEvent::Packet(Incoming::new(from.clone(), packet.lane, topic, payload))
                }
            };
            seat.inbox.push(due, event);
        }
    }

    /// Returns a random number in 0.0..1.0 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The state of an inbox.
enum Next {
    Event(TransportEvent),
    At(Instant),
    Nothing,
}

impl Inbox {
    fn push(&self, due: Instant, event: TransportEvent) {
        let mut waiting = whole(&self.waiting);
        match &event {
            // Lossy packets are dropped if the queue is full or the receiver is paused.
            TransportEvent::Packet(packet) if packet.lane == Lane::Lossy => {
                if waiting.lossy.len() < QUEUE_LIMIT && !waiting.paused {
                    waiting.lossy.push_back((due, event));
                }
            }
            _ => waiting.queue.push_back((due, event)),
        }
        self.arrived.notify_one();
    }

    fn pause(&self, paused: bool) {
        let mut waiting = whole(&self.waiting);
        if waiting.paused != paused {
            waiting.paused = paused;
            waiting.lossy.clear();
            let state = if paused { ConnectionState::Reconnecting } else { ConnectionState::Connected };
            // Before all queued events, but after earlier state changes.
            let is_link =
                |(_, event): &&(Instant, TransportEvent)| matches!(event, TransportEvent::ConnectionState(_));
            let place = waiting.queue.iter().take_while(is_link).count();
            waiting.queue.insert(place, (Instant::now(), TransportEvent::ConnectionState(state)));
            self.arrived.notify_one();
        }
    }

    /// Discards all queued events and queues `Closed`.
    fn end(&self, reason: CloseReason) {
        let mut waiting = whole(&self.waiting);
        waiting.paused = false;
        waiting.lossy.clear();
        waiting.queue = VecDeque::from([(Instant::now(), TransportEvent::Closed(reason))]);
        self.arrived.notify_one();
    }

    fn next(&self) -> Next {
        let mut waiting = whole(&self.waiting);
        let Waiting { queue, lossy, paused } = &mut *waiting;
        let when = |queue: &VecDeque<(Instant, TransportEvent)>| queue.front().map(|(due, _)| *due);
        let first = match (when(queue), when(lossy)) {
            (Some(ordered), Some(fast)) if fast < ordered => lossy,
            (None, Some(_)) => lossy,
            _ => queue,
        };
        match first.front() {
            None => Next::Nothing,
            Some((_, event)) if *paused && !matches!(event, TransportEvent::ConnectionState(_)) => {
                Next::Nothing
            }
            Some((due, _)) if *due > Instant::now() => Next::At(*due),
            Some(_) => first.pop_front().map_or(Next::Nothing, |(_, event)| Next::Event(event)),
        }
    }

    fn is_full(&self) -> bool {
        whole(&self.waiting).queue.len() >= QUEUE_LIMIT
    }

    fn is_paused(&self) -> bool {
        whole(&self.waiting).paused
    }
}

impl Seat {
    fn is(&self, participant: &Participant) -> bool {
        self.participant.peer() == participant.peer()
    }
}

/// One participant's connection to a [`MemoryRoom`]. Dropping it leaves.
#[derive(Debug)]
pub struct MemoryTransport {
    room: Arc<Shared>,
    local: Participant,
    inbox: Arc<Inbox>,
    ended: bool,
    /// Counts the packets that were sent.
    turns: AtomicU64,
}

impl Transport for MemoryTransport {
    fn local(&self) -> Participant {
        self.local.clone()
    }

    fn room(&self) -> String {
        self.room.name.clone()
    }

    fn present(&self) -> Vec<Participant> {
        let state = self.room.lock();
        state
            .seats
            .values()
            .filter(|seat| !seat.is(&self.local))
            .map(|seat| seat.participant.clone())
            .collect()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { lossy: true, streams: true, ..Capabilities::default() }
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let (room, local) = (Arc::clone(&self.room), self.local.clone());
        let is_small = !packet.is_streamed(Capabilities::MAX_PACKET);
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        let is_ordered = packet.lane == Lane::Reliable && !(packet.overtakes && is_small);
        let (turn_room, turn_local) = (Arc::clone(&room), local.clone());
        let number = is_ordered.then_some(number);
        let mut turn = Turn { room: turn_room, local: turn_local, number, is_waiting: false };
        async move {
            if !packet.is_addressed() {
                return Err(SendError::NoDestination);
            }
            let (size, limit) = (packet.size(), Capabilities::MAX_PACKET);
            if is_small {
                return room.hand_over(&mut turn, &local, &packet, None).await;
            }
            if packet.lane == Lane::Lossy {
                return Err(SendError::TooLarge { size, limit });
            }
            let mut stream = Stream { parts: StreamParts::of(&packet), room, local, packet };
            for part in stream.parts.by_ref() {
                stream.room.hand_over(&mut turn, &stream.local, &stream.packet, Some(part)).await?;
                tokio::task::yield_now().await; // other packets may be sent between the parts
            }
            Ok(())
        }
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        while !self.ended {
            match self.inbox.next() {
                Next::Event(event) => {
                    self.ended = matches!(event, TransportEvent::Closed(_));
                    self.room.space.notify_waiters();
                    return Some(event);
                }
                Next::Nothing => self.inbox.arrived.notified().await,
                Next::At(due) => tokio::select! {
                    () = self.inbox.arrived.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
        }
        None
    }

    async fn close(&mut self) {
        self.leave();
    }
}

impl State {
    /// Returns true if the packet or part was delivered or dropped, and false if a receiver's queue is full.
    fn take(
        &mut self,
        from: &Participant,
        packet: &Packet,
        part: Option<&StreamPart>,
    ) -> Result<bool, SendError> {
        let full = self.hearers(from.peer(), packet).any(|seat| seat.inbox.is_full());
        let Some(seat) = self.seats.get_mut(from.identity()).filter(|seat| seat.is(from)) else {
            return Err(SendError::Closed(CloseReason::Closed));
        };
        if packet.lane == Lane::Lossy {
            if !seat.inbox.is_paused() {
                self.deliver(from.peer(), packet, None);
            }
            return Ok(true);
        }
        if seat.inbox.is_paused() {
            let room = seat.held.len() < QUEUE_LIMIT;
            if room {
                seat.held.push((packet.clone(), part.cloned()));
            }
            return Ok(room);
        }
        if !full {
            self.deliver(from.peer(), packet, part);
        }
        Ok(!full)
    }
}

impl MemoryTransport {
    fn leave(&mut self) {
        let mut state = self.room.lock();
        if state.seats.get(self.local.identity()).is_some_and(|seat| seat.is(&self.local)) {
            state.remove(self.local.identity().as_str(), CloseReason::Closed);
        }
        drop(state);
        self.room.space.notify_waiters();
    }
}

impl Drop for MemoryTransport {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{RpcMessage, RpcRequest, TextStream};

    async fn packet(connection: &mut MemoryTransport) -> Incoming {
        loop {
            match connection.recv().await {
                Some(TransportEvent::Packet(packet)) => return packet,
                Some(_) => {}
                None => panic!("the connection ended"),
            }
        }
    }

    #[tokio::test]
    async fn packets_that_waited_arrive_in_the_order_of_the_calls() {
        let room = MemoryRoom::new();
        let (phone, mut brain) = (room.client("phone"), room.assistant("brain"));
        assert!(matches!(brain.recv().await, Some(TransportEvent::Joined(_))));
        type Sending = std::pin::Pin<Box<dyn Future<Output = Result<(), SendError>> + Send>>;
        let send = |number: u32| -> Sending {
            Box::pin(phone.send(Packet::new(["brain".into()], number.to_be_bytes().to_vec())))
        };
        for number in 0..QUEUE_LIMIT as u32 {
            send(number).await.unwrap();
        }
        let mut waiting: Vec<_> = (0..20).map(|more| send(QUEUE_LIMIT as u32 + more)).collect();
        // In the wrong order, as tasks may run.
        let poll_all = |waiting: &mut Vec<Sending>| {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            for at in (0..waiting.len()).rev() {
                if waiting[at].as_mut().poll(&mut cx).is_ready() {
                    drop(waiting.remove(at));
                }
            }
        };
        poll_all(&mut waiting);
        assert_eq!(waiting.len(), 20);
        drop(waiting.remove(7)); // a sender that stops waiting holds up nobody
        let mut numbers = Vec::new();
        while numbers.len() < QUEUE_LIMIT + 19 {
            if let Some(TransportEvent::Packet(packet)) = brain.recv().await {
                numbers.push(u32::from_be_bytes(packet.payload[..4].try_into().unwrap()));
                poll_all(&mut waiting);
            }
        }
        let expected: Vec<_> =
            (0..QUEUE_LIMIT as u32 + 20).filter(|it| *it != QUEUE_LIMIT as u32 + 7).collect();
        assert_eq!(numbers, expected);
    }

    #[tokio::test]
    async fn packet_reaches_only_its_destinations() {
        let room = MemoryRoom::new();
        let (a, mut b, mut c) = (room.client("a"), room.client("b"), room.client("c"));
        a.send(Packet::new(["b".into()], "for b")).await.unwrap();
        a.send(Packet::broadcast("for all")).await.unwrap();
        assert_eq!(packet(&mut b).await.payload, "for b");
        assert_eq!(packet(&mut b).await.payload, "for all");
        assert_eq!(packet(&mut c).await.payload, "for all");
        assert!(matches!(a.send(Packet::new([], "nobody")).await, Err(SendError::NoDestination)));
    }

    #[tokio::test]
    async fn messages_of_rpc_and_streams_of_text_are_delivered() {
        let room = MemoryRoom::new();
        let (a, mut b) = (room.client("a"), room.client("b"));
        let message = RpcMessage::Request(RpcRequest::new("r1", "getBattery", "{}", 5_000));
        a.send(Packet::rpc("b".into(), message.clone())).await.unwrap();
        let mut stream = TextStream::new(20_000);
        a.send(Packet::text("b".into(), "t", vec![b'x'; 20_000], stream.clone())).await.unwrap();
        stream.inline = true;
        a.send(Packet::text("b".into(), "t", vec![b'x'; 14_000], stream)).await.unwrap();
        let mut events = Vec::new();
        while events.len() < 6 {
            match b.recv().await.unwrap() {
                TransportEvent::Joined(_) => {}
                event => events.push(event),
            }
        }
        let from = a.local().peer().clone();
        assert_eq!(events[0], TransportEvent::Rpc { from: Some(from), message });
        let sizes = events[1..].iter().map(|event| match event {
            TransportEvent::Stream { part, .. } => part.size(),
            other => panic!("{other:?}"),
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [0, 15_000, 5_000, 0, 14_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn lost_reliable_packet_arrives_late_and_in_order() {
        let room = MemoryRoom::new();
        let (a, mut b) = (room.client("a"), room.client("b"));
        let began = Instant::now();
        room.lose(1.0, 7);
        a.send(Packet::new(["b".into()], "first")).await.unwrap();
        room.lose(0.0, 7);
        a.send(Packet::new(["b".into()], "second")).await.unwrap();
        assert_eq!(packet(&mut b).await.payload, "first");
        assert_eq!(packet(&mut b).await.payload, "second");
        assert_eq!(began.elapsed(), RESEND_AFTER);
    }

    #[tokio::test(start_paused = true)]
    async fn lossy_packet_overtakes_late_reliable_one_and_is_dropped_if_lost() {
        let room = MemoryRoom::new();
        let (a, mut b) = (room.client("a"), room.client("b"));
        let lossy = |text: &'static str| {
            let mut packet = Packet::new(["b".into()], text);
            packet.lane = Lane::Lossy;
            packet
        };
        room.lose(1.0, 7);
        a.send(Packet::new(["b".into()], "late")).await.unwrap();
        a.send(lossy("lost")).await.unwrap();
        room.lose(0.0, 7);
        a.send(lossy("fast")).await.unwrap();
        assert_eq!(packet(&mut b).await.payload, "fast");
        assert_eq!(packet(&mut b).await.payload, "late");
        room.pause("b");
        a.send(lossy("unheard")).await.unwrap();
        room.resume("b");
        a.send(lossy("heard")).await.unwrap();
        assert_eq!(packet(&mut b).await.payload, "heard");
    }

    #[tokio::test]
    async fn paused_participant_receives_nothing_until_resumed() {
        let room = MemoryRoom::new();
        let (a, mut b) = (room.client("a"), room.client("b"));
        room.pause("b");
        a.send(Packet::new(["b".into()], "x")).await.unwrap();
        assert_eq!(b.recv().await, Some(TransportEvent::ConnectionState(ConnectionState::Reconnecting)));
        room.resume("b");
        assert_eq!(b.recv().await, Some(TransportEvent::ConnectionState(ConnectionState::Connected)));
        assert_eq!(packet(&mut b).await.payload, "x");
    }

    #[tokio::test]
    async fn second_join_of_an_identity_evicts_the_first() {
        let room = MemoryRoom::new();
        let mut old = room.client("phone");
        let new = room.client("phone");
        assert_eq!(old.recv().await, Some(TransportEvent::Closed(CloseReason::DuplicateIdentity)));
        assert_eq!(old.recv().await, None);
        drop(old);
        assert!(room.assistant("a").present().iter().any(|it| it.peer() == new.local().peer()));
    }
}
