//! Tracks the remote participants of the room, as the server reports them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use livekit_protocol::{ParticipantInfo, client_info::Capability, participant_info};

use crate::{
    livekit::signaling::first::{First, Rank},
    transport::{Participant, ParticipantKind, Peer, ROLE_ATTRIBUTE, TransportEvent},
};

/// The largest number of known participants. Packets of further ones are received, but they are not announced.
const MAX_PARTICIPANTS: usize = 4096;
/// How many of them must have left before the server is asked who else is in the room.
const VACANT: usize = MAX_PARTICIPANTS / 16;
/// The largest total size of all participants' attributes, in bytes: 8 KiB for each. Further participants are known
/// with the attribute of their role alone.
const MAX_ATTRIBUTES: usize = 32 << 20;

/// How much of a role is kept then, in characters: more than any has that is known.
const MAX_ROLE: usize = 64;

/// The remote participants by identity.
#[derive(Debug, Default)]
pub(crate) struct Participants {
    first: First,
    known: BTreeMap<String, Known>,
    /// Whether others are, or were, in the room that are not known, because there are too many.
    is_cut: bool,
    /// The size of all attributes, in bytes.
    attributes: usize,
}

#[derive(Debug)]
struct Known {
    participant: Participant,
    /// The server's version of the participant. An older update may arrive after a newer one.
    version: u32,
}

impl Participants {
    pub(crate) fn new(first: First) -> Self {
        Self { first, ..Self::default() }
    }

    /// Removes all participants, because this is another room.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(Arc::clone(&self.first));
    }

    /// Returns whether the server should list the participants again: some were not known, and others have left. Resets it.
    pub(crate) fn wants_list(&mut self) -> bool {
        let wants = self.is_cut && self.known.len() + VACANT <= MAX_PARTICIPANTS;
        self.is_cut &= !wants;
        wants
    }

    /// Returns all remote participants.
    pub(crate) fn list(&self) -> Vec<Participant> {
        self.known.values().map(|known| known.participant.clone()).collect()
    }

    /// Applies the server's update of a remote participant. Returns the resulting events.
    pub(crate) fn update(&mut self, info: &ParticipantInfo) -> Vec<TransportEvent> {
        let mut events = Vec::new();
        // Such a participant could be neither addressed nor told from others.
        if info.identity.is_empty() {
            return events;
        }
        if info.state() == participant_info::State::Disconnected {
            if let Entry::Occupied(known) = self.known.entry(info.identity.clone())
                // The leave of an earlier join may come after the next join of the identity.
                && known.get().participant.sid() == &*info.sid
            {
                let participant = known.remove().participant;
                self.attributes -= participant.attribute_bytes();
                events.push(TransportEvent::Left(participant.peer().clone()));
            }
            return events;
        }
        let before = self.known.get(&info.identity).map_or(0, |known| known.participant.attribute_bytes());
        let (participant, version) = (self.fitting(info, before), info.version);
        if self.known.len() >= MAX_PARTICIPANTS && !self.known.contains_key(&info.identity) {
            if !std::mem::replace(&mut self.is_cut, true) {
                tracing::warn!(limit = MAX_PARTICIPANTS, "too many participants: some are not known");
            }
            let Some(other) = self.less_important(self.rank(&participant)) else { return events };
            self.attributes -= other.attribute_bytes();
            events.push(TransportEvent::Left(other.peer().clone()));
        }
        let after = self.attributes - before + participant.attribute_bytes();
        match self.known.entry(info.identity.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Known { participant: participant.clone(), version });
            }
            Entry::Occupied(mut occupied) => {
                let known = occupied.get_mut();
                if known.participant.sid() == participant.sid() {
                    if version < known.version || known.participant == participant {
                        known.version = known.version.max(version);
                        return events;
                    }
                } else {
                    // A new join of the same identity: the server does not announce that the old one left.
                    events.push(TransportEvent::Left(known.participant.peer().clone()));
                }
                *known = Known { participant: participant.clone(), version };
            }
        }
        self.attributes = after;
        events.push(TransportEvent::Joined(participant));
        events
    }

    /// Removes the other participants, and returns them.
    pub(crate) fn retain(&mut self, stays: impl Fn(&Peer) -> bool) -> Vec<Peer> {
        let gone: Vec<_> = self
            .known
            .values()
            .map(|known| known.participant.peer())
            .filter(|peer| !stays(peer))
            .cloned()
            .collect();
        self.known.retain(|_, known| stays(known.participant.peer()));
        self.attributes = self.known.values().map(|known| known.participant.attribute_bytes()).sum();
        gone
    }

    fn rank(&self, participant: &Participant) -> Rank {
        if self.first.contains(participant.identity().as_str()) {
            return Rank::Named;
        }
        let has_role = participant.token_role().is_some() || participant.is_agent();
        if has_role { Rank::Role } else { Rank::Other }
    }

    /// Removes a participant of the last rank, if that is below this one.
    fn less_important(&mut self, rank: Rank) -> Option<Participant> {
        if rank == Rank::Other {
            return None; // in a crowd this is asked often, and looking costs more
        }
        let ranks = self.known.iter().map(|(id, known)| (self.rank(&known.participant), id));
        let (last, id) = ranks.max()?;
        let id = (last > rank).then(|| id.clone())?;
        self.known.remove(&id).map(|known| known.participant)
    }

    /// Returns a participant. Of its attributes, only the role is kept if replacing this many bytes by them would exceed the
    /// limit.
    fn fitting(&self, info: &ParticipantInfo, before: usize) -> Participant {
        let participant = participant(info);
        if self.attributes - before + participant.attribute_bytes() <= MAX_ATTRIBUTES {
            return participant;
        }
        tracing::warn!(limit = MAX_ATTRIBUTES, "too many attributes: those of one participant are not known");
        let role =
            info.attributes.get(ROLE_ATTRIBUTE).map(|role| role.chars().take(MAX_ROLE).collect::<String>());
        participant.attributes(role.map(|role| (ROLE_ATTRIBUTE, role)))
    }

    /// Applies updates of several participants. Returns the resulting events.
    pub(crate) fn update_all(&mut self, infos: &[ParticipantInfo]) -> Vec<TransportEvent> {
        infos.iter().flat_map(|info| self.update(info)).collect()
    }
}

