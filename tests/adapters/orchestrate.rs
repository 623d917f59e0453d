//! Results of watsonx Orchestrate in a room: their forms, what a person sees and hears, and the documents that IBM's own
//! package writes. Tests named `wxo_*` are rows of the systems' checklist.

use std::{fs, path::Path};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, Client, ToolName, ToolResult, Tools,
    adapter::{
        mcp::{CallToolResult, check_output},
        orchestrate::{Dialog, Form, FormError, InputKind, Submission},
    },
    chat,
    memory::MemoryRoom,
    prompt::PromptAnswer,
    result::{DisplayContent, DisplayKind, Widget},
    tools::{DataSchema, SchemaError},
};

fn fixtures() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/orchestrate");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn form_of(fixture: &str) -> Form {
    let text = fixtures().into_iter().find(|(name, _)| name == fixture).unwrap().1;
    Form::of(CallToolResult::read(&text).unwrap().result.widget().unwrap()).unwrap()
}

fn form(widget: Json) -> Form {
    Form::of(&Widget::new(widget)).unwrap()
}

fn any(tool: &str) -> Option<ToolName> {
    tool.parse().ok()
}

fn submit(form: &Form, data: &Json) -> Result<Json, String> {
    match form.submit(&PromptAnswer::submitted(data).unwrap(), any) {
        Ok(Submission::Call { tool, arguments }) => Ok(json!({ (tool.as_str()): arguments.to_json() })),
        Ok(Submission::Message(text)) => Ok(text.into()),
        Ok(_) => Ok(Json::Null),
        Err(error) => Err(error.to_string()),
    }
}

/// Has a client offer a tool that returns this result; returns what the model's call of it becomes.
async fn answered(result: ToolResult) -> chat::Answer {
    let room = MemoryRoom::new();
    let value = result.to_value();
    let tools = Tools::new().tool("t", "", move || std::future::ready(Ok(value.clone())));
    let _client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "t", "arguments": "{}"}});
    chat::answer(&assistant, &call).await
}

fn read(document: &Json) -> ToolResult {
    CallToolResult::read(&document.to_string()).unwrap().result
}

