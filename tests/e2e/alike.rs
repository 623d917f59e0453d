//! The same requests to LiveKit's server and to the development server: what differs is in a list, and the guide says it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::StreamExt as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use libtest_mimic::Trial;
use livekit_protocol::{
    ClientInfo, JoinRequest, JoinResponse, SignalResponse, WrappedJoinRequest, signal_response::Message,
};
use prost::Message as _;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    server::{KEY, Kind, SECRET, Server, kind, set_kind},
    soon, trial,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("alike::tokens_have_the_same_fate", || differ(tokens(), TOKENS_DIFFER)),
        trial("alike::requests_of_the_server_api_have_the_same_answers", || differ(api(), API_DIFFERS)),
        trial("alike::pages_and_programs_have_the_same_answers", || differ(pages(), PAGES_DIFFER)),
        trial("alike::joins_have_the_same_answers", joins),
    ]
}

/// A request, which has a name that is its own.
struct Probe {
    name: String,
    line: String,
    headers: String,
    body: String,
}

/// Why the answers to the requests of these names differ.
type Differences = &'static [(&'static str, &'static str)];

const TOKENS_DIFFER: Differences = &[];

const API_DIFFERS: Differences = &[
    (r#"CreateRoom {"name":""}"#, "livekit-server makes a room without a name, which nobody can join"),
    (
        r#"MutePublishedTrack {"room":"kitchen","identity":"nobody","trackSid":"TR_x","mut"#,
        "livekit-server asks the participants of the room, and has no one to ask in a room without any",
    ),
];

const PAGES_DIFFER: Differences = &[];

/// Signs these claims as they are, also ones that no SDK makes.
fn sign(claims: &Value) -> anyhow::Result<String> {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({"alg": "HS256", "typ": "JWT"})), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
    mac.update(text.as_bytes());
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())))
}

/// The claims of a token that is valid for long, with these changes.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": KEY, "sub": "phone", "nbf": 0, "exp": 9_999_999_999_u64, "video": {"roomJoin": true, "room": "alike"}
    });
    if let (Some(claims), Some(changes)) = (claims.as_object_mut(), changes.as_object()) {
        for (name, value) in changes {
            claims.insert(name.clone(), value.clone());
        }
    }
    claims
}

/// Requests of a client that asks whether its token is valid.
fn tokens() -> anyhow::Result<Vec<Probe>> {
    let video = |grants: Value| json!({"video": grants});
    let changes = [
        ("as usual", json!({})),
        ("a text as a number", json!({"name": 7})),
        ("null as a name", json!({"name": null, "metadata": null, "attributes": null})),
        ("null as grants", json!({"video": null})),
        ("no key", json!({"iss": null})),
        ("another key", json!({"iss": "other"})),
        ("no identity", json!({"sub": ""})),
        ("null as an identity", json!({"sub": null})),
        ("a long identity", json!({"sub": "x".repeat(257)})),
        ("expired", json!({"exp": 1})),
        ("not yet valid", json!({"nbf": 9_999_999_000_u64})),
        ("fractions of a second", json!({"exp": 9_999_999_999.5, "nbf": 0.5, "iat": 1.25})),
        ("null as times", json!({"nbf": null, "iat": null})),
        ("without an end", json!({"exp": null})),
        ("times as texts", json!({"exp": "9999999999"})),
        ("an audience", json!({"aud": "app"})),
        ("audiences", json!({"aud": ["app", "web"]})),
        ("an unknown claim", json!({"later": {"x": [1]}})),
        ("an unknown kind", json!({"kind": "robot"})),
        ("no room", video(json!({"roomJoin": true}))),
        ("may not join", video(json!({"room": "alike"}))),
        ("null as rights", video(json!({"roomJoin": true, "room": "alike", "canPublish": null}))),
        ("a text as a right", video(json!({"roomJoin": "true", "room": "alike"}))),
        ("a long room", video(json!({"roomJoin": true, "room": "x".repeat(257)}))),
        ("unknown grants", video(json!({"roomJoin": true, "room": "alike", "canFly": true}))),
        ("settings of the room", json!({"roomConfig": {"metadata": "m", "maxParticipants": 3}})),
        ("numbers as texts", json!({"roomConfig": {"maxParticipants": "3"}})),
        ("an unknown setting", json!({"roomConfig": {"later": 1}})),
        ("agents", json!({"roomConfig": {"agents": [{"agentName": "a", "metadata": "m"}]}})),
    ];
    let mut probes = Vec::new();
    for (name, changes) in changes {
        let token = sign(&claims(&changes))?;
        probes.push(Probe::get(name, &format!("/rtc/validate?access_token={token}")));
    }
    let token = sign(&claims(&json!({})))?;
    for (name, path) in [
        ("a damaged signature", format!("/rtc/validate?access_token={token}x")),
        ("no token", "/rtc/validate".to_owned()),
        ("not a token", "/rtc/validate?access_token=x.y.z".to_owned()),
        ("a join request is missing", format!("/rtc/v1/validate?access_token={token}")),
        ("a damaged join request", format!("/rtc/v1/validate?access_token={token}&join_request=*")),
        ("damaged attributes", format!("/rtc/validate?access_token={token}&attributes=*")),
        (
            "attributes without the right",
            format!("/rtc/validate?access_token={token}&attributes=eyJhIjoiYiJ9"),
        ),
        ("another version", format!("/rtc/v9/validate?access_token={token}")),
    ] {
        probes.push(Probe::get(name, &path));
    }
    Ok(probes)
}

