//! The packets that wait to be sent on one connection, in order of priority.
//!
//! A participant has one such queue. Its owner, the driver or a `LiveKitTransport` that is used directly, pushes packets. The transport
//! takes them when the network has room and reports what became of them. A [`Pump`] does that for transports that only
//! implement [`Transport::send`].
//!
//! Reliable packets are sent in order, except that a small packet that [overtakes](Packet::overtakes) does not wait for larger
//! ones. Lossy packets wait for each other only.

#![cfg_attr(
    not(feature = "livekit"),
    expect(dead_code, reason = "only LiveKit rooms take packets by themselves and report their connections")
)]

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::sync::{Notify, oneshot};

use super::{Capabilities, CloseReason, Lane, Packet, SendError, Sid, Transport};

/// The number of queued packets at which the owner should stop reading events.
const LIMIT: usize = 1_024;

/// The largest number of queued packets.
const CAP: usize = 4 * LIMIT;

/// The largest size of all queued packets, in bytes: two frames of the largest size. A single packet may exceed it.
const CAP_BYTES: usize = 32 * 1024 * 1024;

/// Additional capacity for small packets that overtake, in packets and in bytes, so that a queue full of large packets does not
/// block stops and acknowledgements.
const RESERVE: usize = LIMIT;
const RESERVE_BYTES: usize = 1024 * 1024;

/// The queue. Clones refer to the same queue.
#[derive(Clone, Default)]
pub(crate) struct SendQueue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the queue became shorter.
    space: Notify,
}

/// A part of the queue. The transport sends at most one packet of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Reliable packets that need not wait for large ones.
    Urgent,
    /// All other reliable packets.
    Ordered,
    /// Lossy packets.
    Lossy,
}

impl Priority {
    /// The lane of these packets.
    pub(crate) fn lane(self) -> Lane {
        if self == Self::Lossy { Lane::Lossy } else { Lane::Reliable }
    }
}

#[derive(Default)]
struct State {
    access: Access,
    /// Indexed by [`Priority`].
    queued: [VecDeque<Queued>; 3],
    /// Indexed by [`Priority`].
    sending: [Option<Sending>; 3],
    /// The bytes of the queued reliable packets.
    bytes: usize,
    /// The number of large packets that are queued in order.
    large: usize,
    /// The bytes on the reliable lane that the transport has sent and the server has not acknowledged.
    unacknowledged: usize,
    owner: OwnerSide,
    transport: TransportSide,
    observer: Option<Observer>,
}

/// Which packets the queue accepts.
#[derive(Default)]
enum Access {
    /// All packets: the transport does not report its connections.
    #[default]
    All,
    /// Packets that are queued for the connection with this sid.
    Connection(Sid),
    /// None: the connection was lost.
    Interrupted,
    /// None: the connection has ended.
    Closed(CloseReason),
}

/// What the owner has not yet been told.
#[derive(Default)]
struct OwnerSide {
    sent: Sent,
    /// True if a packet was taken out of a long queue.
    is_shorter: bool,
    /// True if any packet was sent or given up.
    has_ended: bool,
    /// True if the owner waits for any packet.
    wants_all: bool,
    waker: Option<Waker>,
}

impl OwnerSide {
    fn is_due(&self) -> bool {
        let Sent { failed, is_reliable } = &self.sent;
        *is_reliable || !failed.is_empty() || self.is_shorter || (self.wants_all && self.has_ended)
    }
}

/// What the transport has not yet been told.
#[derive(Default)]
struct TransportSide {
    /// True if a packet was queued or cancelled.
    has_changed: bool,
    waker: Option<Waker>,
}

struct Queued {
    packet: Packet,
    /// Receives the result, if not the owner does.
    reply: Option<Reply>,
}

type Reply = oneshot::Sender<Result<(), SendError>>;

/// A packet that the transport is sending.
struct Sending {
    id: u64,
    is_large: bool,
    is_cancelled: bool,
    reply: Option<Reply>,
    observed: Option<Observed>,
}

