//! Writes a packet to a data channel, in one piece or as the parts of a byte stream.

use crate::{
    livekit::{
        e2ee::{self, E2eeKeys},
        wire::{
            packet::{self, DataPacket},
            stream::Outflow,
        },
    },
    transport::{Capabilities, Lane, Packet, SendError, Sid},
};

/// A packet that is being written.
pub(super) struct Writing {
    packet: DataPacket,
    /// The remaining parts, if the packet is a part of a byte stream.
    rest: Option<Outflow>,
    /// True if nothing of the packet has been written.
    is_first: bool,
    /// The key with which packets are encrypted.
    key: Option<E2eeKeys>,
}

impl Writing {
    /// Begins to write a packet of the local participant with this sid, encrypted if there is a key.
    ///
    /// # Errors
    /// Returns a [`SendError`] if the packet cannot be sent.
    pub(super) fn new(
        packet: Packet,
        sid: &Sid,
        can_publish_data: bool,
        key: Option<&E2eeKeys>,
    ) -> Result<Self, SendError> {
        if !packet.is_addressed() {
            return Err(SendError::NoDestination);
        }
        let streamed = packet.lane == Lane::Reliable && packet.is_streamed(Capabilities::MAX_PACKET);
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
        let overhead = key.map_or(0, |_| e2ee::OVERHEAD);
        let size = packet::encoded_size(largest.as_ref().unwrap_or(&packet)) + overhead;
        check_size(size, packet::MAX_ENCODED)?;
        let mut writing = Self { packet, rest, is_first: true, key: key.cloned() };
        writing.seal()?;
        Ok(writing)
    }

    /// Returns the packet or part that is written next.
    pub(super) fn packet(&mut self) -> &mut DataPacket {
        &mut self.packet
    }

    /// Continues with the next part after a write. Returns false if there is none.
    ///
    /// # Errors
    /// Returns a [`SendError`] if the part cannot be sent.
    pub(super) fn go_on(&mut self) -> Result<bool, SendError> {
        self.is_first = false;
        let Some(part) = self.rest.as_mut().and_then(Outflow::next) else { return Ok(false) };
        self.packet = part;
        self.seal()?;
        Ok(true)
    }

    /// Gives up a packet that is not wanted any more. Receivers of a stream's header get a trailer, which is left to be
    /// written.
    pub(super) fn abandon(mut self) -> Option<Self> {
        let trailer = self.rest.as_mut()?.abandon();
        if let Some(trailer) = trailer {
            if self.is_first {
                return None;
            }
            self.packet = trailer;
            self.seal().ok()?;
        }
        Some(self) // only the trailer is left
    }

    /// Encrypts the packet that is written next. Its number is not part of what is encrypted.
    fn seal(&mut self) -> Result<(), SendError> {
        match &self.key {
            Some(key) => key.seal(&mut self.packet).map_err(SendError::new),
            None => Ok(()),
        }
    }
}

fn check_size(size: usize, limit: usize) -> Result<(), SendError> {
    if size > limit { Err(SendError::TooLarge { size, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::livekit::e2ee::E2eeKey;
    use crate::{livekit::wire::packet::Value, transport::Identity};

    fn writing(size: usize, key: Option<&E2eeKeys>) -> Writing {
        let packet = Packet::new(["phone".into()], vec![7; size]);
        Writing::new(packet, &Sid::from("PA_1"), true, key).unwrap()
    }

    /// Returns the contents that the server would forward, decrypted.
    fn contents(mut writing: Writing, key: &E2eeKeys) -> Vec<Value> {
        let mut contents = Vec::new();
        loop {
            assert_eq!(writing.packet().destination_identities, ["phone"]);
            match writing.packet().value.clone() {
                Some(Value::Encrypted(sealed)) => contents.extend(key.open(&sealed).unwrap()),
                other => panic!("not encrypted: {other:?}"),
            }
            if !writing.go_on().unwrap() {
                return contents;
            }
        }
    }

    #[test]
    fn with_a_key_every_packet_and_part_is_encrypted() {
        let key = E2eeKeys::new(E2eeKey::new("secret"));
        assert!(matches!(&contents(writing(10, Some(&key)), &key)[..], [Value::User(_)]));
        let parts = contents(writing(40_000, Some(&key)), &key);
        let [Value::StreamHeader(_), chunks @ .., Value::StreamTrailer(_)] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!(chunks.len(), 3);
    }

    #[test]
    fn abandoned_stream_ends_with_a_trailer_only_if_its_header_was_written() {
        for key in [None, Some(E2eeKeys::new(E2eeKey::new("secret")))] {
            assert!(writing(10, key.as_ref()).abandon().is_none());
            assert!(writing(40_000, key.as_ref()).abandon().is_none());
            let mut begun = writing(40_000, key.as_ref());
            assert!(begun.go_on().unwrap());
            let mut left = begun.abandon().unwrap();
            let value = match (left.packet().value.clone(), &key) {
                (Some(Value::Encrypted(sealed)), Some(key)) => key.open(&sealed).unwrap(),
                (value, _) => value,
            };
            assert!(matches!(value, Some(Value::StreamTrailer(trailer)) if !trailer.reason.is_empty()));
            assert!(!left.go_on().unwrap());
        }
    }

    #[test]
    fn packet_that_is_too_large_only_when_encrypted_is_refused() {
        let (key, sid) = (E2eeKeys::new(E2eeKey::new("secret")), Sid::from("PA_1"));
        let packet = |payload: usize| {
            let to = (0..300).map(|n| Identity::from(format!("{n:0>200}")));
            Packet::new(to, vec![7; payload])
        };
        let fill = packet::MAX_ENCODED - packet::encoded_size(&packet::outgoing(packet(200), &sid));
        assert!(Writing::new(packet(200 + fill), &sid, true, None).is_ok());
        let refused = Writing::new(packet(200 + fill), &sid, true, Some(&key)).err();
        assert!(matches!(refused, Some(SendError::TooLarge { .. })), "{refused:?}");
        assert!(Writing::new(packet(200 + fill - e2ee::OVERHEAD), &sid, true, Some(&key)).is_ok());
    }
}
