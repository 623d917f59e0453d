//! The report in a real browser: what it draws, and that nothing in a recording gets a say.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tokio::process::Command;

use crate::{
    report_sample::{HOSTILE, Sample, afternoon, hostile, long},
    soon, trial_with,
};

/// Tests that need the browser, under the name of this file.
macro_rules! in_browser {
    ($($test:ident),* $(,)?) => {
        vec![$(trial_with(
            concat!("report::", stringify!($test)),
            || browser().is_none().then_some("chromium"),
            $test,
        )),*]
    };
}

pub(crate) fn trials() -> Vec<Trial> {
    in_browser![
        fifty_thousand_calls_are_drawn_as_counts_and_a_window_of_rows,
        every_call_is_a_bar_and_a_row,
        a_call_that_the_address_names_is_open_with_its_frames,
        an_empty_recording_says_so,
        sec_c3_hostile_text_adds_nothing_to_the_page,
        sec_c3_the_policy_refuses_any_other_script_and_style,
    ]
}

/// Debian's package has the first name; others are what Chromium is called elsewhere.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    let mut paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths.find(|path| path.is_file())
}

/// A page as the browser leaves it.
struct Seen {
    /// The document, after its script ran.
    document: String,
    /// What the console was told, violations of the policy included.
    console: Vec<String>,
}

impl Seen {
    /// How often this is in the document, the data and the script apart.
    fn count(&self, text: &str) -> usize {
        self.body().matches(text).count()
    }

    /// What was drawn: everything before the data.
    fn body(&self) -> &str {
        let from = self.document.find("<body").unwrap_or_default();
        let until = self.document.find("<script type=\"application/json\"").unwrap_or(self.document.len());
        &self.document[from..until.max(from)]
    }

    fn is_quiet(&self) -> anyhow::Result<()> {
        ensure!(self.console.is_empty(), "the console says {:#?}", self.console);
        ensure!(self.document.contains("data-ready=\"true\""), "the script did not come to its end");
        Ok(())
    }
}

/// A folder for one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> io::Result<Self> {
        let path = env::temp_dir().join(format!("toolbridge-report-{}-{name}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens a page, with this behind its address.
async fn open(name: &str, page: &str, fragment: &str) -> anyhow::Result<Seen> {
    let folder = Folder::new(name)?;
    let file = folder.0.join("report.html");
    fs::write(&file, page)?;
    let output =
        chromium(&folder.0).arg("--dump-dom").arg(format!("file://{}{fragment}", file.display())).output();
    let output = soon("the page", output).await??;
    ensure!(output.status.success(), "chromium: {}", output.status);
    let errors = String::from_utf8_lossy(&output.stderr);
    let console = errors.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    Ok(Seen { document: String::from_utf8(output.stdout)?, console })
}

fn chromium(profile: &Path) -> Command {
    let mut command = Command::new(browser().unwrap_or_default());
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        // The page's own clock: it is done when its timers are, however slow the machine.
        .args(["--window-size=1400,1000", "--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0"])
        .arg(format!("--user-data-dir={}", profile.join("profile").display()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn every_call_is_a_bar_and_a_row() -> anyhow::Result<()> {
    let sample = afternoon();
    let calls = sample.calls.len();
    let seen = open("afternoon", &sample.page("Kitchen"), "").await?;
    seen.is_quiet()?;
    ensure!(seen.document.contains(&format!("data-bars=\"{calls}\"")), "not {calls} bars");
    ensure!(seen.count("data-call=\"") == calls, "{} bars", seen.count("data-call=\""));
    ensure!(seen.count("data-row=\"") == calls, "{} rows", seen.count("data-row=\""));
    for text in ["Room kitchen", "ada-phone", "ben-phone", "export_album · cancelled", "permission_denied"] {
        ensure!(seen.count(text) > 0, "no {text}");
    }
    ensure!(seen.document.contains("<title>Kitchen</title>"), "no title");
    Ok(())
}

async fn a_call_that_the_address_names_is_open_with_its_frames() -> anyhow::Result<()> {
    let sample = afternoon();
    let call = sample.calls.iter().position(|call| call.stopped.is_some() && call.settled.is_some());
    let call = sample.calls[call.context("a stopped call")?].id.clone();
    let seen = open("address", &sample.page("Kitchen"), &format!("#call={call}")).await?;
    seen.is_quiet()?;
    let panel = seen.body().split_once("<aside").context("a panel")?.1;
    ensure!(!panel.split_once('>').context("a panel")?.0.contains("hidden"), "the panel is hidden");
    for text in [call.as_str(), "ToolUseRequest", "ControlStop", "<pre", "\"toolName\"", "traceparent"] {
        ensure!(panel.contains(text), "no {text} in {panel}");
    }
    Ok(())
}

async fn an_empty_recording_says_so() -> anyhow::Result<()> {
    let seen = open("empty", &Sample::default().page("Nothing"), "").await?;
    seen.is_quiet()?;
    ensure!(seen.count("There are no calls in this recording.") == 1, "{}", seen.body());
    ensure!(seen.count("data-row=\"") == 0 && seen.count("data-call=\"") == 0, "{}", seen.body());
    Ok(())
}

async fn fifty_thousand_calls_are_drawn_as_counts_and_a_window_of_rows() -> anyhow::Result<()> {
    let page = tokio::task::spawn_blocking(|| long(50_000).page("An hour")).await?;
    let seen = open("long", &page, "").await?;
    seen.is_quiet()?;
    ensure!(seen.document.contains("data-dense=\"true\""), "not aggregated");
    ensure!(seen.count("class=\"column\"") > 100, "{} columns", seen.count("class=\"column\""));
    ensure!(seen.count("aria-rowcount=\"50001\"") == 1, "no count of rows");
    ensure!((10..200).contains(&seen.count("data-row=\"")), "{} rows", seen.count("data-row=\""));
    ensure!(seen.body().len() < 1 << 20, "{} bytes are drawn", seen.body().len());
    Ok(())
}

async fn sec_c3_hostile_text_adds_nothing_to_the_page() -> anyhow::Result<()> {
    let page = hostile().page(HOSTILE);
    let seen = open("hostile", &page, "").await?;
    seen.is_quiet()?;
    ensure!(seen.count("data-call=\"") == 1, "{} bars", seen.count("data-call=\""));
    ensure!(seen.count("<img") == 0 && seen.count("<script") == 0, "an element of the recording's");
    // In text it stands escaped; in an attribute's value Chromium may write it as it is, between the quotes.
    ensure!(
        seen.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{1b}[31m") > 0,
        "not shown"
    );
    let unseen = ['\u{202e}', '\u{1b}', '\u{2028}', '\u{200b}'];
    ensure!(!seen.document.contains(unseen), "a control character is in the document");
    Ok(())
}

async fn sec_c3_the_policy_refuses_any_other_script_and_style() -> anyhow::Result<()> {
    let page = afternoon().page("Kitchen").replace(
        "</main>",
        "</main><script>document.title = 'taken'</script><style>main { display: none }</style><img src=\"x.png\">",
    );
    let seen = open("policy", &page, "").await?;
    let told = |word: &str| seen.console.iter().any(|line| line.contains(word));
    ensure!(told("script-src") && told("style-src") && told("img-src"), "{:#?}", seen.console);
    ensure!(seen.document.contains("<title>Kitchen</title>"), "the script ran");
    Ok(())
}
