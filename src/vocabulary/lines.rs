//! Defines what only the line protocol of `toolbridge assistant` says (`toolbridge assistant --protocol`).

use super::form::Id;

messages! {
    /// A command of the line protocol that no session knows.
    read LineCommand("type") {
        /// Takes back what was allowed for always to the agents of this process. The event `permissions_forgotten` answers.
        ForgetPermissions = "forget_permissions" {},
    }
}

record! {
    /// The limits of a conversation in lines.
    LineLimits {
        /// The longest line, in bytes.
        line_bytes as "lineBytes": u64,
        /// The most open calls. While so many are open, no input is read.
        open_calls as "openCalls": u64,
    }
}

messages! {
    /// A line that no session writes.
    write Line("type") {
        /// The first line.
        Hello = "hello" {
            /// The name of the protocol: `toolbridge-assistant`.
            protocol: String,
            /// Its version.
            version: u64,
            /// The program and its version.
            program: String,
            /// The identity of the assistant.
            identity: String,
            /// The room's name.
            room: String,
            /// The commands that are understood.
            commands: Vec<String>,
            /// The limits.
            limits: LineLimits,
        },
        /// A line that is no command.
        Error = "error" {
            /// Its number, from 1. Empty lines count.
            line: u64,
            /// `too_long`, `too_large`, `not_utf8`, `not_json`, `bad_command` or `id_in_use`.
            code: String,
            /// What is wrong.
            message: String,
            /// Its id, if that can be read.
            id: Option<Id>,
        },
        /// Something happened.
        Event = "event" {
            /// The event.
            event: LineEvent,
        },
    }
}

messages! {
    /// An event that no session writes.
    write LineEvent("event") {
        /// The room was not joined. It is the only line.
        JoinFailed = "join_failed" {
            /// Why.
            reason: String,
        },
        /// Tools are served to MCP hosts (`--mcp-listen`).
        Mcp = "mcp" {
            /// The URL.
            url: String,
            /// The bearer token.
            token: String,
        },
        /// Tools are served to RAP runtimes (`--rap-listen`).
        Rap = "rap" {
            /// The URL, which is a secret.
            url: String,
        },
        /// A client that offered no tools before can be called now. Its `tools_changed` precedes.
        Ready = "ready" {
            /// The client.
            owner: String,
            /// The names of its tools.
            tools: Vec<String>,
        },
        /// Permissions were taken back.
        PermissionsForgotten = "permissions_forgotten" {
            /// How many.
            count: u64,
        },
        /// The recording stopped early. Calls continue, and the command ends with status 1.
        RecordingStopped = "recording_stopped" {
            /// Why.
            message: String,
        },
        /// Events were not read in time and dropped. Results are never dropped.
        Missed = "missed" {
            /// How many.
            events: u64,
        },
    }
}

inlined!(LineEvent);
