//! Admits a participant whose token names no role (`wire.md`, section 4.4), and explains why others are not
//! admitted.

use super::{Context, Delivery, Peers, Received, Remote};
use crate::{
    protocol::{
        frame::{Message, RegisteredTool},
        session::{Event, Unaccepted},
    },
    tool::{
        NotAdmitted, NotAssistant, ToolName,
        not_offered::{NAMES_SHOWN, list, shown},
    },
    transport::{Identity, Participant, ROLE_ATTRIBUTE, Role},
};

/// The limit on remembered tool names of a participant whose registration was refused. They explain a failed call.
const REFUSED_TOOLS: usize = 32;

/// How the server has changed the rights of a participant in its present join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RightsChange {
    /// It has as many as before.
    None,
    /// It may no longer be bound or called.
    Lost,
    /// It may be bound or called now.
    Gained,
}

/// The state of participants without a role.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// The participant that is admitted.
    guest: Option<Identity>,
    /// Whether a participant with the role `client` was in the room, which shows that tokens name roles.
    roles_seen: bool,
}

impl Peers {
    /// Assistant: handles a frame of a participant that may not be admitted. It is admitted if it is the only one in
    /// the room without a role and sends what a client sends.
    pub(crate) fn consider(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        incoming: &Received,
    ) {
        let speaks = matches!(incoming.message, Message::Configuration(_) | Message::ToolsRegister(_));
        if !speaks || cx.is_client() {
            return;
        }
        let Some(remote) = self.remotes.get_mut(id) else { return };
        if !std::mem::replace(&mut remote.join.asked_for_admission, true) {
            self.admit_the_only_one(cx, delivery);
        }
    }

    /// Assistant: admits the only participant without a role, if it has sent a frame.
    pub(crate) fn admit_the_only_one(&mut self, cx: &mut Context, delivery: &mut Delivery) {
        if cx.is_client() || self.admission.guest.is_some() || !self.admits_without_role(cx) {
            return;
        }
        let mut without = self.remotes.iter().filter(|(_, it)| is_ordinary(it));
        // One that can change its attributes counts here as a second one and is not admitted below: it may
        // have removed a role (`wire.md`, section 4.4).
        let (Some((id, remote)), None) = (without.next(), without.next()) else { return };
        if remote.join.asked_for_admission && names_no_role(remote) && !remote.has_left() {
            let id = id.clone();
            tracing::debug!(peer = %id, "admitted without a role, as the only participant of its kind");
            self.admission.guest = Some(id.clone());
            self.renew_pair(cx, delivery, &id); // a call may have named it before: it registers when it is greeted again
            self.greet(cx, delivery, &id);
        }
    }

    /// Assistant: withdraws the admission of a participant that did not return in time.
    pub(crate) fn dismiss_absent(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        if self.admission.guest.as_ref() == Some(id) {
            self.admission.guest = None;
            self.admit_the_only_one(cx, delivery);
        }
    }

    /// Assistant: returns the reason why this participant is not one of the clients, or `None` if it is.
    pub(crate) fn refusal_of(&self, cx: &Context, id: &Identity, remote: &Remote) -> Option<NotAdmitted> {
        if self.is_admitted(cx, id, remote) {
            return None;
        }
        let who = remote.join.participant.as_ref()?;
        Some(match (who.token_role(), who.unknown_role()) {
            (Some(role), _) => NotAdmitted::OtherRole { role },
            (None, Some(value)) => NotAdmitted::UnknownRole { value: value.into() },
            (None, None) if !who.is_standard() => NotAdmitted::OtherKind,
            (None, None) if who.may_update_metadata() => NotAdmitted::ChangeableRole,
            (None, None) => NotAdmitted::NoRole { admitted: self.admission.guest.clone() },
        })
    }

