//! Holds the parts that calls and requests share: the context, the peers, the delivery of frames and the
//! jobs.

use super::{
    codec::{self, Received},
    context::Context,
    delivery::{Delivery, Purpose, Sent, Unfit},
    event::Event,
    jobs::Jobs,
    peers::{Peers, Remote},
    stats::Counter,
};
use crate::{
    protocol::frame::{ControlStop, Message, Meta},
    tool::CallId,
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
    /// Sends a frame to one participant. Without a purpose nobody else keeps it.
    pub(super) fn post(
        &mut self,
        to: &Identity,
        meta: &Meta,
        message: &Message,
        purpose: Option<Purpose>,
    ) -> Result<Sent, Unfit> {
        self.delivery.to(&mut self.cx, &self.peers, to).post(meta, message, purpose)
    }

    /// Sends a frame again, under its stanza.
    pub(super) fn post_again(
        &mut self,
        to: &Identity,
        stanza: i32,
        meta: &Meta,
        message: &Message,
        purpose: Option<Purpose>,
    ) -> Result<Sent, Unfit> {
        self.delivery.to(&mut self.cx, &self.peers, to).post_again(stanza, meta, message, purpose)
    }

    /// Sends a frame that is known to be small, or whose loss does no harm.
    pub(super) fn post_small(
        &mut self,
        to: &Identity,
        message: &Message,
        purpose: Option<Purpose>,
    ) -> Option<Sent> {
        self.delivery.to(&mut self.cx, &self.peers, to).post_small(&Meta::default(), message, purpose)
    }

    /// Sends each observer a copy of a frame.
    pub(super) fn copy(&mut self, meta: &Meta, message: &Message) {
        self.delivery.copy(&mut self.cx, &self.peers, meta, message);
    }

    /// Acknowledges a frame to a peer that lists acknowledgements.
    pub(super) fn acknowledge(&mut self, to: &Identity, stanza: Option<i32>, call: Option<&CallId>) {
        self.delivery.acknowledge(&mut self.cx, &self.peers, to, stanza, call);
    }

    /// Acknowledges a frame, unless the lane's own rules make that unnecessary.
    pub(super) fn acknowledge_always(&mut self, to: &Identity, stanza: Option<i32>, call: Option<&CallId>) {
        self.delivery.acknowledge_always(&mut self.cx, &self.peers, to, stanza, call);
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
            self.delivery.to(&mut self.cx, &self.peers, &id).flush();
            let message = Message::ControlStop(ControlStop {
                conversation_id: Some(self.cx.config.room.clone()),
                stop_type: Some("all".to_owned()),
                ..ControlStop::default()
            });
            if let Err(error) = self.post(&id, &codec::goodbye(), &message, None) {
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
