//! What was measured, as tables.

use crate::data::From;
use crate::load::{Latency, Throughput};
use crate::pool::Checked;
use std::fmt::Write as _;

/// One server and layout under one load.
pub(crate) struct Cell {
    pub(crate) subject: String,
    /// `read`, `90/10`, `ping` or `echo`.
    pub(crate) what: &'static str,
    pub(crate) size: usize,
    pub(crate) from: From,
    pub(crate) connections: usize,
    pub(crate) pipeline: usize,
    pub(crate) per_s: f64,
    pub(crate) per_cpu_s: f64,
    pub(crate) bytes: (f64, f64),
}

impl Cell {
    pub(crate) fn new(
        subject: &str,
        (size, from, connections, pipeline): (usize, From, usize, usize),
        what: &'static str,
        done: &Throughput,
        bytes: (f64, f64),
    ) -> Cell {
        let (per_s, per_cpu_s) = (done.per_s(), done.per_cpu_s());
        Cell { subject: subject.to_owned(), what, size, from, connections, pipeline, per_s, per_cpu_s, bytes }
    }

    fn is_ours(&self) -> bool {
        self.subject.starts_with("tidemark")
    }

    fn load(&self) -> (&'static str, usize, bool, usize, usize) {
        (self.what, self.size, self.from == From::Hot, self.connections, self.pipeline)
    }
}

/// What loading the data took.
pub(crate) struct Loaded {
    pub(crate) subject: String,
    pub(crate) bytes_per_post: f64,
    pub(crate) bytes_per_pair: f64,
    pub(crate) posts_per_s: f64,
    pub(crate) posts_per_cpu_s: f64,
    pub(crate) pairs_per_cpu_s: f64,
}

/// Latencies at one rate; `most` is the server's throughput under the same connections.
pub(crate) struct Latencies {
    pub(crate) subject: String,
    pub(crate) most: f64,
    pub(crate) latency: Latency,
}

/// All of a run.
pub(crate) struct Report {
    posts: u64,
    pairs: u64,
    pub(crate) cells: Vec<Cell>,
    loaded: Vec<Loaded>,
    pub(crate) latencies: Vec<Latencies>,
    checked: Vec<(String, Checked)>,
    /// Workers of Tidemark, pages per second, pages per CPU second.
    pub(crate) scaling: Vec<(usize, f64, f64)>,
    /// Share of a core that Tidemark takes when its clients are silent.
    pub(crate) idle: Option<f64>,
}

impl Report {
    pub(crate) fn new(posts: u64, pairs: u64) -> Report {
        Report {
            posts,
            pairs,
            cells: vec![],
            loaded: vec![],
            latencies: vec![],
            checked: vec![],
            scaling: vec![],
            idle: None,
        }
    }

    pub(crate) fn cell(&mut self, cell: Cell) {
        eprintln!(
            "{:6} {:20} page {:2} {:?} connections {:2} pipeline {:2}: {:9.0}/s {:9.0}/CPU s",
            cell.what, cell.subject, cell.size, cell.from, cell.connections, cell.pipeline, cell.per_s, cell.per_cpu_s
        );
        self.cells.push(cell);
    }

    pub(crate) fn loaded(&mut self, loaded: Loaded) {
        self.loaded.push(loaded);
    }

    pub(crate) fn latency(&mut self, latency: Latencies) {
        let Latency { rate, p50, p99, p999 } = latency.latency;
        eprintln!("latency {:20} at {rate:7.0}/s: p50 {p50:.0} p99 {p99:.0} p99.9 {p999:.0}", latency.subject);
        self.latencies.push(latency);
    }

    pub(crate) fn checked(&mut self, subject: &str, checked: Checked) {
        match self.checked.iter_mut().find(|(name, _)| name == subject) {
            Some((_, sum)) => {
                sum.flags += checked.flags;
                sum.false_yes += checked.false_yes;
            }
            None => self.checked.push((subject.to_owned(), checked)),
        }
    }

    /// The strongest peer under the same load.
    fn strongest(&self, cell: &Cell) -> Option<&Cell> {
        let peers = self.cells.iter().filter(|peer| !peer.is_ours() && peer.load() == cell.load());
        peers.max_by(|a, b| a.per_cpu_s.total_cmp(&b.per_cpu_s))
    }

