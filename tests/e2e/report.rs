//! The report in a real browser: what it draws, and that nothing in a recording can take effect.

use std::{
    collections::BTreeSet,
    env, fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use toolbridge::recording::{RecordedCall, RecordedOutcome, RoomEvent};

use crate::{
    browser,
    report_sample::{HOSTILE, REPORTED, Sample, afternoon, hostile, long},
    soon, trial_with,
};

/// Lists tests that need the browser, under the name of this file.
macro_rules! in_browser {
    ($($test:ident),* $(,)?) => {
        vec![$(trial_with(
            concat!("report::", stringify!($test)),
            || browser::path().is_none().then_some("chromium"),
            $test,
        )),*]
    };
}

pub(crate) fn trials() -> Vec<Trial> {
    in_browser![
        calls_one_after_another_share_a_row,
        many_calls_have_a_density_strip_and_a_latency_chart,
        calls_at_a_time_do_not_depend_on_the_width_of_the_window,
        chosen_call_has_a_marked_row,
        times_of_an_observer_are_labelled,
        fifty_thousand_calls_are_drawn_as_counts_and_a_window_of_rows,
        call_is_drawn_as_a_bar_and_a_row,
        keys_pointer_filter_and_headings_work,
        call_named_in_the_address_is_open_with_its_frames,
        result_is_drawn_as_a_person_sees_it,
        reported_call_shows_its_kind_and_files,
        view_is_drawn_as_a_person_sees_it,
        empty_recording_makes_a_page_that_says_so,
        sec_c3_hostile_text_adds_nothing_to_the_page,
        sec_c3_content_policy_refuses_any_other_script_and_style,
    ]
}

/// A page as the browser leaves it.
struct Seen {
    /// The document, after its script ran.
    document: String,
    /// The console output, including violations of the content policy.
    console: Vec<String>,
}

impl Seen {
    /// Counts a text in the document, without the data and the script.
    fn count(&self, text: &str) -> usize {
        self.body().matches(text).count()
    }

    /// The drawn part: everything before the data.
    fn body(&self) -> &str {
        let from = self.document.find("<body").unwrap_or_default();
        let until = self.document.find("<script type=\"application/json\"").unwrap_or(self.document.len());
        &self.document[from..until.max(from)]
    }

    fn has_no_errors(&self) -> anyhow::Result<()> {
        ensure!(self.console.is_empty(), "the console contains {:#?}", self.console);
        ensure!(self.document.contains("data-ready=\"true\""), "the script did not finish");
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

/// Opens a page with this fragment in its address.
async fn open(name: &str, page: &str, fragment: &str) -> anyhow::Result<Seen> {
    open_wide(name, page, fragment, 1_400).await
}

/// Opens a page in a window of this width.
async fn open_wide(name: &str, page: &str, fragment: &str, width: u32) -> anyhow::Result<Seen> {
    let folder = Folder::new(name)?;
    let file = folder.0.join("report.html");
    fs::write(&file, page)?;
    let output = chromium(&folder.0, width)
        .arg("--dump-dom")
        .arg(format!("file://{}{fragment}", file.display()))
        .output();
    let output = soon("the page", output).await??;
    ensure!(output.status.success(), "chromium: {}", output.status);
    let errors = String::from_utf8_lossy(&output.stderr);
    let console = errors.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    Ok(Seen { document: String::from_utf8(output.stdout)?, console })
}

fn chromium(profile: &Path, width: u32) -> Command {
    let mut command = Command::new(browser::path().unwrap_or_default());
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        // Virtual time: the page is done when its timers are, however slow the machine.
        .arg(format!("--window-size={width},1000"))
        .args(["--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0"])
        .arg(format!("--user-data-dir={}", profile.join("profile").display()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn call_is_drawn_as_a_bar_and_a_row() -> anyhow::Result<()> {
    let sample = afternoon();
    let calls = sample.calls.len();
    let seen = open("afternoon", &sample.page("Kitchen"), "").await?;
    seen.has_no_errors()?;
    ensure!(seen.document.contains(&format!("data-bars=\"{calls}\"")), "not {calls} bars");
    ensure!(seen.count("data-call=\"") == calls, "{} bars", seen.count("data-call=\""));
    ensure!(seen.count("data-row=\"") == calls, "{} rows", seen.count("data-row=\""));
    for text in ["Room kitchen", "ada-phone", "ben-phone", "export_album · cancelled", "permission_denied"] {
        ensure!(seen.count(text) > 0, "no {text}");
    }
    ensure!(seen.document.contains("<title>Kitchen</title>"), "no title");
    Ok(())
}

/// A user's actions, and what is seen then.
const HANDS: &str = r##"(async () => {
  const seen = {};
  const one = (place) => document.querySelector(place);
  const bars = () => document.querySelectorAll("[data-call]").length;
  const rows = () => document.querySelectorAll("[data-row]").length;
  const turn = () => new Promise((done) => setTimeout(done, 50));
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const type = async (text) => {
    one("#filter").value = text;
    one("#filter").dispatchEvent(new Event("input"));
    await turn();
  };
  const head = (title) => [...document.querySelectorAll("#calls th button")].find((it) => it.textContent === title);
  const panel = () => (one("#details").hidden ? "" : one("#details-title").textContent);
  await turn();
  seen.all = bars();
  await type("EXPORT_album ada-phone");
  seen.filtered = [bars(), rows(), one("#said").textContent];
  await type("no such thing");
  seen.none = one(".empty").textContent;
  await type("");
  one("#endings input").click();
  seen.notOk = [bars(), rows()];
  one("#endings input").click();
  seen.again = bars();

  one("#lanes").focus();
  const times = () => one("#axis .time:nth-of-type(3)").textContent + " to " + [...document.querySelectorAll("#axis .time")].pop().textContent;
  const fitted = times();
  for (const _ of "1234") press("+");
  seen.zoomed = [times() !== fitted, bars() < seen.all && bars() > 0];
  press("0");
  seen.fits = times() === fitted;
  const box = one("#bars").getBoundingClientRect();
  one("#bars").dispatchEvent(new WheelEvent("wheel",
    { deltaY: -600, ctrlKey: true, clientX: box.left + 900, clientY: box.top + 20, bubbles: true, cancelable: true }));
  seen.wheel = times() !== fitted;
  one("#buttons button[aria-label^=Fit]").click();
  seen.fitsAgain = times() === fitted;

  one("#lanes").focus();
  press("ArrowRight");
  press("ArrowRight");
  const second = document.activeElement.getAttribute("aria-label");
  press("Enter");
  seen.opened = [second.startsWith(panel() + ","), document.activeElement.id];
  press("Escape");
  seen.closed = [panel(), document.activeElement.getAttribute("aria-label") === second];
  one("[data-call].lost").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  seen.clicked = [panel(), one("#details .verdict").textContent, location.hash.startsWith("#call=")];
  press("Escape");

  head("Took").click();
  head("Took").click();
  seen.longest = [one('[data-row="0"] td:nth-child(9)').textContent, one("#calls [aria-sort]").getAttribute("aria-sort")];
  one('[data-row="0"]').focus();
  press("ArrowDown");
  const row = document.activeElement.dataset.row;
  press("Enter");
  seen.row = [row, panel() !== ""];
  press("Escape");
  seen.rowAgain = document.activeElement.dataset.row;
  const told = document.createElement("pre");
  told.id = "hands";
  told.textContent = JSON.stringify(seen);
  document.querySelector("main").append(told);
})().catch((error) => console.error(error.stack));"##;

async fn keys_pointer_filter_and_headings_work() -> anyhow::Result<()> {
    let sample = afternoon();
    let calls = sample.calls.len();
    let not_ok = sample.calls.iter().filter(|call| call.outcome != RecordedOutcome::Ok).count();
    let hash = BASE64.encode(Sha256::digest(HANDS.as_bytes()));
    let page = sample
        .page("Kitchen")
        .replacen("script-src ", &format!("script-src 'sha256-{hash}' "), 1)
        .replacen("</body>", &format!("<script>{HANDS}</script></body>"), 1);
    let seen = open("hands", &page, "").await?;
    seen.has_no_errors()?;
    let told =
        seen.document.split_once("id=\"hands\">").context("the script of user actions did not finish")?.1;
    let told: Value = serde_json::from_str(told.split_once('<').context("the end of its output")?.0)?;
    let expected = json!({
        "all": calls,
        "filtered": [4, 4, format!("4 of {calls} calls")],
        "none": "No call fits the filter.",
        "notOk": [not_ok, not_ok],
        "again": calls,
        "zoomed": [true, true],
        "fits": true,
        "wheel": true,
        "fitsAgain": true,
        "opened": [true, "details-title"],
        "closed": ["", true],
        "clicked": ["export_album", "L lost: ada-phone left and did not come back in time", true],
        "longest": ["21.40 s", "descending"],
        "row": ["1", true],
        "rowAgain": "1",
    });
    ensure!(told == expected, "{told:#}");
    Ok(())
}

async fn call_named_in_the_address_is_open_with_its_frames() -> anyhow::Result<()> {
    let sample = afternoon();
    let call = sample.calls.iter().position(|call| call.stopped.is_some() && call.settled.is_some());
    let call = sample.calls[call.context("no stopped call")?].id.clone();
    let seen = open("address", &sample.page("Kitchen"), &format!("#call={call}")).await?;
    seen.has_no_errors()?;
    let panel = seen.body().split_once("<aside").context("no panel")?.1;
    ensure!(!panel.split_once('>').context("no panel")?.0.contains("hidden"), "the panel is hidden");
    for text in [call.as_str(), "ToolUseRequest", "ControlStop", "<pre", "\"toolName\"", "traceparent"] {
        ensure!(panel.contains(text), "no {text} in {panel}");
    }
    Ok(())
}

async fn result_is_drawn_as_a_person_sees_it() -> anyhow::Result<()> {
    for (tool, texts) in [
        (
            "edit_note",
            &[
                "<div class=\"line removed\">-- cream</div>",
                "<div class=\"line added\">+- wine</div>",
                "<span class=\"what\">exit status 0</span>",
                "<div class=\"line mono\">1 note sorted</div>",
                "<span class=\"what\">notes/index.md</span>",
                "<div class=\"line added\">+6 entries</div>",
                "<a href=\"https://notes.example/shopping\" target=\"_blank\" rel=\"noopener noreferrer\">",
                "Document of mcp",
            ][..],
        ),
        ("book_table", &["1. Guests (required, integer from 1 to 12, default 2)", "[Book]", "does not run"]),
        (
            "show_recipe",
            &[
                "<div class=\"line heading\">Spaghetti",
                "<span class=\"strong\">four</span>",
                "image/png, 12.4 KB",
            ],
        ),
    ] {
        let sample = afternoon();
        let ok = |call: &&RecordedCall| call.tool == tool && call.outcome == RecordedOutcome::Ok;
        let call = sample.calls.iter().find(ok).context("no such call")?.id.clone();
        let seen = open(tool, &sample.page("Kitchen"), &format!("#call={call}")).await?;
        seen.has_no_errors()?;
        let panel = seen.body().split_once("<aside").context("no panel")?.1;
        for text in texts {
            ensure!(panel.contains(text), "no {text} in {panel}");
        }
        ensure!(!panel.contains("<img"), "an image was made");
    }
    Ok(())
}

async fn reported_call_shows_its_kind_and_files() -> anyhow::Result<()> {
    let seen = open("reported", &afternoon().page("Kitchen"), &format!("#call={REPORTED}")).await?;
    seen.has_no_errors()?;
    let panel = seen.body().split_once("<aside").context("no panel")?.1;
    for (name, value) in
        [("Does", "Edit the recipe"), ("Kind", "edit"), ("Files", "/srv/recipe.md:3, /srv/index.md")]
    {
        ensure!(panel.contains(&format!("<dt>{name}</dt><dd>{value}</dd>")), "no {name} in {panel}");
    }
    Ok(())
}

async fn view_is_drawn_as_a_person_sees_it() -> anyhow::Result<()> {
    let seen = open("views", &afternoon().page("Kitchen"), "").await?;
    seen.has_no_errors()?;
    let views = seen.body().split_once("id=\"views\"").context("no views")?.1;
    let views = views.split_once("</section>").context("no end of the views")?.0;
    ensure!(views.matches("data-view=\"coder/plan\"").count() == 2, "{views}");
    ensure!(
        views.contains("plan, 1 of 2 done") && views.contains("plan, 2 of 2 done · assistant"),
        "{views}"
    );
    // The latest state of each is open.
    ensure!(!views.contains("→ Write it down"), "{views}");
    for line in ["✓ Find the recipe", "✓ Write it down", "The oven has 180 °C."] {
        ensure!(views.contains(&format!("<div class=\"line plain\">{line}</div>")), "no {line} in {views}");
    }
    Ok(())
}

async fn empty_recording_makes_a_page_that_says_so() -> anyhow::Result<()> {
    let seen = open("empty", &Sample::default().page("Nothing"), "").await?;
    seen.has_no_errors()?;
    ensure!(seen.count("There are no calls in this recording.") == 1, "{}", seen.body());
    ensure!(seen.count("id=\"views\"") == 1 && seen.count("data-view") == 0, "{}", seen.body());
    ensure!(seen.count("data-row=\"") == 0 && seen.count("data-call=\"") == 0, "{}", seen.body());
    Ok(())
}

async fn fifty_thousand_calls_are_drawn_as_counts_and_a_window_of_rows() -> anyhow::Result<()> {
    let page = tokio::task::spawn_blocking(|| long(50_000).page("An hour")).await?;
    let seen = open("long", &page, "").await?;
    seen.has_no_errors()?;
    ensure!(seen.document.contains("data-dense=\"true\""), "not aggregated");
    ensure!(seen.count("class=\"column\"") > 100, "{} columns", seen.count("class=\"column\""));
    ensure!(seen.count("aria-rowcount=\"50001\"") == 1, "the number of rows is missing");
    ensure!((10..200).contains(&seen.count("data-row=\"")), "{} rows", seen.count("data-row=\""));
    ensure!(seen.body().len() < 1 << 20, "{} bytes are drawn", seen.body().len());
    Ok(())
}

/// The distinct heights at which calls are drawn.
fn rows_of_bars(seen: &Seen) -> BTreeSet<&str> {
    let bars = seen.body().split("<rect y=\"").skip(1);
    let runs = bars.filter(|it| it.split('>').next().is_some_and(|tag| tag.contains("class=\"run\"")));
    runs.filter_map(|it| it.split('"').next()).collect()
}

async fn calls_one_after_another_share_a_row() -> anyhow::Result<()> {
    // Three owners in turn; on the page their calls are closer together than the minimum width of a bar.
    let seen = open("rows", &long(1_500).page("An hour"), "").await?;
    seen.has_no_errors()?;
    ensure!(seen.count("data-call=\"") == 1_500, "{} bars", seen.count("data-call=\""));
    let rows = rows_of_bars(&seen);
    ensure!(rows.len() == 3, "a row for each of three owners, not {rows:?}");
    Ok(())
}

async fn many_calls_have_a_density_strip_and_a_latency_chart() -> anyhow::Result<()> {
    let few = open("few", &long(200).page("An hour"), "").await?;
    few.has_no_errors()?;
    ensure!(few.count("class=\"strip\"") == 0 && few.count("<circle") == 0, "{}", few.body());
    let many = open("many", &long(600).page("An hour"), "").await?;
    many.has_no_errors()?;
    ensure!(many.count("class=\"strip\"") == 1 && many.count("class=\"chart\"") == 1, "{}", many.body());
    ensure!(many.count("class=\"dot run ok\"") > 300, "{} dots", many.count("class=\"dot run ok\""));
    ensure!(many.count("class=\"dot run timeout\"") == 12, "{}", many.count("class=\"dot run timeout\""));
    Ok(())
}

/// The most calls that are open at one time.
fn most_at_a_time(sample: &Sample) -> i64 {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for call in &sample.calls {
        let (Some(begun), Some(ended)) = (call.requested, call.settled) else { continue };
        changes.extend([(begun.0, 1), (ended.0, -1)]);
    }
    changes.sort_unstable();
    let (mut open, mut most) = (0, 0);
    for (_, change) in changes {
        open += change;
        most = most.max(open);
    }
    most
}

async fn calls_at_a_time_do_not_depend_on_the_width_of_the_window() -> anyhow::Result<()> {
    for calls in [600, 9_000] {
        let most = most_at_a_time(&long(calls));
        let page = long(calls).page("An hour");
        for width in [700, 1_400, 2_300] {
            let seen = open_wide("width", &page, "", width).await?;
            seen.has_no_errors()?;
            let strip = seen.body().split("class=\"strip\"").nth(1).context("no strip")?;
            let label = strip.split("class=\"small most\"").nth(1).context("no number")?;
            let label = label.split('>').nth(1).and_then(|it| it.split('<').next());
            ensure!(label == Some(&most.to_string()), "{calls} calls in {width} px: {label:?}, not {most}");
        }
    }
    Ok(())
}

async fn chosen_call_has_a_marked_row() -> anyhow::Result<()> {
    let seen = open("chosen", &long(600).page("An hour"), "#call=call-301").await?;
    seen.has_no_errors()?;
    ensure!(seen.count("aria-current=\"true\"") == 1, "{} rows are marked", seen.count("aria-current"));
    let row = seen.body().split("<tr ").find(|row| row.contains("aria-current")).context("no row")?;
    ensure!(row.contains("call-301"), "{row}");
    ensure!(
        seen.count("bar ok chosen") == 1 && seen.count("<circle class=\"chosen\"") == 1,
        "the bar or the dot is not marked"
    );
    Ok(())
}

async fn times_of_an_observer_are_labelled() -> anyhow::Result<()> {
    let observed = |role: &str| {
        let mut sample = long(300);
        let (identity, sid) = ("eye".into(), "PA_eye".into());
        sample.event(0, RoomEvent::Here { identity, sid, room: "kitchen".to_owned() });
        let (identity, sid, role) = ("eye".into(), "PA_eye".into(), Some(role.to_owned()));
        sample.event(0, RoomEvent::Joined { identity, sid, agent: false, role, protocol: 0 });
        sample.page("Observed")
    };
    let seen = open("observer", &observed("observer"), "#call=call-7").await?;
    seen.has_no_errors()?;
    for text in
        ["An observer recorded this.", "(as heard)", "as the observer heard", "when the observer heard it"]
    {
        ensure!(seen.count(text) > 0, "no {text:?}");
    }
    let seen = open("client", &observed("client"), "#call=call-7").await?;
    ensure!(
        seen.count("as heard") == 0 && seen.count("An observer recorded") == 0,
        "the recording is not an observer's"
    );
    Ok(())
}

async fn sec_c3_hostile_text_adds_nothing_to_the_page() -> anyhow::Result<()> {
    let page = hostile().page(HOSTILE);
    let seen = open("hostile", &page, "").await?;
    ensure!(seen.count("class=\"line plain\">→ &lt;/script&gt;") == 1, "the step of the plan is not shown");
    seen.has_no_errors()?;
    ensure!(seen.count("data-call=\"") == 1, "{} bars", seen.count("data-call=\""));
    ensure!(seen.count("<img") == 0 && seen.count("<script") == 0, "text of the recording became an element");
    // In text it is escaped; in an attribute's value Chromium may write it unescaped, between the quotes.
    ensure!(
        seen.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{1b}[31m") > 0,
        "the text is not shown"
    );
    let unseen = ['\u{202e}', '\u{1b}', '\u{2028}', '\u{200b}'];
    ensure!(!seen.document.contains(unseen), "a control character is in the document");
    Ok(())
}

async fn sec_c3_content_policy_refuses_any_other_script_and_style() -> anyhow::Result<()> {
    let page = afternoon().page("Kitchen").replace(
        "</main>",
        "</main><script>document.title = 'taken'</script><style>main { display: none }</style><img src=\"x.png\">",
    );
    let seen = open("policy", &page, "").await?;
    let told = |word: &str| seen.console.iter().any(|line| line.contains(word));
    ensure!(told("script-src") && told("style-src") && told("img-src"), "{:#?}", seen.console);
    ensure!(seen.document.contains("<title>Kitchen</title>"), "the foreign script ran");
    Ok(())
}
