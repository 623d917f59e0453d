//! Provides the token for a rejoin: the newest one from the server, or a fresh one from the token source.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use livekit_token::Claims;
use tokio::task::JoinSet;

/// Returns true if the text has the form of a JWT: three base64url parts. Anything else is rejected before connecting.
pub(crate) fn has_the_form_of_a_token(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_'))
    };
    // This also keeps line breaks, and so further headers, out of the request that carries the token.
    text.split('.').count() == 3 && text.split('.').all(is_part)
}

/// Returns true if the token has expired according to the local clock. An unreadable token has no expiry.
pub(crate) fn has_expired(token: &str) -> bool {
    let Ok(claims) = Claims::from_unverified(token) else { return false };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(claims.exp).is_ok_and(|exp| exp <= now.as_secs())
}

type TokenFuture = Pin<Box<dyn Future<Output = Result<String, Box<dyn Error + Send + Sync>>> + Send>>;

/// The application's source of tokens.
#[derive(Clone)]
pub(crate) struct TokenSource(Arc<dyn Fn() -> TokenFuture + Send + Sync>);

impl TokenSource {
    pub(crate) fn new<F, Fut, E>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move || {
            let asked = ask();
            Box::pin(async move { asked.await.map_err(Into::into) })
        }))
    }

    /// Requests a token; the error is the text of the user's code. The code runs in its own task, which ends with
    /// this future: a panic, even in its error's text, costs one attempt and not the participant.
    pub(crate) async fn ask(&self) -> Result<String, String> {
        let source = self.0.clone();
        // A set ends its task when it is dropped. A plain task would go on after the attempt was given up.
        let mut asked = JoinSet::new();
        asked.spawn(async move { source().await.map_err(|error| error.to_string()) });
        match asked.join_next().await {
            Some(Ok(answer)) => answer,
            // The panic message may contain secrets.
            Some(Err(_)) | None => Err("the token source panicked".into()),
        }
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSource")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::livekit::token::access_token::AccessKey;

    const SECRET: &str = "secretsecretsecretsecretsecretsecret";

    #[test]
    fn token_has_three_parts() {
        assert!(has_the_form_of_a_token("eyJh-_0.e30.c2ln"));
        for none in ["", "t", "a.b", "a.b.c.d", "a..c", "Bearer a.b.c", "\"a.b.c\"", "a.b.c\n"] {
            assert!(!has_the_form_of_a_token(none), "{none:?}");
        }
    }

    #[test]
    fn token_lifetime_is_read_from_its_claims() {
        let token = AccessKey::new("devkey", SECRET).client("kitchen", "phone").sign().unwrap();
        assert!(!has_expired(&token));
        // {"exp":1,"nbf":0}, and no claims at all.
        assert!(has_expired("eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjEsImlzcyI6ImEiLCJuYmYiOjB9.c2ln"));
        assert!(!has_expired("a.b.c"));
    }

    #[tokio::test]
    async fn token_source_is_called_each_time_and_may_fail() {
        let source = TokenSource::new(|| async { Err::<String, _>("the token server is away") });
        assert_eq!(source.ask().await.unwrap_err(), "the token server is away");
        assert_eq!(format!("{source:?}"), "TokenSource");
        let source = TokenSource::new(|| async { Ok::<_, std::io::Error>("a.b.c".to_owned()) });
        assert_eq!(source.ask().await.unwrap(), "a.b.c");
    }
    /// An error whose text cannot be had.
    #[derive(Debug)]
    struct Speechless;

    impl fmt::Display for Speechless {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("hunter2")
        }
    }

    impl Error for Speechless {}

    #[tokio::test]
    async fn panicking_token_source_fails_and_can_be_called_again() {
        let asked = AtomicU32::new(0);
        let panicking = TokenSource::new(move || {
            let asked = asked.fetch_add(1, Ordering::Relaxed);
            assert!(asked != 0, "hunter2: before its future is there");
            async move {
                assert!(asked != 1, "hunter2: within its future");
                if asked == 2 { Err(Speechless) } else { Ok("a.b.c".to_owned()) }
            }
        });
        for _ in 0..3 {
            assert_eq!(panicking.ask().await.unwrap_err(), "the token source panicked");
        }
        assert_eq!(panicking.ask().await.unwrap(), "a.b.c");
    }

    #[tokio::test]
    async fn abandoned_token_source_is_dropped() {
        let running = Arc::new(());
        let silent = TokenSource::new({
            let running = running.clone();
            move || {
                let held = running.clone();
                async move {
                    let _held = held;
                    std::future::pending::<Result<String, std::io::Error>>().await
                }
            }
        });
        let mut asking = Box::pin(silent.ask());
        tokio::select! {
            biased;
            _ = &mut asking => panic!("it was silent"),
            () = async { while Arc::strong_count(&running) < 3 { tokio::task::yield_now().await } } => {}
        }
        drop(asking);
        while Arc::strong_count(&running) > 2 {
            tokio::task::yield_now().await;
        }
    }
}
