//! Counters for Prometheus, under names of our own and under those of vLLM, which routers scrape. What models do is counted
//! for each, under its name; what is the server's has the name of its own model.

use crate::served::Served;
use martlet_session::Stats;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the server counts itself; the engine's counts are asked for.
#[derive(Default)]
pub struct Metrics {
    pub connections: Gauge,
    /// Answers on their way.
    pub answers: Gauge,
    /// Models that could not be loaded.
    pub load_failures: Gauge,
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// By the names of models that were in memory.
    served: Mutex<BTreeMap<String, Arc<Served>>>,
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

    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
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
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(i) = BUCKETS.iter().position(|end| seconds <= *end) {
            self.buckets[i].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// What is to be shown of one model.
pub struct View {
    pub name: String,
    pub served: Arc<Served>,
    /// Over all its engines.
    pub stats: Stats,
}

/// What is to be shown of the server.
pub struct Whole<'a> {
    /// Of its own model.
    pub name: &'a str,
    pub models: Vec<View>,
    pub turns: usize,
    pub detached: usize,
    /// Requests that wait for another model.
    pub waiting: usize,
}

impl Metrics {
    pub fn response(&self, endpoint: &'static str, status: u16) {
        *lock(&self.responses).entry((endpoint, status)).or_default() += 1;
    }

    /// The counts of a model.
    pub fn served(&self, model: &str) -> Arc<Served> {
        lock(&self.served).entry(model.to_string()).or_default().clone()
    }

    /// All models that were in memory.
    pub fn models(&self) -> Vec<(String, Arc<Served>)> {
        lock(&self.served).iter().map(|(name, served)| (name.clone(), served.clone())).collect()
    }

    /// Turns by how they ended.
    pub fn finished(&self) -> BTreeMap<&'static str, u64> {
        let mut sum = BTreeMap::new();
        for (reason, n) in self.models().iter().flat_map(|(_, served)| served.finished()) {
            *sum.entry(reason).or_default() += n;
        }
        sum
    }

    /// The page that Prometheus reads.
    pub fn render(&self, whole: &Whole<'_>) -> String {
        let mut page = Page { text: String::with_capacity(16 << 10), own: escaped(whole.name), models: &whole.models };
        page.gauge("martlet_connections", "open connections", self.connections.value() as f64);
        page.gauge("martlet_answers", "answers on their way", self.answers.value() as f64);
        page.gauge("martlet_turns", "turns that run or wait", whole.turns as f64);
        page.gauge("martlet_streams_detached", "streams without a reader", whole.detached as f64);
        page.gauge("martlet_model_waiting", "requests that wait for another model", whole.waiting as f64);
        let failures = self.load_failures.value() as f64;
        page.counter("martlet_model_load_failures_total", "models that could not be loaded", failures);
        page.head("martlet_responses_total", "responses by endpoint and status", "counter");
        for ((endpoint, status), n) in lock(&self.responses).clone() {
            let labels = format!(",endpoint=\"{endpoint}\",status=\"{status}\"");
            let own = page.own.clone();
            page.labelled(&own, "martlet_responses_total", &labels, n as f64);
        }
        page.ours();
        page.of_vllm();
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
struct Page<'a> {
    text: String,
    own: String,
    models: &'a [View],
}

/// A count of a model.
fn count(n: impl Fn(&Served) -> &AtomicU64) -> impl Fn(&View) -> f64 {
    move |view| n(&view.served).load(Ordering::Relaxed) as f64
}

impl Page<'_> {
    fn ours(&mut self) {
        self.gauges("martlet_engine_running", "sequences in the engine", |m| m.stats.running as f64);
        self.gauges("martlet_engine_waiting", "sequences before the engine", |m| m.stats.waiting as f64);
        self.gauges("martlet_kv_pages", "KV pages in use", |m| m.stats.pages as f64);
        self.gauges("martlet_kv_pages_limit", "KV pages that may be", |m| m.stats.pages_limit as f64);
        self.gauges("martlet_cache_entries", "states in the prefix cache", |m| m.stats.cache.entries as f64);
        let states = "bytes of recurrent states in it";
        self.gauges("martlet_cache_state_bytes", states, |m| m.stats.cache.state_bytes as f64);
        let hits = |m: &View| (m.stats.cache.memory_hits + m.stats.cache.disk_hits) as f64;
        self.counters("martlet_cache_hits_total", "prompts that found a prefix", hits);
        self.counters("martlet_cache_misses_total", "prompts that found none", |m| m.stats.cache.misses as f64);
        self.counters("martlet_cache_evicted_total", "states that made room", |m| m.stats.cache.evicted as f64);
        self.counters("martlet_preempted_total", "sequences computed again", |m| m.stats.preempted as f64);
        self.counters("martlet_steps_total", "steps of the engine", |m| m.stats.steps as f64);
        self.counters("martlet_step_seconds_total", "time in steps", |m| m.stats.step_time.as_secs_f64());
        self.counters("martlet_prompt_tokens_total", "tokens of prompts", count(|s| &s.prompt_tokens));
        self.counters("martlet_cached_tokens_total", "of them from the cache", count(|s| &s.cached_tokens));
        self.counters("martlet_generated_tokens_total", "tokens of answers", count(|s| &s.generated_tokens));
        self.counters("martlet_reasoning_tokens_total", "of them thinking", count(|s| &s.reasoning_tokens));
        let drafted = |m: &View| (m.stats.mtp.drafted + m.stats.suffix.drafted) as f64;
        let accepted = |m: &View| (m.stats.mtp.accepted + m.stats.suffix.accepted) as f64;
        self.counters("martlet_drafted_tokens_total", "drafts that were checked", drafted);
        self.counters("martlet_accepted_tokens_total", "of them right", accepted);
        self.finished("martlet_finished_total", "reason");
        self.histograms("martlet_first_token_seconds", "until the first token", |s| &s.first_token);
        self.histograms("martlet_token_seconds", "per token after the first", |s| &s.per_token);
        self.histograms("martlet_answer_seconds", "of whole answers", |s| &s.whole);
        self.histograms("martlet_queue_seconds", "before the engine began", |s| &s.waiting);
        self.histograms("martlet_model_load_seconds", "loading in place of another model", |s| &s.loading);
    }

