//! The page of `/metrics`: the engine's numbers under our own names, and under those that vLLM
//! gave them, by which gateways know them.

use oss_engine::{Engine, Histogram, Metrics, PAGE_TOKENS, PageUse};

use crate::app::App;
use crate::metrics::books::{Counts, Finished};
use crate::metrics::text::Text;

/// The used share of what keys and values may take, and how many pages of the layers that see
/// everything fit into that. Layers with a window take room from the same bytes, but no more as a
/// sequence grows; so the number is the same however the groups share the cache.
pub(crate) fn cache_use(metrics: &Metrics) -> (f64, usize) {
    let bytes = |of: fn(&PageUse) -> usize| metrics.pages.iter().map(of).sum::<usize>();
    let used = bytes(|pages| pages.in_use * pages.page_bytes);
    let page = match bytes(|pages| if pages.window.is_none() { pages.page_bytes } else { 0 }) {
        0 => bytes(|pages| pages.page_bytes),
        page => page,
    };
    let limit = metrics.memory.cache_limit;
    (used as f64 / limit.max(1) as f64, limit / page.max(1))
}

/// The whole page. Before the model is loaded it has what the server knows by itself.
pub(crate) fn page(app: &App) -> String {
    let mut text = Text::new(&[("model_name", &app.options.model_name), ("engine", "0")]);
    let (ready, _) = app.health();
    text.gauge("oss_ready", "1 while routers may send requests.", u8::from(ready));
    let draining = u8::from(app.phase().name() == "draining");
    text.gauge("oss_draining", "1 while the server drains.", draining);
    let responses = app.books.responses();
    let responses = responses.iter().map(|(code, count)| (code.to_string(), *count));
    let help = "HTTP responses by status.";
    text.by(("oss_http_responses_total", "counter"), help, "code", responses);
    if let Some(engine) = app.loaded() {
        let metrics = app.metrics(engine);
        requests(&mut text, &metrics);
        caches(&mut text, &metrics);
        own_histograms(&mut text, &metrics);
        aliases(&mut text, &metrics, engine);
        whole_requests(&mut text, &app.books.requests(), &metrics);
    }
    text.finish()
}

fn requests(text: &mut Text, metrics: &Metrics) {
    let gauges = [
        ("oss_requests_running", "Sequences that run.", metrics.running),
        ("oss_requests_waiting", "Requests that wait.", metrics.queued),
    ];
    for (name, help, value) in gauges {
        text.gauge(name, help, value);
    }
    let counters = [
        ("oss_requests_submitted_total", "Requests taken.", metrics.submitted),
        ("oss_requests_shed_total", "Refused because the queue was full.", metrics.rejected),
        ("oss_requests_completed_total", "Ended by themselves.", metrics.completed),
        ("oss_requests_cancelled_total", "Cancelled.", metrics.cancelled),
        ("oss_requests_timed_out_total", "Out of their time.", metrics.timed_out),
        ("oss_requests_failed_total", "Failed otherwise.", metrics.failed),
        ("oss_requests_preempted_total", "Gave up their pages for others.", metrics.preempted),
        (
            "oss_prompt_tokens_computed_total",
            "Prompt tokens computed, and what preempted requests compute again.",
            metrics.computed_prompt_tokens,
        ),
        ("oss_prompt_tokens_cached_total", "Prompt tokens at hand.", metrics.cached_tokens),
        ("oss_completion_tokens_total", "Tokens drawn.", metrics.completion_tokens),
        ("oss_repeated_prompts_total", "Whole prompts that were known.", metrics.repeated_prompts),
        ("oss_drafted_tokens_total", "Guesses verified.", metrics.drafted_tokens),
        ("oss_accepted_drafts_total", "Guesses that came true.", metrics.accepted_drafts),
        ("oss_shed_bytes_total", "Given back under memory pressure.", metrics.shed_bytes),
    ];
    for (name, help, value) in counters {
        text.counter(name, help, value);
    }
}

