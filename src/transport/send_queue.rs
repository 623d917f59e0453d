//! The packets that wait to be sent on one connection, in order of priority.
//!
//! State: the queued packets, and up to one packet per lane that the transport is sending. Inputs: [`push`](SendQueue::push) and
//! [`cancel`](SendQueue::cancel). Output: [`next`](SendQueue::next) reports each packet that was sent or failed. The owner is
//! the participant's driver.
//!
//! Reliable packets are sent in order, except that a small packet that [overtakes](Packet::overtakes) does not wait for larger
//! ones. Lossy packets wait for each other only.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use super::{Capabilities, Lane, Packet, SendError, Transport};

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

/// The queue.
#[derive(Default)]
pub(crate) struct SendQueue {
    ordered: VecDeque<Packet>,
    /// Reliable packets that need not wait for large ones.
    urgent: VecDeque<Packet>,
    lossy: VecDeque<Packet>,
    /// The bytes in `ordered` and `urgent`.
    bytes: usize,
    /// The number of large packets in `ordered`.
    large: usize,
    sending: [Option<Sending>; 3],
}

/// The places in `SendQueue::sending`, in order of priority. A reliable packet that can be sent at once precedes a lossy one:
/// progress precedes its result.
const URGENT: usize = 0;
const ORDERED: usize = 1;
const LOSSY: usize = 2;

/// A packet that the transport is sending.
struct Sending {
    id: u64,
    large: bool,
    sent: Pin<Box<dyn Future<Output = Result<(), SendError>> + Send>>,
}

/// What became of a packet.
#[derive(Debug)]
pub(crate) struct Report {
    /// The packet's id.
    pub(crate) id: u64,
    /// The lane that it was sent on.
    pub(crate) lane: Lane,
    /// Whether it was sent.
    pub(crate) result: Result<(), SendError>,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl SendQueue {
    /// Queues a packet.
    ///
    /// # Errors
    /// [`Full`]: the packet is dropped, and not reported.
    pub(crate) fn push(&mut self, packet: Packet) -> Result<(), Full> {
        if packet.lane == Lane::Lossy {
            if self.lossy.len() >= CAP {
                return Err(Full);
            }
            self.lossy.push_back(packet);
            return Ok(());
        }
        let bytes = self.bytes + packet.payload.len();
        let (cap, cap_bytes) = match packet.overtakes && !is_large(&packet) {
            true => (CAP + RESERVE, CAP_BYTES + RESERVE_BYTES),
            false => (CAP, CAP_BYTES),
        };
        let queued = self.ordered.len() + self.urgent.len();
        if queued >= cap || (bytes > cap_bytes && queued > 0) {
            return Err(Full);
        }
        self.bytes = bytes;
        let is_large_ahead = self.large > 0 || self.sending[ORDERED].as_ref().is_some_and(|it| it.large);
        if packet.overtakes && is_large_ahead {
            self.urgent.push_back(packet);
        } else {
            self.large += usize::from(is_large(&packet));
            self.ordered.push_back(packet);
        }
        Ok(())
    }

    /// Starts sending the next packets. Call it after [`push`](Self::push), [`cancel`](Self::cancel) and [`next`](Self::next).
    pub(crate) fn start(&mut self, transport: &impl Transport) {
        for place in [URGENT, LOSSY, ORDERED] {
            if self.sending[place].is_none()
                && let Some(packet) = self.pop(place)
            {
                let (id, large) = (packet.id, is_large(&packet));
                self.sending[place] = Some(Sending { id, large, sent: Box::pin(transport.send(packet)) });
            }
        }
    }

    fn pop(&mut self, place: usize) -> Option<Packet> {
        let packet = match place {
            URGENT => self.urgent.pop_front()?,
            ORDERED => self.ordered.pop_front()?,
            _ => return self.lossy.pop_front(),
        };
        self.bytes -= packet.payload.len();
        self.large -= usize::from(is_large(&packet));
        Some(packet)
    }

    /// Waits until a packet was sent or failed. Without `all`, a sent lossy packet is reported only if another one waits: most
    /// packets are lossy, and nothing depends on when they were sent.
    ///
    /// # Cancel safety
    /// Dropping the future loses no report.
    pub(crate) async fn next(&mut self, all: bool) -> Report {
        poll_fn(|cx| self.poll_next(cx, all)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, all: bool) -> Poll<Report> {
        for (n, place) in self.sending.iter_mut().enumerate() {
            if let Some(Sending { id, sent, .. }) = place
                && let Poll::Ready(result) = sent.as_mut().poll(cx)
            {
                let (id, lane) = (*id, if n == LOSSY { Lane::Lossy } else { Lane::Reliable });
                *place = None;
                if all || result.is_err() || lane == Lane::Reliable || !self.lossy.is_empty() {
                    return Poll::Ready(Report { id, lane, result });
                }
            }
        }
        Poll::Pending
    }

    /// The id of the large packet that is being sent, or else of the one that is sent next. Its sender may no longer want it.
    pub(crate) fn large(&self) -> Option<u64> {
        let sending = self.sending[ORDERED].as_ref().filter(|it| it.large).map(|it| it.id);
        sending.or_else(|| self.ordered.front().filter(|packet| is_large(packet)).map(|packet| packet.id))
    }

    /// Drops a packet, which is not reported. If a part of it was sent, the transport notifies its receivers.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.retain(|packet| packet.id != id);
        for place in &mut self.sending {
            place.take_if(|sending| sending.id == id);
        }
    }

    /// Drops all large packets, which are not reported.
    pub(crate) fn cancel_large(&mut self) {
        self.retain(|packet| !is_large(packet));
        self.sending[ORDERED].take_if(|sending| sending.large);
    }

    /// Drops all queued packets and returns their ids. The transport reports those that it is sending.
    pub(crate) fn cancel_queued(&mut self) -> Vec<u64> {
        let queues = [&mut self.ordered, &mut self.urgent, &mut self.lossy];
        let ids = queues.into_iter().flat_map(std::mem::take).map(|packet| packet.id).collect();
        (self.bytes, self.large) = (0, 0);
        ids
    }

    fn retain(&mut self, keep: impl Fn(&Packet) -> bool) {
        for queue in [&mut self.ordered, &mut self.urgent, &mut self.lossy] {
            queue.retain(&keep);
        }
        self.bytes = self.ordered.iter().chain(&self.urgent).map(|packet| packet.payload.len()).sum();
        self.large = self.ordered.iter().filter(|packet| is_large(packet)).count();
    }

    /// The size of the queued reliable packets, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if no packet is queued or being sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_idle() && self.ordered.is_empty() && self.urgent.is_empty() && self.lossy.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.sending.iter().all(Option::is_none)
    }

