//! Speaks the [Reactive Agent Protocol](https://infinity.hydro.run/docs/rap/spec/overview) (RAP), whose tools
//! are called over HTTP and answer later, by a request to an address that the call names.
//!
//! [`toolset`] and [`from_file`] name a toolset. Awaiting it reads its manifest, and returns its tools as a source:
//!
//! ```no_run
//! # async fn join() -> Result<(), Box<dyn std::error::Error>> {
//! use toolbridge::{Client, adapter::rap};
//!
//! let builds = rap::toolset("https://tools.example.com").bearer_env("BUILDS_TOKEN");
//! let client = Client::builder().tools(builds.callback("192.0.2.7:8099").await?);
//! # let _ = client;
//! # Ok(())
//! # }
//! ```
//!
//! | what a toolset does | what follows |
//! | --- | --- |
//! | its manifest has a fault | none of its tools is offered; a limit of this crate leaves out single tools |
//! | its server is not reached when the manifest is read, or fails (HTTP 500 and above) | the manifest is read again after 1, 2, 4 … 60 s; the source is down meanwhile |
//! | it answers a call | the result keeps its document: [`RapResult`] |
//! | it answers `Error: …` | the call fails with that text |
//! | it refuses a call (HTTP 400 to 499) | the call fails; at 500 and above, or without an answer, it is sent again, four times in all |
//! | it needs a sign-in (`oauth`) | the person gets the address, if it uses HTTPS ([`AuthorizePrompt`](crate::prompt::AuthorizePrompt)) |
//! | it asks (`user_choice`) | the person chooses ([`ChoicePrompt`](crate::prompt::ChoicePrompt)); without a choice in time, the tool gets its default |
//! | it starts a subscription | at an assistant, its events are reported, and `NAME.cancel_subscription` ends it; at a client, it is cancelled at once |
//! | it updates a view | at an assistant, clients see it as `NAME/VIEW`; 8 at once |
//! | it answers after the time of the call | within a further time of the same length, an assistant reports it |
//!
//! A call that is cancelled, or whose time is over, is cancelled at the server. A display script is not run: that would
//! need an interpreter.
//!
//! | limit | value |
//! | --- | --- |
//! | a manifest | 4 MiB, 1,024 tools, 256 KiB for each schema |
//! | a message of a tool | 16 MiB; 64 MiB of them are read at once |
//! | messages of one call | 200 a second, 400 at once; others are refused (HTTP 429) |
//! | questions of one call | 16; others are refused (HTTP 429) |
//! | subscriptions | 64 |
//! | events that come before the result of their call, and are kept until then | 16 for each call, 256 KiB |
//! | a callback URL | the time of its call and as much again; in a subscription, until that ends |
//! | calls whose callback URLs are known | 4,096; settled ones are forgotten first |
//!
//! The published Rust types fail a whole message for one display segment that they do not know, although the
//! specification says to skip it. So messages are read from their JSON.

mod address;
mod document;
mod result;
mod server;
mod source;

pub use address::{InvalidHost, NamedHost};
pub use result::{RapResult, RapResultError};
pub use server::{RapListener, RapServeError, RoomToolset, serve};
pub use source::{RapCounts, RapTools, RapToolset, from_file, toolset, toolsets};
