//! Turns on their way: each runs on a thread of its own, since sessions block; what it says goes through the API's
//! adapter into a log, from which a stream is read, or becomes one response at the end.

use crate::app::{App, Caller};
use crate::error::{ApiError, Fields, Style};
use crate::log::Line;
use crate::queue::Places;
use crate::residence::{Asked, Resident};
use crate::resume::{Cancel, CancelOnDrop, Log, Reader};
use crate::served::{Turning, Went};
use crate::sse::{self, Frame};
use crate::trace::Trace;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use martlet_session::{Event, Prompt, Refused, Session, SessionError, Turn, TurnOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// From events of turns to those of an API: a state machine without I/O.
pub trait Adapter: Send {
    /// Before anything is known but the tokens of the (longest) prompt.
    fn begin(&mut self, prompt_tokens: usize, out: &mut Vec<Frame>);
    /// The next event of an answer.
    fn event(&mut self, choice: usize, event: &Event, out: &mut Vec<Frame>);
    /// After the last event of the last answer.
    fn end(&mut self, out: &mut Vec<Frame>);
    /// Instead of further events.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<Frame>);
    /// The whole response, once all has ended.
    fn response(&self) -> Value;
}

/// Does something with a whole response.
pub type Then = Box<dyn FnOnce(&Value) + Send>;

/// Makes the adapter, once the model is there.
pub type Adapt = Box<dyn FnOnce(&Arc<Resident>) -> Box<dyn Adapter> + Send>;

/// A request for what a model knows without computing: the answer, and the fields that mean nothing here.
pub struct Task<T> {
    pub model: Asked,
    pub work: Work<T>,
}

/// What is to be done with the model.
pub type Work<T> = Box<dyn FnOnce(&Session) -> Result<(T, Vec<String>), ApiError> + Send>;

/// A request for text, read and checked.
pub struct Job {
    /// The response's id.
    pub id: String,
    pub endpoint: &'static str,
    pub model: Asked,
    pub style: Style,
    pub turns: Vec<(Prompt, TurnOptions)>,
    pub adapter: Adapt,
    pub stream: bool,
    /// Fields that mean nothing here.
    pub warnings: Vec<String>,
    /// For the header of traces.
    pub traced: Traced,
    /// For errors.
    pub fields: Fields,
    /// Told the whole response when it has ended well.
    pub then: Option<Then>,
}

/// What a trace says of the request.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    pub tools: Vec<Value>,
    pub tool_choice: Value,
}

/// Answers a job.
pub async fn answer(app: &Arc<App>, caller: &Caller, job: Job) -> Result<Response, ApiError> {
    let (stream, warnings) = (job.stream, job.warnings.clone());
    let mut response = match stream {
        true => self::stream(app, caller, job).await?,
        false => {
            let value = whole(app, caller, job).await?;
            ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
        }
    };
    warn(&mut response, &warnings);
    response.extensions_mut().insert(Logged);
    Ok(response)
}

/// Left in a response whose line in the access log is written by its turn.
#[derive(Clone)]
pub struct Logged;

/// Names fields that mean nothing here.
pub fn warn(response: &mut Response, fields: &[String]) {
    if let Some(warnings) = warning_header(fields) {
        response.headers_mut().insert("x-martlet-warning", warnings);
    }
}

fn warning_header(warnings: &[String]) -> Option<HeaderValue> {
    const MOST: usize = 2000;
    if warnings.is_empty() {
        return None;
    }
    let mut text = format!("not used: {}", warnings.join(", "));
    text.retain(|c| c == ' ' || c.is_ascii_graphic());
    text.truncate(MOST);
    HeaderValue::from_str(&text).ok()
}

async fn stream(app: &Arc<App>, caller: &Caller, job: Job) -> Result<Response, ApiError> {
    let keep = caller.resume.map_or(app.options.resume, |s| Duration::from_secs(s.min(3600)));
    let (endpoint, style) = (job.endpoint, job.style);
    let log = app.streams.log(&job.id, keep);
    let (turn, _) = start(app, caller, job, Some(log.clone())).await?;
    let reader = Reader::first(log, turn, app.streams.clone(), endpoint, caller.client.clone());
    Ok(stream_response(app, style, reader))
}

