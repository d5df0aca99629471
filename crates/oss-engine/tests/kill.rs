//! Engines that are killed at random moments, while they answer and while they pack a model: the
//! next one over the same folder gives the tokens and log-probabilities of a plain engine.
//!
//! `OSS_ENGINE_KILL_ROUNDS` sets how many processes are killed; a few are enough to find a gross
//! mistake, a hundred belong into a thorough check.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use oss_engine::{
    ChatRequest, ColdTier, Engine, EngineOptions, LoadProgress, Request, Stream, Token, Tune,
};
use oss_testing::{Seeded, again};
use oss_text::chat::Message;

/// Names the folder that a child process works in.
const FOLDER: &str = "OSS_ENGINE_KILL_FOLDER";
/// A child that nobody kills ends by itself.
const LIFE: Duration = Duration::from_secs(60);

/// Conversations that are asked.
const CHATS: usize = 24;
/// Conversations at once.
const OPEN: usize = 6;
/// Room for few of them in memory, and for less compressed.
const HOT: usize = 700 << 10;
const WARM: usize = 100 << 10;
/// Fewer slots than pages of all conversations, so that slots are written over and over.
const COLD: u64 = 2 << 20;

/// Bytes that a file begins with before it holds anything.
const HEADER: usize = 4096;

/// How a process ends that is killed: by a signal, which is no code; elsewhere with this one.
const KILLED: Option<i32> = if cfg!(unix) { None } else { Some(1) };

fn rounds() -> usize {
    let rounds = std::env::var("OSS_ENGINE_KILL_ROUNDS").ok();
    rounds.map_or(4, |rounds| rounds.parse().expect("a number of rounds"))
}

/// The plain engine, but for what is given.
fn options() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        cache_bytes: Some(16 << 20),
        prefix_caching: false,
        tune: Tune::Off,
        system_root: PathBuf::from("/no/such/folder"),
        ..EngineOptions::default()
    }
}

/// An engine that keeps so much in memory, little compressed and the rest in a folder.
fn tiered(folder: &Path, hot: usize) -> Engine {
    let options = EngineOptions {
        cache_bytes: Some(hot),
        warm_bytes: WARM,
        cold: Some(ColdTier { directory: folder.to_path_buf(), bytes: COLD }),
        prefix_caching: true,
        max_sequences: Some(4),
        ..options()
    };
    Engine::from_bytes_with(oss_demo::GGUF, options).unwrap()
}

/// A conversation: all begin with the same instructions, and each of a story's later ones goes on
/// from the one before.
fn chat(number: usize) -> Request {
    let (story, turns) = (number / 4, 1 + number % 4);
    let mut messages = vec![Message::system("You know stories about animals. ".repeat(6))];
    for turn in 0..turns {
        let asked = format!("Tell me what the little dog {story} did after {turn} days of rain.");
        messages.push(Message::user(asked));
        if turn + 1 < turns {
            messages.push(Message::assistant(format!("It ran home {turn} times and sat down.")));
        }
    }
    let request = Request::chat(ChatRequest::new(messages)).max_tokens(20);
    let request = Request { logprobs: Some(4), ignore_eos: true, ..request };
    if number.is_multiple_of(2) { request.greedy() } else { request.seed(number as u64) }
}

/// The test's own program once more, for the test of that name.
fn spawn(test: &str, environment: &[(&str, &Path)]) -> Child {
    let mut command = again(test);
    command.envs(environment.iter().copied());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a child process")
}

/// Kills a child at a random moment after it is at work.
fn kill_at_random(
    mut child: Child,
    is_at_work: impl Fn() -> bool,
    within_ms: usize,
    seeded: &mut Seeded,
) {
    let begin = Instant::now();
    while !is_at_work() {
        assert!(child.try_wait().unwrap().is_none(), "the child ended before it was at work");
        assert!(begin.elapsed() < LIFE, "the child was never at work");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(seeded.below(within_ms) as u64));
    child.kill().expect("a child that can be killed");
    let status = child.wait().expect("a dead child");
    assert_eq!(status.code(), KILLED, "the child has ended by itself");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// What lies in the files of a folder behind their headers.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap_or_default();
        (path, bytes.get(HEADER..).unwrap_or_default().to_vec())
    };
    let mut contents: Vec<_> = files(folder).into_iter().map(read).collect();
    contents.sort();
    contents
}

/// Answers random conversations, several at once; each one always in the same way.
fn serve(folder: &Path) {
    let engine = tiered(folder, HOT);
    let mut seeded = Seeded::new(u64::from(std::process::id()));
    let mut known: HashMap<usize, Vec<Token>> = HashMap::new();
    let mut open: Vec<(usize, Stream)> = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < LIFE {
        let number = seeded.below(CHATS);
        open.push((number, engine.submit(chat(number)).unwrap()));
        if open.len() == OPEN {
            let (number, stream) = open.swap_remove(seeded.below(OPEN));
            let tokens = stream.collect_all().unwrap().tokens;
            assert_eq!(*known.entry(number).or_insert_with(|| tokens.clone()), tokens, "{number}");
        }
    }
}

