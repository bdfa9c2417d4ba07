//! `tidemark`: the program. All of it is in the library, so that tests can run it in their own
//! process.

fn main() -> std::process::ExitCode {
    tidemark_server::cli::main()
}
