//! What a token says, before any server sees it.

use livekit_token::Claims;

use super::{network::LEEWAY, span};
use crate::cli::doctor::{step::StepReport, token::Signature};
use toolbridge::{ROLE_ATTRIBUTE, Role};

/// A token that lets in for less than this, in seconds, is warned of: one is looked at when joining only.
const SOON: i64 = 30;

/// A token of our own making.
pub(in crate::cli::doctor) fn made(key: &str, room: &str) -> StepReport {
    StepReport::ok(format!("made here for this check, with the key {key}, for the room {room}"))
}

/// A token that was given. `now` is the server's time in seconds since 1970, as far as it is known.
pub(in crate::cli::doctor) fn given(claims: Option<&Claims>, signature: &Signature, now: i64) -> StepReport {
    let Some(claims) = claims else {
        return StepReport::failed(
            "what was given is no token (a JWT of three parts with dots between them)",
            "pass the text that the token server gave, whole, without quotes and without `Bearer`",
        );
    };
    let found = what(claims);
    let report = wrong(claims, signature, now);
    report.map_or_else(|| StepReport::ok(&*found), |report| report.found(&*found))
}

fn what(claims: &Claims) -> String {
    let role = match claims.attributes.get(ROLE_ATTRIBUTE) {
        Some(role) => format!("role {role}"),
        None if claims.kind.eq_ignore_ascii_case("agent") => "an agent".to_owned(),
        None => "no role".to_owned(),
    };
    format!(
        "for {} in the room {}, {role}, from the key {}",
        named(&claims.sub),
        named(&claims.video.room),
        named(&claims.iss)
    )
}

fn named(text: &str) -> &str {
    if text.is_empty() { "(none)" } else { text }
}

fn wrong(claims: &Claims, signature: &Signature, now: i64) -> Option<StepReport> {
    const NEW: &str = "have the token server make a new one (`toolbridge token` makes one for a try)";
    let until = i64::try_from(claims.exp).unwrap_or(i64::MAX);
    let from = i64::try_from(claims.nbf).unwrap_or(i64::MAX);
    if let Signature::Algorithm(name) = signature {
        return Some(StepReport::failed(
            format!("the token is signed by {name}, which LiveKit does not take"),
            "have it signed by HS256 with the API secret, as LiveKit's SDKs do",
        ));
    }
    if until != 0 && until.saturating_add(LEEWAY) < now {
        let text = format!("the token's time has been over for {}", span(now - until));
        return Some(StepReport::failed(
            text,
            format!("{NEW}; let it live longer than an app needs to start"),
        ));
    }
    if from - LEEWAY > now {
        let text = format!("the token is valid only in {}", span(from - now));
        return Some(StepReport::failed(text, "set the clock of the machine that makes tokens (NTP)"));
    }
    if !claims.video.room_join {
        return Some(StepReport::failed(
            "the token does not let anybody into a room (no `roomJoin`)",
            "have the token server grant `roomJoin` and the room's name; a token for the server's API is another one",
        ));
    }
    if claims.sub.is_empty() {
        return Some(StepReport::failed(
            "the token names nobody (no `sub`, the identity)",
            "have the token server set an identity, another one for each participant",
        ));
    }
    if claims.video.room.is_empty() {
        return Some(StepReport::failed(
            "the token names no room",
            "have the token server write the room's name into it (`video.room`)",
        ));
    }
    match signature {
        Signature::Wrong => {
            return Some(StepReport::warning(
                "the token was not signed with the API secret that was given here: one of the two is wrong",
                "use the same secret for the token server as for the LiveKit server (`keys` in its configuration); look for \
                 a space or line end in it. If the join below works, it is the secret here that is wrong",
            ));
        }
        Signature::OtherKey { local_key } => {
            return Some(StepReport::warning(
                format!(
                    "the token is from the key {}, and the key given here is {local_key}",
                    named(&claims.iss)
                ),
                "the token server and this machine have different keys. If the join below works, it is the one here that \
                 does not belong to this server: leave it out, or take the other one",
            ));
        }
        _ => {}
    }
    let role = claims.attributes.get(ROLE_ATTRIBUTE).map(|role| (role, Role::from_text(role)));
    match role {
        Some((role, None)) => {
            return Some(StepReport::warning(
                format!("the attribute {ROLE_ATTRIBUTE} says {role:?}, which is no role"),
                "it is `client`, `assistant` or `observer`",
            ));
        }
        Some(_) if claims.video.can_update_own_metadata() => {
            return Some(StepReport::warning(
                "the token has a role, but nobody believes it: its holder may change it (`canUpdateOwnMetadata`)",
                "take that grant out of the token",
            ));
        }
        None if !claims.kind.eq_ignore_ascii_case("agent") => {
            let (wrong, first) = if claims.video.can_update_own_metadata() {
                (
                    "the token has no role, and its holder may change its own attributes (`canUpdateOwnMetadata`): others \
                     have to do with it only if they name its identity",
                    "take that grant out of the token, and ",
                )
            } else {
                (
                    "the token has no role: an assistant takes tools from its holder only if nobody else in the room is \
                     without a role, or if it names the identity; no client takes it for its assistant unless it names it",
                    "",
                )
            };
            return Some(StepReport::warning(
                wrong,
                format!(
                    "{first}have the token server set the attribute {ROLE_ATTRIBUTE} to `client`, `assistant` or `observer`"
                ),
            ));
        }
        _ => {}
    }
    if until != 0 && until - now < SOON {
        return Some(StepReport::warning(
            "the token's time is all but over",
            "take a fresh one for each start of an app; ten minutes are usual",
        ));
    }
    None
}

#[cfg(test)]
mod tests;
