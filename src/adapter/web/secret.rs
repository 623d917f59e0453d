//! Random ids and tokens, and their comparison.

use std::io;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The random bits of a token, in bytes: 128 bits cannot be guessed.
const TOKEN: usize = 16;

/// Returns a random text of 128 bits that can stand in a path: 22 letters, digits, `-` and `_`.
pub(super) fn random_text() -> io::Result<String> {
    let mut bytes = [0; TOKEN];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// A random key that turns secrets into digests.
///
/// Digests are compared and looked up in place of the secrets: how long that takes tells nothing about how much of two
/// secrets is equal.
pub(super) struct DigestKey([u8; 32]);

/// The digest of a secret.
pub(super) type Digest = [u8; 32];

impl DigestKey {
    pub(super) fn random() -> io::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Self(key))
    }

    pub(super) fn digest(&self, secret: &[u8]) -> Digest {
        // A key of HMAC may have any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return self.0 };
        mac.update(secret);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_secrets_have_equal_digests() {
        let (key, token) = (DigestKey::random().unwrap(), random_text().unwrap());
        assert_eq!(token.len(), 22);
        assert_eq!(key.digest(token.as_bytes()), key.digest(token.as_bytes()));
        for other in [&token[1..], &format!("{token}x"), &random_text().unwrap(), ""] {
            assert_ne!(key.digest(other.as_bytes()), key.digest(token.as_bytes()));
        }
        assert_ne!(DigestKey::random().unwrap().digest(b"a"), key.digest(b"a"));
    }
}
