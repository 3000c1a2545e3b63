//! `martlet trace-experts`: which experts routers choose, and how often they would be in memory under several policies.

use super::bench::measure::{Meter, Stop};
use crate::app::App;
use crate::exit::Usage;
use martlet_session::{DrafterChoice, ExpertTrace, Experts, Options, Policy, Session, hit_rate};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Tokens of the answer whose choices are recorded
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    pub tokens: u32,
    /// Random tokens before them
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: u32,
    /// Tokens that fill memory before hits are counted [default: half of the answer]
    #[arg(long, value_name = "N")]
    pub skip: Option<u32>,
    /// Shares of all experts that fit into memory, in percent
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "10,20,35,50,75",
        value_parser = clap::value_parser!(u8).range(1..=100))]
    pub held: Vec<u8>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet trace-experts -m PACK --memory 8GiB
  martlet trace-experts -m PACK -n 1000 --held 20,35 --json

The model must be a pack with experts. They are read from disk for this, however
much memory there is. Rates are what would have been found in memory had so many
experts fitted: nothing is read for them. Belady knows what comes: no policy can
be better.";

#[derive(Debug, Serialize)]
struct Report {
    tokens: u32,
    experts: usize,
    /// Of the choices of answers: those of the 64 experts of a layer that were chosen most, and those that the token
    /// before had made too.
    top_64: f64,
    reused: f64,
    rates: Vec<Rates>,
}

/// How often a policy finds an expert there.
#[derive(Debug, Serialize)]
struct Rates {
    policy: &'static str,
    /// (percent of all experts that fit, rate).
    held: Vec<(u8, f64)>,
}

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let options = Options { experts: Experts::Stream, drafter: DrafterChoice::None, disk: None, ..app.options()? };
    let loading = app.terminal.progress("loading", 1);
    let progress = &mut |done, total| loading.set(done as u64, total as u64);
    let session = Session::open(&app.model(), &options, progress)?;
    drop(loading);
    let stop = Stop::default();
    let _guard = app.interrupt.during({
        let stop = stop.clone();
        move || stop.stop()
    });
    let work = u64::from(args.prompt + args.tokens);
    let progress = app.terminal.progress("recording", work);
    let mut meter = Meter::new(&session, progress, work, app.settings.sampling.seed.unwrap_or(1), stop);
    let prompt = meter.ids(args.prompt as usize);
    session.record_experts();
    meter.run(&prompt, args.tokens as usize + 1)?;
    let report = report(args, session.recorded_experts(), session.spec().experts())?;
    app.terminal.result(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.text() })?;
    Ok(())
}

fn report(args: &Args, trace: ExpertTrace, experts: usize) -> Result<Report, Usage> {
    let skip = args.skip.unwrap_or(args.tokens / 2);
    if skip >= args.tokens {
        return Err(Usage(format!("--skip {skip} leaves none of {} tokens", args.tokens)));
    }
    let rate = |policy, percent: u8| hit_rate(&trace, policy, experts * usize::from(percent) / 100, skip as usize);
    let rates = |policy: Policy| Rates {
        policy: policy.name(),
        held: args.held.iter().map(|percent| (*percent, rate(policy, *percent))).collect(),
    };
    Ok(Report {
        tokens: args.tokens,
        experts,
        top_64: trace.top_share(64),
        reused: trace.reused(),
        rates: Policy::ALL.map(rates).into_iter().collect(),
    })
}

impl Report {
    fn text(&self) -> String {
        let (top, reused) = (100.0 * self.top_64, 100.0 * self.reused);
        let mut text = format!(
            "{} tokens, {} experts; {top:.1} % of a layer's choices fall on 64 experts, {reused:.1} % are those of the token before\n\n{:26}",
            self.tokens, self.experts, "found, % of experts held"
        );
        let heads = self.rates.first().map_or(&[][..], |r| &r.held);
        let cells = |cells: Vec<String>| cells.iter().map(|c| format!("{c:>8}")).collect::<String>() + "\n";
        text += &cells(heads.iter().map(|(percent, _)| format!("{percent} %")).collect());
        for Rates { policy, held } in &self.rates {
            // Writing to a String does not fail.
            let _ = write!(text, "{policy:26}");
            text += &cells(held.iter().map(|(_, rate)| format!("{:.1} %", 100.0 * rate)).collect());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_a_table() {
        let args = Args { tokens: 4, prompt: 1, skip: Some(4), held: vec![35], json: false };
        assert!(report(&args, ExpertTrace::default(), 100).unwrap_err().to_string().contains("--skip 4"));
        let rates = vec![Rates { policy: "LRU", held: vec![(10, 0.25), (35, 0.5)] }];
        let text = Report { tokens: 4, experts: 100, top_64: 0.65, reused: 0.41, rates }.text();
        assert!(text.contains("65.0 % of a layer's choices fall on 64 experts, 41.0 %"), "{text}");
        assert!(text.ends_with("    10 %    35 %\nLRU                         25.0 %  50.0 %\n"), "{text}");
    }
}
