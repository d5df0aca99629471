//! The body of `/v1/chat/completions`.

use oss_engine::{
    ChatRequest, Engine, Message, Prompt, ReasoningEffort, Request, Tool, ToolChoice,
};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::clock;
use crate::read::Call;
use crate::read::common::{Common, MOST_LOGPROBS};
use crate::read::fields::{Fields, missing, short};
use crate::refusal::{Names, Refusal};

/// A conversation to answer.
pub(crate) struct ChatCall {
    pub(crate) common: Common,
    pub(crate) chat: ChatRequest,
    /// Whether the answer's reasoning is sent.
    pub(crate) include_reasoning: bool,
}

impl Call for ChatCall {
    fn read(app: &App, engine: &Engine, body: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::parse(body)?;
        app.check_model(fields.take::<String>("model")?.as_deref())?;
        refuse(&mut fields)?;
        let mut common = Common::read(&mut fields)?;
        common.max_tokens = max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"])?;
        common.logprobs = logprobs(&mut fields)?;
        let messages: Vec<Message> = fields.list("messages")?.ok_or_else(|| missing("messages"))?;
        if messages.is_empty() {
            return Err(Refusal::field("messages", "got none, expected at least 1"));
        }
        let mut call = Self::of(app, engine, &mut fields, common, messages, |fields| {
            effort("reasoning_effort", fields.take("reasoning_effort")?)
        })?;
        call.include_reasoning = fields.take("include_reasoning")?.unwrap_or(true);
        Ok(call)
    }

