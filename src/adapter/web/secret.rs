//! Makes random ids and tokens, and compares them.

use std::io;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Returns a random text of 128 bits, which cannot be guessed, that can stand in a path: 22 letters, digits, `-` and `_`.
#[cfg(all(feature = "rap", unix))]
pub(in crate::adapter) fn random_text() -> io::Result<String> {
    Ok(URL_SAFE_NO_PAD.encode(random::<16>()?))
}

/// A random key that turns secrets into digests.
///
/// Digests are compared and looked up in place of the secrets: how long that takes tells nothing about how much of two
/// secrets is equal.
pub(in crate::adapter) struct DigestKey([u8; 32]);

/// The digest of a secret.
pub(in crate::adapter) type Digest = [u8; 32];

impl DigestKey {
    pub(in crate::adapter) fn random() -> io::Result<Self> {
        random().map(Self)
    }

    pub(in crate::adapter) fn digest(&self, secret: &[u8]) -> Digest {
        // A key of HMAC may have any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return self.0 };
        mac.update(secret);
        mac.finalize().into_bytes().into()
    }
}

/// A random bearer token of 256 bits.
#[cfg(feature = "mcp-server")]
pub(in crate::adapter) struct Token {
    text: String,
    key: DigestKey,
    digest: Digest,
}

#[cfg(feature = "mcp-server")]
impl Token {
    pub(in crate::adapter) fn random() -> io::Result<Self> {
        let (text, key) = (URL_SAFE_NO_PAD.encode(random::<32>()?), DigestKey::random()?);
        let digest = key.digest(text.as_bytes());
        Ok(Self { text, key, digest })
    }

    pub(in crate::adapter) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the value of an `Authorization` header has this token.
    pub(in crate::adapter) fn is_in(&self, header: &[u8]) -> bool {
        let Some((scheme, token)) = header.split_at_checked("Bearer ".len()) else { return false };
        let is_equal = self.key.digest(token.trim_ascii()) == self.digest;
        scheme.eq_ignore_ascii_case(b"Bearer ") && is_equal
    }
}

fn random<const SIZE: usize>() -> io::Result<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(feature = "rap", unix))]
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

    #[cfg(feature = "mcp-server")]
    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = Token::random().unwrap();
        let text = token.as_str();
        assert_eq!(text.len(), 43);
        assert!(token.is_in(format!("Bearer {text}").as_bytes()));
        assert!(token.is_in(format!("bearer {text}").as_bytes()));
        for wrong in [
            String::new(),
            "Bearer ".to_owned(),
            text.to_owned(),
            format!("Basic  {text}"),
            format!("Bearer {text}x"),
        ] {
            assert!(!token.is_in(wrong.as_bytes()), "{wrong}");
        }
        assert!(!token.is_in(format!("Bearer {}", &text[1..]).as_bytes()));
        assert_ne!(Token::random().unwrap().as_str(), text);
    }
}
