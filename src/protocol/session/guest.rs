//! Admission of a participant whose token names no role (`wire.md`, section 4), and why others are not admitted.

use std::time::Instant;

use super::{Event, Session, codec::Incoming, event::Unaccepted, peer::Remote, timers::Timer};
use crate::{
    protocol::frame::{Message, RegisteredTool},
    tool::{
        NotAdmitted, ToolName,
        not_offered::{NAMES_SHOWN, list, shown},
    },
    transport::{Identity, ROLE_ATTRIBUTE, Role},
};

/// Names of tools that are kept of a participant whose registration was refused, to explain a failed call.
const REFUSED_TOOLS: usize = 32;

/// What is known of participants without a role.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// The one that is admitted.
    admitted: Option<Identity>,
    /// A participant with the role `client` was in the room: tokens name roles here.
    roles_seen: bool,
}

impl Session {
    /// Assistant: whether this is the one participant without a role that is admitted.
    pub(super) fn is_guest(&self, id: &Identity, remote: &Remote) -> bool {
        self.guests.admitted.as_ref() == Some(id) && names_no_role(remote)
    }

    /// Assistant: a participant that is not admitted says something. It is admitted if it is the only one in the room
    /// without a role, and speaks as a client does.
    pub(super) fn consider(&mut self, now: Instant, id: &Identity, incoming: &Incoming) {
        let speaks = matches!(incoming.message, Message::Configuration(_) | Message::ToolsRegister(_));
        if !speaks || self.is_client() {
            return;
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        if !remote.knocked {
            remote.knocked = true;
            self.admit_the_only_one(now);
        }
    }

    /// Assistant: somebody came, left or spoke: the only participant without a role is admitted, if it spoke.
    pub(super) fn admit_the_only_one(&mut self, now: Instant) {
        if self.is_client() || self.guests.admitted.is_some() || !self.admits_without_role() {
            return;
        }
        let mut without = self.peers.iter().filter(|(_, it)| is_ordinary(it));
        let (Some((id, remote)), None) = (without.next(), without.next()) else { return };
        if remote.knocked && names_no_role(remote) && !remote.pair.left {
            let id = id.clone();
            tracing::debug!(peer = %id, "admitted without a role, as the only participant of its kind");
            self.guests.admitted = Some(id.clone());
            if let Some(remote) = self.peers.get_mut(&id) {
                remote.pair.heard = false; // a call named it before: it registers again when we repeat ourselves
                remote.pair.greetings = 0;
            }
            self.greet(now, &id);
        }
    }

    /// Assistant: the room tells of a participant. One with the role `client` ends the admission of one without.
    pub(super) fn judge_newcomer(&mut self, now: Instant, id: &Identity) {
        self.registrations += 1;
        let Some(remote) = self.peers.get(id).filter(|_| !self.is_client()) else { return };
        if remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Client)) {
            self.guests.roles_seen = true;
            if let Some(guest) = self.guests.admitted.take().filter(|guest| guest != id) {
                self.dismiss(now, &guest);
            }
        } else if self.guests.admitted.as_ref() == Some(id) && !names_no_role(remote) {
            self.guests.admitted = None; // its token, or what it may change, is another one now
            self.dismiss(now, id);
        } else if self.guests.admitted.as_ref().is_some_and(|guest| guest != id) && is_ordinary(remote) {
            self.tell_not_admitted(id);
        }
    }

    /// Assistant: the time in which the admitted one could come back is over.
    pub(super) fn guest_is_gone(&mut self, now: Instant, id: &Identity) {
        if self.guests.admitted.as_ref() == Some(id) {
            self.guests.admitted = None;
            self.admit_the_only_one(now);
        }
    }

    /// Assistant: why this participant is not one of our clients; nothing if it is.
    pub(super) fn refusal_of(&self, id: &Identity, remote: &Remote) -> Option<NotAdmitted> {
        if self.is_admitted(id, remote) {
            return None;
        }
        let who = remote.who.as_ref()?;
        Some(match who.token_role() {
            Some(role) => NotAdmitted::OtherRole { role },
            None if !who.is_standard() => NotAdmitted::OtherKind,
            None if who.may_update_metadata() || who.attribute(ROLE_ATTRIBUTE).is_some() => {
                NotAdmitted::ChangeableRole
            }
            None => NotAdmitted::NoRole { admitted: self.guests.admitted.clone() },
        })
    }

    /// Assistant: reports, once in each of its joins, that a participant's tools are not taken.
    pub(super) fn tell_not_admitted(&mut self, id: &Identity) {
        let Some(why) = self.peers.get(id).and_then(|remote| self.refusal_of(id, remote)) else { return };
        let Some(remote) = self.peers.get_mut(id) else { return };
        if !std::mem::replace(&mut remote.refusal_told, true) {
            tracing::warn!(participant = %shown(id.as_str()), reason = %why, "its tools are not taken");
            self.event(Event::NotAdmitted { client: id.clone(), why });
        }
    }

    /// Assistant: what a participant that is not admitted would offer.
    pub(super) fn note_refused_tools(&mut self, id: &Identity, offered: &[RegisteredTool]) {
        let Some(remote) = self.peers.get_mut(id).filter(|remote| remote.who.is_some()) else { return };
        let names = offered.iter().filter_map(|tool| tool.name.parse::<ToolName>().ok());
        remote.refused_tools = names.take(REFUSED_TOOLS).collect();
    }

    /// Client: nobody is bound for a while, though somebody is here who might be meant.
    pub(super) fn nobody_bound(&mut self) {
        if !self.is_client() || self.bound.is_some() || self.tools.is_empty() || !self.ambiguous.is_empty() {
            return;
        }
        if self.config.assistant.is_some()
            || self.peers.iter().any(|(id, it)| it.is_here() && self.is_candidate(id, it))
        {
            return;
        }
        let mut here: Vec<_> =
            self.peers.iter().filter(|(_, it)| is_ordinary(it)).map(|(id, _)| id.clone()).collect();
        here.truncate(NAMES_SHOWN);
        if !here.is_empty() && self.no_assistant_among != here {
            self.no_assistant_among.clone_from(&here);
            self.unaccepted(Unaccepted::NoAssistant { here });
        }
    }

    /// Client: nobody knows whether it will ever be bound; that is looked at after a while.
    pub(super) fn look_for_assistant(&mut self, now: Instant) {
        if self.is_client() && self.bound.is_none() && !self.timers.is_set(&Timer::Unbound) {
            self.timers.set(now, Timer::Unbound, self.config.times.owner_wait);
        }
    }

    /// Client: nobody takes our registration.
    pub(super) fn unaccepted(&mut self, why: Unaccepted) {
        tracing::warn!(tools = self.tools.len(), "nobody accepts our tools: {why}");
        self.event(Event::Unaccepted { why });
    }

    /// Whether a participant without a role may be admitted at all.
    fn admits_without_role(&self) -> bool {
        let config = &self.config;
        !config.only_roles
            && config.admitted.is_empty()
            && config.admit_rule.is_none()
            && !self.guests.roles_seen
    }

    /// Its tools are withdrawn. Calls that it runs end as they would have.
    fn dismiss(&mut self, now: Instant, id: &Identity) {
        self.forget_registration(id);
        if let Some(remote) = self.peers.get_mut(id) {
            remote.named = true; // what it says of open calls is still taken
        }
        self.tell_not_admitted(id);
        self.deny_registration(now, id);
    }
}

