//! One server process. Runs the work of all its threads step by step.

use crate::client::{Client, PIPE_BYTES};
use client::Socket;
use dataset::recovery::{Commits, NodeLog, RecoverError};
use dataset::snapshot::{Due, Schedule};
use dataset::tiering::Spiller;
use node::config::Config;
use node::roles::load::load_from;
use node::roles::log_owner::{lead, promote};
use node::roles::node::{Host, Node};
use node::roles::replica::{FollowEnd, follow};
use node::roles::{Master, Order};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use store::time::Work;
use store::{Log, ReplicaLog, SimDisk};
use tidemark_server::{Maintenance, Stop};
use tokio::io::DuplexStream;
use tokio::runtime::Runtime;

/// Number of times that each connection task is polled per step, because tasks wake each other.
const POLLS_PER_STEP: usize = 12;

/// Opens a replica's connection to its master.
pub(crate) type Dial = Rc<dyn Fn() -> io::Result<Socket>>;

/// State of the thread that owns the log: `node::roles::log_owner`, run step by step.
enum LogOwner {
    /// Each poll makes one commit.
    Leads(Pin<Box<dyn Future<Output = ()>>>),
    Follows(Pin<Box<dyn Future<Output = (ReplicaLog, FollowEnd)>>>),
    /// The process must open the folder again.
    FolderClosed,
}

pub(crate) struct Process {
    pub(crate) node: Arc<Node>,
    host: Arc<Host>,
    runtime: Runtime,
    owner: RefCell<LogOwner>,
    /// Whether the last commit succeeded.
    committed: Rc<Cell<bool>>,
    spiller: RefCell<Spiller>,
    schedule: RefCell<Schedule>,
    maintenance: RefCell<Maintenance>,
    /// Pending work for other threads.
    pub(crate) work: RefCell<VecDeque<Work>>,
    pub(crate) clients: Vec<RefCell<Client>>,
}

