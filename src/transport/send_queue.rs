//! Queues the packets that wait to be sent on one connection, in order of priority.
//!
//! A participant has one such queue. Its owner, the driver or a `LiveKitTransport` that is used directly, pushes packets. The transport
//! takes them when the network has room and reports what became of them. A [`Pump`] does that for transports that only
//! implement [`Transport::send`].
//!
//! Reliable packets are sent in order, except that a small packet that [overtakes](Packet::overtakes) does not wait for larger
//! ones. Lossy packets wait for each other only.
//!
//! A packet of [`SendQueue::send`] that finds the queue full waits in a list, which has the order of the calls. Each change of the
//! queue moves the first ones into it as far as there is room, or fails those that are not accepted any more. So no sender has to
//! be woken to try again, and none can overtake another one.

#![cfg_attr(
    not(feature = "livekit"),
    expect(dead_code, reason = "only LiveKit rooms take packets by themselves and report their connections")
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::sync::oneshot;

use super::{
    Capabilities, CloseReason, Lane, Packet, SendError, Sid, Transport,
    outbox::{Outbox, Priority, Sending},
};

/// The queue. Clones refer to the same queue.
#[derive(Clone, Default)]
pub(crate) struct SendQueue(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    access: Access,
    outbox: Outbox<Tag>,
    waiting: Waiting,
    /// The bytes on the reliable lane that the transport has sent and the server has not acknowledged.
    unacknowledged: usize,
    owner: OwnerSide,
    transport: TransportSide,
    observers: Vec<Observer>,
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

/// The packets that wait until the queue has room. Their senders own them: a sender that is dropped takes its packet along, so that
/// there are never more than senders.
#[derive(Default)]
struct Waiting {
    /// The last ticket. Tickets have the order of the calls.
    last: u64,
    /// By ticket. Indexed by [`Priority`]: `Urgent` are small packets that overtake.
    lists: [BTreeMap<u64, Waiter>; 3],
    /// The tickets of the large packets.
    large: BTreeSet<u64>,
}

struct Waiter {
    queued: Queued,
    /// The connection that the packet is meant for.
    sid: Sid,
}

impl Waiting {
    fn add(&mut self, queued: Queued, sid: &Sid) -> u64 {
        self.last += 1;
        if is_large(&queued.packet) {
            self.large.insert(self.last);
        }
        let list = Self::list(&queued.packet) as usize;
        self.lists[list].insert(self.last, Waiter { queued, sid: sid.clone() });
        self.last
    }

    fn remove(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.lists.iter_mut().find_map(|list| list.remove(&ticket))?;
        self.large.remove(&ticket);
        Some(waiter)
    }

    /// The list of a packet. Whether a large packet is ahead of it is known only when it is queued.
    fn list(packet: &Packet) -> Priority {
        match packet.lane {
            Lane::Lossy => Priority::Lossy,
            Lane::Reliable if packet.overtakes && !is_large(packet) => Priority::Urgent,
            Lane::Reliable => Priority::Ordered,
        }
    }

    /// The ticket of the first packet in a list; `u64::MAX` if there is none.
    fn first(&self, list: Priority) -> u64 {
        self.lists[list as usize].keys().next().copied().unwrap_or(u64::MAX)
    }

    fn is_empty(&self) -> bool {
        self.lists.iter().all(BTreeMap::is_empty)
    }
}

/// A sender's claim to its packet.
struct Ticket {
    queue: SendQueue,
    /// Where the packet waits, if it was not queued at once.
    number: Option<u64>,
    /// Whether the packet is dropped with its sender, also if it was queued.
    is_large: bool,
    result: Option<oneshot::Receiver<Result<(), SendError>>>,
}

impl Ticket {
    async fn result(mut self) -> Result<(), SendError> {
        let result = match &mut self.result {
            Some(result) => result.await,
            None => return Err(SendError::Interrupted),
        };
        self.result = None; // nothing is left to withdraw
        result.unwrap_or(Err(SendError::Interrupted))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Closes the channel, by which the queue knows that its sender is gone.
        if self.result.take().is_some() && (self.is_large || self.number.is_some()) {
            self.queue.with(|state| state.withdraw(self.number, self.is_large));
        }
    }
}

/// The data that the send queue stores with each packet.
#[derive(Default)]
struct Tag {
    reply: Option<Reply>,
    /// The observers that get the result of the packet. Set when the transport takes it.
    observed: Vec<Observed>,
}

/// Is called with each packet that the transport takes, and with the sid of the connection.
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
        self.with(|state| state.push(Queued { packet, reply: None }, sid)).map_or(Ok(()), |_| Err(Full))
    }

    /// Queues a packet at once or, if the queue is full, as soon as it has room and all earlier packets of its kind are queued. The
    /// future returns the packet's result, which is not reported.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the packet if it is large or was not queued.
    pub(crate) fn send(
        &self,
        packet: Packet,
        sid: &Sid,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<> {
        let (reply, result) = oneshot::channel();
        let is_large = is_large(&packet);
        let number = self.with(|state| {
            let refused = state.push(Queued { packet, reply: Some(reply) }, sid)?;
            Some(state.waiting.add(refused, sid))
        });
        Ticket { queue: self.clone(), number, is_large, result: Some(result) }.result()
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
        self.lock().outbox.large()
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
        self.with(|state| state.take_queued().map(|it| it.0.id).collect())
    }

    /// The bytes on the reliable lane that are queued or unacknowledged.
    pub(crate) fn backlog(&self) -> usize {
        let state = self.lock();
        state.outbox.bytes().saturating_add(state.unacknowledged)
    }

    /// Returns true if no packet is queued or being sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().outbox.is_empty()
    }

    /// Returns true if so many packets are queued that the owner should not read more events. Bytes do not count, because the
    /// next event may be a stop.
    pub(crate) fn is_long(&self) -> bool {
        self.lock().outbox.is_long()
    }
}

