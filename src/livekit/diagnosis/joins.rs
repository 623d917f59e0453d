//! Makes the joins of a diagnosis, and exchanges data between two of its participants.

use std::{borrow::Cow, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    livekit::{AccessKey, ConnectError, ConnectOptions, LiveKitTransport, TokenClaims},
    transport::{Identity, Lane, Packet, Role, Transport, TransportEvent},
};

/// The topic of these packets, which no other participant uses.
const TOPIC: &str = "toolbridge.doctor";
/// The number of round trips on each channel.
const ROUNDS: usize = 20;
/// The time limit of a reliable round trip, including retransmissions.
const RELIABLE: Duration = Duration::from_secs(3);
/// The time limit of a lossy round trip.
const LOSSY: Duration = Duration::from_millis(500);

/// The credentials and options of the joins.
pub(super) struct Joiner {
    pub(super) url: String,
    pub(super) options: ConnectOptions,
    pub(super) room: String,
    /// The given token, if any.
    pub(super) token: Option<String>,
    /// The key that signs other tokens.
    pub(super) key: Option<AccessKey>,
}

/// What the participant may do in the room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permissions {
    pub(super) may_send: bool,
    pub(super) is_hidden: bool,
    pub(super) role: Option<Role>,
    /// Whether it may be an assistant. Without a role, its kind makes it one.
    pub(super) is_assistant: bool,
}

/// The round-trip times of the packets that came back, and how many were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EchoResults {
    pub(super) reliable: Vec<Duration>,
    pub(super) sent_reliable: usize,
    pub(super) lossy: Vec<Duration>,
    pub(super) sent_lossy: usize,
}

impl Joiner {
    /// Joins with the given token, or as a new participant.
    pub(super) async fn join(
        &self,
        word: &str,
        options: ConnectOptions,
    ) -> Result<LiveKitTransport, ConnectError> {
        match (&self.token, &self.key) {
            (Some(token), _) => self.enter(token, options).await,
            (None, Some(key)) => self.enter(&self.signed(key, word)?, options).await,
            (None, None) => Err(ConnectError::MalformedToken),
        }
    }

    /// Returns the given token, or a new one.
    pub(super) fn any_token(&self) -> Option<String> {
        self.token.clone().or_else(|| self.signed(self.key.as_ref()?, "asks").ok())
    }

    /// Joins over one kind of path only, and leaves.
    pub(super) async fn try_path(&self, word: &str, options: ConnectOptions) -> Result<(), ConnectError> {
        self.join(word, options).await?.close().await;
        Ok(())
    }

    /// Joins with two participants and measures round trips between them.
    pub(super) async fn echo(&self, key: &AccessKey) -> Result<EchoResults, ConnectError> {
        let mut one = self.join("asks", self.options.clone()).await?;
        let mut two = self.enter(&self.signed(key, "answers")?, self.options.clone()).await?;
        let echoes = there_and_back(&mut one, &mut two, Instant::now() + self.options.join_timeout).await;
        one.close().await;
        two.close().await;
        Ok(echoes)
    }

    /// Signs a token without a role, so that no client or assistant interacts with the participant.
    fn signed(&self, key: &AccessKey, word: &str) -> Result<String, ConnectError> {
        let identity = format!("toolbridge-doctor-{word}-{}", nanoid::nanoid!(6));
        key.participant(&*self.room, identity).sign().map_err(|error| ConnectError::Transport(error.into()))
    }

    async fn enter(&self, token: &str, options: ConnectOptions) -> Result<LiveKitTransport, ConnectError> {
        options.rejoin_limit(Duration::ZERO).join(&self.url, token).await
    }
}

/// Returns what the server allows the participant to do. The token says whether it is hidden.
pub(super) fn permissions(room: &LiveKitTransport, token: Option<&str>) -> Permissions {
    let local = room.local();
    Permissions {
        may_send: room.can_publish_data(),
        is_hidden: token.and_then(TokenClaims::from_unverified).is_some_and(|claims| claims.is_hidden()),
        role: local.token_role(),
        is_assistant: local.is_eligible_assistant(),
    }
}

async fn there_and_back(
    one: &mut LiveKitTransport,
    two: &mut LiveKitTransport,
    until: Instant,
) -> EchoResults {
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

/// Sends one packet to the other participant, which sends it back.
async fn round(
    one: &mut LiveKitTransport,
    two: &mut LiveKitTransport,
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
