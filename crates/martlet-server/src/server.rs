//! From a socket to requests: connections within limits, and an orderly end.

use crate::app::{App, Made};
use crate::error::{ApiError, Style};
use crate::log::{Line, Logger};
use crate::options::Options;
use crate::residence;
use crate::routes::router;
use crate::script::{Script, ScriptError};
use crate::stall::Stalling;
use crate::trace::Tracer;
use axum::Router;
use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use martlet_session::Session;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Everybody on the network could use it.
    #[error(
        "{host} can be reached from other machines: give --api-key KEY, or --no-auth if everybody there may use this server"
    )]
    Unprotected {
        /// Where it was to listen.
        host: std::net::IpAddr,
    },
    /// The address is taken, or not ours.
    #[error("can not listen on {address}: {source}")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A file of the options.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The script is not one.
    #[error("{}: {source}", path.display())]
    Script {
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        source: ScriptError,
    },
    /// No threads.
    #[error("the server's threads can not be started: {0}")]
    Threads(io::Error),
}

/// Ends a server, from any thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<watch::Sender<Stage>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    Draining,
    Ending,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop(Arc::new(watch::channel(Stage::Serving).0))
    }
}

impl Stop {
    /// No new connections; requests that run may end, for a time. The second call ends them at once.
    pub fn stop(&self) {
        self.0.send_modify(|stage| {
            *stage = if *stage == Stage::Serving { Stage::Draining } else { Stage::Ending };
        });
    }

    async fn reached(&self, wanted: Stage) {
        let mut stages = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = stages.wait_for(|stage| *stage >= wanted).await;
    }
}

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
    runtime: Runtime,
    stop: Stop,
}

impl Server {
    /// Takes the address; nothing is answered yet. `session` is the server's own model.
    pub fn bind(session: Arc<Session>, options: Options) -> Result<Server, ServeError> {
        options.check()?;
        let made = made(&options)?;
        let runtime = Builder::new_multi_thread()
            .enable_all()
            // Async work is little: reading requests, writing events.
            .worker_threads(2)
            .thread_name("server")
            // Turns sit on threads of their own while they wait for the engine.
            .max_blocking_threads(options.limits.requests + 64)
            .build()
            .map_err(ServeError::Threads)?;
        let address = SocketAddr::new(options.host, options.port);
        let listen = |source| ServeError::Listen { address, source };
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Server { app: App::new(session, options, made), listener, address, runtime, stop: Stop::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is stopped. With `terminated`, the system's wish that the process should end stops it too.
    pub fn run(self, terminated: bool) {
        let Server { app, listener, runtime, stop, .. } = self;
        runtime.block_on(async {
            tokio::spawn(housekeeping(app.clone()));
            residence::start(&app);
            if terminated {
                tokio::spawn(on_terminate(stop.clone()));
            }
            serve(&app, listener, &stop).await;
        });
        // Threads that wait for the engine are not waited for: the session's end ends them.
        runtime.shutdown_background();
    }
}

fn made(options: &Options) -> Result<Made, ServeError> {
    let file = |path: &PathBuf, source| ServeError::File { path: path.clone(), source };
    let script = options.script.as_ref().map(|path| {
        let text = std::fs::read_to_string(path).map_err(|e| file(path, e))?;
        Script::parse(&text).map_err(|source| ServeError::Script { path: path.clone(), source })
    });
    let tracer = options.trace.as_ref().map(|path| Tracer::new(path).map_err(|e| file(path, e)));
    let log = Logger::new(options.quiet, options.log_file.as_deref());
    let log = log.map_err(|e| file(options.log_file.as_ref().unwrap_or(&PathBuf::new()), e))?;
    Ok(Made { log, script: script.transpose()?, tracer: tracer.transpose()? })
}

/// Connections beyond the limit that are told so at a time.
const REFUSING: usize = 64;

async fn serve(app: &Arc<App>, listener: TcpListener, stop: &Stop) {
    let router = router(app.clone());
    let mut connections = JoinSet::new();
    let limit = app.options.limits.connections;
    loop {
        tokio::select! {
            () = stop.reached(Stage::Draining) => break,
            // Ended connections are taken out, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < limit => {
                    connections.spawn(connection(app.clone(), router.clone(), stream, stop.clone()));
                }
                Ok((stream, _)) if connections.len() < limit + REFUSING => {
                    connections.spawn(refuse(stream));
                }
                // So many at once are closed as they come.
                Ok(_) => {}
                // No file descriptors, say: some will be free again.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
    drop(listener);
    app.draining.store(true, Ordering::Relaxed);
    app.models.drain();
    app.log.write(Line::new("stopping").add("answers", app.metrics.answers.value()));
    let drained = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = drained => {}
        () = stop.reached(Stage::Ending) => {}
        () = tokio::time::sleep(app.options.limits.drain_time) => {}
    }
    // What still runs is cut off, and its turns with it.
    connections.shutdown().await;
    app.log.write(Line::new("stopped").add("answers", app.metrics.answers.value()));
}

async fn connection(app: Arc<App>, router: Router, stream: TcpStream, stop: Stop) {
    let _counted = app.metrics.connections.count();
    // Events are small and should leave at once.
    let _ = stream.set_nodelay(true);
    let limits = &app.options.limits;
    let io = TokioIo::new(Stalling::new(stream, limits.write_time));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head.max(8 << 10))
        .serve_connection(io, TowerToHyperService::new(router));
    // What goes wrong with a connection ends it, and is nobody else's business.
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = stop.reached(Stage::Draining) => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    // A head that could not be read is answered too.
    if ended.map_or_else(|e| e.is_parse(), |()| true) {
        let _ = tokio::time::timeout(limits.body_time, linger(connection.into_parts().io.into_inner())).await;
    }
}

/// Says that there are too many connections, whatever the client asks for.
async fn refuse(stream: TcpStream) {
    let message = "as many connections are open as may be";
    let body = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message).body(Style::OpenAi);
    let body = body.to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = Stalling::new(stream, Duration::from_secs(1));
    if stream.write_all(answer.as_bytes()).await.is_ok() {
        let _ = tokio::time::timeout(Duration::from_secs(5), linger(stream)).await;
    }
}

/// Takes what the client still sends, a body that is too large say: if its connection were closed at once, the system would
/// throw away the answer that it has not read yet.
async fn linger(mut stream: Stalling<TcpStream>) {
    const SILENCE: Duration = Duration::from_secs(1);
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut thrown_away = vec![0; 16 << 10];
    while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, stream.read(&mut thrown_away)).await {}
}

/// Gives up what nobody came back for.
async fn housekeeping(app: Arc<App>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        app.streams.sweep(Instant::now());
        app.store.sweep(Instant::now());
    }
}

#[cfg(unix)]
async fn on_terminate(stop: Stop) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
    while terminate.recv().await.is_some() {
        stop.stop();
    }
}

#[cfg(not(unix))]
async fn on_terminate(_: Stop) {}
