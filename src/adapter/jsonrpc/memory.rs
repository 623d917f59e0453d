//! Limits the memory of messages that wait.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One unit of a share, in bytes.
const UNIT: usize = 1 << 10;

/// A number of bytes that messages share.
#[derive(Clone, Debug)]
pub(in crate::adapter) struct Memory {
    free: Arc<Semaphore>,
    bytes: usize,
}

impl Memory {
    pub(in crate::adapter) fn new(bytes: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes / UNIT)), bytes }
    }

    /// Returns memory for a message of at most this many bytes, once there is some. A larger one gets all of it.
    ///
    /// # Cancel safety
    /// Safe.
    pub(in crate::adapter) async fn share(&self, bytes: usize) -> Share {
        let units =
            u32::try_from((bytes.min(self.bytes)).div_ceil(UNIT).min(self.bytes / UNIT)).unwrap_or(u32::MAX);
        Share(Arc::clone(&self.free).acquire_many_owned(units).await.ok()) // it is never closed
    }
}

/// A part of the memory, which is free when this is dropped.
#[derive(Debug)]
pub(in crate::adapter) struct Share(Option<OwnedSemaphorePermit>);

impl Share {
    /// Gives back all but this many bytes.
    pub(in crate::adapter) fn shrink(&mut self, bytes: usize) {
        if let Some(held) = &mut self.0 {
            let surplus = held.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(held.split(surplus));
        }
    }
}
