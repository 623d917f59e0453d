//! An owner whose process is killed during calls: one that stays away, and one that is started again.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use toolbridge::{
    Assistant, CallError,
    frame::{Frame, Kind, Message},
    livekit::LiveKitTransport,
    transport::TransportEvent,
};

use crate::{
    ends::{assistant, patient, started},
    program::{Program, tools_file},
    room::until,
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![restart:
        killed_owner_that_stays_away_is_lost_within_8_s,
        restarted_owner_loses_its_calls_at_once_except_idempotent_ones,
    ]
}

/// A grace period of 5 s, the last packet up to a second before, and a slow machine.
const LOST_WITHIN: Duration = Duration::from_secs(8);

/// The tools of a client that is killed: each records that it ran, and ends only when the file `go` exists, or with
/// its folder, which is removed after the last test: nothing else ends what a killed client leaves running.
struct Files {
    folder: PathBuf,
    tools: PathBuf,
}

impl Files {
    fn new(name: &str) -> anyhow::Result<Self> {
        let empty = tools_file(name, &[])?;
        let folder = empty.parent().context("no folder")?.to_owned();
        let line = |tool: &str| {
            let (runs, go) = (folder.join(tool), folder.join("go"));
            format!(
                "echo run >> '{}'; while [ -e '{}' ] && [ ! -e '{}' ]; do /bin/sleep 0.05; done; echo '{{\"done\": true}}'",
                runs.display(),
                runs.display(),
                go.display()
            )
        };
        let tools = tools_file(name, &[("once", &line("once")), ("again", &line("again"))])?;
        // The mark belongs to the last one.
        let text = fs::read_to_string(&tools)?;
        fs::write(&tools, format!("{}\nidempotent = true\n", text.trim_end()))?;
        Ok(Self { folder, tools })
    }

    fn runs(&self, tool: &str) -> usize {
        fs::read_to_string(self.folder.join(tool)).map_or(0, |text| text.lines().count())
    }

    fn go(&self) -> anyhow::Result<()> {
        Ok(fs::write(self.folder.join("go"), "")?)
    }
}

async fn phone(server: &Server, room: &str, tools: &Path) -> anyhow::Result<Program> {
    let arguments = ["client", "--room", room, "--identity", "phone", "--assistant", "assistant", "--tools"];
    let mut phone = Program::toolbridge(server, &arguments).arg(tools).start()?;
    phone.line("joined as phone").await?;
    Ok(phone)
}

async fn killed_owner_that_stays_away_is_lost_within_8_s() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "killed-for-good");
    let files = Files::new(room)?;
    let owner = phone(&server, room, &files.tools).await?;
    let brain = assistant(&server, room, "assistant", Assistant::builder().client("phone")).await?;
    let mut calls = ["once", "again"].map(|tool| brain.call(tool, ()).start());
    for call in &mut calls {
        started(call).await?;
    }
    owner.kill();
    let killed = Instant::now();
    for call in calls {
        // An idempotent call does not help without any owner.
        let result = soon("the loss", call).await?;
        ensure!(matches!(&result, Err(CallError::Lost { owner, .. }) if owner == "phone"), "{result:?}");
    }
    let took = killed.elapsed();
    println!("a killed owner that stays away is lost after {took:?}");
    ensure!(took < LOST_WITHIN, "{took:?}");
    ensure!(brain.open_calls() == 0);
    Ok(())
}

/// The grace period is so long here that only the new process can end the calls.
async fn restarted_owner_loses_its_calls_at_once_except_idempotent_ones() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "killed-and-back");
    let files = Files::new(room)?;
    let token = server.key().observer(room, "observer").sign()?;
    let mut observer = LiveKitTransport::join(&server.url(), &token).await?;
    let first = phone(&server, room, &files.tools).await?;
    let brain = Assistant::builder().client("phone").configure(patient);
    let brain = assistant(&server, room, "assistant", brain).await?;
    soon("the observer", async {
        while !brain.participants().iter().any(|who| who.identity() == "observer") {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    let mut once = brain.call("once", ()).timeout(Duration::from_secs(60)).start();
    let mut again = brain.call("again", ()).timeout(Duration::from_secs(60)).start();
    started(&mut once).await?;
    started(&mut again).await?;
    let id = again.id().cloned().context("no id")?;
    // A started program may not have recorded yet that it runs.
    soon("the first run of each tool", async {
        while (files.runs("once"), files.runs("again")) != (1, 1) {
            tokio::task::yield_now().await;
        }
    })
    .await?;

    first.kill();
    let killed = Instant::now();
    let second = phone(&server, room, &files.tools).await?;
    let lost = soon("the loss", once).await?;
    ensure!(matches!(&lost, Err(CallError::Lost { owner, .. }) if owner == "phone"), "{lost:?}");
    println!("a call of an owner that was started again is lost {:?} after the kill", killed.elapsed());
    // The new process gets the request too, and waits before it answers.
    soon("the second run", async {
        while files.runs("again") < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    files.go()?;
    ensure!(soon("the result", again).await??.to_json() == json!({"done": true}));
    ensure!((files.runs("once"), files.runs("again")) == (1, 2));

    // Both requests had the same id, and each its own stanza and instance.
    let mut asked = Vec::new();
    while asked.len() < 2 {
        let frame = until(&mut observer, |event| match event {
            TransportEvent::Packet(packet) => Frame::decode(packet.payload).ok(),
            _ => None,
        })
        .await?;
        if frame.kind() == Kind::TOOL_USE_REQUEST
            && let Message::ToolUseRequest(request) = frame.message()?
            && request.tool_name == "again"
        {
            asked.push((request.id, frame.stanza_id()));
        }
    }
    ensure!(asked.iter().all(|(asked, _)| *asked == id) && asked[0].1 != asked[1].1, "{asked:?}");

    // Its tools are offered again, and work.
    let mut offered: Vec<_> = brain.tools().iter().map(|it| it.tool.name().to_string()).collect();
    offered.sort();
    ensure!(offered == ["again", "once"], "{offered:?}");
    for tool in ["once", "again"] {
        ensure!(brain.call(tool, ()).await?.to_json() == json!({"done": true}));
    }
    ensure!(brain.open_calls() == 0);
    second.interrupt()?;
    ensure!(second.finish().await?.code == Some(0));
    Ok(())
}
