//! Sends a result to the runtime, and again if it was not received.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use reqwest::{Method, StatusCode, header};

use crate::adapter::{
    rap::address::{AddressError, Outgoing, Target, reason},
    words,
};

/// The pauses between posts: five posts in 28 s. The specification asks for a backoff, and names no numbers.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(8), Duration::from_secs(16)];

/// How long one post may take.
const POST: Duration = Duration::from_secs(30);

/// What came of one post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// The runtime has it.
    Received,
    /// The runtime does not want it, or may not be sent it.
    Refused(String),
    /// The runtime failed, or did not answer.
    Failed(String),
}

impl Posted {
    /// Adds what the runtime says to the reason.
    fn with_words(self, said: Option<&str>) -> Self {
        let with = |reason: String| match said {
            Some(said) => format!("{reason}: {said}"),
            None => reason,
        };
        match self {
            Self::Received => Self::Received,
            Self::Refused(reason) => Self::Refused(with(reason)),
            Self::Failed(reason) => Self::Failed(with(reason)),
        }
    }
}

/// Posts until the runtime has answered with something other than a failure, at most five times. Only a failure of the
/// runtime (status 5xx) and no answer are tried again: a runtime that refuses a result refuses it again.
pub(super) async fn deliver<F: Future<Output = Posted>>(mut post: impl FnMut() -> F) -> Posted {
    for pause in PAUSES {
        match post().await {
            Posted::Failed(reason) => tracing::debug!(%reason, ?pause, "a result is sent again"),
            other => return other,
        }
        tokio::time::sleep(pause).await;
    }
    post().await
}

/// Posts once.
pub(super) async fn post(outgoing: &Outgoing, target: &Target, body: Bytes) -> Posted {
    let request = outgoing.request(Method::POST, target).timeout(POST);
    match request.header(header::CONTENT_TYPE, "application/json").body(body).send().await {
        Ok(response) => match judged(response.status()) {
            Posted::Received => Posted::Received,
            posted => posted.with_words(words::of_response(response, &[]).await.as_deref()),
        },
        Err(error) if is_forbidden(&error) => Posted::Refused(reason(error)),
        Err(error) => Posted::Failed(reason(error)),
    }
}

fn judged(status: StatusCode) -> Posted {
    if status.is_success() {
        Posted::Received
    } else if status.is_server_error() {
        Posted::Failed(format!("status {}", status.as_u16()))
    } else {
        Posted::Refused(format!("status {}", status.as_u16()))
    }
}

/// Returns whether the host's name stands for an address that may not be connected to.
fn is_forbidden(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if error.is::<AddressError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::Instant;

    use super::*;

    /// Answers with each of these, then with the last one again, and returns when each post was made.
    async fn delivered(answers: &[Posted]) -> (Posted, Vec<u64>) {
        let (start, times) = (Instant::now(), RefCell::new(Vec::new()));
        let post = || {
            let answer = answers[times.borrow().len().min(answers.len() - 1)].clone();
            times.borrow_mut().push(start.elapsed().as_secs());
            std::future::ready(answer)
        };
        let posted = deliver(post).await;
        (posted, times.into_inner())
    }

    fn failed() -> Posted {
        judged(StatusCode::SERVICE_UNAVAILABLE)
    }

    #[tokio::test(start_paused = true)]
    async fn rap_r17_result_is_posted_five_times_if_the_runtime_fails() {
        assert_eq!(delivered(&[failed()]).await, (failed(), vec![0, 1, 4, 12, 28]));
        let unreachable = Posted::Failed("connection refused".into());
        assert_eq!(delivered(std::slice::from_ref(&unreachable)).await.1.len(), 5);
        assert_eq!(
            delivered(&[failed(), unreachable, Posted::Received]).await,
            (Posted::Received, vec![0, 1, 4])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn rap_r17_refused_result_is_not_posted_again() {
        for status in [301, 302, 400, 401, 403, 404, 408, 409, 410, 413, 429] {
            let refused = judged(StatusCode::from_u16(status).unwrap());
            assert_eq!(refused, Posted::Refused(format!("status {status}")));
            assert_eq!(delivered(std::slice::from_ref(&refused)).await, (refused.clone(), vec![0]));
        }
        for status in [200, 202, 204] {
            assert_eq!(judged(StatusCode::from_u16(status).unwrap()), Posted::Received);
        }
    }

    #[tokio::test]
    async fn dead_callback_is_a_failure_without_its_path() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let outgoing = Outgoing::new(["127.0.0.1".parse().unwrap()]).unwrap();
        let target = outgoing.check(&format!("http://{address}/hunter2?hunter2")).unwrap();
        let Posted::Failed(reason) = post(&outgoing, &target, Bytes::from("{}")).await else { panic!() };
        assert!(!reason.contains("hunter2"), "{reason}");
    }
}
