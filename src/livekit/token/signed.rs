//! Splits a token into its parts, and checks its signature.
//!
//! `livekit-token` does both in one step with its reading of the claims, and refuses what livekit-server takes, such as `null`.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

/// The one algorithm of LiveKit's tokens.
pub(crate) const HS256: &str = "HS256";

/// A token whose signature is not checked yet. It has no `Debug`, because whoever has a token can use it.
pub(crate) struct SignedToken<'a> {
    /// The header and the claims, as they were signed.
    text: &'a str,
    /// The name of the algorithm; empty if the header cannot be read.
    pub(crate) algorithm: String,
    /// `None` if it is not in Base64.
    pub(crate) signature: Option<Vec<u8>>,
}

impl<'a> SignedToken<'a> {
    /// Splits a token into its three parts.
    pub(crate) fn split(token: &'a str) -> Option<Self> {
        let (text, signature) = token.rsplit_once('.')?;
        let (head, _) = text.split_once('.')?;
        let head: Option<Value> = decoded(head).and_then(|head| serde_json::from_slice(&head).ok());
        let algorithm =
            head.as_ref().and_then(|head| head.get("alg")?.as_str()).unwrap_or_default().to_owned();
        Some(Self { text, algorithm, signature: decoded(signature) })
    }

    /// Returns the JSON of the claims.
    #[cfg(feature = "dev-server")]
    pub(crate) fn claims(&self) -> Option<Vec<u8>> {
        self.text.split_once('.').and_then(|(_, claims)| decoded(claims))
    }

    /// Checks the signature, by [`HS256`], in constant time.
    pub(crate) fn is_signed_with(&self, secret: &str) -> bool {
        let Some(signature) = &self.signature else { return false };
        Hmac::<Sha256>::new_from_slice(secret.as_bytes())
            .is_ok_and(|mac| mac.chain_update(self.text).verify_slice(signature).is_ok())
    }
}

fn decoded(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}
