//! What an engine tells a subscriber of `tracing`. Apart from the other tests: the subscriber is
//! the whole process's.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use oss_engine::{Engine, EngineOptions, Request, Speculation, Tune};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

/// Names and values of fields, as text.
type Fields = BTreeMap<&'static str, String>;

#[derive(Clone, Debug)]
struct Span {
    name: &'static str,
    level: Level,
    fields: Fields,
    entered: usize,
    exited: usize,
    /// Handles that are left; none: it is closed.
    handles: usize,
}

#[derive(Clone, Debug)]
struct Told {
    level: Level,
    /// The span that it belongs to, by name it or because it was entered.
    parent: Option<u64>,
    fields: Fields,
}

#[derive(Debug, Default)]
struct Log {
    spans: Vec<Span>,
    events: Vec<Told>,
}

/// Writes down the engine's spans and events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Log>>);

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Recorder {
    fn span(&self, id: &Id, change: impl FnOnce(&mut Span)) {
        change(&mut self.0.lock().unwrap().spans[id.into_u64() as usize - 1]);
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("oss_engine")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let (metadata, mut fields) = (attributes.metadata(), Fields::new());
        attributes.record(&mut Reader(&mut fields));
        let (name, level) = (metadata.name(), *metadata.level());
        let mut log = self.0.lock().unwrap();
        log.spans.push(Span { name, level, fields, entered: 0, exited: 0, handles: 1 });
        Id::from_u64(log.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.span(id, |span| values.record(&mut Reader(&mut span.fields)));
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        let (level, parent) = (*event.metadata().level(), event.parent().map(Id::into_u64));
        self.0.lock().unwrap().events.push(Told { level, parent, fields });
    }

    fn enter(&self, id: &Id) {
        self.span(id, |span| span.entered += 1);
    }

    fn exit(&self, id: &Id) {
        self.span(id, |span| span.exited += 1);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.span(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut closed = false;
        self.span(&id, |span| {
            span.handles -= 1;
            closed = span.handles == 0;
        });
        closed
    }
}

#[test]
fn requests_and_steps_are_spans_with_their_numbers() {
    const CHUNK: usize = 16;
    const TOKENS: usize = 6;
    let recorder = Recorder::default();
    tracing::subscriber::set_global_default(recorder.clone()).unwrap();
    let options = EngineOptions {
        threads: Some(1),
        tune: Tune::Off,
        prefill_chunk: Some(CHUNK),
        speculation: Speculation::Off,
        system_root: "/no/such/folder".into(),
        ..EngineOptions::default()
    };
    let engine = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap();
    let prompt = "Once upon a time there was a little dog. ".repeat(6);
    let request = || Request { ignore_eos: true, ..Request::text(&prompt).greedy() };
    let stream = engine.submit(request().max_tokens(TOKENS)).unwrap();
    let (id, prompt_tokens) = (stream.id(), stream.prompt_token_ids().len());
    assert_eq!(stream.collect_all().unwrap().tokens.len(), TOKENS);
    let cancelled = engine.submit(request()).unwrap();
    let cancelled_id = cancelled.id();
    cancelled.cancel();
    assert!(cancelled.collect_all().is_ok());
    // Its step thread is over then.
    drop(engine);

    let log = recorder.0.lock().unwrap();
    let number = |fields: &Fields, name: &str| fields[name].parse::<usize>().unwrap();
    for span in &log.spans {
        assert_eq!((span.entered, span.handles), (span.exited, 0), "left open: {span:?}");
    }
    // A request has its number and the length of its prompt, and ends with an event within it.
    for (id, finish) in [(id, "length"), (cancelled_id, "cancelled")] {
        let of_id = |span: &&Span| span.name == "request" && span.fields["id"] == id.to_string();
        let index = log.spans.iter().position(|span| of_id(&span)).expect("the request's span");
        let span = &log.spans[index];
        assert_eq!(span.level, Level::INFO);
        assert_eq!(number(&span.fields, "prompt_tokens"), prompt_tokens);
        let within = log.events.iter().filter(|event| event.parent == Some(index as u64 + 1));
        let ends: Vec<&Told> =
            within.filter(|event| event.fields["message"] == "request ended").collect();
        let [end] = ends[..] else { panic!("{ends:?}") };
        assert_eq!((end.level, end.fields["finish"].as_str()), (Level::INFO, finish));
    }
    // The first request's steps: pieces of its prompt, the last of which gives the first token,
    // and a row for each further one.
    let steps = log.spans.iter().filter(|span| span.name == "step");
    let steps: Vec<(usize, usize)> = steps
        .inspect(|span| assert_eq!((span.level, span.entered), (Level::DEBUG, 1), "{span:?}"))
        .map(|span| (number(&span.fields, "rows"), number(&span.fields, "prompt_rows")))
        .collect();
    let mut expected = Vec::new();
    for first in (0..prompt_tokens).step_by(CHUNK) {
        let rows = CHUNK.min(prompt_tokens - first);
        expected.push((rows, rows));
    }
    assert!(expected.len() > 2, "a prompt of {prompt_tokens}");
    expected.extend([(1, 0); TOKENS - 1]);
    assert_eq!(steps[..expected.len()], expected, "{steps:?}");
}