    fn ceiling(&self, cell: &Cell, what: &str) -> Option<f64> {
        let server = cell.subject.split(' ').next()?;
        let same = |c: &&Cell| {
            c.what == what && c.subject == server && (c.connections, c.pipeline) == (cell.connections, cell.pipeline)
        };
        Some(cell.per_cpu_s / self.cells.iter().find(same)?.per_cpu_s)
    }

    /// Everything, as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "# Feed pages, side by side\n\n{} posts and {} flags; `cargo run --release -p tidemark-bench --bin feed` writes this page.\n",
            self.posts, self.pairs
        );
        let _ = writeln!(
            out,
            "Each server on one core, the client on another. `x` compares pages per CPU second with the strongest layout of any peer under the same load; \
             PING and ECHO are the same server's own, ECHO with as many bytes as a page.\n"
        );
        let _ = writeln!(
            out,
            "| load | page | posts | connections | pipeline | server, layout | per second | per CPU second | x | of PING | of ECHO | bytes in, out |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
        );
        for cell in &self.cells {
            let percent = |share: Option<f64>| share.map_or(String::new(), |s| format!("{s:.2}"));
            let (of_ping, of_echo) = match cell.what {
                "read" => (percent(self.ceiling(cell, "ping")), percent(self.ceiling(cell, "echo"))),
                _ => Default::default(),
            };
            let times = self.strongest(cell).filter(|_| cell.is_ours() && cell.size > 0);
            let times = times.map_or(String::new(), |peer| format!("**{:.1}**", cell.per_cpu_s / peer.per_cpu_s));
            let posts = match (cell.size, cell.from) {
                (0, _) => "",
                (_, From::Hot) => "hot",
                (_, From::Uniform) => "uniform",
            };
            let _ = writeln!(
                out,
                "| {} | {} | {posts} | {} | {} | {} | {:.0} | {:.0} | {times} | {of_ping} | {of_echo} | {:.0}, {:.0} |",
                cell.what,
                cell.size,
                cell.connections,
                cell.pipeline,
                cell.subject,
                cell.per_s,
                cell.per_cpu_s,
                cell.bytes.0,
                cell.bytes.1
            );
        }
        let _ = writeln!(
            out,
            "\n## Loading and memory\n\nOver one connection, pipelined; bytes by the server's own `used_memory`.\n\n| server, layout | bytes per post | bytes per flag | posts/s | posts per CPU second | flags per CPU second |\n|---|---|---|---|---|---|"
        );
        for l in &self.loaded {
            let _ = writeln!(
                out,
                "| {} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} |",
                l.subject, l.bytes_per_post, l.bytes_per_pair, l.posts_per_s, l.posts_per_cpu_s, l.pairs_per_cpu_s
            );
        }
        if !self.latencies.is_empty() {
            let _ = writeln!(
                out,
                "\n## Latency\n\nOpen loop, 8 connections, one page of 20 at a time, microseconds from the moment when the page was due.\n\n| server, layout | most pages/s | at pages/s | p50 | p99 | p99.9 |\n|---|---|---|---|---|---|"
            );
        }
        for Latencies { subject, most, latency: Latency { rate, p50, p99, p999 } } in &self.latencies {
            let _ = writeln!(out, "| {subject} | {most:.0} | {rate:.0} | {p50:.0} | {p99:.0} | {p999:.0} |");
        }
        let _ = writeln!(
            out,
            "\n## Answers\n\nEvery counter of every page was equal to the model's, and no flag that was set was missing. Flags shown though not set:\n\n| server, layout | flags compared | shown though not set |\n|---|---|---|"
        );
        for (subject, checked) in &self.checked {
            let _ = writeln!(out, "| {subject} | {} | {} |", checked.flags, checked.false_yes);
        }
        if let Some(&(_, _, alone)) = self.scaling.first() {
            let _ = writeln!(
                out,
                "\n## Two cores\n\nBy 8, 8 connections, all cores for everybody, the client on one of them. What the workers could do with a core each is \
                 their number times what they do in a CPU second.\n\n| workers | pages/s | per CPU second | with a core each, of one |\n|---|---|---|---|"
            );
            for &(workers, per_s, per_cpu_s) in &self.scaling {
                let times = workers as f64 * per_cpu_s / alone;
                let _ = writeln!(out, "| {workers} | {per_s:.0} | {per_cpu_s:.0} | {times:.2} |");
            }
        }
        if let Some(idle) = self.idle {
            let _ = writeln!(out, "\nIdle, 100 connections: {:.2} % of a core.", idle * 100.0);
        }
        out
    }
}
