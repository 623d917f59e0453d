//! Tests the server API as backends use it: over HTTP.

use livekit_protocol::RoomConfiguration;
use livekit_token::VideoGrants;
use serde_json::{Value, json};

use super::*;

impl DevServer {
    /// Calls a method of the room service. Returns the status and the answer.
    async fn room_service(&self, method: &str, body: Value) -> (u16, Value) {
        let (status, answer) = self.call(&format!("RoomService/{method}"), body).await;
        (status, serde_json::from_str(&answer).unwrap())
    }

    /// Joins a room with a token that has this configuration.
    async fn join_with_config(
        &self,
        room: &str,
        config: RoomConfiguration,
    ) -> Result<LiveKitTransport, String> {
        let video = VideoGrants { room_join: true, room: room.into(), ..Default::default() };
        let token = self.token(video, Some(config));
        ConnectOptions::new().join(&self.url(), &token).await.map_err(|error| error.to_string())
    }
}

fn settings(room: &Value) -> [&Value; 4] {
    ["metadata", "max_participants", "empty_timeout", "departure_timeout"].map(|name| &room[name])
}

#[tokio::test]
async fn created_room_keeps_its_settings_and_refuses_joins_when_it_is_full() {
    let server = server().await;
    let asked = json!({"name": "kitchen", "metadata": "soup", "maxParticipants": 1, "emptyTimeout": 77,
        "departureTimeout": 33});
    let (_, room) = server.room_service("CreateRoom", asked).await;
    assert_eq!(settings(&room), [&json!("soup"), &json!(1), &json!(77), &json!(33)]);
    let again = json!({"name": "kitchen", "metadata": "salad", "maxParticipants": 9});
    let (_, same) = server.room_service("CreateRoom", again).await;
    assert_eq!(settings(&same), settings(&room), "a room that exists keeps its settings");
    let _one = server.join("one").await;
    let token = server.key.client("kitchen", "two").sign().unwrap();
    let refused = ConnectOptions::new().join(&server.url(), &token).await.unwrap_err();
    assert!(format!("{refused:?}").contains("500"), "{refused:?}");
    let (status, changed) =
        server.room_service("UpdateRoomMetadata", json!({"room": "kitchen", "metadata": "bread"})).await;
    assert_eq!((status, &changed["metadata"]), (200, &json!("bread")));
}

#[tokio::test]
async fn token_sets_up_the_room_that_it_opens_and_no_other() {
    let server = server().await;
    let config = |metadata: &str| RoomConfiguration {
        metadata: metadata.into(),
        max_participants: 7,
        empty_timeout: 77,
        departure_timeout: 33,
        ..Default::default()
    };
    let _one = server.join_with_config("kitchen", config("soup")).await.unwrap();
    let _two = server.join_with_config("kitchen", config("salad")).await.unwrap();
    let rooms = server.look(|rooms| rooms.list_rooms(&[])).await;
    let [room] = &rooms[..] else { panic!("{rooms:?}") };
    assert_eq!((&*room.metadata, room.max_participants), ("soup", 7));
    assert_eq!((room.empty_timeout, room.departure_timeout), (77, 33));
}

#[tokio::test]
async fn track_is_muted_as_one_that_does_not_exist() {
    let server = server().await;
    let _one = server.join("one").await;
    for (identity, muted, status, code) in [
        ("one", true, 200, Value::Null),
        ("one", false, 412, json!("failed_precondition")),
        ("two", true, 404, json!("not_found")),
    ] {
        let body = json!({"room": "kitchen", "identity": identity, "trackSid": "TR_1", "muted": muted});
        let (is, answer) = server.room_service("MutePublishedTrack", body).await;
        assert_eq!((is, &answer["code"]), (status, &code), "{identity} {muted}");
    }
}

#[tokio::test]
async fn settings_that_the_server_does_not_have_are_refused_by_name() {
    let server = server().await;
    for (body, status, names) in [
        (json!({"name": "kitchen", "egress": {"room": {"roomName": "kitchen"}}}), 501, "egress"),
        (json!({"name": "kitchen", "roomPreset": "large"}), 400, "room_preset"),
        (json!({"name": "kitchen", "metadata": "x".repeat(64_001)}), 400, "metadata"),
    ] {
        let (is, answer) = server.room_service("CreateRoom", body).await;
        assert!(is == status && answer["msg"].as_str().is_some_and(|it| it.contains(names)), "{answer}");
    }
    let config = RoomConfiguration { egress: Some(Default::default()), ..Default::default() };
    let refused = server.join_with_config("kitchen", config).await.unwrap_err();
    assert!(refused.contains("400"), "{refused}");
    assert!(server.look(|rooms| rooms.list_rooms(&[])).await.is_empty());
}
