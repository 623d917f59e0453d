//! Verifies access tokens, and issues refreshed ones, with the server's key.

use std::time::Duration;

use livekit_protocol::{ParticipantPermission, participant_info::Kind};
use livekit_token::{AccessToken, Claims, VideoGrants};
use serde_json::{Map, Value};

use super::agents::Assignment;
use crate::livekit::{
    AccessKey,
    token::signed::{HS256, SignedToken},
};

pub(super) use crate::livekit::token::access_token::can_publish_data;

/// The minimum lifetime of a refreshed token, as in livekit-server: 10 min.
const RENEWED: Duration = Duration::from_secs(600);
/// The lifetime of the token of an agent's job, as in livekit-server: 1 h.
const JOB: Duration = Duration::from_secs(3600);
/// The attribute of an agent that names its worker.
const AGENT_NAME: &str = "lk.agent_name";
/// How far the clock of a token's issuer may be off, in seconds, as in livekit-server.
const LEEWAY: u64 = 60;
/// The largest integer up to which floating-point numbers have all integers.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Why a token that is no token is refused.
const UNREADABLE: &str = "invalid authorization token";

/// Verifies a token and returns its claims. `now` is in seconds since 1970.
///
/// It reads claims as livekit-server does: `null` counts as absent, times may have a fraction or be absent, `aud` and unknown
/// claims have no meaning.
///
/// # Errors
/// Why the token is refused, in the words of livekit-server.
pub(super) fn verify(key: &AccessKey, token: &str, now: u64) -> Result<Claims, &'static str> {
    let is_whole = |token: &SignedToken<'_>| token.algorithm == HS256 && token.signature.is_some();
    let token = SignedToken::split(token).filter(is_whole).ok_or(UNREADABLE)?;
    let mut claims = claims_of(&token).ok_or(UNREADABLE)?;
    let [exp, nbf] = times(&mut claims).ok_or(UNREADABLE)?;
    if !has_audience(claims.remove("aud")) {
        return Err(UNREADABLE);
    }
    let (id, preset) = (claims.remove("jti"), claims.remove("roomPreset"));
    // Absent claims are the defaults of `Claims`.
    let mut claims: Claims = serde_json::from_value(Value::Object(claims)).map_err(|_| UNREADABLE)?;
    if claims.sub.is_empty() {
        claims.sub = id.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    if claims.iss != key.key() {
        return Err("invalid API key");
    }
    if !token.is_signed_with(key.secret()) {
        return Err("invalid token, error: its signature is not of the API key's secret");
    }
    if exp.is_some_and(|exp| exp.saturating_add(LEEWAY) <= now) {
        return Err("invalid token, error: it is expired");
    }
    if nbf.is_some_and(|nbf| nbf > now.saturating_add(LEEWAY)) {
        return Err("invalid token, error: it is not valid yet");
    }
    if preset.is_some_and(|preset| preset != "") {
        return Err("this development server has no room presets: leave out `roomPreset`");
    }
    (claims.exp, claims.nbf) = (whole(exp), whole(nbf));
    Ok(claims)
}

/// Returns the claims of a token, which are not verified yet.
fn claims_of(token: &SignedToken<'_>) -> Option<Map<String, Value>> {
    match plain(serde_json::from_slice(&token.claims()?).ok()?) {
        Value::Object(claims) => Some(claims),
        _ => None,
    }
}

/// Removes the members of objects that are `null`, and writes whole numbers without a fraction. The recursion is as deep as
/// the parser of the JSON allows: 128 levels.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name, plain(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            // All of them are exact.
            Some(it) if it.fract() == 0.0 && it.abs() <= EXACT => Value::from(it as i64),
            _ => Value::Number(number),
        },
        other => other,
    }
}

/// Removes the expiry and the begin of the validity, in seconds since 1970, where the claims have them. `iat` has no meaning.
fn times(claims: &mut Map<String, Value>) -> Option<[Option<u64>; 2]> {
    let mut time = |name: &str| match claims.remove(name) {
        None => Some(None),
        Some(Value::Number(number)) => Some(number.as_f64()),
        Some(Value::String(text)) => text.parse().ok().filter(|it: &f64| it.is_finite()).map(Some),
        Some(_) => None,
    };
    let (exp, nbf, _) = (time("exp")?, time("nbf")?, time("iat")?);
    // The conversion drops the fraction, and makes negative times 0.
    Some([exp, nbf].map(|time| time.map(|seconds| seconds as u64)))
}