/// Is called with each packet that the transport takes.
pub(crate) type Observer = Box<dyn Fn(&Packet, Option<&Sid>) -> Option<Observed> + Send>;

/// Is called with the result of a packet; dropped if the packet was cancelled.
pub(crate) type Observed = Box<dyn FnOnce(Option<&SendError>) + Send>;

/// What became of packets.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The packets that were not sent.
    pub(crate) failed: Vec<Failure>,
    /// True if a reliable packet was sent.
    pub(crate) is_reliable: bool,
}

/// A packet that was not sent.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The packet's id.
    pub(crate) id: u64,
    /// The reason.
    pub(crate) error: SendError,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The owner's side.
impl SendQueue {
    /// Queues a packet for the connection with this sid.
    ///
    /// # Errors
    /// [`Full`]: the packet is dropped, and not reported.
    pub(crate) fn push(&self, packet: Packet, sid: &Sid) -> Result<(), Full> {
        self.try_push(Queued { packet, reply: None }, sid).map_or(Ok(()), |_| Err(Full))
    }

    /// Queues a packet at once, or as soon as the queue has room if the future is polled. The future returns the packet's
    /// result, which is not reported.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the packet if it is large or was not queued.
    pub(crate) fn send(
        &self,
        packet: Packet,
        sid: &Sid,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<> {
        let (reply, result) = oneshot::channel();
        let (queue, sid) = (self.clone(), sid.clone());
        let mut refused = queue.try_push(Queued { packet, reply: Some(reply) }, &sid);
        async move {
            while let Some(waiting) = refused {
                let mut space = pin!(queue.0.space.notified());
                space.as_mut().enable();
                refused = queue.try_push(waiting, &sid);
                if refused.is_some() {
                    space.await;
                }
            }
            result.await.unwrap_or(Err(SendError::Interrupted))
        }
    }

    /// Returns the packet if the queue is full.
    fn try_push(&self, queued: Queued, sid: &Sid) -> Option<Queued> {
        self.with(|state| state.push(queued, sid))
    }

    /// Ready if packets failed or were sent. Without `all`, a lossy packet that was sent does not count unless the queue was
    /// long: most packets are lossy, and nothing depends on when they were sent.
    pub(crate) fn poll_sent(&self, cx: &mut Context<'_>, all: bool) -> Poll<Sent> {
        let mut state = self.lock();
        let owner = &mut state.owner;
        owner.wants_all = all;
        if !owner.is_due() {
            register(&mut owner.waker, cx);
            return Poll::Pending;
        }
        (owner.has_ended, owner.is_shorter) = (false, false);
        Poll::Ready(mem::take(&mut owner.sent))
    }

    /// The id of the large packet that is being sent, or else of the one that is sent next. Its sender may no longer want it.
    pub(crate) fn large(&self) -> Option<u64> {
        let state = self.lock();
        let sending = state.sending[ORDERED].as_ref().filter(|it| it.is_large && !it.is_cancelled);
        let next = || state.queued[ORDERED].front().filter(|it| is_large(&it.packet));
        sending.map(|it| it.id).or_else(|| next().map(|it| it.packet.id))
    }

    /// Drops a packet, which is not reported. If a part of it was sent, the transport notifies its receivers.
    pub(crate) fn cancel(&self, id: u64) {
        self.cancel_if(|other, _| other == id);
    }

    /// Drops all large packets, which are not reported.
    pub(crate) fn cancel_large(&self) {
        self.cancel_if(|_, is_large| is_large);
    }

    fn cancel_if(&self, is_meant: impl Fn(u64, bool) -> bool) {
        self.with(|state| state.cancel_if(is_meant));
    }

    /// Drops all queued packets and returns their ids. The transport reports those that it is sending.
    pub(crate) fn cancel_queued(&self) -> Vec<u64> {
        self.with(|state| state.take_queued().map(|queued| queued.packet.id).collect())
    }

    /// The bytes on the reliable lane that are queued or unacknowledged.
    pub(crate) fn backlog(&self) -> usize {
        let state = self.lock();
        state.bytes.saturating_add(state.unacknowledged)
    }

    /// Returns true if no packet is queued or being sent.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.queued.iter().all(VecDeque::is_empty) && state.sending.iter().all(Option::is_none)
    }

