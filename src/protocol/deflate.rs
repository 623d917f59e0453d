//! Compresses and expands what a packet carries: a raw deflate stream (RFC 1951), as LiveKit's streams of data have it.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Returns the compressed bytes, if they are fewer.
pub(crate) fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    // Without room for as many bytes, the compressor ends early.
    let mut out = Vec::with_capacity(bytes.len());
    let mut compressor = Compress::new(Compression::fast(), false);
    match compressor.compress_vec(bytes, &mut out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) if out.len() < bytes.len() => Some(out),
        _ => None,
    }
}

/// Why compressed bytes cannot be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InflateError {
    #[error("it is not a deflate stream")]
    Invalid,
    #[error("it does not end where its {length} bytes end")]
    Length { length: usize },
}

/// Returns the expanded bytes, which must be exactly `length`. No more memory is taken, whatever the bytes say.
pub(crate) fn expanded(bytes: &[u8], length: usize) -> Result<Vec<u8>, InflateError> {
    let mut out = Vec::new();
    let mut expander = Decompress::new(false);
    loop {
        let (read, written) = (expander.total_in() as usize, out.len());
        // Memory is taken as it is filled: a stream that ends early costs what it had.
        if out.len() == out.capacity() {
            out.reserve_exact(length.saturating_sub(out.len()).min(out.len().max(FIRST)) + 1);
        }
        let input = bytes.get(read..).unwrap_or_default();
        match expander.decompress_vec(input, &mut out, FlushDecompress::None) {
            Ok(Status::StreamEnd) => break,
            Ok(_) if out.len() > length => return Err(InflateError::Length { length }),
            // Neither read nor wrote anything: the stream has no end.
            Ok(_)
                if (expander.total_in() as usize, out.len()) == (read, written)
                    && out.len() < out.capacity() =>
            {
                return Err(InflateError::Invalid);
            }
            Ok(_) => {}
            Err(_) => return Err(InflateError::Invalid),
        }
    }
    let is_whole = out.len() == length && expander.total_in() as usize == bytes.len();
    is_whole.then_some(out).ok_or(InflateError::Length { length })
}

/// The memory that is taken at first, in bytes.
const FIRST: usize = 64 * 1024;

/// The first byte of a compressed frame (`wire.md`, section 5.11). No MessagePack value begins with it.
const MARK: u8 = 0xc1;

/// The length of the mark and of the length before compression, in bytes.
const HEAD: usize = 5;

/// The longest frame that is not compressed, in bytes. A shorter one is one datagram anyway, and may be sent twice.
const SHORT: usize = 1_200;

/// A compressed frame may expand to this size, in bytes, and above it to at most [`MOST_TIMES`] the size of its stream: a few
/// bytes must not cost a receiver, or a recording, megabytes.
const EXPANDED_ANYWAY: usize = 256 * 1024;
const MOST_TIMES: usize = 64;

/// Returns a frame in its compressed form, if that is shorter.
pub(crate) fn compressed_frame(frame: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(frame.len()).ok().filter(|_| frame.len() > SHORT)?;
    let smaller = compressed(frame)?;
    if HEAD + smaller.len() >= frame.len() || frame.len() > longest(&smaller) {
        return None;
    }
    Some([&[MARK], &length.to_be_bytes()[..], &smaller].concat())
}

/// Returns a frame in compressed form, in any case: a frame that gets no shorter, or far too short, as it stands in the stream.
#[cfg(feature = "record")]
pub(crate) fn packed_frame(frame: &[u8]) -> Vec<u8> {
    let smaller = compressed(frame).filter(|smaller| frame.len() <= longest(smaller));
    let stream = smaller.unwrap_or_else(|| stored(frame));
    [&[MARK], &(frame.len() as u32).to_be_bytes()[..], &stream].concat()
}

/// Returns a deflate stream whose blocks hold the bytes as they are.
#[cfg(feature = "record")]
fn stored(bytes: &[u8]) -> Vec<u8> {
    const BLOCK: usize = u16::MAX as usize;
    let mut out = Vec::with_capacity(bytes.len() + 5 * (bytes.len() / BLOCK + 1));
    let mut rest = bytes;
    loop {
        let (block, after) = rest.split_at(rest.len().min(BLOCK));
        let length = block.len() as u16;
        out.push(u8::from(after.is_empty()));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
        rest = after;
        if rest.is_empty() {
            return out;
        }
    }
}

/// Returns the longest frame or request that this stream may hold, in bytes.
pub(crate) fn longest(stream: &[u8]) -> usize {
    EXPANDED_ANYWAY.max(stream.len().saturating_mul(MOST_TIMES))
}

/// Returns whether a packet is a compressed frame.
pub(crate) fn is_compressed_frame(packet: &[u8]) -> bool {
    packet.first() == Some(&MARK)
}

