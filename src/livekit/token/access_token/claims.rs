//! Predicts how other participants treat the bearer of a signed token.

use std::fmt;

use livekit_token::{Claims, VideoGrants};

use crate::transport::{Participant, Role};

/// The most characters of an unknown role that a message shows.
const VALUE_SHOWN: usize = 64;

/// The claims of a token that decide how other participants treat its bearer.
#[derive(Debug)]
pub struct TokenClaims {
    /// The bearer, as the room will announce it.
    bearer: Participant,
    is_hidden: bool,
    may_send: bool,
}

/// A grant that makes a role impossible.
pub(crate) struct Obstacle {
    pub(crate) what: &'static str,
    pub(crate) consequence: &'static str,
    pub(crate) advice: &'static str,
}

/// Returns whether a token allows sending data. Without `canPublishData`, `canPublish` counts.
pub(crate) fn can_publish_data(video: &VideoGrants) -> bool {
    video.can_publish_data.or(video.can_publish).unwrap_or(true)
}

/// Returns what makes a role impossible: the one place where grants are judged. `canSubscribe` concerns audio and video.
pub(crate) fn obstacle(role: Role, is_hidden: bool, may_send: bool) -> Option<Obstacle> {
    match role {
        Role::Observer => None,
        _ if !may_send => Some(Obstacle {
            what: "may not send data",
            consequence: "the participant can neither call tools nor return results",
            advice: "have the token server grant `canPublishData`",
        }),
        _ if is_hidden => Some(Obstacle {
            what: "is hidden",
            consequence: "others do not see the participant, so it can neither offer tools nor call any",
            advice: "have the token server leave out `hidden`",
        }),
        _ => None,
    }
}

/// The role or kind that a token gives its bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bearer {
    /// A participant with this role.
    Role(Role),
    /// A participant of LiveKit's kind `AGENT` without a role.
    Agent,
    /// A participant whose role attribute has this value, which is none of the roles.
    UnknownRole(Box<str>),
}

impl TokenClaims {
    /// Reads the claims of a token without verifying its signature. Returns `None` if the token cannot be read.
    pub fn from_unverified(token: &str) -> Option<Self> {
        let claims = Claims::from_unverified(token).ok()?;
        let bearer = Participant::new(claims.sub, "")
            .agent(claims.kind.eq_ignore_ascii_case("agent"))
            .can_update_metadata(claims.video.can_update_own_metadata == Some(true))
            .attributes(claims.attributes);
        let (is_hidden, may_send) = (claims.video.hidden, can_publish_data(&claims.video));
        Some(Self { bearer, is_hidden, may_send })
    }

    /// Returns true if the bearer receives observer copies of calls.
    pub fn observes(&self) -> bool {
        self.bearer.token_role() == Some(Role::Observer) && !self.is_hidden
    }

    /// Returns true if the bearer joins hidden.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Returns the token's role or kind if it contradicts the wanted role. A token with neither does not contradict it.
    pub fn conflict(&self, wanted: Role) -> Option<Bearer> {
        match self.bearer.stated_role() {
            Some(Ok(role)) => (role != wanted).then_some(Bearer::Role(role)),
            Some(Err(unknown)) => Some(Bearer::UnknownRole(unknown.into())),
            None => (self.bearer.is_agent() && wanted != Role::Assistant).then_some(Bearer::Agent),
        }
    }

    /// Describes what limits the bearer in the wanted role: grants that make it impossible, and a role that the token lacks.
    pub fn warnings(&self, wanted: Role) -> Vec<String> {
        let obstacle = obstacle(wanted, self.is_hidden, self.may_send)
            .map(|it| format!("the bearer of the token {}: {}; {}", it.what, it.consequence, it.advice));
        obstacle.into_iter().chain(self.without_role(wanted)).collect()
    }

    /// Describes the limitations in the wanted role if the token has no role.
    fn without_role(&self, wanted: Role) -> Option<String> {
        let bearer = &self.bearer;
        if bearer.token_role().is_some() || bearer.unknown_role().is_some() || bearer.is_eligible_assistant()
        {
            return None;
        }
        let identity = bearer.identity();
        match wanted {
            Role::Assistant => Some(format!(
                "the token has no role: only clients configured with the assistant {identity} accept it"
            )),
            Role::Client if bearer.may_update_metadata() => Some(format!(
                "the token's role is ignored because the token grants changing attributes (canUpdateOwnMetadata): only \
                 assistants configured with the client {identity} use its tools"
            )),
            Role::Client => Some(format!(
                "the token has no role: only assistants configured with the client {identity}, or that see no other \
                 participant without a role, use its tools"
            )),
            Role::Observer if self.is_hidden => None, // its role is not visible to others
            Role::Observer => Some("the token has no role: only broadcasts are received".to_owned()),
        }
    }
}

