touch src/lib.rs
cargo test --offline --no-run --message-format json 2>/dev/null
cargo metadata --offline --format-version 1