/// Converts the server's participant. Without its permissions the attributes are not trusted.
pub(crate) fn participant(info: &ParticipantInfo) -> Participant {
    Participant::new(&*info.identity, &*info.sid)
        .kind(kind(info))
        .attributes(info.attributes.clone())
        .can_update_metadata(info.permission.as_ref().is_none_or(|may| may.can_update_metadata))
        .can_publish_data(can_publish_data(info))
        .client_protocol(info.client_protocol.try_into().unwrap_or_default())
        .inflates(info.capabilities.contains(&Capability::CapCompressionDeflateRaw.into()))
}

/// Returns true if a participant may publish data. Without permission info, the server decides.
pub(crate) fn can_publish_data(info: &ParticipantInfo) -> bool {
    info.permission.as_ref().is_none_or(|may| may.can_publish_data)
}

/// Converts the kind of a participant. An unknown one is not standard, so that it gets no rights as an
/// ordinary participant.
fn kind(info: &ParticipantInfo) -> ParticipantKind {
    match participant_info::Kind::try_from(info.kind) {
        Ok(participant_info::Kind::Standard) => ParticipantKind::Standard,
        Ok(participant_info::Kind::Agent) => ParticipantKind::Agent,
        _ => ParticipantKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::ParticipantPermission;
    use participant_info::State;

    use super::*;
    use crate::transport::Role;

    fn info(identity: &str, sid: &str, state: State, version: u32) -> ParticipantInfo {
        ParticipantInfo {
            identity: identity.into(),
            sid: sid.into(),
            state: state.into(),
            version,
            ..Default::default()
        }
    }

    #[test]
    fn participant_is_announced_first_and_on_change_only() {
        let mut room = Participants::default();
        let joined = info("phone", "PA_1", State::Joined, 1);
        assert_eq!(room.update(&joined).len(), 1);
        assert!(
            room.update(&info("phone", "PA_1", State::Active, 2)).is_empty(),
            "a change of the state alone is not reported"
        );
        let mut changed = info("phone", "PA_1", State::Active, 3);
        changed.attributes.insert("k".into(), "v".into());
        assert_eq!(room.update(&changed), [TransportEvent::Joined(participant(&changed))]);
        assert!(room.update(&joined).is_empty(), "an overtaken update says nothing");
        assert_eq!(room.list(), [participant(&changed)]);
    }

    #[test]
    fn new_join_of_an_identity_ends_the_old_one() {
        let mut room = Participants::default();
        room.update(&info("phone", "PA_1", State::Active, 5));
        let events = room.update(&info("phone", "PA_2", State::Active, 1));
        assert_eq!(events[0], TransportEvent::Left(Peer::new("phone", "PA_1")));
        assert_eq!(events[1], TransportEvent::Joined(Participant::new("phone", "PA_2")));
        assert!(
            room.update(&info("phone", "PA_1", State::Disconnected, 6)).is_empty(),
            "the old one's leave is late"
        );
        let left = room.update(&info("phone", "PA_2", State::Disconnected, 2));
        assert_eq!(left, [TransportEvent::Left(Peer::new("phone", "PA_2"))]);
        assert!(room.list().is_empty());
    }

    #[test]
    fn attributes_count_only_if_the_permissions_protect_them() {
        let mut assistant = info("a", "PA_1", State::Active, 1);
        assistant.attributes.insert(ROLE_ATTRIBUTE.into(), "assistant".into());
        assert_eq!(participant(&assistant).token_role(), None, "no permission, no belief");
        assistant.permission = Some(ParticipantPermission::default());
        assert_eq!(participant(&assistant).token_role(), Some(Role::Assistant));
    }

    #[test]
    fn participant_without_the_permission_may_not_publish_data() {
        let mut phone = info("phone", "PA_1", State::Active, 1);
        assert!(participant(&phone).may_publish_data(), "the server decides");
        phone.permission = Some(ParticipantPermission { can_publish_data: false, ..Default::default() });
        assert!(!participant(&phone).may_publish_data());
        phone.permission = Some(ParticipantPermission { can_publish_data: true, ..Default::default() });
        assert!(participant(&phone).may_publish_data());
    }

    #[test]
    fn participants_are_bounded_and_unnamed_ones_are_not_announced() {
        let mut room = Participants::default();
        for n in 0..MAX_PARTICIPANTS {
            assert_eq!(room.update(&info(&format!("p{n}"), "PA", State::Active, 1)).len(), 1);
        }
        assert!(room.update(&info("one more", "PA", State::Active, 1)).is_empty());
        assert!(room.update(&info("", "PA", State::Active, 1)).is_empty());
    }

    #[test]
    fn crowd_makes_room_for_agents_roles_and_named_ones_who_stay() {
        let mut room = Participants::new(Arc::new(["named".to_owned()].into()));
        let stranger = |n: usize| info(&format!("p{n:05}"), "PA", State::Active, 1);
        for n in 0..MAX_PARTICIPANTS {
            room.update(&stranger(n));
        }
        assert!(!room.wants_list(), "nobody is missing");
        let agent = ParticipantInfo {
            kind: participant_info::Kind::Agent.into(),
            ..info("agent", "PA", State::Active, 1)
        };
        let mut phone = info("phone", "PA", State::Active, 1);
        phone.attributes.insert(ROLE_ATTRIBUTE.into(), "client".into());
        phone.permission = Some(ParticipantPermission::default());
        for (n, important) in [agent, phone, info("named", "PA", State::Active, 1)].iter().enumerate() {
            let gone = Peer::new(format!("p{:05}", MAX_PARTICIPANTS - 1 - n), "PA");
            assert_eq!(
                room.update(important),
                [TransportEvent::Left(gone), TransportEvent::Joined(participant(important))]
            );
        }
        assert!(room.update(&stranger(MAX_PARTICIPANTS)).is_empty(), "one more of the crowd");
        assert_eq!(room.list().len(), MAX_PARTICIPANTS);
        // The server is asked for the others, once, when there is room for them.
        let leave = |n: usize| ParticipantInfo { state: State::Disconnected.into(), ..stranger(n) };
        for n in 0..VACANT - 1 {
            room.update(&leave(n));
            assert!(!room.wants_list(), "{n}");
        }
        room.update(&leave(VACANT));
        assert!(room.wants_list() && !room.wants_list());
        let left = ["agent", "phone", "named"].map(|id| room.known.contains_key(id));
        assert_eq!(left, [true; 3]);
    }

    #[test]
    fn role_is_kept_where_there_is_no_room_for_attributes() {
        let mut room = Participants { attributes: MAX_ATTRIBUTES, ..Participants::default() };
        let mut phone = info("phone", "PA", State::Active, 1);
        phone.attributes = [(ROLE_ATTRIBUTE.into(), "client".into()), ("k".into(), "v".into())].into();
        phone.permission = Some(ParticipantPermission::default());
        let [TransportEvent::Joined(phone)] = &room.update(&phone)[..] else { panic!() };
        assert_eq!((phone.token_role(), phone.attribute("k")), (Some(Role::Client), None));
    }

    #[test]
    fn attribute_bytes_are_bounded_over_the_room_and_freed() {
        const SIZE: usize = 64 * 1024;
        let holding = |n: usize, version: u32, size: usize| {
            let mut info = info(&format!("p{n}"), "PA", State::Active, version);
            info.attributes = [("k".into(), "v".repeat(size))].into();
            info
        };
        let has = |events: &[TransportEvent]| match events {
            [TransportEvent::Joined(who)] => who.attribute("k").is_some(),
            other => panic!("{other:?}"),
        };
        let mut room = Participants::default();
        let mut fit = 0;
        while has(&room.update(&holding(fit, 1, SIZE))) {
            fit += 1;
        }
        assert!((500..=MAX_ATTRIBUTES / SIZE).contains(&fit), "{fit}");
        // A participant with fewer attributes makes room; more attributes in its place do not fit.
        assert!(has(&room.update(&holding(0, 2, 1))));
        assert!(has(&room.update(&holding(fit, 2, SIZE))));
        assert!(!has(&room.update(&holding(0, 3, SIZE))));
        // A participant that leaves or is removed makes room too.
        room.update(&ParticipantInfo { state: State::Disconnected.into(), ..holding(1, 2, 0) });
        assert!(has(&room.update(&holding(0, 4, SIZE))));
        assert_eq!(room.retain(|who| who.identity() == "p0").len(), fit - 1);
        assert_eq!(room.attributes, room.list()[0].attribute_bytes());
        room.update(&ParticipantInfo { state: State::Disconnected.into(), ..holding(0, 9, 0) });
        assert_eq!((room.attributes, room.list().len()), (0, 0));
    }
}
