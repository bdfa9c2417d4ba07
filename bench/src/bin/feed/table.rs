//! Formats the report as Markdown.

use crate::data::PostDistribution;
use crate::load::Latency;
use crate::report::{Latencies, Report, Spread};
use std::fmt::{self, Write};

pub(crate) fn markdown(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(report, &mut out);
    out
}

fn write(report: &Report, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "# Feed pages compared with Redis\n\n\
         {} posts and {} flags; `cargo run --release -p tidemark-bench --bin feed` writes this \
         page.\n",
        report.posts, report.pairs
    )?;
    writeln!(
        out,
        "Each server has one core, and the client another. The servers alternate in rounds. Rates \
         are medians over the rounds. Ratios use CPU time and are medians over the rounds, with \
         minimum and maximum. `x` is the ratio to the strongest layout of any peer under the same \
         load. PING and ECHO are those of the same server; ECHO has as many bytes as a page.\n"
    )?;
    writeln!(out, "## Targets\n\n| | target | measured | |\n|---|---|---|---|")?;
    for line in report.asked() {
        let verdict = if line.is_reached() { "reached" } else { "**not reached**" };
        writeln!(out, "| {} | {} | {} | {verdict} |", line.what, line.at_least, line.found)?;
    }
    if let Some(idle) = report.idle {
        let verdict = if idle < 0.005 { "reached" } else { "**not reached**" };
        writeln!(
            out,
            "| idle with 100 connections, percent of a core | below 0.5 | {:.2} | {verdict} |",
            idle * 100.0
        )?;
    }
    cells(report, out)?;
    loading(report, out)?;
    if !report.latencies.is_empty() {
        writeln!(
            out,
            "\n\
             ## Latency\n\n\
             Open loop, 8 connections, one page of 20 posts at a time, microseconds since the \
             scheduled time of the page.\n\n\
             | server, layout | max pages/s | at pages/s | p50 | p99 | p99.9 |\n\
             |---|---|---|---|---|---|"
        )?;
    }
    for Latencies { subject, most, latency: Latency { rate, p50, p99, p999 } } in &report.latencies
    {
        writeln!(out, "| {subject} | {most:.0} | {rate:.0} | {p50:.0} | {p99:.0} | {p999:.0} |")?;
    }
    writeln!(
        out,
        "\n\
         ## Answers\n\n\
         All counters of all pages equal the model, and no set flag is missing. False \
         positives:\n\n\
         | server, layout | flags compared | false positives |\n\
         |---|---|---|"
    )?;
    for (subject, checked) in &report.checked {
        writeln!(out, "| {subject} | {} | {} |", checked.flags, checked.false_yes)?;
    }
    if let Some((clock, cpu)) = report.two_cores() {
        writeln!(
            out,
            "\n## Two cores\n\nPipeline of 8, 8 connections. Two workers and the client on two \
             cores, compared with one worker and the client on one core, in alternating turns: \
             {clock} times the pages by wall time, {cpu} times by CPU time."
        )?;
    }
    Ok(())
}

fn loading(report: &Report, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n## Loading and memory\n\nOver one pipelined connection. Bytes are the server's \
         `used_memory`.\n\n| server, layout | bytes per post | bytes per flag | posts/s | posts \
         per CPU second | flags per CPU second |\n|---|---|---|---|---|---|"
    )?;
    for l in &report.loaded {
        writeln!(
            out,
            "| {} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} |",
            l.subject,
            l.bytes_per_post,
            l.bytes_per_pair,
            l.posts_per_s,
            l.posts_per_cpu_s,
            l.pairs_per_cpu_s
        )?;
    }
    Ok(())
}

fn cells(report: &Report, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n\
         ## All measurements\n\n\
         | load | page | posts | connections | pipeline | server, layout | per second | per CPU \
         second | x | of PING | of ECHO | bytes in, out |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for cell in &report.cells {
        let text = |spread: Option<Spread>| spread.map_or(String::new(), |s| s.to_string());
        let (of_ping, of_echo) = match cell.what {
            "read" => (
                report.ratio_to_upper_bound(cell, "ping"),
                report.ratio_to_upper_bound(cell, "echo"),
            ),
            _ => (None, None),
        };
        let times = if cell.is_ours() && cell.load.size > 0 { report.times(cell) } else { None };
        let posts = match (cell.load.size, cell.load.from) {
            (0, _) => "",
            (_, PostDistribution::Hot) => "hot",
            (_, PostDistribution::Uniform) => "uniform",
        };
        writeln!(
            out,
            "| {} | {} | {posts} | {} | {} | {} | {:.0} | {:.0} | {} | {} | {} | {:.0}, {:.0} |",
            cell.what,
            cell.load.size,
            cell.load.connections,
            cell.load.pipeline,
            cell.subject,
            cell.per_s(),
            cell.per_cpu_s(),
            text(times),
            text(of_ping),
            text(of_echo),
            cell.bytes.0,
            cell.bytes.1
        )?;
    }
    Ok(())
}