/// Returns whether `aud` is absent, a text or a list of texts.
fn has_audience(aud: Option<Value>) -> bool {
    match aud {
        None | Some(Value::String(_)) => true,
        Some(Value::Array(items)) => items.iter().all(Value::is_string),
        Some(_) => false,
    }
}

fn whole(time: Option<u64>) -> usize {
    time.and_then(|seconds| usize::try_from(seconds).ok()).unwrap_or_default()
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

/// Returns the kind of the participant.
pub(super) fn kind(claims: &Claims) -> Kind {
    match claims.kind.to_ascii_lowercase().as_str() {
        "agent" => Kind::Agent,
        "ingress" => Kind::Ingress,
        "egress" => Kind::Egress,
        "sip" => Kind::Sip,
        "connector" => Kind::Connector,
        "bridge" => Kind::Bridge,
        _ => Kind::Standard,
    }
}

/// Returns whether the participant is an agent, by its kind or by its grants.
pub(super) fn is_agent(claims: &Claims) -> bool {
    claims.video.agent || kind(claims) == Kind::Agent
}

/// Returns whether a participant neither keeps a room open nor counts for its limit, as with agents and recorders.
pub(super) fn is_dependent(claims: &Claims) -> bool {
    is_agent(claims) || claims.video.recorder || kind(claims) == Kind::Egress
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
        super::verify(&key(), token, crate::dev_server::clock::unix_seconds())
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

    /// Signs claims as they are.
    fn sign(claims: &str) -> String {
        let part = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let text = format!("{}.{}", part(r#"{"alg":"HS256","typ":"JWT"}"#), part(claims));
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    /// Signs claims of the key for a room, with these in addition.
    fn sign_with(more: &str) -> String {
        sign(&format!(
            r#"{{"iss":"devkey","sub":"phone","video":{{"room":"kitchen","roomJoin":true}}{more}}}"#
        ))
    }

    #[test]
    fn token_without_a_key_is_refused() {
        let claims = r#""exp":9999999999,"nbf":0,"sub":"phone","video":{"room":"kitchen","roomJoin":true}"#;
        for key in ["", r#","iss":null"#] {
            let token = sign(&format!("{{{claims}{key}}}"));
            assert_eq!(verify(&token).err(), Some("invalid API key"), "{key}");
        }
    }

    #[test]
    fn claims_are_read_as_livekit_server_reads_them() {
        let null =
            r#","name":null,"metadata":null,"attributes":null,"kind":null,"sip":null,"roomConfig":null"#;
        for more in [
            null,
            r#","exp":null,"nbf":null"#,
            r#","exp":9999999999.75,"nbf":0.5,"iat":0.5"#,
            r#","exp":"9999999999","nbf":-1"#,
            r#","aud":"app""#,
            r#","aud":["app","web"]"#,
            r#","attributes":{"floor":null}"#,
            r#","roomConfig":{"metadata":null,"agents":null,"maxParticipants":2.0}"#,
            r#","unknown":{"claim":1}"#,
        ] {
            let claims = verify(&sign_with(more));
            let claims = claims.unwrap_or_else(|why| panic!("{more}: {why}"));
            assert_eq!(
                (&*claims.sub, &*claims.video.room, claims.video.room_join),
                ("phone", "kitchen", true)
            );
        }
        let rights = sign(r#"{"iss":"devkey","jti":"phone","video":{"room":"kitchen","canPublish":null}}"#);
        let claims = verify(&rights).unwrap();
        assert_eq!((&*claims.sub, claims.video.can_publish), ("phone", None));
        let config = verify(&sign_with(r#","roomConfig":{"maxParticipants":2.0}"#)).unwrap().room_config;
        assert_eq!(config.map(|it| it.max_participants), Some(2));
        for bad in [
            r#","exp":"soon""#,
            r#","exp":true"#,
            r#","aud":7"#,
            r#","name":7"#,
            r#","roomConfig":{"maxParticipants":2.5}"#,
        ] {
            assert_eq!(verify(&sign_with(bad)).err(), Some("invalid authorization token"), "{bad}");
        }
    }

    #[test]
    fn clock_of_the_issuer_may_be_off_by_a_minute() {
        let at = |now| super::verify(&key(), &sign_with(r#","nbf":1000,"exp":2000"#), now).map(|it| it.exp);
        assert_eq!((at(940), at(2059)), (Ok(2000), Ok(2000)));
        assert_eq!(at(939), Err("invalid token, error: it is not valid yet"));
        assert_eq!(at(2060), Err("invalid token, error: it is expired"));
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
