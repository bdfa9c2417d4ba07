//! The engine from outside: a model, threads, and rates.

mod behaviour;
mod memory;
mod model;
mod rates;
mod recovery;
mod sites;
mod threads;
