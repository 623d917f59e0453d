//! Decides the rights of participants (`wire.md`, section 4), and binds a client to an assistant.

use std::time::Duration;

use super::{Context, Delivery, Peers, Remote, Selected, Timer, remote::Registration};
use crate::{
    protocol::session::{Event, recipients::Feature},
    transport::{Identity, Participant, Role},
};

/// How long a client stays bound to an assistant without open calls that the room reports as gone, while another one
/// waits: 500 ms. The server reports a rejoin as a leave and a join at the same time.
const IDLE_GRACE: Duration = Duration::from_millis(500);

impl Peers {
    /// Returns whether the configuration names this identity.
    pub(crate) fn is_named(&self, cx: &Context, id: &Identity) -> bool {
        if cx.is_client() {
            cx.config.assistant.as_ref() == Some(id)
        } else {
            cx.config.admitted.contains(id)
        }
    }

    /// Client: returns whether it may become the client's assistant.
    pub(crate) fn is_candidate(&self, cx: &Context, id: &Identity, remote: &Remote) -> bool {
        match &cx.config.assistant {
            Some(assistant) => assistant == id,
            None => is_eligible(remote),
        }
    }

    /// Client: returns whether it may be an assistant, of this client or another. Its stops are accepted.
    pub(crate) fn may_be_assistant(&self, cx: &Context, id: &Identity, remote: &Remote) -> bool {
        cx.is_client() && (self.is_candidate(cx, id, remote) || is_eligible(remote))
    }

    /// Assistant: returns whether it is one of the assistant's clients.
    pub(crate) fn is_admitted(&self, cx: &Context, id: &Identity, remote: &Remote) -> bool {
        if cx.is_client() {
            return false;
        }
        let is_accepted = |participant: &Participant| {
            participant.token_role() == Some(Role::Client) || participant.is_admitted()
        };
        // A named identity needs no announcement, which can come 3 s after its first frames: LiveKit
        // announces participants without tracks once in 3 s.
        cx.config.admitted.contains(id)
            || cx.config.described.contains_key(id)
            || remote.join.participant.as_ref().is_some_and(is_accepted)
            || self.is_guest(id, remote)
    }

    /// Assistant: returns whether it may stop the assistant's calls.
    pub(crate) fn may_stop(&self, id: &Identity) -> bool {
        self.get(id).and_then(|remote| remote.join.participant.as_ref()).is_some_and(Participant::may_stop)
    }

    /// Returns whether the local participant performs the handshake with it.
    pub(crate) fn is_counterpart(&self, cx: &Context, id: &Identity, remote: &Remote) -> bool {
        if cx.is_client() {
            self.is_candidate(cx, id, remote)
        } else {
            remote.join.named || self.is_admitted(cx, id, remote)
        }
    }

    /// Returns whether the local participant performs the handshake with this identity, if it is known.
    pub(crate) fn has_counterpart(&self, cx: &Context, id: &Identity) -> bool {
        self.get(id).is_some_and(|remote| self.is_counterpart(cx, id, remote))
    }

    /// Client: binds the only candidate that has sent a frame, if none is bound.
    pub(crate) fn bind_candidate(&mut self, cx: &mut Context, delivery: &mut Delivery) {
        if !cx.is_client() {
            return;
        }
        // Ranked also while another assistant is bound: the policies choose by who sent a frame first, and
        // only now is the order known.
        let is_new = |it: &Remote| it.is_here() && it.join.has_spoken && it.join.rank.is_none();
        let new: Vec<_> =
            self.remotes.iter().filter(|(_, it)| is_new(it)).map(|(id, _)| id.clone()).collect();
        for id in new {
            self.rank(&id);
        }
        if let Some(bound) = self.bound.clone() {
            return self.watch(cx, &bound);
        }
        if !self.selecting.is_empty() {
            return; // the function's answer is due, also about those that it alone was shown
        }
        let candidates = self.candidates(cx);
        let selected = match candidates.as_slice() {
            [] => {
                self.ping_silenced(cx, delivery);
                return self.ambiguous.clear();
            }
            [only] => Selected::Now(Some(only.clone())),
            several => self.select(cx, several),
        };
        match selected {
            Selected::Now(one) => self.bind(cx, delivery, one, candidates),
            Selected::ByFunction => {
                self.ask_function(cx, None, None, &candidates);
                self.selecting = self.joins(&candidates);
            }
        }
    }

    /// Client: pings the assistants that it has given up because they were silent. One that answers may be bound again.
    fn ping_silenced(&self, cx: &mut Context, delivery: &mut Delivery) {
        for (id, remote) in self.present() {
            if remote.is_silenced() && remote.lists(Feature::Ack) && self.is_candidate(cx, id, remote) {
                delivery.to(cx, self, id).ping();
            }
        }
    }

