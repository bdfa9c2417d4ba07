//! Delivery by XREADGROUP: new entries of a group, or the pending entries of a consumer.

use super::group::{admitted, groups, hear_of, named, no_key_or_group};
use super::{Found, Log};
use dataset::changes::{Id, Scope};
use dataset::clock::unix_ms;
use dataset::groups::{Cursor, Key};
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Now;
use resp::{Protocol, Reply};

#[derive(Clone)]
pub(super) struct Member {
    group: Vec<u8>,
    consumer: Vec<u8>,
    /// Whether delivered entries count as acknowledged (NOACK).
    no_ack: bool,
    protocol: Protocol,
}

impl Member {
    pub(super) fn new(
        (group, consumer): (&[u8], &[u8]),
        no_ack: bool,
        protocol: Protocol,
    ) -> Result<Member, Refusal> {
        Ok(Member { group: group.to_vec(), consumer: named(consumer)?, no_ack, protocol })
    }

    pub(super) fn key(&self, scope: Scope) -> Key {
        (scope, self.group.clone())
    }

    fn missing(&self, key: &[u8]) -> Refusal {
        no_key_or_group(key, &self.group, " in XREADGROUP with GROUP option")
    }

    /// Creates the consumer if needed; fails if the group does not exist.
    pub(super) fn hear_of(&self, node: Now<'_>, scope: Option<Scope>, key: &[u8]) -> Outcome {
        let scope = scope.ok_or_else(|| self.missing(key))?;
        groups(node).with(&self.key(scope), |group| {
            hear_of(node, group.ok_or_else(|| self.missing(key))?, &self.consumer).map(|_| ())
        })
    }

    /// Delivers entries that no consumer of the group has received.
    pub(super) fn deliver(
        &self,
        log: Log<'_>,
        (scope, name): (Scope, &[u8]),
        most: usize,
        goes_on: &dyn Fn() -> bool,
        found: &mut Found,
    ) -> Outcome {
        let (node, key) = (log.node, self.key(scope));
        let delivering = groups(node).with(&key, |group| group.map(|g| g.delivering.clone()));
        let delivering = delivering.ok_or_else(|| self.missing(name))?;
        // Serializes deliveries of a group, so that consumers receive disjoint entries.
        let _one = delivering.lock();
        let begin =
            groups(node).with(&key, |group| group.map(|g| (g.next, g.place, g.pending.len())));
        let (next, place, pending) = begin.ok_or_else(|| self.missing(name))?;
        let most_pending = node.config().changes.max_pending;
        let room = if self.no_ack { most } else { most_pending.saturating_sub(pending) };
        let place = match place {
            Some(place) => Some(place),
            None => log.find(scope, next.start())?,
        };
        let Some(mut place) = place else { return Ok(()) };
        let mut ids = Vec::new();
        log.read(scope, &mut place, goes_on, |id, bytes| {
            if room == 0 {
                ids.push(id);
                return false;
            }
            found.bytes.extend_from_slice(bytes);
            found.count += 1;
            ids.push(id);
            !found.is_full(most.min(room))
        })?;
        if room == 0 && !ids.is_empty() {
            return Err(refuse!(
                "ERR the group has {pending} pending entries, the maximum (changes.max_pending): \
                 XACK some of them first"
            ));
        }
        let Some(&last) = ids.last() else {
            groups(node).with(&key, |group| {
                if let Some(group) = group.filter(|group| group.next == next) {
                    group.place = Some(place);
                }
            });
            return Ok(());
        };
        let now_ms = unix_ms();
        let is_delivered = node.current.change_group(
            &key,
            || admitted(node),
            |group| {
                let group = group.as_mut().ok_or_else(|| self.missing(name))?;
                // XGROUP SETID has changed the cursor during the read.
                if group.next != next {
                    return Ok(false);
                }
                (group.next, group.place) = (Cursor::After(last), Some(place));
                let (consumer, _) = group.consumer(&self.consumer, now_ms);
                for id in ids.iter().filter(|_| !self.no_ack) {
                    group.deliver(*id, &consumer, now_ms, 1);
                }
                Ok::<_, Refusal>(true)
            },
        )??;
        if !is_delivered {
            *found = Found::default();
        }
        Ok(())
    }

    /// Returns the pending entries of a consumer that follow an id. An entry that the log no longer
    /// contains is returned with nil fields.
    pub(super) fn deliver_again(
        &self,
        log: Log<'_>,
        (scope, name): (Scope, &[u8]),
        after: Id,
        most: usize,
        found: &mut Found,
    ) -> Outcome {
        let (node, key) = (log.node, self.key(scope));
        let ids: Option<Vec<Id>> = groups(node).with(&key, |group| {
            let own = group?.consumers.get(&self.consumer[..]);
            let from = after.after()?;
            Some(
                own.into_iter()
                    .flat_map(|own| own.pending.range(from..))
                    .copied()
                    .take(most)
                    .collect(),
            )
        });
        let ids = ids.ok_or_else(|| self.missing(name)).or_else(|missing| {
            // No entry can follow the maximum id.
            if after == Id::MAX { Ok(Vec::new()) } else { Err(missing) }
        })?;
        let mut delivered = Vec::new();
        for id in ids {
            match log.entry(scope, id)? {
                Some(bytes) => found.bytes.extend_from_slice(&bytes),
                None => {
                    let mut reply = Reply::new(&mut found.bytes, self.protocol);
                    reply.array(2);
                    reply.bulk(id.to_string().as_bytes());
                    reply.null_array();
                }
            }
            found.count += 1;
            delivered.push(id);
            if found.is_full(most) {
                break;
            }
        }
        let now_ms = unix_ms();
        groups(node).with(&key, |group| {
            let Some(group) = group else { return };
            for id in delivered {
                if let Some(pending) = group.pending.get_mut(&id) {
                    pending.time_ms = now_ms;
                    pending.times += 1;
                }
            }
        });
        Ok(())
    }
}
