//! Makes random-looking ids. They are derived from the seed, so that a run can be repeated exactly.

use std::{fmt, sync::Arc};

use ed25519_compact::x25519::{PublicKey, SecretKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::{
    tool::CallId,
    transport::{Peer, Sid},
};

/// The length of a NanoID, in characters: 126 bits.
const ID_CHARS: usize = 21;

/// The letters of NanoIDs, in the order of the crate `nanoid`. That crate is not used here, because it needs a source of
/// randomness, and the core has none in a browser. Another order would give the same seed other ids.
const ALPHABET: &[u8; 64] = b"_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A peer's process: what it shows, and the join in which it was first seen. Another process that shows the same, without the
/// proof that it is the same one, is another instance.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instance(Arc<(Box<str>, Sid)>);

impl Instance {
    pub(super) fn new(shown: &str, first: &Sid) -> Self {
        Self(Arc::new((shown.into(), first.clone())))
    }

    /// Returns what it shows: a public key, unless it is of an implementation that proves nothing.
    pub(super) fn as_str(&self) -> &str {
        &self.0.0
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance")
    }
}

/// The source of ids, and the key pair of this process (X25519, RFC 7748).
pub(super) struct Ids {
    /// Has taken the secret. A copy of it makes each id, which is half the work.
    keyed: Hmac<Sha256>,
    secret: SecretKey,
    instance: Box<str>,
    counter: u64,
    /// The id of the next call, if a recorded call is repeated.
    given: Option<CallId>,
}

impl Ids {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        // A shorter key is that of a whole block with zeros at its end (RFC 2104).
        let mut block = [0; 64];
        block[..seed.len()].copy_from_slice(&seed);
        let keyed = Hmac::new(&block.into());
        let secret = SecretKey::new(hmac(&keyed, b"instance", &[]));
        // The key of a random secret is never the neutral element, which is the only error.
        let public = secret.recover_public_key().map(|key| hex(&*key)).unwrap_or_default();
        Self { keyed, secret, instance: public.into(), counter: 0, given: None }
    }

    /// Returns a NanoID that this process has not used.
    pub(super) fn next(&mut self) -> String {
        self.counter += 1;
        let block = hmac(&self.keyed, b"id", &self.counter.to_be_bytes());
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

    /// Returns the `bridge.instance` of this process: its public key.
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns the `bridge.proof` by which a process proves to another one that it is the owner of its public key in this join:
    /// the local process to a peer that shows this key, or that peer to the local process. Only the two can make it. `None` if
    /// the text is no public key.
    pub(super) fn proof(&self, peer: &str, who: &Peer) -> Option<String> {
        let shared = PublicKey::new(unhex(peer)?).dh(&self.secret).ok()?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&*shared).ok()?;
        for part in [who.identity().as_str(), who.sid().as_str()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        Some(hex(&mac.finalize().into_bytes()[..16]))
    }
}

fn hmac(keyed: &Hmac<Sha256>, purpose: &[u8], text: &[u8]) -> [u8; 32] {
    keyed.clone().chain_update(purpose).chain_update([0]).chain_update(text).finalize().into_bytes().into()
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

/// Returns the 32 bytes of a text of 64 hexadecimal digits.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let digit = |at: usize| char::from(*text.as_bytes().get(at)?).to_digit(16);
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (digit(2 * at)? << 4 | digit(2 * at + 1)?) as u8;
    }
    (text.len() == 64).then_some(bytes)
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
    fn proof_is_worth_something_in_one_join_to_one_peer() {
        let [a, b, other] = [7, 8, 9].map(|seed| Ids::new([seed; 32]));
        let (here, later) = (Peer::new("a", "PA_1"), Peer::new("a", "PA_2"));
        let proof = a.proof(b.instance(), &here).unwrap();
        let is_proven =
            |by: &Ids, shown: &Ids, who: &Peer| by.proof(shown.instance(), who).as_ref() == Some(&proof);
        assert!(is_proven(&b, &a, &here));
        assert!(!is_proven(&b, &a, &later), "another join of the identity");
        assert!(!is_proven(&b, &a, &Peer::new("b", "PA_1")), "another identity");
        assert!(!is_proven(&b, &other, &here), "another process");
        assert!(!is_proven(&other, &a, &here), "shown to another peer");
        assert_eq!(a.instance(), Ids::new([7; 32]).instance());
        for shown in ["", "i1", &"0".repeat(64), &"é".repeat(32), &"1".repeat(63)] {
            assert_eq!(a.proof(shown, &here), None, "{shown} is no public key");
        }
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", Ids::new([7; 32])).contains('7'));
    }
}