    /// Client: handles the timer of [`look_for_assistant`](Self::look_for_assistant). Reports, once for the same
    /// participants, that none in the room may be the assistant.
    pub(crate) fn report_unbound(&mut self, cx: &mut Context) {
        if !cx.is_client() || self.bound.is_some() || cx.local.tools.is_empty() || !self.ambiguous.is_empty()
        {
            return;
        }
        if cx.config.assistant.is_some()
            || self.present().any(|(id, remote)| self.is_candidate(cx, id, remote))
        {
            return;
        }
        let is_it = |who: &Participant| who.is_standard() && who.token_role().is_none();
        let ordinary = self.present().filter(|(_, it)| it.join.participant.as_ref().is_some_and(is_it));
        let here: Vec<_> = ordinary.map(|(id, _)| id.clone()).take(NAMES_SHOWN).collect();
        if !here.is_empty() && self.no_assistant_among != here {
            self.no_assistant_among.clone_from(&here);
            report_unaccepted(cx, Unaccepted::NoAssistant { here });
        }
    }

    /// Client: returns why the server's description of this participant does not make it an assistant. A client that names
    /// its assistant expects others, and says nothing about them.
    pub(crate) fn why_not_assistant(&self, cx: &Context, id: &Identity) -> Option<NotAssistant> {
        let is_open = cx.is_client() && cx.config.assistant.is_none();
        NotAssistant::of(self.get(id).filter(|_| is_open)?.join.participant.as_ref()?)
    }

    /// Client: reports, once in each of its joins, why a participant that acts as an assistant is not accepted.
    pub(crate) fn report_not_assistant(&mut self, cx: &mut Context, id: &Identity) {
        let Some(why) = self.why_not_assistant(cx, id) else { return };
        let Some(remote) = self.remotes.get_mut(id) else { return };
        if !std::mem::replace(&mut remote.join.refusal_reported, true) {
            report_unaccepted(cx, Unaccepted::NotAssistant { from: id.clone(), why });
        }
    }

    /// Assistant: returns whether this is the one admitted participant without a role.
    pub(super) fn is_guest(&self, id: &Identity, remote: &Remote) -> bool {
        self.admission.guest.as_ref() == Some(id) && names_no_role(remote)
    }

    /// Sets the description that gives a participant its rights in this join, and returns how they have changed.
    pub(super) fn describe(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        described: Option<Participant>,
    ) -> RightsChange {
        let had = self.has_rights(cx, id);
        let Some(remote) = self.remotes.get_mut(id) else { return RightsChange::None };
        remote.join.participant = described;
        self.note_observer(id);
        self.note_change();
        self.check_guest(cx, delivery, id);
        let change = match (had, self.has_rights(cx, id)) {
            (true, false) => RightsChange::Lost,
            (false, true) => RightsChange::Gained,
            _ => RightsChange::None,
        };
        match change {
            RightsChange::Lost if !cx.is_client() => self.dismiss(cx, delivery, id),
            // Both sides begin again, as in a new join: what was sent before counted for nothing.
            RightsChange::Lost | RightsChange::Gained => self.renew_pair(cx, delivery, id),
            RightsChange::None => {}
        }
        self.admit_the_only_one(cx, delivery);
        change
    }

    /// Returns whether a participant may be bound by the local client, or called by the local assistant.
    fn has_rights(&self, cx: &Context, id: &Identity) -> bool {
        self.get(id).is_some_and(|remote| match cx.is_client() {
            true => self.is_candidate(cx, id, remote),
            false => self.is_admitted(cx, id, remote),
        })
    }

    /// Assistant: handles the server's description of a participant. One with the role `client` ends the admission of
    /// one without.
    fn check_guest(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.get(id).filter(|_| !cx.is_client()) else { return };
        let guest = self.admission.guest.as_ref();
        if remote.has_role(Role::Client) {
            // For the rest of the session, whoever leaves: a token server that writes roles has left this one
            // out on purpose.
            self.admission.roles_seen = true;
            if let Some(guest) = self.admission.guest.take().filter(|guest| guest != id) {
                self.dismiss(cx, delivery, &guest);
            }
        } else if guest == Some(id) && !names_no_role(remote) {
            self.admission.guest = None; // its token or its permissions have changed
        } else if guest.is_some_and(|guest| guest != id) && is_ordinary(remote) {
            self.report_not_admitted(cx, id);
        }
    }

