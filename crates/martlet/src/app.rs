//! What every command has at hand.

use crate::cli::SamplingArgs;
use crate::embedded;
use crate::exit::Usage;
use crate::interrupt::Interrupt;
use crate::news::News;
use crate::paths;
use crate::settings::Settings;
use crate::size;
use crate::terminal::Terminal;
use martlet_chat::{Conversation, Message, Role};
use martlet_hub::Store;
use martlet_session::disk::DiskOptions;
use martlet_session::{ModelSource, Options, Session, SessionError, TurnOptions, disk_options};
use std::sync::Arc;

pub struct App {
    pub settings: Settings,
    pub terminal: Terminal,
    pub interrupt: Interrupt,
    pub news: Option<News>,
}

impl App {
    /// The model of the settings.
    pub fn model(&self) -> ModelSource {
        match self.settings.model.as_deref() {
            None | Some(embedded::NAME) => ModelSource::Embedded(embedded::FLEDGLING),
            Some(name) => ModelSource::Path(self.settings.installed(name).unwrap_or_else(|| name.into())),
        }
    }

    /// The installed models.
    pub fn store(&self) -> Result<Store, Usage> {
        let none = "there is no home folder: MARTLET_MODELS_DIR can name a folder for models";
        self.settings.store().ok_or_else(|| Usage(none.into()))
    }

    /// How the settings open a model.
    pub fn options(&self) -> anyhow::Result<Options> {
        let settings = &self.settings;
        let disk = (settings.disk_cache > 0).then(|| self.disk(settings.disk_cache)).transpose()?;
        Ok(Options {
            device: settings.device,
            load: settings.load,
            experts: settings.experts,
            look_ahead: settings.look_ahead,
            threads: settings.threads,
            isa: settings.isa,
            memory: settings.memory,
            disk_limit: settings.disk_limit,
            context: settings.context,
            prefill_chunk: settings.prefill_chunk,
            kv: settings.kv,
            prefix_cache: settings.prefix_cache,
            disk,
            drafter: settings.drafter,
            accept: settings.accept,
            ..Options::default()
        })
    }

    fn disk(&self, bytes: u64) -> Result<DiskOptions, Usage> {
        let dir = self.settings.cache_dir.clone().or_else(paths::cache_dir);
        let none = "there is no home folder: MARTLET_CACHE_DIR can name a folder for the cache on disk";
        let terminal = self.terminal;
        let dir = dir.ok_or_else(|| Usage(none.into()))?;
        Ok(DiskOptions { log: Arc::new(move |line| terminal.note(line)), ..disk_options(dir, bytes) })
    }

    /// Opens the model, with progress; says so when it is the small one because nobody named another.
    pub fn open(&self) -> anyhow::Result<Session> {
        self.open_for(1)
    }

    /// The same for so many sequences at a time.
    pub fn open_for(&self, sequences: usize) -> anyhow::Result<Session> {
        let options = Options { sequences, ..self.options()? };
        self.news.iter().for_each(News::ask);
        if self.settings.model.is_none() {
            self.terminal.note(embedded::WHO_SPEAKS);
        }
        let progress = self.terminal.progress("loading", 1);
        let open = Session::open(&self.model(), &options, &mut |done, total| progress.set(done as u64, total as u64));
        drop(progress);
        let session = open?;
        if session.stream_stats().is_some() {
            let slots = size::bytes(session.plan().experts);
            self.terminal
                .note(&format!("experts are read from disk as they are chosen; {slots} of them stay in memory"));
        }
        Ok(session)
    }

    /// Options of a turn: the settings, and the flags that are none.
    pub fn turn_options(&self, args: &SamplingArgs) -> TurnOptions {
        TurnOptions {
            sampling: self.settings.sampling.clone(),
            max_tokens: self.settings.max_tokens,
            stop: args.stop.clone(),
            logit_bias: args.logit_bias.clone(),
            ..TurnOptions::default()
        }
    }

    /// A new conversation, with the system message and the choice of thinking that the settings have.
    pub fn conversation(&self) -> Conversation {
        let system = self.settings.system.iter().map(|text| Message::text(Role::System, text.as_str()));
        Conversation { enable_thinking: self.settings.think, ..Conversation::new(system.collect()) }
    }
}

/// Whether an error leaves the session as it was, so that the person may try again.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    let refusal = |e: &SessionError| !matches!(e, SessionError::Open { .. } | SessionError::Engine(_));
    error.downcast_ref::<SessionError>().is_some_and(refusal)
}
