//! Keeps a snapshot of the room, updated as the caller consumes events.
//!
//! While events wait in the queue, the participant may already have reconnected. The getters therefore reflect the last
//! event read: after `Connected`, they show the connection that this event reports, never a later one.

use std::collections::BTreeMap;

use crate::transport::{ConnectionState, Identity, Participant, TransportEvent};

/// A message of the task to the handle.
#[derive(Debug)]
pub(crate) enum TaskEvent {
    /// An event for the caller.
    Event(TransportEvent),
    /// The local participant changed. This is not reported to the caller.
    Local(Participant),
    /// The participant rejoined. Reported as `Connected`.
    Rejoined(Snapshot),
}

/// The room, the local participant and the remote participants.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    room: String,
    local: Participant,
    present: BTreeMap<Identity, Participant>,
}

impl Snapshot {
    /// Creates the snapshot at a join.
    pub(crate) fn new(room: String, local: Participant, present: Vec<Participant>) -> Self {
        let present = present.into_iter().map(|who| (who.identity().clone(), who)).collect();
        Self { room, local, present }
    }

    /// Applies a message of the task. Returns the event to report, if any.
    pub(crate) fn read(&mut self, message: TaskEvent) -> Option<TransportEvent> {
        match message {
            TaskEvent::Event(event) => {
                match &event {
                    TransportEvent::Joined(who) if who.identity() == self.local.identity() => {
                        self.local = who.clone();
                    }
                    TransportEvent::Joined(who) => {
                        self.present.insert(who.identity().clone(), who.clone());
                    }
                    TransportEvent::Left(who)
                        // The leave of an earlier join must not remove the next one of the same identity.
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

    /// Returns the room's name.
    pub(crate) fn room(&self) -> &str {
        &self.room
    }

    /// Returns the local participant.
    pub(crate) fn local(&self) -> &Participant {
        &self.local
    }

    /// Returns the remote participants.
    pub(crate) fn present(&self) -> Vec<Participant> {
        self.others().cloned().collect()
    }

    /// Iterates over the remote participants.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Participant> {
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
    fn participants_change_when_their_event_is_read() {
        let mut snapshot = snapshot();
        let joined = TransportEvent::Joined(Participant::new("tablet", "PA_3"));
        assert_eq!(snapshot.read(TaskEvent::Event(joined.clone())), Some(joined));
        assert_eq!(snapshot.others().count(), 2);
        snapshot.read(TaskEvent::Event(TransportEvent::Left(Peer::new("phone", "PA_2"))));
        assert_eq!(snapshot.present(), [Participant::new("tablet", "PA_3")]);
        snapshot.read(TaskEvent::Event(TransportEvent::Left(Peer::new("tablet", "PA_0"))));
        assert_eq!(snapshot.others().count(), 1, "an earlier join of the identity left");
    }

    #[test]
    fn local_participant_is_not_listed_as_remote() {
        let mut snapshot = snapshot();
        let changed = Participant::new("me", "PA_1").attributes([("floor", "2")]);
        assert_eq!(snapshot.read(TaskEvent::Local(changed.clone())), None);
        assert_eq!(*snapshot.local(), changed);
        let event = TransportEvent::Joined(Participant::new("me", "PA_1"));
        assert_eq!(snapshot.read(TaskEvent::Event(event.clone())), Some(event));
        assert_eq!((snapshot.local().attribute("floor"), snapshot.others().count()), (None, 1));
    }

    #[test]
    fn rejoin_is_visible_when_its_connected_event_is_read() {
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
