//! Tokens: what lets a participant into one room, in one role.
//!
//! Whoever holds the API secret makes them, never a client for itself. The role is an attribute in the
//! token, and it counts only because its holder cannot change it: so a token with a role never allows
//! to change attributes or to administrate the room. Who gets which *identity* matters as much: a later
//! join with an identity puts out the earlier one.

use std::{fmt, time::Duration};

use livekit_token::{AccessToken, VideoGrants};

use crate::transport::{Identity, ROLE_ATTRIBUTE, Role};

mod claims;

pub use claims::{Bearer, TokenClaims};

/// An API key and its secret, as the LiveKit server's configuration has them. `Debug` hides the secret.
#[derive(Clone)]
pub struct AccessKey {
    key: String,
    secret: String,
}

impl AccessKey {
    /// This key and its secret.
    pub fn new(key: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { key: key.into(), secret: secret.into() }
    }

    /// The key's name, which every token shows.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A token for somebody who offers tools.
    ///
    /// ```
    /// use toolbridge::AccessKey;
    ///
    /// let jwt = AccessKey::new("devkey", "a secret of at least 32 characters").client("kitchen", "phone").sign()?;
    /// assert_eq!(jwt.split('.').count(), 3);
    /// # Ok::<(), toolbridge::TokenError>(())
    /// ```
    pub fn client(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        self.participant(room, identity).role(Role::Client)
    }

    /// A token for somebody who asks for tools.
    pub fn assistant(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        self.participant(room, identity).role(Role::Assistant)
    }

    /// A token for somebody who sees every call, and says nothing: it may not publish data.
    pub fn observer(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        self.participant(room, identity).role(Role::Observer)
    }

    /// A token without a role.
    pub fn participant(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        Token {
            key: self.clone(),
            room: room.into(),
            identity: identity.into(),
            role: None,
            attributes: Vec::new(),
            agent: false,
            hidden: false,
            publish_data: true,
            update_own_metadata: false,
            ttl: Token::TTL,
        }
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A token to be signed: it lets one identity join one room, with data and without media of its own.
#[derive(Clone, Debug)]
#[must_use]
pub struct Token {
    key: AccessKey,
    room: String,
    identity: Identity,
    role: Option<Role>,
    attributes: Vec<(String, String)>,
    agent: bool,
    hidden: bool,
    publish_data: bool,
    update_own_metadata: bool,
    ttl: Duration,
}

impl Token {
    /// How long a token lets in by default: 10 min. It is looked at when joining only; the server renews
    /// it for who is in the room.
    pub const TTL: Duration = Duration::from_secs(600);
    /// The longest time that a token may let in: a day. A token cannot be called back.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
    /// The longest room name or identity, in bytes: LiveKit's own limit.
    pub const MAX_NAME: usize = 256;

    fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self.publish_data = role != Role::Observer;
        self
    }

    /// How long it lets in. Default: [`Token::TTL`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Adds an attribute, which everybody in the room sees.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((key.into(), value.into()));
        self
    }

    /// Makes it one of LiveKit's kind `AGENT`, which no longer keeps a room open. Default: no.
    pub fn agent(mut self) -> Self {
        self.agent = true;
        self
    }

    /// Makes it one that the others never see: it hears what goes to the whole room, and no copies, and what it sends
    /// comes of nobody. Default: no.
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Lets it hear only. Default: it may publish data, unless an observer.
    pub fn listen_only(mut self) -> Self {
        self.publish_data = false;
        self
    }

    /// Lets it change its own attributes; never together with a role. Default: no.
    pub fn can_update_own_metadata(mut self) -> Self {
        self.update_own_metadata = true;
        self
    }

    /// The token's text (a JWT).
    ///
    /// # Errors
    /// [`TokenError`]: what was asked for is unusable, or not safe.
    pub fn sign(self) -> Result<String, TokenError> {
        for (what, text) in [("room", &*self.room), ("identity", self.identity.as_str())] {
            if text.is_empty() || text.len() > Self::MAX_NAME {
                return Err(TokenError::Name { what, size: text.len(), limit: Self::MAX_NAME });
            }
        }
        if self.ttl.is_zero() || self.ttl > Self::MAX_TTL {
            return Err(TokenError::Ttl { ttl: self.ttl, limit: Self::MAX_TTL });
        }
        if self.key.key.is_empty() || self.key.secret.is_empty() {
            return Err(TokenError::Key);
        }
        if let Some(role) = self.role.filter(|_| self.update_own_metadata) {
            return Err(TokenError::ChangeableRole { role });
        }
        if self.attributes.iter().any(|(key, _)| key == ROLE_ATTRIBUTE) {
            return Err(TokenError::RoleAttribute);
        }
        let role = self.role.map(|role| (ROLE_ATTRIBUTE.to_owned(), role.as_str().to_owned()));
        let grants = VideoGrants {
            room_join: true,
            room: self.room,
            can_publish: Some(false),
            can_publish_data: Some(self.publish_data),
            can_update_own_metadata: Some(self.update_own_metadata),
            hidden: self.hidden,
            ..Default::default()
        };
        let mut token = AccessToken::with_api_key(&self.key.key, &self.key.secret)
            .with_identity(self.identity.as_str())
            .with_attributes(self.attributes.into_iter().chain(role))
            .with_ttl(self.ttl)
            .with_grants(grants);
        if self.agent {
            token = token.with_kind("agent");
        }
        token.to_jwt().map_err(|error| TokenError::Sign(error.to_string()))
    }
}