    fn of_vllm(&mut self) {
        let waiting = |m: &View| (m.served.turns() as f64 - m.stats.running as f64).max(0.0);
        let used = |m: &View| m.stats.pages as f64 / m.stats.pages_limit.max(1) as f64;
        self.gauges("vllm:num_requests_running", "sequences in the engine", |m| m.stats.running as f64);
        self.gauges("vllm:num_requests_waiting", "requests that wait", waiting);
        self.gauges("vllm:kv_cache_usage_perc", "share of KV pages in use", used);
        self.gauges("vllm:gpu_cache_usage_perc", "share of KV pages in use", used);
        self.counters("vllm:prefix_cache_queries_total", "tokens asked of the cache", count(|s| &s.prompt_tokens));
        self.counters("vllm:prefix_cache_hits_total", "tokens that it had", count(|s| &s.cached_tokens));
        self.counters("vllm:prompt_tokens_total", "tokens of prompts", count(|s| &s.prompt_tokens));
        self.counters("vllm:generation_tokens_total", "tokens of answers", count(|s| &s.generated_tokens));
        self.counters("vllm:num_preemptions_total", "sequences computed again", |m| m.stats.preempted as f64);
        self.finished("vllm:request_success_total", "finished_reason");
        self.head("vllm:cache_config_info", "the KV cache", "gauge");
        for model in self.models {
            let blocks = model.stats.pages_limit;
            let labels = format!(",block_size=\"{}\",num_gpu_blocks=\"{blocks}\"", martlet_session::PAGE);
            self.labelled(&escaped(&model.name), "vllm:cache_config_info", &labels, 1.0);
        }
        self.histograms("vllm:time_to_first_token_seconds", "until the first token", |s| &s.first_token);
        self.histograms("vllm:time_per_output_token_seconds", "per token after the first", |s| &s.per_token);
        self.histograms("vllm:e2e_request_latency_seconds", "of whole answers", |s| &s.whole);
        self.histograms("vllm:request_queue_time_seconds", "before the engine began", |s| &s.waiting);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn labelled(&mut self, model: &str, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{model_name=\"{model}\"{labels}}} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        let own = self.own.clone();
        self.labelled(&own, name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "counter");
        let own = self.own.clone();
        self.labelled(&own, name, "", value);
    }

    fn gauges(&mut self, name: &str, help: &str, value: impl Fn(&View) -> f64) {
        self.head(name, help, "gauge");
        self.models.iter().for_each(|m| self.labelled(&escaped(&m.name), name, "", value(m)));
    }

    fn counters(&mut self, name: &str, help: &str, value: impl Fn(&View) -> f64) {
        self.head(name, help, "counter");
        self.models.iter().for_each(|m| self.labelled(&escaped(&m.name), name, "", value(m)));
    }

    fn finished(&mut self, name: &str, label: &str) {
        self.head(name, "turns by how they ended", "counter");
        for model in self.models {
            for (reason, n) in model.served.finished() {
                self.labelled(&escaped(&model.name), name, &format!(",{label}=\"{reason}\""), n as f64);
            }
        }
    }

    fn histograms(&mut self, name: &str, help: &str, of: impl Fn(&Served) -> &Histogram) {
        self.head(name, help, "histogram");
        self.models.iter().for_each(|m| self.histogram(&escaped(&m.name), name, of(&m.served)));
    }

    fn histogram(&mut self, model: &str, name: &str, h: &Histogram) {
        let mut below = 0;
        for (end, n) in BUCKETS.iter().zip(&h.buckets) {
            below += n.load(Ordering::Relaxed);
            self.labelled(model, &format!("{name}_bucket"), &format!(",le=\"{end}\""), below as f64);
        }
        let count = h.count.load(Ordering::Relaxed) as f64;
        self.labelled(model, &format!("{name}_bucket"), ",le=\"+Inf\"", count);
        self.labelled(model, &format!("{name}_sum"), "", h.micros.load(Ordering::Relaxed) as f64 / 1e6);
        self.labelled(model, &format!("{name}_count"), "", count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative() {
        let h = Histogram::default();
        [0.0005, 0.3, 0.3, 5000.0].into_iter().for_each(|s| h.add(Duration::from_secs_f64(s)));
        let mut page = Page { text: String::new(), own: String::new(), models: &[] };
        page.histogram(&escaped("a\"b"), "x", &h);
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
