//! Suspended requests: a command starts asynchronous work (an fsync, for example) and returns
//! without a reply. The worker serves other clients. When the work is done, the worker executes the
//! command again, and the command reads the result. EXEC resumes at the suspended command.

use dataset::cold::fetch::ColdReads;
use node::command::error::Refusal;
use std::pin::Pin;
use tokio::sync::oneshot;

/// Bytes of a reply, or a refusal.
pub(crate) type SuspendResult = Result<Vec<u8>, Refusal>;

/// State of a request that waits for asynchronous work; see the module documentation.
#[derive(Default)]
pub(crate) enum Suspension {
    #[default]
    Nothing,
    /// The command has requested this asynchronous work, which has not started yet.
    Asked(Pin<Box<dyn Future<Output = SuspendResult> + Send>>),
    Away(oneshot::Receiver<SuspendResult>),
    /// The command needs cold rows that are not in memory.
    MissingRows(Box<ColdReads>),
    /// The cold rows are being read, or have been read. When the rows are available, the command
    /// runs again.
    RunAgain,
}

impl Suspension {
    /// Suspends the current request until `work` is done.
    pub(crate) fn ask(&mut self, work: impl Future<Output = SuspendResult> + Send + 'static) {
        *self = Suspension::Asked(Box::pin(work));
    }

    /// Returns whether the command that was just executed must be suspended.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        matches!(self, Suspension::Asked(_) | Suspension::MissingRows(_))
    }

    /// Returns whether the command is being executed for the second time.
    #[inline]
    pub(crate) fn is_second_run(&self) -> bool {
        matches!(self, Suspension::Away(_) | Suspension::RunAgain)
    }

    /// Returns the cold rows to read before the command runs again, or `None` if the command waits
    /// for other work.
    pub(crate) fn take_missing_rows(&mut self) -> Option<Box<ColdReads>> {
        match std::mem::take(self) {
            Suspension::MissingRows(fetching) => {
                *self = Suspension::RunAgain;
                Some(fetching)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Returns the future to await before the command runs again. Call only if
    /// [`is_requested`](Suspension::is_requested).
    pub(crate) fn leave(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let (tell, told) = oneshot::channel();
        let asked = std::mem::replace(self, Suspension::Away(told));
        async move {
            if let Suspension::Asked(work) = asked {
                // A dropped receiver means that the client has disconnected.
                let _ = tell.send(work.await);
            }
        }
    }

    /// Takes the result of the work, if it is available.
    pub(crate) fn take_result(&mut self) -> Option<SuspendResult> {
        match std::mem::take(self) {
            Suspension::Away(mut told) => told.try_recv().ok(),
            Suspension::RunAgain => None,
            other => {
                *self = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fuzz::commands::{Guest, alone};
    use node::config::Config;
    use node::roles::node::Node;
    use node::roles::{Master, Order};
    use std::time::Duration;

    /// A group of changes waits for space in the log, which another writer has filled. In the
    /// meantime the disk fails, or the node becomes a replica.
    #[tokio::test]
    async fn request_waiting_for_log_room_fails_without_a_trace() {
        let begun = [
            ("MSET post:1:like 1 post:2:like 2\r\n", ""),
            (
                "MULTI\r\nHSET post:1 like 1\r\nHSET post:2 like 2\r\nEXEC\r\n",
                "+OK\r\n+QUEUED\r\n+QUEUED\r\n",
            ),
        ];
        type Change = fn(&Node);
        let fails: Change = |node| {
            _ = node.durability.refuse_writes(&store::Error::Refused("the disk is gone".to_owned()))
        };
        let follows: Change = |node| {
            let order = Order {
                master: Some(Master { host: "127.0.0.1".to_owned(), port: 1 }),
                ..Order::default()
            };
            assert!(node.replication.order(&node.config(), order, || ()).unwrap());
            node.durability.followed(store::Position::START, store::Position::START);
        };
        for ((requests, queued), (change, refusal)) in begun.into_iter().flat_map(|requests| {
            [(fails, "MISCONF"), (follows, "READONLY")].map(|refused| (requests, refused))
        }) {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::default();
            config.durability.dir = folder.path().to_path_buf();
            let node = alone(&config);
            let all = node.durability.committer().reserve(usize::MAX / 2).unwrap();
            let mut guest = Guest::new(&node);
            let (used, told) = guest.step(requests.as_bytes());
            let rest = &requests[used..];
            assert_eq!(
                (String::from_utf8_lossy(&told), rest.is_empty()),
                (queued.into(), false),
                "{refusal}"
            );
            let mut waits = guest.processor.stalled.take().unwrap();
            assert!(
                tokio::time::timeout(Duration::from_millis(20), &mut waits).await.is_err(),
                "the command waits for room in the log"
            );
            change(&node);
            tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap();
            let told = String::from_utf8(guest.answers(rest.as_bytes()).await).unwrap();
            assert!(told.starts_with('-') && told.contains(refusal), "{told}");
            assert!(!guest.processor.session.suspension.is_second_run(), "the result was consumed");
            drop(all);
            // The suspension of the next client receives its own result.
            let told = guest.answers(b"MULTI\r\nINFO tables\r\nECHO there\r\nEXEC\r\n").await;
            let told = String::from_utf8(told).unwrap();
            assert!(
                told.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$")
                    && told.ends_with("$5\r\nthere\r\n"),
                "{told}"
            );
            assert!(told.contains("# Tables"), "{told}");
        }
    }
}
