//! Joins the calls in both directions: decides in which order they learn what arrives, and that a peer, a job
//! or a timer has changed.

mod lifecycle;
mod receive;
mod rpc;

use super::{core::Core, incoming::Incoming, jobs::Ended, outgoing::Outgoing, timers::Timer, views::Views};

/// The calls that the local participant makes and those that it runs, and the views that it shows.
///
/// A frame, a peer that leaves, a job that ends and a timer may concern both. The files of this folder decide the order
/// in which the two directions, and the parts that they share, are informed.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) views: Views,
}

impl Exchange {
    pub(super) fn job_ended(&mut self, core: &mut Core, ended: Ended) {
        match ended.job.own {
            Some(key) => self.outgoing.local_job_ended(core, key, ended),
            None => self.incoming.job_ended(core, ended),
        }
    }

    pub(super) fn timer_due(&mut self, core: &mut Core, timer: Timer) {
        let Self { outgoing, incoming, views } = self;
        let Core { cx, peers, delivery, .. } = core;
        match timer {
            Timer::Greet(id) => peers.greet_again(cx, delivery, &id),
            Timer::Ask(id) if peers.held.has_frames_of(&id) => peers.ask_for_configuration(cx, delivery, &id),
            Timer::Ask(_) => {}
            Timer::Provisional(id) => {
                if let Some(listed) = peers.check_provisional(cx, delivery, &id) {
                    self.joined(core, listed);
                }
            }
            Timer::Unconfigured => peers.unconfigured.expire(cx, Timer::Unconfigured),
            Timer::Unannounced => peers.held.expire(cx, Timer::Unannounced),
            Timer::Grace(id, join) => self.grace_over(core, &id, &join),
            Timer::Silent(id) => outgoing.handle_silence(core, &id),
            Timer::Register(id) => peers.register_again(cx, delivery, &id),
            Timer::Replay(id) => self.retransmit(core, &id),
            Timer::Heartbeat(id) => outgoing.handle_heartbeat_timeout(core, &id),
            Timer::Ping(id) => {
                peers.excuse_silence(cx, &id);
                if cx.is_client() { self.check_assistant(core, &id) } else { outgoing.check_owner(core, &id) }
            }
            Timer::OwnerWait(key) => outgoing.no_owner(core, key),
            Timer::Deadline(key) => outgoing.deadline(core, key),
            Timer::JobDeadline(key) => {
                core.time_out_job(key).into_iter().for_each(|it| self.job_ended(core, it))
            }
            Timer::View(place) => views.send(core, place),
            Timer::Progress(key) => core.report_due(key),
            Timer::LateProgress(key) => outgoing.report_late_progress(core, key),
            Timer::Table(id) => incoming.expire(core, &id),
            Timer::Past => outgoing.expire_settled(core),
            Timer::Complaints => cx.report_complaints(),
            Timer::Streams => {
                for (id, part) in delivery.expire_streams(cx) {
                    self.stream_advanced(core, &id, part);
                }
            }
            Timer::Queue(id) => {
                delivery.send_waiting(cx, Some(&id));
                views.send_due_to(core, &id);
                incoming.send_unsent(core, &id);
                outgoing.send_unsent(core, &id, false);
            }
            Timer::Refused(id, packet) => self.send_refused(core, &id, packet),
            Timer::RpcRefusals(by) => rpc::send_refusals(core, by.as_ref(), None),
            Timer::Lane(id) => delivery.to(cx, peers, &id).due(),
            Timer::Permitted => self.send_all_unsent(core),
            Timer::ClaimWindow(key) => outgoing.claim_window_over(core, key),
            Timer::ClaimDeadline(key) => incoming.handle_claim_deadline(core, key),
            Timer::Consent(key) => {
                core.time_out_question(key).into_iter().for_each(|it| self.job_ended(core, it))
            }
            Timer::Unbound => peers.report_unbound(cx),
            Timer::Announced => self.announced(core),
            Timer::Observed => incoming.observed.expire(core),
        }
    }
}
