//! The room as its user knows it: it changes when he reads of it, not when it happens.
//!
//! Events wait in a queue until they are read, and meanwhile the participant may have lost its join and
//! have made another. So what the getters answer moves with the events: whoever has read that the link
//! is up sees the join that this event speaks of, and never a later one.

use std::collections::BTreeMap;

use crate::transport::{Identity, LinkState, Participant, TransportEvent};

/// What waits for the user.
#[derive(Debug)]
pub(super) enum Told {
    /// This happened.
    Event(TransportEvent),
    /// What is known of ourselves has changed, which is no event.
    Local(Participant),
    /// Joined anew: ourselves, and who is there. The link is up.
    Rejoined(View),
}

/// Ourselves and the others.
#[derive(Clone, Debug)]
pub(super) struct View {
    room: String,
    local: Participant,
    present: BTreeMap<Identity, Participant>,
}

impl View {
    /// The room at the join.
    pub(super) fn new(room: String, local: Participant, present: Vec<Participant>) -> Self {
        let present = present.into_iter().map(|who| (who.identity().clone(), who)).collect();
        Self { room, local, present }
    }

    /// Takes what is read; the event that it is to the user, if it is one.
    pub(super) fn read(&mut self, told: Told) -> Option<TransportEvent> {
        match told {
            Told::Event(event) => {
                match &event {
                    TransportEvent::Joined(who) if who.identity() == self.local.identity() => {
                        self.local = who.clone();
                    }
                    TransportEvent::Joined(who) => {
                        self.present.insert(who.identity().clone(), who.clone());
                    }
                    TransportEvent::Left(who)
                        if self.present.get(who.identity()).is_some_and(|it| it.peer() == who) =>
                    {
                        self.present.remove(who.identity());
                    }
                    _ => {}
                }
                Some(event)
            }
            Told::Local(local) => {
                self.local = local;
                None
            }
            Told::Rejoined(view) => {
                *self = view;
                Some(TransportEvent::Link(LinkState::Up))
            }
        }
    }

    /// The room's name.
    pub(super) fn room(&self) -> &str {
        &self.room
    }

    /// Ourselves.
    pub(super) fn local(&self) -> &Participant {
        &self.local
    }

    /// The others.
    pub(super) fn present(&self) -> Vec<Participant> {
        self.others().cloned().collect()
    }

    /// The others, where they are.
    pub(super) fn others(&self) -> impl Iterator<Item = &Participant> {
        self.present.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Peer;

    fn view() -> View {
        View::new("kitchen".into(), Participant::new("me", "PA_1"), vec![Participant::new("phone", "PA_2")])
    }

    #[test]
    fn who_comes_and_goes_is_there_once_it_was_read() {
        let mut view = view();
        let joined = TransportEvent::Joined(Participant::new("tablet", "PA_3"));
        assert_eq!(view.read(Told::Event(joined.clone())), Some(joined));
        assert_eq!(view.others().count(), 2);
        view.read(Told::Event(TransportEvent::Left(Peer::new("phone", "PA_2"))));
        assert_eq!(view.present(), [Participant::new("tablet", "PA_3")]);
        view.read(Told::Event(TransportEvent::Left(Peer::new("tablet", "PA_0"))));
        assert_eq!(view.others().count(), 1, "an older join of it left");
    }

    #[test]
    fn what_is_known_of_ourselves_is_no_other_participant() {
        let mut view = view();
        let changed = Participant::new("me", "PA_1").attributes([("floor", "2")]);
        assert_eq!(view.read(Told::Local(changed.clone())), None);
        assert_eq!(*view.local(), changed);
        let told = TransportEvent::Joined(Participant::new("me", "PA_1"));
        assert_eq!(view.read(Told::Event(told.clone())), Some(told));
        assert_eq!((view.local().attribute("floor"), view.others().count()), (None, 1));
    }

    #[test]
    fn a_new_join_is_seen_when_its_link_is_read_to_be_up() {
        let mut view = view();
        let again = View::new("kitchen".into(), Participant::new("me", "PA_9"), Vec::new());
        view.read(Told::Event(TransportEvent::Link(LinkState::Down)));
        assert_eq!((view.local().sid().as_str(), view.others().count()), ("PA_1", 1));
        assert_eq!(view.read(Told::Rejoined(again)), Some(TransportEvent::Link(LinkState::Up)));
        assert_eq!((view.local().sid().as_str(), view.others().count()), ("PA_9", 0));
    }
}
