//! What calls and requests share: the context, the peers, the delivery of frames and the jobs.

use super::{
    context::Context,
    delivery::{Delivery, Sent, Unfit},
    jobs::Jobs,
    peers::Peers,
};
use crate::{
    protocol::frame::{Message, Meta},
    tool::CallId,
    transport::Identity,
};

/// What calls and requests share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) cx: Context,
    pub(super) peers: Peers,
    pub(super) delivery: Delivery,
    pub(super) jobs: Jobs,
}

impl Core {
    /// Sends a frame to one participant.
    pub(super) fn post(&mut self, to: &Identity, meta: &Meta, message: &Message) -> Result<Sent, Unfit> {
        self.delivery.post(&mut self.cx, &self.peers, to, meta, message)
    }

    /// Sends a frame again, under its stanza.
    pub(super) fn post_again(
        &mut self,
        to: &Identity,
        stanza: i32,
        meta: &Meta,
        message: &Message,
    ) -> Result<Sent, Unfit> {
        self.delivery.post_again(&mut self.cx, &self.peers, to, stanza, meta, message)
    }

    /// Sends a frame that is known to be small, or whose loss does no harm.
    pub(super) fn post_small(&mut self, to: &Identity, message: &Message) -> Option<Sent> {
        self.delivery.post_small(&mut self.cx, &self.peers, to, message)
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
}
