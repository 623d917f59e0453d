//! The room, with LiveKit's behavior: joins, announcements, and packets in flight.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use toolbridge::{
    CallId, Identity,
    frame::{Frame, Kind},
    session::JobKey,
    transport::{Lane, Participant, Peer, RpcMessage, StreamPart},
};

use crate::{
    random::Random,
    reach::{Reach, Reached},
    schedule::{Actor, Ms, Network},
};

/// Microseconds since the run began.
pub(crate) type Us = u64;

/// How long a packet takes to reach the server, in µs.
const UPLINK: Us = 3_000;

/// The payload of a transmission.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Packet(Lane, Bytes),
    Part(StreamPart),
    /// A packet of RPC.
    Rpc(RpcMessage),
}

impl Load {
    pub(crate) fn is_lossy(&self) -> bool {
        matches!(self, Self::Packet(Lane::Lossy, _))
    }

    fn is_configuration(&self) -> bool {
        let Self::Packet(_, bytes) = self else { return false };
        Frame::decode(bytes.clone()).is_ok_and(|frame| frame.kind() == Kind::CONFIGURATION)
    }
}

/// An event that is scheduled for a certain time.
#[derive(Debug)]
pub(crate) enum Scheduled {
    /// An action of the schedule.
    Action(usize),
    /// The room starts to list a join.
    Listed(usize),
    /// A join starts to receive packets.
    Opens(usize),
    /// The room stops listing a join.
    Unlisted(usize),
    /// A packet arrives at the server.
    AtServer { from: usize, to: Option<Vec<Identity>>, load: Load },
    /// A packet arrives at a join.
    Arrives { peer: Peer, to: usize, load: Load },
    /// The driver of a join runs, where a forged packet would arrive.
    Wakes { to: usize },
    /// Another join, or its end, is announced to a join.
    Announcement { to: usize, about: usize, joined: bool },
    /// The transport of a process reports an outage or its end.
    Connection { process: usize, join: usize, up: bool },
    /// A process joins or rejoins.
    Joins { process: usize },
    /// A process rejoins after another process took over its identity.
    Returns { process: usize },
    /// A process sends the next part of a stream, or the packet that waits behind it.
    Part { process: usize, join: usize },
    /// A person answers a consent question.
    PersonAnswers { process: usize, key: JobKey, allowed: bool },
    /// A tool returns.
    JobEnds { process: usize, key: JobKey },
    /// A tool reports progress.
    JobProgress { process: usize, key: JobKey, left: u32 },
    /// A tool of a plain client returns.
    PlainJobEnds { process: usize, caller: Identity, call: CallId },
    /// A method of the app returns.
    AppAnswers { process: usize, id: String, number: u64 },
    /// The app sends the next part of an answer.
    AppSends { process: usize, to: Peer, load: Load },
    /// A call of a plain assistant times out.
    PlainDeadline { call: usize },
    /// A second begins; the simulated backlog is drawn again.
    BacklogChanges,
    /// All faults end.
    FaultsEnd,
    /// Handlers of settled calls must have been aborted by now.
    CheckAborted { callers_too: bool },
    /// A process leaves with a goodbye.
    Leaves { actor: Actor, replaced_after: Ms },
    /// Open calls are cancelled.
    CancelOpen,
    /// One new call to each client.
    Probe,
    /// As many calls to each client as may be open.
    ProbeAtCapacity,
}

/// One join of one process.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) actor: Actor,
    pub(crate) process: usize,
    pub(crate) participant: Participant,
    pub(crate) listed: bool,
    pub(crate) open: bool,
    /// No packet passes before this time.
    pub(crate) held_until: Us,
    /// Its next lossy packet is lost.
    pub(crate) loses_next: bool,
    /// No join or leave is announced to it before this time.
    pub(crate) signaling_down_until: Us,
    /// The joins that were announced to it, and when.
    pub(crate) announced: BTreeMap<usize, Us>,
    /// The bytes received so far of the streams that have not ended.
    pub(crate) streams: BTreeMap<(Peer, Arc<str>), Vec<u8>>,
    last_leave: Us,
    /// The links from other joins.
    links: BTreeMap<usize, Link>,
}