#[test]
fn an_engine_killed_while_it_answers_leaves_a_file_that_is_useless_at_worst() {
    const TEST: &str = "an_engine_killed_while_it_answers_leaves_a_file_that_is_useless_at_worst";
    if let Some(folder) = std::env::var_os(FOLDER) {
        return serve(Path::new(&folder));
    }
    let plain = Engine::from_bytes_with(oss_demo::GGUF, options()).unwrap();
    let expected: Vec<Vec<Token>> =
        (0..CHATS).map(|number| plain.generate(chat(number)).unwrap().tokens).collect();
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("cold");
    let mut seeded = Seeded::new(5);
    let (mut restored, mut from_file) = (0, 0);
    for round in 0..rounds() {
        let before = contents(&folder);
        let child = spawn(TEST, &[(FOLDER, &folder)]);
        let writes =
            || contents(&folder).iter().any(|file| !file.1.is_empty() && !before.contains(file));
        kill_at_random(child, writes, 600, &mut seeded);
        // On a copy, as the next child shall find what killed ones have left; and with memory for
        // everything, so that whatever comes from the file was written by them.
        let copy = tempfile::tempdir().unwrap();
        for file in files(&folder) {
            fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
        let engine = tiered(copy.path(), 16 << 20);
        let streams: Vec<Stream> =
            (0..CHATS).map(|number| engine.submit(chat(number)).unwrap()).collect();
        for (number, stream) in streams.into_iter().enumerate() {
            let tokens = stream.collect_all().unwrap().tokens;
            assert_eq!(tokens, expected[number], "round {round}, conversation {number}");
        }
        assert_eq!(engine.check_books().unwrap(), 0, "pages that nobody gave back");
        let counts = engine.metrics().tiers.counts;
        restored += counts.cold.restored_slots;
        from_file += counts.cold_hits + counts.prefetched_pages;
        assert_eq!(counts.evicted_pages, 0, "memory for everything");
        println!("round {round}: {counts:?}");
    }
    println!("figure: answering, rounds = {}", rounds());
    println!("figure: answering, pages restored = {restored}");
    println!("figure: answering, pages used = {from_file}");
    assert!(restored > 0 && from_file > 0, "{restored} slots survived, {from_file} were used");
}

/// Whether packing has not come to its end.
fn is_half(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "partial")
}

/// Packs to a folder, with so long a pause after each piece.
fn packing(model: &Path, folder: &Path, pause: Duration) -> Engine {
    let progress = LoadProgress::new(move |_, _| {
        std::thread::sleep(pause);
        ControlFlow::Continue(())
    });
    let pack_directory = Some(folder.to_path_buf());
    let options = EngineOptions { pack_directory, progress: Some(progress), ..options() };
    Engine::load_with(model, options).unwrap()
}

#[test]
fn an_engine_killed_while_it_packs_leaves_what_the_next_one_goes_on_with() {
    const TEST: &str = "an_engine_killed_while_it_packs_leaves_what_the_next_one_goes_on_with";
    const MODEL: &str = "OSS_ENGINE_KILL_MODEL";
    let answers = |engine: &Engine| -> Vec<Vec<Token>> {
        (0..4).map(|number| engine.generate(chat(number)).unwrap().tokens).collect()
    };
    if let (Some(model), Some(folder)) = (std::env::var_os(MODEL), std::env::var_os(FOLDER)) {
        let pause = Duration::from_millis(2);
        answers(&packing(Path::new(&model), Path::new(&folder), pause));
        return std::thread::sleep(LIFE);
    }
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("demo.gguf");
    fs::write(&model, oss_demo::GGUF).unwrap();
    let load = |folder: &Path| {
        let answers = answers(&packing(&model, folder, Duration::ZERO));
        let files = files(folder);
        assert_eq!(files.len(), 1, "{files:?}");
        (answers, fs::read(&files[0]).unwrap())
    };
    let (expected, whole) = load(&directory.path().join("whole"));
    let plain = Engine::from_bytes_with(oss_demo::GGUF, options()).unwrap();
    assert_eq!(expected, answers(&plain));
    let mut seeded = Seeded::new(7);
    let (mut killed, mut halves, mut whole_ones) = (0, 0, 0);
    for round in 0..rounds() {
        let folder = directory.path().join(format!("packed {round}"));
        // A second one goes on with what the first has left, and is killed too.
        let children = 1 + round % 2;
        for _ in 0..children {
            let before = contents(&folder);
            let child = spawn(TEST, &[(MODEL, &model), (FOLDER, &folder)]);
            // One that finds everything packed has nothing to write.
            let is_at_work = || {
                let now = contents(&folder);
                now != before || before.iter().any(|(path, _)| !is_half(path))
            };
            kill_at_random(child, is_at_work, 400, &mut seeded);
        }
        killed += children;
        for file in files(&folder) {
            *(if is_half(&file) { &mut halves } else { &mut whole_ones }) += 1;
        }
        let (tokens, bytes) = load(&folder);
        assert_eq!(tokens, expected, "round {round}");
        assert!(bytes == whole, "round {round}: another file than without a kill");
        fs::remove_dir_all(&folder).unwrap();
    }
    println!("figure: packing, rounds = {}", rounds());
    println!("figure: packing, processes killed = {killed}");
    println!("figure: packing, partial files = {halves}");
    println!("figure: packing, whole files = {whole_ones}");
    assert!(halves > 0, "{whole_ones} of {} had packed everything", rounds());
}
