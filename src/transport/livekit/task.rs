//! The task that owns a participant, from its first join to its end, over all the joins between.

use std::time::{Duration, Instant};

use tokio::time;

use super::{
    chance,
    connect::Connector,
    connection::{Connection, Ended},
    error::ConnectError,
    liveness::End,
    queues::{Left, Queues},
    rejoin::{Failure, Rejoin, Step},
    tokens::{self, TokenSource},
};
use crate::transport::{CloseReason, ConnectionState, Participant};

/// A participant.
pub(super) struct Task {
    pub(super) queues: Queues,
    pub(super) connector: Connector,
    pub(super) source: Option<TokenSource>,
    pub(super) rejoin: Rejoin,
    /// The room and our identity, which a fresh token cannot change.
    pub(super) room: String,
    pub(super) local: Participant,
}

impl Task {
    /// Runs until the room is left, or lost for good.
    pub(super) async fn run(mut self, first: Connection) {
        let (reason, last) = self.live(first).await;
        tracing::debug!(%reason, "the room was left");
        let rest = self.queues.close(reason);
        if let Some(connection) = last {
            connection.leave().await;
        }
        rest.tell().await;
    }

    /// Lives through join after join. Why it is over, and the join that is to be left.
    async fn live(&mut self, first: Connection) -> (CloseReason, Option<Connection>) {
        let mut connection = first;
        loop {
            let end = match connection.run(&mut self.queues).await {
                Ended::Left => return (CloseReason::Closed, Some(connection)),
                Ended::End(end) => end,
            };
            tracing::debug!(?end, "a join ended");
            if self.queues.leaving.is_some() {
                return (reason(end), Some(connection));
            }
            self.rejoin.handle_ended(Instant::now(), end, chance());
            if let Some(reason) = self.rejoin.is_over(Instant::now()) {
                return (reason, Some(connection));
            }
            let room = connection.room.clone();
            connection.abandon();
            self.queues.interrupt();
            self.queues.emit_connection_state(ConnectionState::Reconnecting);
            // The server may have put us into another one.
            self.room.clone_from(&room);
            connection = match self.join_anew().await {
                Ok(Ok(connection)) => connection,
                Ok(Err(reason)) => return (reason, None),
                Err(Left) => return (CloseReason::Closed, None),
            };
            let (sid, may) = (connection.local.sid().clone(), connection.can_publish_data);
            self.queues.resume(sid, may, connection.snapshot());
        }
    }

    /// Tries until there is a join, or it is of no use any more.
    async fn join_anew(&mut self) -> Result<Result<Connection, CloseReason>, Left> {
        loop {
            // What a flapping connection has to tell would else grow without end.
            self.queues.wait_until_read().await?;
            let (limit, fresh) = match self.rejoin.poll(Instant::now()) {
                Step::End(reason) => return Ok(Err(reason)),
                Step::Wait(until) => {
                    self.queues.serve(time::sleep_until(until.into())).await?;
                    continue;
                }
                Step::Join { limit, fresh_token } => (limit, fresh_token),
            };
            let newest = self.queues.shared.with(|state| state.token.clone());
            let attempt = attempt(&self.connector, self.source.as_ref(), newest, fresh, limit);
            match self.queues.serve(attempt).await? {
                Ok(connection) if self.is_elsewhere(&connection) => {
                    connection.leave().await;
                    let why = "the fresh token is for another identity or another room";
                    return Ok(Err(CloseReason::Refused(why.into())));
                }
                Ok(connection) => {
                    self.rejoin.handle_joined(Instant::now());
                    self.queues.shared.with(|state| state.token.clone_from(&connection.token));
                    return Ok(Ok(connection));
                }
                Err(failure) => {
                    tracing::debug!(%failure, "an attempt to join anew failed");
                    self.rejoin.handle_failed(Instant::now(), &failure, chance());
                }
            }
        }
    }

    fn is_elsewhere(&self, connection: &Connection) -> bool {
        connection.room != self.room || connection.local.identity() != self.local.identity()
    }
}

/// One attempt, within this limit: what asking for a token took is not left for the join. A dropped future leaves again.
async fn attempt(
    connector: &Connector,
    source: Option<&TokenSource>,
    newest: String,
    fresh: bool,
    limit: Duration,
) -> Result<Connection, Failure> {
    let start = time::Instant::now();
    let asked = source.filter(|_| fresh || tokens::has_expired(&newest));
    let token = match asked {
        None => newest,
        Some(source) => match time::timeout(limit, source.ask()).await {
            // As when the token server answers with a page about its trouble.
            Ok(Ok(token)) if !tokens::has_the_form_of_a_token(&token) => {
                return Err(Failure::NoToken("the token source's answer is not a JWT".into()));
            }
            Ok(Ok(token)) => token,
            Ok(Err(why)) => return Err(Failure::NoToken(why)),
            Err(_) => return Err(Failure::NoToken(format!("none came within {limit:?}"))),
        },
    };
    if !tokens::has_the_form_of_a_token(&token) {
        return Err(Failure::Join(ConnectError::MalformedToken));
    }
    let left = limit.saturating_sub(start.elapsed());
    connector.connect(&token, left).await.map_err(|error| match error {
        ConnectError::Unauthorized { .. } if source.is_some() && asked.is_none() => Failure::TokenRefused,
        ConnectError::Unauthorized { .. } if tokens::has_expired(&token) => Failure::TokenExpired,
        error => Failure::Join(error),
    })
}