/// Main loop of the commit thread. The commit borrows the node, so the future owns both the node
/// and the log.
async fn commit(node: Arc<Node>, mut log: Log, committed: Rc<Cell<bool>>) {
    let mut commits = Commits::new(&node.durability, &node.current);
    loop {
        committed.set(commits.round(&mut log).is_ok());
        let mut is_over = false;
        poll_fn(|_| {
            if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Main loop of a replica. Connects by calling `dial` instead of using the master's address.
async fn run_follower(
    host: Arc<Host>,
    log: ReplicaLog,
    master: Master,
    dial: Dial,
) -> (ReplicaLog, FollowEnd) {
    let node = host.node();
    follow(&host, node, log, &master, async |_, _| dial()).await
}

fn leads(node: &Arc<Node>, log: Log, committed: &Rc<Cell<bool>>) -> LogOwner {
    lead(node, &log);
    LogOwner::Leads(Box::pin(commit(node.clone(), log, committed.clone())))
}

/// Promotes a replica to master.
fn take_over(host: &Host, mut log: ReplicaLog, committed: &Rc<Cell<bool>>) -> LogOwner {
    let node = host.node();
    loop {
        match promote(host, &node, log) {
            NodeLog::Own(log) => return leads(&node, *log, committed),
            NodeLog::Follows(again) => log = *again,
        }
    }
}

impl Process {
    /// Starts a process on this disk with `clients` connections: as a replica if `follows` is
    /// given, else as a master.
    ///
    /// # Errors
    ///
    /// Returns an error if recovery fails.
    pub(crate) fn start(
        config: &Config,
        disk: &SimDisk,
        clients: usize,
        follows: Option<(Master, Dial)>,
    ) -> Result<Process, RecoverError> {
        let host = Arc::new(tidemark_server::host(config.clone(), Vec::new(), Stop::new()));
        host.acl.configure(&config.security).expect("the users are valid");
        let node = host.node();
        let master = follows.as_ref().map(|(master, _)| master.clone());
        if config.durability.dir.is_dir() {
            node.replication.recall(config, false).expect("the role is readable");
            let order = Order { master, ..Order::default() };
            node.replication.order(config, order, || ()).expect("the role is writable");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let committed = Rc::new(Cell::new(true));
        let owner = match (load_from(&node, Arc::new(disk.clone()))?, follows) {
            (NodeLog::Own(log), None) => leads(&node, *log, &committed),
            (NodeLog::Follows(log), None) => take_over(&host, *log, &committed),
            (NodeLog::Follows(log), Some((master, dial))) => {
                node.durability.accept_writes();
                node.replication.settle(config, false, log.term());
                LogOwner::Follows(Box::pin(run_follower(host.clone(), *log, master, dial)))
            }
            (NodeLog::Own(_), Some(_)) => panic!("a replica's log became a master's"),
        };
        let mut process = Process {
            owner: RefCell::new(owner),
            committed,
            spiller: RefCell::default(),
            schedule: RefCell::default(),
            maintenance: RefCell::default(),
            work: RefCell::default(),
            clients: Vec::new(),
            runtime,
            host,
            node,
        };
        process.clients =
            (0..clients).map(|_| RefCell::new(Client::new(process.accept()))).collect();
        Ok(process)
    }

    /// Opens a connection and returns the client's end.
    pub(crate) fn accept(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        self.runtime
            .spawn(tidemark_server::serve(&self.host, theirs).expect("one more client is allowed"));
        ours
    }

    /// Makes one commit and returns whether it succeeded. Returns `None` if a commit is already in
    /// progress, or on a replica.
    pub(crate) fn round(&self) -> Option<bool> {
        let mut owner = self.owner.try_borrow_mut().ok()?;
        let LogOwner::Leads(commits) = &mut *owner else { return None };
        let polled = commits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the commit thread ended");
        Some(self.committed.get())
    }

    /// Polls a replica's link. Does nothing if called during such a poll.
    pub(crate) fn follow(&self) {
        let Ok(mut owner) = self.owner.try_borrow_mut() else { return };
        let LogOwner::Follows(link) = &mut *owner else { return };
        let ended = self.runtime.block_on(async {
            for _ in 0..POLLS_PER_STEP {
                if let ended @ Poll::Ready(_) =
                    poll_fn(|cx| Poll::Ready(link.as_mut().poll(cx))).await
                {
                    return ended;
                }
                tokio::task::yield_now().await;
            }
            Poll::Pending
        });
        match ended {
            Poll::Pending => {}
            Poll::Ready((_, FollowEnd::Replace { .. })) => *owner = LogOwner::FolderClosed,
            Poll::Ready((log, FollowEnd::Ordered)) => {
                *owner = take_over(&self.host, log, &self.committed);
            }
        }
    }

    /// Promotes this replica. The disk must not fail in the meantime.
    pub(crate) fn promote(&self) {
        let order = Order::default();
        let ordered = self.node.replication.order(&self.node.config(), order, || ());
        assert!(ordered.expect("the role is writable"), "the node was already a master");
        while !matches!(*self.owner.borrow(), LogOwner::Leads(_)) {
            assert!(!self.is_over(), "the log lost applied records");
            self.follow();
        }
    }

    /// Whether the process must open its folder again, for example after a full sync.
    pub(crate) fn is_over(&self) -> bool {
        self.owner.try_borrow().is_ok_and(|owner| matches!(*owner, LogOwner::FolderClosed))
    }

    /// Polls all connections.
    pub(crate) fn serve(&self) {
        self.runtime.block_on(async {
            for _ in 0..POLLS_PER_STEP {
                tokio::task::yield_now().await;
            }
        });
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.runtime.block_on(tokio::time::advance(time));
    }

    /// Runs a step of the spill thread.
    pub(crate) fn spill(&self) {
        let live = self.node.live(&|| false);
        self.spiller.borrow_mut().step(live.as_ref(), &self.node.durability);
    }

    /// Runs a step of the snapshot thread.
    pub(crate) fn snapshot(&self, due: bool) {
        let live = self.node.live(&|| false).expect("the data set is loaded");
        let asked = self.node.snapshots.take_wanted();
        let due = Due { log_bytes: u64::from(due), every_s: 0 };
        self.schedule.borrow_mut().step(&live, asked, due);
    }

    /// Runs a step of the maintenance thread. Does nothing if called during such a step.
    pub(crate) fn maintain(&self) {
        if let Ok(mut maintenance) = self.maintenance.try_borrow_mut() {
            maintenance.step(&self.node);
        }
    }
}
