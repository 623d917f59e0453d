//! Blocks with a secret that is for the model alone, and an agent that shows them.

use serde_json::{Value as Json, json};

/// Long enough to be recognized inside another text. It is valid base64, because media hold it, too.
pub(crate) const SECRET: &str = "plantedForTheModelAlone1";

/// A block of each kind that holds the secret in each of its texts.
pub(crate) fn blocks() -> Vec<(&'static str, Json)> {
    let own = "about plantedForTheModelAlone1";
    let uri = format!("file:///{SECRET}");
    vec![
        ("text", json!({"type": "text", "text": format!("Say {SECRET}.\nAnd more.")})),
        ("image", json!({"type": "image", "data": SECRET, "mimeType": "image/png"})),
        ("sound", json!({"type": "audio", "data": SECRET, "mimeType": "audio/wav"})),
        ("link", json!({"type": "resource_link", "uri": uri, "name": own, "title": own, "description": own})),
        (
            "resource",
            json!({"type": "resource", "resource": {"uri": uri, "text": format!("In it: {SECRET}")}}),
        ),
        ("blob", json!({"type": "resource", "resource": {"uri": uri, "blob": SECRET}})),
        ("another type", json!({"type": "hologram", "beam": {"color": [own]}})),
    ]
}

/// The forms in which a block names the model alone.
pub(crate) fn audiences() -> [Json; 3] {
    [json!(["assistant"]), json!("assistant"), json!(["assistant", "auditor"])]
}

pub(crate) fn with_audience(block: &Json, audience: &Json) -> Json {
    let mut block = block.clone();
    block["annotations"] = json!({"audience": audience, "priority": 1});
    block
}

/// What an agent does with a prompt: calls that fail and succeed, a question, and a message, each with a block for the
/// model alone.
pub(crate) fn hostile() -> String {
    let mut script = String::new();
    let mut n = 0;
    for ((_, block), audience) in blocks().iter().zip(audiences().iter().cycle()) {
        let item = json!({"type": "content", "content": with_audience(block, audience)});
        for status in ["in_progress", "failed", "completed"] {
            n += 1;
            script += &format!(
                "call '\"toolCallId\":\"t{n}\",\"title\":\"Read\",\"kind\":\"read\",\"status\":\"in_progress\",\"rawInput\":{{}}'\n\
                 change '\"toolCallId\":\"t{n}\",\"status\":\"{status}\",\"content\":[{item}]'\n"
            );
        }
        let call = json!({"toolCallId": format!("p{n}"), "title": "Edit", "kind": "edit", "content": [item]});
        let option = json!({"optionId": "y", "name": "Allow", "kind": "allow_once"});
        let params = json!({"sessionId": "s1", "toolCall": call, "options": [option]});
        script += &format!("ask session/request_permission '{params}'\n");
        let chunk =
            json!({"sessionUpdate": "agent_message_chunk", "content": with_audience(block, audience)});
        script += &format!("say 'seen by all '\nupdate '{chunk}'\n");
    }
    script + "ended \"$1\""
}
