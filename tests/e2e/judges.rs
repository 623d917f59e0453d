//! Third-party readers of MCAP files as judges of toolbridge's recordings: they count the same messages, of the same
//! bytes, and find nothing wrong.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use self::ours::Ours;
use crate::{
    program::{folder, has_peers, script},
    server, trial_with,
};

mod files;
mod ours;

/// A reader, and the name of its part if it is missing.
#[derive(Clone, Copy, Debug)]
enum Judge {
    PymcapCli,
    Python,
    JavaScript,
}

/// The time limit of a judge: an interpreter that starts while all other tests run.
const JUDGES: Duration = Duration::from_secs(120);

type Made = Pin<Box<dyn Future<Output = anyhow::Result<PathBuf>>>>;

/// A recording of one kind.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    make: fn(PathBuf) -> Made,
    needs_server: bool,
}

pub(crate) fn trials() -> Vec<Trial> {
    let kinds = [
        Kind { name: "finished", make: |it| Box::pin(files::finished(it)), needs_server: false },
        Kind { name: "over_the_server", make: |it| Box::pin(files::over_the_server(it)), needs_server: true },
        Kind { name: "redacted", make: |it| Box::pin(files::redacted(it)), needs_server: false },
        Kind { name: "repaired", make: |it| Box::pin(files::repaired(it)), needs_server: false },
        Kind { name: "of_many_chunks", make: |it| Box::pin(files::of_many_chunks(it)), needs_server: false },
    ];
    let mut trials = Vec::new();
    for judge in [Judge::PymcapCli, Judge::Python, Judge::JavaScript] {
        for kind in kinds {
            let name = format!("judges::{}_agrees_on_one_{}", judge.word(), kind.name);
            let missing = move || judge.missing(kind.needs_server);
            trials.push(trial_with(&name.clone(), missing, move || whole(judge, kind, name.clone())));
        }
        let (live, wrong) = (
            format!("judges::{}_reads_one_that_is_being_written", judge.word()),
            format!("judges::{}_sees_a_wrong_checksum", judge.word()),
        );
        trials.push(trial_with(
            &live.clone(),
            move || judge.missing(false),
            move || unfinished(judge, live.clone()),
        ));
        trials.push(trial_with(
            &wrong.clone(),
            move || judge.missing(false),
            move || damaged(judge, wrong.clone()),
        ));
    }
    trials
}

impl Judge {
    fn word(self) -> &'static str {
        match self {
            Self::PymcapCli => "pymcap_cli",
            Self::Python => "mcap_in_python",
            Self::JavaScript => "mcap_in_javascript",
        }
    }

    fn missing(self, needs_server: bool) -> Option<&'static str> {
        if needs_server && server::binary().is_none() {
            return Some("livekit-server");
        }
        let name = match self {
            Self::PymcapCli => "pymcap-cli (scripts/parts peers)",
            Self::Python => "mcap for Python (scripts/parts peers)",
            Self::JavaScript => "@mcap/core (scripts/parts peers)",
        };
        (!has_peers()).then_some(name)
    }

    /// Returns what a reader counts: see `tests/peers/count.py`.
    async fn count(self, file: &Path) -> anyhow::Result<Value> {
        let program = if matches!(self, Self::JavaScript) { "count.mjs" } else { "count.py" };
        let (said, code) = judge(&[program], file, &[]).await?;
        ensure!(code == Some(0), "{said}");
        Ok(serde_json::from_str(&said)?)
    }
}

/// Returns the doctor's findings, by code, and its summary.
pub(crate) async fn doctor(file: &Path) -> anyhow::Result<(Vec<(String, String)>, Value, Option<i32>)> {
    let (said, code) = judge(&["pymcap-cli", "doctor"], file, &["--format", "jsonl"]).await?;
    let lines: Vec<Value> = said.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let (summary, findings) = lines.split_last().context("the judge prints nothing")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = findings.iter().map(|it| (text(&it["severity"]), text(&it["code"]))).collect();
    Ok((findings, summary.clone(), code))
}

/// Returns the codes of the findings that are errors.
fn errors(findings: &[(String, String)]) -> Vec<&str> {
    findings.iter().filter(|(severity, _)| severity != "info").map(|(_, code)| &**code).collect()
}

/// Runs a judge on a file, and returns its output and its status.
async fn judge(before: &[&str], file: &Path, behind: &[&str]) -> anyhow::Result<(String, Option<i32>)> {
    let mut command = Command::new(script());
    command.arg("run").args(before).arg(file).args(behind);
    let judging = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(JUDGES, judging).await.context("the judge does not finish")??;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = String::from_utf8(output.stdout)?;
    ensure!(!said.is_empty(), "the judge prints only {complaint}");
    Ok((said, output.status.code()))
}

