//! Predicts how other participants treat the bearer of a signed token.

use std::fmt;

use livekit_token::Claims;

use crate::transport::{ROLE_ATTRIBUTE, Role};

impl TokenClaims {
    /// Reads the claims of a token without verifying its signature. Returns `None` if the token cannot be read.
    pub fn from_unverified(token: &str) -> Option<Self> {
        let claims = Claims::from_unverified(token).ok()?;
        // Participants trust a role only if its bearer cannot change its own attributes.
        let changeable = claims.video.can_update_own_metadata == Some(true);
        let role = claims.attributes.get(ROLE_ATTRIBUTE).filter(|_| !changeable);
        Some(Self {
            role: role.and_then(|role| Role::from_text(role)),
            is_agent: claims.kind.eq_ignore_ascii_case("agent"),
            is_hidden: claims.video.hidden,
            is_changeable: changeable,
            identity: claims.sub,
        })
    }
}

/// The claims of a token that decide how other participants treat its bearer.
#[derive(Debug)]
pub struct TokenClaims {
    role: Option<Role>,
    is_agent: bool,
    is_hidden: bool,
    is_changeable: bool,
    identity: String,
}

/// The role or kind that a token gives its bearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bearer {
    /// A participant with this role.
    Role(Role),
    /// A participant of LiveKit's kind `AGENT` without a role.
    Agent,
}

impl TokenClaims {
    /// Returns true if the bearer receives observer copies of calls.
    pub fn observes(&self) -> bool {
        self.role == Some(Role::Observer) && !self.is_hidden
    }

    /// Returns true if the bearer joins hidden.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Returns the token's role or kind if it contradicts the wanted role. A token with neither does not contradict it.
    pub fn conflict(&self, wanted: Role) -> Option<Bearer> {
        let is_it = match wanted {
            Role::Assistant => self.is_agent || self.role == Some(wanted),
            Role::Client | Role::Observer => !self.is_agent && self.role == Some(wanted),
        };
        match self.role {
            _ if is_it => None,
            Some(role) => Some(Bearer::Role(role)),
            None if self.is_agent => Some(Bearer::Agent),
            None => None,
        }
    }

    /// Describes the limitations in the wanted role if the token has no role. Returns `None` if there are none.
    pub fn without_role(&self, wanted: Role) -> Option<String> {
        if self.role.is_some() || self.is_agent {
            return None;
        }
        let identity = &self.identity;
        match wanted {
            Role::Assistant => Some(format!(
                "the token has no role: only clients configured with the assistant {identity} accept it"
            )),
            Role::Client if self.is_changeable => Some(format!(
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
            Self::Agent => f.write_str("of kind agent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::livekit::AccessKey;

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
        assert_eq!(both.conflict(Role::Client), Some(Bearer::Role(Role::Client)), "an agent offers no tools");
        assert!(TokenClaims::from_unverified("no token").is_none());
    }

    #[test]
    fn warning_about_a_token_without_a_role_names_the_consequences() {
        let says = |token: crate::livekit::Token, wanted| part(token).without_role(wanted);
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