/// Requests to the services of the server, in this order.
fn api() -> anyhow::Result<Vec<Probe>> {
    let admin = json!({"roomCreate": true, "roomList": true, "roomAdmin": true, "room": "kitchen"});
    let token = sign(&claims(&json!({"video": admin})))?;
    let weak = sign(&claims(&json!({})))?;
    let room = "RoomService";
    let dispatch = "AgentDispatchService";
    let calls = [
        (
            room,
            "CreateRoom",
            json!({"name": "kitchen", "metadata": "soup", "maxParticipants": 3, "emptyTimeout": 77, "departureTimeout": 33}),
        ),
        (room, "CreateRoom", json!({"name": "kitchen", "metadata": "salad"})),
        (room, "CreateRoom", json!({"name": "n".repeat(257)})),
        (room, "CreateRoom", json!({"name": "snake", "empty_timeout": 5, "max_participants": 2})),
        (room, "CreateRoom", json!({"name": "lax", "unknown": 1})),
        (room, "ListRooms", json!({})),
        (room, "ListRooms", json!({"names": ["kitchen", "none"]})),
        (room, "UpdateRoomMetadata", json!({"room": "kitchen", "metadata": "bread"})),
        (room, "UpdateRoomMetadata", json!({"room": "none", "metadata": "x"})),
        (room, "ListParticipants", json!({"room": "kitchen"})),
        (room, "ListParticipants", json!({"room": "none"})),
        (room, "GetParticipant", json!({"room": "kitchen", "identity": "nobody"})),
        (room, "RemoveParticipant", json!({"room": "kitchen", "identity": "nobody"})),
        (room, "UpdateParticipant", json!({"room": "kitchen", "identity": "nobody", "metadata": "x"})),
        (
            room,
            "MutePublishedTrack",
            json!({"room": "kitchen", "identity": "nobody", "trackSid": "TR_x", "muted": true}),
        ),
        (room, "SendData", json!({"room": "kitchen", "data": "aGk=", "kind": "RELIABLE"})),
        (room, "SendData", json!({"room": "none", "data": "aGk="})),
        (room, "Fly", json!({})),
        (dispatch, "CreateDispatch", json!({"room": "kitchen", "agentName": "cook", "metadata": "m"})),
        (dispatch, "ListDispatch", json!({"room": "kitchen"})),
        (dispatch, "DeleteDispatch", json!({"room": "kitchen", "dispatchId": "AD_none"})),
        (room, "DeleteRoom", json!({"room": "kitchen"})),
        (room, "DeleteRoom", json!({"room": "none"})),
        (room, "CreateRoom", json!({"name": ""})),
    ];
    let mut probes = Vec::new();
    for (service, method, body) in calls {
        let mut text = body.to_string();
        text.truncate(60);
        let name = format!("{method} {text}");
        probes.push(Probe::call(&name, &format!("{service}/{method}"), &token, &body.to_string()));
    }
    let strong = |name: &str, path: &str, body: &str| Probe::call(name, path, &token, body);
    probes.extend([
        Probe::call("rooms without the right", "RoomService/ListRooms", &weak, "{}"),
        Probe::call("a room without the right", "RoomService/CreateRoom", &weak, r#"{"name": "x"}"#),
        Probe::call("data without the right", "RoomService/SendData", &weak, r#"{"room": "alike"}"#),
        Probe::call(
            "an agent without the right",
            "AgentDispatchService/ListDispatch",
            &weak,
            r#"{"room": "alike"}"#,
        ),
        strong("not JSON", "RoomService/ListRooms", "{"),
        strong("a list", "RoomService/ListRooms", "[]"),
        strong("a number as a name", "RoomService/CreateRoom", r#"{"name": 7}"#),
        strong("no such service", "NoService/ListRooms", "{}"),
        Probe {
            name: "plain text".into(),
            headers: format!("Authorization: Bearer {token}\r\nContent-Type: text/plain\r\n"),
            ..strong("", "RoomService/ListRooms", "{}")
        },
        Probe {
            name: "no token for rooms".into(),
            headers: "Content-Type: application/json\r\n".into(),
            ..strong("", "RoomService/ListRooms", "{}")
        },
        Probe {
            name: "a token without Bearer".into(),
            headers: format!("Authorization: {token}\r\nContent-Type: application/json\r\n"),
            ..strong("", "RoomService/ListRooms", "{}")
        },
        Probe {
            name: "with GET".into(),
            line: "GET /twirp/livekit.RoomService/ListRooms".into(),
            ..strong("", "RoomService/ListRooms", "{}")
        },
    ]);
    Ok(probes)
}

/// Requests of programs and of pages of this machine.
fn pages() -> anyhow::Result<Vec<Probe>> {
    let token = sign(&claims(&json!({})))?;
    let validate = format!("/rtc/validate?access_token={token}");
    let page = "Origin: http://localhost:5173\r\n";
    let preflight = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n";
    let with = |name: &str, method: &str, path: &str, headers: &str| Probe {
        name: name.into(),
        line: format!("{method} {path}"),
        headers: headers.into(),
        body: String::new(),
    };
    Ok(vec![
        Probe::get("health", "/"),
        Probe::get("no such page", "/nothing"),
        Probe::get("a join without an upgrade", &format!("/rtc?access_token={token}")),
        Probe::get("a worker without an upgrade", "/agent"),
        with("a page asks whether its token is valid", "GET", &validate, page),
        with("a page with a wrong token", "GET", "/rtc/validate?access_token=x", page),
        with(
            "a page asks before",
            "OPTIONS",
            "/twirp/livekit.RoomService/ListRooms",
            &format!("{page}{preflight}"),
        ),
        with("a page calls without a token", "POST", "/twirp/livekit.RoomService/ListRooms", page),
    ])
}

impl Probe {
    fn get(name: &str, path: &str) -> Self {
        let (line, headers) = (format!("GET {path}"), String::new());
        Self { name: name.into(), line, headers, body: String::new() }
    }

    fn call(name: &str, path: &str, token: &str, body: &str) -> Self {
        let line = format!("POST /twirp/livekit.{path}");
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        Self { name: name.into(), line, headers, body: body.into() }
    }

    /// Returns what the server answers, as far as both can answer the same.
    async fn answer(&self, server: &Server) -> anyhow::Result<Value> {
        let Self { line, headers, body, .. } = self;
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        soon("an answer", stream.read_to_string(&mut answer)).await??;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        let status: u16 = head.split(' ').nth(1).context("no status")?.parse()?;
        let is_of_page = headers.contains("Origin: ");
        let readable = is_of_page && head.to_ascii_lowercase().contains("access-control-allow-origin: ");
        Ok(json!({"status": status, "readable": readable, "body": comparable(status, body)}))
    }
}

/// Returns what has to be the same: an error's code and not its words; of a success all but ids, times and what a server is.
fn comparable(status: u16, body: &str) -> Value {
    let Ok(mut body) = serde_json::from_str::<Value>(body) else { return Value::Null };
    if status != 200 {
        return body["code"].take();
    }
    strip(&mut body);
    body
}

/// The fields that each server fills with its own: ids, times, and what it can do.
const OWN: [&str; 8] = [
    "sid",
    "id",
    "creation_time",
    "creation_time_ms",
    "created_at",
    "turn_password",
    "enabled_codecs",
    "version",
];

/// Removes what each server has of its own, and defaults: livekit-server writes them, the development server does not.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(strip);
            map.retain(|name, value| !OWN.contains(&&**name) && !is_default(value));
        }
        Value::Array(list) => {
            list.iter_mut().for_each(strip);
            list.sort_by_key(Value::to_string);
        }
        _ => {}
    }
}