/// The transport's side.
impl SendQueue {
    /// Accepts packets that are queued for the connection with this sid.
    pub(crate) fn connect(&self, sid: Sid) {
        self.change_access(Access::Connection(sid));
    }

    /// Fails all packets, and those that are queued from now on, with [`SendError::Interrupted`].
    pub(crate) fn interrupt(&self) {
        self.change_access(Access::Interrupted);
        self.fail_all();
    }

    /// Refuses packets from now on, and those that wait. Packets that are already queued can still be sent.
    pub(crate) fn close(&self, reason: CloseReason) {
        self.change_access(Access::Closed(reason));
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

    fn change_access(&self, access: Access) {
        self.with(|state| {
            state.access = access;
            state.fail_refused();
        });
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
        self.lock().outbox.order()
    }

    /// Takes the next packet of this priority, unless one is being sent. The transport must report it with
    /// [`done`](Self::done).
    pub(crate) fn take(&self, priority: Priority) -> Option<Packet> {
        self.with(|state| state.take(priority))
    }

    /// Returns true if the packet that is being sent is not wanted any more.
    pub(crate) fn is_cancelled(&self, priority: Priority) -> bool {
        self.lock().outbox.sending(priority).is_some_and(|it| it.is_unwanted())
    }

    /// Reports what became of the packet that was being sent.
    pub(crate) fn done(&self, priority: Priority, result: Result<(), SendError>) {
        self.with(|state| state.done(priority, result));
    }

    /// Calls `observer` with each packet that is taken from now on.
    pub(crate) fn observe(&self, observer: Observer) {
        self.lock().observers.push(observer);
    }
}

impl SendQueue {
    /// Changes the state, queues packets that wait for the room that this made, and then wakes whoever should see the change.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        state.admit();
        let wakers = state.take_due_wakers();
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Queues a packet. Returns it if it must wait.
    fn push(&mut self, queued: Queued, sid: &Sid) -> Option<Queued> {
        if let Some(error) = self.access.refusal(sid) {
            self.fail(queued.packet.id, queued.reply, error);
            return None;
        }
        if !self.may_queue(&queued.packet, u64::MAX) {
            return Some(queued);
        }
        self.queue(queued);
        None
    }

    /// Queues the packets that wait, as far as there is room.
    fn admit(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for list in [Priority::Urgent, Priority::Ordered, Priority::Urgent, Priority::Lossy] {
            while let Some((ticket, waiter)) = self.waiting.lists[list as usize].first_key_value() {
                let ticket = *ticket;
                if !self.may_queue(&waiter.queued.packet, ticket) {
                    break;
                }
                if let Some(waiter) = self.waiting.remove(ticket) {
                    self.queue(waiter.queued);
                }
            }
        }
    }

