//! One process of the server: all that its threads do, step by step.

use crate::client::{Client, PIPE_BYTES};
use dataset::recovery::{Commits, Held, RecoverError};
use dataset::snapshot::{Due, Schedule};
use dataset::tiering::Spiller;
use node::config::Config;
use node::roles::load::load_from;
use node::roles::log_owner::lead;
use node::roles::node::{Host, Node};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use store::time::Work;
use store::{Log, SimDisk};
use tidemark_server::{Maintenance, Stop};
use tokio::runtime::Runtime;

/// How often the tasks of connections get their turn: one wakes another, which wakes a third.
const TURNS: usize = 12;

/// See the top of the file.
pub(crate) struct Process {
    pub(crate) node: Arc<Node>,
    runtime: Runtime,
    /// The commit thread: each poll is a round.
    commits: RefCell<Pin<Box<dyn Future<Output = ()>>>>,
    /// Whether the last round went well.
    committed: Rc<Cell<bool>>,
    spiller: RefCell<Spiller>,
    schedule: RefCell<Schedule>,
    maintenance: RefCell<Maintenance>,
    /// What other threads are to do.
    pub(crate) work: RefCell<VecDeque<Work>>,
    pub(crate) clients: Vec<RefCell<Client>>,
}

/// The commit thread's life. A round borrows the node, so both live in one future.
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

impl Process {
    /// Starts on this disk, as the program does, with so many clients.
    pub(crate) fn start(
        config: &Config,
        disk: &SimDisk,
        clients: usize,
    ) -> Result<Process, RecoverError> {
        let host = Arc::new(Host::new(config.clone(), Vec::new(), Stop::new()));
        host.acl.configure(&config.security).expect("users that can be read");
        let node = host.node();
        let Held::Own(log) = load_from(&node, Arc::new(disk.clone()))? else {
            panic!("a master's log became a replica's")
        };
        lead(&node, &log);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let connect = |_| {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            runtime.spawn(tidemark_server::serve(&host, theirs).expect("room for a client"));
            RefCell::new(Client::new(ours))
        };
        let clients = (0..clients).map(connect).collect();
        let committed = Rc::new(Cell::new(true));
        Ok(Process {
            commits: RefCell::new(Box::pin(commit(node.clone(), *log, committed.clone()))),
            committed,
            spiller: RefCell::default(),
            schedule: RefCell::default(),
            maintenance: RefCell::default(),
            work: RefCell::default(),
            clients,
            runtime,
            node,
        })
    }

    /// A round of the commit thread; `None` if this is called in the middle of one.
    pub(crate) fn round(&self) -> Option<bool> {
        let mut commits = self.commits.try_borrow_mut().ok()?;
        let polled = commits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the commit thread has ended");
        Some(self.committed.get())
    }

    /// All connections get their turn.
    pub(crate) fn serve(&self) {
        self.runtime.block_on(async {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        });
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.runtime.block_on(tokio::time::advance(time));
    }

    /// A step of the spill thread.
    pub(crate) fn spill(&self) {
        let live = self.node.live(&|| false);
        self.spiller.borrow_mut().step(live.as_ref(), &self.node.durability);
    }

    /// A step of the snapshot thread.
    pub(crate) fn snapshot(&self, due: bool) {
        let live = self.node.live(&|| false).expect("the data are loaded");
        let asked = self.node.snapshots.take_wanted();
        let due = Due { log_bytes: u64::from(due), every_s: 0 };
        self.schedule.borrow_mut().step(&live, asked, due);
    }

    /// A step of the maintenance thread, if this is not called in the middle of one.
    pub(crate) fn maintain(&self) {
        if let Ok(mut maintenance) = self.maintenance.try_borrow_mut() {
            maintenance.step(&self.node);
        }
    }
}
