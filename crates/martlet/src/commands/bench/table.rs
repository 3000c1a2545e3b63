//! The report for people.

use super::report::{Report, Spent};
use super::versus::Versus;
use crate::size;
use std::fmt::Write as _;

/// The report as tables of aligned columns.
pub fn text(report: &Report) -> String {
    let mut out = head(report);
    out += &prefill(report);
    out += &decode(report);
    out += &streaming(report);
    out += &batches(report);
    out += &turns(report);
    for (name, spent) in [("prefill", &report.operations.prefill), ("decode", &report.operations.decode)] {
        out += &spent.as_ref().map_or_else(String::new, |spent| operations(name, spent));
    }
    out += &report.versus.iter().map(versus).collect::<String>();
    out += &report.skipped.iter().map(|s| format!("not measured: {s}\n")).collect::<String>();
    if report.interrupted {
        out += "interrupted: what stands here is of fewer runs\n";
    }
    out
}

fn head(r: &Report) -> String {
    let m = &r.machine;
    let processor = m.processor.as_deref().unwrap_or("unknown processor");
    let sets = m.instruction_sets.join(", ");
    let memory = m.memory.map_or_else(String::new, |bytes| format!(", {}", size::bytes(bytes)));
    let bandwidth = r.read_bandwidth.map_or("unknown".to_string(), |b| format!("{} GB/s", giga(b)));
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{name:10} {text}");
    };
    line("model", format!("{} on {} with {} threads, keys and values in {}", r.model, r.device, r.threads, r.kv));
    line("machine", format!("{processor}, {} cores{memory}; {sets}", m.cores));
    line("memory", format!("is read at {bandwidth} by {} threads", r.threads));
    if let Some(disk) = r.disk_read {
        line("disk", format!("gives experts at {} GB/s at its best", giga(disk)));
    }
    line(
        "weights",
        format!(
            "{} ({}); a token reads {} ({}), and {} of each token before it",
            size::count(r.parameters),
            size::bytes(r.weight_bytes),
            size::count(r.active_parameters),
            size::bytes(r.weight_bytes_per_token),
            size::bytes(r.kv_bytes_per_token)
        ),
    );
    if let Some(peak) = r.peak_memory {
        line("peak", format!("{} resident", size::bytes(peak)));
    }
    line("figures", format!("medians of {} runs", r.repeats));
    out
}

fn prefill(r: &Report) -> String {
    let rows = r.prefill.iter().map(|p| {
        vec![
            p.tokens.to_string(),
            rate(p.tokens_per_second),
            seconds(p.seconds.median),
            range(p.seconds.min, p.seconds.max),
        ]
    });
    columns("prefill", &["tokens", "tokens/s", "s", "s, least to most"], rows.collect())
}

fn decode(r: &Report) -> String {
    let rows = r.decode.iter().map(|d| {
        vec![
            d.context.to_string(),
            rate(d.tokens_per_second),
            milliseconds(d.seconds.median),
            range(1e3 * d.seconds.min, 1e3 * d.seconds.max),
            size::bytes(d.bytes_per_token),
            giga(d.bytes_per_second),
            d.share_of_bandwidth.map_or_else(|| "?".to_string(), percent),
            d.fingerprint.clone(),
        ]
    });
    let names =
        ["context", "tokens/s", "ms", "ms, least to most", "bytes/token", "GB/s", "of bandwidth", "fingerprint"];
    columns("decode", &names, rows.collect())
}

fn streaming(r: &Report) -> String {
    let rows = r.streaming.iter().map(|s| {
        let maybe = |seconds: Option<f64>| seconds.map_or_else(|| "?".to_string(), milliseconds);
        let share = |share: Option<f64>| share.map_or_else(|| "?".to_string(), percent);
        vec![
            format!("{} {}", s.what, s.tokens),
            format!("{:.0}", s.needed),
            format!("{:.0}", s.reads),
            size::bytes(s.bytes_read as u64),
            milliseconds(s.waited_seconds),
            maybe(s.disk_seconds),
            share(s.disk_share),
            maybe(s.dense_seconds),
            share(s.share_of_bound),
            share(s.recall),
            format!("{:.1} of {:.1}", s.ahead_used, s.ahead),
            size::bytes(s.bytes_wasted as u64),
        ]
    });
    let names = [
        "of",
        "experts",
        "read",
        "bytes",
        "waited, ms",
        "disk's best, ms",
        "of the time",
        "dense, ms",
        "of the bound",
        "recall",
        "ahead, used",
        "wasted",
    ];
    columns("experts from disk", &names, rows.collect())
}

