//! The task that owns a joined room: signalling, peer connection, and the queues to and from the user.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use livekit_protocol::{DataPacket, ParticipantInfo, participant_info};
use prost::Message;
use tokio::sync::{mpsc, oneshot};

use super::{
    backlog::{Backlog, Queued},
    health::{Health, Verdict},
    packet::{self, Skipped},
    participants::{self, Participants},
    peer_connection::{Admit, Error, PeerConnection},
    sequence,
    signal::{ServerEvent, Signal},
};
use crate::{
    link::{CloseReason, Lane, Participant},
    transport::{SendError, TransportEvent},
};

/// How many packets of one lane wait to be written, beyond the one that is.
pub(super) const LANE_QUEUE: usize = 32;
/// How many events wait for the user in the channel to it.
pub(super) const EVENT_QUEUE: usize = 256;
/// How many bytes of payload wait for the user before the sender is slowed down.
const INBOX_BYTES: usize = 4 << 20;
/// How many events wait for the user before the sender is slowed down.
const INBOX_EVENTS: usize = 4096;
/// How long leaving waits for what was handed over to be acknowledged.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// A packet on its way out, and who waits for it.
pub(super) struct Outgoing {
    pub(super) packet: DataPacket,
    pub(super) written: oneshot::Sender<Result<(), SendError>>,
    /// It counts as waiting until it is written.
    pub(super) waits: Queued,
}

/// What the user asks of the task. Dropping the sender means: leave, without waiting.
pub(super) struct Leave {
    pub(super) left: oneshot::Sender<()>,
}

/// The user's ends of the queues, seen from here.
pub(super) struct Queues {
    pub(super) reliable: mpsc::Receiver<Outgoing>,
    pub(super) lossy: mpsc::Receiver<Outgoing>,
    pub(super) leave: mpsc::Receiver<Leave>,
    pub(super) events: mpsc::Sender<TransportEvent>,
}

/// What the user may look at any time.
pub(super) struct Shared {
    state: Mutex<State>,
    /// What waits on the reliable lane.
    pub(super) backlog: Backlog,
}

/// The state of [`Shared`].
pub(super) struct State {
    pub(super) local: Participant,
    pub(super) can_publish_data: bool,
    pub(super) present: Vec<Participant>,
    pub(super) token: String,
    pub(super) closed: Option<CloseReason>,
}

impl Shared {
    pub(super) fn new(state: State) -> Self {
        Self { state: Mutex::new(state), backlog: Backlog::default() }
    }

    /// Looks at it or changes it; never across an await.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why nothing can be sent any more.
    pub(super) fn closed(&self) -> SendError {
        let reason = self.with(|state| state.closed.clone());
        SendError::Closed(
            reason.unwrap_or_else(|| CloseReason::ConnectionLost("the room's task ended".into())),
        )
    }
}

/// Whether our token lets us publish data. Without a permission the server is the one to say.
pub(super) fn can_publish_data(info: &ParticipantInfo) -> bool {
    info.permission.as_ref().is_none_or(|may| may.can_publish_data)
}

/// A joined room.
pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    pub(super) signal: Signal,
    pub(super) peer: PeerConnection,
    pub(super) participants: Participants,
    pub(super) queues: Queues,
}