fn reason(end: End) -> CloseReason {
    match end {
        End::Closed(reason) => reason,
        End::Lost(loss) => CloseReason::ConnectionLost(loss.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::transport::livekit::{
        access_token::AccessKey, address::ServerUrl, liveness::Loss, rejoin::Policy,
    };

    /// Its claims: `{"exp":1,"iss":"a","nbf":0}`.
    const EXPIRED: &str = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjEsImlzcyI6ImEiLCJuYmYiOjB9.c2ln";
    const LIMIT: Duration = Duration::from_secs(10);
    const POLICY: Policy =
        Policy { first: Duration::ZERO, longest: Duration::ZERO, limit: None, join_timeout: LIMIT };

    fn valid() -> String {
        let key = AccessKey::new("devkey", "secretsecretsecretsecretsecretsecret");
        key.client("kitchen", "phone").sign().unwrap()
    }

    /// A server that refuses every token with 401, and which tokens it saw.
    async fn refusing() -> (Connector, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn({
            let seen = seen.clone();
            async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.unwrap() > 0 {}
                    let head = String::from_utf8(head).unwrap();
                    let token = head.lines().find_map(|line| line.split_once("Bearer ")).unwrap().1;
                    seen.lock().unwrap().push(token.to_owned());
                    let refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
                    stream.write_all(refusal).await.unwrap();
                }
            }
        });
        let connector = Connector {
            url,
            roots: Vec::new(),
            bind: None,
            udp: true,
            tcp: true,
            relay_only: false,
            direct_only: false,
            policy: POLICY,
        };
        (connector, seen)
    }

    fn source(token: &str) -> TokenSource {
        let token = token.to_owned();
        TokenSource::new(move || std::future::ready(Ok::<_, std::io::Error>(token.clone())))
    }

    #[tokio::test]
    async fn a_refused_token_that_has_expired_is_told_as_that() {
        let (connector, _) = refusing().await;
        let refused = attempt(&connector, None, EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(refused, Failure::TokenExpired));
        let refused = attempt(&connector, None, valid(), false, LIMIT).await.err().unwrap();
        assert!(matches!(refused, Failure::Join(ConnectError::Unauthorized { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn a_source_is_asked_when_the_token_has_expired_or_was_refused() {
        let (connector, seen) = refusing().await;
        let (newest, fresh) = (valid(), source("fresh.fresh.fresh"));
        let refused = attempt(&connector, Some(&fresh), newest.clone(), false, LIMIT).await.err().unwrap();
        assert!(matches!(refused, Failure::TokenRefused), "{refused:?}");
        for (token, refused) in [(newest.as_str(), true), (EXPIRED, false)] {
            let failure =
                attempt(&connector, Some(&fresh), token.into(), refused, LIMIT).await.err().unwrap();
            assert!(matches!(failure, Failure::Join(ConnectError::Unauthorized { .. })), "{failure:?}");
        }
        let asked = "fresh.fresh.fresh".to_owned();
        assert_eq!(*seen.lock().unwrap(), [newest, asked.clone(), asked]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_gives_nothing_costs_an_attempt_and_no_connection() {
        let (connector, seen) = refusing().await;
        let failing = TokenSource::new(|| std::future::ready(Err::<String, _>("away")));
        let failure = attempt(&connector, Some(&failing), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(failure, Failure::NoToken(why) if why == "away"));
        let silent = TokenSource::new(std::future::pending::<Result<String, std::io::Error>>);
        let failure = attempt(&connector, Some(&silent), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(failure, Failure::NoToken(why) if why.contains("10s")));
        let failure =
            attempt(&connector, Some(&source("none")), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(failure, Failure::NoToken(why) if why.contains("not a JWT")));
        assert!(seen.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_source_leaves_the_join_what_is_left_of_the_limit() {
        // It takes connections, and never says anything on them.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut connector, _) = refusing().await;
        connector.url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let slow = TokenSource::new(|| async {
            time::sleep(Duration::from_secs(8)).await;
            Ok::<_, std::io::Error>("fresh.fresh.fresh".to_owned())
        });
        let start = time::Instant::now();
        let failure = attempt(&connector, Some(&slow), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(
            matches!(failure, Failure::Join(ConnectError::Timeout { limit, .. }) if limit == LIMIT - Duration::from_secs(8)),
            "{failure:?}"
        );
        assert_eq!(start.elapsed(), LIMIT);
    }

    #[tokio::test]
    async fn a_source_that_panics_is_asked_again_with_the_next_attempt() {
        let (connector, seen) = refusing().await;
        let asked = AtomicBool::new(false);
        let source = TokenSource::new(move || {
            assert!(asked.swap(true, Ordering::Relaxed), "the first time it panics");
            std::future::ready(Ok::<_, std::io::Error>("fresh.fresh.fresh".to_owned()))
        });
        let (start, newest) = (Instant::now(), valid());
        let mut rejoin = Rejoin::new(start, POLICY, Duration::ZERO);
        let lost = End::Lost(Loss::Signaling("gone".into()));
        rejoin.handle_ended(start, lost, 0);
        rejoin.handle_failed(start, &Failure::TokenRefused, 0);
        let mut failures = Vec::new();
        for _ in 0..3 {
            let Step::Join { limit, fresh_token } = rejoin.poll(Instant::now()) else { panic!("it ended") };
            let failed =
                attempt(&connector, Some(&source), newest.clone(), fresh_token, limit).await.err().unwrap();
            rejoin.handle_failed(Instant::now(), &failed, 0);
            failures.push(failed);
        }
        let [Failure::NoToken(why), Failure::TokenRefused, Failure::Join(ConnectError::Unauthorized { .. })] =
            &failures[..]
        else {
            panic!("{failures:?}")
        };
        assert_eq!(why, "the token source panicked");
        assert_eq!(*seen.lock().unwrap(), [newest, "fresh.fresh.fresh".into()]);
    }
}
