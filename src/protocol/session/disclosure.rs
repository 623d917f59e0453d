//! Shows calls that the assistant runs itself to the room, as far as the tool's visibility allows (`wire.md`, section
//! 4).

use super::{
    Context, Delivery,
    delivery::Unfit,
    peers::{Peers, Remote},
    recipients::{Feature, Recipients as _},
};
use crate::{
    protocol::frame::{Message, Meta, ToolProgress, ToolUseRequest},
    tool::{ToolError, ToolName, ToolResult, Visibility, public::public_message},
    transport::Identity,
    value::Value,
};

/// The bytes of a frame besides the texts of a result, which the frame contains twice: for the model and as blocks.
const FRAME_BYTES: usize = 1_000;

/// The parts of the session that a disclosure needs.
pub(super) struct Discloser<'a> {
    pub(super) cx: &'a mut Context,
    pub(super) peers: &'a Peers,
    pub(super) delivery: &'a mut Delivery,
}

impl Discloser<'_> {
    /// Shows a request or a result. Clients get the part of a result that is meant for them, observers all of it.
    pub(super) fn show(&mut self, tool: &ToolName, level: Visibility, meta: &Meta, message: Message) {
        let sent = match level {
            Visibility::Nothing => return,
            Visibility::Name => self.delivery.broadcast(self.cx, &Meta::default(), &name_only(message)),
            Visibility::Full => match for_clients(&message) {
                Some(shown) => {
                    // Two frames, to each participant by name: a broadcast cannot tell observers, who get all
                    // of the result, from clients.
                    self.delivery.copy(self.cx, self.peers, meta, &message);
                    self.show_clients(meta, &shown, true)
                }
                None => match self.delivery.broadcast(self.cx, meta, &message) {
                    Err(Unfit::TooLarge { .. }) => {
                        self.delivery.copy(self.cx, self.peers, meta, &message);
                        self.show_clients(meta, &message, false)
                    }
                    sent => sent,
                },
            },
        };
        if let Err(error) = sent {
            tracing::warn!(%tool, ?error, "a local call cannot be shown to the room");
        }
    }

    /// Shows progress to participants that list it. Below full visibility only the start is shown.
    pub(super) fn show_progress(&mut self, level: Visibility, is_start: bool, progress: &ToolProgress) {
        let shown = match level {
            Visibility::Nothing => return,
            Visibility::Name if !is_start => return,
            Visibility::Name => &ToolProgress::new(progress.id.clone(), progress.status),
            Visibility::Full => progress,
        };
        let message = Message::ToolProgress(shown.clone());
        let is_shown = |id: &Identity| self.peers.lists(id, Feature::Progress) && self.peers.is_reachable(id);
        let to: Vec<_> = self.others().filter(|id| is_shown(id)).collect();
        let sent = if to.is_empty() { Ok(()) } else { self.post(to, &Meta::default(), &message) };
        if let Err(error) = sent {
            tracing::warn!(?error, "progress of a local call cannot be shown to the room");
        }
        self.delivery.copy(self.cx, self.peers, &Meta::default(), &message);
    }

    /// Sends a message that is not for observers, or exceeds a packet: as a stream to participants that take streams,
    /// to the others what fits. If it has no parts and nobody takes streams, the whole room gets what fits.
    fn show_clients(&mut self, meta: &Meta, message: &Message, has_parts: bool) -> Result<(), Unfit> {
        let all: Vec<_> = self.others().collect();
        let is_alone = all.is_empty();
        if is_alone && !self.peers.observers().is_empty() {
            return Ok(()); // observers have their copy
        }
        // Nobody is in the room: a broadcast reaches the local recorder, and nobody who may not read it.
        let sent = match is_alone {
            true => self.delivery.broadcast(self.cx, meta, message),
            false => self.post(all.clone(), meta, message),
        };
        match sent {
            Err(Unfit::TooLarge { .. }) => {}
            sent => return sent,
        }
        let (mut streams, mut packets): (Vec<_>, Vec<_>) =
            all.iter().cloned().partition(|id| self.peers.takes_large_frames(id));
        if !streams.is_empty() && self.post(streams.clone(), meta, message).is_err() {
            (streams, packets) = (Vec::new(), all); // it exceeds a stream, too
        }
        if packets.is_empty() && !is_alone {
            return Ok(());
        }
        let is_for_room = is_alone || streams.is_empty() && !has_parts;
        let most = self.cx.config.caps.frames.max_packet.saturating_sub(FRAME_BYTES) / 2;
        if let Some(texts) = texts_only(message, most) {
            match self.show_reduced(is_for_room, &packets, meta, &texts) {
                Err(Unfit::TooLarge { .. }) => {}
                sent => return sent,
            }
        }
        // Without `meta`, which may be what did not fit.
        self.show_reduced(is_for_room, &packets, &Meta::default(), &name_only(message.clone()))
    }

    fn show_reduced(
        &mut self,
        is_for_room: bool,
        to: &[Identity],
        meta: &Meta,
        message: &Message,
    ) -> Result<(), Unfit> {
        if is_for_room {
            return self.delivery.broadcast(self.cx, meta, message);
        }
        self.post(to.to_vec(), meta, message)
    }

    /// Returns the participants in the room that are sent frames by name and are not observers.
    fn others(&self) -> impl Iterator<Item = Identity> {
        let is_shown =
            |id: &Identity, remote: &Remote| !remote.is_observer() && remote.takes_frames(self.cx, id);
        self.peers.present().filter(move |(id, remote)| is_shown(id, remote)).map(|(id, _)| id.clone())
    }

    fn post(&mut self, to: Vec<Identity>, meta: &Meta, message: &Message) -> Result<(), Unfit> {
        self.delivery.post_to(self.cx, self.peers, to, meta, message)
    }
}

/// Returns the message with the part of its result that is meant for clients, or `None` if the result has no parts.
fn for_clients(message: &Message) -> Option<Message> {
    let Message::ToolUseResult(it) = message else { return None };
    let result = Some(ToolResult::of(it.result.as_ref()?)).filter(|result| !result.is_plain())?;
    let shown = result.for_clients();
    let mut it = it.clone();
    if shown != result {
        it.error_message = it.error_message.map(|text| public_message(&text, it.result.as_ref()).to_owned());
        it.result = Some(shown.to_value());
    }
    Some(Message::ToolUseResult(it))
}

/// Returns the message with the texts of its result alone, at most this many bytes, if it is a result with texts.
fn texts_only(message: &Message, most: usize) -> Option<Message> {
    let Message::ToolUseResult(it) = message else { return None };
    let texts = ToolResult::of(it.result.as_ref()?).texts_within(most)?;
    let mut it = it.clone();
    it.result = Some(texts.to_value());
    Some(Message::ToolUseResult(it))
}

/// Returns a request or result without arguments and content.
fn name_only(message: Message) -> Message {
    match message {
        Message::ToolUseRequest(request) => {
            Message::ToolUseRequest(ToolUseRequest { parameters: Value::empty(), ..request })
        }
        Message::ToolUseResult(mut result) => {
            result.result = None;
            result.error_message = result.error_message.map(|_| ToolError::LOCAL_MESSAGE.to_owned());
            Message::ToolUseResult(result)
        }
        other => other,
    }
}
