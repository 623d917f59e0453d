//! Compresses frames for peers that can expand them (`wire.md`, section 5.11).

use bytes::Bytes;

use super::{Context, Delivery};
use crate::{
    protocol::session::recipients::{Feature, Recipients},
    transport::Identity,
};

impl Delivery {
    /// Returns a frame as it is sent to this peer: compressed, if the peer can expand it and it gets shorter.
    pub(super) fn as_sent(
        &self,
        cx: &Context,
        peers: &impl Recipients,
        to: &Identity,
        frame: Bytes,
    ) -> Bytes {
        // Frames are read only from participants that list the feature.
        let can_expand = cx.config.compress
            && cx.config.expand
            && peers.lists(to, Feature::Deflate)
            && peers.is_crossed(to)
            // Otherwise the peer may have no Configuration that lists the feature, and would drop the frame.
            && self.links.get(to).is_some_and(|link| link.lane.configuration_delivered);
        #[cfg(feature = "deflate")]
        if let Some(compressed) =
            can_expand.then(|| crate::protocol::deflate::compressed_frame(&frame)).flatten()
        {
            return compressed.into();
        }
        #[cfg(not(feature = "deflate"))]
        let _ = can_expand;
        frame
    }
}
