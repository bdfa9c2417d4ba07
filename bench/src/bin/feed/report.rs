//! Results of all rounds, compared with other servers and with the targets.

use crate::data::PostDistribution;
use crate::load::{Latency, Throughput};
use crate::pool::Checked;
use std::fmt;
use tidemark_bench::play::median;

/// A load: page size (0 for no page), distribution of posts, connections and pipeline depth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) size: usize,
    pub(crate) from: PostDistribution,
    pub(crate) connections: usize,
    pub(crate) pipeline: usize,
}

impl Load {
    /// The load to which the targets apply: pages of 20 uniform posts over 8 connections.
    pub(crate) fn base(pipeline: usize) -> Load {
        Load { size: 20, from: PostDistribution::Uniform, connections: 8, pipeline }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Sample {
    round: usize,
    per_s: f64,
    per_cpu_s: f64,
}

impl Sample {
    pub(crate) fn new(round: usize, done: &Throughput) -> Sample {
        Sample { round, per_s: done.per_s(), per_cpu_s: done.per_cpu_s() }
    }
}

/// Measurements of one server and layout under one load.
pub(crate) struct Cell {
    pub(crate) subject: String,
    /// `read`, `90/10`, `ping` or `echo`.
    pub(crate) what: &'static str,
    pub(crate) load: Load,
    pub(crate) bytes: (f64, f64),
    samples: Vec<Sample>,
}

impl Cell {
    pub(crate) fn per_s(&self) -> f64 {
        median(self.samples.iter().map(|s| s.per_s).collect())
    }

    pub(crate) fn per_cpu_s(&self) -> f64 {
        median(self.samples.iter().map(|s| s.per_cpu_s).collect())
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.subject.starts_with("tidemark")
    }

    /// Returns the ratios of this cell's CPU efficiency to that of another cell, one for each round
    /// in which both were measured.
    fn over(&self, other: &Cell) -> Spread {
        let same = |s: &Sample| {
            Some(s.per_cpu_s / other.samples.iter().find(|o| o.round == s.round)?.per_cpu_s)
        };
        Spread(self.samples.iter().filter_map(same).collect())
    }
}

/// Ratios of several rounds.
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    fn median(&self) -> f64 {
        median(self.0.clone())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median() < 3.0 { 2 } else { 1 };
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        write!(f, "**{:.digits$}** ({least:.digits$} to {most:.digits$})", self.median())
    }
}

/// Cost of loading the data.
pub(crate) struct Loaded {
    pub(crate) subject: String,
    pub(crate) bytes_per_post: f64,
    pub(crate) bytes_per_pair: f64,
    pub(crate) posts_per_s: f64,
    pub(crate) posts_per_cpu_s: f64,
    pub(crate) pairs_per_cpu_s: f64,
}

/// Latencies at one rate. `most` is the server's maximum throughput over the same connections.
pub(crate) struct Latencies {
    pub(crate) subject: String,
    pub(crate) most: f64,
    pub(crate) latency: Latency,
}

/// Throughput of Tidemark with a given number of workers and cores.
pub(crate) struct Scaling {
    pub(crate) workers: usize,
    pub(crate) sample: Sample,
}

/// A target and the measured ratios.
pub(crate) struct Asked {
    pub(crate) what: &'static str,
    pub(crate) at_least: f64,
    pub(crate) found: Spread,
}

impl Asked {
    pub(crate) fn is_reached(&self) -> bool {
        self.found.median() >= self.at_least
    }
}

/// All results of a run.
pub(crate) struct Report {
    pub(crate) posts: u64,
    pub(crate) pairs: u64,
    pub(crate) cells: Vec<Cell>,
    pub(crate) loaded: Vec<Loaded>,
    pub(crate) latencies: Vec<Latencies>,
    pub(crate) checked: Vec<(String, Checked)>,
    pub(crate) scaling: Vec<Scaling>,
    /// Share of a core that Tidemark uses while its clients are idle.
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

    pub(crate) fn sample(
        &mut self,
        subject: &str,
        what: &'static str,
        load: Load,
        bytes: (f64, f64),
        sample: Sample,
    ) {
        eprintln!(
            "round {} {what:6} {subject:20} page {:2} {:?} connections {:2} pipeline {:2}: \
             {:9.0}/s {:9.0}/CPU s",
            sample.round,
            load.size,
            load.from,
            load.connections,
            load.pipeline,
            sample.per_s,
            sample.per_cpu_s
        );
        match self.cells.iter_mut().find(|c| c.is(subject, what, load)) {
            Some(cell) => cell.samples.push(sample),
            None => self.cells.push(Cell {
                subject: subject.to_owned(),
                what,
                load,
                bytes,
                samples: vec![sample],
            }),
        }
    }