/// Why a token was not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The room's name or the identity is empty or too long.
    #[error("the {what} must have 1 to {limit} bytes, not {size}")]
    Name {
        /// `room` or `identity`.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// It would let in for no time, or for too long.
    #[error("a token must be valid for more than 0 s and at most {limit:?}, not {ttl:?}")]
    Ttl {
        /// What was asked for.
        ttl: Duration,
        /// The longest.
        limit: Duration,
    },
    /// The key or the secret is empty.
    #[error("the API key or its secret is empty")]
    Key,
    /// Its holder could make itself anything else.
    #[error(
        "a token with the role `{role}` cannot allow changing its own attributes: the role is one of them"
    )]
    ChangeableRole {
        /// The role.
        role: Role,
    },
    /// The role was given as an attribute.
    #[error("the attribute `{ROLE_ATTRIBUTE}` is the role's: use `client`, `assistant` or `observer`")]
    RoleAttribute,
    /// The signature could not be made.
    #[error("the token cannot be signed: {0}")]
    Sign(String),
}

#[cfg(test)]
mod tests {
    use livekit_token::Claims;

    use super::*;

    const SECRET: &str = "secretsecretsecretsecretsecretsecret";

    fn key() -> AccessKey {
        AccessKey::new("devkey", SECRET)
    }

    fn claims(token: Token) -> Claims {
        Claims::from_unverified(&token.sign().unwrap()).unwrap()
    }

    #[test]
    fn a_role_comes_with_data_without_media_and_without_a_way_to_change_it() {
        for (token, role, data) in [
            (key().client("r", "a"), "client", true),
            (key().assistant("r", "a"), "assistant", true),
            (key().observer("r", "a"), "observer", false),
        ] {
            let claims = claims(token);
            assert_eq!(claims.attributes[ROLE_ATTRIBUTE], role);
            assert_eq!((&*claims.iss, &*claims.sub, &*claims.video.room), ("devkey", "a", "r"));
            assert_eq!(claims.video.can_publish_data, Some(data));
            assert_eq!(claims.video.can_publish, Some(false));
            assert_eq!(claims.video.can_update_own_metadata, Some(false));
            let video = &claims.video;
            assert!(
                video.room_join && !video.room_admin && !video.agent && !video.hidden && !video.room_create
            );
            assert_eq!(claims.exp - claims.nbf, 600);
        }
    }

    #[test]
    fn what_would_be_unsafe_is_refused() {
        let changeable = key().assistant("r", "a").can_update_own_metadata();
        assert_eq!(changeable.sign(), Err(TokenError::ChangeableRole { role: Role::Assistant }));
        let smuggled = key().participant("r", "a").attribute(ROLE_ATTRIBUTE, "assistant");
        assert_eq!(smuggled.sign(), Err(TokenError::RoleAttribute));
        let long = key().client("r", "a").ttl(Token::MAX_TTL + Duration::from_secs(1));
        assert!(matches!(long.sign(), Err(TokenError::Ttl { .. })));
        assert!(matches!(key().client("r", "a").ttl(Duration::ZERO).sign(), Err(TokenError::Ttl { .. })));
        assert!(matches!(key().client("", "a").sign(), Err(TokenError::Name { what: "room", size: 0, .. })));
        let long = "a".repeat(Token::MAX_NAME + 1);
        assert!(matches!(key().client("r", long).sign(), Err(TokenError::Name { what: "identity", .. })));
        assert_eq!(AccessKey::new("k", "").client("r", "a").sign(), Err(TokenError::Key));
    }

    #[test]
    fn what_was_asked_for_is_in_it() {
        let token = key()
            .participant("r", "a")
            .agent()
            .attribute("floor", "2")
            .can_update_own_metadata()
            .listen_only();
        let claims = claims(token);
        assert_eq!((&*claims.kind, &*claims.attributes["floor"]), ("agent", "2"));
        assert_eq!(claims.video.can_update_own_metadata, Some(true));
        assert_eq!(claims.video.can_publish_data, Some(false));
        assert!(!claims.attributes.contains_key(ROLE_ATTRIBUTE));
    }

    #[test]
    fn a_hidden_observer_is_an_observer_and_hidden() {
        let claims = claims(key().observer("r", "a").hidden());
        assert!(claims.video.hidden);
        assert_eq!(
            (&*claims.attributes[ROLE_ATTRIBUTE], claims.video.can_publish_data),
            ("observer", Some(false))
        );
    }

    #[test]
    fn debug_shows_no_secret() {
        let shown = format!("{:?} {:?}", key(), key().client("r", "a"));
        assert!(shown.contains("devkey") && !shown.contains("secret"), "{shown}");
    }
}
