//! Compares the rights of the tokens of one identity. A server gives a connection that resumes the rights of the participant
//! that it resumes, as livekit-server does; so the token for it must not have fewer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use livekit_token::Claims;

use crate::{dev_server::grant, transport::ROLE_ATTRIBUTE};

/// The time for which the tokens of a participant that has left are remembered.
const RECENT: Duration = Duration::from_secs(60);
/// The maximum number of remembered participants of one room that have left; the oldest are forgotten.
const MAX_LEFT: usize = 64;
/// The maximum number of different rights that are remembered for one participant. Changes through the room service add to
/// them. The first, which its own token gave it, are kept.
const MAX_ISSUED: usize = 8;
/// The maximum number of warnings for one room.
const MAX_WARNINGS: usize = 64;
/// The maximum number of characters of a role that a warning shows.
const ROLE_SHOWN: usize = 32;

/// What a token lets its bearer do: names and values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights([(&'static str, String); 9]);

/// The rights of all tokens that one participant has, of which it may show any: its own, and those that the server has
/// refreshed.
#[derive(Clone, Debug)]
pub(super) struct Issued(Vec<Rights>);

/// The tokens of the participants that have left a room.
#[derive(Debug, Default)]
pub(super) struct Holders {
    left: BTreeMap<String, (Instant, Issued)>,
    warned: BTreeSet<String>,
}

impl Rights {
    fn of(claims: &Claims) -> Self {
        let (video, permission) = (&claims.video, grant::permission(&claims.video));
        let yes = |it: bool| if it { "yes" } else { "no" }.to_owned();
        let role = claims.attributes.get(ROLE_ATTRIBUTE).map_or_else(
            || "none".to_owned(),
            |role| format!("{:?}", role.chars().take(ROLE_SHOWN).collect::<String>()),
        );
        Self([
            ("role", role),
            ("kind", grant::kind(claims).as_str_name().to_ascii_lowercase()),
            ("canPublishData", yes(permission.can_publish_data)),
            ("canPublish", yes(permission.can_publish)),
            ("canSubscribe", yes(permission.can_subscribe)),
            ("canUpdateOwnMetadata", yes(permission.can_update_metadata)),
            ("hidden", yes(video.hidden)),
            ("recorder", yes(video.recorder)),
            ("roomAdmin", yes(video.room_admin)),
        ])
    }

    /// Describes what these rights have that the other ones do not.
    fn differences(&self, before: &Self) -> String {
        let pairs = self.0.iter().zip(&before.0).filter(|(now, before)| now != before);
        let texts = pairs.map(|((name, now), (_, before))| format!("{name} was {before} and is {now}"));
        texts.collect::<Vec<_>>().join(", ")
    }
}

impl Issued {
    /// Returns the rights of a token that a participant joins with.
    pub(super) fn new(claims: &Claims) -> Self {
        Self(vec![Rights::of(claims)])
    }

    /// Adds the rights of a token that the server issues.
    pub(super) fn add(&mut self, claims: &Claims) {
        let rights = Rights::of(claims);
        if !self.0.contains(&rights) {
            if self.0.len() >= MAX_ISSUED {
                self.0.remove(1);
            }
            self.0.push(rights);
        }
    }

    /// Returns how a token's rights differ from all of these, or `None` if they are among them.
    pub(super) fn differences(&self, claims: &Claims) -> Option<String> {
        let rights = Rights::of(claims);
        let last = self.0.last().filter(|_| !self.0.contains(&rights))?;
        Some(rights.differences(last))
    }
}

impl Holders {
    /// Remembers the tokens of a participant that leaves.
    pub(super) fn leave(&mut self, now: Instant, identity: &str, issued: Issued) {
        self.left.retain(|_, (at, _)| now.saturating_duration_since(*at) < RECENT);
        if self.left.len() >= MAX_LEFT
            && let Some(oldest) = self.left.iter().min_by_key(|(_, (at, _))| *at).map(|(it, _)| it.clone())
        {
            self.left.remove(&oldest);
        }
        self.left.insert(identity.to_owned(), (now, issued));
    }

    /// Returns the rights of a participant that joins, with those of the participant of this identity that has just left if
    /// it shows one of its tokens; otherwise also how the token differs.
    pub(super) fn join(&mut self, now: Instant, claims: &Claims) -> (Issued, Option<String>) {
        let before = self.left.remove(&claims.sub);
        let before = before.filter(|(at, _)| now.saturating_duration_since(*at) < RECENT);
        let Some((_, issued)) = before else { return (Issued::new(claims), None) };
        match issued.differences(claims) {
            None => (issued, None),
            differences => (Issued::new(claims), differences),
        }
    }

    /// Returns whether this was not warned of yet in this room, and may be.
    pub(super) fn may_warn(&mut self, warning: &str) -> bool {
        self.warned.len() < MAX_WARNINGS && self.warned.insert(warning.to_owned())
    }
}