    pub(crate) fn loaded(&mut self, loaded: Loaded) {
        self.loaded.push(loaded);
    }

    pub(crate) fn latency(&mut self, latency: Latencies) {
        let Latency { rate, p50, p99, p999 } = latency.latency;
        eprintln!(
            "latency {:20} at {rate:7.0}/s: p50 {p50:.0} p99 {p99:.0} p99.9 {p999:.0}",
            latency.subject
        );
        self.latencies.push(latency);
    }

    pub(crate) fn scaling(&mut self, scaling: Scaling) {
        let Scaling { workers, sample } = &scaling;
        eprintln!(
            "round {} {workers} workers: {:9.0}/s {:9.0}/CPU s",
            sample.round, sample.per_s, sample.per_cpu_s
        );
        self.scaling.push(scaling);
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

    pub(crate) fn find(&self, subject: &str, what: &str, load: Load) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.is(subject, what, load))
    }

    /// Returns the ratios of the cell's CPU efficiency to that of the fastest other server under
    /// the same load.
    pub(crate) fn times(&self, cell: &Cell) -> Option<Spread> {
        let peers = self
            .cells
            .iter()
            .filter(|peer| !peer.is_ours() && (peer.what, peer.load) == (cell.what, cell.load));
        Some(cell.over(peers.max_by(|a, b| a.per_cpu_s().total_cmp(&b.per_cpu_s()))?))
    }

    /// Returns the ratios of the cell's CPU efficiency to that of PING or ECHO on the same server.
    pub(crate) fn of_ceiling(&self, cell: &Cell, what: &str) -> Option<Spread> {
        let server = cell.subject.split(' ').next()?;
        Some(cell.over(self.find(
            server,
            what,
            Load { size: 0, from: PostDistribution::Uniform, ..cell.load },
        )?))
    }

    /// Returns the throughput of two workers on two cores, relative to one worker on one core, by
    /// round. The first ratio uses wall-clock time. The second uses CPU time, as if each worker had
    /// a full core.
    pub(crate) fn two_cores(&self) -> Option<(Spread, Spread)> {
        let of =
            |workers| self.scaling.iter().filter(move |s| s.workers == workers).map(|s| s.sample);
        let rounds: Vec<(Sample, Sample)> = of(1).zip(of(2)).collect();
        let by = |value: fn(&Sample) -> f64, times: f64| {
            Spread(rounds.iter().map(|(one, two)| times * value(two) / value(one)).collect())
        };
        (!rounds.is_empty()).then(|| (by(|s| s.per_s, 1.0), by(|s| s.per_cpu_s, 2.0)))
    }

    /// Returns all targets for which there are measurements.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        let feed = |what, pipeline| self.find("tidemark feed", what, Load::base(pipeline));
        let lines = [
            (
                "no pipeline, relative to PING",
                0.8,
                feed("read", 1).and_then(|cell| self.of_ceiling(cell, "ping")),
            ),
            (
                "no pipeline, relative to an ECHO of equal size",
                0.9,
                feed("read", 1).and_then(|cell| self.of_ceiling(cell, "echo")),
            ),
            (
                "no pipeline, times the strongest peer",
                3.3,
                feed("read", 1).and_then(|cell| self.times(cell)),
            ),
            (
                "pipeline of 8, times the strongest peer",
                12.0,
                feed("read", 8).and_then(|cell| self.times(cell)),
            ),
            (
                "pipeline of 32, times the strongest peer",
                18.0,
                feed("read", 32).and_then(|cell| self.times(cell)),
            ),
            (
                "90/10, pipeline of 8, times the strongest peer",
                10.0,
                feed("90/10", 8).and_then(|cell| self.times(cell)),
            ),
            ("two cores relative to one, by CPU time", 1.8, self.two_cores().map(|(_, cpu)| cpu)),
        ];
        let line = |(what, at_least, found): (_, _, Option<Spread>)| {
            Some(Asked { what, at_least, found: found? })
        };
        lines.into_iter().filter_map(line).collect()
    }
}

impl Cell {
    fn is(&self, subject: &str, what: &str, load: Load) -> bool {
        self.subject == subject && self.what == what && self.load == load
    }
}