    /// Client: binds the assistant that the author's function has selected. The function knows the joins that it was
    /// shown, so a candidate that has rejoined since was not selected.
    pub(crate) fn bind_selected(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        named: Option<Identity>,
    ) {
        let asked = std::mem::take(&mut self.selecting);
        let candidates = self.candidates(cx);
        let present = self.joins(&candidates);
        let is_join =
            |named: &Identity| present.iter().any(|it| it.identity() == named && asked.contains(it));
        let named = named.filter(is_join);
        if named.is_none() && present != asked {
            return self.bind_candidate(cx, delivery);
        }
        if self.bound.is_none() && !asked.is_empty() {
            self.bind(cx, delivery, named, candidates);
        }
    }

    /// Client: returns whether another participant than this one waits to become the assistant.
    pub(crate) fn has_other_candidates(&self, cx: &Context, id: &Identity) -> bool {
        self.candidates(cx).iter().any(|candidate| candidate != id)
    }

    /// Client: starts to check the bound assistant if another one waits. When it has left, its rejoin may still be
    /// announced.
    fn watch(&self, cx: &mut Context, bound: &Identity) {
        if !self.has_other_candidates(cx, bound) {
            return;
        }
        let times = &cx.config.times;
        let is_here = self.get(bound).is_some_and(Remote::is_here);
        let wait = if is_here { times.silence } else { IDLE_GRACE.min(times.grace) };
        cx.set_timer(Timer::Ping(bound.clone()), wait);
    }

    /// Client: returns the present participants that have sent a frame, and no goodbye, and may become its assistant.
    fn candidates(&self, cx: &Context) -> Vec<Identity> {
        let has_spoken = |it: &Remote| it.is_here() && it.join.has_spoken && !it.has_left();
        self.remotes
            .iter()
            .filter(|(id, it)| has_spoken(it) && self.is_candidate(cx, id, it))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Client: binds the selected candidate. If none is selected, reports the candidates once.
    fn bind(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        one: Option<Identity>,
        candidates: Vec<Identity>,
    ) {
        if let Some(one) = one {
            self.ambiguous.clear();
            self.bound = Some(one.clone());
            cx.event(Event::Bound(self.bound.clone()));
            self.withdraw_registrations(cx, delivery);
            if let Some(pair) = self.remotes.get_mut(&one).map(|remote| &mut remote.pair)
                && pair.registered_at.is_none()
            {
                pair.registration = Registration::Idle; // it was unbound since its answer, and has refused calls
            }
            // A binding before that registers when the Configurations have crossed (`Exchange::crossed`).
            if self.get(&one).is_some_and(Remote::is_crossed) {
                self.register(cx, delivery, &one);
            }
        } else if candidates != self.ambiguous {
            self.ambiguous.clone_from(&candidates);
            cx.event(Event::AmbiguousAssistant { candidates });
        }
    }

    /// Forgets the tools of a peer that is gone for good, and unbinds it if it is the assistant.
    pub(crate) fn forget_and_unbind(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        self.forget_registration(cx, id);
        self.unbind(cx, delivery, id);
    }

    /// Client: unbinds this participant if it is the assistant, and considers the other candidates.
    pub(crate) fn unbind(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        if let Some(remote) = self.remotes.get_mut(id) {
            // It must send another frame first. Otherwise it would be a candidate, and bound again, below.
            remote.join.has_spoken = false;
            remote.pair.registered_at = None;
            remote.lose_rank();
        }
        if self.bound.take_if(|bound| bound == id).is_some() {
            cx.event(Event::Bound(None));
        }
        self.bind_candidate(cx, delivery); // one of several candidates may have gone
    }

    /// Client: starts the timer that reports a missing assistant.
    pub(super) fn look_for_assistant(&self, cx: &mut Context) {
        if cx.is_client() && self.bound.is_none() {
            cx.set_timer(Timer::Unbound, cx.config.times.owner_wait);
        }
    }

    /// Updates the observers after a participant has joined, moved or left.
    pub(super) fn note_observer(&mut self, id: &Identity) {
        if self.get(id).is_some_and(|remote| remote.is_here() && remote.is_observer()) {
            self.observers.insert(id.clone());
        } else {
            self.observers.remove(id);
        }
    }

    /// Gives a rank to a client that has registered or an assistant that has sent a frame. It keeps the rank until it
    /// is gone.
    pub(super) fn rank(&mut self, id: &Identity) {
        self.last_rank += 1;
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.take_rank(self.last_rank);
        }
    }
}

fn is_eligible(remote: &Remote) -> bool {
    remote.join.participant.as_ref().is_some_and(Participant::is_eligible_assistant)
}