/// Returns the frame in a compressed one, which may have `limit` bytes. No more memory is taken than it announces.
pub(crate) fn expanded_frame(packet: &[u8], limit: usize) -> Result<Vec<u8>, InflateError> {
    let (head, stream) = packet.split_first_chunk::<HEAD>().ok_or(InflateError::Invalid)?;
    let [MARK, length @ ..] = *head else { return Err(InflateError::Invalid) };
    let length = u32::from_be_bytes(length) as usize;
    let limit = limit.min(longest(stream));
    if length > limit {
        return Err(InflateError::Length { length: limit });
    }
    expanded(stream, length)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn text(length: usize) -> Vec<u8> {
        (0..).flat_map(|n: u32| format!("record {n}, ").into_bytes()).take(length).collect()
    }

    #[test]
    fn text_is_compressed_and_expanded() {
        for length in [100, 1_000, 100_000, 3 << 20] {
            let text = text(length);
            let small = compressed(&text).unwrap();
            assert!(small.len() < text.len());
            assert_eq!(expanded(&small, length).as_ref(), Ok(&text));
            for wrong in [0, 1, length - 1, length + 1, usize::MAX] {
                assert_eq!(expanded(&small, wrong), Err(InflateError::Length { length: wrong }), "{length}");
            }
        }
    }

    #[test]
    fn what_does_not_get_smaller_is_not_compressed() {
        for bytes in [&b""[..], b"a", b"abcdefgh", &[7, 200, 33, 91, 140, 2, 77, 250, 61, 18]] {
            assert_eq!(compressed(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn stream_with_flushes_is_expanded() {
        let text = text(50_000);
        let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), Compression::best());
        for part in text.chunks(7_001) {
            writer.write_all(part).unwrap();
            writer.flush().unwrap();
        }
        assert_eq!(expanded(&writer.finish().unwrap(), text.len()), Ok(text));
    }

    #[test]
    fn cut_changed_or_longer_streams_are_refused() {
        let text = text(5_000);
        let whole = compressed(&text).unwrap();
        for length in 0..whole.len() {
            assert!(expanded(&whole[..length], text.len()).is_err(), "{length} bytes");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(expanded(&longer, text.len()), Err(InflateError::Length { length: text.len() }));
        assert_eq!(expanded(&[7; 100], 100), Err(InflateError::Invalid));
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            if let Ok(read) = expanded(&changed, text.len()) {
                assert_eq!(read.len(), text.len());
            }
        }
    }

    fn noise(length: u32) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn frame_is_compressed_if_it_is_long_and_gets_shorter() {
        let frame = text(SHORT + 1);
        let packet = compressed_frame(&frame).unwrap();
        assert!(is_compressed_frame(&packet) && packet.len() < frame.len());
        assert_eq!(packet[..HEAD], [MARK, 0, 0, 0x04, 0xb1]);
        assert_eq!(expanded_frame(&packet, frame.len()).as_ref(), Ok(&frame));
        assert_eq!(compressed_frame(&text(SHORT)), None);
        assert_eq!(compressed_frame(&noise(SHORT as u32 + 1)), None, "it does not get shorter");
    }

    #[cfg(feature = "record")]
    #[test]
    fn every_frame_can_be_packed() {
        for frame in
            [text(5_000), text(1), Vec::new(), noise(70_000), noise(65_535), vec![0; EXPANDED_ANYWAY + 1]]
        {
            let packet = packed_frame(&frame);
            assert!(is_compressed_frame(&packet));
            assert_eq!(expanded_frame(&packet, frame.len()), Ok(frame));
        }
    }

    #[test]
    fn frame_that_is_longer_than_allowed_or_announced_is_refused() {
        let packet = compressed_frame(&text(5_000)).unwrap();
        assert!(expanded_frame(&packet, 5_000).is_ok());
        assert_eq!(expanded_frame(&packet, 4_999), Err(InflateError::Length { length: 4_999 }));
        for (at, wrong) in [(0, 0xc0), (1, 1), (4, packet[4] - 1), (4, packet[4] + 1)] {
            let mut changed = packet.clone();
            changed[at] = wrong;
            assert!(expanded_frame(&changed, usize::MAX).is_err(), "{wrong} at {at}");
        }
        for end in 0..packet.len() {
            assert!(expanded_frame(&packet[..end], 5_000).is_err(), "{end} bytes");
        }
        assert!(expanded_frame(&[&packet[..], &[0]].concat(), 5_000).is_err());
        assert!(!is_compressed_frame(&[]) && !is_compressed_frame(&[0x85, MARK]));
    }

    #[test]
    fn frame_that_expands_to_a_multiple_is_neither_sent_nor_read() {
        let zeros = vec![0; EXPANDED_ANYWAY + 1];
        assert_eq!(compressed_frame(&zeros), None);
        let packet = compressed_frame(&zeros[1..]).unwrap();
        assert_eq!(expanded_frame(&packet, usize::MAX).map(|it| it.len()), Ok(EXPANDED_ANYWAY));
        let stream = compressed(&zeros).unwrap();
        let bomb = [&[MARK], &(zeros.len() as u32).to_be_bytes()[..], &stream].concat();
        assert_eq!(expanded_frame(&bomb, usize::MAX), Err(InflateError::Length { length: EXPANDED_ANYWAY }));
    }

    #[test]
    fn bomb_costs_no_more_than_it_announces() {
        let bomb = compressed(&vec![0; 64 << 20]).unwrap();
        assert!(bomb.len() < 1 << 20);
        assert_eq!(expanded(&bomb, 1_000), Err(InflateError::Length { length: 1_000 }));
        // A stream that announces much and holds little takes little.
        let small = compressed(&text(1_000)).unwrap();
        assert_eq!(expanded(&small, 16 << 20), Err(InflateError::Length { length: 16 << 20 }));
    }
}
