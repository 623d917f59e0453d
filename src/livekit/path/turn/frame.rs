//! Reads and writes frames between client and relay: STUN messages, and datagrams after their channel number
//! ([RFC 8656](https://www.rfc-editor.org/rfc/rfc8656), section 12).

use bytes::{Buf, BytesMut};

use super::stun::{self, MAX_MESSAGE, array, padded};

/// The valid channel numbers (section 12).
pub(super) const CHANNELS: std::ops::RangeInclusive<u16> = 0x4000..=0x4FFF;
/// The size of a channel number and a length, in bytes.
const HEAD: usize = 4;

/// The stream contains something other than frames. It cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Splits the next complete frame off a stream's bytes; `None` if it is incomplete.
pub(super) fn split(buffer: &mut BytesMut) -> Result<Option<BytesMut>, Broken> {
    let (true, Some(first)) = (buffer.len() >= HEAD, array(buffer, 0).map(u16::from_be_bytes)) else {
        return Ok(None);
    };
    let (length, taken) = if CHANNELS.contains(&first) {
        let length = HEAD + usize::from(u16::from_be_bytes([buffer[2], buffer[3]]));
        // On a stream padding is mandatory, and not included in the length.
        (length, padded(length))
    } else {
        if buffer.len() < stun::HEAD {
            // Neither a message nor a channel, so there is no length to skip it by.
            return if first < 0x4000 { Ok(None) } else { Err(Broken) };
        }
        let length = stun::length(buffer).ok_or(Broken)?;
        (length, length)
    };
    if length > MAX_MESSAGE {
        return Err(Broken);
    }
    if buffer.len() < taken {
        return Ok(None);
    }
    let frame = buffer.split_to(length);
    buffer.advance(taken - length);
    Ok(Some(frame))
}

/// Returns the channel of a datagram and its content; `None` if the frame is truncated or of another kind.
pub(super) fn read_channel(frame: &[u8]) -> Option<(u16, &[u8])> {
    let number = array(frame, 0).map(u16::from_be_bytes).filter(|number| CHANNELS.contains(number))?;
    let length = usize::from(u16::from_be_bytes(array(frame, 2)?));
    Some((number, frame.get(HEAD..HEAD + length)?))
}

/// Writes a datagram for a channel, padded as a stream requires and UDP allows.
pub(super) fn write_channel(number: u16, datagram: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(datagram.len()).ok()?;
    let mut frame = Vec::with_capacity(padded(HEAD + datagram.len()));
    frame.extend_from_slice(&number.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(datagram);
    frame.resize(padded(frame.len()), 0);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::{
        super::stun::{Class, Method, Writer, attribute},
        *,
    };

    fn message() -> Vec<u8> {
        Writer::new(Class::Indication, Method::Data, [1; 12]).put(attribute::DATA, b"datagram").finish()
    }

    #[test]
    fn stream_split_anywhere_gives_the_same_frames() {
        let frames = [
            write_channel(0x4000, b"one").unwrap(),
            message(),
            write_channel(0x4FFF, b"").unwrap(),
            write_channel(0x4001, b"fours").unwrap(),
        ];
        let stream = frames.concat();
        assert_eq!(stream.len() % 4, 0);
        for size in 1..=stream.len() {
            let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
            for piece in stream.chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = split(&mut buffer).unwrap() {
                    got.push(frame);
                }
            }
            assert!(buffer.is_empty());
            let channels: Vec<_> = got.iter().filter_map(|frame| read_channel(frame)).collect();
            assert_eq!(channels, [(0x4000, &b"one"[..]), (0x4FFF, b""), (0x4001, b"fours")]);
            assert_eq!(got[1], message());
        }
    }

    #[test]
    fn foreign_stream_is_broken_at_once() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"\x50\0\0\0",
            b"\xff\xff\xff\xff",
            // A message and a datagram over the limit.
            b"\0\x01\xff\xf0\x21\x12\xa4\x42123456789012",
            b"\x40\0\xff\xff",
            // No cookie; a length that is not a multiple of four.
            b"\x00\x01\x00\x00\x00\x00\x00\x00123456789012",
            b"\0\x01\0\x02\x21\x12\xa4\x42123456789012",
        ] {
            assert_eq!(split(&mut BytesMut::from(bytes)), Err(Broken), "{bytes:?}");
        }
    }

    #[test]
    fn truncated_datagram_is_ignored() {
        let whole = write_channel(0x4000, b"datagram").unwrap();
        for length in 0..whole.len() {
            assert_eq!(read_channel(&whole[..length]), None, "{length}");
        }
        assert_eq!(read_channel(&whole), Some((0x4000, &b"datagram"[..])));
        assert_eq!(write_channel(0x4000, &[0; 70_000]), None);
    }
}