    /// Assistant: reports, once in each of its joins, that a participant's tools are not accepted.
    pub(super) fn report_not_admitted(&mut self, cx: &mut Context, id: &Identity) {
        let Some(why) = self.get(id).and_then(|remote| self.refusal_of(cx, id, remote)) else { return };
        let Some(remote) = self.remotes.get_mut(id) else { return };
        if !std::mem::replace(&mut remote.join.refusal_reported, true) {
            tracing::warn!(participant = %shown(id.as_str()), reason = %why, "its tools are not accepted");
            cx.event(Event::NotAdmitted { client: id.clone(), why });
        }
    }

    /// Assistant: remembers the names of the tools that a participant would offer if it were admitted.
    pub(super) fn note_refused_tools(&mut self, id: &Identity, offered: &[RegisteredTool]) {
        let Some(remote) = self.remotes.get_mut(id).filter(|remote| remote.join.participant.is_some()) else {
            return;
        };
        let names = offered.iter().filter_map(|tool| tool.name.parse::<ToolName>().ok());
        remote.join.refused_tools = names.take(REFUSED_TOOLS).collect();
    }

    /// Returns whether a participant without a role may be admitted at all.
    fn admits_without_role(&self, cx: &Context) -> bool {
        !cx.config.only_roles && cx.config.admitted.is_empty() && !self.admission.roles_seen
    }

    /// Withdraws a participant's tools. Calls that it runs continue.
    fn dismiss(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        self.forget_registration(cx, id);
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.join.named = true; // its frames about open calls are still accepted
        }
        self.report_not_admitted(cx, id);
        self.deny_registration(cx, delivery, id);
    }
}

/// Client: reports that no assistant accepts its registration.
pub(super) fn report_unaccepted(cx: &mut Context, why: Unaccepted) {
    match &why {
        Unaccepted::NotAssistant { .. } => tracing::warn!("{why}"),
        _ => tracing::warn!(tools = cx.local.tools.len(), "no assistant accepts the offered tools: {why}"),
    }
    cx.event(Event::Unaccepted { why });
}

/// Returns whether it is an ordinary participant in the room whose token has no role.
fn is_ordinary(remote: &Remote) -> bool {
    let is_it =
        |who: &Participant| who.is_standard() && who.token_role().is_none() && who.unknown_role().is_none();
    remote.is_here() && remote.join.participant.as_ref().is_some_and(is_it)
}

/// Returns whether it is an ordinary participant whose token names no role. One that may change its attributes may have
/// removed a role.
fn names_no_role(remote: &Remote) -> bool {
    remote.join.participant.as_ref().is_some_and(|who| {
        who.is_standard() && !who.may_update_metadata() && who.attribute(ROLE_ATTRIBUTE).is_none()
    })
}

impl std::fmt::Display for Unaccepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { by, reason } => write!(f, "{} answered: {}", shown(by.as_str()), escaped(reason)),
            Self::NotAssistant { from, why } => {
                let from = shown(from.as_str());
                write!(f, "{from} is not accepted as the assistant: {}", why.explain(&from))
            }
            Self::NoAssistant { here } => {
                let name = here
                    .first()
                    .map_or_else(String::new, |name| format!(", such as {}", shown(name.as_str())));
                write!(
                    f,
                    "no participant in the room may be the assistant (present: {}); the assistant's token needs the \
                     kind agent or the attribute {ROLE_ATTRIBUTE}=assistant, or name it as this client's \
                     assistant{name}",
                    list(here, 0)
                )
            }
        }
    }
}

/// Returns a peer's text, cut and without control characters.
fn escaped(text: &str) -> String {
    const MOST: usize = 400;
    // The text comes from another participant, and goes to logs and terminals.
    text.chars().take(MOST).map(|it| if it.is_control() { ' ' } else { it }).collect()
}
