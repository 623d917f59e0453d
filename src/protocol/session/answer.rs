//! Answers on their way back: sent once, kept until they are acknowledged.

use std::time::Instant;

use super::{
    Session, Timer, codec,
    peer::Feature,
    send::{Sent, Unfit, floor_char},
    table::Answer,
};
use crate::{
    protocol::frame::{Message, Meta, ToolUseResult},
    tool::{CallId, ErrorCode, Outcome, ToolError},
    transport::Identity,
};

impl Session {
    /// Sends a job's or a refusal's answer, once, or keeps it until its caller can be reached.
    pub(super) fn answer(&mut self, now: Instant, caller: &Identity, call: &CallId, outcome: Outcome) {
        self.answer_of_job(now, caller, call, outcome, false);
    }

    /// Sends a job's answer; `began` says that its tool had begun.
    pub(super) fn answer_of_job(
        &mut self,
        now: Instant,
        caller: &Identity,
        call: &CallId,
        outcome: Outcome,
        began: bool,
    ) {
        let says_it_began =
            began && outcome.as_ref().is_err_and(|error| error.code().proves_that_nothing_ran());
        let outcome = outcome.map_err(|error| shortened(error, self.config.caps.message_bytes));
        let mut message = result_message(&self.config.room, call, outcome);
        let mut size = size_of_answer(&message);
        if let Err(room) = self.room_for_answer(caller, size) {
            message = result_message(&self.config.room, call, Err(too_large(size, room)));
            size = size_of_answer(&message);
        }
        let Some(table) = self.tables.get_mut(caller) else { return };
        table.answer(call, Answer::new(message, size).of_begun(says_it_began));
        self.send_answer(now, caller, call);
    }

    /// An answer turned out too large for the transport: its caller is told so instead.
    pub(super) fn replace_answer(
        &mut self,
        now: Instant,
        caller: &Identity,
        call: &CallId,
        size: usize,
        limit: usize,
    ) {
        self.put_error_in_place(now, caller, call, too_large(size, limit));
    }

    /// The caller had no room for an answer so many times: it is told so instead.
    pub(super) fn give_up_answer(&mut self, now: Instant, caller: &Identity, call: &CallId, times: u32) {
        let text = format!("the caller had no room for the result, {times} times");
        let error = ToolError::new(ErrorCode::RESULT_TOO_LARGE, text);
        self.put_error_in_place(now, caller, call, error);
    }

    fn put_error_in_place(&mut self, now: Instant, caller: &Identity, call: &CallId, error: ToolError) {
        let message = result_message(&self.config.room, call, Err(error));
        let Some(table) = self.tables.get_mut(caller) else { return };
        let Some(answer) = table.answer_of(call) else { return };
        let twice = size_of_answer(&answer.message) <= size_of_answer(&message);
        answer.message = message;
        table.note_sent(call, None);
        if !twice {
            self.send_answer(now, caller, call);
        }
    }

    /// A caller can be reached: the answers that were not sent to it go.
    pub(super) fn send_waiting_answers(&mut self, now: Instant, caller: &Identity) {
        let waiting = self.tables.get(caller).map(super::Table::answers_not_sent).unwrap_or_default();
        for call in waiting {
            self.send_answer(now, caller, &call);
        }
    }

    /// Sends an answer again, if its caller has not acknowledged it.
    pub(super) fn answer_again(&mut self, now: Instant, caller: &Identity, call: &CallId) -> Option<Sent> {
        self.send_answer(now, caller, call)
    }

    pub(super) fn send_answer(&mut self, now: Instant, caller: &Identity, call: &CallId) -> Option<Sent> {
        let remote = self.peers.get(caller).filter(|remote| remote.is_reachable())?;
        let wants_to_know = remote.lists(Feature::Ack);
        let answer = self.tables.get_mut(caller)?.answer_of(call)?;
        let (mut message, before) = (answer.message.clone(), answer.sent());
        let meta = if answer.says_it_began { codec::begun() } else { Meta::default() };
        let sent = match before {
            Some((stanza, _)) => self.post_again(caller, stanza, &meta, &message),
            None => self.post(caller, &meta, &message),
        };
        let sent = match sent {
            Err(Unfit::TooLarge { size, limit }) => {
                message = result_message(&self.config.room, call, Err(too_large(size, limit)));
                self.post(caller, &meta, &message)
            }
            sent => sent,
        };
        if before.is_none() {
            self.copy(&meta, &message);
        }
        let table = self.tables.get_mut(caller)?;
        match &sent {
            Ok(sent) if wants_to_know => {
                if let Some(answer) = table.answer_of(call) {
                    answer.message = message;
                }
                table.note_sent(call, Some((sent.stanza, sent.packet)));
            }
            Ok(_) => table.acknowledged(now, call), // it tells us nothing: handing it over must do
            Err(error) => {
                tracing::warn!(%call, ?error, "an answer cannot be sent");
                table.acknowledged(now, call);
            }
        }
        self.set_table_timer(now, caller);
        sent.ok()
    }

    pub(super) fn expire_table(&mut self, now: Instant, caller: &Identity) {
        let Some(table) = self.tables.get_mut(caller) else { return };
        table.expire(now);
        if table.is_empty() && !self.peers.contains_key(caller) {
            self.tables.remove(caller);
        }
        self.set_table_timer(now, caller);
    }

    /// The table of this caller has changed: when is the next entry of it to be forgotten?
    pub(super) fn set_table_timer(&mut self, now: Instant, caller: &Identity) {
        let timer = Timer::Table(caller.clone());
        match self.tables.get(caller).and_then(super::Table::next_expiry) {
            Some(at) => self.timers.set(now, timer, at.saturating_duration_since(now)),
            None => self.timers.cancel(&timer),
        }
    }
}

/// A result as it travels.
pub(super) fn result_message(room: &str, call: &CallId, outcome: Outcome) -> Message {
    let mut result = ToolUseResult {
        id: call.clone(),
        success: outcome.is_ok(),
        result: None,
        error_code: None,
        error_message: None,
        conversation_id: Some(room.to_owned()),
        result_id: None,
    };
    match outcome {
        Ok(body) => result.result = Some(body),
        Err(error) => {
            result.error_code = Some(error.code());
            result.error_message = Some(error.message().to_owned());
            result.result = error.partial().cloned();
        }
    }
    Message::ToolUseResult(result)
}

fn size_of_answer(message: &Message) -> usize {
    let Message::ToolUseResult(result) = message else { return 0 };
    let text = result.error_message.as_ref().map_or(0, String::len);
    result.result.as_ref().map_or(0, |body| body.as_bytes().len()) + text
}

fn too_large(size: usize, limit: usize) -> ToolError {
    ToolError::new(
        ErrorCode::RESULT_TOO_LARGE,
        format!("the result has {size} bytes with its frame, {limit} can be carried"),
    )
}

/// An error whose text is short enough to travel.
fn shortened(error: ToolError, limit: usize) -> ToolError {
    if error.message().len() <= limit && error.code().as_str().len() <= limit {
        return error;
    }
    let (message, code) = (error.message(), error.code());
    let code = code.as_str();
    let short = ToolError::new(&code[..floor_char(code, limit)], &message[..floor_char(message, limit)]);
    match error.partial() {
        Some(partial) => short.with_partial(partial.clone()),
        None => short,
    }
}
