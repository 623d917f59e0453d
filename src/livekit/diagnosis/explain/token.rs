//! Explains problems of the token before a server checks it.

use livekit_token::Claims;

use super::{network::LEEWAY, span};
use crate::{
    livekit::diagnosis::{check::Finding, signature::Signature},
    transport::{ROLE_ATTRIBUTE, Role},
};

/// A token that expires sooner than this, in seconds, gets a warning. Servers check tokens only at the join.
const SOON: i64 = 30;

/// Describes the tokens that the diagnosis creates.
pub(crate) fn made(key: &str, room: &str) -> Finding {
    Finding::ok(format!("created for this check with the API key {key}, for the room {room}"))
}

/// Explains a given token. `now` is the server's time, as far as it is known, in seconds since 1970.
pub(crate) fn given(claims: Option<&Claims>, signature: &Signature, now: i64) -> Finding {
    let Some(claims) = claims else {
        return Finding::failed(
            "the given text is not a token (a JWT: three parts separated by dots)",
            "pass the complete text from the token server, without quotes and without `Bearer`",
        );
    };
    let found = what(claims);
    let finding = problem(claims, signature, now);
    finding.map_or_else(|| Finding::ok(&*found), |finding| finding.found(&*found))
}

fn what(claims: &Claims) -> String {
    let role = match claims.attributes.get(ROLE_ATTRIBUTE) {
        Some(role) => format!("role {role}"),
        None if is_agent(claims) => "an agent".to_owned(),
        None => "no role".to_owned(),
    };
    format!(
        "for {} in the room {}, {role}, signed with the API key {}",
        named(&claims.sub),
        named(&claims.video.room),
        named(&claims.iss)
    )
}

fn is_agent(claims: &Claims) -> bool {
    claims.kind.eq_ignore_ascii_case("agent")
}

fn named(text: &str) -> &str {
    if text.is_empty() { "(none)" } else { text }
}

fn problem(claims: &Claims, signature: &Signature, now: i64) -> Option<Finding> {
    const NEW: &str = "get a new token from the token server (or create one with `toolbridge token`)";
    let until = i64::try_from(claims.exp).unwrap_or(i64::MAX);
    let from = i64::try_from(claims.nbf).unwrap_or(i64::MAX);
    if let Signature::Algorithm(name) = signature {
        return Some(Finding::failed(
            format!("the token is signed with {name}, which LiveKit does not accept"),
            "sign it with HS256 and the API secret, as LiveKit's SDKs do",
        ));
    }
    if until != 0 && until.saturating_add(LEEWAY) < now {
        let text = format!("the token expired {} ago", span(now - until));
        return Some(Finding::failed(
            text,
            format!("{NEW}; make it valid for longer than an app needs to start"),
        ));
    }
    if from - LEEWAY > now {
        let text = format!("the token becomes valid only in {}", span(from - now));
        return Some(Finding::failed(text, "set the clock of the machine that creates tokens (NTP)"));
    }
    if !claims.video.room_join {
        return Some(Finding::failed(
            "the token does not allow joining a room (no `roomJoin`)",
            "have the token server grant `roomJoin` and set the room's name; a token for the server API is not enough",
        ));
    }
    if claims.sub.is_empty() {
        return Some(Finding::failed(
            "the token has no identity (`sub`)",
            "have the token server set a different identity for each participant",
        ));
    }
    if claims.video.room.is_empty() {
        return Some(Finding::failed(
            "the token names no room",
            "have the token server set the room's name (`video.room`)",
        ));
    }
    match signature {
        Signature::Wrong => {
            return Some(Finding::warning(
                "the token was not signed with the given API secret: the token or the secret is wrong",
                "use the same secret in the token server and in the LiveKit server (`keys` in its configuration), without \
                spaces or line ends. If the join below works, the secret given here is wrong",
            ));
        }
        Signature::OtherKey { local_key } => {
            return Some(Finding::warning(
                format!(
                    "the token is signed with the API key {}, but the given API key is {local_key}",
                    named(&claims.iss)
                ),
                "the token server and this machine use different keys. If the join below works, the key given here does \
                not belong to this server: remove or replace it",
            ));
        }
        _ => {}
    }
    let role = claims.attributes.get(ROLE_ATTRIBUTE).map(|role| (role, Role::from_text(role)));
    match role {
        Some((role, None)) => {
            return Some(Finding::warning(
                format!("the attribute {ROLE_ATTRIBUTE} is {role:?}, which is not a role"),
                "set it to `client`, `assistant` or `observer`",
            ));
        }
        // The kind makes its holder an assistant, and the role does not contradict that.
        Some((_, Some(Role::Assistant))) if is_agent(claims) => {}
        Some(_) if claims.video.can_update_own_metadata() => {
            return Some(Finding::warning(
                "other participants ignore the token's role, because its holder may change it (`canUpdateOwnMetadata`)",
                "remove that grant from the token",
            ));
        }
        None if !is_agent(claims) => {
            let (problem, first) = if claims.video.can_update_own_metadata() {
                (
                    "the token has no role, and its holder may change its own attributes (`canUpdateOwnMetadata`): other \
                    participants accept it only if they are configured with its identity",
                    "remove that grant from the token, and ",
                )
            } else {
                (
                    "the token has no role: an assistant accepts its tools only if no other participant in the room is \
                    without a role, or if configured with its identity; a client accepts it as assistant only if configured \
                    with its identity",
                    "",
                )
            };
            return Some(Finding::warning(
                problem,
                format!(
                    "{first}have the token server set the attribute {ROLE_ATTRIBUTE} to `client`, `assistant` or `observer`"
                ),
            ));
        }
        _ => {}
    }
    if until != 0 && until - now < SOON {
        return Some(Finding::warning(
            "the token expires in less than 30 seconds",
            "get a new token for each start of an app; ten minutes is a usual lifetime",
        ));
    }
    None
}

#[cfg(test)]
mod tests;
