//! The real binary, as a person or a script runs it.

use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a run of the binary left.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// A run of the binary in an environment of its own.
struct Run {
    command: Command,
    input: Option<String>,
}

fn martlet(args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    let settings: Vec<_> = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("MARTLET_")).collect();
    for name in settings {
        command.env_remove(name);
    }
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nobody");
    command
        .env("HOME", &nowhere)
        .env("XDG_CONFIG_HOME", nowhere.join("config"))
        .env("XDG_CACHE_HOME", nowhere.join("cache"))
        .env("XDG_DATA_HOME", nowhere.join("data"));
    command.args(args);
    Run { command, input: None }
}

impl Run {
    fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    fn stdin(mut self, text: &str) -> Run {
        self.input = Some(text.to_string());
        self
    }

    fn ran(mut self) -> Ran {
        let mut child =
            self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // A program that refuses its arguments does not read.
        let _ = pipe.write_all(self.input.unwrap_or_default().as_bytes());
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn ok(self) -> Ran {
        let ran = self.ran();
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    fn json(self) -> Value {
        serde_json::from_str(&self.ok().out).unwrap()
    }

    /// Fails with this code, and says all of these words.
    fn fails(self, code: i32, words: &[&str]) {
        let ran = self.ran();
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(ran.out.is_empty(), "{ran:?}");
        assert!(ran.err.starts_with("error: "), "{ran:?}");
        for word in words {
            assert!(ran.err.contains(word), "{word:?} is not in {ran:?}");
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> String {
    repository().join("tests/fixtures").join(name).to_str().unwrap().to_string()
}

/// A golden case: what transformers gives for the full weights.
fn golden(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(&format!("fledgling-golden/{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &Value) -> String {
    value.to_string()
}

/// A chat file of a golden case.
fn chat_file(case: &Value, folder: &Path) -> String {
    let chat =
        json!({"messages": case["messages"], "tools": case["tools"], "enable_thinking": case["enable_thinking"]});
    let path = folder.join("chat.json");
    std::fs::write(&path, chat.to_string()).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn chat_answers_with_no_model_downloaded() {
    let ran = martlet(&["chat", "hello", "--greedy"]).ok();
    assert_eq!(ran.out, "Hello! How can I help you today?\n");
    assert!(ran.err.starts_with("fledgling speaks") && ran.err.contains("-m FOLDER"), "{}", ran.err);
    assert!(ran.err.contains("reply in the same language"), "reasoning is aside: {}", ran.err);
    assert!(ran.err.contains("tok/s") && ran.err.contains("| stop |"), "{}", ran.err);

    let quiet = martlet(&["--quiet", "chat", "--no-think", "--greedy", "Compute 72 + 37."]).ok();
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("72 + 37 = 109.\n", ""));
}

#[test]
fn chat_reads_what_is_piped_in() {
    let piped = martlet(&["chat", "-q", "--greedy", "--no-think"]).stdin("Compute 72 + 37.\n").ok();
    assert_eq!(piped.out, "72 + 37 = 109.\n");
    let both =
        martlet(&["chat", "Put in alphabetical order:", "--json", "--max-tokens", "1"]).stdin("nail, dog").json();
    let prompt = martlet(&["tokenize", "--decode", &ids(&both["prompt_ids"])]).ok().out;
    assert!(prompt.contains("<|im_start|>user\nPut in alphabetical order:\n\nnail, dog<|im_end|>"), "{prompt}");
    martlet(&["chat"]).fails(2, &["standard input is empty"]);
}

#[test]
fn chat_json_tells_reasoning_from_the_answer() {
    let case = golden("26-string");
    let question = case["messages"][1]["content"].as_str().unwrap();
    let system = case["messages"][0]["content"].as_str().unwrap();
    let answer = martlet(&["chat", "--think", "--greedy", "--json", "--system", system, question]).json();
    assert_eq!(answer["prompt_ids"], case["prompt_ids"]);
    assert_eq!(answer["token_ids"], case["greedy_ids"]);
    assert_eq!(answer["reasoning"], "Every letter becomes a capital.");
    assert_eq!(answer["text"], "VEVIVO");
    assert_eq!(answer["model"], "fledgling");
    assert!(answer["usage"]["reasoning_tokens"].as_u64().unwrap() > 4, "{answer}");
}

#[test]
fn generate_gives_the_golden_ids_for_ids_text_and_chat() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["00-identity", "05-arithmetic", "06-arithmetic", "19-tool", "24-string", "29-code"] {
        let case = golden(name);
        let prompt = case["prompt"].as_str().unwrap();
        let (list, chat) = (ids(&case["prompt_ids"]), chat_file(&case, folder.path()));
        for input in [["--ids", &list], ["--chat", &chat], ["--prompt-file", "-"]] {
            let run = martlet(&["generate", "--greedy", "--json", "--max-tokens", "64", input[0], input[1]]);
            let answer = run.stdin(prompt).json();
            assert_eq!(answer["prompt_ids"], case["prompt_ids"], "{name} {}", input[0]);
            assert_eq!(answer["token_ids"], case["greedy_ids"], "{name} {}", input[0]);
            let reasoning = answer["reasoning"].as_str();
            assert_eq!(reasoning.is_some(), input[0] == "--chat");
            let text = answer["text"].as_str().unwrap();
            if reasoning.is_none() {
                assert_eq!(format!("{text}<|im_end|>"), case["greedy_text"].as_str().unwrap(), "{name}");
            }
        }
    }
}

#[test]
fn generate_ends_where_it_is_told_to() {
    let case = golden("24-string");
    let list = ids(&case["prompt_ids"]);
    let run = |more: &[&str]| martlet(&[&["generate", "--greedy", "--json", "--ids", &list], more].concat()).json();
    let all = run(&[]);
    assert_eq!(all["text"], "dog, mushroom, nail");
    assert_eq!((&all["finish_reason"], &all["stop_token"]), (&json!("stop"), &json!(4098)));

    let stopped = run(&["--stop", "nowhere", "--stop", "room, n"]);
    assert_eq!(stopped["text"], "dog, mush");
    assert_eq!((&stopped["finish_reason"], &stopped["stop_string"]), (&json!("stop"), &json!("room, n")));

    let cut = run(&["--max-tokens", "2"]);
    assert_eq!((&cut["finish_reason"], cut["token_ids"].as_array().unwrap().len()), (&json!("length"), 2));

    let on = run(&["--ignore-eos", "--max-tokens", "12"]);
    assert_eq!(on["token_ids"].as_array().unwrap().len(), 12);
    assert_eq!(on["token_ids"].as_array().unwrap()[..7], all["token_ids"].as_array().unwrap()[..]);

    let full = run(&["--ignore-eos", "--max-tokens", "-1", "--context", "40"]);
    let tokens = full["prompt_ids"].as_array().unwrap().len() + full["token_ids"].as_array().unwrap().len();
    assert_eq!((tokens, &full["finish_reason"]), (40, &json!("length")));

    let biased = run(&["--logit-bias", "4098=-inf", "--max-tokens", "9"]);
    assert_eq!(biased["finish_reason"], "length");
}

#[test]
fn logprobs_come_with_each_token_and_the_law_holds() {
    // A story: of all that the small model says, the least certain.
    let case = golden("09-story");
    let list = ids(&case["prompt_ids"]);
    let run = |more: &[&str]| {
        let args = ["generate", "--json", "--ids", &list, "--logprobs", "5", "--max-tokens", "24", "--seed", "7"];
        let mut answer = martlet(&[&args, more].concat()).json();
        answer.as_object_mut().unwrap().remove("timings");
        // How many drafts pay is measured.
        answer["usage"]
            .as_object_mut()
            .unwrap()
            .retain(|key, _| !["drafted_tokens", "accepted_tokens"].contains(&key.as_str()));
        answer
    };
    let answer = run(&["--temp", "1.5"]);
    let (tokens, logprobs) = (answer["token_ids"].as_array().unwrap(), answer["logprobs"].as_array().unwrap());
    assert_eq!(tokens.len(), logprobs.len());
    for (id, l) in tokens.iter().zip(logprobs) {
        let top: Vec<f64> = l["top"].as_array().unwrap().iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert_eq!((&l["id"], top.len()), (id, 5));
        assert!(top.is_sorted_by(|a, b| a >= b) && top[0] <= 0.0, "{l}");
        assert!(l["logprob"].as_f64().unwrap() <= top[0], "{l}");
    }
    // Neither chunks, threads nor instructions change a bit; another seed does.
    assert_eq!(run(&["--temp", "1.5", "--prefill-chunk", "1"]), answer);
    assert_eq!(run(&["--temp", "1.5", "--prefill-chunk", "7", "--threads", "1"]), answer);
    assert_eq!(run(&["--temp", "1.5", "--isa", "portable"]), answer);
    assert_ne!(run(&["--temp", "1.5", "--seed", "8"])["token_ids"], answer["token_ids"]);
}

#[test]
fn the_reference_device_agrees() {
    let case = golden("05-arithmetic");
    let list = ids(&case["prompt_ids"]);
    let answer = martlet(&["generate", "--greedy", "--json", "--ids", &list, "--device", "reference"]).json();
    assert_eq!(answer["token_ids"], case["greedy_ids"]);
}

#[test]
fn ids_work_without_a_tokenizer() {
    let model = fixture("dense");
    let text = martlet(&["generate", "-m", &model, "--ids", "1,2,3", "--greedy", "-n", "4", "-q"]).ok().out;
    let answer = martlet(&["generate", "-m", &model, "--ids", "1,2,3", "--greedy", "-n", "4", "--json"]).json();
    let list: Vec<String> = answer["token_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(text.trim_end(), list.join(","));
    assert_eq!(answer["text"], Value::Null);
    martlet(&["generate", "-m", &model, "hello"]).fails(4, &["tokenizer.json", "give token ids"]);
}

#[test]
fn refusals_name_the_numbers() {
    let run = |more: &[&str]| martlet(&[&["-q", "generate"], more].concat());
    run(&["--ids", "1,2,3", "--context", "4", "-n", "2"]).fails(4, &["3 tokens", "needs 5", "holds 4"]);
    run(&["--ids", "4160"]).fails(4, &["4160", "vocabulary"]);
    run(&["--ids", ""]).fails(4, &["empty"]);
    run(&["--ids", "1", "--top-p", "0"]).fails(4, &["top_p is 0"]);
    run(&["--ids", "1", "--temp", "-1"]).fails(4, &["temperature is -1"]);
    run(&["--ids", "1", "-n", "0"]).fails(4, &["max_tokens"]);
    run(&["--ids", "1", "--stop", ""]).fails(4, &["stop strings"]);
    run(&["--ids", "1", "--logit-bias", "5=500"]).fails(4, &["500"]);
    run(&["--ids", "1,x"]).fails(2, &["\"x\" is no token id"]);
    // No machine has both.
    let elsewhere = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    run(&["--ids", "1", "--isa", elsewhere]).fails(3, &[elsewhere, "which has portable"]);
    run(&["--ids", "1", "--threads", "0"]).fails(2, &["threads", "flag", "at least 1"]);
    run(&["--chat", "nowhere.json"]).fails(2, &["nowhere.json"]);
    run(&["--chat", "-"]).stdin(r#"{"messages": [{"role": "wizard"}]}"#).fails(2, &["messages[0].role", "wizard"]);
    let picture = r#"[{"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image_url"}]}]"#;
    run(&["--chat", "-"]).stdin(picture).fails(4, &["messages[0].content[1]", "image_url", "only text"]);
    run(&["--chat", "-"]).stdin("[]").fails(4, &["no messages"]);
    let ran = run(&["--nonsense"]).ran();
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
    assert_eq!(martlet(&[]).ran().code, 2);
}

#[test]
fn a_model_that_can_not_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let open = |path: &str| martlet(&["generate", "-m", path, "--ids", "1"]);
    open("nowhere/at-all").fails(3, &["cannot open model \"at-all\"", "no such file", "  do      "]);
    open(path).fails(3, &["config.json", "missing"]);
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    open(path).fails(3, &["  what    "]);
    let model = folder.path().join("model.safetensors");
    let all = std::fs::read(fixture("dense") + "/model.safetensors").unwrap();
    std::fs::write(&model, &all[..all.len() / 2]).unwrap();
    std::fs::copy(fixture("dense") + "/config.json", folder.path().join("config.json")).unwrap();
    open(path).fails(3, &["model.safetensors"]);
    martlet(&["inspect", path]).fails(3, &["cannot open model", "model.safetensors"]);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut run = martlet(&["generate", "-q", "--ids", "1", "--ignore-eos", "-n", "4000"]);
    let mut child = run.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn settings_come_from_flag_environment_file_and_default() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "threads = 1\ntemperature = 0.5\nsystem = \"Be brief.\"\ncontext = \"2k\"\n").unwrap();
    let show = |args: &[&str]| {
        let run = martlet(&[&["config", "show", "--json"], args].concat()).env("MARTLET_CONFIG", &file);
        let rows = run.env("MARTLET_TEMPERATURE", "0.25").json();
        move |key: &str| {
            let row = rows.as_array().unwrap().iter().find(|r| r["key"] == key).unwrap();
            (row["value"].as_str().unwrap().to_string(), row["origin"].as_str().unwrap().to_string())
        }
    };
    let row = show(&["--threads", "2"]);
    assert_eq!(row("threads"), ("2".to_string(), "flag".to_string()));
    assert_eq!(row("temperature"), ("0.25".to_string(), "environment (MARTLET_TEMPERATURE)".to_string()));
    assert_eq!(row("system"), ("Be brief.".to_string(), format!("file ({})", file.display())));
    assert_eq!(row("device"), ("auto".to_string(), "default".to_string()));
    let table = martlet(&["config", "show"]).env("MARTLET_CONFIG", &file).ok().out;
    assert!(
        table.lines().any(|l| l.starts_with("context") && l.contains("2k") && l.contains("config.toml")),
        "{table}"
    );

    // The settings take effect, and a flag wins.
    let prompt = |more: &[&str]| {
        let run = martlet(&[&["chat", "hello", "--json", "-n", "1"], more].concat()).env("MARTLET_CONFIG", &file);
        martlet(&["tokenize", "--decode", &ids(&run.json()["prompt_ids"])]).ok().out
    };
    assert!(prompt(&[]).contains("system\nBe brief."));
    assert!(prompt(&["--system", "Hum."]).contains("system\nHum."));

    std::fs::write(&file, "tempreature = 0.5\n").unwrap();
    let wrong = || martlet(&["config", "show"]).env("MARTLET_CONFIG", &file);
    wrong().fails(2, &["config.toml", "tempreature", "nearest is \"temperature\""]);
    martlet(&["config", "show"]).env("MARTLET_CONFIG", "nowhere.toml").fails(2, &["nowhere.toml"]);
    martlet(&["config", "show"]).env("MARTLET_DEVICE", "gpu").fails(2, &["MARTLET_DEVICE", "gpu", "reference"]);
    let path = martlet(&["config", "path"]).env("MARTLET_CONFIG", &file).ok().out;
    assert_eq!(path.trim_end(), file.to_str().unwrap());
}

#[test]
fn prompts_are_rendered_and_tokenized() {
    let folder = tempfile::tempdir().unwrap();
    let case = golden("21-tool");
    let chat = chat_file(&case, folder.path());
    let prompt = martlet(&["template", &chat]).ok().out;
    assert_eq!(prompt, case["prompt"].as_str().unwrap());
    let bare = martlet(&["template", "--chat", &chat, "--no-generation-prompt"]).ok().out;
    assert_eq!(format!("{bare}<|im_start|>assistant\n<think>\n"), prompt);

    let found = martlet(&["tokenize", "--json", &prompt]).json();
    assert_eq!(found["ids"], case["prompt_ids"]);
    let list = martlet(&["tokenize", &prompt]).ok().out;
    assert_eq!(martlet(&["tokenize", "--decode"]).stdin(&list).ok().out, prompt + "\n");
    assert_eq!(martlet(&["tokenize"]).stdin("a\n\n").ok().out, martlet(&["tokenize", "a\n"]).ok().out);
}

#[test]
fn inspect_reports_what_is_there() {
    let model = repository().join("models/fledgling");
    let report = martlet(&["inspect", model.to_str().unwrap(), "--json"]).json();
    let (architecture, weights) = (&report["architecture"], &report["weights"]);
    assert_eq!(architecture["model_type"], "qwen3_5_moe");
    assert_eq!((&architecture["layers"], &architecture["experts"]["count"]), (&json!(8), &json!(32)));
    assert_eq!(architecture["mtp"], true);
    assert_eq!(weights["ignored"][0]["prefix"], "visual.");
    let number = |key: &str| weights[key].as_u64().unwrap();
    assert!(number("active_parameters") < number("parameters") / 2);
    assert!((20_000_000..23_000_000).contains(&number("parameters")), "{weights}");
    assert!(number("bytes_per_token") < number("bytes") / 2);

    let text = martlet(&["inspect", "fledgling", "--check-mtp"]).ok().out;
    for word in ["qwen3_5_moe", "4 of 32", "affine", "vision tower", "bytes", "mtp check"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let best = text.lines().find(|l| l.starts_with("mtp check")).unwrap();
    assert!(best.contains("[embedding, hidden], hidden after the final norm"), "{text}");
}

#[test]
fn a_quantised_copy_answers_as_the_built_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let (source, copy) = (repository().join("models/fledgling"), folder.path().join("copy"));
    let copy = copy.to_str().unwrap();
    let quantize = |more: &[&str]| martlet(&[&["quantize", source.to_str().unwrap(), copy], more].concat());
    let ran = quantize(&["--bits", "4", "--group", "64"]).ok();
    assert!(ran.err.contains("weights packed"), "{ran:?}");
    quantize(&[]).fails(1, &[copy]);
    quantize(&["--bits", "7"]).fails(2, &["7 bits"]);

    let list = ids(&golden("12-reading")["prompt_ids"]);
    let run = |more: &[&str]| {
        let mut answer =
            martlet(&[&["generate", "--ids", &list, "--greedy", "--json", "--logprobs", "3"], more].concat()).json();
        ["timings", "model", "seed", "context", "usage"]
            .iter()
            .for_each(|key| drop(answer.as_object_mut().unwrap().remove(*key)));
        answer
    };
    assert_eq!(run(&["-m", copy]), run(&[]));
    assert_eq!(run(&["-m", "fledgling"]), run(&[]));
}

#[test]
fn a_plan_tells_what_fits_before_anything_is_loaded() {
    let plan = |more: &[&str]| martlet(&[&["plan", "--json"], more].concat());
    let found = plan(&["fledgling", "--memory", "256MiB", "--sequences", "2", "--context", "1k"]).json();
    let number = |key: &str| found[key].as_u64().unwrap();
    let parts = number("weights") + number("scratch") + 2 * number("state") + number("pool");
    assert_eq!((parts, number("memory")), (256 << 20, 256 << 20), "{found}");
    assert_eq!((number("context"), &found["kv"], &found["sequences"]), (1024, &json!("f16"), &json!(2)));
    let q8 = plan(&["--kv", "q8"]).json();
    let share = q8["kv_per_1000_tokens"].as_f64().unwrap() / found["kv_per_1000_tokens"].as_f64().unwrap();
    assert!((0.5..0.6).contains(&share), "{q8}");

    let text = martlet(&["plan", "--memory", "64MiB"]).ok().out;
    for word in
        ["memory", "64.00 MiB", "as asked for", "weights", "prefix cache", "of keys and values (f16)", "context"]
    {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    plan(&["--memory", "8MiB"]).fails(3, &["8.0 MiB may be used", "MiB of weights", "  do      ", "--memory"]);
    plan(&["--memory", "64MiB", "--context", "100m"]).fails(2, &["context"]);
    plan(&["--memory", "64MiB", "--context", "1000k"]).fails(3, &["the longest that fits"]);
    plan(&["--memory", "12"]).fails(2, &["memory = \"12\"", "12GiB?"]);
    martlet(&["chat", "hello", "--memory", "8MiB", "-q"]).fails(3, &["8.0 MiB may be used"]);
    martlet(&["chat", "hello"]).env("MARTLET_MEMORY", "lots").fails(2, &["MARTLET_MEMORY", "such as 12GiB"]);
}

#[test]
fn drafts_never_change_a_text_and_are_counted() {
    let case = golden("29-code");
    let list = ids(&case["prompt_ids"]);
    let run = |drafter: &str| martlet(&["generate", "--greedy", "--json", "--ids", &list, "--drafter", drafter]).json();
    let drafted = |answer: &Value| {
        assert_eq!(answer["token_ids"], case["greedy_ids"], "{answer}");
        let number = |key: &str| answer["usage"][key].as_u64().unwrap();
        assert!(number("accepted_tokens") <= number("drafted_tokens"), "{answer}");
        number("drafted_tokens")
    };
    assert_eq!(drafted(&run("none")), 0);
    drafted(&run("suffix"));
    assert!(drafted(&run("mtp")) > 0);
    let model = fixture("dense-mlx-q4");
    let headless = martlet(&["generate", "-m", &model, "--ids", "1", "--drafter", "mtp"]);
    headless.fails(3, &["no draft head", "  do      ", "--drafter"]);
    martlet(&["plan", "-m", &model, "--drafter", "mtp"]).fails(3, &["no draft head"]);
    assert_eq!(martlet(&["chat", "hello", "--drafter", "oracle"]).ran().code, 2);
}

#[test]
fn states_go_to_disk_only_when_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("prefix");
    let question = format!("Which number follows these? {}", (1..60).map(|n| format!("{n}, ")).collect::<String>());
    let run = |more: &[&str]| {
        let args = ["chat", "--greedy", "--no-think", "--json", "-n", "8", &question];
        martlet(&[&args, more].concat()).env("MARTLET_CACHE_DIR", &dir)
    };
    let plain = run(&[]).json();
    assert!(!dir.exists(), "nothing is stored unasked");
    let first = run(&["--disk-cache", "100MiB"]).json();
    let again = run(&["--disk-cache", "100MiB"]).json();
    let cached = |answer: &Value| answer["usage"]["cached_tokens"].as_u64().unwrap();
    assert_eq!((cached(&plain), cached(&first)), (0, 0));
    assert!(cached(&again) > 64, "{again}");
    assert_eq!((&first["token_ids"], &again["token_ids"]), (&plain["token_ids"], &plain["token_ids"]));
    let args = ["chat", "--greedy", "--no-think", "-n", "8", "--disk-cache", "100MiB", &question];
    let line = martlet(&args).env("MARTLET_CACHE_DIR", &dir).ok().err;
    assert!(line.contains(&format!("(cached {})", cached(&again))), "{line}");
    let off = run(&["--disk-cache", "100MiB", "--prefix-cache", "false"]).json();
    assert_eq!(cached(&off), 0);
    martlet(&["cache", "clear"]).env("MARTLET_CACHE_DIR", &dir).ok();
    assert_eq!(cached(&run(&["--disk-cache", "100MiB"]).json()), 0);
}

/// A cache with a segment of a token and one that continues it.
fn prefix_cache(dir: &Path) {
    use martlet_session::disk::{DiskCache, DiskOptions, Segment};
    let options = DiskOptions {
        bytes: 1 << 20,
        daily_writes: 1 << 20,
        queue_bytes: 1 << 20,
        ..DiskOptions::maintenance(dir.into(), std::sync::Arc::new(|line| panic!("{line}")))
    };
    let cache = DiskCache::open(options, std::sync::Arc::new(std::time::SystemTime::now)).unwrap();
    let segment = |parent, start| {
        let (pages, state) = (vec![vec![1; 100]], vec![2; 50]);
        Segment { parent, start, end: start + 1, pages, state }
    };
    cache.put([1; 32], segment(None, 0));
    cache.put([2; 32], segment(Some([1; 32]), 1));
    cache.flush();
}

#[test]
fn the_cache_on_disk_is_shown_checked_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("prefix");
    let at = dir.to_str().unwrap();
    let none = martlet(&["cache", "stats", "--json", "--dir", at]).json();
    assert_eq!((&none["entries"], &none["dir"], dir.exists()), (&json!(0), &json!(at), false));

    prefix_cache(&dir);
    let stats = martlet(&["cache", "stats", "--json"]).env("MARTLET_CACHE_DIR", &dir).json();
    assert_eq!((&stats["entries"], &stats["bytes"], &stats["written_today"]), (&json!(2), &json!(732), &json!(732)));
    let text = martlet(&["cache", "stats", "--dir", at]).ok().out;
    assert!(text.contains("segments       2\n") && text.contains("732 B"), "{text}");
    let verified = martlet(&["cache", "verify", "--json", "--dir", at]).json();
    assert_eq!(verified, json!({"dir": at, "entries": 2, "bytes": 732, "damaged": 0}));

    let damaged = dir.join("02".repeat(32) + ".segment");
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[365] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let ran = martlet(&["cache", "verify", "--dir", at]).ran();
    assert_eq!((ran.code, damaged.exists()), (1, false), "{ran:?}");
    assert!(ran.out.contains("2 segments read") && ran.out.contains("1 damaged"), "{ran:?}");
    assert!(ran.err.contains("the checksum of its state is wrong"), "{ran:?}");
    assert!(ran.err.contains("error: 1 of 2 segments were damaged"), "{ran:?}");

    // By way of the platform's folder: XDG_CACHE_HOME/martlet/prefix.
    let home = folder.path().join("home");
    prefix_cache(&home.join("martlet/prefix"));
    let cleared = martlet(&["cache", "clear"]).env("XDG_CACHE_HOME", &home).ok().out;
    assert!(cleared.contains("2 files deleted, 732 B"), "{cleared}");
    let left = martlet(&["cache", "stats", "--json"]).env("XDG_CACHE_HOME", &home).json();
    assert_eq!((&left["entries"], &left["written_today"]), (&json!(0), &json!(732)));

    std::fs::write(folder.path().join("file"), "").unwrap();
    let file = folder.path().join("file");
    martlet(&["cache", "stats", "--dir", file.to_str().unwrap()]).fails(1, &["file", "can not be used"]);
}

#[test]
fn help_completions_and_man_pages_are_there() {
    let help = martlet(&["--help"]).ok().out;
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    for command in [
        "chat", "serve", "service", "stats", "generate", "tokenize", "template", "inspect", "plan", "quantize", "pack",
        "cache", "config",
    ] {
        let text = martlet(&[command, "--help"]).ok().out;
        assert!(text.contains("martlet ") && text.contains("--device"), "{text}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(martlet(&["completions", shell]).ok().out.contains("martlet"));
    }
    let folder = tempfile::tempdir().unwrap();
    martlet(&["man", folder.path().join("man").to_str().unwrap()]).ok();
    assert!(folder.path().join("man/martlet-chat.1").is_file());
}
