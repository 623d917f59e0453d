//! Verifies the signature of a token if the secret is known. No text shows any part of the signature.

use livekit_token::Claims;

use crate::livekit::{
    AccessKey,
    token::signed::{HS256, SignedToken},
};

/// The result of checking a token's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// The given key and secret signed the token.
    Right,
    /// The given secret did not sign the token.
    Wrong,
    /// The token names another API key.
    OtherKey {
        /// The given key.
        local_key: String,
    },
    /// LiveKit rejects this signature algorithm.
    Algorithm(String),
    /// No secret was given.
    NotChecked,
}

/// Checks a token's signature with key and secret, if given.
pub(super) fn check(token: &str, claims: &Claims, signer: Option<&AccessKey>) -> Signature {
    let Some(token) = SignedToken::split(token) else { return Signature::Wrong };
    if token.algorithm != HS256 {
        let plain: String = token.algorithm.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        return Signature::Algorithm(if plain.is_empty() {
            "an unknown algorithm".to_owned()
        } else {
            plain
        });
    }
    let Some(signer) = signer else { return Signature::NotChecked };
    if signer.key() != claims.iss {
        return Signature::OtherKey { local_key: signer.key().to_owned() };
    }
    if token.is_signed_with(signer.secret()) { Signature::Right } else { Signature::Wrong }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;

    const SECRET: &str = "secretsecretsecretsecretsecretsecret";

    fn token() -> (String, Claims) {
        let token = AccessKey::new("devkey", SECRET).client("kitchen", "phone").sign().unwrap();
        let claims = Claims::from_unverified(&token).unwrap();
        (token, claims)
    }

    #[test]
    fn signature_is_verified_with_the_secret() {
        let (token, claims) = token();
        let check = |token: &str, key, secret| check(token, &claims, Some(&AccessKey::new(key, secret)));
        assert_eq!(check(&token, "devkey", SECRET), Signature::Right);
        assert_eq!(check(&token, "devkey", "another"), Signature::Wrong);
        assert_eq!(super::check(&token, &claims, None), Signature::NotChecked);
        let other = Signature::OtherKey { local_key: "APIother".into() };
        assert_eq!(check(&token, "APIother", SECRET), other);
        assert_eq!(check(&token[..token.len() - 2], "devkey", SECRET), Signature::Wrong);
    }

    #[test]
    fn rejected_algorithm_is_named_in_alphanumeric_characters() {
        let (token, claims) = token();
        let rest = token.split_once('.').unwrap().1;
        for (algorithm, shown) in [
            ("none", "none"),
            ("HS512", "HS512"),
            ("RS256\\u001b[31m", "RS25631m"),
            ("", "an unknown algorithm"),
        ] {
            let head = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{algorithm}"}}"#));
            let found = check(&format!("{head}.{rest}"), &claims, None);
            assert_eq!(found, Signature::Algorithm(shown.into()));
        }
    }
}
