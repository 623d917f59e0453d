//! The room as its user knows it: it changes when he reads of it, not when it happens.
//!
//! Events wait in a queue until they are read, and meanwhile the participant may have lost its join and
//! have made another. So what the getters answer moves with the events: whoever has read that the link
//! is up sees the join that this event speaks of, and never a later one.

use std::collections::BTreeMap;

use crate::transport::{ConnectionState, Identity, Participant, TransportEvent};

/// What waits for the user.
#[derive(Debug)]
pub(super) enum TaskEvent {
    /// This happened.
    Event(TransportEvent),
    /// What is known of ourselves has changed, which is no event.
    Local(Participant),
    /// Joined anew: ourselves, and who is there. The link is up.
    Rejoined(Snapshot),
}

/// Ourselves and the others.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    room: String,
    local: Participant,
    present: BTreeMap<Identity, Participant>,
}

impl Snapshot {
    /// The room at the join.
    pub(super) fn new(room: String, local: Participant, present: Vec<Participant>) -> Self {
        let present = present.into_iter().map(|who| (who.identity().clone(), who)).collect();
        Self { room, local, present }
    }

    /// Takes what is read; the event that it is to the user, if it is one.
    pub(super) fn read(&mut self, told: TaskEvent) -> Option<TransportEvent> {
        match told {
            TaskEvent::Event(event) => {
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
            TaskEvent::Local(local) => {
                self.local = local;
                None
            }
            TaskEvent::Rejoined(snapshot) => {
                *self = snapshot;
                Some(TransportEvent::ConnectionState(ConnectionState::Connected))
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

    fn snapshot() -> Snapshot {
        Snapshot::new(
            "kitchen".into(),
            Participant::new("me", "PA_1"),
            vec![Participant::new("phone", "PA_2")],
        )
    }

    #[test]
    fn who_comes_and_goes_is_there_once_it_was_read() {
        let mut snapshot = snapshot();
        let joined = TransportEvent::Joined(Participant::new("tablet", "PA_3"));
        assert_eq!(snapshot.read(TaskEvent::Event(joined.clone())), Some(joined));
        assert_eq!(snapshot.others().count(), 2);
        snapshot.read(TaskEvent::Event(TransportEvent::Left(Peer::new("phone", "PA_2"))));
        assert_eq!(snapshot.present(), [Participant::new("tablet", "PA_3")]);
        snapshot.read(TaskEvent::Event(TransportEvent::Left(Peer::new("tablet", "PA_0"))));
        assert_eq!(snapshot.others().count(), 1, "an older join of it left");
    }

    #[test]
    fn what_is_known_of_ourselves_is_no_other_participant() {
        let mut snapshot = snapshot();
        let changed = Participant::new("me", "PA_1").attributes([("floor", "2")]);
        assert_eq!(snapshot.read(TaskEvent::Local(changed.clone())), None);
        assert_eq!(*snapshot.local(), changed);
        let told = TransportEvent::Joined(Participant::new("me", "PA_1"));
        assert_eq!(snapshot.read(TaskEvent::Event(told.clone())), Some(told));
        assert_eq!((snapshot.local().attribute("floor"), snapshot.others().count()), (None, 1));
    }

    #[test]
    fn a_new_join_is_seen_when_its_link_is_read_to_be_up() {
        let mut snapshot = snapshot();
        let again = Snapshot::new("kitchen".into(), Participant::new("me", "PA_9"), Vec::new());
        snapshot.read(TaskEvent::Event(TransportEvent::ConnectionState(ConnectionState::Reconnecting)));
        assert_eq!((snapshot.local().sid().as_str(), snapshot.others().count()), ("PA_1", 1));
        assert_eq!(
            snapshot.read(TaskEvent::Rejoined(again)),
            Some(TransportEvent::ConnectionState(ConnectionState::Connected))
        );
        assert_eq!((snapshot.local().sid().as_str(), snapshot.others().count()), ("PA_9", 0));
    }
}
