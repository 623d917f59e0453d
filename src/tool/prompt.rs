//! Holds the questions to the person at a client (`wire.md`, section 4.10), and the answers.
//!
//! A prompt is a call of a reserved tool, which a client accepts from its bound assistant without registering it.
//! This module defines the questions, the answers, and the limits of both.

mod answer;
mod question;

pub use answer::{Decision, PromptAnswer};
pub use question::{
    AuthorizePrompt, ChoicePrompt, FormPrompt, PermissionOption, PermissionPrompt, PromptedCall,
};

use super::{ErrorCode, ToolError, ToolName};
use crate::value::{DecodeError, EncodeError, Value};

/// The longest text that is shown or spoken, in bytes, because a person may have to listen to it.
pub const MAX_PROMPT_TEXT: usize = 1_024;

/// The longest label of an option or choice, and the longest name, in bytes.
pub const MAX_PROMPT_LABEL: usize = 256;

/// The most options or choices of one question, because a person may have to listen to them.
pub const MAX_PROMPT_CHOICES: usize = 32;

/// The longest URL of a sign-in page, in bytes.
pub const MAX_PROMPT_URL: usize = 4_096;

/// The largest schema, appearance or default data of a form, in bytes each: the limit of a tool's schema.
pub const MAX_PROMPT_SCHEMA: usize = 16 * 1_024;

/// A question to the person at a client.
///
/// It serializes to the parameters of a call of its tool:
///
/// ```no_run
/// use toolbridge::{Assistant, prompt::{PermissionPrompt, PromptAnswer, PromptedCall}};
///
/// # async fn ask(assistant: Assistant) -> Result<(), Box<dyn std::error::Error>> {
/// let ask = PermissionPrompt::new(PromptedCall::new("erase_album"))
///     .text("Erase the album Rome?")
///     .option("yes", "Yes, this time", "allow_once")
///     .option("no", "No", "reject_once");
/// let answer: PromptAnswer = assistant
///     .call("bridge.permission", &ask)
///     .timeout(std::time::Duration::from_secs(60))
///     .await?
///     .decode()?;
/// let allowed = ask.chosen(&answer).is_some_and(|option| option.allows());
/// # let _ = allowed;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// `bridge.permission`: asks whether calls may be made.
    Permission(PermissionPrompt),
    /// `bridge.choose`: asks for one of several choices.
    Choose(ChoicePrompt),
    /// `bridge.authorize`: asks the person to sign in.
    Authorize(AuthorizePrompt),
    /// `bridge.form`: asks the person to fill in a form.
    Form(FormPrompt),
}

impl Prompt {
    /// Reads the question from the parameters of a call.
    ///
    /// # Errors
    /// `unknown_tool` if the tool is not a prompt, `invalid_parameters` with the path of the invalid value.
    pub fn read(tool: &ToolName, parameters: &Value) -> Result<Self, ToolError> {
        let refuse = |error: DecodeError| invalid(format!("the parameters are not those of {tool}: {error}"));
        let prompt = match tool.as_str() {
            "bridge.permission" => Self::Permission(parameters.decode().map_err(refuse)?),
            "bridge.choose" => Self::Choose(parameters.decode().map_err(refuse)?),
            "bridge.authorize" => Self::Authorize(parameters.decode().map_err(refuse)?),
            "bridge.form" => Self::Form(parameters.decode().map_err(refuse)?),
            _ => return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, format!("{tool} is not a prompt"))),
        };
        let checked = match &prompt {
            Self::Permission(ask) => ask.check(),
            Self::Choose(ask) => ask.check(),
            Self::Authorize(ask) => ask.check(),
            Self::Form(ask) => ask.check(),
        };
        checked.map_err(invalid)?;
        Ok(prompt)
    }

    /// Returns the parameters of the call that asks it.
    ///
    /// # Errors
    /// A form's data cannot be encoded.
    pub fn parameters(&self) -> Result<Value, EncodeError> {
        match self {
            Self::Permission(ask) => Value::encode(ask),
            Self::Choose(ask) => Value::encode(ask),
            Self::Authorize(ask) => Value::encode(ask),
            Self::Form(ask) => Value::encode(ask),
        }
    }

    /// Returns the name of the tool whose parameters it is.
    pub fn tool(&self) -> &'static str {
        match self {
            Self::Permission(_) => "bridge.permission",
            Self::Choose(_) => "bridge.choose",
            Self::Authorize(_) => "bridge.authorize",
            Self::Form(_) => "bridge.form",
        }
    }

    /// Returns the text of the question, to be shown or spoken, if it has one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Permission(ask) => ask.text.as_deref(),
            Self::Choose(ask) => Some(&ask.text),
            Self::Authorize(ask) => ask.text.as_deref(),
            Self::Form(ask) => ask.text.as_deref(),
        }
    }

    /// Returns the result of the call, if this answer fits the question.
    ///
    /// # Errors
    /// `execution_error` if the answer does not fit the question: an option that was not offered, or an outcome of
    /// another kind of prompt.
    pub fn answered(&self, answer: &PromptAnswer) -> Result<Value, ToolError> {
        let fits = match (self, answer.outcome) {
            (_, Decision::Cancelled) => true,
            (Self::Permission(ask), Decision::Selected) => ask.chosen(answer).is_some(),
            (Self::Choose(ask), Decision::Selected) => ask.chosen(answer).is_some(),
            (Self::Authorize(_), Decision::Done | Decision::Declined) => true,
            (Self::Form(_), Decision::Submitted) => answer.data.as_ref().is_some_and(Value::is_map),
            (Self::Form(_), Decision::Declined) => true,
            _ => false,
        };
        if !fits {
            let text = format!("the answer does not fit {}", self.tool());
            return Err(ToolError::new(ErrorCode::EXECUTION_ERROR, text));
        }
        Ok(Value::encode(answer)?)
    }
}