    /// Returns true if so many packets are queued that the owner should not read more events. Bytes do not count, because the
    /// next event may be a stop.
    pub(crate) fn is_long(&self) -> bool {
        self.lock().is_long()
    }
}

/// The transport's side.
impl SendQueue {
    /// Accepts packets that are queued for the connection with this sid.
    pub(crate) fn connect(&self, sid: Sid) {
        self.lock().access = Access::Connection(sid);
    }

    /// Fails all packets, and those that are queued from now on, with [`SendError::Interrupted`].
    pub(crate) fn interrupt(&self) {
        self.refuse(Access::Interrupted);
        self.fail_all();
    }

    /// Refuses packets from now on. Those that are already queued can still be sent.
    pub(crate) fn close(&self, reason: CloseReason) {
        self.refuse(Access::Closed(reason));
    }

    /// Refuses packets from now on, and fails all queued ones.
    pub(crate) fn end(&self, reason: CloseReason) {
        self.close(reason);
        self.fail_all();
    }

    /// Calls [`end`](Self::end) unless packets are refused already.
    pub(crate) fn end_if_open(&self, reason: CloseReason) {
        if !matches!(self.lock().access, Access::Closed(_)) {
            self.end(reason);
        }
    }

    fn refuse(&self, access: Access) {
        self.lock().access = access;
    }

    fn fail_all(&self) {
        self.with(State::fail_all);
    }

    /// Sets the number of bytes on the reliable lane that were sent and not acknowledged.
    pub(crate) fn set_unacknowledged(&self, bytes: usize) {
        self.lock().unacknowledged = bytes;
    }

    /// Waits until a packet was queued or cancelled since the last call.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub(crate) async fn changed(&self) {
        poll_fn(|cx| {
            let transport = &mut self.lock().transport;
            if mem::take(&mut transport.has_changed) {
                return Poll::Ready(());
            }
            register(&mut transport.waker, cx);
            Poll::Pending
        })
        .await;
    }

    /// The priorities in the order in which packets should be taken. A reliable packet that can be sent at once precedes a
    /// lossy one, because progress precedes its result.
    pub(crate) fn order(&self) -> [Priority; 3] {
        let state = self.lock();
        let sending = state.sending[ORDERED].as_ref().map(|it| it.is_large);
        let large = sending.or_else(|| state.queued[ORDERED].front().map(|it| is_large(&it.packet)));
        match large {
            Some(true) => [Priority::Urgent, Priority::Lossy, Priority::Ordered],
            _ => [Priority::Urgent, Priority::Ordered, Priority::Lossy],
        }
    }

    /// Takes the next packet of this priority, unless one is being sent. The transport must report it with
    /// [`done`](Self::done).
    pub(crate) fn take(&self, priority: Priority) -> Option<Packet> {
        let packet = self.with(|state| state.take(priority))?;
        self.0.space.notify_waiters();
        Some(packet)
    }

    /// Returns true if the packet that is being sent is not wanted any more.
    pub(crate) fn is_cancelled(&self, priority: Priority) -> bool {
        self.lock().sending[priority as usize].as_ref().is_some_and(Sending::is_unwanted)
    }

    /// Reports what became of the packet that was being sent.
    pub(crate) fn done(&self, priority: Priority, result: Result<(), SendError>) {
        self.with(|state| state.done(priority, result));
    }

    /// Calls `observer` with each packet that is taken from now on.
    #[cfg(feature = "record")]
    pub(crate) fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }
}

