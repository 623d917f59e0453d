//! A token read here: its signature, where the secret is at hand, and nothing of it shown.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use livekit_token::Claims;
use serde_json::Value;
use sha2::Sha256;

/// What is known of a token's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// It is of the key and the secret at hand.
    Right,
    /// It is not of that secret.
    Wrong,
    /// The token is of another key.
    OtherKey {
        /// The key at hand.
        local_key: String,
    },
    /// It is of a kind that LiveKit refuses.
    Algorithm(String),
    /// There is no secret at hand.
    NotChecked,
}

/// Looks at a token's signature, with key and secret if they are at hand.
pub(super) fn signature(token: &str, claims: &Claims, signer: Option<(&str, &str)>) -> Signature {
    let Some((signed, signature)) = token.rsplit_once('.') else { return Signature::Wrong };
    let algorithm = algorithm(signed).unwrap_or_default();
    if algorithm != "HS256" {
        let plain: String = algorithm.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        return Signature::Algorithm(if plain.is_empty() { "nothing known".to_owned() } else { plain });
    }
    let Some((key, secret)) = signer else { return Signature::NotChecked };
    if key != claims.iss {
        return Signature::OtherKey { local_key: key.to_owned() };
    }
    let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return Signature::Wrong };
    let right = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .is_ok_and(|mac| mac.chain_update(signed).verify_slice(&signature).is_ok());
    if right { Signature::Right } else { Signature::Wrong }
}

fn algorithm(signed: &str) -> Option<String> {
    let head = URL_SAFE_NO_PAD.decode(signed.split('.').next()?).ok()?;
    let head: Value = serde_json::from_slice(&head).ok()?;
    Some(head.get("alg")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbridge::AccessKey;

    const SECRET: &str = "secretsecretsecretsecretsecretsecret";

    fn token() -> (String, Claims) {
        let token = AccessKey::new("devkey", SECRET).client("kitchen", "phone").sign().unwrap();
        let claims = Claims::from_unverified(&token).unwrap();
        (token, claims)
    }

    #[test]
    fn a_signature_is_of_the_secret_or_not() {
        let (token, claims) = token();
        assert_eq!(signature(&token, &claims, Some(("devkey", SECRET))), Signature::Right);
        assert_eq!(signature(&token, &claims, Some(("devkey", "another"))), Signature::Wrong);
        assert_eq!(signature(&token, &claims, None), Signature::NotChecked);
        let other = Signature::OtherKey { local_key: "APIother".into() };
        assert_eq!(signature(&token, &claims, Some(("APIother", SECRET))), other);
        let cut = &token[..token.len() - 2];
        assert_eq!(signature(cut, &claims, Some(("devkey", SECRET))), Signature::Wrong);
    }

    #[test]
    fn what_livekit_does_not_take_is_named_in_harmless_letters() {
        let (token, claims) = token();
        let rest = token.split_once('.').unwrap().1;
        for (algorithm, shown) in
            [("none", "none"), ("HS512", "HS512"), ("RS256\\u001b[31m", "RS25631m"), ("", "nothing known")]
        {
            let head = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{algorithm}"}}"#));
            let found = signature(&format!("{head}.{rest}"), &claims, Some(("devkey", SECRET)));
            assert_eq!(found, Signature::Algorithm(shown.into()));
        }
    }
}
