//! Kafka reader: fetches each partition from Tidemark's own offset, without a consumer group.
//!
//! The crate rskafka is written in Rust and can fetch one partition from a given offset, which is
//! sufficient here. The alternative, librdkafka, is a C library with threads, queues and group
//! offsets that Tidemark would not use. A limitation of rskafka is that it also returns records of
//! aborted transactions.

use super::reading::{CHUNK_BYTES, Chunk, IDLE, ReadStopReason, ends_before, hash_of, record_gap};
use node::config::Ingest;
use node::runtime::ingest::{IngestSource, SourceState};
use rskafka::BackoffConfig;
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder, Credentials, SaslConfig};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time that rskafka retries before it returns an error.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum response size in bytes. Used for a batch that exceeds [`CHUNK_BYTES`].
const MAX_RESPONSE_BYTES: i32 = 64 << 20;
/// Pause after an empty fetch before the end of the partition. Transaction markers cause empty
/// fetches.
const EMPTY_FETCH_DELAY: Duration = Duration::from_millis(50);

impl From<Error> for ReadStopReason {
    fn from(error: Error) -> ReadStopReason {
        // Use only this part of the error, because rskafka's own error text contains the whole
        // request.
        ReadStopReason::Broken(match error {
            Error::ServerError { protocol_error, error_message, .. } => match error_message {
                Some(message) => format!("Kafka: {protocol_error}: {message}"),
                None => format!("Kafka: {protocol_error}"),
            },
            error => format!("Kafka: {error}"),
        })
    }
}

async fn connect(config: &Ingest) -> Result<Client, ReadStopReason> {
    let hosts = config.url.split_once("://").map_or("", |(_, hosts)| hosts);
    let with_port = |host: &str| match host.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host.to_owned(),
        _ => format!("{host}:9092"),
    };
    let backoff = BackoffConfig {
        max_backoff: Duration::from_secs(1),
        deadline: Some(RETRY_TIMEOUT),
        ..BackoffConfig::default()
    };
    let mut builder = ClientBuilder::new(hosts.split(',').map(with_port).collect())
        .client_id("tidemark")
        .backoff_config(backoff);
    if config.tls {
        let tls = client::tls::client_tls(&config.ca_file).map_err(ReadStopReason::Halt)?;
        builder = builder.tls_config(Arc::new(tls));
    }
    if !config.user.is_empty() {
        let login = Credentials::new(config.user.clone(), config.password.clone());
        builder = builder.sasl_config(SaslConfig::Plain(login));
    }
    Ok(builder.build().await?)
}

/// Partition numbers of the topic, in ascending order.
pub(super) async fn partitions(config: &Ingest) -> Result<Vec<u32>, ReadStopReason> {
    let client = connect(config).await?;
    let topics = client.list_topics().await?;
    let topic = topics.into_iter().find(|topic| topic.name == config.stream);
    let topic = topic.ok_or_else(|| {
        ReadStopReason::Broken(format!("Kafka: no such topic '{}'", config.stream))
    })?;
    Ok(topic.partitions.into_iter().filter_map(|number| u32::try_from(number).ok()).collect())
}

pub(super) struct Reader {
    client: PartitionClient,
    partition: u32,
    /// Current maximum response size. Some brokers return nothing if the batch is larger than the
    /// limit.
    max_response_bytes: i32,
}

impl Reader {
    pub(super) async fn open(
        source: &IngestSource,
        partition: u32,
        next: Option<u128>,
        is_new: bool,
    ) -> Result<(Reader, u128), ReadStopReason> {
        let client = connect(&source.config).await?;
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let topic = source.config.stream.clone();
        let client = client.partition_client(topic, number, UnknownTopicHandling::Error).await?;
        let reader = Reader { client, partition, max_response_bytes: CHUNK_BYTES as i32 };
        let next = match next {
            Some(next) => next,
            None if is_new => reader.end(OffsetAt::Latest).await?,
            None => reader.end(OffsetAt::Earliest).await?,
        };
        Ok((reader, next))
    }