impl SendQueue {
    /// Changes the state, and then wakes whoever should see the change.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let wakers = state.take_due_wakers();
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const URGENT: usize = Priority::Urgent as usize;
const ORDERED: usize = Priority::Ordered as usize;
const LOSSY: usize = Priority::Lossy as usize;

impl State {
    fn push(&mut self, queued: Queued, sid: &Sid) -> Option<Queued> {
        if let Some(error) = self.access.refusal(sid) {
            self.fail(queued.packet.id, queued.reply, error);
            return None;
        }
        if self.is_full(&queued.packet) {
            return Some(queued);
        }
        let packet = &queued.packet;
        let is_large_ahead = self.large > 0 || self.sending[ORDERED].as_ref().is_some_and(|it| it.is_large);
        let place = match packet.lane {
            Lane::Lossy => LOSSY,
            Lane::Reliable if packet.overtakes && is_large_ahead => URGENT,
            Lane::Reliable => ORDERED,
        };
        if place != LOSSY {
            self.bytes += packet.payload.len();
        }
        self.large += usize::from(place == ORDERED && is_large(packet));
        self.queued[place].push_back(queued);
        self.transport.has_changed = true;
        None
    }

    fn is_full(&self, packet: &Packet) -> bool {
        if packet.lane == Lane::Lossy {
            return self.queued[LOSSY].len() >= CAP;
        }
        let (cap, cap_bytes) = match packet.overtakes && !is_large(packet) {
            true => (CAP + RESERVE, CAP_BYTES + RESERVE_BYTES),
            false => (CAP, CAP_BYTES),
        };
        let queued = self.reliable();
        queued >= cap || (self.bytes + packet.payload.len() > cap_bytes && queued > 0)
    }

    fn reliable(&self) -> usize {
        self.queued[ORDERED].len() + self.queued[URGENT].len()
    }

    fn is_long(&self) -> bool {
        self.reliable() >= LIMIT || self.queued[LOSSY].len() >= LIMIT
    }

    fn take(&mut self, priority: Priority) -> Option<Packet> {
        let place = priority as usize;
        if self.sending[place].is_some() {
            return None;
        }
        loop {
            let was_long = self.is_long();
            let Queued { packet, reply } = self.queued[place].pop_front()?;
            self.owner.is_shorter |= was_long;
            let is_large = is_large(&packet);
            if place != LOSSY {
                self.bytes -= packet.payload.len();
            }
            self.large -= usize::from(place == ORDERED && is_large);
            let mut sending = Sending { id: packet.id, is_large, is_cancelled: false, reply, observed: None };
            if sending.is_unwanted() {
                continue;
            }
            let sid = match &self.access {
                Access::Connection(sid) => Some(sid),
                _ => None,
            };
            sending.observed = self.observer.as_ref().and_then(|observer| observer(&packet, sid));
            self.sending[place] = Some(sending);
            return Some(packet);
        }
    }

    fn done(&mut self, priority: Priority, result: Result<(), SendError>) {
        let Some(sending) = self.sending[priority as usize].take() else { return };
        self.owner.has_ended = true;
        if sending.is_unwanted() {
            return;
        }
        if let Some(observed) = sending.observed {
            observed(result.as_ref().err());
        }
        self.owner.sent.is_reliable |= result.is_ok() && priority != Priority::Lossy;
        match (sending.reply, result) {
            (Some(reply), result) => drop(reply.send(result)),
            (None, Err(error)) => self.owner.sent.failed.push(Failure { id: sending.id, error }),
            (None, Ok(())) => {}
        }
    }

    fn fail(&mut self, id: u64, reply: Option<Reply>, error: SendError) {
        match reply {
            Some(reply) => drop(reply.send(Err(error))),
            None => self.owner.sent.failed.push(Failure { id, error }),
        }
    }

    /// Fails all packets for the reason for which new ones are refused.
    fn fail_all(&mut self) {
        let error = self.access.error();
        for priority in [Priority::Urgent, Priority::Ordered, Priority::Lossy] {
            self.done(priority, Err(error.clone()));
        }
        for Queued { packet, reply } in self.take_queued().collect::<Vec<_>>() {
            self.fail(packet.id, reply, error.clone());
        }
        self.unacknowledged = 0;
    }