fn caches(text: &mut Text, metrics: &Metrics) {
    let memory = metrics.memory;
    let kinds = [
        ("weights", memory.weights),
        ("vectors", memory.vectors),
        ("vocabulary", memory.vocabulary),
        ("cache", memory.cache),
        ("warm", memory.warm),
        ("queues", memory.queues),
        ("repeats", memory.repeats),
        ("scratch", memory.scratch),
        ("measuring", memory.measuring),
    ];
    let kinds = kinds.map(|(kind, bytes)| (kind.to_owned(), bytes));
    text.by(("oss_memory_bytes", "gauge"), "Memory by kind.", "kind", kinds);
    text.gauge("oss_locked_bytes", "Weights that are never swapped out.", memory.locked);
    let limit = memory.cache_limit;
    text.gauge("oss_cache_limit_bytes", "What keys and values may take.", limit);
    let sum = |of: fn(&PageUse) -> usize| metrics.pages.iter().map(of).sum::<usize>();
    let states = [
        ("in_use", sum(|pages| pages.in_use)),
        ("kept", sum(|pages| pages.kept)),
        ("available", sum(|pages| pages.available)),
    ];
    let states = states.map(|(state, pages)| (state.to_owned(), pages));
    text.by(("oss_cache_pages", "gauge"), "Pages in memory by state.", "state", states);
    let (warm, cold) = (metrics.tiers.warm_bytes, metrics.tiers.cold_pages);
    text.gauge("oss_cache_warm_bytes", "Compressed pages in memory.", warm);
    text.gauge("oss_cache_cold_pages", "Pages in the file.", cold);
    let tiers = &metrics.tiers;
    let hits = [("hot", tiers.hot_found), ("warm", tiers.warm_found), ("cold", tiers.cold_found)];
    let hits = hits.map(|(tier, pages)| (tier.to_owned(), pages));
    text.by(("oss_cache_hits_total", "counter"), "Pages found, by tier.", "tier", hits);
    let counts = tiers.counts;
    let moved = [
        ("compressed", counts.compressed_bytes),
        ("decompressed", counts.restored_bytes),
        ("written", counts.cold.written_bytes),
        ("read", counts.cold.read_bytes),
        ("compacted", counts.moved_bytes),
        ("copied", counts.copied_bytes),
    ];
    let moved = moved.map(|(how, bytes)| (how.to_owned(), bytes));
    text.by(("oss_cache_moved_bytes_total", "counter"), "Bytes of pages moved.", "how", moved);
    text.counter("oss_cache_asked_pages_total", "Pages that prompts needed.", tiers.asked_pages);
    let ahead = counts.prefetched_pages;
    text.counter("oss_cache_prefetched_pages_total", "Pages read from the file ahead.", ahead);
    let cold = counts.cold;
    let troubles = [
        ("oss_cache_failed_writes_total", "Pages that the disk did not take.", cold.failed_writes),
        ("oss_cache_dropped_writes_total", "Pages not sent to the file.", cold.dropped_writes),
        ("oss_cache_bad_slots_total", "Pages of the file that were damaged.", cold.bad_slots),
        ("oss_cache_foreign_total", "Files and pages of another model.", cold.foreign),
    ];
    for (name, help, value) in troubles {
        text.counter(name, help, value);
    }
    if let Some(experts) = metrics.experts {
        let (hits, misses) = (experts.hits, experts.misses);
        text.counter("oss_expert_hits_total", "Experts found in memory.", hits);
        text.counter("oss_expert_misses_total", "Experts read from the file.", misses);
        text.gauge("oss_expert_slots", "Experts that have room in memory.", experts.slots);
    }
}

fn own_histograms(text: &mut Text, metrics: &Metrics) {
    engine_histogram(text, "oss_step_seconds", "Time of a step.", &metrics.step_time);
    let help = "Rows of a step, prompts' rows in each step that takes them through some layers.";
    engine_histogram(text, "oss_step_rows", help, &metrics.step_rows);
    let sequences = &metrics.step_sequences;
    engine_histogram(text, "oss_step_sequences", "Sequences of a step.", sequences);
}