/// The path from one join to another. Packets stay in order, and each has its own random numbers.
#[derive(Debug, Default)]
struct Link {
    count: u64,
    last: Us,
    configurations_lost: u32,
}

/// All joins, and everything that is scheduled.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) seed: u64,
    pub(crate) now: Us,
    pub(crate) network: Network,
    pub(crate) joins: Vec<Join>,
    queue: BTreeMap<(Us, u64), Scheduled>,
    order: u64,
    /// When a packet was lost last by an action.
    pub(crate) last_loss: Us,
    /// How many packets were lost, or delayed like lost ones.
    pub(crate) losses: u32,
    pub(crate) reached: Reached,
}

impl Room {
    pub(crate) fn new(seed: u64, network: Network) -> Self {
        Self {
            seed,
            now: 0,
            network,
            joins: Vec::new(),
            queue: BTreeMap::new(),
            order: 0,
            last_loss: 0,
            losses: 0,
            reached: Reached::default(),
        }
    }

    pub(crate) fn at(&mut self, when: Us, what: Scheduled) {
        self.order += 1;
        self.queue.insert((when.max(self.now), self.order), what);
    }

    pub(crate) fn after(&mut self, wait: Ms, what: Scheduled) {
        self.at(self.now + wait * 1_000, what);
    }

    /// The time of the next event.
    pub(crate) fn next(&self) -> Option<Us> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<Scheduled> {
        self.queue.pop_first().map(|(_, what)| what)
    }

    /// Adds a join that the room does not list yet.
    pub(crate) fn add(&mut self, actor: Actor, process: usize, participant: Participant) -> usize {
        self.joins.push(Join {
            actor,
            process,
            participant,
            listed: false,
            open: false,
            held_until: 0,
            loses_next: false,
            signaling_down_until: 0,
            announced: BTreeMap::new(),
            streams: BTreeMap::new(),
            last_leave: 0,
            links: BTreeMap::new(),
        });
        self.joins.len() - 1
    }

    /// Returns the listed join with this identity.
    pub(crate) fn listed_as(&self, identity: &str) -> Option<usize> {
        self.joins.iter().position(|join| join.listed && join.participant.identity().as_str() == identity)
    }

    pub(crate) fn listed(&self) -> Vec<usize> {
        (0..self.joins.len()).filter(|join| self.joins[*join].listed).collect()
    }

    /// Lists a join, and schedules its announcement to every join.
    pub(crate) fn list(&mut self, join: usize) {
        self.joins[join].listed = true;
        for to in self.listed() {
            let mut dice = Random::of(self.seed, &[2, join as u64, to as u64]);
            let wait = dice.between(10, self.network.announcements.max(11));
            self.announce(to, join, true, wait);
        }
    }

    /// Stops listing a join, and schedules the announcement of its end.
    pub(crate) fn unlist(&mut self, join: usize) {
        if !std::mem::replace(&mut self.joins[join].listed, false) {
            return;
        }
        self.joins[join].open = false;
        for to in self.listed() {
            let mut dice = Random::of(self.seed, &[3, join as u64, to as u64]);
            let wait = dice.between(5, 100);
            self.announce(to, join, false, wait);
        }
    }

    fn announce(&mut self, to: usize, about: usize, joined: bool, wait: Ms) {
        let join = &mut self.joins[to];
        // LiveKit announces joins in batches, and leaves at once but in order.
        let mut when = self.now + wait * 1_000;
        if !joined {
            when = when.max(join.last_leave);
            join.last_leave = when;
        }
        self.at(when, Scheduled::Announcement { to, about, joined });
    }

