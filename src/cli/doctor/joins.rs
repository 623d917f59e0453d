//! Joins for the sake of the check, and data between two participants of its own.

use std::{borrow::Cow, time::Duration};

use tokio::time::{Instant, timeout_at};

use toolbridge::{
    AccessKey, ConnectError, Identity, Lane, Packet, Role, Room, RoomOptions,
    transport::{Transport, TransportEvent},
};

/// What the check's packets are about; nobody else listens to that.
const TOPIC: &str = "toolbridge.doctor";
/// How many packets go there and back on each lane.
const ROUNDS: usize = 20;
/// How long an answer is waited for on the reliable lane, in all that is lost and sent again.
const RELIABLE: Duration = Duration::from_secs(3);
/// How long one is waited for on the other.
const LOSSY: Duration = Duration::from_millis(500);

/// What lets us in.
pub(super) struct Joiner {
    pub(super) url: String,
    pub(super) options: RoomOptions,
    pub(super) room: String,
    /// The token that was given, if one was.
    pub(super) token: Option<String>,
    /// What signs others.
    pub(super) key: Option<AccessKey>,
    pub(super) limit: Duration,
}

/// What we may do in the room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permissions {
    pub(super) may_send: bool,
    pub(super) role: Option<Role>,
    pub(super) is_agent: bool,
}

/// What came back, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EchoResults {
    pub(super) reliable: Vec<Duration>,
    pub(super) sent_reliable: usize,
    pub(super) lossy: Vec<Duration>,
    pub(super) sent_lossy: usize,
}

impl Joiner {
    /// Joins: with the given token, or as somebody made up.
    pub(super) async fn join(&self, word: &str, options: RoomOptions) -> Result<Room, ConnectError> {
        match (&self.token, &self.key) {
            (Some(token), _) => self.enter(token, options).await,
            (None, Some(key)) => self.enter(&self.signed(key, word)?, options).await,
            (None, None) => Err(ConnectError::MalformedToken),
        }
    }

    /// The given token, or one as a join would have it.
    pub(super) fn any_token(&self) -> Option<String> {
        self.token.clone().or_else(|| self.signed(self.key.as_ref()?, "asks").ok())
    }

    /// Joins over one kind of path alone, and leaves again.
    pub(super) async fn try_path(&self, word: &str, options: RoomOptions) -> Result<(), ConnectError> {
        self.join(word, options).await?.close().await;
        Ok(())
    }

    /// Sends data to another participant of ours and back again.
    pub(super) async fn echo(&self, key: &AccessKey) -> Result<EchoResults, ConnectError> {
        let mut one = self.join("asks", self.options.clone()).await?;
        let mut two = self.enter(&self.signed(key, "answers")?, self.options.clone()).await?;
        let echoes = there_and_back(&mut one, &mut two, Instant::now() + self.limit).await;
        one.close().await;
        two.close().await;
        Ok(echoes)
    }

    /// Somebody without a role: nobody offers tools to it, or calls it.
    fn signed(&self, key: &AccessKey, word: &str) -> Result<String, ConnectError> {
        let identity = format!("toolbridge-doctor-{word}-{}", nanoid::nanoid!(6));
        key.participant(&*self.room, identity).sign().map_err(|error| ConnectError::Transport(error.into()))
    }

    async fn enter(&self, token: &str, options: RoomOptions) -> Result<Room, ConnectError> {
        options.join_timeout(self.limit).rejoin_limit(Duration::ZERO).join(&self.url, token).await
    }
}

/// What the server lets us do.
pub(super) fn permissions(room: &Room) -> Permissions {
    let local = room.local();
    Permissions { may_send: room.can_publish_data(), role: local.token_role(), is_agent: local.is_agent() }
}

async fn there_and_back(one: &mut Room, two: &mut Room, until: Instant) -> EchoResults {
    let mut echoes = EchoResults::default();
    for number in 0..ROUNDS {
        if Instant::now() >= until {
            break;
        }
        echoes.sent_reliable += 1;
        let Some(took) = round(one, two, Lane::Reliable, number, until).await else { break };
        echoes.reliable.push(took);
    }
    for number in 0..ROUNDS {
        if Instant::now() >= until || echoes.reliable.is_empty() {
            break;
        }
        echoes.sent_lossy += 1;
        echoes.lossy.extend(round(one, two, Lane::Lossy, number, until).await);
    }
    echoes
}

/// One packet to the other one, which sends it back.
async fn round(
    one: &mut Room,
    two: &mut Room,
    lane: Lane,
    number: usize,
    until: Instant,
) -> Option<Duration> {
    let began = Instant::now();
    let payload = format!("{lane:?} {number}");
    let (asks, answers) = (one.local().identity().clone(), two.local().identity().clone());
    let wait = if lane == Lane::Lossy { LOSSY } else { RELIABLE };
    let came = async {
        one.send(packet(&answers, lane, &payload)).await.ok()?;
        loop {
            tokio::select! {
                event = one.recv() => match event? {
                    TransportEvent::Packet(it) if it.payload == payload && it.topic == TOPIC => {
                        return Some(began.elapsed());
                    }
                    TransportEvent::Closed(_) => return None,
                    _ => {}
                },
                event = two.recv() => match event? {
                    TransportEvent::Packet(it) if it.payload == payload && it.topic == TOPIC => {
                        two.send(packet(&asks, lane, &payload)).await.ok()?;
                    }
                    TransportEvent::Closed(_) => return None,
                    _ => {}
                },
            }
        }
    };
    timeout_at(until.min(began + wait), came).await.ok().flatten()
}

fn packet(to: &Identity, lane: Lane, payload: &str) -> Packet {
    let mut packet = Packet::new([to.clone()], payload.to_owned());
    packet.topic = Cow::Borrowed(TOPIC);
    packet.lane = lane;
    packet
}
