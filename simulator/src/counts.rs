//! Counts of the events in a run. A test checks that the seeds reach every kind of event.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Kind of work that a step performs. Crashes are counted for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// Work of the connections: requests and replies.
    Clients,
    /// A commit by the commit thread.
    Commit,
    /// A step of the spill thread that wrote files: a spill or a merge.
    Spill,
    /// A snapshot.
    Snapshot,
    /// Work that a command does on another thread: TM.SPILL, a catalogue change, cold reads.
    Work,
    /// Startup of the server.
    Recovery,
}

/// Number of events in a run, or in several runs.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "each name is a counter")]
pub struct RunCounts {
    pub commands: u64,
    pub errors: u64,
    pub rounds: u64,
    pub failed_rounds: u64,
    pub starts: u64,
    pub power_cuts: u64,
    pub kills: u64,
    pub crashes_in: BTreeMap<Section, u64>,
    /// Number of crashes after a change of the catalogue and before the next snapshot.
    pub crashes_after_alter: u64,
    pub altered: u64,
    pub saves: u64,
    pub spills: u64,
    pub spilled_tables: u64,
    pub merges: u64,
    pub failed_spills: u64,
    pub spills_in_recovery: u64,
    pub cold_reads: u64,
    pub clock_jumps: u64,
    /// Number of spaces that had several id ranges when a process ended.
    pub ranges: u64,
    /// Number of spaces that had outliers (ids far above all tables) when a process ended.
    pub outliers: u64,
    /// Number of tables whose filters were rebuilt.
    pub rebuilt: u64,
    /// Number of rebuilds interrupted by the end of a process.
    pub cut_rebuilds: u64,
    /// Number of links on which a replica resumed without a full sync.
    pub continued: u64,
    pub full_syncs: u64,
    pub cuts: u64,
    pub replica_crashes: u64,
    /// Number of promotions of a replica after the death of its master.
    pub promotions: u64,
    /// Number of commands to which a replica and its master gave the same reply.
    pub compared: u64,
}

impl AddAssign<&RunCounts> for RunCounts {
    fn add_assign(&mut self, other: &RunCounts) {
        self.commands += other.commands;
        self.errors += other.errors;
        self.rounds += other.rounds;
        self.failed_rounds += other.failed_rounds;
        self.starts += other.starts;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        for (section, crashes) in &other.crashes_in {
            *self.crashes_in.entry(*section).or_default() += crashes;
        }
        self.crashes_after_alter += other.crashes_after_alter;
        self.altered += other.altered;
        self.saves += other.saves;
        self.spills += other.spills;
        self.spilled_tables += other.spilled_tables;
        self.merges += other.merges;
        self.failed_spills += other.failed_spills;
        self.spills_in_recovery += other.spills_in_recovery;
        self.cold_reads += other.cold_reads;
        self.clock_jumps += other.clock_jumps;
        self.ranges += other.ranges;
        self.outliers += other.outliers;
        self.rebuilt += other.rebuilt;
        self.cut_rebuilds += other.cut_rebuilds;
        self.continued += other.continued;
        self.full_syncs += other.full_syncs;
        self.cuts += other.cuts;
        self.replica_crashes += other.replica_crashes;
        self.promotions += other.promotions;
        self.compared += other.compared;
    }
}
