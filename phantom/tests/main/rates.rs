//! rates