    fn take_queued(&mut self) -> impl Iterator<Item = Queued> + use<> {
        (self.bytes, self.large) = (0, 0);
        self.owner.has_ended = true;
        let [urgent, ordered, lossy] = mem::take(&mut self.queued);
        urgent.into_iter().chain(ordered).chain(lossy)
    }

    fn cancel_if(&mut self, is_meant: impl Fn(u64, bool) -> bool) {
        for queue in &mut self.queued {
            queue.retain(|it| !is_meant(it.packet.id, is_large(&it.packet)));
        }
        let reliable = || self.queued[..LOSSY].iter().flatten().map(|it| &it.packet);
        self.bytes = reliable().map(|packet| packet.payload.len()).sum();
        self.large = self.queued[ORDERED].iter().filter(|it| is_large(&it.packet)).count();
        for sending in self.sending.iter_mut().flatten() {
            if is_meant(sending.id, sending.is_large) {
                sending.is_cancelled = true;
                sending.observed = None;
            }
        }
        self.transport.has_changed = true;
    }

    fn take_due_wakers(&mut self) -> [Option<Waker>; 2] {
        let Self { owner, transport, .. } = self;
        [
            if owner.is_due() { owner.waker.take() } else { None },
            if transport.has_changed { transport.waker.take() } else { None },
        ]
    }
}

impl Access {
    /// Returns the error of a packet that is queued for this connection, if it is refused.
    fn refusal(&self, sid: &Sid) -> Option<SendError> {
        match self {
            Self::All => None,
            Self::Connection(current) if current == sid => None,
            // The packet was addressed to participants as they were known in an earlier connection.
            _ => Some(self.error()),
        }
    }

    fn error(&self) -> SendError {
        match self {
            Self::Closed(reason) => SendError::Closed(reason.clone()),
            _ => SendError::Interrupted,
        }
    }
}

impl Sending {
    /// Whoever waits for the result of a small packet may stop waiting; it is sent all the same.
    fn is_unwanted(&self) -> bool {
        self.is_cancelled || (self.is_large && self.reply.as_ref().is_some_and(Reply::is_closed))
    }
}

fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
}

/// Returns true if a packet is sent in parts, between which others can be sent.
fn is_large(packet: &Packet) -> bool {
    packet.payload.len() > Capabilities::MAX_PACKET
}

/// A packet that [`Transport::send`] sends.
type SendFuture = Pin<Box<dyn Future<Output = Result<(), SendError>> + Send>>;

/// Sends the packets of a queue by [`Transport::send`].
#[derive(Default)]
pub(crate) struct Pump {
    /// Indexed by [`Priority`].
    sending: [Option<SendFuture>; 3],
}

impl Pump {
    /// Starts sending the next packets. Call it after the queue has changed.
    pub(crate) fn start(&mut self, queue: &SendQueue, transport: &impl Transport) {
        for priority in queue.order() {
            let sending = &mut self.sending[priority as usize];
            if queue.is_cancelled(priority) {
                *sending = None;
                queue.done(priority, Ok(()));
            }
            if let Some(packet) = queue.take(priority) {
                *sending = Some(Box::pin(transport.send(packet)));
            }
        }
    }

    /// Returns true if packets were sent or failed, so that the next ones can be started.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, queue: &SendQueue) -> bool {
        let mut has_ended = false;
        for priority in [Priority::Urgent, Priority::Ordered, Priority::Lossy] {
            let sending = &mut self.sending[priority as usize];
            if let Some(future) = sending
                && let Poll::Ready(result) = future.as_mut().poll(cx)
            {
                *sending = None;
                queue.done(priority, result);
                has_ended = true;
            }
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::oneshot;

    use super::*;
    use crate::transport::{Participant, TransportEvent};

    /// Finishes a packet when the test says so.
    #[derive(Default)]
    struct Manual(Mutex<Vec<(u64, Finish)>>);

    type Finish = oneshot::Sender<Result<(), SendError>>;

    impl Manual {
        /// The packets that are being sent.
        fn sending(&self) -> Vec<u64> {
            self.0.lock().unwrap().iter().filter(|(_, sent)| !sent.is_closed()).map(|(id, _)| *id).collect()
        }

        fn finish(&self, id: u64) {
            let mut sending = self.0.lock().unwrap();
            let place = sending.iter().position(|(other, _)| *other == id).unwrap();
            sending.remove(place).1.send(Ok(())).unwrap();
        }
    }

    impl Transport for Manual {
        fn local(&self) -> Participant {
            Participant::new("a", "PA_1")
        }

        fn room(&self) -> String {
            String::new()
        }

        fn present(&self) -> Vec<Participant> {
            Vec::new()
        }

        fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
            let (sent, result) = oneshot::channel();
            self.0.lock().unwrap().push((packet.id, sent));
            async { result.await.unwrap() }
        }

        async fn recv(&mut self) -> Option<TransportEvent> {
            None
        }
    }