    /// Sends a packet to the server.
    pub(crate) fn send(&mut self, from: usize, to: Option<Vec<Identity>>, load: Load) {
        if load.is_lossy() && std::mem::take(&mut self.joins[from].loses_next) {
            self.note_loss();
            return self.reached.note(Reach::LostAmongDelayed);
        }
        let held = self.joins[from].held_until;
        let when = self.now + UPLINK;
        let when = if held > when { held + 1 } else { when };
        if held <= self.now || !load.is_lossy() {
            self.at(when, Scheduled::AtServer { from, to, load });
        }
    }

    fn note_loss(&mut self) {
        self.last_loss = self.now;
        self.losses += 1;
    }

    /// Forwards a packet that is at the server to the joins that have the destination identities now.
    pub(crate) fn relay(&mut self, from: usize, to: Option<Vec<Identity>>, load: &Load) {
        let sender = &self.joins[from];
        if !sender.listed {
            return; // packets in flight are lost when their sender rejoins
        }
        if sender.held_until > self.now {
            let when = sender.held_until;
            if !load.is_lossy() {
                self.at(when, Scheduled::AtServer { from, to, load: load.clone() });
            }
            return;
        }
        let receivers: Vec<_> = match to {
            Some(identities) => identities.iter().filter_map(|it| self.listed_as(it.as_str())).collect(),
            None => self.listed().into_iter().filter(|join| *join != from).collect(),
        };
        for to in receivers {
            let link = self.joins[to].links.entry(from).or_default();
            link.count += 1;
            let mut dice = Random::of(self.seed, &[5, from as u64, to as u64, link.count]);
            let mut wait = dice.between(3_000, 5_000 + self.network.jitter * 1_000);
            let mut drawn = Random::of(self.seed, &[12, from as u64, to as u64, link.count]);
            let configurations_lost = link.configurations_lost;
            let unannounced = link.count == 1 && !self.joins[to].announced.contains_key(&from);
            if self.network.configurations_lost > 0
                && configurations_lost < 1
                && drawn.percent(self.network.configurations_lost)
                && load.is_configuration()
            {
                self.joins[to].links.entry(from).or_default().configurations_lost += 1;
                self.configuration_is_lost(from, load);
                continue;
            }
            // The app's SDK reads the identity in the packet.
            let unannounced = unannounced && self.joins[to].actor != Actor::App;
            let peer = match unannounced && self.network.unknown_senders && dice.percent(50) {
                true => {
                    self.configuration_is_lost(from, load);
                    Peer::new("", "")
                }
                false => self.joins[from].participant.peer().clone(),
            };
            if load.is_lossy() {
                self.relay_lossy(wait, &mut dice, &peer, to, load);
                continue;
            }
            if dice.percent(self.network.stalls) {
                wait += dice.between(300_000, 1_500_000);
            }
            let link = self.joins[to].links.entry(from).or_default();
            let when = (self.now + wait).max(link.last + 1);
            link.last = when;
            self.at(when, Scheduled::Arrives { peer, to, load: load.clone() });
        }
    }

    /// Notes that a Configuration, half of a handshake, is lost. One without a sender counts as lost.
    fn configuration_is_lost(&mut self, from: usize, load: &Load) {
        if load.is_configuration() {
            let is_client = matches!(self.joins[from].actor, Actor::Client(_));
            self.reached.note(if is_client {
                Reach::ClientConfigurationLost
            } else {
                Reach::AssistantConfigurationLost
            });
        }
    }

    /// Delivers a lossy packet, which may be lost, duplicated or reordered.
    fn relay_lossy(&mut self, wait: Us, dice: &mut Random, peer: &Peer, to: usize, load: &Load) {
        if dice.percent(self.network.lost) {
            return;
        }
        let reordered = if dice.percent(self.network.reordered) { dice.below(90_000) } else { 0 };
        if reordered > 0 {
            self.note_loss(); // its sender cannot know better
        }
        let duplicate = dice.percent(self.network.duplicated).then(|| dice.below(200_000));
        for more in [Some(0), duplicate].into_iter().flatten() {
            let (peer, load) = (peer.clone(), load.clone());
            self.at(self.now + wait + reordered + more, Scheduled::Arrives { peer, to, load });
        }
    }
}