/// A response that a reader fills.
pub fn stream_response(app: &App, style: Style, reader: Reader) -> Response {
    let ping = if style == Style::Anthropic { sse::PING_EVENT } else { sse::COMMENT };
    sse::response(reader, ping, app.options.ping)
}

async fn whole(app: &Arc<App>, caller: &Caller, job: Job) -> Result<Value, ApiError> {
    // The client goes away: this future is dropped, and the turn with it.
    let (_turn, ended) = start(app, caller, job, None).await?;
    ended.await.unwrap_or_else(|_| Err(ApiError::internal("the turn's thread ended early")))
}

type Ended = oneshot::Receiver<Result<Value, ApiError>>;

/// Begins the turns of a job, or refuses it before any work.
async fn start(
    app: &Arc<App>,
    caller: &Caller,
    job: Job,
    log: Option<Arc<Log>>,
) -> Result<(CancelOnDrop, Ended), ApiError> {
    let began = Instant::now();
    let places = app.queue.enter(job.turns.len())?;
    let turning = app.metrics.served(&job.model.name).begin(job.turns.len());
    let lease = app.models.lease(&job.model).await?;
    let (started, begun) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let (app, caller) = (app.clone(), caller.clone());
    tokio::task::spawn_blocking(move || {
        let Job { id, endpoint, turns, adapter, traced, fields, then, .. } = job;
        let model = &lease.model;
        let adapter = adapter(model);
        let turns = match begin(&app, &model.session, &fields, turns) {
            Ok(turns) => turns,
            Err(e) => return drop(started.send(Err(e))),
        };
        let cancel = Arc::new(Cancel::default());
        turns.iter().for_each(|turn| cancel.add(turn.canceller()));
        if started.send(Ok(CancelOnDrop::new(cancel.clone()))).is_err() {
            return; // the client is gone, and with the turns all is cancelled
        }
        let traces =
            turns.iter().enumerate().map(|(i, turn)| Trace::begin(&app, model, &id, i, turn, &traced)).collect();
        let sink = Sink { adapter, log, frames: Vec::new(), went: Vec::new(), error: None, progress: caller.progress };
        let run = Run { app: &app, model, sink: Mutex::new(sink), cancel, began, traces: Mutex::new(traces) };
        let result = run.to_the_end(turns, (places, turning), then);
        run.write_line(&id, &caller, endpoint);
        let _ = end.send(result);
        run.finish_log();
    });
    match begun.await {
        Ok(begun) => begun.map(|turn| (turn, ended)),
        Err(_) => Err(ApiError::internal("the turn's thread ended early")),
    }
}

fn begin(
    app: &App,
    session: &Session,
    fields: &Fields,
    turns: Vec<(Prompt, TurnOptions)>,
) -> Result<Vec<Turn>, ApiError> {
    let start = |(prompt, mut options): (Prompt, TurnOptions)| {
        options.tokens |= app.tracer.is_some() || options.logprobs.is_some();
        options.loop_guard = app.options.loop_guard;
        let begun = match session.start(&prompt, &options) {
            // Agents ask for as much as any model could say: what is left of the context is what they get.
            Err(SessionError::Refused(Refused::TooLong { prompt: tokens, context, .. })) if tokens < context => {
                session.start(&prompt, &TurnOptions { max_tokens: None, ..options })
            }
            begun => begun,
        };
        begun.map_err(|e| ApiError::of_turn(e, fields))
    };
    turns.into_iter().map(start).collect()
}

/// The turns of one request while they run.
struct Run<'a> {
    app: &'a App,
    model: &'a Resident,
    sink: Mutex<Sink>,
    cancel: Arc<Cancel>,
    began: Instant,
    traces: Mutex<Vec<Option<Trace>>>,
}

/// Where events of all turns of a request meet.
struct Sink {
    adapter: Box<dyn Adapter>,
    log: Option<Arc<Log>>,
    frames: Vec<Frame>,
    went: Vec<Went>,
    error: Option<ApiError>,
    progress: bool,
}

impl Sink {
    /// False when nobody will read more.
    fn flush(&mut self) -> bool {
        match &self.log {
            Some(log) => log.push(&mut self.frames),
            None => {
                self.frames.clear();
                true
            }
        }
    }
}

