//! Holds what is known of one worker.

use std::{cmp::Ordering, time::Instant};

use livekit_protocol::{
    JobType, ParticipantPermission, RegisterWorkerRequest, UpdateWorkerStatus, WorkerStatus,
};

use super::dispatch::Dispatch;

/// A connected worker.
#[derive(Debug)]
pub(super) struct Worker {
    /// What it registered; none before.
    pub(super) registration: Option<Registration>,
    register_by: Instant,
    available: bool,
    load: f32,
    /// The number of the last offer to it, over all workers.
    pub(super) last_offer: u64,
}

/// What a worker registered.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) id: String,
    kind: JobType,
    pub(super) agent_name: String,
    pub(super) deployment: String,
    /// The permissions of its agents.
    pub(super) permission: ParticipantPermission,
}

impl Worker {
    pub(super) fn new(register_by: Instant) -> Self {
        Self { registration: None, register_by, available: true, load: 0.0, last_offer: 0 }
    }

    /// Returns until when it must register, if it has not.
    pub(super) fn register_by(&self) -> Option<Instant> {
        self.registration.is_none().then_some(self.register_by)
    }

    /// Takes over its status. Returns whether it has become available.
    pub(super) fn update(&mut self, status: &UpdateWorkerStatus) -> bool {
        let before = self.available;
        if let Some(status) = status.status {
            self.available = status == i32::from(WorkerStatus::WsAvailable);
        }
        self.load = status.load;
        self.available && !before
    }

    /// Returns whether it can get the job of this dispatch now.
    pub(super) fn takes(&self, dispatch: &Dispatch) -> bool {
        self.available && self.registration.as_ref().is_some_and(|it| it.matches(dispatch))
    }

    /// Orders workers: first the one with the lowest load, of those the one that has waited for longest.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.load.total_cmp(&other.load).then(self.last_offer.cmp(&other.last_offer))
    }
}

impl Registration {
    pub(super) fn new(id: String, kind: JobType, request: RegisterWorkerRequest) -> Self {
        let all = ParticipantPermission {
            can_publish: true,
            can_subscribe: true,
            can_publish_data: true,
            can_update_metadata: true,
            ..Default::default()
        };
        Self {
            id,
            kind,
            agent_name: request.agent_name,
            deployment: request.deployment,
            permission: request.allowed_permissions.unwrap_or(all),
        }
    }

    /// Returns whether the worker is one for this dispatch.
    pub(super) fn matches(&self, dispatch: &Dispatch) -> bool {
        let agent = &dispatch.agent;
        self.kind == JobType::JtRoom
            && self.agent_name == agent.agent_name
            && self.deployment == agent.deployment
    }
}