/// What vLLM's metrics are called.
fn aliases(text: &mut Text, metrics: &Metrics, engine: &Engine) {
    let (usage, pages) = cache_use(metrics);
    let (running, waiting) = (metrics.running, metrics.queued);
    text.gauge("vllm:num_requests_running", "Requests that run.", running);
    text.gauge("vllm:num_requests_waiting", "Requests that wait.", waiting);
    text.gauge("vllm:kv_cache_usage_perc", "The used share of the cache, 0 to 1.", usage);
    let (block, blocks) = (PAGE_TOKENS.to_string(), pages.to_string());
    let context = engine.context_len().to_string();
    text.info(
        "vllm:cache_config_info",
        "How the cache is made.",
        &[("block_size", &block), ("num_gpu_blocks", &blocks), ("max_model_len", &context)],
    );
    let prompt = metrics.computed_prompt_tokens + metrics.cached_tokens;
    let prompt_help = "Prompt tokens, cached ones and those computed again included.";
    let counters = [
        ("vllm:prompt_tokens_total", prompt_help, prompt),
        ("vllm:generation_tokens_total", "Tokens drawn.", metrics.completion_tokens),
        ("vllm:prefix_cache_queries_total", "Prompt tokens looked up, or computed again.", prompt),
        ("vllm:prefix_cache_hits_total", "Prompt tokens found.", metrics.cached_tokens),
        ("vllm:num_preemptions_total", "Gave up their pages for others.", metrics.preempted),
    ];
    for (name, help, value) in counters {
        text.counter(name, help, value);
    }
    let histograms = [
        ("vllm:time_to_first_token_seconds", "To the first token.", &metrics.first_token),
        ("vllm:inter_token_latency_seconds", "Between two tokens.", &metrics.inter_token),
        ("vllm:time_per_output_token_seconds", "The older name.", &metrics.inter_token),
        ("vllm:request_queue_time_seconds", "To the first step.", &metrics.queue_time),
    ];
    for (name, help, histogram) in histograms {
        engine_histogram(text, name, help, histogram);
    }
}

fn whole_requests(text: &mut Text, finished: &Finished, metrics: &Metrics) {
    let reasons = [
        ("stop", finished.stopped),
        ("length", finished.length),
        ("abort", metrics.cancelled),
        ("error", metrics.failed + metrics.timed_out),
    ];
    let reasons = reasons.map(|(reason, count)| (reason.to_owned(), count));
    let name = ("vllm:request_success_total", "counter");
    text.by(name, "Requests that ended, by reason.", "finished_reason", reasons);
    let histograms: [(&str, &str, &Counts); 6] = [
        ("vllm:e2e_request_latency_seconds", "The whole request.", &finished.total),
        ("vllm:request_inference_time_seconds", "Without the queue.", &finished.inference),
        ("vllm:request_prefill_time_seconds", "The prompt.", &finished.prefill),
        ("vllm:request_decode_time_seconds", "The answer.", &finished.decode),
        ("vllm:request_prompt_tokens", "Tokens of a prompt.", &finished.prompt_tokens),
        ("vllm:request_generation_tokens", "Tokens of an answer.", &finished.completion_tokens),
    ];
    for (name, help, counts) in histograms {
        text.histogram(name, help, counts.buckets(), (counts.count, counts.sum));
    }
}

/// One of the engine's histograms, with one bucket for each doubling instead of three.
fn engine_histogram(text: &mut Text, name: &str, help: &str, histogram: &Histogram) {
    let mut below = 0;
    let buckets = histogram.buckets().enumerate().filter_map(|(index, (end, count))| {
        below += count;
        (index % 3 == 0).then(|| (end, std::mem::take(&mut below)))
    });
    text.histogram(name, help, buckets, (histogram.count(), histogram.sum()));
}
