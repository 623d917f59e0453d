//! Who may say what: candidates and the bound assistant, admitted clients, observers.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use super::{CallId, Event, Session, config::Rule, peer::Remote, send::floor_char};
use crate::{
    tool::MAX_TOOL_NAME,
    transport::{Identity, Participant, Role},
};

/// Server-executed calls of the assistant that a client still expects to hear the end of. They are searched one by
/// one, which so few allow.
const MAX_OBSERVED: usize = 64;

/// Server-executed calls that we heard of.
#[derive(Debug, Default)]
pub(super) struct Observed(VecDeque<(CallId, String, Instant)>);

impl Observed {
    pub(super) fn began(&mut self, now: Instant, call: &CallId, tool: &str) {
        if self.0.len() == MAX_OBSERVED {
            self.0.pop_front();
        }
        let tool = &tool[..floor_char(tool, MAX_TOOL_NAME)]; // a longer one is no name
        self.0.push_back((call.clone(), tool.to_owned(), now));
    }

    /// The tool of this call, and when it was heard of.
    pub(super) fn ended(&mut self, call: &CallId) -> Option<(String, Instant)> {
        let at = self.0.iter().position(|(id, ..)| id == call)?;
        self.0.remove(at).map(|(_, tool, since)| (tool, since))
    }
}

impl Session {
    /// Whether our author named this identity as a peer of ours.
    pub(super) fn is_named(&self, id: &Identity) -> bool {
        if self.is_client() {
            self.config.assistant.as_ref() == Some(id)
        } else {
            self.config.admitted.contains(id)
        }
    }

    /// Client: whether it may become our assistant.
    pub(super) fn is_candidate(&self, id: &Identity, remote: &Remote) -> bool {
        match &self.config.assistant {
            Some(assistant) => assistant == id,
            None => is_eligible(remote),
        }
    }

    /// Client: whether it may be somebody's assistant, so that its stops are taken.
    pub(super) fn may_be_assistant(&self, id: &Identity, remote: &Remote) -> bool {
        self.is_client() && (self.is_candidate(id, remote) || is_eligible(remote))
    }

    /// Assistant: whether it is one of our clients.
    pub(super) fn is_admitted(&self, id: &Identity, remote: &Remote) -> bool {
        if self.is_client() {
            return false;
        }
        let by_rule = |remote: &Remote| {
            remote.who.as_ref().is_some_and(|who| {
                who.token_role() == Some(Role::Client)
                    || self.config.admit_rule.as_ref().is_some_and(|rule| allows(rule, who))
            })
        };
        self.config.admitted.contains(id) || by_rule(remote) || self.is_guest(id, remote)
    }

    /// Assistant: whether it may stop our calls.
    pub(super) fn may_stop(&self, remote: &Remote) -> bool {
        match (&self.config.stop_rule, &remote.who) {
            (Some(rule), Some(who)) => allows(rule, who),
            _ => false,
        }
    }

    /// Whether we shake hands with it.
    pub(super) fn is_counterpart(&self, id: &Identity, remote: &Remote) -> bool {
        if self.is_client() {
            self.is_candidate(id, remote)
        } else {
            remote.named || self.is_admitted(id, remote)
        }
    }

    /// Whether its rights can be judged: they are the author's, or the room has told what it is.
    pub(super) fn can_be_judged(&self, id: &Identity) -> bool {
        self.is_named(id) || self.peers.get(id).is_some_and(|remote| remote.who.is_some() || remote.named)
    }

    /// Who hears copies of what we say.
    pub(super) fn observers(&self) -> Vec<Identity> {
        self.observers.iter().cloned().collect()
    }

    /// A participant came, moved or left: whether it observes may have changed.
    pub(super) fn note_observer(&mut self, id: &Identity) {
        let observes = |remote: &Remote| {
            remote.is_here()
                && remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Observer))
        };
        if self.peers.get(id).is_some_and(observes) {
            self.observers.insert(id.clone());
        } else {
            self.observers.remove(id);
        }
    }

    /// Client: binds the only candidate that speaks, if none is bound.
    pub(super) fn judge_candidates(&mut self, now: Instant) {
        if !self.is_client() {
            return;
        }
        let new = |it: &Remote| it.is_here() && it.spoke && it.came.is_none();
        let spoke: Vec<_> = self.peers.iter().filter(|(_, it)| new(it)).map(|(id, _)| id.clone()).collect();
        for id in spoke {
            self.came_forward(&id);
        }
        if self.bound.is_some() {
            return;
        }
        let candidates: Vec<_> = self
            .peers
            .iter()
            .filter(|(id, it)| it.is_here() && it.spoke && self.is_candidate(id, it))
            .map(|(id, _)| id.clone())
            .collect();
        let one = match candidates.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            several => self.chosen(None, several),
        };
        match (one, candidates.as_slice()) {
            (_, []) => self.ambiguous.clear(),
            (Some(one), _) => {
                self.ambiguous.clear();
                self.bound = Some(one.clone());
                self.bound_event();
                if self.peers.get(&one).is_some_and(Remote::is_crossed) {
                    self.register(now, &one);
                }
            }
            _ if candidates != self.ambiguous => {
                self.ambiguous.clone_from(&candidates);
                self.event(Event::AmbiguousAssistant { candidates });
            }
            _ => {}
        }
    }

    /// Client: this identity is no longer our assistant; others are judged again.
    pub(super) fn unbind(&mut self, now: Instant, id: &Identity) {
        if let Some(remote) = self.peers.get_mut(id) {
            remote.spoke = false;
            remote.came = None;
        }
        if self.bound.as_ref() == Some(id) {
            self.bound = None;
            self.bound_event();
            self.judge_candidates(now);
        }
    }
}

/// A stranger's code, in the midst of ours: whatever it does, the session must be whole afterwards.
fn allows(rule: &Rule, who: &Participant) -> bool {
    catch_unwind(AssertUnwindSafe(|| rule(who))).unwrap_or_else(|_| {
        tracing::error!(participant = %who.identity(), "the rule for a participant panicked; that is a no");
        false
    })
}

fn is_eligible(remote: &Remote) -> bool {
    remote.who.as_ref().is_some_and(Participant::is_eligible_assistant)
}
