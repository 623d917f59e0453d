//! Makes random-looking ids. They are derived from the seed, so that a run can be repeated exactly.

use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::{tool::CallId, transport::Identity};

/// The length of a NanoID, in characters: 126 bits.
const ID_CHARS: usize = 21;

/// The letters of NanoIDs, in the order of the crate `nanoid`. That crate is not used here, because it needs a source of
/// randomness, and the core has none in a browser. Another order would give the same seed other ids.
const ALPHABET: &[u8; 64] = b"_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The value that identifies a peer's process. Only the local participant may know it, so it is never printed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instance(Arc<str>);

impl Instance {
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance")
    }
}

/// The source of ids and of the instance that each peer is shown.
pub(super) struct Ids {
    /// Has taken the secret. A copy of it makes each id, which is half the work.
    keyed: Hmac<Sha256>,
    counter: u64,
    /// The id of the next call, if a recorded call is repeated.
    given: Option<CallId>,
}

impl Ids {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        // A shorter key is that of a whole block with zeros at its end (RFC 2104).
        let mut block = [0; 64];
        block[..seed.len()].copy_from_slice(&seed);
        Self { keyed: Hmac::new(&block.into()), counter: 0, given: None }
    }

    /// Returns a NanoID that this process has not used.
    pub(super) fn next(&mut self) -> String {
        self.counter += 1;
        let block = self.hmac(b"id", &self.counter.to_be_bytes());
        // 64 characters, so six bits of a byte select each without bias.
        block.iter().take(ID_CHARS).map(|byte| char::from(ALPHABET[usize::from(byte & 63)])).collect()
    }

    /// Returns the id of a new call.
    pub(super) fn next_call(&mut self) -> CallId {
        self.given.take().unwrap_or_else(|| CallId::known(self.next()))
    }

    /// Sets the id of the next call, or clears it.
    #[cfg(feature = "record")]
    pub(super) fn give(&mut self, id: Option<CallId>) {
        self.given = id;
    }

    /// Returns the `bridge.instance` of this process for one peer. It is the same in every join, and useless to any
    /// other participant.
    pub(super) fn instance_for(&self, peer: &Identity) -> String {
        hex(&self.hmac(b"instance", peer.as_str().as_bytes())[..16])
    }

    fn hmac(&self, purpose: &[u8], text: &[u8]) -> [u8; 32] {
        let mac = self.keyed.clone();
        mac.chain_update(purpose).chain_update([0]).chain_update(text).finalize().into_bytes().into()
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ids").field("given", &self.counter).finish_non_exhaustive()
    }
}

/// Returns the `bridge.to` value of an instance: the first 8 bytes of the SHA-256 of its text, in hex.
///
/// It identifies the instance to its owner, without disclosing it to others.
pub(super) fn address_of(instance: &str) -> String {
    hex(&Sha256::digest(instance.as_bytes())[..8])
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_nanoids_and_differ() {
        let mut ids = Ids::new([7; 32]);
        let many: BTreeSet<_> = (0..1000).map(|_| ids.next()).collect();
        assert_eq!(many.len(), 1000);
        assert!(many.iter().all(|id| id.len() == ID_CHARS && id.is_ascii()));
        assert_eq!(Ids::new([7; 32]).next(), Ids::new([7; 32]).next());
        assert_ne!(Ids::new([7; 32]).next(), Ids::new([8; 32]).next());
    }

    #[cfg(feature = "runtime")]
    #[test]
    fn alphabet_is_that_of_nanoids() {
        let letters: Vec<char> = ALPHABET.iter().map(|byte| char::from(*byte)).collect();
        assert_eq!(letters, nanoid::alphabet::SAFE);
    }

    #[test]
    fn each_peer_is_shown_another_instance() {
        let ids = Ids::new([7; 32]);
        let (a, b) = (ids.instance_for(&"a".into()), ids.instance_for(&"b".into()));
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
        assert_eq!(a, Ids::new([7; 32]).instance_for(&"a".into()));
        assert_eq!(address_of(&a).len(), 16);
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", Ids::new([7; 32])).contains('7'));
    }
}
