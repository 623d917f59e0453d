//! Verifies access tokens, and issues refreshed ones, with the server's key.

use std::time::Duration;

use livekit_protocol::{ParticipantPermission, participant_info::Kind};
use livekit_token::{AccessToken, Claims, TokenVerifier, VideoGrants};

use super::agents::Assignment;
use crate::livekit::AccessKey;

/// The minimum lifetime of a refreshed token, as in livekit-server: 10 min.
const RENEWED: Duration = Duration::from_secs(600);
/// The lifetime of the token of an agent's job, as in livekit-server: 1 h.
const JOB: Duration = Duration::from_secs(3600);
/// The attribute of an agent that names its worker.
const AGENT_NAME: &str = "lk.agent_name";

/// Verifies a token and returns its claims. `now` is in seconds since 1970.
///
/// # Errors
/// Why the token is refused, in the words of livekit-server.
pub(super) fn verify(key: &AccessKey, token: &str, now: u64) -> Result<Claims, &'static str> {
    let verified = TokenVerifier::with_api_key(key.key(), key.secret()).verify(token);
    // The verifier accepts a token without a key; livekit-server does not.
    if verified.as_ref().is_ok_and(|claims| claims.iss != key.key()) {
        return Err("invalid API key");
    }
    verified.map_err(|error| {
        tracing::debug!(%error, "a token was refused");
        match Claims::from_unverified(token) {
            Err(_) => "invalid token",
            Ok(claims) if claims.iss != key.key() => "invalid API key",
            Ok(claims) if claims.exp as u64 <= now => "invalid token, error: it is expired",
            Ok(claims) if claims.nbf as u64 > now => "invalid token, error: it is not valid yet",
            Ok(_) => "invalid token, error: its signature is not of the API key's secret",
        }
    })
}

/// Issues a new token with the same claims and expiry, valid for at least 10 min. `now` is in seconds since 1970.
pub(super) fn renew(key: &AccessKey, claims: &Claims, now: u64) -> Option<String> {
    let left = Duration::from_secs((claims.exp as u64).saturating_sub(now));
    let token = AccessToken::with_api_key(key.key(), key.secret())
        .with_identity(&claims.sub)
        .with_name(&claims.name)
        .with_kind(&claims.kind)
        .with_metadata(&claims.metadata)
        .with_attributes(&claims.attributes)
        .with_grants(claims.video.clone())
        .with_ttl(left.max(RENEWED));
    token.to_jwt().inspect_err(|error| tracing::debug!(%error, "refreshing a token failed")).ok()
}

/// Issues the token of an agent's job, with the identity, metadata and attributes that its worker answered.
pub(super) fn job(key: &AccessKey, assignment: &Assignment) -> Option<String> {
    let Assignment { job, answer, permission } = assignment;
    let mut attributes = answer.participant_attributes.clone();
    attributes.insert(AGENT_NAME.to_owned(), job.agent_name.clone());
    let room = job.room.as_ref().map(|room| room.name.clone()).unwrap_or_default();
    let mut video = VideoGrants { room_join: true, room, agent: true, ..Default::default() };
    permit(&mut video, permission);
    let token = AccessToken::with_api_key(key.key(), key.secret())
        .with_identity(&answer.participant_identity)
        .with_name(&answer.participant_name)
        .with_kind("agent")
        .with_metadata(&answer.participant_metadata)
        .with_attributes(&attributes)
        .with_grants(video)
        .with_ttl(JOB);
    token.to_jwt().inspect_err(|error| tracing::warn!(%error, "an agent's job got no token")).ok()
}

/// Converts the grants to the permissions that other participants see.
pub(super) fn permission(video: &VideoGrants) -> ParticipantPermission {
    #[expect(deprecated, reason = "older clients read the recorder and agent flags there")]
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

/// Applies permissions set through the room service, or registered by a worker.
pub(super) fn permit(video: &mut VideoGrants, permission: &ParticipantPermission) {
    video.can_subscribe = Some(permission.can_subscribe);
    video.can_publish = Some(permission.can_publish);
    video.can_publish_data = Some(permission.can_publish_data);
    video.can_update_own_metadata = Some(permission.can_update_metadata);
    video.hidden = permission.hidden;
}

/// Returns whether the participant may publish data. The default is the grant for media.
pub(super) fn can_publish_data(video: &VideoGrants) -> bool {
    video.can_publish_data.or(video.can_publish).unwrap_or(true)
}

/// Returns the kind of the participant.
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

    const SECRET: &str = "secretsecretsecretsecretsecretsecret";

    fn key() -> AccessKey {
        AccessKey::new("devkey", SECRET)
    }

    fn verify(token: &str) -> Result<Claims, &'static str> {
        super::verify(&key(), token, 0)
    }

    fn claims() -> Claims {
        let token = key().client("kitchen", "phone").sign().unwrap();
        verify(&token).unwrap()
    }

    #[test]
    fn token_of_another_key_or_secret_is_refused_with_the_reason() {
        for (name, secret, why) in [
            ("devkey", "another", "invalid token, error: its signature is not of the API key's secret"),
            ("other", SECRET, "invalid API key"),
        ] {
            let token = AccessKey::new(name, secret).client("kitchen", "phone").sign().unwrap();
            let at = Claims::from_unverified(&token).unwrap().nbf as u64 + 1;
            assert_eq!(super::verify(&key(), &token, at).err(), Some(why), "{name}");
        }
        for none in ["", "a", "a.b.c", "eyJhbGciOiJub25lIn0.eyJleHAiOjk5OTk5OTk5OTl9."] {
            assert!(verify(none).is_err_and(|why| why.starts_with("invalid ")), "{none}");
        }
    }

    #[test]
    fn token_without_a_key_is_refused() {
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
    fn refreshed_token_keeps_its_claims_and_lasts_longer() {
        let old = claims();
        let renewed = renew(&key(), &old, old.exp as u64).unwrap();
        let new = verify(&renewed).unwrap();
        assert_eq!((&new.sub, &new.video, &new.attributes), (&old.sub, &old.video, &old.attributes));
        assert!(new.exp >= old.exp);
    }

    #[test]
    fn data_may_be_published_unless_the_token_denies_it() {
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
    fn permissions_set_by_the_service_are_visible_to_others() {
        let mut video = claims().video;
        let mut changed = permission(&video);
        changed.can_publish_data = false;
        changed.hidden = true;
        permit(&mut video, &changed);
        assert_eq!(permission(&video), changed);
    }

    #[test]
    fn debug_output_hides_the_secret() {
        assert!(!format!("{:?}", AccessKey::new("devkey", SECRET)).contains("secretsecret"));
    }
}