    fn names(&self) -> Names {
        Names::of("messages")
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn weight(&self, body: usize) -> usize {
        let compiles = self.common.format.is_some() || self.chat.compiles_grammar();
        if compiles { usize::MAX } else { body }
    }

    fn requests(
        self,
        _engine: &Engine,
    ) -> Result<impl ExactSizeIterator<Item = Request> + Send, Refusal> {
        let Self { common, mut chat, .. } = self;
        Ok((0..common.n).map(move |choice| {
            let last = choice + 1 == common.n;
            let own = if last { std::mem::take(&mut chat) } else { chat.clone() };
            common.request(Prompt::Chat(Box::new(own)), choice)
        }))
    }
}

impl ChatCall {
    /// The call of a conversation of `messages`, with what chats and responses say of it in fields
    /// of the same names; `effort` reads how long the model shall think.
    ///
    /// # Errors
    /// A field of another type, or not supported.
    pub(crate) fn of(
        app: &App,
        engine: &Engine,
        fields: &mut Fields,
        common: Common,
        messages: Vec<Message>,
        effort: impl FnOnce(&mut Fields) -> Result<Option<ReasoningEffort>, Refusal>,
    ) -> Result<Self, Refusal> {
        let tools: Vec<Tool> = fields.list("tools")?.unwrap_or_default();
        let tool_choice = tool_choice(fields.take("tool_choice")?, engine)?;
        let parallel_calls = fields.take("parallel_tool_calls")?;
        let (chat_template_kwargs, effort_of_template) = template(fields, engine)?;
        let chat = ChatRequest {
            tools,
            tool_choice,
            reasoning_effort: effort(fields)?.or(effort_of_template),
            response_format: common.format.as_ref().and_then(|format| format.told.clone()),
            date: app.options.tell_date.then(clock::date),
            chat_template_kwargs,
            ..ChatRequest::new(messages)
        };
        known_tools(&chat, engine)?;
        apart(&common, &chat, engine)?;
        parallel(parallel_calls, &chat, engine)?;
        Ok(Self { common, chat, include_reasoning: true })
    }
}

/// What only chats can ask for and the engine does not do.
fn refuse(fields: &mut Fields) -> Result<(), Refusal> {
    // Nothing is kept, and nothing of the answer would tell.
    let _kept: Option<bool> = fields.take("store")?;
    fields.refuse("modalities", &[json!(["text"])])?;
    fields.refuse("verbosity", &[json!("medium")])?;
    fields.refuse("add_generation_prompt", &[json!(true)])?;
    fields.refuse("continue_final_message", &[json!(false)])?;
    fields.refuse("add_special_tokens", &[json!(false)])?;
    fields.refuse("skip_special_tokens", &[json!(true)])?;
    fields.refuse("echo", &[json!(false)])
}

/// The length limit, by the first of its names that is there.
pub(crate) fn max_tokens(fields: &mut Fields, names: &[&str]) -> Result<Option<usize>, Refusal> {
    let mut found = None;
    for name in names {
        let given: Option<usize> = fields.take(name)?;
        if given == Some(0) {
            return Err(Refusal::field(*name, "got 0, expected at least 1"));
        }
        found = found.or(given);
    }
    Ok(found)
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    let top: usize = fields.take("top_logprobs")?.unwrap_or(0);
    if top > MOST_LOGPROBS {
        return Err(Refusal::field(
            "top_logprobs",
            format!("got {top}, expected 0 to {MOST_LOGPROBS}"),
        ));
    }
    if top > 0 && !wanted {
        return Err(Refusal::field("top_logprobs", "got a number, expected logprobs: true"));
    }
    Ok(wanted.then_some(top))
}

/// How long the model shall think.
pub(crate) fn effort(
    name: &str,
    given: Option<String>,
) -> Result<Option<ReasoningEffort>, Refusal> {
    let Some(given) = given else { return Ok(None) };
    let efforts = [ReasoningEffort::Low, ReasoningEffort::Medium, ReasoningEffort::High];
    match efforts.into_iter().find(|effort| effort.name() == given) {
        Some(effort) => Ok(Some(effort)),
        None => Err(Refusal::unsupported(name, given, "low, medium or high")),
    }
}

/// The variables of the chat template. The harmony format has none: of what clients send as such,
/// how long to think is honoured, and the rest refused.
fn template(
    fields: &mut Fields,
    engine: &Engine,
) -> Result<(Map<String, Value>, Option<ReasoningEffort>), Refusal> {
    let name = "chat_template_kwargs";
    let variables: Map<String, Value> = fields.take(name)?.unwrap_or_default();
    if !engine.text().is_harmony() {
        return Ok((variables, None));
    }
    let mut variables = Fields::within(name, variables);
    let named = format!("{name}.reasoning_effort");
    let effort = effort(&named, variables.take("reasoning_effort")?)?;
    match variables.first() {
        None => Ok((Map::new(), effort)),
        Some((other, value)) => {
            let expected = "none but reasoning_effort: this model's format has no chat template";
            Err(Refusal::unsupported(name, format!("{other}: {}", short(value)), expected))
        }
    }
}

/// Whether tools are called. A call can be required where the format tells calls from answers.
fn tool_choice(choice: Option<Value>, engine: &Engine) -> Result<ToolChoice, Refusal> {
    let field = "tool_choice";
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    let (can_force, expected) = match engine.text().is_harmony() {
        true => (true, "auto, none, required or a function"),
        false => (false, "auto or none"),
    };
    match choice.as_str() {
        Some("auto") => return Ok(ToolChoice::Auto),
        Some("none") => return Ok(ToolChoice::None),
        Some("required") if can_force => return Ok(ToolChoice::Required),
        _ => {}
    }
    // Chat completions nest the name, responses do not.
    let function = choice.get("function").unwrap_or(&choice);
    let is_function = choice.get("type").and_then(Value::as_str) == Some("function");
    match function.get("name").and_then(Value::as_str).filter(|_| is_function && can_force) {
        Some(name) => Ok(ToolChoice::Function(name.to_owned())),
        None => Err(Refusal::unsupported(field, short(&choice), expected)),
    }
}

/// Refuses tools that a model would never hear of: not every chat template writes them.
fn known_tools(chat: &ChatRequest, engine: &Engine) -> Result<(), Refusal> {
    let text = engine.text();
    if chat.offered_tools().is_empty() || text.is_harmony() {
        return Ok(());
    }
    let without = ChatRequest { tools: Vec::new(), ..chat.clone() };
    // What cannot be rendered at all is refused with the template's own words, later.
    match (text.render(chat), text.render(&without)) {
        (Ok(with), Ok(without)) if with == without => {
            let expected = "none: this model's chat template does not write tools";
            Err(Refusal::unsupported("tools", chat.tools.len(), expected))
        }
        _ => Ok(()),
    }
}

/// Refuses a format beside tools where nothing tells a call from an answer: neither could be held.
fn apart(common: &Common, chat: &ChatRequest, engine: &Engine) -> Result<(), Refusal> {
    let without = common.format.is_none() || chat.offered_tools().is_empty();
    if without || engine.text().is_harmony() {
        return Ok(());
    }
    let expected = "none beside a format of the answer, with this model's chat template";
    Err(Refusal::unsupported("tools", chat.tools.len(), expected))
}

/// The harmony format waits after each call; with templates nothing keeps a model from several.
fn parallel(allowed: Option<bool>, chat: &ChatRequest, engine: &Engine) -> Result<(), Refusal> {
    match allowed {
        Some(false) if !chat.offered_tools().is_empty() && !engine.text().is_harmony() => {
            Err(Refusal::unsupported("parallel_tool_calls", false, "true"))
        }
        _ => Ok(()),
    }
}
