//! The engine from outside: a model, threads, and rates.

mod model;
mod rates;
mod threads;