fn is_default(value: &Value) -> bool {
    let defaults = [
        json!(null),
        json!(false),
        json!(0),
        json!("0"),
        json!(""),
        json!([]),
        json!({}),
        json!("JRP_ON_FAILURE"),
    ];
    defaults.contains(value)
}

/// Starts a server of each kind: first LiveKit's.
fn both() -> anyhow::Result<[Server; 2]> {
    let own = kind();
    set_kind(Kind::LiveKit);
    let livekit = Server::start("");
    set_kind(Kind::Dev);
    let dev = Server::start("");
    set_kind(own);
    Ok([livekit?, dev?])
}

async fn differ(probes: anyhow::Result<Vec<Probe>>, known: Differences) -> anyhow::Result<()> {
    let [livekit, dev] = both()?;
    let mut found = BTreeMap::new();
    let probes = probes?;
    for probe in &probes {
        let [theirs, ours] = [probe.answer(&livekit).await?, probe.answer(&dev).await?];
        if theirs != ours {
            found.insert(
                probe.name.as_str(),
                format!("livekit-server: {theirs}\n    development server: {ours}"),
            );
        }
    }
    println!("{} requests, {} with another answer", probes.len(), found.len());
    for (name, why) in known {
        ensure!(
            found.remove(name).is_some(),
            "{name:?} has the same answer now, and is in the list of differences: {why}"
        );
    }
    let found: Vec<_> = found.iter().map(|(name, both)| format!("{name}\n    {both}")).collect();
    ensure!(found.is_empty(), "answers differ:\n{}", found.join("\n"));
    Ok(())
}