fn batches(r: &Report) -> String {
    let rows = r.batches.iter().map(|b| {
        vec![
            b.sequences.to_string(),
            rate(b.tokens_per_second),
            milliseconds(b.seconds.median),
            b.times_of_one.map_or_else(|| "?".to_string(), |x| format!("{x:.2} x")),
        ]
    });
    columns("side by side", &["sequences", "tokens/s in all", "ms a step", "time of one"], rows.collect())
}

fn turns(r: &Report) -> String {
    let rows = r.turns.iter().map(|t| {
        let ends = [t.prefix, t.cached, t.new].map(|n| n.to_string());
        let times = [seconds(t.seconds.median), rate(t.tokens_per_second), seconds(t.seconds_without_cache)];
        ends.into_iter().chain(times).collect()
    });
    let names = ["tokens before", "cached", "new", "s to first token", "tokens/s", "s, prefix uncached"];
    columns("new turn", &names, rows.collect())
}

fn operations(name: &str, spent: &Spent) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for k in &spent.kinds {
        rows.push(vec![k.operation.into(), milliseconds(k.seconds), percent(k.share), format!("{:.0}", k.calls)]);
    }
    rows.push(vec!["all".into(), milliseconds(spent.seconds), percent(1.0), String::new()]);
    let what = match name {
        "decode" => format!("a token's time, after {} tokens", spent.tokens),
        _ => format!("time of a prompt of {} tokens", spent.tokens),
    };
    columns(&what, &["operations", "ms", "share", "calls"], rows)
}

fn versus(v: &Versus) -> String {
    let rows = v.rows.iter().map(|r| vec![r.test.clone(), rate(r.ours), rate(r.theirs), format!("{:.2} x", r.ratio)]);
    let threads = v.threads.map_or_else(String::new, |n| format!(" ({n} threads)"));
    let mut out =
        columns(&format!("beside {}{threads}", v.name), &["test", "martlet", &v.name, "ratio"], rows.collect());
    if !v.not_compared.is_empty() {
        let _ = writeln!(out, "not compared with {}: {}", v.name, v.not_compared.join(", "));
    }
    out
}

/// A title and rows below names, the first column to the left and the others to the right; nothing where there are no rows.
fn columns(title: &str, names: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let names = names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let width = |i: usize| rows.iter().chain([&names]).map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let mut out = format!("\n{title}\n");
    for row in [&names].into_iter().chain(&rows) {
        let cell = |(i, text): (usize, &String)| match i {
            0 => format!("  {text:<width$}", width = widths[0]),
            _ => format!("  {text:>width$}", width = widths[i]),
        };
        let line: String = row.iter().enumerate().map(cell).collect();
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn rate(x: f64) -> String {
    if x < 100.0 { format!("{x:.2}") } else { format!("{x:.0}") }
}

fn seconds(x: f64) -> String {
    if x < 10.0 { format!("{x:.3}") } else { format!("{x:.1}") }
}

fn milliseconds(x: f64) -> String {
    format!("{:.3}", 1e3 * x)
}

fn range(min: f64, max: f64) -> String {
    format!("{min:.3} to {max:.3}")
}

fn giga(x: f64) -> String {
    format!("{:.1}", x / 1e9)
}

fn percent(x: f64) -> String {
    format!("{:.1} %", 100.0 * x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::report::tests_support::report;

    #[test]
    fn tables_for_people() {
        let expected = "\
model      m on cpu with 2 threads, keys and values in f16
machine    a processor, 2 cores, 8.00 GiB; portable, avx2
memory     is read at 30.0 GB/s by 2 threads
weights    1.50 G (1.00 GiB); a token reads 1.20 G (512.00 MiB), and 12.00 KiB of each token before it
peak       1.10 GiB resident
figures    medians of 3 runs

prefill
  tokens  tokens/s      s  s, least to most
  512          250  2.048    2.000 to 2.100

decode
  context  tokens/s      ms  ms, least to most  bytes/token  GB/s  of bandwidth  fingerprint
  0           50.00  20.000   19.000 to 21.000   512.75 MiB  26.9        89.6 %           ab

a token's time, after 1 tokens
  operations           ms    share  calls
  weight products  15.000   75.0 %     96
  attention         5.000   25.0 %      6
  all              20.000  100.0 %

beside other (4 threads)
  test   martlet  other   ratio
  pp512      250    100  2.50 x
not compared with other: tg32
not measured: a turn after 64297 tokens: the context holds 4096
";
        let text = text(&report());
        assert_eq!(text, expected, "\n{text}");
    }
}