/// A finished file is complete in all respects.
async fn whole(judge: Judge, kind: Kind, name: String) -> anyhow::Result<()> {
    let file = (kind.make)(folder(&name.replace("::", "-"))?).await?;
    let (ours, chunks) = (Ours::of(&file).await?, files::chunks(&file)?);
    ensure!(ours.info["finished"] == true || kind.name == "repaired", "{}", ours.info);
    if !matches!(judge, Judge::PymcapCli) {
        let said = judge.count(&file).await?;
        let (order, index) = (&said["order"], &said["index"]);
        for way in [order, index] {
            ensure!(way["error"].is_null() && way["metadata"] == json!(["toolbridge"]), "{way}");
            ours.are_in(way)?;
        }
        ensure!(
            order["whole"] == true && order["library"] == concat!("toolbridge/", env!("CARGO_PKG_VERSION"))
        );
        ensure!(order["schemas"] == 0 && order["attachments"] == 0, "{order}");
        ensure!(order["chunks"] == chunks && index["chunk_indexes"] == chunks, "not {chunks} chunks");
        ensure!(order["checksums"] == json!({"chunks": chunks, "data": true}), "{order}");
        ensure!(index["statistics"] == ours.count(), "{index}");
        return Ok(());
    }
    let (findings, summary, code) = doctor(&file).await?;
    let wanted = ["NO_ATTACHMENTS", "NO_SCHEMAS"].map(|code| ("info".to_owned(), code.to_owned()));
    ensure!(findings == wanted && code == Some(0), "{findings:?}");
    ensure!(summary["messages"] == ours.count() && summary["chunks"] == chunks, "{summary}");
    let said = information(&file).await?;
    ensure!(said["statistics"]["chunk_count"] == chunks, "{said}");
    ensure!(
        said["statistics"]["metadata_count"] == 1 && said["metadata"][0]["name"] == "toolbridge",
        "{said}"
    );
    ours.are_counted_in(&said)
}

/// Returns the output of `pymcap-cli info`.
async fn information(file: &Path) -> anyhow::Result<Value> {
    let (said, code) = judge(&["pymcap-cli", "info"], file, &["--json"]).await?;
    ensure!(code == Some(0), "{said}");
    Ok(serde_json::from_str(&said)?)
}

/// An unfinished file: sequential readers get every message, there is no index, and every judge reports that the end
/// is missing.
async fn unfinished(judge: Judge, name: String) -> anyhow::Result<()> {
    let file = files::live(folder(&name.replace("::", "-"))?).await?;
    let ours = Ours::of(&file).await?;
    if !matches!(judge, Judge::PymcapCli) {
        let said = judge.count(&file).await?;
        let (order, index) = (&said["order"], &said["index"]);
        ours.are_in(order)?;
        ensure!(order["whole"] == false && order["chunks"] == 0 && !order["error"].is_null(), "{order}");
        ensure!(order["metadata"] == json!(["toolbridge"]), "{order}");
        ensure!(index["channels"] == json!({}) && !index["error"].is_null(), "{index}");
        return Ok(());
    }
    let (findings, summary, code) = doctor(&file).await?;
    ensure!(
        errors(&findings) == ["BAD_TRAILING_MAGIC", "MISSING_FOOTER", "MISSING_DATA_END"],
        "{findings:?}"
    );
    ensure!(summary["messages"] == ours.count() && code == Some(1), "{summary}");
    ours.are_counted_in(&information(&file).await?)
}

/// The judges would detect damage: with a wrong checksum of the first chunk, or of all data, the file is invalid to a
/// reader that verifies that checksum. JavaScript's reader verifies only chunks, and an index bypasses the checksum
/// of all data.
async fn damaged(judge: Judge, name: String) -> anyhow::Result<()> {
    let file = files::finished(folder(&name.replace("::", "-"))?).await?;
    let (chunk, data) = (files::with_wrong_checksum(&file, true)?, files::with_wrong_checksum(&file, false)?);
    if !matches!(judge, Judge::PymcapCli) {
        let complains =
            |said: &Value| said["error"].as_str().is_some_and(|error| error.to_lowercase().contains("crc"));
        let said = judge.count(&chunk).await?;
        ensure!(complains(&said["order"]) && complains(&said["index"]), "{said}");
        let said = judge.count(&data).await?;
        ensure!(complains(&said["order"]) == matches!(judge, Judge::Python), "{said}");
        ensure!(said["index"]["error"].is_null(), "{said}");
        return Ok(());
    }
    for (file, wanted) in [
        (chunk, &["CHUNK_CRC_MISMATCH", "DATA_SECTION_CRC_MISMATCH"][..]),
        (data, &["DATA_SECTION_CRC_MISMATCH"]),
    ] {
        let (findings, _, code) = doctor(&file).await?;
        ensure!(errors(&findings) == wanted && code == Some(1), "{findings:?}");
    }
    Ok(())
}