    /// Returns true if there is room for a packet, and no earlier one waits that must be sent before it.
    fn may_queue(&self, packet: &Packet, ticket: u64) -> bool {
        let first = |list| self.waiting.first(list);
        let is_next = match Waiting::list(packet) {
            Priority::Lossy => first(Priority::Lossy) >= ticket,
            Priority::Ordered => first(Priority::Ordered).min(first(Priority::Urgent)) >= ticket,
            Priority::Urgent => {
                let is_large_ahead =
                    self.outbox.has_large() || self.waiting.large.first().is_some_and(|it| *it < ticket);
                first(Priority::Urgent) >= ticket && (is_large_ahead || first(Priority::Ordered) >= ticket)
            }
        };
        is_next && !self.outbox.is_full(packet)
    }

    fn queue(&mut self, Queued { packet, reply }: Queued) {
        self.outbox.push(packet, Tag { reply, observed: Vec::new() });
        self.transport.has_changed = true;
    }

    fn take(&mut self, priority: Priority) -> Option<Packet> {
        let was_long = self.outbox.is_long();
        let packet = self.outbox.take(priority, |_, tag| !tag.is_abandoned());
        self.owner.is_shorter |= was_long && (packet.is_some() || !self.outbox.is_long());
        let packet = packet?;
        let sid = match &self.access {
            Access::Connection(sid) => Some(sid),
            _ => None,
        };
        if let Some(sending) = self.outbox.sending(priority) {
            sending.tag.observed =
                self.observers.iter().filter_map(|observer| observer(&packet, sid)).collect();
        }
        Some(packet)
    }

    fn done(&mut self, priority: Priority, result: Result<(), SendError>) {
        let Some(sending) = self.outbox.done(priority) else { return };
        self.owner.has_ended = true;
        if sending.is_unwanted() {
            return;
        }
        let (id, Tag { reply, observed }) = (sending.id, sending.tag);
        for observed in observed {
            observed(result.as_ref().err());
        }
        self.owner.sent.is_reliable |= result.is_ok() && priority != Priority::Lossy;
        match (reply, result) {
            (Some(reply), result) => drop(reply.send(result)),
            (None, Err(error)) => self.owner.sent.failed.push(Failure { id, error }),
            (None, Ok(())) => {}
        }
    }

    fn fail(&mut self, id: u64, reply: Option<Reply>, error: SendError) {
        match reply {
            Some(reply) => drop(reply.send(Err(error))),
            None => self.owner.sent.failed.push(Failure { id, error }),
        }
    }

    /// Fails the packets that wait, and that are not accepted any more.
    fn fail_refused(&mut self) {
        let lists = self.waiting.lists.iter();
        let refused = |(ticket, waiter): (&u64, &Waiter)| Some((*ticket, self.access.refusal(&waiter.sid)?));
        for (ticket, error) in lists.flatten().filter_map(refused).collect::<Vec<_>>() {
            if let Some(Waiter { queued: Queued { packet, reply }, .. }) = self.waiting.remove(ticket) {
                self.fail(packet.id, reply, error);
            }
        }
    }

    /// Fails all packets for the reason for which new ones are refused.
    fn fail_all(&mut self) {
        let error = self.access.error();
        for priority in Priority::ALL {
            self.done(priority, Err(error.clone()));
        }
        for (packet, Tag { reply, .. }) in self.take_queued().collect::<Vec<_>>() {
            self.fail(packet.id, reply, error.clone());
        }
        self.unacknowledged = 0;
    }

    fn take_queued(&mut self) -> impl Iterator<Item = (Packet, Tag)> + use<> {
        self.owner.has_ended = true;
        self.outbox.take_queued()
    }

    fn cancel_if(&mut self, is_meant: impl Fn(u64, bool) -> bool) {
        self.retain(|packet, is_large, _| !is_meant(packet.id, is_large));
        for priority in Priority::ALL {
            let sending = self.outbox.sending(priority);
            if let Some(sending) = sending.filter(|it| is_meant(it.id, it.is_large)) {
                sending.is_cancelled = true;
                sending.tag.observed.clear();
            }
        }
    }

    /// Drops the packet of a sender that is gone, unless it is small and was queued: from where it waits, or from
    /// the queue. The transport sees that one which is being sent [is unwanted](Sending::is_unwanted).
    fn withdraw(&mut self, number: Option<u64>, is_large: bool) {
        let has_waited = number.is_some_and(|number| self.waiting.remove(number).is_some());
        if is_large && !has_waited {
            self.retain(|_, is_large, tag| !is_large || !tag.is_abandoned());
        }
    }

