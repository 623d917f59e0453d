//! Runs a connection to a room, from the moment when both data channels are open until it is left or lost.

use std::{
    future::poll_fn,
    mem,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use livekit_protocol::{ParticipantInfo, participant_info};
use prost::Message;

use super::{
    inbox::Inbox,
    liveness::{End, Liveness, SILENCE, Sign},
    participants::{self, Participants, can_publish_data},
    queues::{Leave, Leaving, Queues},
    rejoin::Policy,
    resume::Resume,
    snapshot::Snapshot,
};
use crate::{
    livekit::{
        e2ee::E2eeKeys,
        path::peer_connection::{Admit, Error, PeerConnection},
        signaling::Signal,
        wire::{packet, sequence},
    },
    transport::{
        ConnectionState, Lane, Participant, SendError, TransportEvent, Unreadable, outbox::Priority,
        send_queue::SendQueue,
    },
};

mod recovery;
mod server;
mod writing;

use recovery::Recovery;
use writing::Writing;

/// How long leaving waits for outstanding packets to be acknowledged.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// The interval between two pieces of advice about packets that cannot be read.
const ADVICE_INTERVAL: Duration = Duration::from_secs(60);

/// A connection to a room. Dropping it leaves without waiting.
pub(crate) struct Connection {
    signal: Signal,
    peer: PeerConnection,
    participants: Participants,
    pub(crate) room: String,
    pub(crate) local: Participant,
    pub(crate) can_publish_data: bool,
    /// True if the local participant is hidden.
    hidden: bool,
    pub(crate) token: String,
    /// True if the server announced the local participant before both channels were open.
    announced: bool,
    liveness: Liveness,
    resume: Resume,
    recovery: Recovery,
    /// The packets that are being written, indexed by [`Priority`].
    writing: [Option<Writing>; 3],
    numbers: sequence::Outgoing,
    heard: sequence::Incoming,
    /// The number of messages that were not user packets.
    skipped: u64,
    /// The key of a room that is encrypted end to end.
    key: Option<E2eeKeys>,
    /// When it was last logged how such packets can be read.
    advised_at: Option<Instant>,
}

/// How a connection ended.
pub(crate) enum Ended {
    /// The handle asked to leave or was dropped.
    Left,
    /// Another reason.
    End(End),
}

impl Connection {
    /// Creates a connection whose data channels are open.
    pub(crate) fn new(
        signal: Signal,
        peer: PeerConnection,
        participants: Participants,
        (room, local, token): (String, &ParticipantInfo, String),
        (policy, key): (Policy, Option<E2eeKeys>),
    ) -> Self {
        let now = Instant::now();
        Self {
            signal,
            peer,
            participants,
            room,
            local: participants::participant(local),
            can_publish_data: can_publish_data(local),
            hidden: is_hidden(local),
            token,
            announced: local.state() == participant_info::State::Active,
            liveness: Liveness::new(now),
            resume: Resume::new(now, policy),
            recovery: Recovery::new(now),
            writing: Default::default(),
            numbers: sequence::Outgoing::default(),
            heard: sequence::Incoming::default(),
            skipped: 0,
            key,
            advised_at: None,
        }
    }

    /// Returns the current state of the room.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.room.clone(), self.local.clone(), self.participants.list())
    }

    /// Runs the connection until it is left or lost.
    pub(crate) async fn run(&mut self, queues: &mut Queues) -> Ended {
        if mem::take(&mut self.announced) {
            // The session does not call plain peers before this, since they could not tell who the caller is.
            queues.inbox.event(TransportEvent::Joined(self.local.clone()));
        }
        loop {
            // First, because everything below compares times. A suspension that is not taken out would count
            // as an outage.
            self.liveness.handle_awake(Instant::now());
            let written = self.write_all(&queues.shared.queue);
            if let Err(error) = written.and_then(|()| self.peer.flush()) {
                self.liveness.handle_peer_lost(Instant::now(), &error.to_string());
            }
            self.take_messages(&queues.inbox);
            if let Some(end) = self.poll_liveness(queues) {
                // The check has read the sockets once more. What it found arrived before the end and is still
                // delivered.
                self.take_messages(&queues.inbox);
                return Ended::End(end);
            }
            self.recover(queues);
            if let Some(Leaving { until, .. }) = queues.leaving
                && (self.is_flushed(&queues.shared.queue) || Instant::now() >= until)
            {
                return Ended::Left;
            }

            let due = self.liveness.poll_timeout().min(self.recovery_timeout());
            let until = queues.leaving.as_ref().map_or(due, |leaving| leaving.until.min(due));
            self.liveness.handle_asleep(self.peer.wakes_at(until));
            let full = queues.inbox.is_full();
            let admit = admit(full);
            tokio::select! {
                // Unread messages are queued up to a limit; then the server has to wait.
                event = self.signal.next(), if !full => {
                    if let Some(end) = self.handle_server(event, queues) {
                        return Ended::End(end);
                    }
                }
                () = queues.inbox.has_room(), if full => {}
                asked = queues.leave.recv(), if queues.leaving.is_none() => match asked {
                    None => return Ended::Left,
                    Some(Leave { left }) => queues.begin_to_leave(left, Instant::now() + FLUSH_LIMIT),
                },
                Some(scenario) = queues.simulate.recv() => self.simulate(scenario),
                () = queues.shared.queue.changed() => {}
                woken = self.peer.wait(until) => {
                    if let Err(error) = self.peer.handle(woken, admit) {
                        self.liveness.handle_peer_lost(Instant::now(), &error.to_string());
                    }
                    // Whoever waited for what arrived answers before this goes on. The answer is sent first, and only then the
                    // acknowledgement, which nobody waits for.
                    if self.peer.holds() {
                        self.take_messages(&queues.inbox);
                        yield_once().await;
                    }
                }
            }
        }
    }

    /// Leaves the room: closes signaling with a leave request, then the peer connection.
    pub(crate) async fn leave(self) {
        let Self { signal, mut peer, recovery, .. } = self;
        // The server resumes whoever has the identity, so only a participant that is certainly still this one may be resumed.
        let is_ours = peer.lost().is_none() && peer.heard().elapsed() < SILENCE;
        signal.leave(is_ours && recovery.can_resume()).await;
        peer.close();
    }

    /// Drops both connections without leaving, so that the server keeps the participant until it rejoins.
    pub(crate) fn abandon(self) {
        self.signal.close_without_leave();
    }

    /// Writes queued packets while the data channels have room.
    fn write_all(&mut self, queue: &SendQueue) -> Result<(), Error> {
        let unacknowledged = self.peer.unacknowledged();
        let progress = self.numbers.handle_unacknowledged(unacknowledged);
        self.liveness.handle_reliable(Instant::now(), unacknowledged > 0, progress);
        // Retransmissions come first: the server discards them as duplicates once it has seen a newer number.
        if !self.write_retransmissions()? || self.recovery.is_moving() {
            return Ok(());
        }
        for priority in queue.order() {
            while self.write_next(queue, priority)? {}
        }
        queue.set_unacknowledged(self.peer.unacknowledged());
        Ok(())
    }

    /// Writes the next packet of this priority, or the next part of one. Returns false if there is none, or no room for it.
    fn write_next(&mut self, queue: &SendQueue, priority: Priority) -> Result<bool, Error> {
        let writing = &mut self.writing[priority as usize];
        if queue.is_cancelled(priority) {
            *writing = writing.take().and_then(Writing::abandon);
        }
        let Some(current) = writing else {
            queue.done(priority, Ok(())); // in case that it was cancelled
            let Some(packet) = queue.take(priority) else { return Ok(false) };
            match Writing::new(packet, self.local.sid(), self.can_publish_data, self.key.as_ref()) {
                Ok(next) => *writing = Some(next),
                Err(error) => queue.done(priority, Err(error)),
            }
            return Ok(true);
        };
        let (lane, packet) = (priority.lane(), current.packet());
        if lane == Lane::Reliable {
            // Numbered only now: a packet of another priority may be written first, and the server drops a
            // number that is not above the last.
            packet.sequence = self.numbers.next();
        }
        if !self.peer.has_room(lane, packet.encoded_len()) {
            return Ok(false);
        }
        let encoded = packet.encode_to_vec();
        match self.peer.write(lane, &encoded) {
            Ok(false) => return Ok(false),
            Ok(true) if lane == Lane::Reliable => self.numbers.written(encoded),
            Ok(true) => {}
            Err(error) => {
                let text = error.to_string();
                queue.done(priority, Err(SendError::Other(error.into())));
                return Err(text.into());
            }
        }
        match current.go_on() {
            Ok(true) => {}
            ended => {
                *writing = None;
                queue.done(priority, ended.map(drop));
            }
        }
        Ok(true)
    }

    fn is_flushed(&mut self, queue: &SendQueue) -> bool {
        queue.is_empty() && self.peer.unacknowledged() == 0
    }

    /// Handles messages received on the data channels.
    fn take_messages(&mut self, inbox: &Inbox) {
        let now = Instant::now();
        while let Some((lane, bytes)) = self.peer.poll_message() {
            self.handle_message(now, lane, bytes.into(), inbox);
        }
        if let Some(why) = self.peer.lost() {
            self.liveness.handle_peer_lost(now, why);
        }
    }

    fn handle_message(&mut self, now: Instant, lane: Lane, bytes: Bytes, inbox: &Inbox) {
        let size = bytes.len();
        match packet::incoming(lane, bytes, self.key.as_ref()) {
            Ok(heard) => {
                if let TransportEvent::Unreadable { why, .. } = heard.event {
                    self.advise(now, why);
                }
                if lane == Lane::Lossy || self.heard.accept(now, heard.sid.as_str(), heard.sequence) {
                    inbox.event(heard.event);
                }
            }
            Err(why) => {
                // Normal in a room with others: transcriptions, remote calls and text streams use the same
                // channels. Logged at powers of two, because any participant can send them.
                self.skipped += 1;
                if self.skipped.is_power_of_two() {
                    tracing::debug!(?why, size, skipped = self.skipped, "a message was skipped");
                }
            }
        }
    }

    /// Logs what to do so that such packets are read, at most once a minute.
    fn advise(&mut self, now: Instant, why: Unreadable) {
        if self.advised_at.is_none_or(|at| now.duration_since(at) >= ADVICE_INTERVAL) {
            self.advised_at = Some(now);
            tracing::warn!("packets cannot be read: {why}");
        }
    }

    fn poll_liveness(&mut self, queues: &mut Queues) -> Option<End> {
        let full = queues.inbox.is_full();
        self.record_received(queues);
        self.liveness.handle_signaling(self.resume.is_up());
        // Excludes time in which the process was suspended, up to this moment.
        let now = Instant::now();
        self.liveness.handle_awake(now);
        // While the inbox is full, this side does not read acknowledgements.
        if full {
            self.liveness.handle_full();
        } else {
            self.liveness.handle_waiting(now, self.peer.waits());
        }
        if now < self.liveness.poll_timeout() {
            return None;
        }
        // If this runs late, the sockets hold packets that arrived in time.
        if let Err(error) = self.peer.handle(None, admit(full)) {
            self.liveness.handle_peer_lost(Instant::now(), &error.to_string());
        }
        self.record_received(queues);
        match self.liveness.poll(now)? {
            Sign::End(end) => Some(end),
            Sign::Suspect => {
                self.request_ice_restart();
                None
            }
        }
    }

    fn record_received(&mut self, queues: &mut Queues) {
        self.liveness.handle_heard(self.peer.heard());
        if self.recovery.handle_heard(self.peer.heard()) {
            queues.emit_connection_state(ConnectionState::Connected);
        }
    }
}

/// Lets the other work of this task and other tasks have a turn.
///
/// tokio's own `yield_now` also looks for events of sockets, which costs a system call.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns which datagrams are read: while the inbox is full only keepalives, so that senders slow down and
/// the path stays alive.
fn admit(full: bool) -> Admit {
    if full { Admit::KeepAlive } else { Admit::All }
}

/// Returns true if the local participant is hidden.
fn is_hidden(info: &ParticipantInfo) -> bool {
    info.permission.as_ref().is_some_and(|may| may.hidden)
}
