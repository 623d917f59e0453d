//! Starts a connection: finds the version of the protocol that both sides speak.
//!
//! Servers from version 2026-07-28 on are asked for their versions (`server/discover`), and each request then says of itself
//! what it needs. A server that does not know the question, or does not answer it, is an older one: it is asked to
//! `initialize`.

use std::{borrow::Cow, sync::OnceLock, time::Duration};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, timeout_at};

use super::live::{unreadable, words_of};
use crate::adapter::{
    json,
    jsonrpc::{
        failure::Failure,
        open::Reply,
        peer::{MessageParts, Peer},
    },
    words,
};

/// The first version without `initialize`. Its results name their types, its requests say which version they have, and
/// changes of the tool list are announced to those that ask for it.
pub(super) const MODERN: &str = "2026-07-28";

/// The versions that are spoken, the preferred one first.
const VERSIONS: [&str; 3] = [MODERN, LEGACY, "2025-06-18"];

/// The version that an older server is asked for.
const LEGACY: &str = "2025-11-25";

/// The key of the version in the metadata of a request.
pub(in crate::adapter::mcp) const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// The method of the question for versions.
pub(super) const DISCOVER: &str = "server/discover";

/// The method of the first request to an older server.
pub(in crate::adapter::mcp) const INITIALIZE: &str = "initialize";

/// The notification that follows it.
pub(super) const INITIALIZED: &str = "notifications/initialized";

/// How long the answer to the question for versions is awaited.
const DISCOVER_LIMIT: Duration = Duration::from_secs(10);

/// The largest answer in which a server describes itself, in bytes.
const MAX_DESCRIPTION: usize = 1 << 20;

/// The most versions that an error names.
const MAX_NAMED: usize = 8;

/// The error of a server that does not speak the version of the question. Its data name those that it speaks.
const UNSUPPORTED_VERSION: i64 = -32_022;

/// The errors of servers that know the question, and refuse it: of a capability that they need, and of wrong headers.
const REFUSALS: [i64; 2] = [-32_021, -32_020];

/// What both sides have agreed on.
#[derive(Debug)]
pub(in crate::adapter::mcp) struct Protocol {
    pub(in crate::adapter::mcp) version: Cow<'static, str>,
    /// There is no session: each request has metadata, and ends with its connection.
    pub(in crate::adapter::mcp) is_sessionless: bool,
}

impl Protocol {
    /// Whether the version is [`MODERN`] or later.
    pub(super) fn is_modern(&self) -> bool {
        *self.version >= *MODERN
    }
}

/// Returns the metadata of a request, which describe this side.
pub(super) fn metadata(version: &str) -> Json {
    json!({
        VERSION_KEY: version,
        "io.modelcontextprotocol/clientInfo": client(),
        "io.modelcontextprotocol/clientCapabilities": capabilities(),
    })
}

fn client() -> Json {
    json!({"name": "toolbridge", "version": env!("CARGO_PKG_VERSION")})
}

fn capabilities() -> Json {
    json!({"elicitation": {"form": {}, "url": {}}})
}

/// Agrees on a version.
///
/// # Errors
/// Why there is none, as the end of a sentence about the server.
pub(super) async fn open(peer: &Peer, agreed: &OnceLock<Protocol>) -> Result<(), String> {
    let protocol = match discover(peer).await? {
        Some(version) => Protocol { version: version.into(), is_sessionless: true },
        None => initialize(peer).await?,
    };
    let needs_notification = !protocol.is_sessionless;
    let is_sessionless = protocol.is_sessionless || protocol.is_modern();
    let _ = agreed.set(Protocol { is_sessionless, ..protocol }); // it is set here alone
    if needs_notification {
        peer.tell(MessageParts::new(INITIALIZED, &Json::Null)).await.ok_or_else(|| gone(peer))?;
    }
    Ok(())
}

