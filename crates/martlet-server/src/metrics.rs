//! Counters for Prometheus, under names of our own and under those of vLLM, which routers scrape.

use crate::queue::Queue;
use martlet_session::{Outcome, Session};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What the server counts itself; the engine's counts are asked for.
#[derive(Default)]
pub struct Metrics {
    pub connections: Gauge,
    /// Answers on their way.
    pub answers: Gauge,
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    finished: Mutex<BTreeMap<&'static str, u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    reasoning_tokens: AtomicU64,
    first_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
    waiting: Histogram,
}

/// A number that goes up and down.
#[derive(Default)]
pub struct Gauge(AtomicI64);

/// Counts one as long as it lives.
pub struct Counted<'a>(&'a Gauge);

impl Gauge {
    pub fn count(&self) -> Counted<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self)
    }

    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Upper ends of the buckets, in seconds.
const BUCKETS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0];

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(i) = BUCKETS.iter().position(|end| seconds <= *end) {
            self.buckets[i].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// How one turn went, as its thread saw it.
#[derive(Clone, Debug)]
pub struct Went {
    pub outcome: Outcome,
    /// From the request's beginning to its first token.
    pub first_token: Option<Duration>,
    pub whole: Duration,
}

impl Metrics {
    pub fn response(&self, endpoint: &'static str, status: u16) {
        *lock(&self.responses).entry((endpoint, status)).or_default() += 1;
    }

    pub fn turn(&self, went: &Went) {
        let (usage, timings) = (&went.outcome.usage, &went.outcome.timings);
        *lock(&self.finished).entry(went.outcome.reason.as_str()).or_default() += 1;
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Ordering::Relaxed);
        self.generated_tokens.fetch_add(usage.generated_tokens as u64, Ordering::Relaxed);
        self.reasoning_tokens.fetch_add(usage.reasoning_tokens as u64, Ordering::Relaxed);
        self.waiting.add(timings.queued);
        self.whole.add(went.whole);
        went.first_token.into_iter().for_each(|time| self.first_token.add(time));
        if timings.generated_tokens > 1 {
            self.per_token.add(timings.decode / (timings.generated_tokens as u32 - 1));
        }
    }

    pub fn failed(&self) {
        *lock(&self.finished).entry("error").or_default() += 1;
    }

    /// Turns by how they ended.
    pub fn finished(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.finished).clone()
    }

    /// The page that Prometheus reads.
    pub fn render(&self, session: &Session, queue: &Queue, detached: usize, model: &str) -> String {
        let stats = session.stats();
        let mut page = Page { text: String::with_capacity(16 << 10), model: escaped(model) };
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let waiting = queue.taken().saturating_sub(stats.running) as f64;
        let used = stats.pages as f64 / stats.pages_limit.max(1) as f64;
        let hits = (stats.cache.memory_hits + stats.cache.disk_hits) as f64;

        page.gauge("martlet_connections", "open connections", self.connections.value() as f64);
        page.gauge("martlet_answers", "answers on their way", self.answers.value() as f64);
        page.gauge("martlet_turns", "turns that run or wait", queue.taken() as f64);
        page.gauge("martlet_engine_running", "sequences in the engine", stats.running as f64);
        page.gauge("martlet_engine_waiting", "sequences before the engine", stats.waiting as f64);
        page.gauge("martlet_streams_detached", "streams without a reader", detached as f64);
        page.gauge("martlet_kv_pages", "KV pages in use", stats.pages as f64);
        page.gauge("martlet_kv_pages_limit", "KV pages that may be", stats.pages_limit as f64);
        page.gauge("martlet_cache_entries", "states in the prefix cache", stats.cache.entries as f64);
        page.gauge("martlet_cache_state_bytes", "bytes of recurrent states in it", stats.cache.state_bytes as f64);
        page.counter("martlet_cache_hits_total", "prompts that found a prefix", hits);
        page.counter("martlet_cache_misses_total", "prompts that found none", stats.cache.misses as f64);
        page.counter("martlet_cache_evicted_total", "states that made room", stats.cache.evicted as f64);
        page.counter("martlet_preempted_total", "sequences computed again", stats.preempted as f64);
        page.counter("martlet_steps_total", "steps of the engine", stats.steps as f64);
        page.counter("martlet_step_seconds_total", "time in steps", stats.step_time.as_secs_f64());
        page.counter("martlet_prompt_tokens_total", "tokens of prompts", get(&self.prompt_tokens));
        page.counter("martlet_cached_tokens_total", "of them from the cache", get(&self.cached_tokens));
        page.counter("martlet_generated_tokens_total", "tokens of answers", get(&self.generated_tokens));
        page.counter("martlet_reasoning_tokens_total", "of them thinking", get(&self.reasoning_tokens));
        let drafted = stats.mtp.drafted + stats.suffix.drafted;
        let accepted = stats.mtp.accepted + stats.suffix.accepted;
        page.counter("martlet_drafted_tokens_total", "drafts that were checked", drafted as f64);
        page.counter("martlet_accepted_tokens_total", "of them right", accepted as f64);
        page.head("martlet_finished_total", "turns by how they ended", "counter");
        for (reason, n) in self.finished() {
            page.labelled("martlet_finished_total", &format!(",reason=\"{reason}\""), n as f64);
        }
        page.head("martlet_responses_total", "responses by endpoint and status", "counter");
        for ((endpoint, status), n) in lock(&self.responses).clone() {
            let labels = format!(",endpoint=\"{endpoint}\",status=\"{status}\"");
            page.labelled("martlet_responses_total", &labels, n as f64);
        }
        page.histogram("martlet_first_token_seconds", "until the first token", &self.first_token);
        page.histogram("martlet_token_seconds", "per token after the first", &self.per_token);
        page.histogram("martlet_answer_seconds", "of whole answers", &self.whole);
        page.histogram("martlet_queue_seconds", "before the engine began", &self.waiting);

        page.gauge("vllm:num_requests_running", "sequences in the engine", stats.running as f64);
        page.gauge("vllm:num_requests_waiting", "requests that wait", waiting);
        page.gauge("vllm:kv_cache_usage_perc", "share of KV pages in use", used);
        page.gauge("vllm:gpu_cache_usage_perc", "share of KV pages in use", used);
        page.counter("vllm:prefix_cache_queries_total", "tokens asked of the cache", get(&self.prompt_tokens));
        page.counter("vllm:prefix_cache_hits_total", "tokens that it had", get(&self.cached_tokens));
        page.counter("vllm:prompt_tokens_total", "tokens of prompts", get(&self.prompt_tokens));
        page.counter("vllm:generation_tokens_total", "tokens of answers", get(&self.generated_tokens));
        page.counter("vllm:num_preemptions_total", "sequences computed again", stats.preempted as f64);
        page.head("vllm:request_success_total", "turns by how they ended", "counter");
        for (reason, n) in self.finished() {
            page.labelled("vllm:request_success_total", &format!(",finished_reason=\"{reason}\""), n as f64);
        }
        page.head("vllm:cache_config_info", "the KV cache", "gauge");
        let blocks = format!(",block_size=\"{}\",num_gpu_blocks=\"{}\"", martlet_session::PAGE, stats.pages_limit);
        page.labelled("vllm:cache_config_info", &blocks, 1.0);
        page.histogram("vllm:time_to_first_token_seconds", "until the first token", &self.first_token);
        page.histogram("vllm:time_per_output_token_seconds", "per token after the first", &self.per_token);
        page.histogram("vllm:e2e_request_latency_seconds", "of whole answers", &self.whole);
        page.histogram("vllm:request_queue_time_seconds", "before the engine began", &self.waiting);
        page.text
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text format. Writing to a String does not fail.
struct Page {
    text: String,
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn labelled(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{model_name=\"{}\"{labels}}} {value}", self.model);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.labelled(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "counter");
        self.labelled(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, h: &Histogram) {
        self.head(name, help, "histogram");
        let mut below = 0;
        for (end, n) in BUCKETS.iter().zip(&h.buckets) {
            below += n.load(Ordering::Relaxed);
            self.labelled(&format!("{name}_bucket"), &format!(",le=\"{end}\""), below as f64);
        }
        let count = h.count.load(Ordering::Relaxed) as f64;
        self.labelled(&format!("{name}_bucket"), ",le=\"+Inf\"", count);
        self.labelled(&format!("{name}_sum"), "", h.micros.load(Ordering::Relaxed) as f64 / 1e6);
        self.labelled(&format!("{name}_count"), "", count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative() {
        let h = Histogram::default();
        [0.0005, 0.3, 0.3, 5000.0].into_iter().for_each(|s| h.add(Duration::from_secs_f64(s)));
        let mut page = Page { text: String::new(), model: escaped("a\"b") };
        page.histogram("x", "help", &h);
        for line in [
            "x_bucket{model_name=\"a\\\"b\",le=\"0.001\"} 1\n",
            "x_bucket{model_name=\"a\\\"b\",le=\"0.5\"} 3\n",
            "x_bucket{model_name=\"a\\\"b\",le=\"1200\"} 3\n",
            "x_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 4\n",
            "x_count{model_name=\"a\\\"b\"} 4\n",
        ] {
            assert!(page.text.contains(line), "{line} in {}", page.text);
        }
    }

    #[test]
    fn gauges_count_what_lives() {
        let gauge = Gauge::default();
        let one = gauge.count();
        assert_eq!(gauge.value(), 1);
        drop(one);
        assert_eq!(gauge.value(), 0);
    }
}