    fn packet(id: u64, size: usize, overtakes: bool) -> Packet {
        let mut packet = Packet::new(["b".into()], vec![0; size]);
        (packet.id, packet.overtakes) = (id, overtakes);
        packet
    }

    fn lossy(id: u64) -> Packet {
        let mut packet = packet(id, 10, false);
        packet.lane = Lane::Lossy;
        packet
    }

    fn sid() -> Sid {
        "PA_1".into()
    }

    /// A queue and what sends its packets by [`Manual`].
    #[derive(Default)]
    struct World {
        queue: SendQueue,
        pump: Pump,
        transport: Manual,
    }

    impl World {
        fn push(&self, packets: impl IntoIterator<Item = Packet>) {
            packets.into_iter().for_each(|packet| self.queue.push(packet, &sid()).unwrap());
        }

        /// Starts what can be started. Returns the packets that are being sent.
        fn start(&mut self) -> Vec<u64> {
            self.pump.start(&self.queue, &self.transport);
            self.transport.sending()
        }

        /// Finishes a packet. Returns whether the owner was told.
        fn finish(&mut self, id: u64, all: bool) -> bool {
            self.transport.finish(id);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(self.pump.poll(&mut cx, &self.queue));
            self.queue.poll_sent(&mut cx, all).is_ready()
        }

        fn is_clear(&self) -> bool {
            let state = self.queue.lock();
            (state.bytes, state.large) == (0, 0)
        }
    }

    #[test]
    fn overtaking_packet_passes_large_packets_only() {
        let mut world = World::default();
        world.push([
            packet(1, 10, false),
            packet(2, 10, true),
            packet(3, 20_000, false),
            packet(4, 10, true),
        ]);
        for expected in [&[4, 1][..], &[1], &[2], &[3]] {
            let mut sending = world.start();
            sending.sort_by_key(|id| *id != 4);
            assert_eq!(sending, expected);
            assert!(world.finish(expected[0], false));
        }
        assert!(world.queue.is_empty() && world.is_clear());
        world.push([packet(5, 20_000, false)]);
        world.start();
        world.push([packet(6, 10, true)]);
        assert_eq!(world.start(), [5, 6], "the large one is being sent");
    }

    #[test]
    fn cancelled_packet_is_neither_sent_nor_reported() {
        let mut world = World::default();
        world.push((1..=3).map(|id| packet(id, 20_000, false)));
        assert_eq!((world.start(), world.queue.large()), (vec![1], Some(1)));
        world.queue.cancel(1);
        world.queue.cancel(2);
        assert_eq!((world.queue.large(), world.queue.backlog()), (Some(3), 20_000));
        assert_eq!(world.start(), [3]);
        world.push([packet(4, 20_000, false), packet(5, 10, false)]);
        world.queue.cancel_large();
        assert_eq!(world.start(), [5]);
        world.push([packet(6, 10, false)]);
        assert_eq!(world.queue.cancel_queued(), [6]);
        assert!(world.finish(5, false));
        assert!(world.queue.is_empty() && world.is_clear());
    }

    #[test]
    fn sent_lossy_packet_is_reported_only_if_all_are() {
        let mut world = World::default();
        world.push([lossy(1), lossy(2)]);
        world.start();
        assert!(!world.finish(1, false));
        world.start();
        assert!(world.finish(2, true));
        assert!(world.queue.is_empty());
    }

