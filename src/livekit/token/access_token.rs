//! Makes LiveKit access tokens. A token lets one identity join one room, optionally with a toolbridge role.
//!
//! Sign tokens on a server that holds the API secret, never in a client. The role is a participant attribute in the token.
//! Other participants trust it because the holder cannot change it, so a token with a role never grants changing
//! attributes or administrating the room. Assign identities with care, too: a participant that joins with an identity
//! already in the room disconnects the earlier one.

use std::{fmt, time::Duration};

use livekit_token::{AccessToken, VideoGrants};
use url::Url;

use crate::{
    net::host,
    transport::{Identity, ROLE_ATTRIBUTE, Role},
};

mod claims;

#[cfg(feature = "dev-server")]
pub(crate) use claims::can_publish_data;
pub(crate) use claims::obstacle;
pub use claims::{Bearer, TokenClaims};

/// The publicly known API key of `livekit-server --dev`.
const DEV_KEY: &str = "devkey";

/// An API key and secret from the LiveKit server's configuration. `Debug` hides the secret.
#[derive(Clone)]
pub struct AccessKey {
    key: String,
    secret: String,
}

impl AccessKey {
    /// Creates an access key from the API key and its secret.
    pub fn new(key: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { key: key.into(), secret: secret.into() }
    }

    /// Returns the API key. Every token contains it in plain text.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the secret.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns whether the key is publicly known, and the URL does not certainly name this machine: a DNS lookup could point
    /// elsewhere. Tokens that such a key signs go nowhere else.
    pub(crate) fn is_public_at(&self, url: &str) -> bool {
        let url = Url::parse(url).ok();
        let is_here = url.as_ref().and_then(Url::host).is_some_and(|host| host::is_certainly_local(&host));
        self.key == DEV_KEY && !is_here
    }

    /// Creates a token with the role `client`, for a participant that offers tools.
    ///
    /// ```
    /// use toolbridge::livekit::AccessKey;
    ///
    /// let jwt = AccessKey::new("devkey", "a secret of at least 32 characters").client("kitchen", "phone").sign()?;
    /// assert_eq!(jwt.split('.').count(), 3);
    /// # Ok::<(), toolbridge::livekit::TokenError>(())
    /// ```
    pub fn client(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        self.participant(room, identity).role(Role::Client)
    }

    /// Creates a token with the role `assistant`, for a participant that calls tools.
    pub fn assistant(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        self.participant(room, identity).role(Role::Assistant)
    }

    /// Creates a token with the role `observer`, for a participant that receives a copy of every call. It does not grant
    /// publishing data.
    pub fn observer(&self, room: impl Into<String>, identity: impl Into<Identity>) -> Token {
        self.participant(room, identity).role(Role::Observer)
    }

    /// Creates a token without a role.
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

/// A builder of an access token. The token grants joining one room and publishing data, but not publishing media.
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
    /// The default validity: 10 min. The server checks it only at a join, and refreshes the token of a connected
    /// participant.
    pub const TTL: Duration = Duration::from_secs(600);
    /// The longest validity: 24 h. A token cannot be revoked.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
    /// The longest room name or identity, in bytes. This is LiveKit's own limit.
    pub const MAX_NAME: usize = 256;

    fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self.publish_data = role != Role::Observer;
        self
    }

    /// Sets the validity. Default: [`Token::TTL`]; maximum: [`Token::MAX_TTL`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Adds a participant attribute. All participants of the room can read it.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((key.into(), value.into()));
        self
    }

    /// Sets LiveKit's participant kind to `AGENT`. Agents alone do not keep a room open. Default: `STANDARD`.
    pub fn agent(mut self) -> Self {
        self.agent = true;
        self
    }

    /// Makes the participant hidden: other participants do not see it. It receives broadcasts but no observer copies, and
    /// its packets arrive without a sender. Default: visible.
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Revokes publishing data. Default: granted, except for observers.
    pub fn listen_only(mut self) -> Self {
        self.publish_data = false;
        self
    }

    /// Grants changing the participant's own attributes. Not allowed together with a role. Default: not granted.
    pub fn can_update_own_metadata(mut self) -> Self {
        self.update_own_metadata = true;
        self
    }

    /// Signs the token and returns it as a JWT.
    ///
    /// # Errors
    /// - [`TokenError::Name`] if the room name or the identity is empty or longer than [`Token::MAX_NAME`].
    /// - [`TokenError::Ttl`] if the validity is zero or longer than [`Token::MAX_TTL`].
    /// - [`TokenError::Key`] if the key or the secret is empty.
    /// - [`TokenError::ChangeableRole`] and [`TokenError::RoleAttribute`] if the role could be changed or forged.
    /// - [`TokenError::Sign`] if signing fails.
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
        // Set as an attribute, a role could be combined with the grant to change it, which the check above
        // refuses.
        if self.attributes.iter().any(|(key, _)| key == ROLE_ATTRIBUTE) {
            return Err(TokenError::RoleAttribute);
        }
        let role = self.role.map(|role| (ROLE_ATTRIBUTE.to_owned(), role.as_str().to_owned()));
        let grants = VideoGrants {
            room_join: true,
            room: self.room,
            // Both are written, because LiveKit takes a missing `canPublishData` for the value of
            // `canPublish`.
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
        token.to_jwt().map_err(|error| TokenError::Sign(error.into()))
    }
}

/// The reason why a token was not signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The room name or the identity is empty or too long.
    #[error("the {what} has {size} bytes; 1 to {limit} are allowed")]
    Name {
        /// `room` or `identity`.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The validity is zero or too long.
    #[error("the token's validity is {} s; it must be more than 0 s and at most {} s", .ttl.as_secs(), .limit.as_secs())]
    Ttl {
        /// The requested validity.
        ttl: Duration,
        /// The longest validity.
        limit: Duration,
    },
    /// The API key or its secret is empty.
    #[error("the API key or its secret is empty; set both")]
    Key,
    /// A token with a role would grant changing attributes, so its holder could change the role.
    #[error(
        "a token with the role `{role}` must not grant changing attributes, because the role is one of them"
    )]
    ChangeableRole {
        /// The role.
        role: Role,
    },
    /// The role was set as an attribute.
    #[error(
        "the attribute `{ROLE_ATTRIBUTE}` is reserved for the role; create the token with `client`, `assistant` or `observer`"
    )]
    RoleAttribute,
    /// Signing failed.
    #[error("cannot sign the token: {0}")]
    Sign(#[source] Box<dyn std::error::Error + Send + Sync>),
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
    fn public_key_is_for_this_machine_only() {
        for here in ["ws://127.0.0.1:7880", "ws://localhost", "wss://[::1]:7880/x", "ws://[::ffff:127.0.0.1]"]
        {
            assert!(!key().is_public_at(here), "{here}");
        }
        for elsewhere in
            ["ws://app.localhost", "ws://localhost.", "ws://evil\\@127.0.0.1", "wss://a@b", "localhost"]
        {
            assert!(key().is_public_at(elsewhere), "{elsewhere}");
            assert!(!AccessKey::new("APItest", SECRET).is_public_at(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn token_with_role_grants_data_but_no_media_and_no_attribute_changes() {
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
    fn unsafe_token_is_rejected() {
        let changeable = key().assistant("r", "a").can_update_own_metadata();
        let refused = changeable.sign();
        assert!(matches!(refused, Err(TokenError::ChangeableRole { role: Role::Assistant })), "{refused:?}");
        let smuggled = key().participant("r", "a").attribute(ROLE_ATTRIBUTE, "assistant");
        assert!(matches!(smuggled.sign(), Err(TokenError::RoleAttribute)));
        let long = key().client("r", "a").ttl(Token::MAX_TTL + Duration::from_secs(1));
        assert!(matches!(long.sign(), Err(TokenError::Ttl { .. })));
        assert!(matches!(key().client("r", "a").ttl(Duration::ZERO).sign(), Err(TokenError::Ttl { .. })));
        assert!(matches!(key().client("", "a").sign(), Err(TokenError::Name { what: "room", size: 0, .. })));
        let long = "a".repeat(Token::MAX_NAME + 1);
        assert!(matches!(key().client("r", long).sign(), Err(TokenError::Name { what: "identity", .. })));
        assert!(matches!(AccessKey::new("k", "").client("r", "a").sign(), Err(TokenError::Key)));
    }

    #[test]
    fn signed_token_contains_the_requested_claims() {
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
    fn hidden_observer_token_has_role_and_hidden_grant() {
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