/// Joins with one and with two peer connections, and compares what the servers say of it.
async fn joins() -> anyhow::Result<()> {
    let [livekit, dev] = both()?;
    let request = JoinRequest {
        client_info: Some(ClientInfo { protocol: 16, ..Default::default() }),
        ..Default::default()
    };
    let wrapped = WrappedJoinRequest { join_request: request.encode_to_vec(), ..Default::default() };
    let wrapped = format!("join_request={}", URL_SAFE.encode(wrapped.encode_to_vec()));
    let joins = [
        ("one peer connection", json!({}), "/rtc/v1?", wrapped.as_str()),
        ("two peer connections", json!({}), "/rtc?", "protocol=15"),
        ("an older protocol", json!({}), "/rtc?", "protocol=2"),
        ("may not subscribe", json!({"canSubscribe": false}), "/rtc?", "protocol=15"),
        ("may not publish", json!({"canPublish": false}), "/rtc?", "protocol=15"),
        ("may publish data only", json!({"canPublish": false, "canPublishData": true}), "/rtc/v1?", &wrapped),
        ("hidden", json!({"hidden": true}), "/rtc?", "protocol=15"),
        ("an agent by its grants", json!({"agent": true}), "/rtc?", "protocol=15"),
        ("a recorder by its grants", json!({"recorder": true}), "/rtc?", "protocol=15"),
        ("an agent by its kind", json!({"kind": "agent"}), "/rtc?", "protocol=15"),
        ("a caller by telephone", json!({"kind": "sip"}), "/rtc?", "protocol=15"),
        ("an unknown kind", json!({"kind": "robot"}), "/rtc?", "protocol=15"),
    ];
    for (name, rights, path, parameters) in joins {
        let mut grants = rights.clone();
        (grants["roomJoin"], grants["room"]) = (json!(true), json!("alike"));
        let token = sign(&claims(
            &json!({"video": grants, "name": "Phone", "metadata": "m", "attributes": {"a": "b"}}),
        ))?;
        let path = format!("{path}access_token={token}&{parameters}");
        let [theirs, ours] = [join(&livekit, &path).await?, join(&dev, &path).await?];
        ensure!(theirs == ours, "{name}\n    livekit-server: {theirs}\n    development server: {ours}");
    }
    Ok(())
}

/// Returns what a server answers to a join, and whether it then offers a peer connection.
async fn join(server: &Server, path: &str) -> anyhow::Result<Value> {
    /// How long an offer is waited for that does not come.
    const NO_OFFER: Duration = Duration::from_secs(1);
    let stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    let (mut socket, _) =
        soon("a join", tokio_tungstenite::client_async(format!("ws://localhost{path}"), stream)).await??;
    let mut next = async || -> anyhow::Result<Message> {
        loop {
            let frame = socket.next().await.context("the connection ended")??;
            if let Some(message) = SignalResponse::decode(frame.into_data())?.message {
                return Ok(message);
            }
        }
    };
    let Message::Join(joined) = soon("the answer to a join", next()).await?? else {
        anyhow::bail!("no join")
    };
    let is_primary = joined.subscriber_primary;
    let offered = async {
        loop {
            if let Message::Offer(offer) = next().await? {
                return anyhow::Ok(offer.sdp.contains("m=application"));
            }
        }
    };
    let offers = match is_primary {
        true => soon("an offer", offered).await??,
        false => tokio::time::timeout(NO_OFFER, offered).await.is_ok(),
    };
    Ok(described(&joined, offers))
}

fn described(joined: &JoinResponse, offers: bool) -> Value {
    let me = joined.participant.clone().unwrap_or_default();
    let permission = me.permission.clone().unwrap_or_default();
    json!({
        "subscriberPrimary": joined.subscriber_primary, "fastPublish": joined.fast_publish, "offers": offers,
        "ping": [joined.ping_interval, joined.ping_timeout],
        "identity": me.identity, "name": me.name, "metadata": me.metadata, "attributes": me.attributes,
        "kind": me.kind, "state": me.state, "version": me.version,
        "may": [permission.can_subscribe, permission.can_publish, permission.can_publish_data, permission.hidden],
        "others": joined.other_participants.len(),
    })
}
