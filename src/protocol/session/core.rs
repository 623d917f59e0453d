//! Holds the parts that calls and requests share: the context, the peers, the delivery of frames and the
//! jobs.

use super::{
    codec::{self, Received},
    context::Context,
    delivery::{Delivery, To},
    event::Event,
    jobs::Jobs,
    peers::{Peers, Remote},
    stats::Counter,
};
use crate::{
    protocol::frame::{ControlStop, Message, Meta},
    transport::Identity,
};

/// The parts that calls and requests share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) cx: Context,
    pub(super) peers: Peers,
    pub(super) delivery: Delivery,
    pub(super) jobs: Jobs,
}

impl Core {
    /// Returns the delivery to one peer.
    pub(super) fn to<'a>(&'a mut self, id: &'a Identity) -> To<'a, Peers> {
        self.delivery.to(&mut self.cx, &self.peers, id)
    }

    /// Sends each observer a copy of a frame.
    pub(super) fn copy(&mut self, meta: &Meta, message: &Message) {
        self.delivery.copy(&mut self.cx, &self.peers, meta, message);
    }

    /// Sends a goodbye to every peer that may have received the local Configuration. It may have bound the local
    /// participant before its own Configuration arrives.
    pub(super) fn say_goodbye(&mut self) {
        let knows = |remote: &Remote| remote.was_greeted() && !remote.is_plain();
        let peers = self.peers.iter().filter(|(_, remote)| knows(remote));
        let known: Vec<_> = peers.map(|(id, _)| id.clone()).collect();
        for id in known {
            // A result that so far was sent on `_lossy` only may be lost, and after the goodbye nothing
            // repeats it.
            self.to(&id).flush();
            let message = Message::ControlStop(ControlStop {
                conversation_id: Some(self.cx.config.room.clone()),
                stop_type: Some("all".to_owned()),
                ..ControlStop::default()
            });
            if let Err(error) = self.to(&id).post(&codec::goodbye(), &message, None) {
                tracing::warn!(peer = %id, ?error, "a goodbye cannot be sent");
            }
            self.peers.said_goodbye(&mut self.delivery, &id);
        }
    }

    /// Reports a frame of a type that the session does not handle.
    pub(super) fn handle_other_frame(&mut self, id: &Identity, received: Received) {
        let Self { cx, peers, .. } = self;
        cx.count(Counter::UnknownType);
        let Some(remote) = peers.get(id) else { return };
        if !peers.is_counterpart(cx, id, remote) {
            return cx.complain(id, Counter::Unauthorized);
        }
        if received.size > cx.config.caps.frames.max_frame_of_others {
            return cx.count(Counter::FrameTooLarge);
        }
        cx.event(Event::Frame { from: remote.peer(id), frame: received.frame });
    }
}