    #[test]
    fn sec_r4_full_queue_refuses_packets_but_always_accepts_one() {
        let queue = SendQueue::default();
        let push = |packet| queue.push(packet, &sid());
        push(packet(1, CAP_BYTES + 1, false)).unwrap();
        assert_eq!(push(packet(2, 1, false)), Err(Full));
        push(packet(3, 10, true)).unwrap(); // a stop, for example
        assert_eq!(push(packet(4, RESERVE_BYTES, true)), Err(Full));
        assert_eq!(queue.take(Priority::Urgent).unwrap().id, 3);
        assert_eq!(queue.take(Priority::Ordered).unwrap().id, 1);
        for id in 0..CAP as u64 {
            assert_eq!(queue.is_long(), id >= LIMIT as u64);
            push(packet(id, 0, false)).unwrap();
        }
        assert_eq!(push(packet(9, 0, false)), Err(Full));
    }

    #[test]
    fn packets_of_an_earlier_connection_are_interrupted() {
        let queue = SendQueue::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut failed = || match queue.poll_sent(&mut cx, false) {
            Poll::Ready(sent) => sent.failed.into_iter().map(|it| (it.id, it.error.to_string())).collect(),
            Poll::Pending => Vec::new(),
        };
        let interrupted = |id| (id, SendError::Interrupted.to_string());
        queue.connect(sid());
        for packet in [packet(1, 10, false), packet(2, 10, false), lossy(3)] {
            queue.push(packet, &sid()).unwrap();
        }
        queue.take(Priority::Ordered).unwrap();
        queue.set_unacknowledged(5);
        queue.interrupt();
        assert_eq!(failed(), [interrupted(1), interrupted(2), interrupted(3)]);
        assert!(queue.is_empty() && queue.backlog() == 0);
        queue.push(packet(4, 10, false), &sid()).unwrap();
        queue.connect("PA_2".into());
        queue.push(packet(5, 10, false), &sid()).unwrap();
        assert_eq!(failed(), [interrupted(4), interrupted(5)]);
        queue.push(packet(6, 10, false), &"PA_2".into()).unwrap();
        queue.close(CloseReason::Closed);
        queue.push(packet(7, 10, false), &"PA_2".into()).unwrap();
        let closed = |id| (id, SendError::Closed(CloseReason::Closed).to_string());
        assert_eq!(
            (failed(), queue.is_empty()),
            (vec![closed(7)], false),
            "what is queued can still be sent"
        );
        queue.end(CloseReason::Closed);
        assert_eq!((failed(), queue.is_empty()), (vec![closed(6)], true));
    }

    #[tokio::test]
    async fn sender_that_waits_gets_the_result_of_its_packet() {
        let queue = SendQueue::default();
        for id in 0..CAP as u64 {
            queue.push(packet(id, 0, false), &sid()).unwrap();
        }
        let mut sending = pin!(queue.send(packet(0, 10, false), &sid()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert_eq!(queue.backlog(), 0, "the queue is full");
        queue.take(Priority::Ordered).unwrap();
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert_eq!(queue.backlog(), 10);
        queue.end(CloseReason::Closed);
        assert!(matches!(sending.await, Err(SendError::Closed(_))));
    }

    #[tokio::test]
    async fn dropped_sender_cancels_a_large_packet() {
        let queue = SendQueue::default();
        drop(queue.send(packet(1, 20_000, false), &sid()));
        drop(queue.send(packet(2, 10, false), &sid()));
        assert_eq!(queue.take(Priority::Ordered).unwrap().id, 2, "a small one is sent all the same");
        queue.done(Priority::Ordered, Ok(()));
        let sending = queue.send(packet(3, 20_000, false), &sid());
        assert_eq!(queue.take(Priority::Ordered).unwrap().id, 3);
        assert!(!queue.is_cancelled(Priority::Ordered));
        drop(sending);
        assert!(queue.is_cancelled(Priority::Ordered));
    }
}