    /// Returns the hash of a message, or `None` if the partition does not have it.
    pub(super) async fn hash_of(&self, message: u128) -> Result<Option<u64>, ReadStopReason> {
        let offset = i64::try_from(message).unwrap_or(i64::MAX);
        let bytes = 1..CHUNK_BYTES as i32;
        let (records, _) = match self.client.fetch_records(offset, bytes, 0).await {
            Ok(fetched) => fetched,
            Err(Error::ServerError { protocol_error: ProtocolError::OffsetOutOfRange, .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let record = records.into_iter().find(|record| record.offset == offset);
        Ok(record.map(|record| hash_of(record.record.value.as_deref().unwrap_or_default())))
    }

    async fn end(&self, at: OffsetAt) -> Result<u128, ReadStopReason> {
        Ok(u128::try_from(self.client.get_offset(at).await?).unwrap_or(0))
    }

    pub(super) async fn read(
        &mut self,
        source: &IngestSource,
        next: u128,
        chunk: &mut Chunk,
    ) -> Result<(), ReadStopReason> {
        let offset = i64::try_from(next).unwrap_or(i64::MAX);
        let bytes = 1..self.max_response_bytes;
        let fetched = self.client.fetch_records(offset, bytes, IDLE.as_millis() as i32).await;
        let (records, end) = match fetched {
            Ok(fetched) => fetched,
            Err(Error::ServerError { protocol_error: ProtocolError::OffsetOutOfRange, .. }) => {
                return self.out_of_range(source, next, chunk).await;
            }
            Err(error) => return Err(error.into()),
        };
        // Some brokers accept an offset beyond the end of the partition.
        if u128::try_from(end).is_ok_and(|end| end < next) {
            return Err(ends_before(source, u128::try_from(end).unwrap_or(0), next));
        }
        if records.is_empty() && end > offset {
            // Brokers that accept such an offset also return nothing for an offset that was
            // truncated.
            let first = self.end(OffsetAt::Earliest).await?;
            if first > next {
                return self.out_of_range(source, next, chunk).await;
            }
            chunk.lag = u64::try_from(end - offset).ok();
            if self.max_response_bytes < MAX_RESPONSE_BYTES {
                self.max_response_bytes = (2 * self.max_response_bytes).min(MAX_RESPONSE_BYTES);
                return Ok(());
            }
            if end - offset > 1 {
                self.log_empty_fetch(source, end - offset);
            }
            tokio::time::sleep(EMPTY_FETCH_DELAY).await;
            return Ok(());
        }
        if !records.is_empty() {
            self.max_response_bytes = CHUNK_BYTES as i32;
        }
        let mut behind = offset;
        for record in &records {
            // Tombstones have no value.
            let value = record.record.value.as_deref().unwrap_or_default();
            chunk.push(u128::try_from(record.offset).unwrap_or(0), value, hash_of(value));
            behind = record.offset + 1;
        }
        chunk.lag = u64::try_from(end - behind).ok();
        Ok(())
    }

    /// Reports an empty fetch before the end of the partition. A single missing record is normally
    /// a transaction marker. Several missing records may be an oversized batch.
    fn log_empty_fetch(&self, source: &IngestSource, many: i64) {
        source.stand(self.partition, SourceState::Waiting);
        let why = format!(
            "Kafka returns none of {many} messages: a batch exceeds {} MiB, or only transaction \
             markers are left (skip them with TM.INGEST SETOFFSET)",
            MAX_RESPONSE_BYTES >> 20
        );
        if source.note_trouble(self.partition, &why) {
            tracing::warn!("ingest '{}': {why}", source.config.name);
        }
    }

    /// Handles an offset outside the partition. An offset before the first message is a gap. An
    /// offset after the last message halts the source.
    async fn out_of_range(
        &self,
        source: &IngestSource,
        next: u128,
        chunk: &mut Chunk,
    ) -> Result<(), ReadStopReason> {
        let (first, end) = (self.end(OffsetAt::Earliest).await?, self.end(OffsetAt::Latest).await?);
        if end < next {
            return Err(ends_before(source, end, next));
        }
        if first > next {
            record_gap(source, self.partition, u64::try_from(first - next).ok(), next, first);
            chunk.pass_over(first - 1);
            return Ok(());
        }
        Err(ReadStopReason::Broken(
            "Kafka: offset out of range, although it is within the partition".to_owned(),
        ))
    }
}
