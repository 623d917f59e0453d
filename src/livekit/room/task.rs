//! Runs the task that owns a participant from its first join to its end, across all reconnects.

use std::time::{Duration, Instant};

use tokio::time;

use super::{
    connect::Connector,
    connection::{Connection, Ended},
    liveness::End,
    queues::{Left, Queues},
    rejoin::{Failure, Rejoin, Step},
};
use crate::{
    clock::Spelled,
    livekit::{
        chance,
        error::ConnectError,
        signaling::Sent,
        token::tokens::{self, TokenSource},
    },
    transport::{CloseReason, ConnectionState, Participant},
};

/// The state of a participant's task.
pub(crate) struct Task {
    pub(crate) queues: Queues,
    pub(crate) connector: Connector,
    pub(crate) source: Option<TokenSource>,
    pub(crate) rejoin: Rejoin,
    /// The room and the local participant. A fresh token must not change room or identity.
    pub(crate) room: String,
    pub(crate) local: Participant,
}

impl Task {
    /// Runs until the participant has left or reconnection has stopped.
    pub(crate) async fn run(mut self, first: Connection) {
        let (reason, last) = Box::pin(self.run_connections(first)).await;
        tracing::debug!(%reason, "left the room");
        // Before leaving, which waits for the server for up to a second.
        let left = self.queues.close(reason);
        if let Some(connection) = last {
            Box::pin(connection.leave()).await;
        }
        if let Some(left) = left {
            let _ = left.send(()); // nobody may be waiting
        }
    }

    /// Runs one connection after the other. Returns the reason of the end and the connection to leave, if any.
    async fn run_connections(&mut self, first: Connection) -> (CloseReason, Option<Connection>) {
        let mut connection = first;
        loop {
            let end = match connection.run(&mut self.queues).await {
                Ended::Left => return (CloseReason::Closed, Some(connection)),
                Ended::End(end) => end,
            };
            tracing::debug!(?end, "the connection ended");
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
            // The server may have moved the participant to another room.
            self.room.clone_from(&room);
            connection = match Box::pin(self.rejoin()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(reason)) => return (reason, None),
                Err(Left) => return (CloseReason::Closed, None),
            };
            let (sid, may) = (connection.local.sid().clone(), connection.can_publish_data);
            self.queues.resume(sid, may, connection.snapshot());
        }
    }

    /// Tries to rejoin until it succeeds or reconnection must stop.
    async fn rejoin(&mut self) -> Result<Result<Connection, CloseReason>, Left> {
        loop {
            // Otherwise the events of a flapping connection would pile up.
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
                Ok(connection) if self.is_other_room_or_identity(&connection) => {
                    Box::pin(connection.leave()).await;
                    let why = "the fresh token is for another identity or another room";
                    return Ok(Err(CloseReason::Refused(why.into())));
                }
                Ok(connection) => {
                    self.rejoin.handle_joined(Instant::now());
                    self.queues.shared.with(|state| state.token.clone_from(&connection.token));
                    return Ok(Ok(connection));
                }
                Err(failure) => {
                    tracing::debug!(%failure, "a rejoin attempt failed");
                    self.rejoin.handle_failed(Instant::now(), &failure, chance());
                }
            }
        }
    }

    fn is_other_room_or_identity(&self, connection: &Connection) -> bool {
        connection.room != self.room || connection.local.identity() != self.local.identity()
    }
}

/// Makes one attempt within `limit`, which includes fetching a token. Dropping the future leaves the room.
async fn attempt(
    connector: &Connector,
    source: Option<&TokenSource>,
    newest: String,
    fresh: bool,
    limit: Duration,
) -> Result<Connection, Failure> {
    let start = time::Instant::now();
    // Without a source, a token that has expired is tried all the same: the clock of this machine may be
    // wrong.
    let asked = source.filter(|_| fresh || tokens::has_expired(&newest));
    let token = match asked {
        None => newest,
        Some(source) => match time::timeout(limit, source.ask()).await {
            // For example, an error page of the token server.
            Ok(Ok(token)) if !tokens::has_the_form_of_a_token(&token) => {
                return Err(Failure::NoToken("the token source's answer is not a JWT".into()));
            }
            Ok(Ok(token)) => token,
            Ok(Err(why)) => return Err(Failure::NoToken(why)),
            Err(_) => return Err(Failure::NoToken(format!("none came within {}", Spelled(limit)))),
        },
    };
    if !tokens::has_the_form_of_a_token(&token) {
        return Err(Failure::Join(ConnectError::MalformedToken));
    }
    let left = limit.saturating_sub(start.elapsed());
    let sent = Sent::default();
    // Boxed: the memory of a join is not kept while the connection lives.
    Box::pin(connector.connect(&token, left, &sent)).await.map_err(|error| match error {
        // The newest token was one of the server. The application's source may have a better one, at once.
        ConnectError::Unauthorized { .. } if source.is_some() && asked.is_none() => Failure::TokenRefused,
        ConnectError::Unauthorized { .. } if tokens::has_expired(&token) => Failure::TokenExpired,
        error if sent.has_begun() && has_no_answer(&error) => Failure::Unanswered(error),
        error => Failure::Join(error),
    })
}

