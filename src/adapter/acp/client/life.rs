//! Keeps an agent alive: starts it, starts it again when it has ended, and closes it.

use std::{sync::Arc, time::Duration};

use super::{
    Shared,
    connection::{Connection, Live},
};
use crate::adapter::source::{
    SourceError,
    life::{Life, Status},
};

impl Life for Arc<Shared> {
    type Connection = Connection;
    type Live = Live;

    fn status(&self) -> &Status<Live> {
        &self.status
    }

    async fn start(&self) -> Result<(Connection, Live), SourceError> {
        let offered = self.state().offered.clone();
        let connection = Connection::start(&self.name, &self.settings, offered.as_ref()).await?;
        tracing::info!(agent = &*self.name, "an agent is up");
        let live = connection.live.clone();
        Ok((connection, live))
    }

    async fn serve(&self, connection: &mut Connection) -> SourceError {
        connection.ended(&self.name).await
    }

    async fn end(&self, connection: Connection, reason: Option<&str>) {
        connection.tell_end(reason.unwrap_or("it was closed"));
        let session = Arc::clone(&connection.live.session);
        connection.close().await;
        session.end_plan();
        let ignored = session.ignored();
        tracing::debug!(
            agent = &*self.name,
            junk = session.junk.junk(),
            too_long = session.junk.too_long(),
            late = ignored.late,
            refused = ignored.refused,
            foreign = session.foreign(),
            "what an agent sent without effect"
        );
    }

    fn warn(&self, reason: &str, again_in: Duration) {
        tracing::warn!(agent = &*self.name, reason, ?again_in, "an agent is down");
    }
}
