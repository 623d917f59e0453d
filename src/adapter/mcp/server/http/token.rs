//! The bearer token.

use std::io;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A random bearer token of 256 bits, compared in constant time.
pub(super) struct Token {
    text: String,
    key: [u8; 32],
}

impl Token {
    pub(super) fn random() -> io::Result<Self> {
        Ok(Self { text: URL_SAFE_NO_PAD.encode(random()?), key: random()? })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the value of an `Authorization` header has this token.
    pub(super) fn is_in(&self, header: &[u8]) -> bool {
        let Some((scheme, token)) = header.split_at_checked("Bearer ".len()) else { return false };
        let Some(expected) = self.mac(self.text.as_bytes()) else { return false };
        let given = self.mac(token.trim_ascii());
        let is_equal = given.is_some_and(|mac| mac.verify(&expected.finalize().into_bytes()).is_ok());
        scheme.eq_ignore_ascii_case(b"Bearer ") && is_equal
    }

    /// Authentication codes of a random key tell nothing about how much of two texts is equal.
    fn mac(&self, text: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::new_from_slice(&self.key).ok()?;
        mac.update(text);
        Some(mac)
    }
}

fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