impl From<PermissionPrompt> for Prompt {
    fn from(ask: PermissionPrompt) -> Self {
        Self::Permission(ask)
    }
}

impl From<ChoicePrompt> for Prompt {
    fn from(ask: ChoicePrompt) -> Self {
        Self::Choose(ask)
    }
}

impl From<AuthorizePrompt> for Prompt {
    fn from(ask: AuthorizePrompt) -> Self {
        Self::Authorize(ask)
    }
}

impl From<FormPrompt> for Prompt {
    fn from(ask: FormPrompt) -> Self {
        Self::Form(ask)
    }
}

fn invalid(text: String) -> ToolError {
    ToolError::new(ErrorCode::INVALID_PARAMETERS, text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(tool: &str, parameters: Json) -> Result<Prompt, String> {
        let tool: ToolName = tool.parse().unwrap();
        Prompt::read(&tool, &Value::from(parameters)).map_err(|error| {
            assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
            error.message().to_owned()
        })
    }

    fn permission() -> Json {
        json!({
            "text": "May it edit two files?",
            "toolCall": {
                "toolCallId": "c1", "name": "edit", "title": "Edit main.rs", "kind": "edit",
                "rawInput": {"path": "/x", "size": 18446744073709551615u64},
                "locations": [{"path": "/x", "line": 3}, {"path": "/y"}],
                "content": [{"type": "diff", "path": "/x", "oldText": null, "newText": "a"}],
            },
            "others": [{"title": "Edit lib.rs"}],
            "options": [
                {"optionId": "y", "name": "Yes", "kind": "allow_once"},
                {"optionId": "a", "name": "Always", "kind": "allow_always"},
                {"optionId": "n", "name": "No", "kind": "reject_once"},
                {"optionId": "o", "name": "Odd", "kind": "someday"},
            ],
        })
    }

    #[test]
    fn every_prompt_round_trips() {
        let all = [
            ("bridge.permission", permission()),
            ("bridge.choose", json!({"text": "Which?", "choices": ["a", "b"], "default": 1})),
            (
                "bridge.authorize",
                json!({"text": "Sign in", "service": "calendar", "url": "https://x.example/a?b=c"}),
            ),
            (
                "bridge.form",
                json!({
                    "text": "Where to?", "name": "trip", "schema": {"type": "object"},
                    "uiSchema": {"ui:order": ["to"]}, "data": {"to": "Rome"},
                }),
            ),
        ];
        for (tool, parameters) in all {
            let prompt = read(tool, parameters.clone()).unwrap();
            assert_eq!(prompt.tool(), tool);
            assert!(prompt.text().is_some());
            let again = match &prompt {
                Prompt::Permission(ask) => Value::encode(ask),
                Prompt::Choose(ask) => Value::encode(ask),
                Prompt::Authorize(ask) => Value::encode(ask),
                Prompt::Form(ask) => Value::encode(ask),
            };
            assert_eq!(again.unwrap().to_json(), parameters);
        }
    }

    #[test]
    fn excess_or_missing_value_is_refused_with_its_path() {
        let with = |path: &str, value: Json| {
            let mut parameters = permission();
            *parameters.pointer_mut(path).unwrap() = value;
            read("bridge.permission", parameters).unwrap_err()
        };
        assert!(with("/text", json!("x".repeat(1_025))).contains("text has 1025 bytes; the limit is 1024"));
        assert!(with("/options", json!([])).contains("options has 0 entries, 1 to 32 are allowed"));
        assert!(with("/options/1/optionId", json!("y")).contains("options[1].optionId appears twice"));
        assert!(with("/options/0/name", json!("x".repeat(257))).contains("options[0].name has 257 bytes"));
        assert!(with("/others", json!([{}])).contains("others[0] has neither name nor title"));
        assert!(with("/toolCall", json!(1)).contains("bridge.permission"));
        let choose = |parameters| read("bridge.choose", parameters).unwrap_err();
        assert!(choose(json!({"text": "?", "choices": ["a"], "default": 1})).contains("default is 1"));
        assert!(choose(json!({"text": "", "choices": ["a"]})).contains("text is empty"));
        assert!(choose(json!({"choices": ["a"]})).contains("text"));
        let form = |parameters| read("bridge.form", parameters).unwrap_err();
        assert!(form(json!({"schema": []})).contains("schema is not a map"));
        assert!(form(json!({"schema": {"x": "y".repeat(20_000)}})).contains("schema has 20"));
    }

    #[test]
    fn sec_c3_sign_in_address_must_use_https() {
        let url = |url: &str| read("bridge.authorize", json!({"url": url}));
        assert!(url("https://login.example/oauth?client=1").is_ok());
        for bad in [
            "http://x.example",
            "javascript:alert(1)",
            "https://",
            "HTTPS//x",
            "https://x y",
            "https://x\u{202e}y",
            "https://x\ny",
            "file:///etc/passwd",
            "https:///path",
            "https://good.example@evil.example/",
        ] {
            assert!(url(bad).unwrap_err().contains("url"), "{bad}");
        }
        assert!(url(&format!("https://x.example/{}", "y".repeat(4_096))).is_err());
    }

    #[test]
    fn answer_must_fit_its_question() {
        let ask = read("bridge.permission", permission()).unwrap();
        assert!(ask.answered(&PromptAnswer::selected("a")).is_ok());
        assert!(ask.answered(&PromptAnswer::cancelled()).is_ok());
        assert!(ask.answered(&PromptAnswer::selected("maybe")).is_err());
        assert!(ask.answered(&PromptAnswer::choice(0)).is_err());
        assert!(ask.answered(&PromptAnswer::done()).is_err());
        let ask = read("bridge.choose", json!({"text": "?", "choices": ["a", "b"]})).unwrap();
        let body = ask.answered(&PromptAnswer::choice(1).text("the second")).unwrap();
        assert_eq!(body.to_json(), json!({"outcome": "selected", "selected": 1, "text": "the second"}));
        assert!(ask.answered(&PromptAnswer::choice(2)).is_err());
        let ask = read("bridge.form", json!({"schema": {}})).unwrap();
        let data = PromptAnswer::submitted(&json!({"to": "Rome"})).unwrap();
        assert_eq!(
            ask.answered(&data).unwrap().to_json(),
            json!({"outcome": "submitted", "data": {"to": "Rome"}})
        );
        assert!(ask.answered(&PromptAnswer::submitted(&1).unwrap()).is_err());
        assert!(ask.answered(&PromptAnswer::declined()).is_ok());
    }

    #[test]
    fn only_an_offered_allowing_option_gives_permission() {
        let Ok(Prompt::Permission(ask)) = read("bridge.permission", permission()) else { unreachable!() };
        let allows = |answer: Json| {
            let answer: PromptAnswer = Value::from(answer).decode().unwrap();
            ask.chosen(&answer).is_some_and(PermissionOption::allows)
        };
        assert!(allows(json!({"outcome": "selected", "optionId": "y"})));
        assert!(allows(json!({"outcome": "selected", "optionId": "a"})));
        for no in [
            json!({"outcome": "selected", "optionId": "n"}),
            json!({"outcome": "selected", "optionId": "o"}),
            json!({"outcome": "selected", "optionId": "Y"}),
            json!({"outcome": "selected"}),
            json!({"outcome": "cancelled", "optionId": "y"}),
            json!({"outcome": "surely", "optionId": "y"}),
        ] {
            assert!(!allows(no.clone()), "{no}");
        }
    }

    #[test]
    fn debug_output_hides_question_and_answer() {
        let secret = "hunter2";
        let ask = read("bridge.authorize", json!({"url": format!("https://x.example/{secret}")})).unwrap();
        let answer = PromptAnswer::submitted(&json!({"word": secret})).unwrap().text(secret);
        let mut all = permission();
        all["text"] = secret.into();
        all["toolCall"]["title"] = secret.into();
        let permission = read("bridge.permission", all).unwrap();
        for shown in [format!("{ask:?}"), format!("{answer:?}"), format!("{permission:?}")] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