/// Asks for versions, and returns the preferred one that the server speaks; `None` if it is an older server.
async fn discover(peer: &Peer) -> Result<Option<&'static str>, String> {
    let deadline = Instant::now() + DISCOVER_LIMIT;
    let mut asked = Vec::new();
    let mut version = MODERN;
    loop {
        asked.push(version);
        let mut request = peer.begin(false).map_err(|_| gone(peer))?;
        let params = json!({"_meta": metadata(version)});
        let mut message = MessageParts::new(DISCOVER, &params);
        message.headers = vec![
            ("mcp-protocol-version".to_owned(), version.to_owned()),
            ("mcp-method".to_owned(), DISCOVER.to_owned()),
        ];
        let Ok(answer) = timeout_at(deadline, request.send(message)).await else {
            request.give_up();
            return Ok(None);
        };
        let failure = match answer {
            Some(Reply::Result(result)) => {
                let Some(supported) = supported(&result) else { return Ok(None) };
                let preferred = VERSIONS.into_iter().find(|version| supported.iter().any(|it| it == version));
                return preferred.map(Some).ok_or_else(|| no_common(&supported));
            }
            Some(Reply::Error(failure)) => failure,
            Some(Reply::Unreadable(_)) => return Ok(None),
            Some(Reply::Lost(reason)) => return Err(reason),
            None => return Err(gone(peer)),
        };
        match failure.code {
            Some(UNSUPPORTED_VERSION) => {
                let supported = supported_of(&failure);
                // A server may refuse the first question whatever its version is.
                let may_repeat = asked.iter().filter(|it| **it == version).count() == 1;
                let is_next = |next: &&str| {
                    let is_new = !asked.contains(next) || may_repeat && *next == version;
                    is_new && supported.iter().any(|it| it == next)
                };
                version = VERSIONS.into_iter().find(is_next).ok_or_else(|| no_common(&supported))?;
            }
            Some(code) if REFUSALS.contains(&code) => {
                return Err(format!("it refuses the connection: {}", failure.words("it gave no reason", "")));
            }
            _ => return Ok(None),
        }
    }
}

/// Returns the versions in the answer to the question. An older server may answer anything.
fn supported(result: &str) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
    }
    let text = json::checked(result).ok().filter(|text| text.len() <= MAX_DESCRIPTION)?;
    serde_json::from_str(&text).ok().map(|it: Discovered| it.supported_versions)
}

/// Returns the versions that an error names.
fn supported_of(failure: &Failure) -> Vec<String> {
    let data = failure.data.as_deref().and_then(|data| json::value(data).ok()).unwrap_or_default();
    let named = data["supported"].as_array().into_iter().flatten();
    named.filter_map(|version| version.as_str().map(str::to_owned)).collect()
}

fn no_common(supported: &[String]) -> String {
    if supported.is_empty() {
        return "it names no version of the protocol that it speaks".to_owned();
    }
    let named: Vec<_> = supported.iter().take(MAX_NAMED).map(|it| words::line(it)).collect();
    format!("it speaks no version of the protocol that toolbridge speaks, but {}", named.join(", "))
}

/// Asks an older server to initialize.
async fn initialize(peer: &Peer) -> Result<Protocol, String> {
    let params = json!({
        "protocolVersion": LEGACY,
        "capabilities": capabilities(),
        "clientInfo": client(),
    });
    let mut request = peer.begin(false).map_err(|_| gone(peer))?;
    match request.send(MessageParts::new(INITIALIZE, &params)).await {
        Some(Reply::Result(result)) => {
            let version = initialized(&result)
                .map_err(|reason| words::line(&format!("its answer to `initialize` {reason}")))?;
            Ok(Protocol { version: version.into(), is_sessionless: false })
        }
        Some(Reply::Error(failure)) => Err(format!("it refuses `initialize`: {}", words_of(&failure))),
        Some(Reply::Unreadable(reason)) => Err(unreadable(&reason)),
        Some(Reply::Lost(reason)) => Err(reason),
        None => Err(gone(peer)),
    }
}