impl fmt::Display for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "of role {role}"),
            Self::Agent => f.write_str("of kind agent without a role"),
            Self::UnknownRole(value) => {
                let value: String = value.chars().take(VALUE_SHOWN).flat_map(char::escape_debug).collect();
                write!(f, "of role \"{value}\", which is none of client, assistant and observer")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{livekit::AccessKey, transport::ROLE_ATTRIBUTE};

    fn key() -> AccessKey {
        AccessKey::new("key", "a secret of some length that is long enough")
    }

    fn part(token: crate::livekit::Token) -> TokenClaims {
        TokenClaims::from_unverified(&token.sign().unwrap()).unwrap()
    }

    #[test]
    fn token_conflicts_with_every_role_but_its_own() {
        let roles = [Role::Client, Role::Assistant, Role::Observer];
        for wanted in roles {
            for role in roles {
                let token = match role {
                    Role::Client => key().client("r", "i"),
                    Role::Assistant => key().assistant("r", "i"),
                    Role::Observer => key().observer("r", "i"),
                };
                assert_eq!(part(token).conflict(wanted), (role != wanted).then_some(Bearer::Role(role)));
            }
            assert_eq!(part(key().participant("r", "i")).conflict(wanted), None);
            let agent = part(key().participant("r", "i").agent()).conflict(wanted);
            assert_eq!(agent, (wanted != Role::Assistant).then_some(Bearer::Agent));
        }
        let both = part(key().client("r", "i").agent());
        assert_eq!(both.conflict(Role::Client), None, "its role wins over its kind");
        assert_eq!(both.conflict(Role::Observer), Some(Bearer::Role(Role::Client)));
        assert_eq!(both.conflict(Role::Assistant), Some(Bearer::Role(Role::Client)));
        assert!(TokenClaims::from_unverified("no token").is_none());
    }

    /// A token as a token server may sign it, with this value of the role attribute.
    fn with_value(value: &str, kind: &str, changeable: bool) -> TokenClaims {
        let video = VideoGrants {
            room_join: true,
            room: "r".into(),
            can_update_own_metadata: Some(changeable),
            ..Default::default()
        };
        let token =
            livekit_token::AccessToken::with_api_key("key", "a secret of some length that is long enough")
                .with_identity("i")
                .with_kind(kind)
                .with_attributes([(ROLE_ATTRIBUTE, value)])
                .with_grants(video);
        TokenClaims::from_unverified(&token.to_jwt().unwrap()).unwrap()
    }

    #[test]
    fn token_with_an_unknown_role_conflicts_with_every_role() {
        for value in ["admin", "Assistant", "client ", "x\u{1b}[31m"] {
            for wanted in [Role::Client, Role::Assistant, Role::Observer] {
                for kind in ["standard", "agent"] {
                    let read = with_value(value, kind, false);
                    let bearer = read.conflict(wanted).unwrap();
                    assert_eq!(bearer, Bearer::UnknownRole(value.into()));
                    assert!(!bearer.to_string().contains('\u{1b}'), "{bearer}");
                    assert!(read.without_role(wanted).is_none(), "it is not a token without a role");
                }
            }
            let own = with_value(value, "standard", true);
            assert_eq!(own.conflict(Role::Client), None, "its role is ignored, whatever it is");
            let agent = with_value(value, "agent", true).conflict(Role::Assistant);
            assert_eq!(agent, Some(Bearer::UnknownRole(value.into())), "it limits what the kind gives");
        }
        assert_eq!(with_value("client", "standard", false).conflict(Role::Client), None);
    }

    #[test]
    fn grant_that_makes_a_role_impossible_is_named_with_what_to_do() {
        let hidden = part(key().client("r", "i").hidden());
        for wanted in [Role::Client, Role::Assistant] {
            let [warning] = &hidden.warnings(wanted)[..] else { panic!("{:?}", hidden.warnings(wanted)) };
            assert!(warning.contains("is hidden") && warning.contains("leave out `hidden`"), "{warning}");
        }
        assert!(hidden.warnings(Role::Observer).is_empty());
        let mute = part(key().observer("r", "i"));
        assert!(mute.warnings(Role::Observer).is_empty());
        let warning = &mute.warnings(Role::Client)[0];
        assert!(warning.contains("may not send data") && warning.contains("`canPublishData`"), "{warning}");
        assert!(part(key().client("r", "i")).warnings(Role::Client).is_empty());
    }

    #[test]
    fn warning_about_a_token_without_a_role_names_the_consequences() {
        let says = |token: crate::livekit::Token, wanted| part(token).warnings(wanted).pop();
        let ordinary = || key().participant("r", "phone");
        assert!(says(ordinary(), Role::Client).unwrap().contains("configured with the client phone"));
        let own = ordinary().can_update_own_metadata();
        assert!(says(own, Role::Client).unwrap().contains("canUpdateOwnMetadata"));
        assert!(says(ordinary(), Role::Assistant).unwrap().contains("configured with the assistant phone"));
        assert!(says(ordinary(), Role::Observer).is_some());
        assert!(says(ordinary().hidden(), Role::Observer).is_none(), "its role is not visible to others");
        assert!(says(key().client("r", "i"), Role::Client).is_none());
        assert!(says(ordinary().agent(), Role::Assistant).is_none());
    }
}