impl Run<'_> {
    fn sink(&self) -> std::sync::MutexGuard<'_, Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all turns; the places are free, and `then` was told, before a client can know that they ended.
    fn to_the_end(
        &self,
        mut turns: Vec<Turn>,
        places: (Places, Turning),
        then: Option<Then>,
    ) -> Result<Value, ApiError> {
        let _counted = self.app.metrics.answers.count();
        {
            let mut sink = self.sink();
            let Sink { adapter, frames, .. } = &mut *sink;
            let prompt_tokens = turns.iter().map(|turn| turn.prompt_ids().len()).max().unwrap_or(0);
            adapter.begin(prompt_tokens, frames);
            sink.flush();
        }
        match turns.len() {
            1 => turns.drain(..).for_each(|turn| self.turn(0, turn)),
            _ => std::thread::scope(|scope| {
                for (i, turn) in turns.drain(..).enumerate() {
                    scope.spawn(move || self.turn(i, turn));
                }
            }),
        }
        drop(places);
        let mut sink = self.sink();
        let Sink { adapter, frames, error, .. } = &mut *sink;
        let result = match error.clone() {
            Some(e) => {
                adapter.fail(&e, frames);
                Err(e)
            }
            None => {
                adapter.end(frames);
                let response = adapter.response();
                then.into_iter().for_each(|then| then(&response));
                Ok(response)
            }
        };
        sink.flush();
        result
    }

    fn finish_log(&self) {
        if let Some(log) = &self.sink().log {
            log.finish();
        }
    }

    fn turn(&self, choice: usize, turn: Turn) {
        let mut trace = self.traces.lock().unwrap_or_else(PoisonError::into_inner)[choice].take();
        let mut first_token = None;
        for event in turn {
            let event = match event {
                Ok(event) => event,
                Err(e) => {
                    self.model.served.failed();
                    self.sink().error.get_or_insert(e.into());
                    self.cancel.now();
                    return;
                }
            };
            if !matches!(event, Event::Prefill { .. }) {
                first_token.get_or_insert_with(|| self.began.elapsed());
            }
            if let Some(trace) = &mut trace {
                trace.event(&event);
            }
            let mut sink = self.sink();
            let Sink { adapter, frames, went, progress, .. } = &mut *sink;
            match &event {
                Event::Prefill { done, total } if *progress => frames.push(Frame::progress(*done, *total)),
                Event::Prefill { .. } => {}
                _ => adapter.event(choice, &event, frames),
            }
            if let Event::Finished(outcome) = event {
                let turn = Went { outcome, first_token, whole: self.began.elapsed() };
                self.model.served.turn(&turn);
                self.app.queue.learn(turn.whole);
                went.push(turn);
            }
            if !sink.flush() {
                self.cancel.now();
            }
        }
    }

    /// The one line about a request's work.
    fn write_line(&self, id: &str, caller: &Caller, endpoint: &'static str) {
        let sink = self.sink();
        let sum = |f: &dyn Fn(&Went) -> usize| sink.went.iter().map(f).sum::<usize>();
        let finish = match (&sink.error, sink.went.first()) {
            (Some(e), _) => e.code,
            (None, Some(went)) => went.outcome.reason.as_str(),
            (None, None) => "none",
        };
        let mut line = Line::new("request")
            .add("id", &caller.request_id)
            .add("endpoint", endpoint)
            .add("response", id)
            .add("model", self.model.name())
            .add("stream", sink.log.is_some())
            .add("prompt", sum(&|w| w.outcome.usage.prompt_tokens))
            .add("cached", sum(&|w| w.outcome.usage.cached_tokens))
            .add("generated", sum(&|w| w.outcome.usage.generated_tokens));
        if let Some(went) = sink.went.first() {
            let first = went.first_token.unwrap_or(went.whole).as_secs_f64();
            line = line
                .add("queued_s", format!("{:.3}", went.outcome.timings.queued.as_secs_f64()))
                .add("first_token_s", format!("{first:.3}"))
                .add("tokens_per_s", format!("{:.1}", went.outcome.timings.decode_rate()));
        }
        let line = line.add("total_s", format!("{:.3}", self.began.elapsed().as_secs_f64())).add("finish", finish);
        self.app.log.write(line);
    }
}
