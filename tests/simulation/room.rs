//! The room, as LiveKit is: joins, who is told of whom and when, and packets on their way.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use toolbridge::{
    CallId, Identity, JobKey, Lane, Participant, Peer, StreamPart,
    frame::{Frame, Kind},
};

use crate::{
    random::Random,
    reach::{Reach, Reached},
    schedule::{Ms, Weather, Who},
};

/// Microseconds since the run began.
pub(crate) type Us = u64;

/// How long a packet takes to the server.
const UPLINK: Us = 3_000;

/// What is carried.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Packet(Lane, Bytes),
    Part(StreamPart),
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

/// What happens next.
#[derive(Debug)]
pub(crate) enum Happens {
    /// An act of the schedule.
    Act(usize),
    /// The room lists a join.
    Listed(usize),
    /// A join can hear.
    Opens(usize),
    /// A join is no longer listed.
    Ends(usize),
    /// A packet reached the server.
    AtServer { from: usize, to: Option<Vec<Identity>>, load: Load },
    /// A packet reached a join.
    Arrives { peer: Peer, to: usize, load: Load },
    /// A join is told of another one.
    News { to: usize, about: usize, joined: bool },
    /// A process is told whether packets can pass.
    Link { process: usize, join: usize, up: bool },
    /// A process joins, for the first time or anew.
    Joins { process: usize },
    /// A process comes back whose identity another one has taken over.
    Returns { process: usize },
    /// The next part of a stream leaves, or what waited behind it.
    Part { process: usize, join: usize },
    /// A person answers the question before a tool runs.
    PersonAnswers { process: usize, key: JobKey, allowed: bool },
    /// A tool ends.
    JobEnds { process: usize, key: JobKey },
    /// A tool tells how far it has come.
    JobTalks { process: usize, key: JobKey, left: u32 },
    /// A tool of a plain client ends.
    PlainJobEnds { process: usize, caller: Identity, call: CallId },
    /// The budget of a plain assistant's call is used up.
    PlainDeadline { call: usize },
    /// Another second begins, with other things in the way.
    Second,
    /// The network is whole.
    Heals,
    /// Handlers of calls that have ended must have heard of it.
    Stopped { callers_too: bool },
    /// A process leaves in order.
    Leaves { who: Who, again: Ms },
    /// What is still open is given up.
    Clears,
    /// One fresh call to each client.
    Probes,
    /// As many calls to each client as may be open.
    FullHouse,
}

/// One join of one process.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) who: Who,
    pub(crate) process: usize,
    pub(crate) participant: Participant,
    pub(crate) listed: bool,
    pub(crate) open: bool,
    /// Nothing passes before.
    pub(crate) held_until: Us,
    /// It is told of nobody before.
    pub(crate) deaf_until: Us,
    /// The joins that it was told of, and when.
    pub(crate) told: BTreeMap<usize, Us>,
    /// The streams that have not ended, as far as they came.
    pub(crate) streams: BTreeMap<(Peer, Arc<str>), Vec<u8>>,
    last_news: Us,
    /// From each other join.
    links: BTreeMap<usize, Link>,
}

/// What went from one join to another: in order, and each packet under its own dice.
#[derive(Debug, Default)]
struct Link {
    count: u64,
    last: Us,
    halves_lost: u32,
}

/// Everything that is on its way.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) seed: u64,
    pub(crate) now: Us,
    pub(crate) weather: Weather,
    pub(crate) joins: Vec<Join>,
    queue: BTreeMap<(Us, u64), Happens>,
    order: u64,
    pub(crate) reached: Reached,
}