/// Whether a value has the type that the protocol demands.
type IsRight = fn(&Json) -> bool;

/// What the answer to `initialize` must have.
const MEMBERS: [(&str, IsRight); 5] = [
    ("/protocolVersion", Json::is_string),
    ("/capabilities", Json::is_object),
    ("/serverInfo", Json::is_object),
    ("/serverInfo/name", Json::is_string),
    ("/serverInfo/version", Json::is_string),
];

/// Returns the version in the answer to `initialize`, or what is wrong with it, as the end of a sentence.
fn initialized(result: &str) -> Result<String, String> {
    if result.len() > MAX_DESCRIPTION {
        return Err(format!("has {} bytes; the limit is {MAX_DESCRIPTION}", result.len()));
    }
    let result = json::value(result).map_err(|error| format!("cannot be read: {error}"))?;
    if let Some((pointer, _)) =
        MEMBERS.iter().find(|(pointer, is_right)| !result.pointer(pointer).is_some_and(is_right))
    {
        let name = pointer.trim_start_matches('/').replace('/', ".");
        let how = if result.pointer(pointer).is_some() { "has another type of" } else { "lacks" };
        return Err(format!("{how} `{name}`"));
    }
    Ok(result["protocolVersion"].as_str().unwrap_or_default().to_owned())
}

