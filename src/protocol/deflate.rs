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
