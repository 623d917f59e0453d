//! Writes a packet to a data channel, in one piece or as the parts of a byte stream.

use crate::{
    livekit::wire::{
        packet::{self, DataPacket},
        stream::{self, Outflow},
    },
    transport::{Capabilities, Lane, Packet, SendError, Sid},
};

/// A packet that is being written.
pub(super) struct Writing {
    packet: DataPacket,
    /// The remaining parts, if the packet is a part of a byte stream.
    rest: Option<Outflow>,
}

impl Writing {
    /// Begins to write a packet of the local participant with this sid.
    ///
    /// # Errors
    /// Returns a [`SendError`] if the packet cannot be sent.
    pub(super) fn new(packet: Packet, sid: &Sid, can_publish_data: bool) -> Result<Self, SendError> {
        if !packet.is_addressed() {
            return Err(SendError::NoDestination);
        }
        let streamed = packet.lane == Lane::Reliable && packet.payload.len() > Capabilities::MAX_PACKET;
        check_size(packet.payload.len(), if streamed { usize::MAX } else { Capabilities::MAX_PACKET })?;
        // The server drops such packets silently.
        if !can_publish_data {
            return Err(SendError::NotAllowed);
        }
        let mut rest = streamed.then(|| Outflow::new(&packet, sid));
        let largest = rest.as_ref().map(Outflow::largest);
        let packet = match rest.as_mut().and_then(Outflow::next) {
            Some(header) => header,
            None => packet::outgoing(packet, sid),
        };
        // Checked for the largest part before the first is written: a chunk that is found to be too large
        // later would leave its receivers with half a stream.
        check_size(packet::encoded_size(largest.as_ref().unwrap_or(&packet)), packet::MAX_ENCODED)?;
        Ok(Self { packet, rest })
    }

    /// Returns the packet or part that is written next.
    pub(super) fn packet(&mut self) -> &mut DataPacket {
        &mut self.packet
    }

    /// Continues with the next part after a write. Returns false if there is none.
    pub(super) fn go_on(&mut self) -> bool {
        let next = self.rest.as_mut().and_then(Outflow::next);
        next.map(|part| self.packet = part).is_some()
    }

    /// Gives up a packet that is not wanted any more. Receivers of a stream's header get a trailer, which is left to be
    /// written.
    pub(super) fn abandon(mut self) -> Option<Self> {
        match self.rest.as_mut()?.abandon() {
            Some(_) if stream::is_header(&self.packet) => None, // it was not written yet
            Some(trailer) => Some(Self { packet: trailer, ..self }),
            None => Some(self), // only the trailer is left
        }
    }
}

fn check_size(size: usize, limit: usize) -> Result<(), SendError> {
    if size > limit { Err(SendError::TooLarge { size, limit }) } else { Ok(()) }
}
