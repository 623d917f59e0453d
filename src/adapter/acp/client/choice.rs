//! Asks a person which of an agent's options to choose.

use std::time::Duration;

use tokio::time::timeout;

use super::shown::Question;
use crate::{
    prompt::{MAX_PROMPT_TEXT, PermissionOption, PermissionPrompt, PromptAnswer},
    value::abridged,
};

/// How long a person has to answer, from when the question is asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// How often a question is asked if the spoken answer does not name an option.
const MAX_ASKED: usize = 2;

/// The kinds of calls that change nothing. For any other, a spoken answer must name the option.
const HARMLESS: [&str; 4] = ["fetch", "read", "search", "think"];

/// Words that turn an answer into its opposite: "do not allow" also names the option "Allow".
const NEGATIONS: [&str; 8] = ["cannot", "don", "dont", "never", "no", "nope", "not", "without"];

/// Returns the option that the person chooses, if there is one in time and before the end of the turn.
pub(super) async fn chosen(
    prompt: &PermissionPrompt,
    kind: &str,
    question: &Question<'_>,
) -> Option<PermissionOption> {
    let mut prompt = prompt.clone();
    for _ in 0..MAX_ASKED {
        let answer = timeout(ANSWER_LIMIT, question.ask(prompt.clone())).await.ok()?.ok()?;
        let option = prompt.chosen(&answer)?.clone();
        // An option of an unknown kind may allow the call.
        let refuses = matches!(&*option.kind, "reject_once" | "reject_always");
        if refuses || is_clear(kind, &option, &prompt.options, &answer) {
            return Some(option);
        }
        let names: Vec<&str> = prompt.options.iter().map(|it| it.name.as_str()).collect();
        let text = format!(
            "{} Please say one of: {}.",
            prompt.text.as_deref().unwrap_or_default(),
            names.join(", ")
        );
        prompt.text = Some(abridged(&text, MAX_PROMPT_TEXT).into_owned());
    }
    None
}

/// Returns whether an answer is clear enough: what was said must not
/// be a refusal, and must name the option if the call changes something.
fn is_clear(
    kind: &str,
    option: &PermissionOption,
    options: &[PermissionOption],
    answer: &PromptAnswer,
) -> bool {
    let Some(said) = &answer.text else { return true }; // not spoken
    let said = words(said);
    let negates = |word: &String| NEGATIONS.contains(&word.as_str());
    if said.iter().any(|word| negates(word) && !words(&option.name).contains(word)) {
        return false;
    }
    if HARMLESS.contains(&kind) {
        return true;
    }
    let names = |option: &PermissionOption| {
        let name = words(&option.name);
        !name.is_empty() && said.windows(name.len()).any(|part| *part == name[..])
    };
    // The longest name counts: "allow" is part of "allow always".
    let longest = options.iter().filter(|it| names(it)).max_by_key(|it| words(&it.name).len());
    longest.is_some_and(|found| found.option_id == option.option_id)
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|it: char| !it.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::time::Instant;

    use super::*;
    use crate::{ToolContext, ToolError, adapter::acp::client::shown::TurnContext, prompt::PromptedCall};

    fn context() -> ToolContext {
        ToolContext::new("caller", Duration::from_secs(600))
    }

    fn option(id: &str, name: &str, kind: &str) -> PermissionOption {
        PermissionPrompt::new(PromptedCall::new("x")).option(id, name, kind).options.remove(0)
    }

    #[tokio::test(start_paused = true)]
    async fn acp_c11_person_who_is_silent_for_2_minutes_allows_nothing() {
        let prompt = PermissionPrompt::new(PromptedCall::new("x")).option("y", "Yes", "allow_once");
        let silent = context().with_answers(|_| std::future::pending::<Result<_, ToolError>>());
        let place = TurnContext::new(silent);
        let begun = Instant::now();
        let ask = async |kind| {
            let question = place.question().await.unwrap();
            (chosen(&prompt, kind, &question).await, begun.elapsed().as_secs())
        };
        // The time of the second question begins when the first one is over.
        let (first, second) = tokio::join!(ask("edit"), ask("read"));
        assert_eq!((first, second), ((None, 120), (None, 240)));
    }

    #[tokio::test]
    async fn acp_c8_spoken_answer_must_name_an_option_of_an_unknown_kind() {
        let prompt = PermissionPrompt::new(PromptedCall::new("x"))
            .option("o", "Go ahead", "someday")
            .option("n", "Stop it", "reject_once")
            .option("r", "Stop all", "reject_always");
        for (option, said, times, is_chosen) in
            [("o", "yes", 2, false), ("o", "go ahead", 1, true), ("n", "hm", 1, true), ("r", "hm", 1, true)]
        {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let answering = context().with_answers(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                async move { Ok(PromptAnswer::selected(option).text(said)) }
            });
            let place = TurnContext::new(answering);
            let chosen = chosen(&prompt, "edit", &place.question().await.unwrap()).await;
            assert_eq!(chosen.is_some_and(|it| it.option_id == option), is_chosen, "{said}");
            assert_eq!(asked.load(Ordering::Relaxed), times, "{said}");
        }
    }

    #[test]
    fn acp_c8_spoken_yes_to_a_change_must_name_the_option() {
        let options = [option("y", "Allow", "allow_once"), option("a", "Allow always", "allow_always")];
        let clear = |kind: &str, at: usize, said: &str| {
            is_clear(
                kind,
                &options[at],
                &options,
                &PromptAnswer::selected(&*options[at].option_id).text(said),
            )
        };
        for kind in ["edit", "delete", "move", "execute", "other", "unknown"] {
            assert!(!clear(kind, 0, "yes"), "{kind}");
            assert!(!clear(kind, 0, "sure, go ahead"), "{kind}");
            assert!(clear(kind, 0, "Allow it, please!"), "{kind}");
            assert!(!clear(kind, 0, "allow always"), "{kind}");
            assert!(clear(kind, 1, "I allow, allow ALWAYS"), "{kind}");
            assert!(!clear(kind, 1, "allow"), "{kind}");
        }
        for said in ["do not allow", "Don't allow it", "don’t allow", "never allow that", "No! Allow? No."]
        {
            assert!(!clear("edit", 0, said) && !clear("read", 0, said), "{said}");
        }
        let named = [option("y", "Do not ask, allow", "allow_once")];
        let answer = PromptAnswer::selected("y").text("do not ask, allow");
        assert!(is_clear("edit", &named[0], &named, &answer), "the option itself says not");
        assert!(clear("read", 0, "yes"));
        // A person who has touched the option has said nothing.
        assert!(is_clear("edit", &options[0], &options, &PromptAnswer::selected("y")));
    }
}
