//! The end of a child's stderr, kept for the error that its owner sees.

/// How much of the end of a child's stderr is kept, in bytes.
pub const MAX_STDERR: usize = 64 << 10;

/// Removes the start of what was written to stderr, so that [`MAX_STDERR`] bytes are left.
pub(crate) fn keep_tail(bytes: &mut Vec<u8>) {
    let excess = bytes.len().saturating_sub(MAX_STDERR);
    bytes.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_stderr_is_kept() {
        let mut bytes: Vec<u8> = (0..2 * MAX_STDERR).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let end = bytes[MAX_STDERR..].to_vec();
        keep_tail(&mut bytes);
        assert!(bytes == end);
        keep_tail(&mut bytes);
        assert_eq!(bytes.len(), MAX_STDERR);
    }
}