/// Returns whether a join whose request was sent may still be accepted: the server has not refused it, and cannot be told that this
/// participant has given it up.
fn has_no_answer(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Timeout { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::Closed(CloseReason::ConnectionLost(_))
    )
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
    use crate::livekit::{
        room::{liveness::Loss, rejoin::Policy},
        signaling::address::ServerUrl,
        token::access_token::AccessKey,
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

    /// Starts a server that rejects every token with 401. Returns its address and the tokens that it received.
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
            signal: Arc::new((&url).into()),
            bind: None,
            udp: true,
            tcp: true,
            relay_only: false,
            direct_only: false,
            policy: POLICY,
            keys: None,
        };
        (connector, seen)
    }

    fn source(token: &str) -> TokenSource {
        let token = token.to_owned();
        TokenSource::new(move || std::future::ready(Ok::<_, std::io::Error>(token.clone())))
    }

    /// A server that reads the request, and then answers with this.
    async fn answering(answer: &'static [u8]) -> Connector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.unwrap() > 0 {}
                stream.write_all(answer).await.unwrap();
            }
        });
        Connector { signal: Arc::new((&url).into()), ..refusing().await.0 }
    }

    #[tokio::test]
    async fn only_a_request_that_was_sent_can_be_accepted_late() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let url = ServerUrl::parse(&format!("ws://{closed}")).unwrap();
        let dead = Connector { signal: Arc::new((&url).into()), ..refusing().await.0 };
        let not_found = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
        let cut = answering(b"").await;
        let no_http = answering(b"SSH-2.0-OpenSSH\r\n").await;
        for (connector, is_unanswered) in [(dead, false), (not_found, false), (cut, true), (no_http, true)] {
            let failure = attempt(&connector, None, valid(), false, LIMIT).await.err().unwrap();
            assert_eq!(matches!(failure, Failure::Unanswered(_)), is_unanswered, "{failure:?}");
        }
    }

    #[tokio::test]
    async fn rejected_expired_token_is_reported_as_expired() {
        let (connector, _) = refusing().await;
        let refused = attempt(&connector, None, EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(refused, Failure::TokenExpired));
        let refused = attempt(&connector, None, valid(), false, LIMIT).await.err().unwrap();
        assert!(matches!(refused, Failure::Join(ConnectError::Unauthorized { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn token_source_is_called_when_the_token_expired_or_was_rejected() {
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
    async fn failing_token_source_costs_an_attempt_but_no_connection() {
        let (connector, seen) = refusing().await;
        let failing = TokenSource::new(|| std::future::ready(Err::<String, _>("away")));
        let failure = attempt(&connector, Some(&failing), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(failure, Failure::NoToken(why) if why == "away"));
        let silent = TokenSource::new(std::future::pending::<Result<String, std::io::Error>>);
        let failure = attempt(&connector, Some(&silent), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(failure, Failure::NoToken(why) if why.contains("10 s")));
        let failure =
            attempt(&connector, Some(&source("none")), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(matches!(failure, Failure::NoToken(why) if why.contains("not a JWT")));
        assert!(seen.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_token_source_reduces_the_time_left_for_the_join() {
        // Accepts connections but never responds.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut connector, _) = refusing().await;
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        connector.signal = Arc::new((&url).into());
        let slow = TokenSource::new(|| async {
            time::sleep(Duration::from_secs(8)).await;
            Ok::<_, std::io::Error>("fresh.fresh.fresh".to_owned())
        });
        let start = time::Instant::now();
        let failure = attempt(&connector, Some(&slow), EXPIRED.into(), false, LIMIT).await.err().unwrap();
        assert!(
            matches!(failure, Failure::Unanswered(ConnectError::Timeout { limit, .. }) if limit == LIMIT - Duration::from_secs(8)),
            "{failure:?}"
        );
        assert_eq!(start.elapsed(), LIMIT);
    }

    #[tokio::test]
    async fn panicking_token_source_is_called_again_for_the_next_attempt() {
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
