//! Tokens: checked at the door, and minted anew for who is inside, with the server's one key.

use std::{fmt, time::Duration};

use livekit_protocol::{ParticipantPermission, participant_info::Kind};
use livekit_token::{AccessToken, Claims, TokenVerifier, VideoGrants};

/// How long a renewed token lets in at least, as the real server has it: 10 min.
const RENEWED: Duration = Duration::from_secs(600);

/// The server's one API key and its secret. `Debug` hides the secret.
#[derive(Clone)]
pub(crate) struct Key {
    name: String,
    secret: String,
}

impl Key {
    /// This key and its secret.
    pub(crate) fn new(name: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { name: name.into(), secret: secret.into() }
    }

    /// The key's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its secret.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// What a token says, if its signature is ours and now, in seconds since 1970, is within its time.
    ///
    /// # Errors
    /// Why it is refused, in words that name it as those of the real server do.
    pub(super) fn verify(&self, token: &str, now: u64) -> Result<Claims, &'static str> {
        let verified = TokenVerifier::with_api_key(&self.name, &self.secret).verify(token);
        // The verifier takes a token that names no key at all; the real server does not.
        if verified.as_ref().is_ok_and(|claims| claims.iss != self.name) {
            return Err("invalid API key");
        }
        verified.map_err(|error| {
            tracing::debug!(%error, "a token was refused");
            match Claims::from_unverified(token) {
                Err(_) => "invalid token",
                Ok(claims) if claims.iss != self.name => "invalid API key",
                Ok(claims) if claims.exp as u64 <= now => "invalid token, error: it is expired",
                Ok(claims) if claims.nbf as u64 > now => "invalid token, error: it is not valid yet",
                Ok(_) => "invalid token, error: its signature is not of the API key's secret",
            }
        })
    }

    /// A newer token with the same claims, valid as long as they are, and for 10 min at least. `now` is in
    /// seconds since 1970.
    pub(super) fn renew(&self, claims: &Claims, now: u64) -> Option<String> {
        let left = Duration::from_secs((claims.exp as u64).saturating_sub(now));
        let token = AccessToken::with_api_key(&self.name, &self.secret)
            .with_identity(&claims.sub)
            .with_name(&claims.name)
            .with_kind(&claims.kind)
            .with_metadata(&claims.metadata)
            .with_attributes(&claims.attributes)
            .with_grants(claims.video.clone())
            .with_ttl(left.max(RENEWED));
        token.to_jwt().inspect_err(|error| tracing::debug!(%error, "no newer token was made")).ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What somebody may do, as the others see it.
pub(super) fn permission(video: &VideoGrants) -> ParticipantPermission {
    #[expect(deprecated, reason = "older clients read who is a recorder or an agent there")]
    ParticipantPermission {
        can_subscribe: video.can_subscribe.unwrap_or(true),
        can_publish: video.can_publish.unwrap_or(true),
        can_publish_data: can_publish_data(video),
        hidden: video.hidden,
        recorder: video.recorder,
        can_update_metadata: video.can_update_own_metadata.unwrap_or(false),
        agent: video.agent,
        ..Default::default()
    }
}

/// Takes over what the room service says somebody may do.
pub(super) fn permit(video: &mut VideoGrants, permission: &ParticipantPermission) {
    video.can_subscribe = Some(permission.can_subscribe);
    video.can_publish = Some(permission.can_publish);
    video.can_publish_data = Some(permission.can_publish_data);
    video.can_update_own_metadata = Some(permission.can_update_metadata);
    video.hidden = permission.hidden;
}

/// Whether somebody may publish data: what does not say so is as with media.
pub(super) fn can_publish_data(video: &VideoGrants) -> bool {
    video.can_publish_data.or(video.can_publish).unwrap_or(true)
}

/// What somebody is.
pub(super) fn kind(claims: &Claims) -> Kind {
    match claims.kind.to_ascii_lowercase().as_str() {
        "agent" => Kind::Agent,
        "ingress" => Kind::Ingress,
        "egress" => Kind::Egress,
        "sip" => Kind::Sip,
        "connector" => Kind::Connector,
        "bridge" => Kind::Bridge,
        _ if claims.video.agent => Kind::Agent,
        _ if claims.video.recorder => Kind::Egress,
        _ => Kind::Standard,
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use hmac::{Hmac, KeyInit as _, Mac as _};
    use sha2::Sha256;

    use super::*;
    use toolbridge::transport::livekit::access_token::AccessKey;

    const SECRET: &str = "secretsecretsecretsecretsecretsecret";

    fn verify(token: &str) -> Result<Claims, &'static str> {
        Key::new("devkey", SECRET).verify(token, 0)
    }

    fn claims() -> Claims {
        let token = AccessKey::new("devkey", SECRET).client("kitchen", "phone").sign().unwrap();
        verify(&token).unwrap()
    }

    #[test]
    fn a_token_of_another_key_or_secret_is_refused_with_the_reason() {
        for (name, secret, why) in [
            ("devkey", "another", "invalid token, error: its signature is not of the API key's secret"),
            ("other", SECRET, "invalid API key"),
        ] {
            let token = AccessKey::new(name, secret).client("kitchen", "phone").sign().unwrap();
            let at = Claims::from_unverified(&token).unwrap().nbf as u64 + 1;
            assert_eq!(Key::new("devkey", SECRET).verify(&token, at).err(), Some(why), "{name}");
        }
        for none in ["", "a", "a.b.c", "eyJhbGciOiJub25lIn0.eyJleHAiOjk5OTk5OTk5OTl9."] {
            assert!(verify(none).is_err_and(|why| why.starts_with("invalid ")), "{none}");
        }
    }

    #[test]
    fn a_token_that_names_no_key_is_refused() {
        let part = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let claims = r#"{"exp":9999999999,"nbf":0,"sub":"phone","video":{"room":"kitchen","roomJoin":true}}"#;
        let text = format!("{}.{}", part(r#"{"alg":"HS256","typ":"JWT"}"#), part(claims));
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()));
        let unnamed = TokenVerifier::with_api_key("devkey", SECRET).verify(&token);
        assert!(unnamed.is_ok_and(|claims| claims.iss.is_empty()), "the signature itself is right");
        assert_eq!(verify(&token).err(), Some("invalid API key"));
    }

    #[test]
    fn a_renewed_token_says_the_same_and_lasts_longer() {
        let old = claims();
        let renewed = Key::new("devkey", SECRET).renew(&old, old.exp as u64).unwrap();
        let new = verify(&renewed).unwrap();
        assert_eq!((&new.sub, &new.video, &new.attributes), (&old.sub, &old.video, &old.attributes));
        assert!(new.exp >= old.exp);
    }

    #[test]
    fn data_may_be_published_unless_the_token_says_no() {
        let may = |publish, data| {
            can_publish_data(&VideoGrants {
                can_publish: publish,
                can_publish_data: data,
                ..Default::default()
            })
        };
        assert!(may(None, None) && may(Some(false), Some(true)));
        assert!(!may(Some(false), None) && !may(None, Some(false)));
    }

    #[test]
    fn what_the_service_permits_is_what_the_others_see() {
        let mut video = claims().video;
        let mut changed = permission(&video);
        changed.can_publish_data = false;
        changed.hidden = true;
        permit(&mut video, &changed);
        assert_eq!(permission(&video), changed);
    }

    #[test]
    fn debug_shows_no_secret() {
        assert!(!format!("{:?}", Key::new("devkey", SECRET)).contains("secretsecret"));
    }
}