impl Task {
    /// Runs until the room is left or lost.
    pub(super) async fn run(self) {
        let now = Instant::now();
        let Self { shared, signal, peer, participants, queues } = self;
        let Queues { reliable, lossy, leave, events } = queues;
        let mut running = Running {
            shared,
            signal,
            peer,
            participants,
            lanes: [Outbox::new(Lane::Lossy, lossy), Outbox::new(Lane::Reliable, reliable)],
            health: Health::new(now),
            numbers: sequence::Outgoing::default(),
            heard: sequence::Incoming::default(),
            inbox: Inbox::default(),
            skipped: 0,
        };
        let (reason, left) = running.run(leave, &events).await;
        tracing::debug!(%reason, "the room was left");
        let Running { shared, signal, mut peer, lanes, mut inbox, .. } = running;
        shared.with(|state| state.closed = Some(reason.clone()));
        // Who waits for a send hears of the end now, and not only once all events are read: it may be the
        // same one that reads them.
        drop(lanes);
        signal.leave().await;
        peer.close();
        if let Some(left) = left {
            let _ = left.send(());
        }
        inbox.push(TransportEvent::Closed(reason));
        while let Some(event) = inbox.pop() {
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
}

struct Running {
    shared: Arc<Shared>,
    signal: Signal,
    peer: PeerConnection,
    participants: Participants,
    /// The lossy one, whose packets pass those of the other, and the reliable one.
    lanes: [Outbox; 2],
    health: Health,
    numbers: sequence::Outgoing,
    heard: sequence::Incoming,
    inbox: Inbox,
    /// Messages that were no user packets.
    skipped: u64,
}

/// An orderly end under way.
struct Leaving {
    left: oneshot::Sender<()>,
    until: Instant,
}

impl Running {
    async fn run(
        &mut self,
        mut leave: mpsc::Receiver<Leave>,
        events: &mpsc::Sender<TransportEvent>,
    ) -> (CloseReason, Option<oneshot::Sender<()>>) {
        let mut leaving: Option<Leaving> = None;
        loop {
            if let Err(error) = self.write_all() {
                self.health.handle_peer_lost(Instant::now(), &error.to_string());
            }
            self.take_messages();
            if let Some(reason) = self.take_verdicts() {
                return (reason, leaving.map(|leaving| leaving.left));
            }
            if let Some(Leaving { until, .. }) = leaving
                && (self.is_flushed() || Instant::now() >= until)
            {
                return (CloseReason::Closed, leaving.map(|leaving| leaving.left));
            }

            let due = self.health.poll_timeout();
            let until = leaving.as_ref().map_or(due, |leaving| leaving.until.min(due));
            let (full, waiting) = (self.inbox.is_full(), !self.inbox.is_empty());
            let admit = if full { Admit::KeepAlive } else { Admit::All };
            let [lossy, reliable] = &mut self.lanes;
            tokio::select! {
                // The signalling's own queue has no cap, but the server has little to say there.
                event = self.signal.next(), if !full => {
                    if let Some(Verdict::Closed(reason)) = self.handle_server(event) {
                        return (reason, leaving.map(|leaving| leaving.left));
                    }
                }
                permit = events.reserve(), if waiting => match permit {
                    Ok(permit) => if let Some(event) = self.inbox.pop() { permit.send(event) },
                    Err(_) => return (CloseReason::Closed, None),
                },
                asked = leave.recv(), if leaving.is_none() => match asked {
                    None => return (CloseReason::Closed, None),
                    Some(Leave { left }) => {
                        self.shared.with(|state| state.closed = Some(CloseReason::Closed));
                        reliable.queue.close();
                        lossy.queue.close();
                        leaving = Some(Leaving { left, until: Instant::now() + FLUSH_LIMIT });
                    }
                },
                more = reliable.queue.recv(), if reliable.is_idle() => reliable.take(more),
                more = lossy.queue.recv(), if lossy.is_idle() => lossy.take(more),
                woken = self.peer.wait(until) => {
                    if let Err(error) = self.peer.handle(woken, admit) {
                        self.health.handle_peer_lost(Instant::now(), &error.to_string());
                    }
                    self.health.handle_heard(self.peer.heard());
                }
            }
        }
    }

    /// Writes what there is room for.
    fn write_all(&mut self) -> Result<(), Error> {
        for lane in &mut self.lanes {
            while let Some(Outgoing { packet, .. }) = &mut lane.next {
                if lane.lane == Lane::Reliable && packet.sequence == 0 {
                    packet.sequence = self.numbers.next();
                }
                match self.peer.write(lane.lane, &packet.encode_to_vec()) {
                    Ok(false) => break,
                    Ok(true) => lane.done(Ok(())),
                    Err(error) => {
                        let text = error.to_string();
                        lane.done(Err(SendError::Other(error.into())));
                        return Err(text.into());
                    }
                }
                // All lossy packets that wait go before the next reliable one.
                if lane.lane == Lane::Lossy {
                    lane.next = lane.queue.try_recv().ok();
                }
            }
        }
        self.shared.backlog.set_unacknowledged(self.peer.unacknowledged());
        Ok(())
    }

    fn is_flushed(&mut self) -> bool {
        self.lanes.iter().all(Outbox::is_done) && self.peer.unacknowledged() == 0
    }

    /// Takes what came on the channels.
    fn take_messages(&mut self) {
        let now = Instant::now();
        while let Some((lane, bytes)) = self.peer.poll_message() {
            self.handle_message(now, lane, &bytes);
        }
        if let Some(why) = self.peer.lost() {
            self.health.handle_peer_lost(now, why);
        }
    }

    fn handle_message(&mut self, now: Instant, lane: Lane, bytes: &[u8]) {
        match packet::incoming(lane, bytes) {
            Ok(heard) => {
                let sid = heard.incoming.from.sid().as_str();
                if lane == Lane::Lossy || self.heard.accept(now, sid, heard.sequence) {
                    self.inbox.push(TransportEvent::Packet(heard.incoming));
                }
            }
            Err(why @ (Skipped::Malformed | Skipped::OtherKind)) => {
                self.skipped += 1;
                tracing::debug!(?why, size = bytes.len(), skipped = self.skipped, "a message was skipped");
            }
        }
    }

    fn take_verdicts(&mut self) -> Option<CloseReason> {
        let now = Instant::now();
        while let Some(verdict) = self.health.poll(now) {
            match verdict {
                Verdict::Closed(reason) => return Some(reason),
                Verdict::Link(link) => {
                    tracing::debug!(?link, "the link changed");
                    self.inbox.push(TransportEvent::Link(link));
                }
            }
        }
        None
    }

    fn handle_server(&mut self, event: ServerEvent) -> Option<Verdict> {
        match event {
            ServerEvent::Participants(infos) => self.handle_participants(&infos),
            ServerEvent::Token(token) => self.shared.with(|state| state.token = token),
            ServerEvent::Candidate(line) => self.peer.handle_candidate(&line),
            ServerEvent::Leave(reason) => return self.health.handle_leave(reason),
            ServerEvent::Lost(why) => return self.health.handle_signal_lost(&why),
            // We offered once; a second answer answers nothing.
            ServerEvent::Answer(_) => {}
        }
        None
    }

    fn handle_participants(&mut self, infos: &[ParticipantInfo]) {
        let own = self.shared.with(|state| state.local.peer().clone());
        for info in infos {
            if own.sid() == &*info.sid {
                let local = participants::participant(info);
                self.shared.with(|state| {
                    state.local = local.clone();
                    state.can_publish_data = can_publish_data(info);
                });
                // The server tells us of ourselves on the same tick as it tells the others.
                if info.state() == participant_info::State::Active {
                    self.inbox.push(TransportEvent::Joined(local));
                }
            } else if own.identity() != &*info.identity {
                for event in self.participants.update(info) {
                    self.inbox.push(event);
                }
            }
        }
        let present = self.participants.list();
        self.shared.with(|state| state.present = present);
    }
}

/// The packets of one lane: those that wait, and the one that is being written.
struct Outbox {
    lane: Lane,
    queue: mpsc::Receiver<Outgoing>,
    next: Option<Outgoing>,
    ended: bool,
}

impl Outbox {
    fn new(lane: Lane, queue: mpsc::Receiver<Outgoing>) -> Self {
        Self { lane, queue, next: None, ended: false }
    }

    fn is_idle(&self) -> bool {
        self.next.is_none() && !self.ended
    }

    fn is_done(&self) -> bool {
        self.next.is_none() && self.ended
    }

    fn take(&mut self, more: Option<Outgoing>) {
        self.ended = more.is_none();
        self.next = more;
    }

    fn done(&mut self, result: Result<(), SendError>) {
        if let Some(outgoing) = self.next.take() {
            drop(outgoing.waits);
            // Whoever asked may have gone away.
            let _ = outgoing.written.send(result);
        }
    }
}

/// What waits for the user.
#[derive(Default)]
struct Inbox {
    events: VecDeque<TransportEvent>,
    bytes: usize,
}

impl Inbox {
    fn push(&mut self, event: TransportEvent) {
        self.bytes += size(&event);
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<TransportEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Beyond this the network's own brakes are used, so what one reading brings at most is on top.
    fn is_full(&self) -> bool {
        self.bytes >= INBOX_BYTES || self.events.len() >= INBOX_EVENTS
    }
}

fn size(event: &TransportEvent) -> usize {
    match event {
        TransportEvent::Packet(packet) => packet.payload.len() + packet.topic.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        link::{LinkState, Peer},
        transport::Incoming,
    };

    fn packet(size: usize) -> TransportEvent {
        TransportEvent::Packet(Incoming::new(Peer::new("a", "PA_1"), Lane::Reliable, "", vec![0; size]))
    }

    #[test]
    fn the_inbox_is_full_by_bytes_or_by_number_and_empties_again() {
        let mut inbox = Inbox::default();
        inbox.push(packet(INBOX_BYTES - 1));
        assert!(!inbox.is_full());
        inbox.push(packet(1));
        assert!(inbox.is_full());
        while inbox.pop().is_some() {}
        assert_eq!(inbox.bytes, 0);
        for _ in 0..INBOX_EVENTS {
            assert!(!inbox.is_full());
            inbox.push(TransportEvent::Link(LinkState::Up));
        }
        assert!(inbox.is_full());
    }

    #[tokio::test]
    async fn an_outbox_holds_one_packet_until_it_is_written() {
        let (sender, queue) = mpsc::channel(LANE_QUEUE);
        let mut outbox = Outbox::new(Lane::Reliable, queue);
        let (written, answer) = oneshot::channel();
        let waits = Backlog::default().queue(0);
        assert!(sender.try_send(Outgoing { packet: DataPacket::default(), written, waits }).is_ok());
        let more = outbox.queue.recv().await;
        outbox.take(more);
        assert!(!outbox.is_idle() && !outbox.is_done());
        outbox.done(Ok(()));
        assert!(outbox.is_idle() && answer.await.unwrap().is_ok());
        drop(sender);
        let more = outbox.queue.recv().await;
        outbox.take(more);
        assert!(outbox.is_done(), "nothing can follow");
    }
}
