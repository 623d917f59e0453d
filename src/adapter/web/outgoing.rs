//! Sends requests to servers: redirects are refused, names are resolved under guard, and no text contains the token.

use std::{sync::Arc, time::Duration};

use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    dns::Resolve,
    header::{HeaderValue, LOCATION, WWW_AUTHENTICATE},
    redirect::Policy,
};

use super::public_address::tls;
use crate::{
    adapter::words,
    net::{redirect, tls_error::cause},
};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Why a request failed. It names the host alone: a path and a query may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::adapter) enum HttpError {
    /// No connection was made, so the server has not got the request.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable { host: Arc<str>, reason: String },
    #[error("{host} ended the connection before it answered")]
    Broken { host: Arc<str>, reason: String },
    #[error(
        "{host} requires authorization (HTTP {status}{}); set a valid bearer token (`bearer_env` of a source, \
         `TOOLBRIDGE_MCP_TOKEN` of `--attach`)",
        after(.said)
    )]
    Unauthorized { host: Arc<str>, status: u16, said: Option<String> },
    #[error("{host} redirects to {to}, and redirects are not followed; use that address if you trust it")]
    Redirect { host: Arc<str>, to: String },
    #[error("{host} answered with HTTP {status}{}", after(.said))]
    Status { host: Arc<str>, status: u16, said: Option<String> },
    #[error("{host} answered with more than {limit} bytes")]
    TooLarge { host: Arc<str>, limit: usize },
}

/// Returns a client that follows no redirect. What it resolves names with is asked for each connection.
///
/// # Errors
/// The client cannot be set up, for this reason.
pub(in crate::adapter) fn guarded(
    resolver: impl Resolve + 'static,
    uses_proxy: bool,
) -> Result<Client, String> {
    let builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .referer(false)
        .tls_backend_preconfigured(tls().map_err(|error| error.to_string())?)
        .dns_resolver(Arc::new(resolver));
    let builder = if uses_proxy { builder } else { builder.no_proxy() };
    builder.build().map_err(|error| cause(&error.without_url()))
}

/// Returns the value of an `Authorization` header, which `Debug` does not show; `None` if the token has characters that a
/// header cannot have.
pub(in crate::adapter) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What is wrong with a token.
pub(in crate::adapter) const BAD_TOKEN: &str = "the bearer token has characters that a header cannot have";

/// Sends a request. `host` is the server in errors. The status of the answer may be any but that of a redirect, or of a
/// demand for a token.
///
/// # Errors
/// Any [`HttpError`] but `Status` and `TooLarge`.
pub(in crate::adapter) async fn sent(
    request: RequestBuilder,
    host: &Arc<str>,
    token: Option<&str>,
) -> Result<Response, HttpError> {
    let host = || Arc::clone(host);
    let response = request.send().await.map_err(|error| {
        let is_connecting = error.is_connect();
        let (host, reason) = (host(), cause(&error.without_url()));
        match is_connecting {
            true => HttpError::Unreachable { host, reason },
            false => HttpError::Broken { host, reason },
        }
    })?;
    let status = response.status();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|it| it.to_str().ok());
            let challenge = challenge.and_then(|challenge| words::of_challenge(challenge, token));
            let said = said(response, token).await.or(challenge);
            Err(HttpError::Unauthorized { host: host(), status: status.as_u16(), said })
        }
        _ if status.is_redirection() => Err(HttpError::Redirect { host: host(), to: target(&response) }),
        _ => Ok(response),
    }
}

/// Returns the error for an answer with another status than a success.
pub(in crate::adapter) async fn status_error(
    response: Response,
    host: &Arc<str>,
    token: Option<&str>,
) -> HttpError {
    let status = response.status().as_u16();
    HttpError::Status { host: Arc::clone(host), status, said: said(response, token).await }
}

/// Returns the body of an answer.
///
/// # Errors
/// [`HttpError::TooLarge`], [`HttpError::Broken`].
pub(in crate::adapter) async fn body(
    mut response: Response,
    host: &Arc<str>,
    limit: usize,
) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => {
                return Err(HttpError::TooLarge { host: Arc::clone(host), limit });
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => {
                let (host, reason) = (Arc::clone(host), cause(&error.without_url()));
                return Err(HttpError::Broken { host, reason });
            }
        }
    }
}

/// Returns what the body of a refusal says, without the token.
pub(super) async fn said(response: Response, token: Option<&str>) -> Option<String> {
    words::of_response(response, &token.into_iter().collect::<Vec<_>>()).await
}

/// Describes where a redirect leads to.
fn target(response: &Response) -> String {
    let location = response.headers().get(LOCATION).and_then(|it| it.to_str().ok());
    location.map_or_else(|| "another address".to_owned(), |it| redirect::describe(response.url(), it))
}

/// Returns the server's words, for the end of a sentence.
pub(in crate::adapter) fn after(said: &Option<String>) -> String {
    said.as_ref().map(|said| format!(": {said}")).unwrap_or_default()
}
