//! `tidemark`: the program. All of it is in the library, so that tests can run it in their own
//! process.

/// jemalloc, as in Redis: memory that large requests took goes back to the system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
