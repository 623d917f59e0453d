//! The end of a child's stderr, kept for the error that its owner sees.

/// How much of the end of a child's stderr is kept, in bytes.
pub const MAX_STDERR: usize = 64 << 10;

/// Removes the start of what was written to stderr, so that [`MAX_STDERR`] bytes are left.
pub(crate) fn keep_tail(bytes: &mut Vec<u8>) {
    let excess = bytes.len().saturating_sub(MAX_STDERR);
    bytes.drain(..excess);
}