    /// Keeps the queued packets for which this is true, and wakes the transport.
    fn retain(&mut self, is_kept: impl Fn(&Packet, bool, &Tag) -> bool) {
        self.owner.is_shorter |= self.outbox.is_long();
        self.outbox.retain(is_kept);
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

impl Tag {
    /// Returns true if nobody waits for the result any more. A small packet is sent all the same.
    fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::is_closed)
    }
}

impl Sending<Tag> {
    fn is_unwanted(&self) -> bool {
        self.is_cancelled || (self.is_large && self.tag.is_abandoned())
    }
}

fn is_large(packet: &Packet) -> bool {
    packet.is_streamed(Capabilities::MAX_PACKET)
}

fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
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
        for priority in Priority::ALL {
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
    use std::{collections::HashSet, pin::pin, sync::Mutex};

    use tokio::sync::oneshot;

    use super::*;
    use crate::transport::{
        Participant, TransportEvent,
        outbox::{CAP, CAP_BYTES, LIMIT, RESERVE_BYTES},
    };

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
            (state.outbox.bytes(), state.outbox.has_large()) == (0, false)
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

    /// Records the wake-ups of one sender.
    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// A sender that is polled only after it was woken.
    struct Sender {
        packet: Packet,
        sending: SendFuture,
        woken: Arc<Flag>,
    }

    impl Sender {
        fn new(queue: &SendQueue, packet: Packet, sid: &Sid) -> Self {
            let sending = Box::pin(queue.send(packet.clone(), sid));
            Self { packet, sending, woken: Arc::new(Flag(true.into())) }
        }

        /// Returns the result, if the sender was woken and is ready.
        fn poll(&mut self) -> Option<Result<(), SendError>> {
            if !self.woken.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
                return None;
            }
            match self.sending.as_mut().poll(&mut Context::from_waker(&Arc::clone(&self.woken).into())) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            }
        }
    }

    /// A queue that accepts no further small packets.
    fn full() -> SendQueue {
        let queue = SendQueue::default();
        queue.connect(sid());
        for id in 0..CAP as u64 {
            queue.push(packet(id, 0, false), &sid()).unwrap();
        }
        queue
    }

    #[test]
    fn every_change_of_the_queue_reaches_senders_that_wait() {
        type Change = fn(&SendQueue);
        let takes: Change = |queue| drop(queue.take(Priority::Ordered));
        let (queued, failed) = (Some(11), None);
        let changes: [(&str, Change, Option<usize>); 9] = [
            ("take", takes, queued),
            ("cancel", |queue| queue.cancel(7), queued),
            ("cancel_queued", |queue| drop(queue.cancel_queued()), queued),
            ("interrupt", SendQueue::interrupt, failed),
            ("close", |queue| queue.close(CloseReason::Closed), failed),
            ("end", |queue| queue.end(CloseReason::Closed), failed),
            ("end_if_open", |queue| queue.end_if_open(CloseReason::Closed), failed),
            ("another connection", |queue| queue.connect("PA_2".into()), failed),
            ("the same connection", |queue| queue.connect(sid()), Some(0)),
        ];
        for (name, change, expected) in changes {
            let queue = full();
            let mut sender = Sender::new(&queue, packet(9_999, 11, false), &sid());
            assert!(sender.poll().is_none(), "{name}");
            change(&queue);
            match (expected, sender.poll()) {
                (Some(bytes), None) => assert_eq!(queue.backlog(), bytes, "{name}"),
                (None, Some(Err(_))) => {}
                (_, result) => panic!("{name}: {result:?}"),
            }
        }
    }

    #[test]
    fn waiting_packets_are_queued_in_the_order_of_the_calls() {
        let queue = full();
        let mut senders: Vec<_> =
            (0..9).map(|n| Sender::new(&queue, packet(10_000 + n, 1, false), &sid())).collect();
        // A packet for which there is room now does not overtake the ones that wait.
        queue.take(Priority::Ordered).unwrap();
        queue.done(Priority::Ordered, Ok(()));
        assert_eq!(queue.push(packet(20_000, 0, false), &sid()), Err(Full));
        drop(senders.remove(3));
        let mut taken = Vec::new();
        while let Some(packet) = queue.take(Priority::Ordered) {
            queue.done(Priority::Ordered, Ok(()));
            taken.push(packet.id);
        }
        let expected: Vec<_> = (1..CAP as u64).chain((10_000..10_009).filter(|id| *id != 10_003)).collect();
        assert_eq!(taken, expected);
        assert!(senders.iter_mut().all(|sender| matches!(sender.poll(), Some(Ok(())))));
    }

    #[test]
    fn stop_waits_for_no_large_packet_and_passes_no_small_one() {
        let queue = SendQueue::default();
        let large = |id| Sender::new(&queue, packet(id, CAP_BYTES, false), &sid());
        let _senders = [large(1), large(2)];
        let stop = Sender::new(&queue, packet(3, 10, true), &sid());
        assert_eq!(queue.take(Priority::Urgent).map(|it| it.id), Some(3));
        drop(stop);
        let queue = full();
        let mut ids = Vec::new();
        let senders: Vec<_> = [(1, false), (2, true), (3, false)]
            .map(|(id, overtakes)| Sender::new(&queue, packet(id + 50_000, 10, overtakes), &sid()))
            .into();
        while let Some(packet) = queue.take(Priority::Ordered) {
            queue.done(Priority::Ordered, Ok(()));
            ids.extend(Some(packet.id).filter(|id| *id > 50_000));
        }
        assert_eq!((ids, senders.len()), (vec![50_001, 50_002, 50_003], 3));
    }

    /// SplitMix64.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = self.0;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (((bits ^ (bits >> 31)) >> 11) as usize) % limit
        }
    }

    /// A queue near its limits, its senders, and what must hold.
    struct Brim {
        queue: SendQueue,
        draw: Draw,
        sid: Sid,
        connections: u32,
        last: u64,
        senders: Vec<Sender>,
        /// The packets that the transport has taken and not reported, by priority.
        sending: [Option<u64>; 3],
        sent: HashSet<u64>,
        /// The last packet taken in each lane; overtaking packets are not in order with others.
        order: [u64; 3],
        waited: usize,
    }

    impl Brim {
        fn new(seed: u64) -> Self {
            let (queue, draw, sid) = (full(), Draw(seed), sid());
            let (senders, sent) = (Vec::new(), HashSet::new());
            let last = CAP as u64;
            Self {
                queue,
                draw,
                sid,
                connections: 1,
                last,
                senders,
                sending: [None; 3],
                sent,
                order: [0; 3],
                waited: 0,
            }
        }

        fn step(&mut self) {
            match self.draw.below(100) {
                0..40 => self.send(),
                40..55 => self.take(),
                55..70 => self.report(),
                70..88 => self.poll(),
                88..94 if !self.senders.is_empty() => {
                    let dropped = self.draw.below(self.senders.len());
                    self.senders.swap_remove(dropped);
                }
                94 => self.queue.cancel(self.last - self.draw.below(20) as u64),
                95 if self.draw.below(8) == 0 => self.reconnect(),
                _ => {}
            }
        }

        fn send(&mut self) {
            self.last += 1;
            let (size, overtakes) = match self.draw.below(12) {
                0..8 => (0, false),
                8..11 => (9, true),
                _ => (CAP_BYTES / 3, false),
            };
            let mut packet = packet(self.last, size, overtakes);
            if self.draw.below(3) == 0 && size == 0 {
                packet.lane = Lane::Lossy;
            }
            let sender = Sender::new(&self.queue, packet, &self.sid);
            self.waited += usize::from(!self.queue.lock().waiting.is_empty());
            self.senders.push(sender);
        }

        fn take(&mut self) {
            for priority in self.queue.order() {
                let Some(packet) = self.queue.take(priority) else { continue };
                self.sending[priority as usize] = Some(packet.id);
                if !packet.overtakes {
                    let last = mem::replace(&mut self.order[priority as usize], packet.id);
                    assert!(last < packet.id || last == 0, "{} before {}", last, packet.id);
                }
            }
        }

        fn report(&mut self) {
            for priority in Priority::ALL {
                if let Some(id) = self.sending[priority as usize].take() {
                    if !self.queue.is_cancelled(priority) {
                        self.sent.insert(id);
                    }
                    self.queue.done(priority, Ok(()));
                }
            }
        }

        fn poll(&mut self) {
            let sent = &self.sent;
            self.senders.retain_mut(|sender| match sender.poll() {
                None => true,
                Some(result) => {
                    assert_eq!(result.is_ok(), sent.contains(&sender.packet.id), "{:?}", sender.packet.id);
                    false
                }
            });
        }

        fn reconnect(&mut self) {
            self.queue.interrupt();
            (self.sending, self.order) = ([None; 3], [0; 3]);
            self.poll();
            assert!(self.senders.is_empty(), "a sender hangs after an interruption");
            self.connections += 1;
            self.sid = format!("PA_{}", self.connections).into();
            self.queue.connect(self.sid.clone());
            for _ in 0..CAP {
                self.last += 1;
                self.queue.push(packet(self.last, 0, false), &self.sid).unwrap();
            }
        }
    }

    #[test]
    fn senders_near_the_limits_keep_their_order_and_none_hangs() {
        let mut waited = 0;
        for seed in 0..48 {
            let mut brim = Brim::new(seed);
            for _ in 0..1_500 {
                brim.step();
            }
            while !brim.queue.is_empty() {
                brim.take();
                brim.report();
            }
            brim.poll();
            assert!(brim.senders.is_empty(), "seed {seed}: {} senders hang", brim.senders.len());
            let state = brim.queue.lock();
            assert!(state.waiting.is_empty() && state.waiting.large.is_empty(), "seed {seed}");
            assert_eq!((state.outbox.bytes(), state.outbox.has_large()), (0, false), "seed {seed}");
            waited += brim.waited;
        }
        assert!(waited > 10_000, "only {waited} senders had to wait");
    }

    #[test]
    fn sender_that_waits_costs_nothing_after_it_was_dropped() {
        let queue = full();
        for id in 0..100_000 {
            drop(Sender::new(&queue, packet(id, 1, false), &sid()));
        }
        assert!(queue.lock().waiting.is_empty());
        queue.take(Priority::Ordered).unwrap();
        queue.push(packet(1, 0, false), &sid()).unwrap();
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

    #[test]
    fn large_packet_whose_sender_is_gone_takes_no_room() {
        let queue = SendQueue::default();
        queue.push(packet(1, 20_000, false), &sid()).unwrap();
        assert_eq!(queue.take(Priority::Ordered).unwrap().id, 1, "the others are behind it");
        let [second, third] = [2, 3].map(|id| queue.send(packet(id, CAP_BYTES / 2, false), &sid()));
        let waits = queue.send(packet(4, 20_000, false), &sid());
        assert_eq!((queue.backlog(), queue.lock().waiting.is_empty()), (CAP_BYTES, false));
        drop(second);
        assert_eq!((queue.backlog(), queue.lock().waiting.is_empty()), (CAP_BYTES / 2 + 20_000, true));
        drop((third, waits));
        assert_eq!(queue.backlog(), 0);
        assert!(queue.cancel_queued().is_empty());
    }

    /// Returns whether the transport has a change to look at.
    fn has_changed(queue: &SendQueue) -> bool {
        pin!(queue.changed()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn transport_learns_of_each_packet_that_is_not_wanted_any_more() {
        let queue = SendQueue::default();
        let sending = queue.send(packet(1, 20_000, false), &sid());
        queue.push(packet(2, 20_000, false), &sid()).unwrap();
        queue.take(Priority::Ordered).unwrap();
        assert!(has_changed(&queue) && !has_changed(&queue));
        queue.cancel(2);
        assert!(has_changed(&queue) && !has_changed(&queue), "it was queued");
        drop(sending);
        assert!(has_changed(&queue) && !has_changed(&queue), "it is being sent");
    }

    /// The owner reads nothing while the queue is long.
    #[test]
    fn owner_learns_that_a_long_queue_got_shorter() {
        let is_due =
            |queue: &SendQueue| queue.poll_sent(&mut Context::from_waker(Waker::noop()), false).is_ready();
        let queue = SendQueue::default();
        (0..LIMIT as u64).for_each(|id| queue.push(lossy(id), &sid()).unwrap());
        assert!(queue.is_long() && !is_due(&queue));
        queue.take(Priority::Lossy).unwrap();
        assert!(is_due(&queue) && !queue.is_long() && !is_due(&queue));
        (0..LIMIT as u64).for_each(|id| queue.push(packet(id, 20_000, false), &sid()).unwrap());
        let last = queue.send(packet(LIMIT as u64, 20_000, false), &sid());
        assert!(!is_due(&queue));
        drop(last);
        assert!(is_due(&queue));
    }
}
