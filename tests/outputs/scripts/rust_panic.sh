mkdir -p ../panic/src
printf '[package]\nname = "panic"\nversion = "0.1.0"\nedition = "2021"\n' >../panic/Cargo.toml
cp panic.rs ../panic/src/main.rs
cd ../panic
RUST_BACKTRACE=1 cargo run -q --offline
