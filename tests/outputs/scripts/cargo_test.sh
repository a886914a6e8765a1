cargo test --offline
