//! The second half of a join: the server has taken it, and the peer connection is being made.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use livekit_protocol::{JoinResponse, ParticipantInfo};
use tokio::{sync::mpsc, time};

use super::{
    Room,
    error::{ConnectError, JoinPhase},
    health::FAREWELL,
    participants::{self, Participants},
    peer_connection::{Admit, PeerConnection},
    signal::{ServerEvent, Signal},
    task::{EVENT_QUEUE, LANE_QUEUE, Queues, Shared, State, Task, can_publish_data},
};
use crate::link::CloseReason;

/// How many of the tried addresses an error names.
const NAMED: usize = 8;

/// A join under way. Dropping it leaves.
pub(super) struct Joining {
    signal: Signal,
    peer: PeerConnection,
    token: String,
    room: String,
    local: ParticipantInfo,
    participants: Participants,
}

impl Joining {
    /// The server answered with this.
    pub(super) fn new(signal: Signal, peer: PeerConnection, token: &str, response: JoinResponse) -> Self {
        let mut participants = Participants::default();
        participants.update_all(&response.other_participants);
        Self {
            signal,
            peer,
            token: token.to_owned(),
            room: response.room.map(|room| room.name).unwrap_or_default(),
            local: response.participant.unwrap_or_default(),
            participants,
        }
    }

    /// Waits until both channels are open.
    pub(super) async fn open(&mut self, start: Instant, limit: Duration) -> Result<(), ConnectError> {
        let until = start + limit;
        while !self.peer.is_open() {
            if Instant::now() >= until {
                return Err(self.too_late(limit));
            }
            tokio::select! {
                event = self.signal.next() => self.handle_server(event)?,
                woken = self.peer.wait(until) => self.peer.handle(woken, Admit::All).map_err(ConnectError::transport)?,
            }
            if let Some(why) = self.peer.lost() {
                return Err(self.farewell(why).await);
            }
        }
        Ok(())
    }

    /// Hands everything to a task of its own.
    pub(super) fn finish(self) -> Room {
        let (urgent, urgent_queue) = mpsc::channel(LANE_QUEUE);
        let (reliable, reliable_queue) = mpsc::channel(LANE_QUEUE);
        let (lossy, lossy_queue) = mpsc::channel(LANE_QUEUE);
        let (leave, leave_queue) = mpsc::channel(1);
        let (events_queue, events) = mpsc::channel(EVENT_QUEUE);
        let shared = Arc::new(Shared::new(State {
            local: participants::participant(&self.local),
            can_publish_data: can_publish_data(&self.local),
            present: self.participants.list(),
            token: self.token,
            closed: None,
        }));
        let task = Task {
            shared: shared.clone(),
            signal: self.signal,
            peer: self.peer,
            participants: self.participants,
            queues: Queues {
                urgent: urgent_queue,
                reliable: reliable_queue,
                lossy: lossy_queue,
                leave: leave_queue,
                events: events_queue,
            },
        };
        tokio::spawn(task.run());
        Room { name: self.room, shared, urgent, reliable, lossy, leave, events }
    }

    fn handle_server(&mut self, event: ServerEvent) -> Result<(), ConnectError> {
        match event {
            ServerEvent::Answer(sdp) => self.peer.handle_answer(&sdp).map_err(ConnectError::transport)?,
            ServerEvent::Candidate(line) => self.peer.handle_candidate(&line),
            ServerEvent::Participants(infos) => {
                for info in infos {
                    if info.sid == self.local.sid {
                        self.local = info;
                    } else if info.identity != self.local.identity {
                        self.participants.update(&info);
                    }
                }
            }
            ServerEvent::Token(token) => self.token = token,
            ServerEvent::Leave(reason) => return Err(reason.into()),
            ServerEvent::Lost(why) => return Err(lost(&why)),
        }
        Ok(())
    }

    /// The peer connection ended: the server's reason, if it gives one soon.
    async fn farewell(&mut self, why: &str) -> ConnectError {
        let reason = async {
            loop {
                match self.signal.next().await {
                    ServerEvent::Leave(reason) => return reason.into(),
                    ServerEvent::Lost(_) => return lost(why),
                    _ => {}
                }
            }
        };
        time::timeout(FAREWELL, reason).await.unwrap_or_else(|_| lost(why))
    }

    fn too_late(&self, limit: Duration) -> ConnectError {
        if self.peer.has_path() {
            return ConnectError::Timeout { limit, phase: JoinPhase::Channels };
        }
        let mut tried: Vec<_> = self.peer.remotes().iter().map(ToString::to_string).collect();
        tried.dedup();
        let more = tried.len().saturating_sub(NAMED);
        tried.truncate(NAMED);
        let mut tried = if tried.is_empty() { "it named none".into() } else { tried.join(", ") };
        if more > 0 {
            tried.push_str(&format!(" and {more} more"));
        }
        ConnectError::NoNetworkPath { limit, tried }
    }
}

fn lost(why: &str) -> ConnectError {
    ConnectError::Closed(CloseReason::ConnectionLost(why.into()))
}