/// Says why nothing more can be asked.
fn gone(peer: &Peer) -> String {
    let failure = peer.failure().map(|reason| reason.to_string());
    failure.unwrap_or_else(|| "it closed the connection before it answered".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::adapter::jsonrpc::{
        inbox::Inbox,
        peer::{Outgoing, OutgoingMessage, Writer},
        rules::MCP,
    };

    /// The server's side of a connection.
    struct Server {
        peer: Arc<Peer>,
        writer: Writer,
        inbox: Inbox,
    }

    impl Server {
        /// Returns the next message, which has this method.
        async fn next(&mut self, method: &str) -> (OutgoingMessage, Json) {
            let Some(Outgoing::Message(line)) = self.writer.next().await else { panic!("nothing was sent") };
            let message: Json = serde_json::from_str(&line.text).unwrap();
            assert_eq!(message["method"], method);
            (line, message)
        }

        /// Answers the next message with these members. Returns its line.
        async fn answer(&mut self, method: &str, members: &Json) -> OutgoingMessage {
            let (line, message) = self.next(method).await;
            let mut answer = json!({"jsonrpc": "2.0", "id": message["id"]});
            answer.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            self.read(&answer);
            line
        }

        fn read(&self, message: &Json) {
            self.inbox.read(&self.peer.open, message.to_string().as_bytes(), None);
        }
    }

    /// Opens a connection to a server. Returns what was agreed on, and what the server has seen.
    async fn opened<T>(serve: impl AsyncFnOnce(&mut Server) -> T) -> (Result<(String, bool), String>, T) {
        let (peer, writer) = Peer::new(8, &MCP);
        let inbox = Inbox::new("server".into(), Arc::default());
        let mut server = Server { peer: Arc::clone(&peer), writer, inbox };
        let agreed = OnceLock::new();
        // On paused time it ends at once if each waits for the other.
        let both = async { tokio::join!(open(&peer, &agreed), serve(&mut server)) };
        let (opened, seen) = tokio::time::timeout(Duration::from_secs(600), both).await.expect("an end");
        let protocol = agreed.into_inner();
        let opened =
            opened.map(|()| protocol.map(|it| (it.version.into_owned(), it.is_sessionless)).unwrap());
        (opened, seen)
    }

    fn versions(versions: &[&str]) -> Json {
        json!({"result": {"supportedVersions": versions}})
    }

    fn error(code: i64, data: &Json) -> Json {
        json!({"error": {"code": code, "message": "no", "data": data}})
    }

    fn initialize(version: &str) -> Json {
        let server = json!({"name": "s", "version": "1"});
        json!({"result": {"protocolVersion": version, "capabilities": {}, "serverInfo": server}})
    }

    #[tokio::test(start_paused = true)]
    async fn preferred_version_of_those_that_a_server_names_is_spoken() {
        for (named, expected) in [
            (&["2025-06-18", MODERN, "2030-01-01"][..], Ok(MODERN)),
            (&["2025-06-18"], Ok("2025-06-18")),
            (
                &["2030-01-01"],
                Err("it speaks no version of the protocol that toolbridge speaks, but 2030-01-01"),
            ),
            (&[], Err("it names no version of the protocol that it speaks")),
        ] {
            let (opened, line) = opened(async |server| server.answer(DISCOVER, &versions(named)).await).await;
            let expected = expected.map(|version| (version.to_owned(), true)).map_err(str::to_owned);
            assert_eq!(opened, expected);
            assert!(line.headers.contains(&("mcp-protocol-version".to_owned(), MODERN.to_owned())));
            assert!(line.text.contains(
                r#""io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{},"url":{}}}"#
            ));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_does_not_speak_the_version_of_the_question_is_asked_with_another() {
        let unsupported = |named: &[&str]| error(UNSUPPORTED_VERSION, &json!({"supported": named}));
        let (agreed, ()) = opened(async |server| {
            server.answer(DISCOVER, &unsupported(&["2025-06-18"])).await;
            let line = server.answer(DISCOVER, &versions(&["2025-06-18"])).await;
            assert!(line.text.contains(r#""io.modelcontextprotocol/protocolVersion":"2025-06-18""#));
        })
        .await;
        assert_eq!(agreed, Ok(("2025-06-18".to_owned(), true)));
        // The same version is asked for twice, and not more often.
        let (refused, ()) = opened(async |server| {
            for _ in 0..2 {
                server.answer(DISCOVER, &unsupported(&[MODERN])).await;
            }
        })
        .await;
        assert!(refused.unwrap_err().ends_with(MODERN));
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_knows_the_question_and_refuses_it_is_no_older_one() {
        let refusal = error(-32_021, &Json::Null);
        let (refused, _) = opened(async |server| server.answer(DISCOVER, &refusal).await).await;
        assert_eq!(refused, Err("it refuses the connection: no (-32021)".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn older_server_is_asked_to_initialize() {
        for answer in
            [error(-32_601, &Json::Null), json!({"result": {}}), json!({"result": {"supportedVersions": 7}})]
        {
            let (agreed, ()) = opened(async |server| {
                server.answer(DISCOVER, &answer).await;
                let line = server.answer(INITIALIZE, &initialize("2025-03-26")).await;
                assert!(
                    line.text.contains(r#""protocolVersion":"2025-11-25","capabilities":{"elicitation""#)
                );
                server.next(INITIALIZED).await;
            })
            .await;
            assert_eq!(agreed, Ok(("2025-03-26".to_owned(), false)), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn error_without_an_id_is_the_answer_to_each_request_of_the_start() {
        let error = json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "no"}});
        let (refused, ()) = opened(async |server| {
            server.next(DISCOVER).await;
            server.read(&error);
            server.next(INITIALIZE).await;
            server.read(&error);
        })
        .await;
        assert_eq!(refused, Err("it refuses `initialize`: no (MCP error -32700)".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_to_a_discovery_that_was_given_up_is_ignored() {
        let (agreed, ()) = opened(async |server| {
            let (_, discovery) = server.next(DISCOVER).await; // it answers when its stream ends
            let (_, asked) = server.next(INITIALIZE).await;
            server.read(
                &json!({"jsonrpc": "2.0", "id": discovery["id"], "error": {"code": -32601, "message": "no"}}),
            );
            let mut answer = initialize(LEGACY);
            (answer["jsonrpc"], answer["id"]) = ("2.0".into(), asked["id"].clone());
            server.read(&answer);
            server.next(INITIALIZED).await;
        })
        .await;
        assert_eq!(agreed, Ok((LEGACY.to_owned(), false)));
    }
}