    /// Returns true if so many packets are queued that the owner should not read more events. Bytes do not count, because the
    /// next event may be a stop.
    pub(crate) fn is_long(&self) -> bool {
        self.ordered.len() + self.urgent.len() >= LIMIT || self.lossy.len() >= LIMIT
    }
}

/// Returns true if a packet is sent in parts, between which others can be sent.
fn is_large(packet: &Packet) -> bool {
    packet.payload.len() > Capabilities::MAX_PACKET
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

    #[tokio::test]
    async fn overtaking_packet_passes_large_packets_only() {
        let (mut queue, transport) = (SendQueue::default(), Manual::default());
        for (id, size, overtakes) in [(1, 10, false), (2, 10, true), (3, 20_000, false), (4, 10, true)] {
            queue.push(packet(id, size, overtakes)).unwrap();
        }
        for expected in [&[4, 1][..], &[1], &[2], &[3]] {
            queue.start(&transport);
            let mut sending = transport.sending();
            sending.sort_by_key(|id| *id != 4);
            assert_eq!(sending, expected);
            transport.finish(expected[0]);
            assert_eq!(queue.next(false).await.id, expected[0]);
        }
        assert!(queue.is_empty() && queue.bytes == 0 && queue.large == 0);
        queue.push(packet(5, 20_000, false)).unwrap();
        queue.start(&transport);
        queue.push(packet(6, 10, true)).unwrap();
        queue.start(&transport);
        assert_eq!(transport.sending(), [5, 6], "the large one is being sent");
    }

    #[tokio::test]
    async fn cancelled_packet_is_neither_sent_nor_reported() {
        let (mut queue, transport) = (SendQueue::default(), Manual::default());
        for id in 1..=3 {
            queue.push(packet(id, 20_000, false)).unwrap();
        }
        queue.start(&transport);
        assert_eq!((queue.large(), transport.sending()), (Some(1), vec![1]));
        queue.cancel(1);
        queue.cancel(2);
        assert_eq!((queue.large(), queue.bytes), (Some(3), 20_000));
        queue.start(&transport);
        assert_eq!(transport.sending(), [3]);
        queue.push(packet(4, 20_000, false)).unwrap();
        queue.push(packet(5, 10, false)).unwrap();
        queue.cancel_large();
        queue.start(&transport);
        assert_eq!(transport.sending(), [5]);
        queue.push(packet(6, 10, false)).unwrap();
        assert_eq!(queue.cancel_queued(), [6]);
        transport.finish(5);
        assert_eq!(queue.next(false).await.id, 5);
        assert!(queue.is_empty() && queue.bytes == 0 && queue.large == 0);
    }

    #[tokio::test]
    async fn sent_lossy_packet_is_reported_if_another_one_waits() {
        let (mut queue, transport) = (SendQueue::default(), Manual::default());
        for id in 1..=2 {
            queue.push(lossy(id)).unwrap();
        }
        queue.start(&transport);
        transport.finish(1);
        assert_eq!(queue.next(false).await.id, 1);
        queue.start(&transport);
        transport.finish(2);
        let mut next = Box::pin(queue.next(false));
        assert!(poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await);
        drop(next);
        assert!(queue.is_empty());
        queue.push(lossy(3)).unwrap();
        queue.start(&transport);
        transport.finish(3);
        assert_eq!(queue.next(true).await.id, 3);
    }

    #[test]
    fn sec_r4_full_queue_refuses_packets_but_always_accepts_one() {
        let mut queue = SendQueue::default();
        queue.push(packet(1, CAP_BYTES + 1, false)).unwrap();
        assert_eq!(queue.push(packet(2, 1, false)), Err(Full));
        queue.push(packet(3, 10, true)).unwrap(); // a stop, for example
        assert_eq!(queue.push(packet(4, RESERVE_BYTES, true)), Err(Full));
        assert_eq!(queue.pop(URGENT).unwrap().id, 3);
        assert_eq!(queue.pop(ORDERED).unwrap().id, 1);
        for id in 0..CAP as u64 {
            assert_eq!(queue.is_long(), id >= LIMIT as u64);
            queue.push(packet(id, 0, false)).unwrap();
        }
        assert_eq!(queue.push(packet(9, 0, false)), Err(Full));
    }
}
