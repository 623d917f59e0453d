//! A client app with three tools: one without arguments, one with typed arguments and shared state, and a long one
//! that reports progress.
//!
//! ```sh
//! LIVEKIT_URL=ws://127.0.0.1:7880 LIVEKIT_TOKEN=$(toolbridge token --room r --identity phone) cargo run --example client
//! ```

use std::{collections::BTreeMap, env, io, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbridge::{Client, State, ToolContext, ToolError, Tools};

#[derive(Serialize)]
struct Battery {
    level: f32,
    charging: bool,
}

async fn get_battery() -> Result<Battery, ToolError> {
    Ok(Battery { level: 0.8, charging: true })
}

#[derive(Deserialize, JsonSchema)]
struct Find {
    /// Part of a name
    name: String,
}

async fn find_contact(State(db): State<Arc<Db>>, find: Find) -> Result<String, ToolError> {
    let number = db.number(&find.name).await?; // any error: sent as `execution_error`, without its text
    Ok(number.ok_or("nobody of that name")?) // a text error: sent to the model
}

#[derive(Deserialize, JsonSchema)]
struct Export {
    album: String,
}

async fn export_album(
    cx: ToolContext,
    State(db): State<Arc<Db>>,
    export: Export,
) -> Result<usize, ToolError> {
    let photos = db.photos(&export.album).await?;
    for (n, photo) in photos.iter().enumerate() {
        if cx.is_cancelled() {
            // Only needed to clean up. Otherwise the function is dropped at an await.
            db.remove(&photos[..n]).await?;
            return Err(ToolError::cancelled());
        }
        cx.progress(format!("{n} of {}", photos.len()));
        db.copy(photo).await?;
    }
    Ok(photos.len())
}

#[tokio::main]
#[expect(clippy::disallowed_methods, reason = "an example owns its tasks")]
async fn main() -> anyhow::Result<()> {
    let tools = Tools::with_state(Arc::new(Db::default()))
        .tool("get_battery", "Battery level (0 to 1) and charging state", get_battery)
        .tool("find_contact", "Phone number of a contact", find_contact)
        .tool("export_album", "Copy an album to the cloud", export_album);
    // Started before the join, so that a Ctrl-C during the join is not lost.
    let ctrl_c = tokio::spawn(tokio::signal::ctrl_c());
    let client =
        Client::builder().tools(tools).join(&env::var("LIVEKIT_URL")?, &env::var("LIVEKIT_TOKEN")?).await?;
    let reason = tokio::select! {
        reason = client.closed() => reason,
        // Sends a goodbye. Without one, the assistant reports the client lost after the grace period of 5 s.
        _ = ctrl_c => client.close().await,
    };
    println!("left: {reason}");
    Ok(())
}

/// The contacts and photos, which a real app keeps elsewhere.
#[derive(Default)]
struct Db(BTreeMap<String, String>);

impl Db {
    async fn number(&self, name: &str) -> io::Result<Option<String>> {
        Ok(self.0.iter().find(|(contact, _)| contact.contains(name)).map(|(_, number)| number.clone()))
    }

    async fn photos(&self, album: &str) -> io::Result<Vec<String>> {
        if album != "Rome" {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no album {album}")));
        }
        Ok((1..=3).map(|n| format!("{album}/{n}.jpg")).collect())
    }

    async fn copy(&self, _photo: &str) -> io::Result<()> {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        Ok(())
    }

    async fn remove(&self, _photos: &[String]) -> io::Result<()> {
        Ok(())
    }
}