impl Room {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        Self {
            seed,
            now: 0,
            weather,
            joins: Vec::new(),
            queue: BTreeMap::new(),
            order: 0,
            reached: Reached::default(),
        }
    }

    pub(crate) fn at(&mut self, when: Us, what: Happens) {
        self.order += 1;
        self.queue.insert((when.max(self.now), self.order), what);
    }

    pub(crate) fn after(&mut self, wait: Ms, what: Happens) {
        self.at(self.now + wait * 1_000, what);
    }

    /// When the next thing happens.
    pub(crate) fn next(&self) -> Option<Us> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<Happens> {
        self.queue.pop_first().map(|(_, what)| what)
    }

    /// A join that the room does not list yet.
    pub(crate) fn add(&mut self, who: Who, process: usize, participant: Participant) -> usize {
        self.joins.push(Join {
            who,
            process,
            participant,
            listed: false,
            open: false,
            held_until: 0,
            deaf_until: 0,
            told: BTreeMap::new(),
            streams: BTreeMap::new(),
            last_news: 0,
            links: BTreeMap::new(),
        });
        self.joins.len() - 1
    }

    /// The join of this identity that the room lists.
    pub(crate) fn listed_as(&self, identity: &str) -> Option<usize> {
        self.joins.iter().position(|join| join.listed && join.participant.identity().as_str() == identity)
    }

    pub(crate) fn listed(&self) -> Vec<usize> {
        (0..self.joins.len()).filter(|join| self.joins[*join].listed).collect()
    }

    /// The room lists a join: the others are told after a while, and so is it.
    pub(crate) fn list(&mut self, join: usize) {
        self.joins[join].listed = true;
        for to in self.listed() {
            let mut dice = Random::of(self.seed, &[2, join as u64, to as u64]);
            let wait = dice.between(10, self.weather.announcements.max(11));
            self.news(to, join, true, wait);
        }
    }

    /// The room does not list a join any more: those who were told of it are told.
    pub(crate) fn unlist(&mut self, join: usize) {
        if !std::mem::replace(&mut self.joins[join].listed, false) {
            return;
        }
        self.joins[join].open = false;
        for to in self.listed() {
            let mut dice = Random::of(self.seed, &[3, join as u64, to as u64]);
            let wait = dice.between(5, 100);
            self.news(to, join, false, wait);
        }
    }

    fn news(&mut self, to: usize, about: usize, joined: bool, wait: Ms) {
        let join = &mut self.joins[to];
        // Those who come are told of in batches; who leaves is told of at once, after what was told before.
        let mut when = self.now + wait * 1_000;
        if !joined {
            when = when.max(join.last_news);
            join.last_news = when;
        }
        self.at(when, Happens::News { to, about, joined });
    }

    /// A process hands a packet over.
    pub(crate) fn send(&mut self, from: usize, to: Option<Vec<Identity>>, load: Load) {
        let held = self.joins[from].held_until;
        let when = self.now + UPLINK;
        let when = if held > when { held + 1 } else { when };
        if held <= self.now || !load.is_lossy() {
            self.at(when, Happens::AtServer { from, to, load });
        }
    }

    /// A packet reached the server: it goes on to whoever has the name now.
    pub(crate) fn relay(&mut self, from: usize, to: Option<Vec<Identity>>, load: &Load) {
        let sender = &self.joins[from];
        if !sender.listed {
            return; // what was in flight when its sender rejoined is lost
        }
        if sender.held_until > self.now {
            let when = sender.held_until;
            if !load.is_lossy() {
                self.at(when, Happens::AtServer { from, to, load: load.clone() });
            }
            return;
        }
        let receivers: Vec<_> = match to {
            Some(names) => names.iter().filter_map(|name| self.listed_as(name.as_str())).collect(),
            None => self.listed().into_iter().filter(|join| *join != from).collect(),
        };
        for to in receivers {
            let link = self.joins[to].links.entry(from).or_default();
            link.count += 1;
            let mut dice = Random::of(self.seed, &[5, from as u64, to as u64, link.count]);
            let mut wait = dice.between(3_000, 5_000 + self.weather.jitter * 1_000);
            let mut half = Random::of(self.seed, &[12, from as u64, to as u64, link.count]);
            let halves_lost = link.halves_lost;
            let unknown = link.count == 1 && !self.joins[to].told.contains_key(&from);
            if self.weather.halves_lost > 0
                && halves_lost < 1
                && half.percent(self.weather.halves_lost)
                && load.is_configuration()
            {
                self.joins[to].links.entry(from).or_default().halves_lost += 1;
                self.half_is_lost(from, load);
                continue;
            }
            let peer = match unknown && self.weather.nameless && dice.percent(50) {
                true => {
                    self.half_is_lost(from, load);
                    Peer::new("", "")
                }
                false => self.joins[from].participant.peer().clone(),
            };
            if load.is_lossy() {
                self.relay_lossy(wait, &mut dice, &peer, to, load);
                continue;
            }
            if dice.percent(self.weather.stalls) {
                wait += dice.between(300_000, 1_500_000);
            }
            let link = self.joins[to].links.entry(from).or_default();
            let when = (self.now + wait).max(link.last + 1);
            link.last = when;
            self.at(when, Happens::Arrives { peer, to, load: load.clone() });
        }
    }

    /// A frame without a sender is as good as lost: of a Configuration that is half of a handshake.
    fn half_is_lost(&mut self, from: usize, load: &Load) {
        if load.is_configuration() {
            let is_client = matches!(self.joins[from].who, Who::C(_));
            self.reached.note(if is_client { Reach::ClientHalfLost } else { Reach::AssistantHalfLost });
        }
    }

    /// What is lossy is lost, comes twice, and is passed by what was sent later.
    fn relay_lossy(&mut self, wait: Us, dice: &mut Random, peer: &Peer, to: usize, load: &Load) {
        if dice.percent(self.weather.lost) {
            return;
        }
        let passed = if dice.percent(self.weather.passed) { dice.below(90_000) } else { 0 };
        let again = dice.percent(self.weather.twice).then(|| dice.below(200_000));
        for more in [Some(0), again].into_iter().flatten() {
            let (peer, load) = (peer.clone(), load.clone());
            self.at(self.now + wait + passed + more, Happens::Arrives { peer, to, load });
        }
    }
}