#[tokio::test(start_paused = true)]
async fn documents_of_ibms_package_cross_a_room_unchanged() {
    let all = fixtures();
    assert!(all.len() >= 39, "{} fixtures", all.len());
    for (name, text) in all {
        let read = CallToolResult::read(&text).unwrap();
        let answer = answered(read.result.clone()).await;
        assert_eq!(answer.result.native().unwrap().json(), text, "{name}");
        assert!(answer.result == read.result, "{name}");
        assert_eq!(CallToolResult::from(answer.result).write(), text, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn wxo_w5_text_for_the_person_is_exact_and_no_model_runs() {
    let text = "Your balance is  1.234,56 € – *exactly*.";
    let block = json!({"type": "text", "text": text, "annotations": {"audience": ["user"]}});
    let answer = answered(read(&json!({"content": [block]}))).await;
    assert_eq!(answer.spoken.as_deref(), Some(text));
    assert!(!answer.needs_model);
    assert_eq!(answer.context, Some(json!({"role": "assistant", "content": text})));
    let shown = answer.result.for_display(&[DisplayKind::Text, DisplayKind::Markdown]).unwrap();
    assert!(matches!(shown.content(), DisplayContent::Text(shown) if &**shown == text));
}

#[tokio::test(start_paused = true)]
async fn wxo_w9_text_for_the_person_and_widget_are_both_shown_without_the_model() {
    let text = fixtures().into_iter().find(|(name, _)| name == "class-date-picker").unwrap().1;
    let answer = answered(CallToolResult::read(&text).unwrap().result).await;
    assert!(!answer.needs_model);
    assert_eq!(answer.spoken.as_deref(), Some("Please fill in: Day"), "not the widget's title");
    assert!(Form::of(answer.result.widget().unwrap()).is_some());
    // Without such a text the title is spoken.
    let widget = answer.result.widget().unwrap().value().to_json();
    let alone = answered(read(&json!({"_meta": {"com.ibm.orchestrate/widget": widget}}))).await;
    assert_eq!((alone.spoken.as_deref(), alone.needs_model), (Some("Day"), false));
}

#[test]
fn wxo_w10_submitted_form_becomes_a_call_or_a_message() {
    let booked = form_of("class-number-input");
    let call = json!({"book": {"customer": 7, "form": {"seats": 3}}});
    assert_eq!(submit(&booked, &json!({"seats": 3})), Ok(call));
    let message = submit(&form_of("class-message-event"), &json!({"agree": true}));
    assert_eq!(message, Ok(json!("I have filled in the form.")));
    assert_eq!(submit(&form_of("class-no-event"), &json!({"email": "a"})), Ok(Json::Null));
    for nothing in [PromptAnswer::cancelled(), PromptAnswer::declined(), PromptAnswer::done()] {
        assert_eq!(booked.submit(&nothing, any), Ok(Submission::Nothing));
    }
    // A confirmation has a tool for each button.
    let confirmation = form_of("care-confirmation");
    assert_eq!(submit(&confirmation, &json!({"confirm": true})), Ok(json!({"transfer": {"id": 7}})));
    assert_eq!(submit(&confirmation, &json!({"confirm": false})), Ok(json!({"forget": {"id": 7}})));
    let declined = confirmation.submit(&PromptAnswer::declined(), any).unwrap();
    assert!(matches!(declined, Submission::Call { tool, .. } if tool.as_str() == "forget"));
    assert_eq!(confirmation.submit(&PromptAnswer::cancelled(), any), Ok(Submission::Nothing));
}

#[test]
fn wxo_w11_answer_is_checked_and_calls_only_tools_of_the_issuer() {
    let form = form_of("class-all-inputs");
    let full = json!({
        "email": "a@b.example", "agree": true, "color": "r", "city": "rome", "seats": 2, "day": "2026-03-02",
        "stay": ["2026-03-01", "2026-03-02"], "scan": [{"fileName": "a.pdf"}],
        "flight": [{"rowId": "1", "no": "LH 1", "at": "08:00"}],
    });
    assert!(submit(&form, &full).is_ok());
    for (key, value, rule) in [
        ("email", Json::Null, "at /email: its type must be string"),
        ("seats", json!(10), "at /seats: it must be at most 9"),
        ("color", json!("b"), "at /color: it must be one of"),
        ("admin", json!(true), "the schema has no property \"admin\""),
        ("day", json!("2026-02-30"), "\"day\": it must be a date"),
        ("stay", json!(["2026-03-05", "2026-03-01"]), "\"stay\": it must be two dates"),
        ("flight", json!([{"rowId": "9"}]), "\"flight\": it must be a list of the table's rows"),
    ] {
        let mut data = full.clone();
        data[key] = value;
        let error = submit(&form, &data).unwrap_err();
        assert!(error.contains(rule), "{key}: {error}");
    }
    let mut missing = full.clone();
    missing.as_object_mut().unwrap().remove("agree");
    assert!(submit(&form, &missing).unwrap_err().contains("/agree: it is required"));
    assert!(submit(&form, &json!(5)).is_err());

    // The tool must be the issuer's, and callable; its parameters are those of the stored form.
    let answer = PromptAnswer::submitted(&json!({"seats": 3, "customer": 8})).unwrap();
    assert!(matches!(
        form_of("class-number-input").submit(&answer, any),
        Err(FormError::Schema(SchemaError::Data(_)))
    ));
    let answer = PromptAnswer::submitted(&json!({"seats": 3})).unwrap();
    let refused = form_of("class-number-input").submit(&answer, |_| None);
    assert_eq!(refused, Err(FormError::Tool { tool: "book".into() }));
    let named = |tool: &str| any(&format!("ibm.{tool}"));
    let Ok(Submission::Call { tool, arguments }) = form_of("class-number-input").submit(&answer, named)
    else {
        panic!()
    };
    assert_eq!((tool.as_str(), arguments.get("customer").unwrap().to_json()), ("ibm.book", json!(7)));

    // A schema beyond the bounds is not compiled.
    let deep = (0..300).fold(json!({}), |inner, _| json!({"not": inner}));
    let event = json!({"tool": "book", "parameters": {}, "map_input_to": "x"});
    let schema = json!({"type": "object", "properties": {"a": deep}});
    let refused = Form::of(&Widget::new(json!({"json_schema": schema, "on_event": [event]})));
    let refused = refused.map(|form| form.submit(&answer, any));
    assert!(matches!(refused, None | Some(Err(FormError::Schema(SchemaError::Schema(_))))));
}

#[test]
fn wxo_w12_all_inputs_are_prompts_and_spoken_questions() {
    let form = form_of("class-all-inputs");
    let prompt = form.prompt().unwrap();
    assert_eq!(prompt.text.as_deref(), Some("Everything\nAll inputs"));
    assert_eq!(prompt.schema.get("properties/seats/maximum").unwrap().to_json(), json!(9));
    assert_eq!(prompt.data.unwrap().get("city"), None);
    let kinds: Vec<&InputKind> = form.inputs().iter().map(|input| &input.kind).collect();
    assert!(matches!(
        kinds[..],
        [
            InputKind::Text,
            InputKind::TextArea,
            InputKind::Radio(_),
            InputKind::Checkbox,
            InputKind::ComboBox(_),
            InputKind::Number,
            InputKind::Date,
            InputKind::DateRange,
            InputKind::FileUpload,
            InputKind::FileDownload,
            InputKind::Table { is_selectable: true, .. },
        ]
    ));
    let mut dialog = Dialog::new(&form);
    let mut said = Vec::new();
    for answer in [
        "ada@example.com",
        "skip",
        "Grün",
        "yes",
        "one",
        "three",
        "5 March 2026",
        "5 March 2026 to 7.3.2026",
        "what file?",
        "number 2",
    ] {
        said.push(dialog.question().unwrap());
        let is_free = matches!(answer, "ada@example.com" | "skip" | "what file?");
        assert!(is_free || dialog.answer("$%&!").is_err(), "{answer}");
        dialog.answer(answer).unwrap_or_else(|error| panic!("{answer}: {error}"));
    }
    assert_eq!(said[0], "Everything. All inputs. Email.");
    assert_eq!(said[2], "Color. 1: Red. 2: Grün. You can say: skip.");
    assert!(said[8].contains("A file cannot be given by voice"), "{}", said[8]);
    assert!(said[9].contains("1: LH 1, 08:00. 2: LH 2, 12:00."), "{}", said[9]);
    assert_eq!(dialog.question(), None);
    let data = dialog.finish().unwrap().data.unwrap().to_json();
    let expected = json!({
        "email": "ada@example.com", "color": "g", "agree": true, "city": "rome", "seats": 3, "day": "2026-03-05",
        "stay": ["2026-03-05", "2026-03-07"], "flight": [{"rowId": "2", "no": "LH 2", "at": "12:00"}],
    });
    assert_eq!(data, expected);
    assert!(submit(&form, &data).is_ok());
}

#[test]
fn customer_care_widgets_take_spoken_answers() {
    for (fixture, said, value) in [
        ("care-date", "March 5th, 2026", json!("2026-03-05")),
        ("care-time", "half past", Json::Null),
        ("care-time", "3 pm", json!("15:00")),
        ("care-time", "7 pm", Json::Null),
        ("care-datetime", "5 March 2026 at 3 pm", json!("2026-03-05T15:00")),
        ("care-date", "5 April 2026", Json::Null),
        ("care-integer", "twenty-five", json!(25)),
        ("care-currency", "€ 1,234.50", json!(1234.5)),
        ("care-percentage", "12 %", json!(12)),
        ("care-decimal", "three point five", json!(3.5)),
        ("care-phone", "0 30 12", json!("03012")),
        ("care-pin", "zero zero four two", json!("0042")),
        ("care-pin", "42", Json::Null),
        ("care-options", "two", json!("acc_2")),
        ("care-options", "savings", json!("acc_2")),
        ("care-options-several", "one and 2", json!("acc_1,acc_2")),
        ("care-text", "Ada", json!("Ada")),
        ("care-regex", "A12345678", json!("A12345678")),
    ] {
        let form = form_of(fixture);
        let mut dialog = Dialog::new(&form);
        if let Err(text) = dialog.answer(said) {
            assert!(value.is_null() && text.starts_with("Please "), "{fixture}: {text}");
            continue;
        }
        let call = submit(&form, &dialog.finish().unwrap().data.unwrap().to_json());
        assert_eq!(call, Ok(json!({"transfer": {"from": "a1", "value": value}})), "{fixture}");
    }
    assert!(submit(&form_of("care-integer"), &json!({"value": 100_000})).is_err());
    assert!(submit(&form_of("care-regex"), &json!({"value": "X1"})).is_err());
    let confirmation = form_of("care-confirmation");
    let question = Dialog::new(&confirmation).question().unwrap();
    assert_eq!(question, "Transfer 5 €? It cannot be undone.", "no menu");
}

#[test]
fn confirmation_with_an_unclear_answer_calls_nothing_and_is_asked_again() {
    let form = form_of("care-confirmation");
    let mut dialog = Dialog::new(&form);
    for unclear in ["Okay, cancel that", "Sure, but not now", "1 moment", "Yes?"] {
        assert_eq!(dialog.answer(unclear), Err("Please say yes or no.".into()), "{unclear}");
    }
    dialog.answer("Yes, please.").unwrap();
    let answer = dialog.finish().unwrap().data.unwrap().to_json();
    assert_eq!(submit(&form, &answer), Ok(json!({"transfer": {"id": 7}})));
}

#[test]
fn wxo_w13_unknown_widget_is_no_form() {
    for widget in [
        json!({"response_type": "user_defined", "user_defined": {"x": 1}}),
        json!({"type": "carousel", "on_event": {"tool": "t"}}),
        json!({"name": "w", "title": "As built", "inputs": [{"name": "email"}], "response_type": "forms"}),
        json!([1]),
        Json::Null,
    ] {
        assert_eq!(Form::of(&Widget::new(widget)), None);
    }
    // Odd parts are left out.
    let odd = form(
        json!({"json_schema": {"properties": {"a": 5}}, "ui_schema": [], "form_data": 7, "on_event": {"x": 1}}),
    );
    assert_eq!(odd.inputs()[0].kind, InputKind::Other);
    assert!(odd.prompt().is_ok() && submit(&odd, &json!({"a": 1})).is_err());
}

#[test]
fn wxo_w16_mismatch_with_the_output_schema_is_found() {
    let schema = DataSchema::compile(&json!({"type": "object", "required": ["cents"]})).unwrap();
    let of = |document: Json| check_output(&schema, &CallToolResult::read(&document.to_string()).unwrap());
    assert_eq!(of(json!({"structuredContent": {"cents": 5}})), Ok(()));
    assert_eq!(of(json!({"content": ["a"], "isError": true})), Ok(()));
    let mismatch = of(json!({"structuredContent": {}})).unwrap_err().to_string();
    assert_eq!(mismatch, "the data does not fit at /cents: it is required");
    assert!(of(json!({"content": ["a"]})).is_err());
    assert!(matches!(
        DataSchema::compile(&json!({"$ref": "https://x.example"})),
        Err(SchemaError::Schema(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn wxo_w20_chat_says_and_shows_each_text_to_its_audience() {
    let text = |text: &str, audience: &[&str]| json!({"type": "text", "text": text, "annotations": {"audience": audience}});
    let (person, model) = (text("Your balance is 5 €.", &["user"]), text("Offer a loan.", &["assistant"]));
    // What the model reads, what is said exactly, whether the model runs.
    for (content, reads, said, runs) in [
        (json!([person]), "", Some("Your balance is 5 €."), false),
        (json!([model]), "Offer a loan.", None, true),
        (json!([model, person]), "Offer a loan.", Some("Your balance is 5 €."), true),
        (json!([text("5 €", &["user", "assistant"])]), "5 €", None, true),
    ] {
        let answer = answered(read(&json!({ "content": content }))).await;
        let message: Json = serde_json::from_str(answer.message["content"].as_str().unwrap()).unwrap();
        assert_eq!(message["result"], reads, "{content}");
        assert_eq!((answer.spoken.as_deref(), answer.needs_model), (said, runs), "{content}");
        let context = said.map(|said| json!({"role": "assistant", "content": said}));
        assert_eq!(answer.context, context, "{content}");
        let shown = answer.result.for_display(&[DisplayKind::Text]);
        let shown = shown.as_ref().and_then(|it| match it.content() {
            DisplayContent::Text(text) => Some(&**text),
            _ => None,
        });
        assert_eq!(shown, said.or_else(|| (reads == "5 €").then_some("5 €")), "{content}");
    }
}

#[test]
fn form_larger_than_a_prompt_is_refused() {
    let properties: serde_json::Map<String, Json> = (0..300)
        .map(|n| (format!("input_{n}"), json!({"type": "string", "title": "x".repeat(60)})))
        .collect();
    let form = form(json!({"json_schema": {"properties": properties}, "form_data": {}}));
    assert_eq!(form.inputs().len(), 200);
    assert!(matches!(form.prompt(), Err(FormError::TooLarge { part: "schema", limit: 16_384, .. })));
}

#[test]
fn answer_with_too_many_values_for_its_choices_is_refused() {
    let choices: Vec<String> = (0..1_500).map(|n| n.to_string()).collect();
    let schema = json!({
        "type": "object",
        "title": "Pick",
        "properties": {"pick": {"type": "array", "items": {"type": "string", "enum": choices}}},
    });
    let form =
        Form::of(&Widget::new(json!({"json_schema": schema, "title": "Pick", "on_event": {"tool": "t"}})))
            .unwrap();
    let pick = |count: usize| submit(&form, &json!({"pick": vec!["1"; count]}));
    assert!(pick(1_500).is_ok());
    let refused = pick(100_000).unwrap_err();
    assert_eq!(refused, "the answer does not fit at \"Pick\": it has too many values for its choices");
}