/// An ordinary participant in the room that nothing vouches for.
fn is_ordinary(remote: &Remote) -> bool {
    let ordinary = |who: &crate::transport::Participant| who.is_standard() && who.token_role().is_none();
    remote.is_here() && remote.who.as_ref().is_some_and(ordinary)
}

/// An ordinary participant whose token names no role. One that may change its attributes may have taken a role away.
fn names_no_role(remote: &Remote) -> bool {
    remote.who.as_ref().is_some_and(|who| {
        who.is_standard() && !who.may_update_metadata() && who.attribute(ROLE_ATTRIBUTE).is_none()
    })
}

impl std::fmt::Display for Unaccepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { by, reason } => write!(f, "{} answered: {}", shown(by.as_str()), escaped(reason)),
            Self::NoAssistant { here } => {
                let name = here.first().map_or_else(String::new, |name| shown(name.as_str()));
                write!(
                    f,
                    "no assistant is here (here: {}): its token needs the kind agent or the attribute \
                     {ROLE_ATTRIBUTE}=assistant, or name it with .assistant(\"{name}\")",
                    list(here, 0)
                )
            }
        }
    }
}

/// Somebody else's words: cut, and without control characters.
fn escaped(text: &str) -> String {
    const MOST: usize = 400;
    text.chars().take(MOST).map(|it| if it.is_control() { ' ' } else { it }).collect()
}
